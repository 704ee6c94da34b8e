//! ackord: a queue consumer worker that turns at-least-once delivery into effects that happen once.

pub mod clock;
pub mod fingerprint;
pub mod idempotency;
pub mod key;
