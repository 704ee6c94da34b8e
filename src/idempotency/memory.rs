//! The store in memory: for tests, and for work that may be forgotten when the process ends.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use super::admin::{Stats, StoreAdmin};
use super::state::{self, Lost, Row, State};
use super::{
    ClaimOutcome, ClaimRef, ClaimRequest, Durability, Entry, IdempotencyStore, Record, Release, Renewal,
    StoreError,
};
use crate::clock::{Clock, SystemClock};
use crate::key::IdempotencyKey;
use crate::lock::lock;

const SHARDS: usize = 64;
/// A shard smaller than this is never swept: what has expired in it is found when it is asked for.
const SMALLEST_SWEEP: usize = 1024;

/// A store in memory. What is past its retention is forgotten at the latest when as much again has come in.
#[derive(Debug)]
pub struct MemoryStore {
    shards: Vec<Mutex<Shard>>,
    hasher: RandomState,
    clock: Arc<dyn Clock>,
}

#[derive(Debug, Default)]
struct Shard {
    rows: HashMap<IdempotencyKey, Row>,
    /// Swept when it has grown to this.
    sweep_at: usize,
}

impl MemoryStore {
    /// An empty store on the system's clock.
    pub fn new() -> Self {
        Self::with_clock(Arc::new(SystemClock::new()))
    }

    /// An empty store on that clock.
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Self { shards, hasher: RandomState::new(), clock }
    }

    fn shard(&self, key: &IdempotencyKey) -> MutexGuard<'_, Shard> {
        lock(&self.shards[self.hasher.hash_one(key) as usize % SHARDS])
    }

    fn change(
        &self,
        claim: &ClaimRef,
        change: impl FnOnce(&mut Row) -> Result<(), Lost>,
    ) -> Result<(), StoreError> {
        let lost = || StoreError::LostOwnership { key: claim.key.clone() };
        let mut shard = self.shard(&claim.key);
        let row = shard.rows.get_mut(&claim.key).ok_or_else(lost)?;
        change(row).map_err(|Lost| lost())
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl Shard {
    fn sweep_if_grown(&mut self, clock: &dyn Clock) {
        if self.rows.len() >= self.sweep_at.max(SMALLEST_SWEEP) {
            let now = clock.now();
            self.rows.retain(|_, row| state::is_live(row, now));
            self.sweep_at = self.rows.len() * 2;
        }
    }
}

#[async_trait]
impl IdempotencyStore for MemoryStore {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn durability(&self) -> Durability {
        Durability::Process
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<ClaimOutcome, StoreError> {
        let mut shard = self.shard(&request.key);
        let (outcome, row) = state::claim(shard.rows.get(&request.key), request, self.clock.now());
        if let Some(row) = row {
            shard.rows.insert(request.key.clone(), row);
            shard.sweep_if_grown(&*self.clock);
        }
        Ok(outcome)
    }

    async fn renew(&self, claims: &[ClaimRef], lease: Duration) -> Result<Vec<Renewal>, StoreError> {
        let now = self.clock.now();
        let renew = |claim: &ClaimRef| match self.change(claim, |row| row.renew(claim.token, lease, now)) {
            Ok(()) => Renewal::Renewed,
            Err(_) => Renewal::Lost,
        };
        Ok(claims.iter().map(renew).collect())
    }

    async fn keep(&self, claim: &ClaimRef, result: &Bytes) -> Result<(), StoreError> {
        self.change(claim, |row| row.keep(claim.token, result))
    }

    async fn complete(
        &self,
        claim: &ClaimRef,
        record: &Record,
        retention: Duration,
    ) -> Result<(), StoreError> {
        let now = self.clock.now();
        self.change(claim, |row| row.complete(claim.token, record, retention, now))
    }

    async fn release(&self, claim: &ClaimRef, how: Release) -> Result<(), StoreError> {
        self.change(claim, |row| row.release(claim.token, how))
    }

    async fn doubt(&self, claim: &ClaimRef, note: &str) -> Result<(), StoreError> {
        self.change(claim, |row| row.doubt(claim.token, note))
    }

    async fn get(&self, key: &IdempotencyKey) -> Result<Option<Entry>, StoreError> {
        let now = self.clock.now();
        let shard = self.shard(key);
        Ok(shard.rows.get(key).filter(|row| state::is_live(row, now)).map(|row| row.entry(now)))
    }

    async fn ping(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

#[async_trait]
impl StoreAdmin for MemoryStore {
    async fn list(
        &self,
        prefix: &str,
        after: Option<&IdempotencyKey>,
        limit: usize,
    ) -> Result<Vec<(IdempotencyKey, Entry)>, StoreError> {
        let now = self.clock.now();
        let mut found = Vec::new();
        for shard in &self.shards {
            let shard = lock(shard);
            let rows = shard.rows.iter().filter(|(key, row)| {
                key.as_str().starts_with(prefix)
                    && after.is_none_or(|after| *key > after)
                    && state::is_live(row, now)
            });
            found.extend(rows.map(|(key, row)| (key.clone(), row.entry(now))));
        }
        found.sort_by(|(a, _), (b, _)| a.cmp(b));
        found.truncate(limit);
        Ok(found)
    }

    async fn release_if_dead(&self, key: &IdempotencyKey) -> Result<bool, StoreError> {
        let now = self.clock.now();
        let mut shard = self.shard(key);
        Ok(shard
            .rows
            .get_mut(key)
            .filter(|row| state::is_live(row, now))
            .is_some_and(|row| row.release_if_dead(now)))
    }

    async fn forget(&self, key: &IdempotencyKey) -> Result<bool, StoreError> {
        Ok(self.shard(key).rows.remove(key).is_some())
    }

    async fn purge(&self) -> Result<u64, StoreError> {
        let now = self.clock.now();
        let mut purged = 0;
        for shard in &self.shards {
            let mut shard = lock(shard);
            let before = shard.rows.len();
            shard.rows.retain(|_, row| state::is_live(row, now));
            purged += (before - shard.rows.len()) as u64;
        }
        Ok(purged)
    }

    async fn clear(&self) -> Result<(), StoreError> {
        for shard in &self.shards {
            lock(shard).rows.clear();
        }
        Ok(())
    }

    async fn stats(&self) -> Result<Stats, StoreError> {
        let now = self.clock.now();
        let mut stats = Stats::default();
        for shard in &self.shards {
            for row in lock(shard).rows.values().filter(|row| state::is_live(row, now)) {
                let count = match &row.state {
                    State::Claimed { .. } => &mut stats.in_progress,
                    State::Released => &mut stats.released,
                    State::Completed(Record::Declined(_)) => &mut stats.declined,
                    State::Completed(_) => &mut stats.succeeded,
                    State::InDoubt => &mut stats.in_doubt,
                };
                *count += 1;
            }
        }
        Ok(stats)
    }
}
