//! What a message costs the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ackord::flow::StepContext;
use ackord::idempotency::memory::MemoryStore;
use ackord::idempotency::{
    ClaimOutcome, ClaimRef, ClaimRequest, Durability, Entry, IdempotencyStore, Record, Release, Renewal,
    StoreError,
};
use ackord::key::IdempotencyKey;
use ackord_broker::memory::MemoryBroker;
use async_trait::async_trait;
use bytes::Bytes;
use serde_json::Value;

use crate::rig::{Rig, flow};

/// Counts every call.
#[derive(Debug, Default)]
struct Counting {
    inner: MemoryStore,
    calls: AtomicUsize,
}

impl Counting {
    fn counted(&self) -> &MemoryStore {
        self.calls.fetch_add(1, Ordering::SeqCst);
        &self.inner
    }
}

#[async_trait]
impl IdempotencyStore for Counting {
    fn name(&self) -> &'static str {
        "counting"
    }
    fn durability(&self) -> Durability {
        Durability::Process
    }
    async fn claim(&self, request: &ClaimRequest) -> Result<ClaimOutcome, StoreError> {
        self.counted().claim(request).await
    }
    async fn renew(&self, claims: &[ClaimRef], lease: Duration) -> Result<Vec<Renewal>, StoreError> {
        self.counted().renew(claims, lease).await
    }
    async fn keep(&self, claim: &ClaimRef, result: &Bytes) -> Result<(), StoreError> {
        self.counted().keep(claim, result).await
    }
    async fn complete(
        &self,
        claim: &ClaimRef,
        record: &Record,
        retention: Duration,
    ) -> Result<(), StoreError> {
        self.counted().complete(claim, record, retention).await
    }
    async fn release(&self, claim: &ClaimRef, how: Release) -> Result<(), StoreError> {
        self.counted().release(claim, how).await
    }
    async fn doubt(&self, claim: &ClaimRef, note: &str) -> Result<(), StoreError> {
        self.counted().doubt(claim, note).await
    }
    async fn get(&self, key: &IdempotencyKey) -> Result<Option<Entry>, StoreError> {
        self.counted().get(key).await
    }
    async fn ping(&self) -> Result<(), StoreError> {
        self.counted().ping().await
    }
}

#[tokio::test(start_paused = true)]
async fn a_flow_of_one_step_makes_exactly_two_store_calls_for_a_message() {
    for (steps, calls) in [(1, 2), (2, 6)] {
        let store = Arc::new(Counting::default());
        let rig = Rig::with(MemoryBroker::new(), Arc::clone(&store) as _);
        for n in 0..100 {
            rig.send(&format!("m{n}"), format!(r#"{{"id":{n}}}"#));
        }
        let mut flow = flow();
        for n in 0..steps {
            flow = flow.step(format!("s{n}"), |_: Value, _: StepContext| async { Ok(()) });
        }
        let report = rig.run(flow.build().unwrap()).await;
        assert_eq!(report.summary.effects, 100 * steps);
        assert_eq!(store.calls.load(Ordering::SeqCst), 100 * calls, "{steps} steps");
    }
}
