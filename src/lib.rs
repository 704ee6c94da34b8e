//! ackord: a queue consumer worker that turns at-least-once delivery into effects that happen once.

pub mod backoff;
pub mod classify;
pub mod cli;
pub mod clock;
pub mod config;
pub mod docs;
pub mod fingerprint;
mod flight;
pub mod flow;
pub mod gate;
pub mod guard;
mod heartbeat;
pub mod idempotency;
pub mod key;
mod lane;
mod lock;
pub mod outcome;
mod parts;
pub mod policy;
mod process;
pub mod registry;
pub mod saga;
pub mod shutdown;
pub mod telemetry;
mod turn;
mod walk;
pub mod worker;
