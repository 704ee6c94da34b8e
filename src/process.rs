//! One delivery from receipt to settlement, top to bottom.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ackord_broker::{Delivery, Disposition, Fault, Message, NackCause, RejectReason, Rejection, SettleError};
use futures_util::FutureExt;
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;

use crate::flow::route::route;
use crate::flow::shape::Reading;
use crate::flow::{DeadLetter, Keyless, OnControl, OnRetry, Order};
use crate::heartbeat::HeldDelivery;
use crate::key::IdempotencyKey;
use crate::key::reader::View;
use crate::lane::Place;
use crate::lock::lock;
use crate::outcome::Outcome;
use crate::parts::{Ended, Parts};
use crate::policy::{Decision, decide};
use crate::telemetry::chain;
use crate::turn::Turn;
use crate::worker::{Engine, RunningFlow, Source};

/// How long a message whose settlement failed keeps its slot, so that a dead-letter place that is gone slows intake down
/// instead of turning messages round and round.
const SETTLE_FAILURE_PAUSE: Duration = Duration::from_secs(1);

/// A delivery that has been given its flow and its place in its lane.
#[derive(Debug)]
pub(crate) struct Arrival {
    source: Arc<Source>,
    message: Arc<Message>,
    held: Arc<HeldDelivery>,
    slot: OwnedSemaphorePermit,
    running: Option<Arc<RunningFlow>>,
    place: Option<Place>,
    /// The message with what was parsed of it so far.
    view: View<'static>,
}

impl Arrival {
    /// Everything that must happen in the order of arrival, and nothing else.
    pub(crate) fn new(
        engine: &Engine,
        source: Arc<Source>,
        delivery: Delivery,
        slot: OwnedSemaphorePermit,
    ) -> Self {
        let message = delivery.shared_message();
        let held = Arc::new(HeldDelivery::new(delivery));
        if source.may_deliver_twice() {
            let mut in_hand = lock(&engine.in_hand);
            in_hand.insert(message.origin.clone(), Arc::clone(&held));
        }
        let view = View::shared(Arc::clone(&message));
        let running =
            if message.fault.is_some() { None } else { route(&source.flows, &view).map(Arc::clone) };
        let place = running.as_ref().and_then(|running| match &running.flow.order {
            Order::None => None,
            Order::Key { by, .. } => {
                // What has no order key, or none that can be used, is in no order.
                let key = by.read(&view).ok().flatten()?;
                Some(running.lanes.enter(&key))
            }
        });
        Self { source, message, held, slot, running, place, view }
    }
}

/// Processes one delivery. A panic or the end of the drain time leaves it unsettled: it comes again.
pub(crate) async fn process(engine: Arc<Engine>, arrival: Arrival) {
    let held = Arc::clone(&arrival.held);
    let message = Arc::clone(&arrival.message);
    let twice = arrival.source.may_deliver_twice();
    let run = AssertUnwindSafe(run(&engine, arrival)).catch_unwind();
    let ended = tokio::select! {
        biased;
        ended = run => ended,
        () = engine.abandon.cancelled() => {
            engine.counters.left_unsettled();
            tracing::warn!(origin = %message.origin, "the drain time is over: left unsettled, it comes again");
            Ok(())
        }
    };
    if ended.is_err() {
        engine.counters.panic();
        engine.counters.left_unsettled();
        tracing::error!(origin = %message.origin, "a defect of the worker: left unsettled, it comes again");
    }
    if twice {
        let mut in_hand = lock(&engine.in_hand);
        if in_hand.get(&message.origin).is_some_and(|mine| Arc::ptr_eq(mine, &held)) {
            in_hand.remove(&message.origin);
        }
    }
}

async fn run(engine: &Engine, arrival: Arrival) {
    let Arrival { source, message, held, slot, running, mut place, view } = arrival;
    let lost = CancellationToken::new();
    let _beat = source
        .renewable_lease()
        .map(|lease| engine.guard.heartbeat().hold_delivery(Arc::clone(&held), lease, lost.clone()));
    let Some(running) = running else {
        // No flow of its own: the source's first speaks for all, they share the dead-letter place.
        let running = &source.flows[0];
        let outcome = unsound(&message);
        let decision = decide(&outcome, &running.flow.settings, rand::random());
        return Box::pin(settle(engine, running, &message, &held, &outcome, decision, None)).await;
    };
    let flow = &running.flow;
    let turn = Turn::new(
        Arc::clone(&running.limits),
        message.id.clone(),
        slot,
        Arc::clone(&source.held),
        engine.stopping.clone(),
    );
    let asks_for = match flow.read_view(&message, view) {
        Ok(Reading::Effects(effects)) => Ok(Parts::new(effects)),
        Ok(Reading::Control(what)) => {
            Err(Outcome::Control { what, ignored: flow.shape.on_control == OnControl::Ignore })
        }
        Err(unnamed) => {
            Err(Outcome::Keyless { reason: unnamed.to_string(), ignored: flow.keyless == Keyless::Ignore })
        }
    };
    let mut parts = match asks_for {
        Ok(parts) => parts,
        Err(outcome) => {
            let decision = decide(&outcome, &flow.settings, rand::random());
            return Box::pin(settle(engine, &running, &message, &held, &outcome, decision, None)).await;
        }
    };
    let ended = loop {
        let ended = match wait_in_lane(&turn, place.as_mut()).await {
            false => Ended {
                outcome: Outcome::Stopping,
                decision: decide(&Outcome::Stopping, &flow.settings, rand::random()),
                key: None,
            },
            true => parts.run(engine, flow, &turn, &lost).await,
        };
        turn.rest_if_waiting(&ended.decision);
        let Decision::Retry { delay, cause } = ended.decision else { break ended };
        if !holds_its_key(&flow.order, place.as_ref(), &ended.outcome) {
            break ended;
        }
        note_retry(engine, &running, &message, &ended.outcome, delay, cause);
        // Its key waits with it; it uses no permit meanwhile.
        tokio::select! {
            () = tokio::time::sleep(delay) => {}
            () = turn.stopping() => {
                let decision = Decision::Retry { delay: Duration::ZERO, cause: NackCause::Untried };
                break Ended { outcome: Outcome::Stopping, decision, key: ended.key };
            }
        }
    };
    let Ended { outcome, decision, key } = ended;
    settle(engine, &running, &message, &held, &outcome, decision, key.as_ref()).await;
}

fn unsound(message: &Message) -> Outcome {
    match &message.fault {
        Some(Fault::Undecodable(reason)) => Outcome::Undecodable { reason: reason.clone() },
        Some(Fault::Oversize { size, limit }) => Outcome::Oversize { size: *size, limit: *limit },
        None => Outcome::Unroutable,
    }
}

/// Waits for the turn in the lane, without a permit; `false` when the worker is stopping.
async fn wait_in_lane(turn: &Turn, place: Option<&mut Place>) -> bool {
    let Some(place) = place else { return true };
    if place.is_first() {
        return true;
    }
    turn.park();
    tokio::select! {
        biased;
        () = turn.stopping() => false,
        () = place.turn() => true,
    }
}

fn holds_its_key(order: &Order, place: Option<&Place>, outcome: &Outcome) -> bool {
    let hold = matches!(order, Order::Key { on_retry: OnRetry::HoldKey, .. });
    hold && place.is_some() && !matches!(outcome, Outcome::Stopping)
}

fn note_retry(
    engine: &Engine,
    running: &RunningFlow,
    message: &Message,
    outcome: &Outcome,
    delay: Duration,
    cause: NackCause,
) {
    if matches!(outcome, Outcome::Failed { .. }) {
        engine.counters.retry();
    }
    let (flow, origin, id) = (&*running.flow.name, &message.origin, message.id.as_str());
    let (outcome, error) = (outcome.as_str(), outcome.error());
    match cause {
        NackCause::Tried => {
            tracing::warn!(flow, %origin, message_id = id, outcome, error, ?delay, "failed, will be tried again");
        }
        NackCause::Untried => {
            tracing::info!(flow, %origin, message_id = id, outcome, error, ?delay, "put off");
        }
    }
}

async fn settle(
    engine: &Engine,
    running: &RunningFlow,
    message: &Message,
    held: &HeldDelivery,
    outcome: &Outcome,
    decision: Decision,
    key: Option<&IdempotencyKey>,
) {
    let disposition = match decision {
        Decision::Ack => Disposition::Ack,
        Decision::Retry { delay, cause } => {
            Disposition::Nack { delay: (!delay.is_zero()).then_some(delay), cause }
        }
        Decision::Reject(_) if running.flow.dead_letter == DeadLetter::Nowhere => Disposition::Ack,
        Decision::Reject(reason) => {
            Disposition::Reject(Box::new(rejection(reason, engine, running, message, outcome, key)))
        }
    };
    match held.settle(disposition).await {
        Ok(()) => note_settled(engine, running, message, outcome, decision),
        // The broker gave it to somebody else or will; the record answers them.
        Err(SettleError::Lost) => {
            engine.counters.settle_failure();
            tracing::info!(origin = %message.origin, outcome = outcome.as_str(), "no longer ours to settle");
        }
        Err(error @ SettleError::Failed(_)) => {
            engine.counters.settle_failure();
            engine.counters.left_unsettled();
            let error = chain(&error);
            tracing::error!(origin = %message.origin, outcome = outcome.as_str(), error, "not settled, it comes again");
            tokio::select! {
                () = tokio::time::sleep(SETTLE_FAILURE_PAUSE) => {}
                () = engine.stopping.cancelled() => {}
            }
        }
    }
}

fn note_settled(
    engine: &Engine,
    running: &RunningFlow,
    message: &Message,
    outcome: &Outcome,
    decision: Decision,
) {
    match outcome {
        Outcome::Done { replayed: true, .. } => engine.counters.replay(),
        Outcome::Declined { .. } => engine.counters.decline(),
        Outcome::Stopping => engine.counters.hand_back(),
        _ => {}
    }
    match decision {
        Decision::Ack => {
            let (flow, origin, id) = (&*running.flow.name, &message.origin, message.id.as_str());
            tracing::debug!(flow, %origin, message_id = id, outcome = outcome.as_str(), "settled");
        }
        Decision::Retry { delay, cause } => note_retry(engine, running, message, outcome, delay, cause),
        Decision::Reject(reason) => {
            engine.counters.dead_letter(reason);
            let (origin, id) = (&message.origin, message.id.as_str());
            let error = outcome.error();
            tracing::error!(%origin, message_id = id, reason = reason.as_str(), error, "dead-lettered");
        }
    }
}

fn rejection(
    reason: RejectReason,
    engine: &Engine,
    running: &RunningFlow,
    message: &Message,
    outcome: &Outcome,
    key: Option<&IdempotencyKey>,
) -> Rejection {
    let mut rejection = Rejection::new(reason, outcome.error());
    let mut note = |name, text: String| rejection.notes.push((name, text));
    if !matches!(outcome, Outcome::Unroutable | Outcome::Oversize { .. }) && message.fault.is_none() {
        note("flow", running.flow.name.to_string());
    }
    if let Some(key) = key {
        note("key", key.to_string());
    }
    if let Outcome::Failed { attempt, .. } = outcome {
        note("attempts", attempt.to_string());
    }
    note("origin", message.origin.to_string());
    note("worker", engine.guard.owner().to_owned());
    note("version", env!("CARGO_PKG_VERSION").to_owned());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    note("at_ms", now.as_millis().to_string());
    rejection
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each message is a task that is copied and allocated: what is rare must not make the usual one larger.
    #[test]
    fn the_future_of_a_message_stays_small() {
        fn size<A, B, F>(_: fn(A, B) -> F) -> usize {
            size_of::<F>()
        }
        let size = size(process);
        assert!(size <= 4096, "{size} bytes");
    }
}
