//! The reference adapter: queues in memory. Every other test uses it, and programs that need no server may.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::{
    Attempt, Broker, BrokerError, Capabilities, Consumer, DeadLetters, DelayBounds, Delivery, Disposition,
    ErrorKind, Lease, Message, Ordering, Redelivery, Rejection, Settle, SettleError, Subscription,
};

const LONGEST_DELAY: Duration = Duration::from_secs(366 * 24 * 3600);

/// A broker with named queues, made on first use. Clones share them.
#[derive(Debug, Clone)]
pub struct MemoryBroker {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    lease: Option<Duration>,
    queues: Mutex<HashMap<String, Arc<Queue>>>,
    available: std::sync::atomic::AtomicBool,
    refuses: bool,
}

#[derive(Debug)]
struct Queue {
    name: Arc<str>,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    next_sequence: u64,
    next_receipt: u64,
    ready: VecDeque<Stored>,
    /// Nacked with a delay, by the moment at which they are ready again and the order in which they came.
    delayed: BTreeMap<(Instant, u64), Stored>,
    /// Handed out, by receipt.
    open: HashMap<u64, Open>,
    dead: Vec<(Message, Rejection)>,
    settled: Settled,
    closed: bool,
    /// Whether what is handed out has a lease.
    leased: bool,
    loses_dead_letters: bool,
    /// Counts the cuts: a consumer of an earlier one has lost its connection, and its handles are void.
    generation: u64,
}

#[derive(Debug, Clone)]
struct Stored {
    message: Message,
    deliveries: u32,
}

#[derive(Debug)]
struct Open {
    stored: Stored,
    /// When the lease ends; `None` = never.
    until: Option<Instant>,
}

/// How the messages of a queue were settled so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Settled {
    /// Acknowledged.
    pub acks: u64,
    /// Handed back.
    pub nacks: u64,
    /// Rejected.
    pub rejects: u64,
}

impl MemoryBroker {
    /// A broker that lets a consumer hold a message for as long as it lives; a dropped delivery comes again at once.
    pub fn new() -> Self {
        Self::build(None, false)
    }

    /// A broker that refuses every subscription, as one does whose password is wrong.
    pub fn refusing() -> Self {
        Self::build(None, true)
    }

    /// A broker that gives a message to somebody else when it has not been extended for that long.
    pub fn with_lease(lease: Duration) -> Self {
        Self::build(Some(lease), false)
    }

    fn build(lease: Option<Duration>, refuses: bool) -> Self {
        let available = std::sync::atomic::AtomicBool::new(true);
        Self { shared: Arc::new(Shared { lease, queues: Mutex::default(), available, refuses }) }
    }

    /// Puts a message at the end of a queue. Its origin is set; its id is kept.
    pub fn publish(&self, queue: &str, message: Message) {
        self.publish_all(queue, [message]);
    }

    /// Puts messages at the end of a queue, in order.
    pub fn publish_all(&self, queue: &str, messages: impl IntoIterator<Item = Message>) {
        let queue = self.queue(queue);
        let mut state = queue.lock();
        for mut message in messages {
            message.origin.broker = "memory".into();
            message.origin.source = Arc::clone(&queue.name);
            message.origin.position = Some(state.next_sequence.to_string().into());
            state.next_sequence += 1;
            state.ready.push_back(Stored { message, deliveries: 0 });
        }
        drop(state);
        queue.changed.notify_waiters();
    }

    /// No more will be published: consumers are told so once everything is settled.
    pub fn close(&self, queue: &str) {
        let queue = self.queue(queue);
        queue.lock().closed = true;
        queue.changed.notify_waiters();
    }

    /// Plays an outage: while `false`, every operation fails as unavailable.
    pub fn set_available(&self, available: bool) {
        self.shared.available.store(available, std::sync::atomic::Ordering::SeqCst);
        let queues: Vec<_> = lock(&self.shared.queues).values().cloned().collect();
        queues.iter().for_each(|queue| queue.changed.notify_waiters());
    }

    /// Plays a cut connection: every consumer of the queue fails once, what was handed out goes back, its handles are void.
    pub fn cut(&self, queue: &str) {
        let queue = self.queue(queue);
        let mut state = queue.lock();
        state.generation += 1;
        let mut open: Vec<_> = state.open.drain().collect();
        open.sort_by_key(|(receipt, _)| *receipt);
        for (_, open) in open.into_iter().rev() {
            state.ready.push_front(open.stored);
        }
        drop(state);
        queue.changed.notify_waiters();
    }

    /// Plays a dead-letter place that is gone: while `false`, rejecting from the queue fails.
    pub fn set_keeps_dead_letters(&self, queue: &str, keeps: bool) {
        self.queue(queue).lock().loses_dead_letters = !keeps;
    }

    /// What was rejected from a queue, in order.
    pub fn dead_letters(&self, queue: &str) -> Vec<(Message, Rejection)> {
        self.queue(queue).lock().dead.clone()
    }

    /// How the messages of a queue were settled so far.
    pub fn settled(&self, queue: &str) -> Settled {
        self.queue(queue).lock().settled
    }

    /// How many messages of a queue are not settled, those in somebody's hands included.
    pub fn depth(&self, queue: &str) -> usize {
        self.queue(queue).lock().depth()
    }

    fn queue(&self, name: &str) -> Arc<Queue> {
        let mut queues = lock(&self.shared.queues);
        let state = State { leased: self.shared.lease.is_some(), ..State::default() };
        let make = || Arc::new(Queue { name: name.into(), state: Mutex::new(state), changed: Notify::new() });
        if let Some(queue) = queues.get(name) {
            return Arc::clone(queue);
        }
        Arc::clone(queues.entry(name.to_owned()).or_insert_with(make))
    }
}

impl Default for MemoryBroker {
    fn default() -> Self {
        Self::new()
    }
}

impl Shared {
    fn check(&self, operation: &'static str) -> Result<(), BrokerError> {
        if self.available.load(std::sync::atomic::Ordering::SeqCst) {
            Ok(())
        } else {
            Err(BrokerError::new(ErrorKind::Unavailable, operation, "switched off by a test"))
        }
    }
}

#[async_trait]
impl Broker for MemoryBroker {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn capabilities(&self) -> Capabilities {
        let (redelivery, lease) = match self.shared.lease {
            None => (Redelivery::OnDrop, Lease::Unlimited),
            Some(lease) => (Redelivery::OnLeaseEnd, Lease::Renewable(lease)),
        };
        Capabilities {
            redelivery,
            ordering: Ordering::Total,
            dead_letters: DeadLetters::Kept,
            delay: DelayBounds { max: LONGEST_DELAY },
            lease,
            stable_position: true,
        }
    }

    async fn subscribe(&self, to: &Subscription) -> Result<Box<dyn Consumer>, BrokerError> {
        self.shared.check("subscribe")?;
        if self.shared.refuses {
            return Err(BrokerError::new(ErrorKind::Refused, "subscribe", "this broker refuses everybody"));
        }
        let queue = self.queue(&to.source);
        let generation = queue.lock().generation;
        Ok(Box::new(MemoryConsumer { shared: Arc::clone(&self.shared), queue, drained: false, generation }))
    }
}

struct MemoryConsumer {
    shared: Arc<Shared>,
    queue: Arc<Queue>,
    drained: bool,
    generation: u64,
}

#[async_trait]
impl Consumer for MemoryConsumer {
    async fn receive(&mut self, max: NonZeroUsize) -> Result<Vec<Delivery>, BrokerError> {
        loop {
            let changed = self.queue.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            self.shared.check("receive")?;
            if self.drained {
                // Inflow has stopped; whoever still waits here waits until it is cancelled.
                std::future::pending::<()>().await;
            }
            let wake = {
                let mut state = self.queue.lock();
                if state.generation != self.generation {
                    return Err(BrokerError::new(
                        ErrorKind::Unavailable,
                        "receive",
                        "the connection was cut",
                    ));
                }
                let now = Instant::now();
                state.bring_back(now);
                if !state.ready.is_empty() {
                    return Ok(self.hand_out(&mut state, max.get(), now));
                }
                if state.closed && state.depth() == 0 {
                    return Err(BrokerError::ended());
                }
                state.next_event()
            };
            match wake {
                Some(at) => {
                    let _ = tokio::time::timeout_at(at, changed).await;
                }
                None => changed.await,
            }
        }
    }

    async fn drain(&mut self) -> Result<(), BrokerError> {
        self.drained = true;
        Ok(())
    }
}

impl MemoryConsumer {
    fn hand_out(&self, state: &mut State, max: usize, now: Instant) -> Vec<Delivery> {
        let until = self.shared.lease.map(|lease| now + lease);
        let count = max.min(state.ready.len());
        let mut deliveries = Vec::with_capacity(count);
        for mut stored in state.ready.drain(..count).collect::<Vec<_>>() {
            stored.deliveries = stored.deliveries.saturating_add(1);
            let receipt = state.next_receipt;
            state.next_receipt += 1;
            let handle = Handle {
                shared: Arc::clone(&self.shared),
                queue: Arc::clone(&self.queue),
                receipt,
                settled: false,
            };
            let attempt = Attempt::Number(stored.deliveries);
            deliveries.push(Delivery::new(stored.message.clone(), attempt, Box::new(handle)));
            state.open.insert(receipt, Open { stored, until });
        }
        deliveries
    }
}

impl State {
    fn depth(&self) -> usize {
        self.ready.len() + self.delayed.len() + self.open.len()
    }

    /// Makes ready what has waited long enough, and what was held for too long.
    fn bring_back(&mut self, now: Instant) {
        while let Some(entry) = self.delayed.first_entry().filter(|entry| entry.key().0 <= now) {
            self.ready.push_back(entry.remove());
        }
        if self.leased && self.open.values().any(|open| open.until.is_some_and(|until| until <= now)) {
            let mut over: Vec<_> =
                self.open.extract_if(|_, open| open.until.is_some_and(|until| until <= now)).collect();
            over.sort_by_key(|(receipt, _)| *receipt);
            for (_, open) in over.into_iter().rev() {
                self.ready.push_front(open.stored);
            }
        }
    }

    fn next_event(&self) -> Option<Instant> {
        let delayed = self.delayed.keys().next().map(|(at, _)| *at);
        let leased = self.leased.then(|| self.open.values().filter_map(|open| open.until).min());
        let lease_end = leased.flatten();
        delayed.into_iter().chain(lease_end).min()
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

/// The right to settle one message; void as soon as its receipt is no longer open.
struct Handle {
    shared: Arc<Shared>,
    queue: Arc<Queue>,
    receipt: u64,
    settled: bool,
}

impl Handle {
    /// What this handle still holds, if its lease is not over.
    fn take(&self, state: &mut State) -> Result<Stored, SettleError> {
        state.bring_back(Instant::now());
        state.open.remove(&self.receipt).map(|open| open.stored).ok_or(SettleError::Lost)
    }
}

#[async_trait]
impl Settle for Handle {
    async fn settle(mut self: Box<Self>, disposition: Disposition) -> Result<(), SettleError> {
        self.shared.check("settle").map_err(SettleError::Failed)?;
        let mut state = self.queue.lock();
        if state.loses_dead_letters && matches!(disposition, Disposition::Reject(_)) {
            drop(state);
            let error = BrokerError::new(ErrorKind::Unavailable, "settle", "the dead-letter place is gone");
            // Dropped unsettled: it comes again.
            return Err(SettleError::Failed(error));
        }
        let stored = self.take(&mut state)?;
        self.settled = true;
        match disposition {
            Disposition::Ack => state.settled.acks += 1,
            Disposition::Nack { delay, .. } => {
                state.settled.nacks += 1;
                match delay {
                    None => state.ready.push_back(stored),
                    Some(delay) => {
                        let at = Instant::now() + delay.min(LONGEST_DELAY);
                        state.delayed.insert((at, self.receipt), stored);
                    }
                }
            }
            Disposition::Reject(rejection) => {
                state.settled.rejects += 1;
                state.dead.push((stored.message, *rejection));
            }
        }
        // Somebody waits only for a message, or for the end of a closed queue.
        let news =
            !state.ready.is_empty() || !state.delayed.is_empty() || (state.closed && state.depth() == 0);
        drop(state);
        if news {
            self.queue.changed.notify_waiters();
        }
        Ok(())
    }

    async fn extend(&self, by: Duration) -> Result<(), SettleError> {
        self.shared.check("extend").map_err(SettleError::Failed)?;
        let mut state = self.queue.lock();
        let now = Instant::now();
        state.bring_back(now);
        let open = state.open.get_mut(&self.receipt).ok_or(SettleError::Lost)?;
        open.until = open.until.map(|_| now + by);
        Ok(())
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // With a lease the message stays hidden until its lease is over, as on a real broker of that kind.
        if self.settled || self.shared.lease.is_some() {
            return;
        }
        let mut state = self.queue.lock();
        if let Some(open) = state.open.remove(&self.receipt) {
            state.ready.push_front(open.stored);
            drop(state);
            self.queue.changed.notify_waiters();
        }
    }
}

/// A panic never happens while a lock is held, so a poisoned lock still guards sound data.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
