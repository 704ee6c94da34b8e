//! The contract between ackord and a message broker.
//!
//! An adapter implements three traits: [`Broker`] opens a source, [`Consumer`] hands out
//! [`Delivery`]s, and [`Settle`] is the right to settle one of them. A message and its right to be
//! settled travel together; settling consumes it, so settling twice does not compile:
//!
//! ```compile_fail
//! # async fn f(delivery: ackord_broker::Delivery) {
//! use ackord_broker::Disposition;
//! let _ = delivery.settle(Disposition::Ack).await;
//! let _ = delivery.settle(Disposition::Ack).await; // use of moved value
//! # }
//! ```
//!
//! **A dropped delivery is an unsettled delivery.** Nothing in this crate acknowledges by default.
//!
//! [`memory::MemoryBroker`] is the reference adapter. The `conformance` kit (behind the feature of that name) is
//! what every adapter must pass.

mod broker;
mod capabilities;
mod delivery;
mod disposition;
mod error;
pub mod memory;
mod message;

#[cfg(feature = "conformance")]
pub mod conformance;

pub use broker::{Broker, Consumer, Subscription};
pub use capabilities::{Capabilities, DeadLetters, DelayBounds, Lease, Ordering, Redelivery};
pub use delivery::{Attempt, Delivery, Settle};
pub use disposition::{Disposition, NackCause, RejectReason, Rejection, SettleError};
pub use error::{BrokerError, ErrorKind};
pub use message::{Fault, Header, Headers, Message, MessageId, Origin};
