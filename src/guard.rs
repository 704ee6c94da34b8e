//! The guard: claim → run → classify → complete or release, so that a step takes effect once.
//!
//! The order inside one guarded step: claim (its start is on record with it); the action under a heartbeat; its result
//! encoded; the `on_after` hooks; complete; the value *decoded from what was stored* returned. The record becomes
//! completed only after all hooks passed; if the action or a hook fails, the claim is released. Once the action has
//! succeeded and the hooks have passed, releasing is out of reach: a store that fails then is asked again for as long as
//! this process lives.

mod call;
mod health;

use std::any::Any;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use serde_json::Value;
use tokio::sync::{RwLock, RwLockWriteGuard};
use tokio::time::Instant;

use crate::classify::{StepError, Verdict};
use crate::flight::{Boarding, Flights, Landing, WaiterLimits};
use crate::heartbeat::Heartbeat;
use crate::idempotency::{
    Claim, ClaimOutcome, ClaimRequest, Decline, IdempotencyStore, MissingBody, Record, Release, StoreError,
    Token,
};
use crate::outcome::{Failure, Outcome};
use crate::telemetry::{Counters, chain};

pub use call::{Call, End, Grant, Hook, InDoubt, Level, Reconciled, Reconciler, Terms, WaitPolicy};
pub(crate) use health::{Health, StoreHealth};

/// The guard over one store. One per process: it joins callers of one key, and renews all claims with one heartbeat.
#[derive(Debug)]
pub struct StepGuard {
    store: Arc<dyn IdempotencyStore>,
    heartbeat: Heartbeat,
    flights: Flights,
    /// Read by every action, written by one that must run alone.
    alone: RwLock<()>,
    owner: Arc<str>,
    counters: Arc<Counters>,
    store_away: Arc<StoreHealth>,
}

/// A claim that is being renewed.
struct Tenure<'a> {
    claim: Claim,
    grant: Grant,
    _beat: crate::heartbeat::Held<'a>,
}

impl StepGuard {
    /// A guard over that store; needs a tokio runtime. `owner` names this process to people.
    pub fn new(store: Arc<dyn IdempotencyStore>, owner: impl Into<Arc<str>>) -> Self {
        Self::with_counters(store, owner.into(), Arc::default())
    }

    pub(crate) fn with_counters(
        store: Arc<dyn IdempotencyStore>,
        owner: Arc<str>,
        counters: Arc<Counters>,
    ) -> Self {
        Self {
            heartbeat: Heartbeat::start(Arc::clone(&store), Arc::clone(&counters)),
            store,
            flights: Flights::new(WaiterLimits::default()),
            alone: RwLock::new(()),
            owner,
            counters,
            store_away: Arc::default(),
        }
    }

    pub(crate) fn heartbeat(&self) -> &Heartbeat {
        &self.heartbeat
    }

    pub(crate) fn health(&self) -> &Arc<StoreHealth> {
        &self.store_away
    }

    pub(crate) fn store(&self) -> &Arc<dyn IdempotencyStore> {
        &self.store
    }

    pub(crate) fn owner(&self) -> &str {
        &self.owner
    }

    /// What has been counted.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Runs `action` unless its key has an outcome already.
    ///
    /// # Cancellation
    /// A dropped future leaves its claim to expire: whoever takes it over is told of the doubt.
    pub async fn run<F, Fut>(&self, call: Call<'_>, action: F) -> Outcome
    where
        F: FnOnce(Grant) -> Fut + Send,
        Fut: Future<Output = Result<Value, End>> + Send,
    {
        let wait_until = Instant::now() + call.terms.wait.timeout;
        let mut pilot = loop {
            match self.flights.board(call.key, call.fingerprint) {
                Boarding::Pilot(pilot) => break pilot,
                Boarding::Mismatch => return Outcome::Mismatch,
                Boarding::Full => return Outcome::Busy { remaining: call.terms.lease },
                Boarding::Passenger(passenger) => {
                    let landing = Box::pin(self.wait_for(&call, passenger.landing())).await;
                    match landing {
                        None => return Outcome::Stopping,
                        // There is a record now: the store answers.
                        Some(Landing::Settled) => {}
                        Some(Landing::Released) if Instant::now() < wait_until => {}
                        Some(Landing::Released) => return Outcome::Busy { remaining: Duration::ZERO },
                    }
                }
            }
        };
        if let Some(turn) = call.turn
            && turn.take().await.is_err()
        {
            return Outcome::Stopping;
        }
        let outcome = match self.claim(&call, wait_until).await {
            Ok(tenure) => self.hold(&call, tenure, action, wait_until).await,
            Err(outcome) => outcome,
        };
        if matches!(outcome, Outcome::Done { .. } | Outcome::Declined { .. }) {
            pilot.settled();
        }
        outcome
    }

    /// Waits without a permit; `None` when the worker is stopping.
    async fn wait_for<T>(&self, call: &Call<'_>, what: impl Future<Output = T>) -> Option<T> {
        let Some(turn) = call.turn else { return Some(what.await) };
        turn.rest();
        tokio::select! {
            biased;
            done = what => Some(done),
            () = turn.stopping() => None,
        }
    }

    async fn claim(&self, call: &Call<'_>, wait_until: Instant) -> Result<Tenure<'_>, Outcome> {
        let request = ClaimRequest {
            key: call.key.clone(),
            token: Token::random(),
            fingerprint: call.fingerprint,
            owner: Arc::clone(&self.owner),
            lease: call.terms.lease,
            retention: call.terms.retention,
            starts: call.level == Level::Step,
        };
        let mut poll = call.terms.wait.poll_interval.max(Duration::from_millis(1));
        loop {
            let asked = Instant::now();
            match self.store.claim(&request).await {
                Ok(ClaimOutcome::Claimed(claim)) => {
                    self.store_away.answered();
                    return Ok(self.begin(call, claim, asked));
                }
                Ok(ClaimOutcome::Completed(record)) => return Err(replay(record)),
                Ok(ClaimOutcome::Mismatch) => return Err(Outcome::Mismatch),
                Ok(ClaimOutcome::InDoubt { note, .. }) => return Err(Outcome::Parked { note }),
                Ok(ClaimOutcome::InProgress { remaining, .. }) => {
                    let left = wait_until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Err(Outcome::Busy { remaining });
                    }
                    let nap = jittered(poll).min(left);
                    poll = poll.saturating_mul(2).min(Duration::from_secs(1)).max(poll);
                    if Box::pin(self.wait_for(call, tokio::time::sleep(nap))).await.is_none() {
                        return Err(Outcome::Stopping);
                    }
                    if let Some(turn) = call.turn
                        && turn.take().await.is_err()
                    {
                        return Err(Outcome::Stopping);
                    }
                }
                Err(StoreError::Unreadable { reason, .. }) => return Err(Outcome::Unreadable { reason }),
                Err(error) => return Err(Outcome::StoreAway { reason: self.note_store_error(&error) }),
            }
        }
    }

    fn begin(&self, call: &Call<'_>, claim: Claim, asked: Instant) -> Tenure<'_> {
        let lost = call.lost.child_token();
        let beat = self.heartbeat.hold_claim(claim.held.clone(), call.terms.lease, asked, lost.clone());
        let grant = Grant { attempt: claim.attempt, lost };
        Tenure { claim, grant, _beat: beat }
    }

    /// From a granted claim to its end.
    async fn hold<F, Fut>(
        &self,
        call: &Call<'_>,
        tenure: Tenure<'_>,
        action: F,
        wait_until: Instant,
    ) -> Outcome
    where
        F: FnOnce(Grant) -> Fut + Send,
        Fut: Future<Output = Result<Value, End>> + Send,
    {
        let mut tenure = tenure;
        let (mut others, mut alone) = (None, None);
        if call.level == Level::Step {
            // What is rare is boxed here and below: it would make the future of every message larger.
            let doubtful = tenure.claim.crashes > 0 || tenure.claim.took_over.is_some();
            if doubtful && let Some(outcome) = Box::pin(self.look_back(call, &tenure)).await {
                return outcome;
            }
            if tenure.claim.crashes == 0 {
                others = Some(self.alone.read().await);
            } else {
                match Box::pin(self.step_aside(call, tenure, wait_until)).await {
                    Ok((again, nobody_else)) => {
                        tenure = again;
                        alone = Some(nobody_else);
                    }
                    Err(outcome) => return outcome,
                }
            }
        }
        let outcome = self.act_and_finish(call, &tenure, action).await;
        drop((others, alone));
        outcome
    }

    /// An earlier run never ended, so this one runs alone. While it waits for that it holds no claim: if another suspect
    /// kills the process meanwhile, that must not count as a crash of this one.
    async fn step_aside(
        &self,
        call: &Call<'_>,
        tenure: Tenure<'_>,
        wait_until: Instant,
    ) -> Result<(Tenure<'_>, RwLockWriteGuard<'_, ()>), Outcome> {
        let unstarted = Release { counted: false, started: false, note: None };
        if let Err(error) = self.store.release(&tenure.claim.held, unstarted).await {
            return Err(Outcome::StoreAway { reason: self.note_store_error(&error) });
        }
        drop(tenure);
        self.counters.suspect();
        let alone = self.alone.write().await;
        Ok((self.claim(call, wait_until).await?, alone))
    }

    /// What the claim says of earlier runs: too many crashes, or a doubt. `None` = run it.
    async fn look_back(&self, call: &Call<'_>, tenure: &Tenure<'_>) -> Option<Outcome> {
        let claim = &tenure.claim;
        let doubt = claim.took_over.as_ref().filter(|takeover| takeover.started);
        if let Some(takeover) = doubt {
            self.counters.takeover();
            tracing::warn!(
                key = %call.key, from = %takeover.from, by = %self.owner, attempt = claim.attempt,
                "took over a step that had started: it may take effect twice",
            );
        }
        if claim.crashes >= call.terms.max_crashes {
            let crashes = claim.crashes;
            let note = format!("started {crashes} times without an end");
            return Some(self.release(tenure, true, note, Outcome::Crashed { crashes }).await);
        }
        doubt?;
        self.settle_doubt(call, tenure, "its owner died while running it").await
    }

    async fn act_and_finish<F, Fut>(&self, call: &Call<'_>, tenure: &Tenure<'_>, action: F) -> Outcome
    where
        F: FnOnce(Grant) -> Fut + Send,
        Fut: Future<Output = Result<Value, End>> + Send,
    {
        let value = match kept_value(&tenure.claim) {
            Some(Ok(value)) => value,
            Some(Err(reason)) => return Outcome::Unreadable { reason },
            None => match self.act(tenure, action).await {
                Ok(value) => value,
                Err(End::Inner(outcome)) => return Box::pin(self.end_of_inner(call, tenure, outcome)).await,
                Err(End::Error(error)) => return Box::pin(self.end_of_error(call, tenure, error)).await,
            },
        };
        self.finish(call, tenure, value).await
    }

    /// The action itself, panics contained.
    async fn act<F, Fut>(&self, tenure: &Tenure<'_>, action: F) -> Result<Value, End>
    where
        F: FnOnce(Grant) -> Fut + Send,
        Fut: Future<Output = Result<Value, End>> + Send,
    {
        let grant = tenure.grant.clone();
        let ended = AssertUnwindSafe(async { action(grant).await }).catch_unwind().await;
        ended.unwrap_or_else(|panic| Err(End::Error(self.panicked(&*panic))))
    }

    fn panicked(&self, panic: &(dyn Any + Send)) -> StepError {
        self.counters.panic();
        let text = panic
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_default();
        StepError::transient("panic").detail(text)
    }

    /// From the action's success to the record. No way leads from here to a release but a failing hook.
    async fn finish(&self, call: &Call<'_>, tenure: &Tenure<'_>, value: Value) -> Outcome {
        let encoded = Bytes::from(value.to_string());
        if let Some(on_after) = call.on_after
            && let Err(outcome) = Box::pin(self.after(call, tenure, on_after, &value, &encoded)).await
        {
            return outcome;
        }
        if encoded.len() > call.terms.result_cap {
            let too_large =
                MissingBody::TooLarge { size: encoded.len() as u64, cap: call.terms.result_cap as u64 };
            return self.complete_without_body(call, tenure, too_large).await;
        }
        let record = Record::Succeeded(encoded);
        self.complete(call, tenure, record, call.terms.retention).await
    }

    async fn after(
        &self,
        call: &Call<'_>,
        tenure: &Tenure<'_>,
        on_after: Hook<'_>,
        value: &Value,
        encoded: &Bytes,
    ) -> Result<(), Outcome> {
        if call.terms.recovery_point && tenure.claim.kept.is_none() {
            let kept = self.persist(call, || self.store.keep(&tenure.claim.held, encoded)).await;
            kept.map_err(|lost| self.late(call, lost))?;
        }
        let hook = AssertUnwindSafe(on_after(value.clone(), tenure.grant.clone())).catch_unwind().await;
        let Err(error) = hook.unwrap_or_else(|panic| Err(self.panicked(&*panic))) else { return Ok(()) };
        // The action took effect, so whatever the hook says, it is not a decline of the action.
        let error = format!("on_after: {}", error.summary());
        let attempt = tenure.claim.attempt;
        let outcome = Outcome::Failed { kind: Failure::Transient, error: error.clone(), attempt };
        Err(self.release(tenure, true, error, outcome).await)
    }

    async fn complete_without_body(&self, call: &Call<'_>, tenure: &Tenure<'_>, why: MissingBody) -> Outcome {
        tracing::warn!(key = %call.key, ?why, "done, but its result is not kept");
        self.complete(call, tenure, Record::SucceededWithoutBody(why), call.terms.retention).await
    }

    async fn complete(
        &self,
        call: &Call<'_>,
        tenure: &Tenure<'_>,
        record: Record,
        retention: Duration,
    ) -> Outcome {
        let stored = self.persist(call, || self.store.complete(&tenure.claim.held, &record, retention)).await;
        if let Err(lost) = stored {
            return self.late(call, lost);
        }
        if call.level == Level::Step && !matches!(record, Record::Declined(_)) {
            self.counters.effect();
            if let Some(turn) = call.turn {
                turn.judge(Ok(()));
            }
        }
        fresh(replay(record))
    }

    async fn end_of_error(&self, call: &Call<'_>, tenure: &Tenure<'_>, error: StepError) -> Outcome {
        let summary = error.summary();
        if error.is_undecodable() {
            let outcome = Outcome::Undecodable { reason: summary.clone() };
            return self.release(tenure, true, summary, outcome).await;
        }
        let verdict = call.turn.map_or_else(|| error.verdict(), |turn| turn.judge(Err(&error)));
        let (kind, counted) = match verdict {
            Verdict::Done => {
                let why = MissingBody::NotEncodable(error.detail_text().to_owned());
                return self.complete_without_body(call, tenure, why).await;
            }
            Verdict::Declined => {
                let decline = Decline {
                    code: error.code().to_owned(),
                    detail: error.detail_text().to_owned(),
                    body: error.answer().filter(|body| body.len() <= call.terms.result_cap).cloned(),
                };
                let retention = call.terms.decline_retention;
                return self.complete(call, tenure, Record::Declined(decline), retention).await;
            }
            Verdict::LeaseLost => return Outcome::LostOwnership,
            Verdict::InDoubt => {
                if let Some(outcome) = self.settle_doubt(call, tenure, &summary).await {
                    return outcome;
                }
                (Failure::InDoubt, true)
            }
            Verdict::Transient => (Failure::Transient, true),
            Verdict::Throttled { after } => (Failure::Throttled { after }, false),
            Verdict::WorkerFault => (Failure::WorkerFault, false),
        };
        let outcome = Outcome::Failed { kind, error: summary.clone(), attempt: tenure.claim.attempt };
        self.release(tenure, counted, summary, outcome).await
    }

    /// A flow whose step ended early: the step's own record is settled, the flow's claim follows it.
    async fn end_of_inner(&self, call: &Call<'_>, tenure: &Tenure<'_>, outcome: Outcome) -> Outcome {
        let (counted, outcome) = match outcome {
            Outcome::Declined { decline, .. } => {
                let retention = call.terms.decline_retention;
                return self.complete(call, tenure, Record::Declined(decline), retention).await;
            }
            Outcome::Failed { kind, error, .. } => {
                let counted = matches!(kind, Failure::Transient | Failure::InDoubt);
                (counted, Outcome::Failed { kind, error, attempt: tenure.claim.attempt })
            }
            Outcome::Busy { .. } | Outcome::LostOwnership | Outcome::StoreAway { .. } | Outcome::Stopping => {
                (false, outcome)
            }
            outcome => (true, outcome),
        };
        let note = outcome.error();
        self.release(tenure, counted, note, outcome).await
    }

    /// What the in-doubt policy makes of it; `None` = run it (again).
    async fn settle_doubt(&self, call: &Call<'_>, tenure: &Tenure<'_>, note: &str) -> Option<Outcome> {
        match (call.terms.in_doubt, call.reconcile) {
            (InDoubt::Rerun, _) => None,
            (InDoubt::Reconcile, Some(reconcile)) => {
                let found = AssertUnwindSafe(reconcile(tenure.grant.clone())).catch_unwind().await;
                match found.unwrap_or_else(|panic| Err(self.panicked(&*panic))) {
                    Ok(Reconciled::NotHappened) => None,
                    Ok(Reconciled::Happened(value)) => Some(Box::pin(self.finish(call, tenure, value)).await),
                    // Still unknown. The claim is kept until it expires, so that the doubt stays on record and is asked
                    // about again by whoever takes it over.
                    Err(error) => Some(Outcome::Failed {
                        kind: Failure::InDoubt,
                        error: format!("{note}; reconcile: {}", error.summary()),
                        attempt: tenure.claim.attempt,
                    }),
                }
            }
            (InDoubt::Park | InDoubt::Reconcile, _) => {
                let parked = self.persist(call, || self.store.doubt(&tenure.claim.held, note)).await;
                Some(match parked {
                    Ok(()) => Outcome::Parked { note: note.to_owned() },
                    Err(lost) => self.late(call, lost),
                })
            }
        }
    }

    async fn release(&self, tenure: &Tenure<'_>, counted: bool, note: String, outcome: Outcome) -> Outcome {
        let how = Release { counted, started: true, note: (!note.is_empty()).then_some(note) };
        match self.store.release(&tenure.claim.held, how).await {
            Ok(()) => outcome,
            Err(StoreError::LostOwnership { .. }) => Outcome::LostOwnership,
            // The claim expires by itself; until then others see it as busy, which delays and loses nothing.
            Err(error) => {
                self.note_store_error(&error);
                outcome
            }
        }
    }

    /// The result came after the claim was lost: somebody else may have run it too.
    fn late(&self, call: &Call<'_>, outcome: Outcome) -> Outcome {
        if outcome == Outcome::LostOwnership {
            self.counters.late_effect();
            tracing::warn!(key = %call.key, "a result came after its claim was lost: probably a double effect");
        }
        outcome
    }

    /// Asks the store until it has taken it, or says that the claim is lost. Giving up is the caller's: it drops this.
    async fn persist<Fut>(&self, call: &Call<'_>, store: impl Fn() -> Fut) -> Result<(), Outcome>
    where
        Fut: Future<Output = Result<(), StoreError>>,
    {
        let mut wait = Duration::from_millis(20);
        loop {
            match store().await {
                Ok(()) => {
                    self.store_away.answered();
                    return Ok(());
                }
                Err(StoreError::LostOwnership { .. }) => return Err(Outcome::LostOwnership),
                Err(StoreError::Unreadable { reason, .. }) => return Err(Outcome::Unreadable { reason }),
                Err(error) => {
                    let error = self.note_store_error(&error);
                    tracing::warn!(key = %call.key, error, "the outcome is not on record yet, asking again");
                }
            }
            tokio::time::sleep(jittered(wait)).await;
            wait = (wait * 2).min(Duration::from_secs(2));
        }
    }

    fn note_store_error(&self, error: &StoreError) -> String {
        let text = chain(error);
        self.store_away.set(match error {
            StoreError::Refused { .. } => Health::Refuses(text.clone()),
            _ => Health::Away(text.clone()),
        });
        text
    }
}

fn kept_value(claim: &Claim) -> Option<Result<Value, String>> {
    let kept = claim.kept.as_ref()?;
    Some(serde_json::from_slice(kept).map_err(|error| format!("the kept result: {error}")))
}

/// What a record answers.
fn replay(record: Record) -> Outcome {
    match record {
        Record::Succeeded(body) => match serde_json::from_slice(&body) {
            Ok(value) => Outcome::Done { value, replayed: true },
            Err(error) => Outcome::Unreadable { reason: error.to_string() },
        },
        // Null in the first run too, so that it equals its replay.
        Record::SucceededWithoutBody(_) => Outcome::Done { value: Value::Null, replayed: true },
        Record::Declined(decline) => Outcome::Declined { decline, replayed: true },
    }
}

fn fresh(outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::Done { value, .. } => Outcome::Done { value, replayed: false },
        Outcome::Declined { decline, .. } => Outcome::Declined { decline, replayed: false },
        other => other,
    }
}

/// Between three quarters and five quarters of it, so that many who wait do not look at the same moment.
fn jittered(wait: Duration) -> Duration {
    wait.mul_f64(0.75 + rand::random::<f64>() / 2.0)
}
