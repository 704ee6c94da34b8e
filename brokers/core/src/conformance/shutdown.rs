//! The end of a consumer.

use std::time::Duration;

use super::{Case, ONE, Stage, case, ensure, id, settle};
use crate::Disposition;

pub(super) const CASES: &[Case] = &[
    case!(drain_stops_the_inflow),
    case!(open_deliveries_settle_after_a_drain),
    case!(what_was_open_reaches_the_next_consumer),
];

async fn drain_stops_the_inflow(stage: &Stage<'_>) -> Result<(), String> {
    stage.publish(&["1", "2", "3"]).await;
    let mut consumer = stage.subscribe().await?;
    let first = stage.next(&mut *consumer).await?;
    let first_id = id(&first);
    consumer.drain().await.map_err(|error| super::told(&error))?;
    consumer.drain().await.map_err(|error| format!("drained twice: {}", super::told(&error)))?;
    stage.publish(&["4"]).await;
    // What is handed out now would be lost on a worker that has stopped asking.
    let after = tokio::time::timeout(Duration::from_millis(100), consumer.receive(ONE)).await;
    if let Ok(Ok(came)) = after {
        return Err(format!("{:?} came after the drain", came.iter().map(id).collect::<Vec<_>>()));
    }
    settle(first, Disposition::Ack).await?;
    drop(consumer);
    let mut consumer = stage.subscribe().await?;
    let mut rest: Vec<_> = stage.take(&mut *consumer, 3).await?.iter().map(id).collect();
    rest.push(first_id);
    rest.sort();
    ensure!(rest == ["1", "2", "3", "4"], "{rest:?} are all that came");
    Ok(())
}

async fn open_deliveries_settle_after_a_drain(stage: &Stage<'_>) -> Result<(), String> {
    stage.publish(&["open"]).await;
    let mut consumer = stage.subscribe().await?;
    let open = stage.next(&mut *consumer).await?;
    consumer.drain().await.map_err(|error| super::told(&error))?;
    settle(open, Disposition::Ack).await?;
    drop(consumer);
    let mut consumer = stage.subscribe().await?;
    stage.marker_is_next(&mut *consumer, "marker").await
}

async fn what_was_open_reaches_the_next_consumer(stage: &Stage<'_>) -> Result<(), String> {
    stage.publish(&["1", "2", "3"]).await;
    let mut consumer = stage.subscribe().await?;
    let held = stage.take(&mut *consumer, 2).await?;
    consumer.drain().await.map_err(|error| super::told(&error))?;
    drop(held);
    drop(consumer);
    let mut consumer = stage.subscribe().await?;
    let mut all: Vec<_> = stage.take(&mut *consumer, 3).await?.iter().map(id).collect();
    all.sort();
    ensure!(all == ["1", "2", "3"], "{all:?} reached the next consumer");
    Ok(())
}
