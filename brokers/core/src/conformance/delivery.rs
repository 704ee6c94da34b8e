//! Messages arrive whole, under one name, and only as many as were asked for.

use std::collections::BTreeSet;
use std::future::{Future, poll_fn};
use std::num::NonZeroUsize;
use std::pin::pin;
use std::task::Poll;

use bytes::Bytes;
use tokio::task::yield_now;
use tokio::time::timeout;

use crate::{ErrorKind, Header, Message};

use super::stand::{Stand, ack, chain, nack, name, names, same};
use super::{Carried, Case, Need, case};

pub(super) const CASES: &[Case] = &[
    case!(a_text_body_arrives_unchanged),
    case!(a_binary_body_arrives_unchanged, Need::Carries(Carried::BinaryBody)),
    case!(an_empty_body_arrives_empty, Need::Carries(Carried::EmptyBody)),
    case!(a_missing_body_arrives_missing_and_not_empty, Need::Carries(Carried::NullBody)),
    case!(headers_arrive_unchanged_and_in_order, Need::Carries(Carried::Headers)),
    case!(repeated_headers_arrive_in_order, Need::Carries(Carried::RepeatedHeaders)),
    case!(a_binary_header_arrives_unchanged, Need::Carries(Carried::BinaryHeaders)),
    case!(a_null_header_arrives_null_and_not_empty, Need::Carries(Carried::NullHeaders)),
    case!(a_record_key_arrives_unchanged, Need::Carries(Carried::RecordKey)),
    case!(the_id_stays_the_same_on_redelivery),
    case!(a_position_names_one_message_for_good, Need::StablePosition),
    case!(receive_hands_out_at_most_max),
    case!(receive_waits_for_a_message_instead_of_answering_with_none),
    case!(a_cancelled_receive_loses_nothing),
    case!(a_finite_source_ends_only_when_everything_is_settled, Need::Finite),
];

async fn a_text_body_arrives_unchanged(stand: Stand) -> Result<(), String> {
    let text = "{\"amount\": 10.50, \"name\": \"Zoë\", \"n\": 12345678901234567890}\r\n\t ";
    body_arrives(stand, Some(Bytes::from_static(text.as_bytes()))).await
}

async fn a_binary_body_arrives_unchanged(stand: Stand) -> Result<(), String> {
    body_arrives(stand, Some((0..=255_u8).chain([0, 0xff, 0xfe]).collect())).await
}

async fn an_empty_body_arrives_empty(stand: Stand) -> Result<(), String> {
    body_arrives(stand, Some(Bytes::new())).await
}

async fn a_missing_body_arrives_missing_and_not_empty(stand: Stand) -> Result<(), String> {
    body_arrives(stand, None).await
}

async fn body_arrives(stand: Stand, body: Option<Bytes>) -> Result<(), String> {
    let mut message = Message::new("1", Bytes::new());
    message.body = body.clone();
    let found = round_trip(&stand, message).await?;
    same("the body", found.body, body)
}

async fn headers_arrive_unchanged_and_in_order(stand: Stand) -> Result<(), String> {
    let sent = [("zeta", "1"), ("Alpha", "two words"), ("traceparent", "00-aa-bb-01")];
    headers_arrive(stand, sent.map(|(name, value)| header(name, Some(value.as_bytes()))).to_vec()).await
}

async fn repeated_headers_arrive_in_order(stand: Stand) -> Result<(), String> {
    let sent = [("tag", "b"), ("other", "x"), ("tag", "a"), ("tag", "b")];
    headers_arrive(stand, sent.map(|(name, value)| header(name, Some(value.as_bytes()))).to_vec()).await
}

async fn a_binary_header_arrives_unchanged(stand: Stand) -> Result<(), String> {
    headers_arrive(stand, vec![header("bytes", Some(&[0, 0xff, 0xc3, 0x28, b'a']))]).await
}

async fn a_null_header_arrives_null_and_not_empty(stand: Stand) -> Result<(), String> {
    headers_arrive(stand, vec![header("null", None), header("empty", Some(b""))]).await
}

/// The broker may add headers of its own; those that were sent must be there, in order.
async fn headers_arrive(stand: Stand, sent: Vec<Header>) -> Result<(), String> {
    let mut message = Message::new("1", "body");
    message.headers = sent.iter().cloned().collect();
    let found = round_trip(&stand, message).await?;
    let ours = found.headers.iter().filter(|found| sent.iter().any(|sent| sent.name == found.name));
    same("the headers", ours.cloned().collect(), sent.clone())
}

async fn a_record_key_arrives_unchanged(stand: Stand) -> Result<(), String> {
    let found = round_trip(&stand, Message::new("1", "body").with_record_key("order-4711")).await?;
    same("the record key", found.record_key, Some(Bytes::from_static(b"order-4711")))
}

async fn round_trip(stand: &Stand, message: Message) -> Result<Message, String> {
    stand.publish_message(message).await;
    // The consumer stays until its delivery is settled: what is open when it goes may be lost.
    let mut tap = stand.consumer().await?;
    let delivery = tap.next().await?;
    let found = delivery.message().clone();
    ack(delivery).await?;
    match &found.fault {
        None => Ok(found),
        Some(fault) => Err(format!("a sound message has a fault: {fault:?}")),
    }
}

async fn the_id_stays_the_same_on_redelivery(stand: Stand) -> Result<(), String> {
    stand.publish(&["one"]).await;
    let mut tap = stand.consumer().await?;
    let first = tap.next().await?;
    let id = first.message().id.clone();
    let mut tap = stand.let_go(tap, vec![first]).await?;
    let again = tap.next().await?;
    same("the id", again.message().id.clone(), id)?;
    ack(again).await
}

async fn a_position_names_one_message_for_good(stand: Stand) -> Result<(), String> {
    stand.publish(&["one", "two"]).await;
    let mut tap = stand.consumer().await?;
    let first = tap.several(2).await?;
    let place = |delivery: &crate::Delivery| (name(delivery), delivery.message().origin.clone());
    let places: Vec<_> = first.iter().map(place).collect();
    if places.iter().any(|(_, origin)| origin.position.is_none()) || places[0].1 == places[1].1 {
        return Err(format!("two messages need two positions: {places:?}"));
    }
    let mut tap = stand.let_go(tap, first).await?;
    for delivery in tap.several(2).await? {
        let again = place(&delivery);
        if !places.contains(&again) {
            return Err(format!("delivered again as {again:?}, before as {places:?}"));
        }
        ack(delivery).await?;
    }
    Ok(())
}

async fn receive_hands_out_at_most_max(stand: Stand) -> Result<(), String> {
    const SENT: usize = 9;
    let sent: Vec<_> = (0..SENT).map(|n| format!("message {n}")).collect();
    stand.publish(&sent.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let mut tap = stand.consumer().await?;
    let mut came = 0;
    for max in [1, 2, 3, 1, 5, 4, 2, 2, 2].map(|max| NonZeroUsize::new(max).expect("none of them is zero")) {
        if came >= SENT {
            break;
        }
        let answer = timeout(stand.patience(), tap.consumer.receive(max)).await;
        let deliveries = answer.map_err(|_| "no answer in time")?.map_err(|error| chain(&error))?;
        if deliveries.len() > max.get() {
            return Err(format!("{} messages where at most {max} were asked for", deliveries.len()));
        }
        for delivery in deliveries {
            came += 1;
            ack(delivery).await?;
        }
    }
    Ok(())
}

async fn receive_waits_for_a_message_instead_of_answering_with_none(stand: Stand) -> Result<(), String> {
    let mut tap = stand.consumer().await?;
    let max = NonZeroUsize::new(5).expect("5 is not zero");
    // The first branch is polled first: the call is under way before there is a message.
    let (answer, ()) =
        tokio::join!(timeout(stand.patience(), tap.consumer.receive(max)), stand.publish(&["late"]));
    let deliveries = answer.map_err(|_| "no answer in time")?.map_err(|error| chain(&error))?;
    same("what came", names(&deliveries), vec!["late".to_owned()])?;
    for delivery in deliveries {
        ack(delivery).await?;
    }
    Ok(())
}

async fn a_cancelled_receive_loses_nothing(stand: Stand) -> Result<(), String> {
    let sent: Vec<_> = (0..20).map(|n| format!("message {n}")).collect();
    let mut missing: BTreeSet<String> = sent.iter().cloned().collect();
    stand.publish(&sent.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let mut tap = stand.consumer().await?;
    let max = NonZeroUsize::new(3).expect("3 is not zero");
    for round in 0..200 {
        // Cancelled after 1 poll, after 2 polls …: at every point where the adapter waits.
        let polls = 1 + round % 12;
        if let Some(answer) = poll_at_most(polls, tap.consumer.receive(max)).await {
            for delivery in answer.map_err(|error| chain(&error))? {
                missing.remove(&name(&delivery));
                ack(delivery).await?;
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
    }
    let missing: Vec<_> = missing.iter().map(String::as_str).collect();
    tap.all_of(&missing).await
}

/// Polls a future that often, with a pause for other tasks after each, then drops it.
async fn poll_at_most<F: Future>(polls: usize, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    for _ in 0..polls {
        let polled = poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await;
        if let Poll::Ready(output) = polled {
            return Some(output);
        }
        yield_now().await;
    }
    None
}

async fn a_finite_source_ends_only_when_everything_is_settled(stand: Stand) -> Result<(), String> {
    stand.publish(&["one", "two"]).await;
    stand.harness.finish(&stand.source).await;
    let mut tap = stand.consumer().await?;
    let mut held = tap.several(2).await?;
    let last = held.pop().expect("two messages were received");
    for delivery in held {
        ack(delivery).await?;
    }
    let early = poll_at_most(50, tap.consumer.receive(NonZeroUsize::MIN)).await;
    // No messages is an answer that another case objects to.
    if early.as_ref().is_some_and(|answer| !matches!(answer, Ok(none) if none.is_empty())) {
        return Err(format!("an answer while one message is open: {early:?}"));
    }
    nack(last, None).await?;
    ack(tap.next().await?).await?;
    match timeout(stand.patience(), tap.consumer.receive(NonZeroUsize::MIN)).await {
        Ok(Err(error)) => same("the end", error.kind(), ErrorKind::Ended),
        Ok(Ok(deliveries)) => Err(format!("{:?} came after the end", names(&deliveries))),
        Err(_) => Err("no end in time".into()),
    }
}

fn header(name: &'static str, value: Option<&[u8]>) -> Header {
    Header { name: Bytes::from_static(name.as_bytes()), value: value.map(Bytes::copy_from_slice) }
}
