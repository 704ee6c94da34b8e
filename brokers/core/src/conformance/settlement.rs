//! Settling does what it says, and only when it says so.

use std::time::Duration;

use tokio::time::Instant;

use crate::{Delivery, Disposition, RejectReason, SettleError};

use super::stand::{Stand, Tap, ack, chain, is, nack, name, rejection, same, settle};
use super::{Case, Need, case};

pub(super) const CASES: &[Case] = &[
    case!(an_acked_message_is_gone),
    case!(a_nacked_message_comes_back),
    case!(a_delay_is_a_lower_bound, Need::Delay),
    case!(a_rejected_message_is_parked_with_its_reason, Need::DeadLetters),
    case!(a_rejected_message_is_not_seen_again),
    case!(a_dropped_delivery_comes_back),
    case!(settling_the_last_first_and_dying_replays_what_was_open),
    case!(an_extended_lease_keeps_the_message_hidden, Need::RenewableLease),
    case!(settling_after_the_lease_says_lost_and_changes_nothing, Need::Lease),
];

async fn an_acked_message_is_gone(stand: Stand) -> Result<(), String> {
    settled_is_gone(stand, Disposition::Ack).await
}

async fn a_rejected_message_is_not_seen_again(stand: Stand) -> Result<(), String> {
    settled_is_gone(stand, rejection()).await
}

/// The witness is received with the subject and let go: when it is back, the subject would be back too, however
/// this broker delivers again.
async fn settled_is_gone(stand: Stand, disposition: Disposition) -> Result<(), String> {
    stand.publish(&["subject", "witness"]).await;
    let mut tap = stand.consumer().await?;
    let (subject, witness) = subject_and_witness(&mut tap).await?;
    settle(subject, disposition).await?;
    let mut tap = stand.let_go(tap, vec![witness]).await?;
    tap.marker_before("witness", "subject").await?;
    stand.publish(&["marker"]).await;
    tap.marker_before("marker", "subject").await
}

async fn a_nacked_message_comes_back(stand: Stand) -> Result<(), String> {
    stand.publish(&["one"]).await;
    let mut tap = stand.consumer().await?;
    nack(tap.next().await?, None).await?;
    tap.all_of(&["one"]).await
}

async fn a_delay_is_a_lower_bound(stand: Stand) -> Result<(), String> {
    let delay = stand.capabilities().delay.max.min(Duration::from_secs(1));
    stand.publish(&["one"]).await;
    let mut tap = stand.consumer().await?;
    let delivery = tap.next().await?;
    let asked = Instant::now();
    nack(delivery, Some(delay)).await?;
    let again = tap.next().await?;
    // From before the question to after the answer: a broker that keeps the bound cannot come out below it.
    let waited = asked.elapsed();
    if waited < delay {
        return Err(format!("`{}` came back after {waited:?}, asked for {delay:?}", name(&again)));
    }
    ack(again).await
}

async fn a_rejected_message_is_parked_with_its_reason(stand: Stand) -> Result<(), String> {
    stand.publish(&["bad"]).await;
    let mut tap = stand.consumer().await?;
    settle(tap.next().await?, rejection()).await?;
    let parked = stand.parked(1).await?;
    same("the number of dead letters", parked.len(), 1)?;
    same("the reason", parked[0].reason.as_str(), RejectReason::Declined.as_str())?;
    same("the dead letter's body", parked[0].message.body.as_deref(), Some(b"bad".as_slice()))
}

async fn a_dropped_delivery_comes_back(stand: Stand) -> Result<(), String> {
    stand.publish(&["one"]).await;
    let mut tap = stand.consumer().await?;
    let delivery = tap.next().await?;
    let mut tap = stand.let_go(tap, vec![delivery]).await?;
    tap.all_of(&["one"]).await
}

async fn settling_the_last_first_and_dying_replays_what_was_open(stand: Stand) -> Result<(), String> {
    stand.publish(&["one", "two", "three"]).await;
    let mut tap = stand.consumer().await?;
    let mut held = tap.several(3).await?;
    let at = held.iter().position(|delivery| is(delivery, "three")).ok_or("`three` did not come")?;
    ack(held.remove(at)).await?;
    drop(held);
    drop(tap);
    // A broker that can only confirm up to a point may replay `three` as well.
    stand.consumer().await?.all_of(&["one", "two"]).await
}

async fn an_extended_lease_keeps_the_message_hidden(stand: Stand) -> Result<(), String> {
    stand.publish(&["subject", "witness"]).await;
    let mut tap = stand.consumer().await?;
    let (subject, witness) = subject_and_witness(&mut tap).await?;
    let by = stand.lease() * 3;
    subject.extend(by).await.map_err(|error| format!("extend failed: {}", chain(&error)))?;
    let mut tap = stand.let_go(tap, vec![witness]).await?;
    tap.marker_before("witness", "subject").await?;
    stand.publish(&["marker"]).await;
    tap.marker_before("marker", "subject").await?;
    ack(subject).await
}

async fn settling_after_the_lease_says_lost_and_changes_nothing(stand: Stand) -> Result<(), String> {
    stand.publish(&["one"]).await;
    let mut tap = stand.consumer().await?;
    let stale = tap.next().await?;
    let current = tap.next().await.map_err(|error| format!("the lease did not end: {error}"))?;
    lost("extend", stale.extend(stand.lease()).await)?;
    lost("settle", stale.settle(Disposition::Ack).await)?;
    let mut tap = stand.let_go(tap, vec![current]).await?;
    tap.all_of(&["one"]).await
}

fn lost(operation: &str, answer: Result<(), SettleError>) -> Result<(), String> {
    match answer {
        Err(SettleError::Lost) => Ok(()),
        other => Err(format!("{operation} after the lease answered {other:?}")),
    }
}

/// Both are held when this returns; without an order either may have come first.
async fn subject_and_witness(tap: &mut Tap) -> Result<(Delivery, Delivery), String> {
    let mut held = tap.several(2).await?;
    let at = held.iter().position(|delivery| is(delivery, "witness")).ok_or("`witness` did not come")?;
    let witness = held.remove(at);
    Ok((held.pop().expect("two were received and one taken"), witness))
}
