//! One source: subscribed, consumed, and subscribed again after an error.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use ackord_broker::{Broker, BrokerError, Capabilities, Consumer, Delivery, ErrorKind, Lease, Subscription};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{Engine, RunningFlow};
use crate::backoff::Retry;
use crate::flow::DeadLetter;
use crate::guard::StoreHealth;
use crate::lock::lock;
use crate::process::{self, Arrival};
use crate::shutdown::RunError;
use crate::telemetry::chain;

/// The most messages asked for at once.
const LARGEST_BATCH: usize = 256;

/// One source and the flows that share it.
#[derive(Debug)]
pub(super) struct SourcePlan {
    pub(super) broker_name: String,
    pub(super) broker: Arc<dyn Broker>,
    pub(super) source: String,
    pub(super) flows: Vec<Arc<RunningFlow>>,
}

/// One source as the worker sees it while it is open.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) capabilities: Capabilities,
    pub(crate) flows: Vec<Arc<RunningFlow>>,
    pub(crate) held: Arc<Semaphore>,
}

/// Subscribes, consumes, and subscribes again after an error, until the source ends or the worker stops.
pub(super) async fn consume(engine: Arc<Engine>, plan: SourcePlan, fail_fast: bool) -> Result<(), RunError> {
    let slots = plan.flows.iter().map(|running| running.flow.concurrency.get()).sum::<usize>();
    let slots = slots.min(Semaphore::MAX_PERMITS);
    let held = plan.flows.iter().map(|running| running.flow.max_held).sum::<usize>();
    let dead_letter = plan.flows.iter().find_map(|running| match &running.flow.dead_letter {
        DeadLetter::To(place) => Some(place.clone()),
        DeadLetter::Default | DeadLetter::Nowhere => None,
    });
    let subscription = Subscription {
        source: plan.source.clone(),
        window: NonZeroUsize::new(slots + held).unwrap_or(NonZeroUsize::MIN),
        dead_letter,
    };
    let source = Arc::new(Source {
        capabilities: plan.broker.capabilities(),
        flows: plan.flows,
        held: Arc::new(Semaphore::new(held.min(Semaphore::MAX_PERMITS))),
    });
    let slots = Arc::new(Semaphore::new(slots));
    let place = format!("{}/{}", plan.broker_name, plan.source);
    let reconnect =
        Retry { initial: Duration::from_millis(500), max: Duration::from_secs(30), ..Retry::default() };
    let mut failures = 0u32;
    loop {
        let error = match plan.broker.subscribe(&subscription).await {
            Ok(mut consumer) => {
                let error = receive_all(&engine, &source, &slots, consumer.as_mut(), &mut failures).await;
                if let Err(error) = consumer.drain().await {
                    tracing::warn!(
                        source = place,
                        error = chain(&error),
                        "the source could not be told to stop"
                    );
                }
                match error {
                    None => {
                        engine.open_consumers.keep(consumer);
                        return Ok(());
                    }
                    Some(error) => error,
                }
            }
            Err(error) => error,
        };
        match error.kind() {
            ErrorKind::Ended => return Ok(()),
            ErrorKind::Refused => return Err(RunError::refused(place, &error)),
            ErrorKind::Unavailable if fail_fast && failures == 0 => {
                return Err(RunError::unreachable(place, &error));
            }
            ErrorKind::Unavailable => {}
        }
        failures = failures.saturating_add(1);
        let wait = reconnect.bound(failures).mul_f64(0.5 + rand::random::<f64>() / 2.0);
        tracing::error!(source = place, error = chain(&error), ?wait, "the source is away, trying again");
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = engine.stopping.cancelled() => return Ok(()),
        }
    }
}

/// `None` when the worker is stopping.
async fn receive_all(
    engine: &Arc<Engine>,
    source: &Arc<Source>,
    slots: &Arc<Semaphore>,
    consumer: &mut dyn Consumer,
    failures: &mut u32,
) -> Option<BrokerError> {
    loop {
        let permits = tokio::select! {
            biased;
            () = engine.stopping.cancelled() => return None,
            permits = free_slots(engine.guard.health(), slots) => permits,
        };
        let most = NonZeroUsize::new(permits.num_permits()).unwrap_or(NonZeroUsize::MIN);
        let received = tokio::select! {
            biased;
            () = engine.stopping.cancelled() => return None,
            received = consumer.receive(most) => received,
        };
        match received {
            Ok(deliveries) => {
                *failures = 0;
                engine.counters.received(&deliveries);
                admit(engine, source, deliveries, permits).await;
            }
            Err(error) => return Some(error),
        }
    }
}

/// At least one slot, as soon as there is one and the store answers.
async fn free_slots(health: &StoreHealth, slots: &Arc<Semaphore>) -> OwnedSemaphorePermit {
    loop {
        let changed = health.changed.notified();
        if health.is_well() {
            break;
        }
        changed.await;
    }
    // The semaphore is never closed.
    let mut permits = Arc::clone(slots).acquire_owned().await.expect("the slots are never closed");
    // What is about to end frees its slots first: asking for one message at a time would cost a wake-up for each.
    tokio::task::yield_now().await;
    let more = slots.available_permits().min(LARGEST_BATCH - 1);
    if let Ok(more) = Arc::clone(slots).try_acquire_many_owned(more as u32) {
        permits.merge(more);
    }
    permits
}

async fn admit(
    engine: &Arc<Engine>,
    source: &Arc<Source>,
    deliveries: Vec<Delivery>,
    mut permits: OwnedSemaphorePermit,
) {
    for delivery in deliveries {
        let Some(slot) = permits.split(1) else {
            // The adapter handed out more than it was asked for. Dropped means unsettled: it comes again.
            engine.counters.left_unsettled();
            tracing::error!("the adapter handed out more messages than asked for");
            continue;
        };
        let delivery = match adopt(engine, source, delivery).await {
            Some(delivery) => delivery,
            None => continue,
        };
        let arrival = Arrival::new(engine, Arc::clone(source), delivery, slot);
        engine.tasks.spawn(process::process(Arc::clone(engine), arrival));
    }
}

/// A redelivery of the very message that is being worked on is not run a second time: its handle, the newest, takes the
/// place of the old one and is the one that gets settled.
async fn adopt(engine: &Engine, source: &Source, delivery: Delivery) -> Option<Delivery> {
    if !source.may_deliver_twice() {
        return Some(delivery);
    }
    let origin = &delivery.message().origin;
    let held = {
        let in_hand = lock(&engine.in_hand);
        in_hand.get(origin).map(Arc::clone)
    };
    match held {
        None => Some(delivery),
        Some(held) => match held.adopt(delivery).await {
            Ok(()) => {
                engine.counters.adoption();
                None
            }
            Err(delivery) => Some(delivery),
        },
    }
}

impl Source {
    pub(crate) fn may_deliver_twice(&self) -> bool {
        self.capabilities.stable_position && self.capabilities.lease != Lease::Unlimited
    }

    /// The lease to keep alive, if there is one that can be.
    pub(crate) fn renewable_lease(&self) -> Option<Duration> {
        match self.capabilities.lease {
            Lease::Renewable(lease) => Some(lease),
            Lease::Unlimited | Lease::Fixed(_) => None,
        }
    }
}
