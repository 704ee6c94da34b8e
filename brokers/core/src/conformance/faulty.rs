//! Adapters with one lie each, around the memory broker. The kit must catch each, by the cases that name it.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;

use super::{BrokerHarness, Disruption, Mistake};
use crate::memory::MemoryBroker;
use crate::{
    Broker, BrokerError, Capabilities, Consumer, Delivery, Disposition, ErrorKind, Header, Message, Settle,
    SettleError, Subscription,
};

/// What an adapter lies about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lie {
    /// Acknowledges what is dropped.
    AcksOnDrop,
    /// Forgets what is nacked.
    ForgetsOnNack,
    /// Delivers again at once, whatever the delay.
    IgnoresDelay,
    /// Acknowledges what is rejected and keeps nothing.
    RejectsWithoutKeeping,
    /// Says that it is acknowledged and keeps it.
    AckDoesNotRemove,
    /// Hands out the last first.
    Reorders,
    /// Drops a header whose name repeats.
    DropsRepeatedHeaders,
    /// Makes null headers and bodies empty.
    NullBecomesEmpty,
    /// Gives a redelivery a new id.
    NewIdOnRedelivery,
    /// Hands out one more than asked for.
    MoreThanMax,
    /// Loses what a cancelled `receive` had in its hands.
    LosesOnCancel,
    /// Goes on handing out after a drain.
    InflowAfterDrain,
    /// Does not let what is open settle after a drain.
    ForgetsOpenOnDrain,
    /// Tells a stale handle that all is well.
    SettlesAfterLease,
    /// Does not extend.
    IgnoresExtend,
    /// Gives each consumer each message.
    SharesMessages,
    /// Tells everything as refused.
    EverythingIsRefused,
    /// Tells everything as unavailable.
    EverythingIsUnavailable,
    /// Forgets what it holds when the connection is cut.
    LosesOnCut,
}

/// Each lie, and exactly the cases that must fail because of it. The cases about leases count for the two lies about leases
/// only; all others are told without a lease.
pub const CAUGHT_BY: &[(Lie, &[&str])] = &[
    (
        Lie::AcksOnDrop,
        &[
            "a_dropped_delivery_comes_back",
            "settling_out_of_order_and_dying_replays_the_rest",
            "what_was_open_reaches_the_next_consumer",
        ],
    ),
    (
        Lie::ForgetsOnNack,
        &[
            "the_id_is_stable_across_redeliveries",
            "nack_redelivers",
            "a_delay_is_a_lower_bound",
            "a_nack_blocks_at_most_its_own_key",
        ],
    ),
    (Lie::IgnoresDelay, &["a_delay_is_a_lower_bound"]),
    (
        Lie::RejectsWithoutKeeping,
        &["reject_parks_with_the_reason", "without_a_dead_letter_place_nothing_is_acknowledged"],
    ),
    (
        Lie::AckDoesNotRemove,
        &["ack_removes", "a_nack_blocks_at_most_its_own_key", "open_deliveries_settle_after_a_drain"],
    ),
    (Lie::Reorders, &["one_key_arrives_in_order"]),
    (Lie::DropsRepeatedHeaders, &["payload_and_headers_arrive_unchanged"]),
    (Lie::NullBecomesEmpty, &["payload_and_headers_arrive_unchanged"]),
    (
        Lie::NewIdOnRedelivery,
        &[
            "the_id_is_stable_across_redeliveries",
            "nack_redelivers",
            "a_dropped_delivery_comes_back",
            "settling_out_of_order_and_dying_replays_the_rest",
            "a_nack_blocks_at_most_its_own_key",
            "what_was_open_reaches_the_next_consumer",
            "without_a_dead_letter_place_nothing_is_acknowledged",
        ],
    ),
    (Lie::MoreThanMax, &["at_most_max_are_handed_out"]),
    (Lie::LosesOnCancel, &["a_cancelled_receive_loses_nothing"]),
    (Lie::InflowAfterDrain, &["drain_stops_the_inflow"]),
    (Lie::ForgetsOpenOnDrain, &["drain_stops_the_inflow", "open_deliveries_settle_after_a_drain"]),
    (Lie::SettlesAfterLease, &["settling_after_the_lease_says_lost"]),
    (Lie::IgnoresExtend, &["extending_keeps_it_hidden"]),
    (Lie::SharesMessages, &["two_consumers_never_hold_one_message"]),
    (Lie::EverythingIsRefused, &["what_may_work_later_is_unavailable"]),
    (Lie::EverythingIsUnavailable, &["what_will_never_work_is_refused"]),
    (Lie::LosesOnCut, &["a_cut_connection_loses_nothing"]),
];

/// The memory broker as the kit sees it, honest or with one lie.
#[derive(Debug)]
pub struct MemoryHarness {
    memory: MemoryBroker,
    lie: Option<Lie>,
    sources: AtomicU32,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// What the living consumers were given, with who they are and from where.
    given: Mutex<Vec<(u32, Message)>>,
    next_consumer: AtomicU32,
    /// The source whose connection was cut.
    cut: Mutex<Option<String>>,
}

impl MemoryHarness {
    /// An honest memory broker, with or without a lease.
    pub fn honest(lease: Option<Duration>) -> Self {
        Self::new(lease, None)
    }

    /// A memory broker with that lie.
    pub fn lying(lease: Option<Duration>, lie: Lie) -> Self {
        Self::new(lease, Some(lie))
    }

    fn new(lease: Option<Duration>, lie: Option<Lie>) -> Self {
        let memory = lease.map_or_else(MemoryBroker::new, MemoryBroker::with_lease);
        Self { memory, lie, sources: AtomicU32::new(0), shared: Arc::default() }
    }

    fn wrapped(&self, memory: MemoryBroker) -> Arc<dyn Broker> {
        match self.lie {
            None => Arc::new(memory),
            Some(lie) => Arc::new(LyingBroker { memory, lie, shared: Arc::clone(&self.shared) }),
        }
    }
}

#[async_trait]
impl BrokerHarness for MemoryHarness {
    fn broker(&self) -> Arc<dyn Broker> {
        self.wrapped(self.memory.clone())
    }

    async fn fresh_source(&self, case: &str) -> Subscription {
        Subscription::new(format!("{case}-{}", self.sources.fetch_add(1, SeqCst)))
    }

    async fn publish(&self, to: &Subscription, messages: Vec<Message>) {
        self.memory.publish_all(&to.source, messages);
    }

    async fn parked(&self, of: &Subscription) -> Vec<(Message, String)> {
        let dead = self.memory.dead_letters(&of.source);
        dead.into_iter().map(|(message, why)| (message, why.reason.to_string())).collect()
    }

    fn can(&self, how: Disruption) -> bool {
        !matches!(how, Disruption::RestartServer)
    }

    async fn disrupt(&self, source: &Subscription, how: Disruption) {
        match how {
            Disruption::CutConnection => {
                self.memory.cut(&source.source);
                *lock(&self.shared.cut) = Some(source.source.clone());
            }
            Disruption::LoseDeadLetters => self.memory.set_keeps_dead_letters(&source.source, false),
            Disruption::RestoreDeadLetters => self.memory.set_keeps_dead_letters(&source.source, true),
            Disruption::RestartServer => {}
        }
    }

    fn misconfigured(&self, how: Mistake) -> Option<Arc<dyn Broker>> {
        let memory = match how {
            Mistake::Refused => MemoryBroker::refusing(),
            Mistake::NobodyListens => {
                let away = MemoryBroker::new();
                away.set_available(false);
                away
            }
        };
        Some(self.wrapped(memory))
    }

    fn shares_sources(&self) -> bool {
        true
    }

    fn within(&self) -> Duration {
        // A lie is often found only when this is over, so it is short; but longer than a lease.
        Duration::from_secs(if self.lie.is_some() { 4 } else { 10 })
    }
}

#[derive(Debug)]
struct LyingBroker {
    memory: MemoryBroker,
    lie: Lie,
    shared: Arc<Shared>,
}

#[async_trait]
impl Broker for LyingBroker {
    fn name(&self) -> &'static str {
        "lying"
    }

    fn capabilities(&self) -> Capabilities {
        self.memory.capabilities()
    }

    async fn subscribe(&self, to: &Subscription) -> Result<Box<dyn Consumer>, BrokerError> {
        let kind = match self.lie {
            Lie::EverythingIsRefused => Some(ErrorKind::Refused),
            Lie::EverythingIsUnavailable => Some(ErrorKind::Unavailable),
            _ => None,
        };
        let inner = self.memory.subscribe(to).await.map_err(|error| match kind {
            Some(kind) => BrokerError::new(kind, "subscribe", error),
            None => error,
        })?;
        let shared = Arc::clone(&self.shared);
        let me = shared.next_consumer.fetch_add(1, SeqCst);
        let source = to.source.clone();
        let buffered = Vec::new();
        Ok(Box::new(LyingConsumer {
            inner,
            lie: self.lie,
            shared,
            me,
            source,
            copied: 0,
            buffered,
            drained: Arc::default(),
        }))
    }
}

struct LyingConsumer {
    inner: Box<dyn Consumer>,
    lie: Lie,
    shared: Arc<Shared>,
    me: u32,
    source: String,
    /// How much of what others were given this one was given too.
    copied: usize,
    /// Fetched ahead, to be handed out the wrong way round.
    buffered: Vec<Delivery>,
    drained: Arc<AtomicUsize>,
}

#[async_trait]
impl Consumer for LyingConsumer {
    async fn receive(&mut self, max: NonZeroUsize) -> Result<Vec<Delivery>, BrokerError> {
        if self.lie == Lie::SharesMessages
            && let Some(message) = self.copy_of_anothers()
        {
            return Ok(vec![Delivery::new(message, crate::Attempt::Unknown, Box::new(Nothing))]);
        }
        let mut got = match self.lie {
            Lie::Reorders => {
                if self.buffered.is_empty() {
                    self.buffered = self.inner.receive(NonZeroUsize::new(4).unwrap_or(max)).await?;
                }
                // The last first; `None` cannot be, since at least one was received.
                self.buffered.pop().into_iter().collect()
            }
            Lie::MoreThanMax if max.get() > 1 => self.inner.receive(max.saturating_add(1)).await?,
            _ => self.inner.receive(max).await?,
        };
        if self.lie == Lie::LosesOnCancel {
            // What is in hand when the caller goes away is settled by nobody.
            let held = Forgetting(Some(got));
            tokio::time::sleep(Duration::from_millis(2)).await;
            got = held.keep();
        }
        if self.lie == Lie::LosesOnCut && lock(&self.shared.cut).take_if(|cut| *cut == self.source).is_some()
        {
            got.drain(..).for_each(acknowledge);
            return Err(BrokerError::new(ErrorKind::Unavailable, "receive", "cut"));
        }
        if self.lie == Lie::SharesMessages {
            let given = got.iter().map(|delivery| (self.me, delivery.message().clone()));
            lock(&self.shared.given).extend(given);
        }
        Ok(got.into_iter().map(|delivery| self.wrap(delivery)).collect())
    }

    async fn drain(&mut self) -> Result<(), BrokerError> {
        self.drained.fetch_add(1, SeqCst);
        self.buffered.clear();
        if self.lie == Lie::InflowAfterDrain {
            return Ok(());
        }
        self.inner.drain().await
    }
}

impl Drop for LyingConsumer {
    fn drop(&mut self) {
        lock(&self.shared.given).retain(|(who, _)| *who != self.me);
    }
}

impl LyingConsumer {
    fn copy_of_anothers(&mut self) -> Option<Message> {
        let given = lock(&self.shared.given);
        let mut others =
            given.iter().filter(|(who, message)| *who != self.me && *message.origin.source == *self.source);
        let (_, message) = others.nth(self.copied)?;
        self.copied += 1;
        Some(message.clone())
    }

    fn wrap(&self, delivery: Delivery) -> Delivery {
        let mut message = delivery.message().clone();
        let attempt = delivery.attempt();
        match self.lie {
            Lie::DropsRepeatedHeaders => {
                let mut names = Vec::new();
                let first = |header: &&Header| {
                    let new = !names.contains(&header.name);
                    names.push(header.name.clone());
                    new
                };
                message.headers = message.headers.iter().filter(first).cloned().collect();
            }
            Lie::NullBecomesEmpty => {
                let filled = |header: &Header| Header {
                    name: header.name.clone(),
                    value: Some(header.value.clone().unwrap_or_default()),
                };
                message.headers = message.headers.iter().map(filled).collect();
                message.body = Some(message.body.unwrap_or_default());
            }
            Lie::NewIdOnRedelivery if attempt != crate::Attempt::Number(1) => {
                message.id = format!("{}-again", message.id).into();
            }
            _ => {}
        }
        let handle = LyingHandle { inner: Some(delivery), lie: self.lie, drained: Arc::clone(&self.drained) };
        Delivery::new(message, attempt, Box::new(handle))
    }
}

struct LyingHandle {
    inner: Option<Delivery>,
    lie: Lie,
    drained: Arc<AtomicUsize>,
}

#[async_trait]
impl Settle for LyingHandle {
    async fn settle(mut self: Box<Self>, disposition: Disposition) -> Result<(), SettleError> {
        let Some(inner) = self.inner.take() else { return Err(SettleError::Lost) };
        match (self.lie, disposition) {
            (Lie::ForgetsOnNack, Disposition::Nack { .. }) => inner.settle(Disposition::Ack).await,
            (Lie::IgnoresDelay, Disposition::Nack { cause, .. }) => {
                inner.settle(Disposition::Nack { delay: None, cause }).await
            }
            (Lie::RejectsWithoutKeeping, Disposition::Reject(_)) => inner.settle(Disposition::Ack).await,
            (Lie::AckDoesNotRemove, Disposition::Ack) => {
                inner.settle(Disposition::Nack { delay: None, cause: crate::NackCause::Untried }).await
            }
            (Lie::ForgetsOpenOnDrain, _) if self.drained.load(SeqCst) > 0 => {
                drop(inner);
                Err(SettleError::Lost)
            }
            (Lie::SettlesAfterLease, disposition) => match inner.settle(disposition).await {
                Err(SettleError::Lost) => Ok(()),
                told => told,
            },
            (_, disposition) => inner.settle(disposition).await,
        }
    }

    async fn extend(&self, by: Duration) -> Result<(), SettleError> {
        match &self.inner {
            Some(_) if self.lie == Lie::IgnoresExtend => Ok(()),
            Some(inner) => inner.extend(by).await,
            None => Err(SettleError::Lost),
        }
    }
}

impl Drop for LyingHandle {
    fn drop(&mut self) {
        if self.lie == Lie::AcksOnDrop
            && let Some(inner) = self.inner.take()
        {
            acknowledge(inner);
        }
    }
}

/// The memory broker settles without waiting for anything.
fn acknowledge(delivery: Delivery) {
    let mut settle = Box::pin(delivery.settle(Disposition::Ack));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let _ = settle.as_mut().poll(&mut context);
}

/// Deliveries that are lost unless they are kept.
struct Forgetting(Option<Vec<Delivery>>);

impl Forgetting {
    fn keep(mut self) -> Vec<Delivery> {
        self.0.take().unwrap_or_default()
    }
}

impl Drop for Forgetting {
    fn drop(&mut self) {
        self.0.take().into_iter().flatten().for_each(acknowledge);
    }
}

struct Nothing;

#[async_trait]
impl Settle for Nothing {
    async fn settle(self: Box<Self>, _: Disposition) -> Result<(), SettleError> {
        Ok(())
    }
    async fn extend(&self, _: Duration) -> Result<(), SettleError> {
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
