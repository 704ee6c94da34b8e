//! What arrives, and how.

use std::num::NonZeroUsize;
use std::time::Duration;

use bytes::Bytes;

use super::{Case, Stage, case, ensure, id, message, settle};
use crate::{Disposition, Message, NackCause};

pub(super) const CASES: &[Case] = &[
    case!(payload_and_headers_arrive_unchanged),
    case!(the_id_is_stable_across_redeliveries),
    case!(at_most_max_are_handed_out),
    case!(a_cancelled_receive_loses_nothing),
];

async fn payload_and_headers_arrive_unchanged(stage: &Stage<'_>) -> Result<(), String> {
    let mut sent = vec![message("plain"), message("binary"), message("empty"), message("null")];
    sent[0] = sent[0].clone().with_header("a", "1").with_header("b", "2").with_header("a", "3");
    sent[0].headers.push("none", None);
    sent[0].headers.push("empty", Some(Bytes::new()));
    sent[0].headers.push("bytes", Some(Bytes::from_static(b"\xff\x00")));
    sent[0].record_key = Some(Bytes::from_static(b"key"));
    sent[1].body = Some(Bytes::from_static(b"\x00\xff\xfe\r\n\"'"));
    sent[2].body = Some(Bytes::new());
    sent[3].body = None;
    stage.harness.publish(&stage.source, sent.clone()).await;
    let mut consumer = stage.subscribe().await?;
    let got = stage.take(&mut *consumer, sent.len()).await?;
    for expected in &sent {
        let found = got.iter().find(|delivery| delivery.message().id == expected.id);
        let found = found.ok_or_else(|| format!("{} did not arrive", expected.id))?.message();
        // Where it came from, and what the protocol adds, is the broker's.
        let content =
            |message: &Message| (message.body.clone(), message.headers.clone(), message.record_key.clone());
        ensure!(content(found) == content(expected), "sent {expected:?}, got {found:?}");
    }
    Ok(())
}

async fn the_id_is_stable_across_redeliveries(stage: &Stage<'_>) -> Result<(), String> {
    stage.publish(&["stable"]).await;
    let mut consumer = stage.subscribe().await?;
    for _ in 0..3 {
        let delivery = stage.next(&mut *consumer).await?;
        ensure!(id(&delivery) == "stable", "its id became {}", id(&delivery));
        settle(delivery, Disposition::Nack { delay: None, cause: NackCause::Tried }).await?;
    }
    Ok(())
}

async fn at_most_max_are_handed_out(stage: &Stage<'_>) -> Result<(), String> {
    stage.publish(&["1", "2", "3", "4", "5", "6", "7"]).await;
    let mut consumer = stage.subscribe().await?;
    let three = NonZeroUsize::new(3).ok_or("three is not zero")?;
    let mut held = Vec::new();
    while held.len() < 7 {
        let got = stage.up_to(&mut *consumer, three).await?;
        ensure!((1..=3).contains(&got.len()), "asked for at most 3, got {}", got.len());
        held.extend(got);
    }
    Ok(())
}

async fn a_cancelled_receive_loses_nothing(stage: &Stage<'_>) -> Result<(), String> {
    let mut consumer = stage.subscribe().await?;
    let ids: Vec<_> = (0..20).map(|n| format!("c{n}")).collect();
    let mut held = Vec::new();
    for id in &ids {
        stage.publish(&[id]).await;
        // Cancelled when it may just have got hold of the message.
        let receive = consumer.receive(NonZeroUsize::MIN);
        if let Ok(got) = tokio::time::timeout(Duration::ZERO, receive).await {
            held.extend(got.map_err(|error| super::told(&error))?);
        }
    }
    while held.len() < ids.len() {
        held.push(
            stage
                .next(&mut *consumer)
                .await
                .map_err(|error| format!("{error}, {} of {} messages arrived", held.len(), ids.len()))?,
        );
    }
    let mut got: Vec<_> = held.iter().map(id).collect();
    let mut expected = ids;
    got.sort();
    expected.sort();
    ensure!(got == expected, "got {got:?}");
    Ok(())
}
