//! What goes wrong outside.

use std::collections::HashSet;

use super::{BrokerHarness, Case, Disruption, Mistake, Stage, case, ensure, id, needs_sharing, settle};
use crate::{Disposition, ErrorKind, RejectReason, Rejection, SettleError};

pub(super) const CASES: &[Case] = &[
    case!(a_cut_connection_loses_nothing, |harness| can(harness, Disruption::CutConnection)),
    case!(a_restarted_server_loses_nothing, |harness| can(harness, Disruption::RestartServer)),
    case!(what_will_never_work_is_refused, |harness| has(harness, Mistake::Refused)),
    case!(what_may_work_later_is_unavailable, |harness| has(harness, Mistake::NobodyListens)),
    case!(two_consumers_never_hold_one_message, needs_sharing),
    case!(without_a_dead_letter_place_nothing_is_acknowledged, |harness| {
        can(harness, Disruption::LoseDeadLetters)
    }),
];

fn can(harness: &dyn BrokerHarness, how: Disruption) -> Result<(), &'static str> {
    if harness.can(how) { Ok(()) } else { Err("the broker cannot be disturbed like that") }
}

fn has(harness: &dyn BrokerHarness, how: Mistake) -> Result<(), &'static str> {
    if harness.misconfigured(how).is_some() {
        Ok(())
    } else {
        Err("the broker cannot be set up wrong like that")
    }
}

async fn a_cut_connection_loses_nothing(stage: &Stage<'_>) -> Result<(), String> {
    loses_nothing(stage, Disruption::CutConnection).await
}

async fn a_restarted_server_loses_nothing(stage: &Stage<'_>) -> Result<(), String> {
    loses_nothing(stage, Disruption::RestartServer).await
}

/// Everything arrives although the broker is disturbed in the middle; the consumer is opened again when it says so.
async fn loses_nothing(stage: &Stage<'_>, how: Disruption) -> Result<(), String> {
    let ids: Vec<_> = (0..20).map(|n| format!("d{n:02}")).collect();
    stage.publish(&ids.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let mut consumer = stage.subscribe().await?;
    let held = stage.take(&mut *consumer, 5).await?;
    stage.harness.disrupt(&stage.source, how).await;
    let mut seen = HashSet::new();
    for delivery in held {
        // Settled or lost; what is lost comes again.
        let name = id(&delivery);
        if delivery.settle(Disposition::Ack).await.is_ok() {
            seen.insert(name);
        }
    }
    let deadline = tokio::time::Instant::now() + stage.harness.within();
    while seen.len() < ids.len() {
        ensure!(tokio::time::Instant::now() < deadline, "{} of {} messages came", seen.len(), ids.len());
        match stage.next(&mut *consumer).await {
            Ok(delivery) => {
                let name = id(&delivery);
                if delivery.settle(Disposition::Ack).await.is_ok() {
                    seen.insert(name);
                }
            }
            Err(_) => consumer = stage.subscribe().await?,
        }
    }
    Ok(())
}

async fn kind(stage: &Stage<'_>, how: Mistake) -> Result<ErrorKind, String> {
    let broker = stage.harness.misconfigured(how).ok_or("cannot be set up like that")?;
    let mut consumer = match broker.subscribe(&stage.source).await {
        Err(error) => return Ok(error.kind()),
        Ok(consumer) => consumer,
    };
    match tokio::time::timeout(stage.harness.within(), consumer.receive(super::ONE)).await {
        Ok(Err(error)) => Ok(error.kind()),
        Ok(Ok(_)) => Err("it received something".to_owned()),
        Err(_) => Err("it waits for ever".to_owned()),
    }
}

async fn what_will_never_work_is_refused(stage: &Stage<'_>) -> Result<(), String> {
    let kind = kind(stage, Mistake::Refused).await?;
    ensure!(kind == ErrorKind::Refused, "told as {kind:?}");
    Ok(())
}

async fn what_may_work_later_is_unavailable(stage: &Stage<'_>) -> Result<(), String> {
    let kind = kind(stage, Mistake::NobodyListens).await?;
    ensure!(kind == ErrorKind::Unavailable, "told as {kind:?}");
    Ok(())
}

async fn two_consumers_never_hold_one_message(stage: &Stage<'_>) -> Result<(), String> {
    stage.publish(&["1", "2", "3", "4", "5", "6"]).await;
    let mut consumers = [stage.subscribe().await?, stage.subscribe().await?];
    let mut held = Vec::new();
    // In turn, so that each of them gets some.
    for n in 0..6 {
        let next = stage.next(&mut *consumers[n % 2]).await;
        match next {
            Ok(delivery) => held.push(delivery),
            // The other consumer may have fetched the rest.
            Err(_) => held.push(stage.next(&mut *consumers[(n + 1) % 2]).await?),
        }
    }
    let distinct: HashSet<_> = held.iter().map(id).collect();
    ensure!(distinct.len() == 6, "two consumers hold {:?}", held.iter().map(id).collect::<Vec<_>>());
    Ok(())
}

async fn without_a_dead_letter_place_nothing_is_acknowledged(stage: &Stage<'_>) -> Result<(), String> {
    stage.publish(&["rejected"]).await;
    let mut consumer = stage.subscribe().await?;
    let delivery = stage.next(&mut *consumer).await?;
    stage.harness.disrupt(&stage.source, Disruption::LoseDeadLetters).await;
    let reject = || Disposition::Reject(Box::new(Rejection::new(RejectReason::Exhausted, "")));
    let told = delivery.settle(reject()).await;
    ensure!(matches!(told, Err(SettleError::Failed(_))), "without a place it was told {told:?}");
    stage.harness.disrupt(&stage.source, Disruption::RestoreDeadLetters).await;
    let delivery = stage.next(&mut *consumer).await?;
    ensure!(id(&delivery) == "rejected", "{} came", id(&delivery));
    settle(delivery, reject()).await?;
    let parked = stage.harness.parked(&stage.source).await;
    ensure!(parked.len() == 1, "{} messages are kept aside", parked.len());
    Ok(())
}
