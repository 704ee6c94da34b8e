use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::{Disposition, Message, SettleError};

/// A message together with the right to settle it.
///
/// Dropping a delivery leaves the message unsettled: the broker delivers it again, see
/// [`Redelivery`](crate::Redelivery).
pub struct Delivery {
    message: Arc<Message>,
    attempt: Attempt,
    handle: Box<dyn Settle>,
}

impl Delivery {
    /// Pairs a message with its handle; for adapters.
    pub fn new(message: Message, attempt: Attempt, handle: Box<dyn Settle>) -> Self {
        Self { message: Arc::new(message), attempt, handle }
    }

    /// The message.
    pub fn message(&self) -> &Message {
        &self.message
    }

    /// The message, to be kept beside the delivery without a copy.
    pub fn shared_message(&self) -> Arc<Message> {
        Arc::clone(&self.message)
    }

    /// The broker's own count of deliveries: a hint, never an authority.
    pub fn attempt(&self) -> Attempt {
        self.attempt
    }

    /// Tells the broker to go on holding the message for us, for `by` from now.
    ///
    /// # Errors
    /// [`SettleError::Lost`] when the message is no longer ours, [`SettleError::Failed`] when the broker could not be
    /// asked.
    pub async fn extend(&self, by: Duration) -> Result<(), SettleError> {
        self.handle.extend(by).await
    }

    /// Settles the message, once and for all.
    ///
    /// # Errors
    /// [`SettleError::Lost`] when the message is no longer ours: nothing was settled, somebody else has it or will.
    /// [`SettleError::Failed`] when the broker did not confirm: the message counts as unsettled and comes again.
    pub async fn settle(self, disposition: Disposition) -> Result<(), SettleError> {
        self.handle.settle(disposition).await
    }
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("id", &self.message.id)
            .field("origin", &self.message.origin)
            .field("attempt", &self.attempt)
            .finish_non_exhaustive()
    }
}

/// How often the broker says it has delivered this message, this time included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attempt {
    /// The broker does not count.
    Unknown,
    /// The broker only knows that this is not the first time.
    Again,
    /// The broker counts; 1 is the first delivery.
    Number(u32),
}

/// The right to settle one message.
///
/// Implementations must treat a drop without [`settle`](Settle::settle) as "not settled" and must never acknowledge
/// in a destructor.
#[async_trait]
pub trait Settle: Send + Sync {
    /// See [`Delivery::settle`]. Must return only when the broker has confirmed, as far as the protocol can. A
    /// rejection whose dead letter could not be written must return [`SettleError::Failed`] and leave the message
    /// unsettled.
    async fn settle(self: Box<Self>, disposition: Disposition) -> Result<(), SettleError>;

    /// See [`Delivery::extend`].
    async fn extend(&self, by: Duration) -> Result<(), SettleError>;
}
