//! ackord: a queue consumer worker that turns at-least-once delivery into effects that happen once.

pub mod classify;
pub mod clock;
pub mod fingerprint;
pub mod flow;
pub mod idempotency;
pub mod key;
