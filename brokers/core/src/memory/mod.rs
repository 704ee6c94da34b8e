//! The reference adapter: queues in memory.
//!
//! It does everything that the contract describes and nothing else, so it doubles as the broker of tests: delays and
//! leases run on tokio's clock (also a paused one), and [`MemoryBroker::set_available`],
//! [`MemoryBroker::dead_letters`], [`MemoryBroker::settled`] and [`MemoryBroker::depth`] are doors to look through.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
//! use std::num::NonZeroUsize;
//!
//! use ackord_broker::memory::MemoryBroker;
//! use ackord_broker::{Broker, Disposition, Message, Subscription};
//!
//! let broker = MemoryBroker::new();
//! broker.publish("orders", Message::new("1", "a body"));
//! let mut consumer = broker.subscribe(&Subscription::new("orders")).await?;
//! for delivery in consumer.receive(NonZeroUsize::new(10).unwrap()).await? {
//!     delivery.settle(Disposition::Ack).await?;
//! }
//! assert_eq!(broker.depth("orders"), 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! ```

mod queue;

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::atomic::{self, AtomicBool};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use crate::{
    Attempt, Broker, BrokerError, Capabilities, Consumer, DeadLetters, DelayBounds, Delivery, Disposition,
    ErrorKind, Lease, Message, Ordering, Redelivery, Rejection, Settle, SettleError, Subscription,
};
use queue::{Look, Outcome, Queue, Receipt, Taken};

/// A broker whose queues live in this process. Clones share the queues; a queue exists as soon as it is named.
///
/// A nacked message goes to the end of its queue, one whose delivery was dropped or whose lease ended goes back to
/// its place. Nothing is fetched ahead, so a consumer holds only what it handed out, and deliveries stay valid when
/// their consumer is gone. Dead letters stay with their queue, whatever [`Subscription::dead_letter`] says.
#[derive(Debug, Clone)]
pub struct MemoryBroker {
    shared: Arc<Shared>,
}

/// What the consumers and deliveries of a queue were settled as.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Settled {
    /// How many were acknowledged.
    pub acks: u64,
    /// How many were handed back.
    pub nacks: u64,
    /// How many were rejected.
    pub rejects: u64,
}

impl MemoryBroker {
    /// A broker without leases: a message is held until it is settled or its delivery is dropped.
    pub fn new() -> Self {
        Self::with(None)
    }

    /// A broker that takes a message back when it is neither settled nor extended for `lease`, counted from receipt.
    pub fn with_lease(lease: Duration) -> Self {
        Self::with(Some(lease))
    }

    /// Appends a message to a queue; its origin is filled in.
    pub fn publish(&self, queue: &str, message: Message) {
        self.publish_all(queue, [message]);
    }

    /// Appends messages to a queue in one step, so that a consumer sees all or none of them.
    pub fn publish_all(&self, queue: &str, messages: impl IntoIterator<Item = Message>) {
        let desk = self.shared.desk(queue);
        {
            let mut queue = desk.queue();
            for message in messages {
                queue.push(message, &self.shared.name, &desk.source);
            }
        }
        desk.changed.notify_waiters();
    }

    /// Makes a queue finite: when everything that came is settled, `receive` answers [`ErrorKind::Ended`].
    pub fn close(&self, queue: &str) {
        let desk = self.shared.desk(queue);
        desk.queue().close();
        desk.changed.notify_waiters();
    }

    /// While `false`, subscribing, receiving, settling and extending fail with [`ErrorKind::Unavailable`]; calls of
    /// `receive` that wait fail too. Publishing and the other doors go on working.
    pub fn set_available(&self, available: bool) {
        self.shared.available.store(available, atomic::Ordering::Release);
        for desk in lock(&self.shared.desks).values() {
            desk.changed.notify_waiters();
        }
    }

    /// While `false`, rejecting a message of that queue fails with [`SettleError::Failed`], as when the place for
    /// dead letters is gone.
    pub fn set_dead_letters_available(&self, queue: &str, available: bool) {
        self.shared.desk(queue).queue().keep_dead_letters(available);
    }

    /// What was rejected from a queue, in that order.
    pub fn dead_letters(&self, queue: &str) -> Vec<(Message, Rejection)> {
        self.shared.desk(queue).queue().dead().to_vec()
    }

    /// How often messages of a queue were settled.
    pub fn settled(&self, queue: &str) -> Settled {
        self.shared.desk(queue).queue().settled()
    }

    /// How many messages of a queue are unsettled: waiting, delayed or held by a consumer.
    pub fn depth(&self, queue: &str) -> usize {
        self.shared.desk(queue).queue().depth()
    }

    /// Whether [`close`](Self::close) was called.
    #[cfg(feature = "conformance")]
    pub(crate) fn is_closed(&self, queue: &str) -> bool {
        self.shared.desk(queue).queue().is_closed()
    }

    fn with(lease: Option<Duration>) -> Self {
        Self {
            shared: Arc::new(Shared {
                name: NAME.into(),
                lease,
                available: Arc::new(AtomicBool::new(true)),
                desks: Mutex::default(),
            }),
        }
    }
}

impl Default for MemoryBroker {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl Broker for MemoryBroker {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            redelivery: match self.shared.lease {
                None => Redelivery::OnDrop,
                Some(_) => Redelivery::OnLeaseEnd,
            },
            ordering: Ordering::Total,
            dead_letters: DeadLetters::Kept,
            delay: DelayBounds { max: LONGEST_DELAY },
            lease: self.shared.lease.map_or(Lease::Unlimited, Lease::Renewable),
            stable_position: true,
        }
    }

    async fn subscribe(&self, to: &Subscription) -> Result<Box<dyn Consumer>, BrokerError> {
        let desk = self.shared.desk(&to.source);
        desk.check("subscribe")?;
        Ok(Box::new(MemoryConsumer { desk, drained: false }))
    }
}

#[derive(Debug)]
struct Shared {
    /// The broker's name as messages carry it, allocated once.
    name: Arc<str>,
    lease: Option<Duration>,
    available: Arc<AtomicBool>,
    desks: Mutex<HashMap<Box<str>, Arc<Desk>>>,
}

impl Shared {
    fn desk(&self, queue: &str) -> Arc<Desk> {
        let mut desks = lock(&self.desks);
        if let Some(desk) = desks.get(queue) {
            return Arc::clone(desk);
        }
        let desk = Arc::new(Desk {
            source: queue.into(),
            queue: Mutex::new(Queue::new(self.lease)),
            changed: Notify::new(),
            available: Arc::clone(&self.available),
        });
        desks.insert(queue.into(), Arc::clone(&desk));
        desk
    }
}

/// A queue and those who wait at it.
#[derive(Debug)]
struct Desk {
    source: Arc<str>,
    queue: Mutex<Queue>,
    /// Wakes every waiting consumer; each of them looks again.
    changed: Notify,
    available: Arc<AtomicBool>,
}

impl Desk {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        lock(&self.queue)
    }

    fn check(&self, operation: &'static str) -> Result<(), BrokerError> {
        if self.available.load(atomic::Ordering::Acquire) {
            Ok(())
        } else {
            Err(BrokerError::new(ErrorKind::Unavailable, operation, "the memory broker was made unavailable"))
        }
    }
}

#[derive(Debug)]
struct MemoryConsumer {
    desk: Arc<Desk>,
    drained: bool,
}

#[async_trait]
impl Consumer for MemoryConsumer {
    async fn receive(&mut self, max: NonZeroUsize) -> Result<Vec<Delivery>, BrokerError> {
        loop {
            // Created before looking: it sees every change from here on.
            let changed = self.desk.changed.notified();
            self.desk.check("receive")?;
            let look = {
                let mut queue = self.desk.queue();
                if self.drained { queue.look() } else { queue.take(max.get(), Instant::now) }
            };
            match look {
                Look::Taken(taken) => {
                    return Ok(taken.into_iter().map(|taken| self.delivery(taken)).collect());
                }
                Look::Ended => return Err(BrokerError::ended()),
                // Nothing that becomes due concerns a drained consumer.
                Look::Wait(Some(due)) if !self.drained => {
                    // Both ends of the wait mean the same: look again.
                    let _ = timeout_at(due, changed).await;
                }
                Look::Wait(_) => changed.await,
            }
        }
    }

    async fn drain(&mut self) -> Result<(), BrokerError> {
        self.drained = true;
        Ok(())
    }
}

impl MemoryConsumer {
    fn delivery(&self, taken: Taken) -> Delivery {
        let handle = Handle { desk: Arc::clone(&self.desk), receipt: taken.receipt };
        Delivery::new(taken.message, Attempt::Number(taken.deliveries), Box::new(handle))
    }
}

#[derive(Debug)]
struct Handle {
    desk: Arc<Desk>,
    receipt: Receipt,
}

#[async_trait]
impl Settle for Handle {
    async fn settle(self: Box<Self>, disposition: Disposition) -> Result<(), SettleError> {
        self.desk.check("settle").map_err(SettleError::Failed)?;
        let outcome = self.desk.queue().settle(self.receipt, disposition, Instant::now);
        match outcome {
            Outcome::Changed => self.desk.changed.notify_waiters(),
            Outcome::Quiet => {}
            Outcome::Lost => return Err(SettleError::Lost),
            Outcome::Unparked => {
                let error =
                    BrokerError::new(ErrorKind::Unavailable, "settle", "dead letters cannot be kept now");
                return Err(SettleError::Failed(error));
            }
        }
        Ok(())
    }

    async fn extend(&self, by: Duration) -> Result<(), SettleError> {
        self.desk.check("extend").map_err(SettleError::Failed)?;
        if self.desk.queue().extend(self.receipt, by, Instant::now) { Ok(()) } else { Err(SettleError::Lost) }
    }
}

impl Drop for Handle {
    // After a successful settle the receipt is stale and this does nothing.
    fn drop(&mut self) {
        if self.desk.queue().dropped(self.receipt) {
            self.desk.changed.notify_waiters();
        }
    }
}

/// A panic elsewhere cannot leave a queue half changed: no foreign code runs under these locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

const NAME: &str = "memory";

/// The longest delay and the longest lease: a year, which every instant can bear.
const LONGEST_DELAY: Duration = Duration::from_secs(365 * 24 * 60 * 60);

#[cfg(test)]
mod tests;
