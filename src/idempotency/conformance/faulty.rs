//! Stores with one lie each, made from the memory store. The kit must catch each, by the cases that name it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use super::super::admin::StoreAdmin;
use super::super::memory::MemoryStore;
use super::super::{
    Claim, ClaimOutcome, ClaimRef, ClaimRequest, Durability, Entry, EntryState, IdempotencyStore, Record,
    Release, Renewal, StoreError, Token,
};
use super::StoreHarness;
use crate::clock::{ManualClock, Timestamp};
use crate::fingerprint::Fingerprint;
use crate::key::IdempotencyKey;
use crate::lock::lock;

/// What a store lies about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lie {
    /// Gives a claim to everybody who asks while it is held.
    SharesClaims,
    /// Says that it is done when a stale token completes, and overwrites.
    IgnoresTokenOnComplete,
    /// Renews for anybody.
    IgnoresTokenOnRenew,
    /// Releases for anybody.
    IgnoresTokenOnRelease,
    /// Releasing erases what is completed.
    ReleaseErasesOutcome,
    /// Counts from 1 again after a release.
    ForgetsAttempt,
    /// Tells a decline as a success.
    DeclineBecomesSuccess,
    /// Tells a completed null as nothing on record.
    NullIsAbsent,
    /// Keeps only the first 64 KiB of a result.
    Truncates,
    /// Ignores the fingerprint of what is completed.
    ForgetsFingerprintOnCompletion,
    /// Does not look at the fingerprint while a claim is held.
    SkipsFingerprintWhileBusy,
    /// Does not recognise a claim that is asked for again.
    ForgetsItsOwnClaim,
    /// Believes a worker's clock.
    TrustsWorkersClock,
    /// Takes milliseconds for seconds.
    WrongUnit,
    /// Never gives an expired claim to anybody.
    NeverExpires,
    /// Hides that an expired claim was taken over.
    HidesTakeover,
    /// Forgets a record long before its retention is over.
    ForgetsEarly,
    /// Forgets what an action left under its claim.
    DropsKept,
    /// Answers before it is on disk.
    AnswersBeforeDisk,
}

/// Each lie, and exactly the cases that must fail because of it.
pub const CAUGHT_BY: &[(Lie, &[&str])] = &[
    (
        Lie::SharesClaims,
        &[
            "one_winner_among_64_racers",
            "a_claim_of_an_earlier_life_is_dead_at_once_or_after_its_lease",
            "in_progress_names_its_remaining_time",
            "of_two_that_take_over_one_wins",
            "a_taken_over_claim_is_alive",
            "a_lease_of_90_seconds_lives_for_90_seconds",
            "a_renewed_lease_lives_on",
            "a_clock_wrong_by_an_hour_changes_nothing",
            "random_sequences_answer_as_the_model_does",
        ],
    ),
    (
        Lie::IgnoresTokenOnComplete,
        &["a_stale_token_cannot_complete", "random_sequences_answer_as_the_model_does"],
    ),
    (
        Lie::IgnoresTokenOnRenew,
        &[
            "a_stale_token_cannot_renew",
            "an_expired_lease_is_claimable_with_another_token",
            "random_sequences_answer_as_the_model_does",
        ],
    ),
    (
        Lie::IgnoresTokenOnRelease,
        &["a_stale_token_cannot_release", "random_sequences_answer_as_the_model_does"],
    ),
    (
        Lie::ReleaseErasesOutcome,
        &["a_release_never_erases_an_outcome", "random_sequences_answer_as_the_model_does"],
    ),
    (
        Lie::ForgetsAttempt,
        &[
            "the_attempt_survives_a_release",
            "the_attempt_survives_reopening",
            "random_sequences_answer_as_the_model_does",
        ],
    ),
    (Lie::DeclineBecomesSuccess, &["a_decline_stays_a_decline"]),
    (Lie::NullIsAbsent, &["a_null_result_is_a_result"]),
    (Lie::Truncates, &["a_record_of_a_mebibyte_is_whole"]),
    (Lie::ForgetsFingerprintOnCompletion, &["other_content_mismatches_when_completed"]),
    (Lie::SkipsFingerprintWhileBusy, &["other_content_mismatches_while_busy"]),
    (Lie::ForgetsItsOwnClaim, &["a_repeated_claim_is_the_same_claim"]),
    (Lie::TrustsWorkersClock, &["a_clock_wrong_by_an_hour_changes_nothing"]),
    (
        Lie::WrongUnit,
        &[
            "in_progress_names_its_remaining_time",
            "a_lease_of_90_seconds_lives_for_90_seconds",
            "random_sequences_answer_as_the_model_does",
        ],
    ),
    (
        Lie::NeverExpires,
        &[
            "a_stale_token_cannot_complete",
            "a_stale_token_cannot_renew",
            "a_stale_token_cannot_release",
            "a_kept_result_is_given_to_the_next",
            "a_cancelled_claim_leaves_nothing_or_something_that_expires",
            "a_claim_of_an_earlier_life_is_dead_at_once_or_after_its_lease",
            "an_expired_lease_is_claimable_with_another_token",
            "the_attempt_survives_a_takeover",
            "crashes_are_counted_until_a_run_ends",
            "a_claim_that_never_started_leaves_no_doubt",
            "of_two_that_take_over_one_wins",
            "a_taken_over_claim_is_alive",
            "a_lease_of_90_seconds_lives_for_90_seconds",
            "random_sequences_answer_as_the_model_does",
        ],
    ),
    (
        Lie::HidesTakeover,
        &[
            "a_claim_of_an_earlier_life_is_dead_at_once_or_after_its_lease",
            "an_expired_lease_is_claimable_with_another_token",
            "a_claim_that_never_started_leaves_no_doubt",
        ],
    ),
    (Lie::ForgetsEarly, &["retention_is_counted_from_completion"]),
    (Lie::DropsKept, &["a_kept_result_is_given_to_the_next"]),
    (Lie::AnswersBeforeDisk, &["records_survive_reopening"]),
];

/// A space with one lie in it.
#[derive(Debug)]
pub struct LyingHarness {
    lie: Lie,
    clock: Arc<ManualClock>,
    store: Arc<MemoryStore>,
    memory: Arc<Mutex<Memory>>,
}

/// What a lie needs to remember.
#[derive(Debug, Default)]
struct Memory {
    /// Who holds what, for lies about tokens.
    holders: HashMap<IdempotencyKey, Token>,
    released: HashMap<IdempotencyKey, u32>,
    unflushed: Vec<IdempotencyKey>,
}

#[derive(Debug)]
struct Lying {
    lie: Lie,
    store: Arc<MemoryStore>,
    memory: Arc<Mutex<Memory>>,
    skew: i64,
}

impl LyingHarness {
    /// A fresh space with that lie.
    pub fn new(lie: Lie) -> Self {
        let clock = Arc::new(ManualClock::at(Timestamp::from_millis(1_000_000)));
        let store = Arc::new(MemoryStore::with_clock(Arc::clone(&clock) as _));
        Self { lie, clock, store, memory: Arc::default() }
    }

    fn handle(&self, skew: i64) -> Arc<dyn IdempotencyStore> {
        let (store, memory) = (Arc::clone(&self.store), Arc::clone(&self.memory));
        Arc::new(Lying { lie: self.lie, store, memory, skew })
    }
}

#[async_trait]
impl StoreHarness for LyingHarness {
    async fn open(&self) -> Arc<dyn IdempotencyStore> {
        self.handle(0)
    }

    async fn reopen(&self) -> Arc<dyn IdempotencyStore> {
        let unflushed = std::mem::take(&mut lock(&self.memory).unflushed);
        for key in unflushed {
            // It is in memory, so it cannot fail.
            let _ = self.store.forget(&key).await;
        }
        self.handle(0)
    }

    async fn open_skewed(&self, seconds: i64) -> Arc<dyn IdempotencyStore> {
        self.handle(seconds)
    }

    async fn pass(&self, time: Duration) {
        self.clock.advance(time);
    }

    fn is_persistent(&self) -> bool {
        true
    }
}

impl Lying {
    async fn honest_claim(&self, request: &ClaimRequest) -> Result<ClaimOutcome, StoreError> {
        let told = self.store.claim(request).await?;
        if let ClaimOutcome::Claimed(claim) = &told {
            lock(&self.memory).holders.insert(request.key.clone(), claim.held.token);
        }
        Ok(told)
    }

    /// The claim of whoever holds the key, so that anybody may use it.
    fn holders(&self, claim: &ClaimRef) -> ClaimRef {
        let holder = lock(&self.memory).holders.get(&claim.key).copied();
        ClaimRef { key: claim.key.clone(), token: holder.unwrap_or(claim.token) }
    }

    async fn steal(&self, request: &ClaimRequest) -> Result<ClaimOutcome, StoreError> {
        self.store.forget(&request.key).await?;
        self.honest_claim(request).await
    }
}

#[async_trait]
impl IdempotencyStore for Lying {
    fn name(&self) -> &'static str {
        "lying"
    }

    fn durability(&self) -> Durability {
        Durability::Machine
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<ClaimOutcome, StoreError> {
        let entry = self.store.get(&request.key).await?;
        let state = entry.map(|entry| entry.state);
        match (self.lie, &state) {
            (Lie::WrongUnit, _) => {
                let lease = Duration::from_millis(request.lease.as_secs());
                return self.honest_claim(&ClaimRequest { lease, ..request.clone() }).await;
            }
            (Lie::NeverExpires, Some(EntryState::InProgress { owner, remaining, .. }))
                if remaining.is_zero() =>
            {
                return Ok(ClaimOutcome::InProgress {
                    remaining: Duration::from_secs(1),
                    owner: Arc::clone(owner),
                });
            }
            (Lie::TrustsWorkersClock, Some(EntryState::InProgress { remaining, .. }))
                if self.skew > 0 && *remaining <= Duration::from_secs(self.skew.unsigned_abs()) =>
            {
                return self.steal(request).await;
            }
            (Lie::NullIsAbsent, Some(EntryState::Completed(Record::Succeeded(body)))) if body == "null" => {
                return self.steal(request).await;
            }
            _ => {}
        }
        let told = self.honest_claim(request).await?;
        match (self.lie, told) {
            (Lie::SharesClaims, ClaimOutcome::InProgress { .. }) => {
                let held = ClaimRef { key: request.key.clone(), token: request.token };
                Ok(ClaimOutcome::Claimed(Claim { held, attempt: 1, crashes: 0, took_over: None, kept: None }))
            }
            (Lie::ForgetsAttempt, ClaimOutcome::Claimed(mut claim)) => {
                let before = lock(&self.memory).released.get(&request.key).copied().unwrap_or(0);
                claim.attempt = claim.attempt.saturating_sub(before).max(1);
                Ok(ClaimOutcome::Claimed(claim))
            }
            (Lie::DeclineBecomesSuccess, ClaimOutcome::Completed(Record::Declined(decline))) => {
                Ok(ClaimOutcome::Completed(Record::Succeeded(decline.body.unwrap_or_default())))
            }
            (Lie::ForgetsFingerprintOnCompletion, ClaimOutcome::Mismatch) => match state {
                Some(EntryState::Completed(record)) => Ok(ClaimOutcome::Completed(record)),
                _ => Ok(ClaimOutcome::Mismatch),
            },
            (Lie::SkipsFingerprintWhileBusy, ClaimOutcome::Mismatch) => match state {
                Some(EntryState::InProgress { owner, remaining, .. }) => {
                    Ok(ClaimOutcome::InProgress { remaining, owner })
                }
                _ => Ok(ClaimOutcome::Mismatch),
            },
            (Lie::ForgetsItsOwnClaim, ClaimOutcome::Claimed(claim)) if matches!(state, Some(EntryState::InProgress { remaining, .. }) if !remaining.is_zero()) =>
            {
                let _ = claim;
                Ok(ClaimOutcome::InProgress { remaining: Duration::from_secs(1), owner: "somebody".into() })
            }
            (Lie::HidesTakeover, ClaimOutcome::Claimed(mut claim)) => {
                claim.took_over = None;
                Ok(ClaimOutcome::Claimed(claim))
            }
            (Lie::DropsKept, ClaimOutcome::Claimed(mut claim)) => {
                claim.kept = None;
                Ok(ClaimOutcome::Claimed(claim))
            }
            (_, told) => Ok(told),
        }
    }

    async fn renew(&self, claims: &[ClaimRef], lease: Duration) -> Result<Vec<Renewal>, StoreError> {
        let renewed = self.store.renew(claims, lease).await?;
        match self.lie {
            Lie::IgnoresTokenOnRenew => Ok(vec![Renewal::Renewed; claims.len()]),
            _ => Ok(renewed),
        }
    }

    async fn keep(&self, claim: &ClaimRef, result: &Bytes) -> Result<(), StoreError> {
        self.store.keep(claim, result).await
    }

    async fn complete(
        &self,
        claim: &ClaimRef,
        record: &Record,
        retention: Duration,
    ) -> Result<(), StoreError> {
        match (self.lie, record) {
            (Lie::IgnoresTokenOnComplete, _) => {
                let done = self.store.complete(&self.holders(claim), record, retention).await;
                if done.is_err() {
                    // Whatever is there, it is overwritten.
                    self.store.forget(&claim.key).await?;
                    let fingerprint = Fingerprint::of_body(Some(b"content"));
                    let request = ClaimRequest {
                        key: claim.key.clone(),
                        token: claim.token,
                        fingerprint,
                        owner: "kit".into(),
                        lease: retention,
                        retention,
                        starts: true,
                    };
                    self.store.claim(&request).await?;
                    self.store.complete(claim, record, retention).await?;
                }
                Ok(())
            }
            (Lie::Truncates, Record::Succeeded(body)) => {
                let record = Record::Succeeded(body.slice(..body.len().min(64 * 1024)));
                self.store.complete(claim, &record, retention).await
            }
            (Lie::ForgetsEarly, _) => self.store.complete(claim, record, retention / 2).await,
            (Lie::AnswersBeforeDisk, _) => {
                self.store.complete(claim, record, retention).await?;
                lock(&self.memory).unflushed.push(claim.key.clone());
                Ok(())
            }
            _ => self.store.complete(claim, record, retention).await,
        }
    }

    async fn release(&self, claim: &ClaimRef, how: Release) -> Result<(), StoreError> {
        match self.lie {
            Lie::IgnoresTokenOnRelease => self.store.release(&self.holders(claim), how).await,
            Lie::ReleaseErasesOutcome => match self.store.release(claim, how).await {
                Err(StoreError::LostOwnership { .. })
                    if matches!(
                        self.store.get(&claim.key).await?,
                        Some(Entry { state: EntryState::Completed(_), .. })
                    ) =>
                {
                    self.store.forget(&claim.key).await.map(drop)
                }
                result => result,
            },
            Lie::ForgetsAttempt => {
                self.store.release(claim, how).await?;
                let attempt = self.store.get(&claim.key).await?.map_or(0, |entry| entry.attempt);
                lock(&self.memory).released.insert(claim.key.clone(), attempt);
                Ok(())
            }
            _ => self.store.release(claim, how).await,
        }
    }

    async fn doubt(&self, claim: &ClaimRef, note: &str) -> Result<(), StoreError> {
        self.store.doubt(claim, note).await
    }

    async fn get(&self, key: &IdempotencyKey) -> Result<Option<Entry>, StoreError> {
        self.store.get(key).await
    }

    async fn ping(&self) -> Result<(), StoreError> {
        Ok(())
    }
}
