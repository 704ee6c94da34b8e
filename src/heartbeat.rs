//! One renewal clock for claims and broker leases: both are renewed at a third of their length.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use ackord_broker::{Delivery, Disposition, SettleError};
use futures_util::future::join_all;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::idempotency::{ClaimRef, IdempotencyStore, Renewal};
use crate::lock::lock;
use crate::telemetry::Counters;

/// The most claims in one call to the store.
const BATCH: usize = 256;
const SHARDS: usize = 16;
const SHORTEST_TICK: Duration = Duration::from_millis(10);
const LONGEST_TICK: Duration = Duration::from_secs(5);

/// The task that renews. Dropping the last handle ends it.
#[derive(Debug, Clone)]
pub(crate) struct Heartbeat {
    shared: Arc<Shared>,
    _alive: Arc<DropGuard>,
}

#[derive(Debug)]
struct Shared {
    claims: Beats<ClaimBeat>,
    deliveries: Beats<DeliveryBeat>,
    next_id: AtomicU64,
    /// In milliseconds, from the shortest lease seen.
    tick: AtomicU64,
    faster: Notify,
    counters: Arc<Counters>,
}

/// What is renewed, by id; in shards, since every message comes by twice.
#[derive(Debug)]
struct Beats<T>([Mutex<HashMap<u64, T>>; SHARDS]);

#[derive(Debug, Clone)]
struct ClaimBeat {
    claim: ClaimRef,
    lease: Duration,
    renewed: Instant,
    lost: CancellationToken,
}

#[derive(Debug, Clone)]
struct DeliveryBeat {
    delivery: Arc<HeldDelivery>,
    lease: Duration,
    renewed: Instant,
    lost: CancellationToken,
}

/// A delivery that the heartbeat may extend until it is settled. When the broker delivers the same message once more
/// while it is being worked on, the newest handle takes the place of the old.
#[derive(Debug)]
pub(crate) struct HeldDelivery(tokio::sync::Mutex<Option<Delivery>>);

impl HeldDelivery {
    pub(crate) fn new(delivery: Delivery) -> Self {
        Self(tokio::sync::Mutex::new(Some(delivery)))
    }

    /// Puts a newer handle in place; `Err` gives it back when the message has been settled meanwhile.
    pub(crate) async fn adopt(&self, newest: Delivery) -> Result<(), Delivery> {
        match &mut *self.0.lock().await {
            None => Err(newest),
            Some(held) => {
                *held = newest;
                Ok(())
            }
        }
    }

    /// Settles with the newest handle. Settling waits for an extension that is under way, so the two never race.
    pub(crate) async fn settle(&self, disposition: Disposition) -> Result<(), SettleError> {
        match self.0.lock().await.take() {
            Some(delivery) => delivery.settle(disposition).await,
            None => Err(SettleError::Lost),
        }
    }

    async fn extend(&self, by: Duration) -> Result<(), SettleError> {
        match &*self.0.lock().await {
            Some(delivery) => delivery.extend(by).await,
            None => Ok(()),
        }
    }
}

impl Heartbeat {
    /// Starts the task; needs a tokio runtime.
    pub(crate) fn start(store: Arc<dyn IdempotencyStore>, counters: Arc<Counters>) -> Self {
        let shared = Arc::new(Shared {
            claims: Beats::new(),
            deliveries: Beats::new(),
            next_id: AtomicU64::new(0),
            tick: AtomicU64::new(LONGEST_TICK.as_millis() as u64),
            faster: Notify::new(),
            counters,
        });
        let stop = CancellationToken::new();
        tokio::spawn(stop.clone().run_until_cancelled_owned(beat(Arc::clone(&shared), store)));
        Self { shared, _alive: Arc::new(stop.drop_guard()) }
    }

    /// Renews that claim until the guard is dropped. `asked` is when the claim was asked for: its lease cannot have
    /// begun later, so whoever counts from there never believes too long.
    pub(crate) fn hold_claim(
        &self,
        claim: ClaimRef,
        lease: Duration,
        asked: Instant,
        lost: CancellationToken,
    ) -> Held<'_> {
        let id = self.shared.admit(lease);
        self.shared.claims.shard(id).insert(id, ClaimBeat { claim, lease, renewed: asked, lost });
        Held { shared: &self.shared, id, which: Which::Claim }
    }

    /// Extends that delivery until the guard is dropped.
    pub(crate) fn hold_delivery(
        &self,
        delivery: Arc<HeldDelivery>,
        lease: Duration,
        lost: CancellationToken,
    ) -> Held<'_> {
        let id = self.shared.admit(lease);
        let beat = DeliveryBeat { delivery, lease, renewed: Instant::now(), lost };
        self.shared.deliveries.shard(id).insert(id, beat);
        Held { shared: &self.shared, id, which: Which::Delivery }
    }
}

/// Something that is being renewed; dropping it ends that.
#[derive(Debug)]
pub(crate) struct Held<'a> {
    shared: &'a Shared,
    id: u64,
    which: Which,
}

#[derive(Debug, Clone, Copy)]
enum Which {
    Claim,
    Delivery,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        match self.which {
            Which::Claim => drop(self.shared.claims.shard(self.id).remove(&self.id)),
            Which::Delivery => drop(self.shared.deliveries.shard(self.id).remove(&self.id)),
        }
    }
}

impl<T: Clone> Beats<T> {
    fn new() -> Self {
        Self(std::array::from_fn(|_| Mutex::default()))
    }

    fn shard(&self, id: u64) -> MutexGuard<'_, HashMap<u64, T>> {
        lock(&self.0[id as usize % SHARDS])
    }

    /// What was last renewed more than a third of its lease ago.
    fn due(&self, times: impl Fn(&T) -> (Instant, Duration)) -> Vec<(u64, T)> {
        let now = Instant::now();
        let is_due = |beat: &T| {
            let (renewed, lease) = times(beat);
            now.saturating_duration_since(renewed) >= lease / 3
        };
        let mut found = Vec::new();
        for shard in &self.0 {
            let shard = lock(shard);
            found.extend(shard.iter().filter(|(_, beat)| is_due(beat)).map(|(id, beat)| (*id, beat.clone())));
        }
        found
    }
}

impl Shared {
    fn admit(&self, lease: Duration) -> u64 {
        // A sixth of the lease: whatever is due at a third is then renewed before half of the lease is over.
        let tick = (lease / 6).clamp(SHORTEST_TICK, LONGEST_TICK);
        let tick = tick.as_millis() as u64;
        if self.tick.load(Relaxed) > tick && self.tick.fetch_min(tick, Relaxed) > tick {
            // The clock may just be asleep for longer than this lease lives.
            self.faster.notify_one();
        }
        self.next_id.fetch_add(1, Relaxed)
    }

    async fn renew_claims(&self, store: &dyn IdempotencyStore) {
        let mut by_lease: HashMap<Duration, Vec<(u64, ClaimBeat)>> = HashMap::new();
        for (id, beat) in self.claims.due(|beat| (beat.renewed, beat.lease)) {
            by_lease.entry(beat.lease).or_default().push((id, beat));
        }
        for (lease, beats) in by_lease {
            for batch in beats.chunks(BATCH) {
                let asked = Instant::now();
                let claims: Vec<_> = batch.iter().map(|(_, beat)| beat.claim.clone()).collect();
                match tokio::time::timeout(lease / 3, store.renew(&claims, lease)).await {
                    Ok(Ok(answers)) => {
                        for ((id, beat), answer) in batch.iter().zip(answers) {
                            match answer {
                                Renewal::Renewed => {
                                    if let Some(live) = self.claims.shard(*id).get_mut(id) {
                                        live.renewed = asked;
                                    }
                                }
                                Renewal::Lost => self.claim_lost(*id, beat, "taken over"),
                            }
                        }
                    }
                    // The store is away: the claim lives for as long as its last lease says, then it is as good as lost.
                    Ok(Err(_)) | Err(_) => {
                        for (id, beat) in batch {
                            if beat.renewed.elapsed() >= lease {
                                self.claim_lost(*id, beat, "not renewed in time");
                            }
                        }
                    }
                }
            }
        }
    }

    fn claim_lost(&self, id: u64, beat: &ClaimBeat, why: &str) {
        // A claim that was completed while the answer was on its way is gone from the map and not lost.
        if self.claims.shard(id).remove(&id).is_some() {
            self.counters.lease_lost();
            tracing::warn!(key = %beat.claim.key, why, "claim lost while its step is running");
            beat.lost.cancel();
        }
    }

    async fn extend_deliveries(&self) {
        let due = self.deliveries.due(|beat| (beat.renewed, beat.lease));
        for batch in due.chunks(BATCH) {
            // Together, so that an adapter can put many extensions in one request.
            join_all(batch.iter().map(|(id, beat)| self.extend_delivery(*id, beat))).await;
        }
    }

    async fn extend_delivery(&self, id: u64, beat: &DeliveryBeat) {
        let asked = Instant::now();
        let answer = tokio::time::timeout(beat.lease / 3, beat.delivery.extend(beat.lease)).await;
        let mut deliveries = self.deliveries.shard(id);
        match answer {
            Ok(Ok(())) => {
                if let Some(live) = deliveries.get_mut(&id) {
                    live.renewed = asked;
                }
            }
            Ok(Err(SettleError::Failed(_))) | Err(_) if beat.renewed.elapsed() < beat.lease => {}
            // It stays registered: a redelivery may put a newer handle in its place, which is renewed again.
            Ok(Err(_)) | Err(_) => {
                if deliveries.contains_key(&id) && !beat.lost.is_cancelled() {
                    self.counters.lease_lost();
                    tracing::warn!("the broker's lease on a message was lost while its flow is running");
                    beat.lost.cancel();
                }
            }
        }
    }
}

async fn beat(shared: Arc<Shared>, store: Arc<dyn IdempotencyStore>) {
    loop {
        let tick = Duration::from_millis(shared.tick.load(Relaxed));
        if tokio::time::timeout(tick, shared.faster.notified()).await.is_ok() {
            continue;
        }
        shared.renew_claims(&*store).await;
        shared.extend_deliveries().await;
    }
}
