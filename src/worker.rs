//! The worker: takes a slot, asks for as many messages as it has slots, spawns a process for each, drains at the end.

mod builder;
mod source;

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use ackord_broker::{Consumer, Origin};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::source::{SourcePlan, consume};
use crate::flow::Flow;
use crate::guard::{Health, StepGuard};
use crate::heartbeat::HeldDelivery;
use crate::idempotency::IdempotencyStore;
use crate::lane::Lanes;
use crate::lock::lock;
use crate::shutdown::{DrainReport, RunError, RunReport};
use crate::telemetry::Counters;
use crate::turn::FlowLimits;

pub use self::builder::{WorkerBuilder, WorkerFaults};
pub(crate) use self::source::Source;

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
        WorkerBuilder::new(store)
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
