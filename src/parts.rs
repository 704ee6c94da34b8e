//! The effects of one delivery: run one after the other, until each has an outcome that stays.

use std::time::Duration;

use ackord_broker::{NackCause, RejectReason};
use tokio_util::sync::CancellationToken;

use crate::flow::Flow;
use crate::flow::shape::Effect;
use crate::key::IdempotencyKey;
use crate::outcome::Outcome;
use crate::policy::{Decision, decide};
use crate::turn::Turn;
use crate::walk::Walk;
use crate::worker::Engine;

/// How far the effects of one delivery have come.
#[derive(Debug)]
pub(crate) struct Parts {
    effects: Vec<Effect>,
    /// By effect: how it ended, once that stays.
    ended: Vec<Option<Ended>>,
}

/// How an effect ended, for now or for good.
#[derive(Debug, Clone)]
pub(crate) struct Ended {
    pub(crate) outcome: Outcome,
    pub(crate) decision: Decision,
    pub(crate) key: Option<IdempotencyKey>,
}

impl Parts {
    pub(crate) fn new(effects: Vec<Effect>) -> Self {
        let ended = effects.iter().map(|_| None).collect();
        Self { effects, ended }
    }

    /// Runs what has not ended yet. One effect that must be tried again does not keep the others from running; the
    /// answer is what holds for the delivery as a whole.
    pub(crate) async fn run(
        &mut self,
        engine: &Engine,
        flow: &Flow,
        turn: &Turn,
        lost: &CancellationToken,
    ) -> Ended {
        let mut again: Option<Ended> = None;
        for (effect, slot) in self.effects.iter().zip(&mut self.ended) {
            if slot.is_some() {
                continue;
            }
            let outcome = Walk { engine, flow, effect, turn, lost }.run().await;
            let decision = decide(&outcome, &flow.settings, rand::random());
            let ended = Ended { outcome, decision, key: Some(effect.key.clone()) };
            match decision {
                Decision::Ack | Decision::Reject(_) => *slot = Some(ended),
                Decision::Retry { .. } => {
                    let stopping = matches!(ended.outcome, Outcome::Stopping);
                    again = Some(match again.take() {
                        None => ended,
                        Some(other) => longer(other, ended),
                    });
                    if stopping {
                        break;
                    }
                }
            }
        }
        again.unwrap_or_else(|| settled(&self.ended))
    }
}

/// The whole waits for the effect that must wait longest; a try that counts counts for the whole.
fn longer(one: Ended, other: Ended) -> Ended {
    let parts = |ended: &Ended| match ended.decision {
        Decision::Retry { delay, cause } => (delay, cause),
        Decision::Ack | Decision::Reject(_) => (Duration::ZERO, NackCause::Untried),
    };
    let ((first, cause), (second, other_cause)) = (parts(&one), parts(&other));
    let cause = if cause == NackCause::Tried { cause } else { other_cause };
    let mut ended = if second > first { other } else { one };
    ended.decision = Decision::Retry { delay: first.max(second), cause };
    ended
}

/// Every effect has an outcome that stays: one that is kept aside keeps the whole aside (its other effects are on record,
/// so that sending it again does not repeat them), and one that was declined shows before one that was done.
fn settled(ended: &[Option<Ended>]) -> Ended {
    let rank = |ended: &&Ended| match (&ended.decision, &ended.outcome) {
        (Decision::Reject(_), _) => 0,
        (_, Outcome::Declined { .. }) => 1,
        (_, Outcome::Done { replayed: false, .. }) => 2,
        _ => 3,
    };
    // A delivery has one effect at least.
    ended.iter().flatten().min_by_key(rank).cloned().unwrap_or(Ended {
        outcome: Outcome::Unroutable,
        decision: Decision::Reject(RejectReason::Unroutable),
        key: None,
    })
}
