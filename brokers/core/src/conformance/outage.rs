//! What breaks between worker and broker loses nothing, and errors say whether trying again can help.

use std::num::NonZeroUsize;
use std::time::Duration;

use tokio::time::timeout;

use crate::{Delivery, Disposition, ErrorKind, SettleError};

use super::stand::{Stand, ack, chain, failure_of, is, name, rejection, same, settle};
use super::{Case, Disruption, Misuse, Need, case};

pub(super) const CASES: &[Case] = &[
    case!(a_cut_connection_loses_nothing, Need::Disruption(Disruption::CutConnection)),
    case!(a_server_restart_loses_nothing, Need::Disruption(Disruption::RestartServer)),
    case!(a_frozen_server_loses_nothing, Need::Disruption(Disruption::Freeze)),
    case!(a_rebalance_loses_nothing, Need::Disruption(Disruption::Rebalance)),
    case!(a_wrong_password_is_refused_for_good, Need::Misuse(Misuse::WrongPassword)),
    case!(a_refused_connection_may_work_later, Need::Misuse(Misuse::RefusedConnection)),
    case!(two_consumers_never_hold_one_message_at_once, Need::Sharing),
    case!(
        a_missing_dead_letter_place_never_acknowledges,
        Need::DeadLetters,
        Need::Disruption(Disruption::LoseDeadLetters),
    ),
];

async fn a_cut_connection_loses_nothing(stand: Stand) -> Result<(), String> {
    loses_nothing(stand, Disruption::CutConnection).await
}

async fn a_server_restart_loses_nothing(stand: Stand) -> Result<(), String> {
    loses_nothing(stand, Disruption::RestartServer).await
}

async fn a_frozen_server_loses_nothing(stand: Stand) -> Result<(), String> {
    loses_nothing(stand, Disruption::Freeze).await
}

async fn a_rebalance_loses_nothing(stand: Stand) -> Result<(), String> {
    loses_nothing(stand, Disruption::Rebalance).await
}

async fn loses_nothing(stand: Stand, how: Disruption) -> Result<(), String> {
    const SENT: [&str; 6] = ["one", "two", "three", "four", "five", "six"];
    stand.publish(&SENT).await;
    let mut tap = stand.consumer().await?;
    let mut held = tap.several(3).await?;
    // Acknowledged before, settled during, held throughout, not yet received: which one is which is the broker's choice.
    let demanded: Vec<_> = SENT.into_iter().filter(|name| !held[..2].iter().any(|d| is(d, name))).collect();
    ack(held.remove(0)).await?;
    stand.disrupt(how).await?;
    // It may work, fail, or hang until the restart. After a failure the broker may have settled it all the same, so
    // nothing is demanded of this message.
    let _ = timeout(PATIENCE_DURING, held.remove(0).settle(Disposition::Ack)).await;
    // As a worker would: what it holds is dropped while the broker is still away.
    drop(held);
    drop(tap);
    stand.harness.restore(&stand.source, how).await;
    let mut tap = stand.consumer().await?;
    tap.all_of(&demanded).await.map_err(|error| format!("after {how:?}: {error}"))
}

async fn a_wrong_password_is_refused_for_good(stand: Stand) -> Result<(), String> {
    misuse_is(stand, Misuse::WrongPassword, ErrorKind::Refused).await
}

async fn a_refused_connection_may_work_later(stand: Stand) -> Result<(), String> {
    misuse_is(stand, Misuse::RefusedConnection, ErrorKind::Unavailable).await
}

async fn misuse_is(stand: Stand, how: Misuse, expected: ErrorKind) -> Result<(), String> {
    let broker = stand.harness.misconfigured(how).ok_or("the harness took its adapter back")?;
    let kind = failure_of(&*broker, &stand.source, stand.harness.within()).await?;
    same("the kind of error", kind, expected)
}

async fn two_consumers_never_hold_one_message_at_once(stand: Stand) -> Result<(), String> {
    const SENT: usize = 20;
    // Both are there before the first message: joining may move what the other one has.
    let mut left = stand.consumer().await?;
    let mut right = stand.consumer().await?;
    let sent: Vec<_> = (0..SENT).map(|n| format!("message {n}")).collect();
    stand.publish(&sent.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let mut held: Vec<Delivery> = Vec::new();
    while held.len() < SENT {
        let next = async {
            tokio::select! {
                answer = left.consumer.receive(NonZeroUsize::MIN) => answer,
                answer = right.consumer.receive(NonZeroUsize::MIN) => answer,
            }
        };
        let answer = timeout(stand.patience(), next).await;
        let came = answer.map_err(|_| format!("only {} came", held.len()))?.map_err(|error| chain(&error))?;
        for delivery in came {
            // A second delivery is fine when the first no longer counts.
            if let Some(at) = held.iter().position(|other| is(other, &name(&delivery))) {
                let twice = name(&delivery);
                if held.swap_remove(at).settle(Disposition::Ack).await.is_ok() {
                    return Err(format!("`{twice}` was held twice"));
                }
            }
            held.push(delivery);
        }
    }
    for delivery in held {
        ack(delivery).await?;
    }
    Ok(())
}

async fn a_missing_dead_letter_place_never_acknowledges(stand: Stand) -> Result<(), String> {
    stand.publish(&["bad"]).await;
    let mut tap = stand.consumer().await?;
    let bad = tap.next().await?;
    stand.disrupt(Disruption::LoseDeadLetters).await?;
    let answer = timeout(stand.patience(), bad.settle(rejection())).await;
    stand.harness.restore(&stand.source, Disruption::LoseDeadLetters).await;
    match answer {
        Ok(Err(SettleError::Failed(_))) => {}
        Ok(other) => return Err(format!("rejecting into nothing answered {other:?}")),
        Err(_) => return Err("rejecting into nothing did not answer".into()),
    }
    let mut tap = stand.let_go(tap, Vec::new()).await?;
    settle(tap.next().await?, rejection()).await?;
    stand.parked(1).await.map(drop)
}

/// How long to wait for an answer from a broker that is away. Whether one comes is not judged.
const PATIENCE_DURING: Duration = Duration::from_secs(5);
