//! The worker: takes a slot, asks for as many messages as it has slots, spawns a process for each, drains at the end.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use ackord_broker::{Broker, Capabilities, Consumer, Delivery, ErrorKind, Lease, Origin, Subscription};
use thiserror::Error;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::backoff::Retry;
use crate::flow::{DeadLetter, Flow};
use crate::gate::Gate;
use crate::guard::{Health, StepGuard, StoreHealth};
use crate::heartbeat::HeldDelivery;
use crate::idempotency::IdempotencyStore;
use crate::lane::Lanes;
use crate::lock::lock;
use crate::process::{self, Arrival};
use crate::shutdown::{DrainReport, RunError, RunReport};
use crate::telemetry::{Counters, chain};
use crate::turn::FlowLimits;

/// The most messages asked for at once.
const LARGEST_BATCH: usize = 256;

/// Consumes every source of its flows until it is told to stop, or until all of them have ended.
///
/// ```
/// use std::sync::Arc;
/// use ackord::flow::{Flow, StepContext};
/// use ackord::idempotency::memory::MemoryStore;
/// use ackord::worker::Worker;
/// use ackord_broker::{Message, memory::MemoryBroker};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let broker = MemoryBroker::new();
/// broker.publish("orders", Message::new("m1", r#"{"id":1}"#));
/// broker.close("orders");
/// let flow = Flow::builder("charge")
///     .from("shop", "orders")
///     .key("body:/id")
///     .step("charge", |order: serde_json::Value, _: StepContext| async move { Ok(order["id"].clone()) })
///     .build()?;
/// let worker = Worker::builder(Arc::new(MemoryStore::new())).broker("shop", Arc::new(broker)).flow(flow).build()?;
/// let report = worker.run(std::future::pending()).await?;
/// assert_eq!(report.summary.effects, 1);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Worker {
    store: Arc<dyn IdempotencyStore>,
    name: Arc<str>,
    drain: Duration,
    fail_fast: bool,
    sources: Vec<SourcePlan>,
    counters: Arc<Counters>,
}

/// Describes a worker; only [`build`](WorkerBuilder::build) fails.
#[derive(Debug)]
#[must_use]
pub struct WorkerBuilder {
    store: Arc<dyn IdempotencyStore>,
    name: Arc<str>,
    drain: Duration,
    fail_fast: bool,
    brokers: BTreeMap<String, Arc<dyn Broker>>,
    flows: Vec<Flow>,
}

/// Every fault of a worker's description, at once.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{}", .0.join("; "))]
pub struct WorkerFaults(pub Vec<String>);

/// One source and the flows that share it.
#[derive(Debug)]
struct SourcePlan {
    broker_name: String,
    broker: Arc<dyn Broker>,
    source: String,
    flows: Vec<Arc<RunningFlow>>,
}

/// A flow and what its messages share while the worker runs.
#[derive(Debug)]
pub(crate) struct RunningFlow {
    pub(crate) flow: Flow,
    pub(crate) limits: Arc<FlowLimits>,
    pub(crate) lanes: Arc<Lanes>,
}

impl AsRef<Flow> for RunningFlow {
    fn as_ref(&self) -> &Flow {
        &self.flow
    }
}

impl Worker {
    /// Starts the description of a worker with that store. By default it has 25 s to drain and goes on trying when a broker is
    /// away at the start.
    pub fn builder(store: Arc<dyn IdempotencyStore>) -> WorkerBuilder {
        WorkerBuilder {
            store,
            name: format!("pid-{}", std::process::id()).into(),
            drain: Duration::from_secs(25),
            fail_fast: false,
            brokers: BTreeMap::new(),
            flows: Vec::new(),
        }
    }

    /// What has been counted so far; stays readable while and after the worker runs.
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }

    /// Runs until every source has ended or `stop` resolves, then drains: what is running is finished and settled, what
    /// has not started is handed back. What the drain time does not suffice for is left unsettled, never settled falsely.
    ///
    /// # Errors
    /// [`RunError`] when a source or the store refuses for good; everything else has been drained by then.
    pub async fn run(self, stop: impl Future<Output = ()> + Send) -> Result<RunReport, RunError> {
        let started = Instant::now();
        let guard = StepGuard::with_counters(self.store, self.name, Arc::clone(&self.counters));
        let engine = Arc::new(Engine {
            guard,
            counters: Arc::clone(&self.counters),
            stopping: CancellationToken::new(),
            abandon: CancellationToken::new(),
            tasks: TaskTracker::new(),
            in_hand: Mutex::default(),
            open_consumers: OpenConsumers::default(),
            store_refused: OnceLock::new(),
        });
        // Dropping this future is a crash: everything it started ends, unsettled.
        let _ends_with_us = (engine.stopping.clone().drop_guard(), engine.abandon.clone().drop_guard());
        tokio::spawn(engine.stopping.clone().run_until_cancelled_owned(probe_store(Arc::clone(&engine))));
        let mut sources = JoinSet::new();
        for plan in self.sources {
            sources.spawn(consume(Arc::clone(&engine), plan, self.fail_fast));
        }
        let mut all = std::pin::pin!(join_sources(sources, engine.stopping.clone()));
        let mut asked_to_stop = false;
        let ended = tokio::select! {
            ended = &mut all => ended,
            () = stop => {
                asked_to_stop = true;
                tracing::info!("stopping: finishing what is running");
                engine.stopping.cancel();
                all.await
            }
        };
        engine.stopping.cancel();
        let drain = engine.finish(self.drain).await;
        let summary = self.counters.summary(started.elapsed().as_millis() as u64);
        let report = RunReport { summary, drain, asked_to_stop };
        match (ended, engine.store_refused.get()) {
            (Err(error), _) => Err(error.with(report)),
            (Ok(()), Some(reason)) => {
                Err(RunError::StoreRefused { reason: reason.clone(), report: Box::new(report) })
            }
            (Ok(()), None) => Ok(report),
        }
    }
}

impl WorkerBuilder {
    /// Adds a broker under a name that flows refer to.
    pub fn broker(mut self, name: impl Into<String>, broker: Arc<dyn Broker>) -> Self {
        self.brokers.insert(name.into(), broker);
        self
    }

    /// Adds a flow.
    pub fn flow(mut self, flow: Flow) -> Self {
        self.flows.push(flow);
        self
    }

    /// Names this worker to people: it stands in claims and dead letters.
    pub fn name(mut self, name: impl Into<Arc<str>>) -> Self {
        self.name = name.into();
        self
    }

    /// How long running messages have to finish after a stop. Default 25 s.
    pub fn drain(mut self, drain: Duration) -> Self {
        self.drain = drain;
        self
    }

    /// Ends the run when a broker cannot be reached at the start, instead of trying on.
    pub fn fail_fast(mut self, fail_fast: bool) -> Self {
        self.fail_fast = fail_fast;
        self
    }

    /// Checks everything.
    ///
    /// # Errors
    /// All faults at once.
    pub fn build(self) -> Result<Worker, WorkerFaults> {
        let mut faults = Vec::new();
        if self.flows.is_empty() {
            faults.push("a worker needs at least one flow".to_owned());
        }
        let mut names = std::collections::HashSet::new();
        let mut sources: BTreeMap<(String, String), Vec<Flow>> = BTreeMap::new();
        for flow in self.flows {
            if !names.insert(Arc::clone(&flow.name)) {
                faults.push(format!("two flows are named {}", flow.name));
            }
            if !self.brokers.contains_key(&flow.broker) {
                faults.push(format!("flow {}: there is no broker {}", flow.name, flow.broker));
            }
            sources.entry((flow.broker.clone(), flow.source.clone())).or_default().push(flow);
        }
        for ((broker, source), flows) in &sources {
            let open: Vec<_> =
                flows.iter().filter(|flow| flow.matches.is_empty()).map(|flow| &*flow.name).collect();
            if open.len() > 1 {
                faults.push(format!("{broker}/{source}: flows {} all take everything", open.join(", ")));
            }
            if flows.windows(2).any(|pair| pair[0].dead_letter != pair[1].dead_letter) {
                faults.push(format!("{broker}/{source}: its flows name different dead-letter places"));
            }
        }
        if !faults.is_empty() {
            return Err(WorkerFaults(faults));
        }
        let sources = sources
            .into_iter()
            .map(|((broker_name, source), flows)| SourcePlan {
                broker: Arc::clone(&self.brokers[&broker_name]),
                broker_name,
                source,
                flows: flows.into_iter().map(running).collect(),
            })
            .collect();
        Ok(Worker {
            store: self.store,
            name: self.name,
            drain: self.drain,
            fail_fast: self.fail_fast,
            sources,
            counters: Arc::default(),
        })
    }
}

fn running(flow: Flow) -> Arc<RunningFlow> {
    let limits = FlowLimits {
        name: Arc::clone(&flow.name),
        running: Arc::new(Semaphore::new(flow.concurrency.get())),
        gate: Arc::new(Gate::new(flow.circuit)),
    };
    Arc::new(RunningFlow { flow, limits: Arc::new(limits), lanes: Arc::default() })
}

/// What all messages share.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) guard: StepGuard,
    pub(crate) counters: Arc<Counters>,
    /// Cancelled when the worker should stop taking and starting.
    pub(crate) stopping: CancellationToken,
    /// Cancelled when the drain time is over: what still runs is dropped unsettled.
    pub(crate) abandon: CancellationToken,
    pub(crate) tasks: TaskTracker,
    /// Messages being worked on, where the broker may deliver one a second time meanwhile.
    pub(crate) in_hand: Mutex<HashMap<Origin, Arc<HeldDelivery>>>,
    open_consumers: OpenConsumers,
    /// Why the store refused, once it has: this run ends because of that.
    store_refused: OnceLock<String>,
}

/// Consumers that have stopped taking. They stay until their deliveries are settled: some brokers take those back when
/// the consumer goes.
#[derive(Default)]
struct OpenConsumers(Mutex<Vec<Box<dyn Consumer>>>);

impl OpenConsumers {
    fn keep(&self, consumer: Box<dyn Consumer>) {
        lock(&self.0).push(consumer);
    }
}

impl std::fmt::Debug for OpenConsumers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OpenConsumers")
    }
}

impl Engine {
    /// Waits for what is running, until the drain time is over.
    async fn finish(&self, drain: Duration) -> DrainReport {
        self.tasks.close();
        let open = self.tasks.len();
        let in_time = tokio::time::timeout(drain, self.tasks.wait()).await.is_ok();
        let cut = if in_time { 0 } else { self.tasks.len() };
        self.abandon.cancel();
        self.tasks.wait().await;
        DrainReport { finished: open.saturating_sub(cut), cut }
    }
}

/// One source as the worker sees it while it is open.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) capabilities: Capabilities,
    pub(crate) flows: Vec<Arc<RunningFlow>>,
    pub(crate) held: Arc<Semaphore>,
}

/// Subscribes, consumes, and subscribes again after an error, until the source ends or the worker stops.
async fn consume(engine: Arc<Engine>, plan: SourcePlan, fail_fast: bool) -> Result<(), RunError> {
    let slots = plan.flows.iter().map(|running| running.flow.concurrency.get()).sum::<usize>();
    let slots = slots.min(Semaphore::MAX_PERMITS);
    let held = plan.flows.iter().map(|running| running.flow.max_held).sum::<usize>();
    let dead_letter = plan.flows.iter().find_map(|running| match &running.flow.dead_letter {
        DeadLetter::To(place) => Some(place.clone()),
        DeadLetter::Default | DeadLetter::Nowhere => None,
    });
    let subscription = Subscription {
        source: plan.source.clone(),
        window: NonZeroUsize::new(slots + held).unwrap_or(NonZeroUsize::MIN),
        dead_letter,
    };
    let source = Arc::new(Source {
        capabilities: plan.broker.capabilities(),
        flows: plan.flows,
        held: Arc::new(Semaphore::new(held.min(Semaphore::MAX_PERMITS))),
    });
    let slots = Arc::new(Semaphore::new(slots));
    let place = format!("{}/{}", plan.broker_name, plan.source);
    let reconnect =
        Retry { initial: Duration::from_millis(500), max: Duration::from_secs(30), ..Retry::default() };
    let mut failures = 0u32;
    loop {
        let error = match plan.broker.subscribe(&subscription).await {
            Ok(mut consumer) => {
                let error = receive_all(&engine, &source, &slots, consumer.as_mut(), &mut failures).await;
                if let Err(error) = consumer.drain().await {
                    tracing::warn!(
                        source = place,
                        error = chain(&error),
                        "the source could not be told to stop"
                    );
                }
                match error {
                    None => {
                        engine.open_consumers.keep(consumer);
                        return Ok(());
                    }
                    Some(error) => error,
                }
            }
            Err(error) => error,
        };
        match error.kind() {
            ErrorKind::Ended => return Ok(()),
            ErrorKind::Refused => return Err(RunError::refused(place, &error)),
            ErrorKind::Unavailable if fail_fast && failures == 0 => {
                return Err(RunError::unreachable(place, &error));
            }
            ErrorKind::Unavailable => {}
        }
        failures = failures.saturating_add(1);
        let wait = reconnect.bound(failures).mul_f64(0.5 + rand::random::<f64>() / 2.0);
        tracing::error!(source = place, error = chain(&error), ?wait, "the source is away, trying again");
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = engine.stopping.cancelled() => return Ok(()),
        }
    }
}

/// `None` when the worker is stopping.
async fn receive_all(
    engine: &Arc<Engine>,
    source: &Arc<Source>,
    slots: &Arc<Semaphore>,
    consumer: &mut dyn Consumer,
    failures: &mut u32,
) -> Option<ackord_broker::BrokerError> {
    loop {
        let permits = tokio::select! {
            biased;
            () = engine.stopping.cancelled() => return None,
            permits = free_slots(engine.guard.health(), slots) => permits,
        };
        let most = NonZeroUsize::new(permits.num_permits()).unwrap_or(NonZeroUsize::MIN);
        let received = tokio::select! {
            biased;
            () = engine.stopping.cancelled() => return None,
            received = consumer.receive(most) => received,
        };
        match received {
            Ok(deliveries) => {
                *failures = 0;
                engine.counters.received(&deliveries);
                admit(engine, source, deliveries, permits).await;
            }
            Err(error) => return Some(error),
        }
    }
}

/// At least one slot, as soon as there is one and the store answers.
async fn free_slots(health: &StoreHealth, slots: &Arc<Semaphore>) -> OwnedSemaphorePermit {
    loop {
        let changed = health.changed.notified();
        if health.get() == Health::Well {
            break;
        }
        changed.await;
    }
    // The semaphore is never closed.
    let mut permits = Arc::clone(slots).acquire_owned().await.expect("the slots are never closed");
    let more = slots.available_permits().min(LARGEST_BATCH - 1);
    if let Ok(more) = Arc::clone(slots).try_acquire_many_owned(more as u32) {
        permits.merge(more);
    }
    permits
}

async fn admit(
    engine: &Arc<Engine>,
    source: &Arc<Source>,
    deliveries: Vec<Delivery>,
    mut permits: OwnedSemaphorePermit,
) {
    for delivery in deliveries {
        let Some(slot) = permits.split(1) else {
            // The adapter handed out more than it was asked for. Dropped means unsettled: it comes again.
            engine.counters.left_unsettled();
            tracing::error!("the adapter handed out more messages than asked for");
            continue;
        };
        let delivery = match adopt(engine, source, delivery).await {
            Some(delivery) => delivery,
            None => continue,
        };
        let arrival = Arrival::new(engine, Arc::clone(source), delivery, slot);
        engine.tasks.spawn(process::process(Arc::clone(engine), arrival));
    }
}

/// A redelivery of the very message that is being worked on is not run a second time: its handle, the newest, takes the
/// place of the old one and is the one that gets settled.
async fn adopt(engine: &Engine, source: &Source, delivery: Delivery) -> Option<Delivery> {
    if !source.may_deliver_twice() {
        return Some(delivery);
    }
    let origin = &delivery.message().origin;
    let held = {
        let in_hand = lock(&engine.in_hand);
        in_hand.get(origin).map(Arc::clone)
    };
    match held {
        None => Some(delivery),
        Some(held) => match held.adopt(delivery).await {
            Ok(()) => {
                engine.counters.adoption();
                None
            }
            Err(delivery) => Some(delivery),
        },
    }
}

impl Source {
    pub(crate) fn may_deliver_twice(&self) -> bool {
        self.capabilities.stable_position && self.capabilities.lease != Lease::Unlimited
    }

    /// The lease to keep alive, if there is one that can be.
    pub(crate) fn renewable_lease(&self) -> Option<Duration> {
        match self.capabilities.lease {
            Lease::Renewable(lease) => Some(lease),
            Lease::Unlimited | Lease::Fixed(_) => None,
        }
    }
}

/// Asks a store that was away until it answers.
async fn probe_store(engine: Arc<Engine>) {
    let health = Arc::clone(engine.guard.health());
    let mut wait = Duration::from_millis(100);
    loop {
        let changed = health.changed.notified();
        match health.get() {
            Health::Well => {
                wait = Duration::from_millis(100);
                changed.await;
            }
            // A person must act: this run ends, with the reason; nothing is lost.
            Health::Refuses(reason) => {
                let _ = engine.store_refused.set(reason);
                engine.stopping.cancel();
                return;
            }
            Health::Away(_) => {
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(Duration::from_secs(5));
                if engine.guard.store().ping().await.is_ok() {
                    health.set(Health::Well);
                }
            }
        }
    }
}

/// Waits for all sources; the first that fails stops the others.
async fn join_sources(
    mut sources: JoinSet<Result<(), RunError>>,
    stopping: CancellationToken,
) -> Result<(), RunError> {
    let mut first = Ok(());
    while let Some(ended) = sources.join_next().await {
        let ended = ended.unwrap_or_else(|panic| Err(RunError::panicked(panic)));
        if ended.is_err() {
            stopping.cancel();
            first = first.and(ended);
        }
    }
    first
}
