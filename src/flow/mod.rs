//! Flows: what is done for a message, step by step.

pub mod step;

pub use step::{Step, StepCall, StepContext};
