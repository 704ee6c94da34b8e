//! The crash matrix: for each cut point the process dies there, another starts, and the effects are counted.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ackord::clock::{ManualClock, Timestamp};
use ackord::flow::{Flow, StepContext};
use ackord::idempotency::memory::MemoryStore;
use ackord::idempotency::{
    ClaimOutcome, ClaimRef, ClaimRequest, Durability, Entry, IdempotencyStore, Record, Release, Renewal,
    StoreError,
};
use ackord::key::IdempotencyKey;
use ackord::telemetry::Summary;
use ackord_broker::memory::MemoryBroker;
use async_trait::async_trait;
use bytes::Bytes;
use serde_json::Value;
use tokio::sync::Notify;

use crate::rig::{Effects, QUEUE, Rig, flow, id};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    BeforeClaim,
    AfterClaim,
    AfterEffect,
    BeforeComplete,
    AfterComplete,
    BeforeSettle,
}

/// A store that the process dies in, at the cut.
#[derive(Debug)]
struct Cutting {
    inner: Arc<dyn IdempotencyStore>,
    cut: Cut,
    reached: Arc<Notify>,
}

impl Cutting {
    async fn die_at(&self, cut: Cut) {
        if self.cut == cut {
            self.reached.notify_one();
            std::future::pending::<()>().await;
        }
    }
}

#[async_trait]
impl IdempotencyStore for Cutting {
    fn name(&self) -> &'static str {
        self.inner.name()
    }
    fn durability(&self) -> Durability {
        self.inner.durability()
    }
    async fn claim(&self, request: &ClaimRequest) -> Result<ClaimOutcome, StoreError> {
        self.die_at(Cut::BeforeClaim).await;
        let outcome = self.inner.claim(request).await;
        self.die_at(Cut::AfterClaim).await;
        outcome
    }
    async fn renew(&self, claims: &[ClaimRef], lease: Duration) -> Result<Vec<Renewal>, StoreError> {
        self.inner.renew(claims, lease).await
    }
    async fn keep(&self, claim: &ClaimRef, result: &Bytes) -> Result<(), StoreError> {
        self.inner.keep(claim, result).await
    }
    async fn complete(
        &self,
        claim: &ClaimRef,
        record: &Record,
        retention: Duration,
    ) -> Result<(), StoreError> {
        self.die_at(Cut::BeforeComplete).await;
        let outcome = self.inner.complete(claim, record, retention).await;
        self.die_at(Cut::AfterComplete).await;
        outcome
    }
    async fn release(&self, claim: &ClaimRef, how: Release) -> Result<(), StoreError> {
        self.inner.release(claim, how).await
    }
    async fn doubt(&self, claim: &ClaimRef, note: &str) -> Result<(), StoreError> {
        self.inner.doubt(claim, note).await
    }
    async fn get(&self, key: &IdempotencyKey) -> Result<Option<Entry>, StoreError> {
        self.inner.get(key).await
    }
    async fn ping(&self) -> Result<(), StoreError> {
        self.inner.ping().await
    }
}

fn step_flow(effects: Effects, broker: MemoryBroker, cut: Option<Cut>, reached: Arc<Notify>) -> Flow {
    flow()
        .step("charge", move |_: Value, cx: StepContext| {
            let (effects, reached, broker) = (effects.clone(), Arc::clone(&reached), broker.clone());
            async move {
                effects.add(id(&cx));
                match cut {
                    Some(Cut::AfterEffect) => {
                        reached.notify_one();
                        std::future::pending::<()>().await;
                    }
                    // The broker is gone when the outcome is on record and nothing is settled yet.
                    Some(Cut::BeforeSettle) => {
                        broker.set_available(false);
                        reached.notify_one();
                    }
                    _ => {}
                }
                Ok(())
            }
        })
        .build()
        .unwrap()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap()
}

/// Dies at the cut, then runs again with what is left: effects, and what the second run counted.
fn die_and_run_again(
    cut: Cut,
    mut open: impl FnMut() -> Arc<dyn IdempotencyStore>,
    pass_lease: impl FnOnce(),
) -> (usize, Summary) {
    let broker = MemoryBroker::new();
    let rig = Rig::with(broker.clone(), open());
    rig.send("m", r#"{"id":"a"}"#);
    let effects = rig.effects.clone();
    let reached = Arc::new(Notify::new());
    let first = runtime();
    first.block_on(async {
        let store = Arc::new(Cutting { inner: Arc::clone(&rig.store), cut, reached: Arc::clone(&reached) });
        let dying = Rig { store, ..rig.clone() };
        let flow = step_flow(effects.clone(), broker.clone(), Some(cut), Arc::clone(&reached));
        tokio::spawn(dying.worker(flow).run(std::future::pending()));
        reached.notified().await;
        if cut == Cut::BeforeSettle {
            while broker.depth(QUEUE) > 0
                && dying.store.get(&key()).await.unwrap().is_none_or(|entry| !is_completed(&entry))
            {
                tokio::task::yield_now().await;
            }
        }
    });
    // Everything that ran is gone, as after SIGKILL.
    drop(first);
    drop(rig);
    broker.set_available(true);
    pass_lease();
    let rig = Rig { broker: broker.clone(), store: open(), effects: effects.clone() };
    let report = runtime().block_on(rig.run(step_flow(effects.clone(), broker, None, Arc::default())));
    (effects.all().len(), report.summary)
}

fn key() -> IdempotencyKey {
    IdempotencyKey::for_flow("charge", "a", ackord::key::Scope::default()).unwrap()
}

fn is_completed(entry: &Entry) -> bool {
    matches!(entry.state, ackord::idempotency::EntryState::Completed(_))
}

/// Effects, takeovers and replays for each cut point, as documented in `docs/guarantees.md`.
const DOCUMENTED: [(Cut, usize, u64, u64); 6] = [
    (Cut::BeforeClaim, 1, 0, 0),
    (Cut::AfterClaim, 1, 1, 0),
    (Cut::AfterEffect, 2, 1, 0),
    (Cut::BeforeComplete, 2, 1, 0),
    (Cut::AfterComplete, 1, 0, 1),
    (Cut::BeforeSettle, 1, 0, 1),
];

fn assert_documented(store: &str, run: impl Fn(Cut) -> (usize, Summary)) {
    for (cut, effects, takeovers, replays) in DOCUMENTED {
        let (happened, summary) = run(cut);
        assert_eq!(happened, effects, "{store}, {cut:?}: effects");
        assert_eq!(summary.takeovers, takeovers, "{store}, {cut:?}: takeovers");
        assert_eq!(summary.replays, replays, "{store}, {cut:?}: replays");
    }
}

#[test]
fn the_crash_matrix_holds_on_the_memory_store() {
    assert_documented("memory", |cut| {
        let clock = Arc::new(ManualClock::at(Timestamp::from_millis(0)));
        let store: Arc<dyn IdempotencyStore> = Arc::new(MemoryStore::with_clock(Arc::clone(&clock) as _));
        die_and_run_again(cut, || Arc::clone(&store), move || clock.advance(Duration::from_secs(31)))
    });
}

#[cfg(feature = "sqlite")]
#[test]
fn the_crash_matrix_holds_on_sqlite_without_waiting_for_a_lease() {
    use ackord::idempotency::sqlite::SqliteStore;
    assert_documented("sqlite", |cut| {
        let folder = tempfile::tempdir().unwrap();
        let open = |path: &Path| -> Arc<dyn IdempotencyStore> { Arc::new(SqliteStore::open(path).unwrap()) };
        die_and_run_again(cut, || open(&folder.path().join("ackord.db")), || {})
    });
}
