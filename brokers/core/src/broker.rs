use std::fmt::Debug;
use std::num::NonZeroUsize;

use async_trait::async_trait;

use crate::{BrokerError, Capabilities, Delivery};

/// A broker that messages can be consumed from: one connection, or one client's configuration.
///
/// `Broker` values are shared between sources, so every method takes `&self`. Constructing one does no I/O; the first
/// I/O happens in [`subscribe`](Broker::subscribe).
#[async_trait]
pub trait Broker: Send + Sync + Debug {
    /// The adapter's kind in lower case, as written in configuration files: `kafka`, `file`, `memory`.
    fn name(&self) -> &'static str;

    /// What this broker can and cannot do for the source of that name. Performs no I/O and always gives the same
    /// answer.
    fn capabilities(&self) -> Capabilities;

    /// Opens a source and starts its inflow.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`](crate::ErrorKind::Refused) when trying again cannot help (wrong password, no such
    /// source, bad options), [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) when it may.
    async fn subscribe(&self, to: &Subscription) -> Result<Box<dyn Consumer>, BrokerError>;
}

/// What to subscribe to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subscription {
    /// Queue, topic or path, in the broker's own spelling.
    pub source: String,
    /// The most messages the worker will ever hold unsettled from this subscription; an adapter that prefetches
    /// must not fetch more.
    pub window: NonZeroUsize,
    /// Where rejected messages go, in the broker's own spelling; `None` asks for the adapter's default place.
    pub dead_letter: Option<String>,
}

impl Subscription {
    /// A subscription with a window of 64 messages and the adapter's own dead-letter place.
    pub fn new(source: impl Into<String>) -> Self {
        Self {
            source: source.into(),
            window: NonZeroUsize::new(64).expect("64 is not zero"),
            dead_letter: None,
        }
    }
}

/// One open source.
///
/// # Back-pressure
/// The worker asks only for as many messages as it has free slots. An adapter may buffer up to
/// [`Subscription::window`] but pushes nothing.
///
/// # Cancellation
/// `receive` is cancel-safe: dropping its future loses no message. What had been fetched is handed out by the next
/// call, or goes back to the broker when the consumer is dropped.
///
/// # The usual mistake
/// Returning `Ok` with an empty vector when a poll timed out. `receive` waits until there is at least one message;
/// the worker cancels it when it wants to stop.
#[async_trait]
pub trait Consumer: Send {
    /// Waits for messages and returns between 1 and `max` of them.
    ///
    /// # Errors
    /// [`ErrorKind::Ended`](crate::ErrorKind::Ended) when the source is finite and every message that came from it is
    /// settled; this is not a fault. After any other error the consumer is used up: the worker drops it and subscribes again
    /// (open deliveries may or may not still settle).
    async fn receive(&mut self, max: NonZeroUsize) -> Result<Vec<Delivery>, BrokerError>;

    /// Stops the inflow. Messages that were fetched but not handed out go back to the broker. Open deliveries stay
    /// valid: they can still be settled and extended. Calling it twice is fine.
    ///
    /// # Errors
    /// When the broker could not be told; the inflow counts as stopped all the same.
    async fn drain(&mut self) -> Result<(), BrokerError>;
}
