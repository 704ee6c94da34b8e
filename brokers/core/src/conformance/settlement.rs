//! What a settlement does.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    Case, Stage, case, ensure, id, needs_lease, needs_redelivery_to_the_same, needs_renewable_lease, settle,
};
use crate::{DeadLetters, Disposition, NackCause, RejectReason, Rejection, SettleError};

pub(super) const CASES: &[Case] = &[
    case!(ack_removes),
    case!(nack_redelivers),
    case!(a_delay_is_a_lower_bound, |harness| {
        let none = harness.broker().capabilities().delay.max.is_zero();
        if none { Err("the broker knows no delay") } else { Ok(()) }
    }),
    case!(reject_parks_with_the_reason, |harness| {
        let kept = harness.broker().capabilities().dead_letters == DeadLetters::Kept;
        if kept { Ok(()) } else { Err("the broker keeps no dead letters") }
    }),
    case!(a_dropped_delivery_comes_back, needs_redelivery_to_the_same),
    case!(settling_out_of_order_and_dying_replays_the_rest),
    case!(extending_keeps_it_hidden, needs_renewable_lease),
    case!(settling_after_the_lease_says_lost, needs_lease),
];

async fn ack_removes(stage: &Stage<'_>) -> Result<(), String> {
    stage.publish(&["acked"]).await;
    let mut consumer = stage.subscribe().await?;
    let delivery = stage.next(&mut *consumer).await?;
    settle(delivery, Disposition::Ack).await?;
    stage.marker_is_next(&mut *consumer, "marker").await?;
    drop(consumer);
    let mut consumer = stage.subscribe().await?;
    stage.marker_is_next(&mut *consumer, "second marker").await
}

async fn nack_redelivers(stage: &Stage<'_>) -> Result<(), String> {
    stage.publish(&["nacked"]).await;
    let mut consumer = stage.subscribe().await?;
    for cause in [NackCause::Tried, NackCause::Untried] {
        let delivery = stage.next(&mut *consumer).await?;
        settle(delivery, Disposition::Nack { delay: None, cause }).await?;
    }
    let delivery = stage.next(&mut *consumer).await?;
    ensure!(id(&delivery) == "nacked", "{} came", id(&delivery));
    settle(delivery, Disposition::Ack).await
}

async fn a_delay_is_a_lower_bound(stage: &Stage<'_>) -> Result<(), String> {
    let delay = Duration::from_millis(300);
    stage.publish(&["delayed"]).await;
    let mut consumer = stage.subscribe().await?;
    let delivery = stage.next(&mut *consumer).await?;
    let start = Instant::now();
    settle(delivery, Disposition::Nack { delay: Some(delay), cause: NackCause::Tried }).await?;
    let delivery = stage.next(&mut *consumer).await?;
    ensure!(start.elapsed() >= delay, "came again after {:?} instead of {delay:?}", start.elapsed());
    settle(delivery, Disposition::Ack).await
}

async fn reject_parks_with_the_reason(stage: &Stage<'_>) -> Result<(), String> {
    stage.publish(&["rejected"]).await;
    let mut consumer = stage.subscribe().await?;
    let delivery = stage.next(&mut *consumer).await?;
    let sent = delivery.message().clone();
    let rejection = Rejection::new(RejectReason::Exhausted, "five times");
    settle(delivery, Disposition::Reject(Box::new(rejection))).await?;
    stage.marker_is_next(&mut *consumer, "marker").await?;
    let parked = stage.harness.parked(&stage.source).await;
    ensure!(parked.len() == 1, "{} messages are kept aside", parked.len());
    let (message, reason) = &parked[0];
    ensure!(message.body == sent.body && message.headers == sent.headers, "kept aside as {message:?}");
    ensure!(reason == "exhausted", "the reason became {reason}");
    Ok(())
}

async fn a_dropped_delivery_comes_back(stage: &Stage<'_>) -> Result<(), String> {
    stage.publish(&["dropped"]).await;
    let mut consumer = stage.subscribe().await?;
    drop(stage.next(&mut *consumer).await?);
    let delivery = stage.next(&mut *consumer).await?;
    ensure!(id(&delivery) == "dropped", "{} came", id(&delivery));
    settle(delivery, Disposition::Ack).await
}

async fn settling_out_of_order_and_dying_replays_the_rest(stage: &Stage<'_>) -> Result<(), String> {
    stage.publish(&["1", "2", "3"]).await;
    let mut consumer = stage.subscribe().await?;
    let mut held = stage.take(&mut *consumer, 3).await?;
    let third = held.iter().position(|delivery| id(delivery) == "3").ok_or("3 did not come")?;
    settle(held.remove(third), Disposition::Ack).await?;
    // The death of a process: nothing more is settled.
    drop(held);
    drop(consumer);
    let mut consumer = stage.subscribe().await?;
    let mut again: Vec<_> = stage.take(&mut *consumer, 2).await?.iter().map(id).collect();
    again.sort();
    ensure!(again == ["1", "2"], "{again:?} came again");
    Ok(())
}

async fn extending_keeps_it_hidden(stage: &Stage<'_>) -> Result<(), String> {
    let lease = stage.lease().ok_or("no lease")?;
    stage.publish(&["extended"]).await;
    let mut consumer = stage.subscribe().await?;
    let delivery = stage.next(&mut *consumer).await?;
    // Asked for anything that comes for three leases, while it is extended every third of one.
    for _ in 0..9 {
        delivery.extend(lease).await.map_err(|error| error.to_string())?;
        if let Ok(came) = tokio::time::timeout(lease / 3, consumer.receive(super::ONE)).await {
            let came = came.map_err(|error| super::told(&error))?;
            return Err(format!(
                "{:?} came although it was extended",
                came.iter().map(id).collect::<Vec<_>>()
            ));
        }
    }
    settle(delivery, Disposition::Ack).await?;
    stage.marker_is_next(&mut *consumer, "marker").await
}

async fn settling_after_the_lease_says_lost(stage: &Stage<'_>) -> Result<(), String> {
    stage.publish(&["late"]).await;
    let mut consumer = stage.subscribe().await?;
    let stale = stage.next(&mut *consumer).await?;
    // It comes again when its lease is over.
    let newest = stage.next(&mut *consumer).await?;
    ensure!(id(&newest) == "late", "{} came", id(&newest));
    let late = stale.settle(Disposition::Ack).await;
    ensure!(matches!(late, Err(SettleError::Lost)), "a stale handle was told {late:?}");
    settle(newest, Disposition::Nack { delay: None, cause: NackCause::Tried }).await?;
    let again = stage.next(&mut *consumer).await?;
    ensure!(id(&again) == "late", "the stale handle settled it: {} came", id(&again));
    settle(again, Disposition::Ack).await
}
