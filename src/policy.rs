//! The one decision: what the broker is told, given how it ended. Pure, one match.

use std::time::Duration;

use ackord_broker::{NackCause, RejectReason};

use crate::backoff::Retry;
use crate::outcome::{Failure, Outcome};

/// What a flow wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Tries and waits.
    pub retry: Retry,
    /// What happens to a message that was declined.
    pub on_decline: OnDecline,
    /// The longest wait for somebody else's claim before looking again.
    pub busy_cap: Duration,
}

/// What happens to a message that was declined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnDecline {
    /// It is acknowledged: the decline is its result.
    #[default]
    Ack,
    /// It is kept aside.
    DeadLetter,
}

/// What is to be done with the delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Acknowledge it.
    Ack,
    /// Try it again, not before `delay`.
    Retry {
        /// The wait.
        delay: Duration,
        /// Whether a try was made that counts.
        cause: NackCause,
    },
    /// Keep it aside.
    Reject(RejectReason),
}

/// The longest wait that a peer can ask for.
pub const THROTTLE_CAP: Duration = Duration::from_secs(3600);

/// Decides. `random` is any 64 random bits.
pub fn decide(outcome: &Outcome, settings: &Settings, random: u64) -> Decision {
    let jitter = |attempt| settings.retry.delay(attempt, random);
    let untried = |delay| Decision::Retry { delay, cause: NackCause::Untried };
    match outcome {
        Outcome::Done { .. }
        | Outcome::Keyless { ignored: true, .. }
        | Outcome::Control { ignored: true, .. } => Decision::Ack,
        Outcome::Declined { .. } => match settings.on_decline {
            OnDecline::Ack => Decision::Ack,
            OnDecline::DeadLetter => Decision::Reject(RejectReason::Declined),
        },
        Outcome::Failed { kind: Failure::Transient | Failure::InDoubt, attempt, .. } => {
            if *attempt >= settings.retry.attempts.get() {
                Decision::Reject(RejectReason::Exhausted)
            } else {
                Decision::Retry { delay: jitter(*attempt), cause: NackCause::Tried }
            }
        }
        Outcome::Failed { kind: Failure::Throttled { after }, attempt, .. } => {
            // Jitter comes on top of what the peer asks for: never earlier, and not all at once.
            untried(after.unwrap_or_default().min(THROTTLE_CAP) + jitter(*attempt))
        }
        Outcome::Failed { kind: Failure::WorkerFault, attempt, .. } => untried(jitter(*attempt)),
        Outcome::Busy { remaining } => untried((*remaining).min(settings.busy_cap).max(jitter(1))),
        Outcome::LostOwnership | Outcome::StoreAway { .. } => untried(jitter(1)),
        Outcome::Stopping => untried(Duration::ZERO),
        Outcome::Parked { .. } => Decision::Reject(RejectReason::InDoubt),
        Outcome::Mismatch => Decision::Reject(RejectReason::Mismatch),
        Outcome::Unreadable { .. } => Decision::Reject(RejectReason::Unreadable),
        Outcome::Undecodable { .. } => Decision::Reject(RejectReason::Undecodable),
        Outcome::Oversize { .. } => Decision::Reject(RejectReason::Oversize),
        Outcome::Keyless { ignored: false, .. } | Outcome::Control { ignored: false, .. } => {
            Decision::Reject(RejectReason::Keyless)
        }
        Outcome::Unroutable => Decision::Reject(RejectReason::Unroutable),
        Outcome::Crashed { .. } => Decision::Reject(RejectReason::Crashed),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::idempotency::Decline;

    const HALF: u64 = 1 << 63;

    fn settings(on_decline: OnDecline) -> Settings {
        Settings { retry: Retry::default(), on_decline, busy_cap: Duration::from_secs(10) }
    }

    fn failed(kind: Failure, attempt: u32) -> Outcome {
        Outcome::Failed { kind, error: "e".into(), attempt }
    }

    fn declined(replayed: bool) -> Outcome {
        let decline = Decline { code: "CardDeclined".into(), detail: String::new(), body: None };
        Outcome::Declined { decline, replayed }
    }

    fn retry(millis: u64, cause: NackCause) -> Decision {
        Decision::Retry { delay: Duration::from_millis(millis), cause }
    }

    /// Each cell of the table in `docs/guarantees.md`.
    #[test]
    fn every_outcome_has_its_decision() {
        use Decision::{Ack, Reject};
        use NackCause::{Tried, Untried};
        let secs = Duration::from_secs;
        let text = || "why".to_owned();
        let table = [
            (Outcome::Done { value: Value::Null, replayed: false }, Ack),
            (Outcome::Done { value: Value::Null, replayed: true }, Ack),
            (declined(false), Ack),
            (declined(true), Ack),
            (failed(Failure::Transient, 1), retry(500, Tried)),
            (failed(Failure::Transient, 4), retry(4_000, Tried)),
            (failed(Failure::Transient, 5), Reject(RejectReason::Exhausted)),
            (failed(Failure::Transient, 6), Reject(RejectReason::Exhausted)),
            (failed(Failure::InDoubt, 1), retry(500, Tried)),
            (failed(Failure::InDoubt, 5), Reject(RejectReason::Exhausted)),
            (failed(Failure::Throttled { after: Some(secs(30)) }, 1), retry(30_500, Untried)),
            (failed(Failure::Throttled { after: Some(secs(9_000)) }, 1), retry(3_600_500, Untried)),
            (failed(Failure::Throttled { after: None }, 99), retry(150_000, Untried)),
            (failed(Failure::WorkerFault, 99), retry(150_000, Untried)),
            (Outcome::Busy { remaining: secs(7) }, retry(7_000, Untried)),
            (Outcome::Busy { remaining: secs(70) }, retry(10_000, Untried)),
            (Outcome::Busy { remaining: Duration::ZERO }, retry(500, Untried)),
            (Outcome::LostOwnership, retry(500, Untried)),
            (Outcome::StoreAway { reason: text() }, retry(500, Untried)),
            (Outcome::Stopping, retry(0, Untried)),
            (Outcome::Parked { note: text() }, Reject(RejectReason::InDoubt)),
            (Outcome::Mismatch, Reject(RejectReason::Mismatch)),
            (Outcome::Unreadable { reason: text() }, Reject(RejectReason::Unreadable)),
            (Outcome::Undecodable { reason: text() }, Reject(RejectReason::Undecodable)),
            (Outcome::Oversize { size: 2, limit: 1 }, Reject(RejectReason::Oversize)),
            (Outcome::Keyless { reason: text(), ignored: false }, Reject(RejectReason::Keyless)),
            (Outcome::Keyless { reason: text(), ignored: true }, Ack),
            (Outcome::Control { what: text(), ignored: false }, Reject(RejectReason::Keyless)),
            (Outcome::Control { what: text(), ignored: true }, Ack),
            (Outcome::Unroutable, Reject(RejectReason::Unroutable)),
            (Outcome::Crashed { crashes: 3 }, Reject(RejectReason::Crashed)),
        ];
        for (outcome, expected) in table {
            assert_eq!(decide(&outcome, &settings(OnDecline::Ack), HALF), expected, "{outcome:?}");
        }
        let kept = settings(OnDecline::DeadLetter);
        assert_eq!(decide(&declined(false), &kept, HALF), Reject(RejectReason::Declined));
        assert_eq!(decide(&declined(true), &kept, HALF), Reject(RejectReason::Declined));
    }
}
