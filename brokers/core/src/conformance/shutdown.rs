//! A worker can stop without losing and without waiting for the broker's timeouts.

use std::num::NonZeroUsize;

use super::stand::{Stand, ack, chain, name, names};
use super::{Case, case};

pub(super) const CASES: &[Case] = &[
    case!(drain_stops_the_inflow),
    case!(open_deliveries_still_settle_after_drain),
    case!(draining_twice_is_fine),
    case!(what_was_open_reaches_another_consumer),
    case!(a_dropped_consumer_gives_back_what_it_had_fetched),
];

async fn drain_stops_the_inflow(stand: Stand) -> Result<(), String> {
    stand.publish(&["before"]).await;
    let mut tap = stand.consumer().await?;
    ack(tap.next().await?).await?;
    // The marker has a source and a consumer of its own: it arrives whoever owns the drained source.
    let beside = stand.beside().await;
    let mut marker = beside.consumer().await?;
    tap.consumer.drain().await.map_err(|error| format!("drain failed: {}", chain(&error)))?;
    stand.publish(&["after"]).await;
    beside.publish(&["marker"]).await;
    let early = {
        let mut drained = std::pin::pin!(tap.consumer.receive(NonZeroUsize::MIN));
        tokio::select! {
            biased;
            Ok(deliveries) = &mut drained => names(&deliveries),
            came = marker.next() => { ack(came?).await?; Vec::new() }
        }
    };
    if !early.is_empty() {
        return Err(format!("{early:?} came after drain"));
    }
    drop(tap);
    stand.consumer().await?.all_of(&["after"]).await
}

async fn open_deliveries_still_settle_after_drain(stand: Stand) -> Result<(), String> {
    stand.publish(&["one", "two"]).await;
    let mut tap = stand.consumer().await?;
    let held = tap.several(2).await?;
    tap.consumer.drain().await.map_err(|error| format!("drain failed: {}", chain(&error)))?;
    for delivery in held {
        if !stand.lease().is_zero() {
            let name = name(&delivery);
            delivery
                .extend(stand.lease())
                .await
                .map_err(|error| format!("extending {name}: {}", chain(&error)))?;
        }
        ack(delivery).await?;
    }
    Ok(())
}

async fn draining_twice_is_fine(stand: Stand) -> Result<(), String> {
    stand.publish(&["one"]).await;
    let mut tap = stand.consumer().await?;
    let open = tap.next().await?;
    for time in ["first", "second"] {
        tap.consumer.drain().await.map_err(|error| format!("the {time} drain failed: {}", chain(&error)))?;
    }
    ack(open).await
}

async fn what_was_open_reaches_another_consumer(stand: Stand) -> Result<(), String> {
    stand.publish(&["one", "two", "three"]).await;
    let mut tap = stand.consumer().await?;
    let held = tap.several(2).await?;
    tap.consumer.drain().await.map_err(|error| format!("drain failed: {}", chain(&error)))?;
    drop(held);
    drop(tap);
    stand.consumer().await?.all_of(&["one", "two", "three"]).await
}

async fn a_dropped_consumer_gives_back_what_it_had_fetched(stand: Stand) -> Result<(), String> {
    let sent: Vec<_> = (0..10).map(|n| format!("message {n}")).collect();
    stand.publish(&sent.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let mut tap = stand.consumer().await?;
    let first = tap.next().await?;
    let taken = name(&first);
    ack(first).await?;
    drop(tap);
    let left: Vec<_> = sent.iter().map(String::as_str).filter(|name| *name != taken).collect();
    stand.consumer().await?.all_of(&left).await
}
