//! Settling: what comes again, when, and what is kept aside.

mod common;

use std::num::NonZeroUsize;
use std::time::Duration;

use ackord_broker::{Attempt, Broker, Disposition, Fault, RejectReason, Rejection, SettleError};
use ackord_file::{FileBroker, FileConfig, parse_line};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use common::{Place, ack_all, assert_ended, lines, nack, one, reject, several};
use tokio::time::Instant;

fn config() -> FileConfig {
    FileConfig::default()
}

#[tokio::test(start_paused = true)]
async fn a_nacked_message_comes_again_after_its_delay() {
    let place = Place::with(lines(1));
    let mut consumer = place.open(config()).await;
    let delivery = one(&mut consumer).await;
    let before = Instant::now();
    delivery.settle(nack(Some(Duration::from_secs(3600)))).await.unwrap();
    let again = one(&mut consumer).await;
    assert!(before.elapsed() >= Duration::from_secs(3600));
    assert_eq!(again.attempt(), Attempt::Number(2));
    assert_eq!(again.message().id.as_str(), "0");
}

#[tokio::test]
async fn a_message_that_is_nacked_without_delay_or_dropped_comes_again_at_once() {
    let place = Place::with(lines(1));
    let mut consumer = place.open(config()).await;
    one(&mut consumer).await.settle(nack(None)).await.unwrap();
    drop(one(&mut consumer).await);
    let third = one(&mut consumer).await;
    assert_eq!(third.attempt(), Attempt::Number(3));
    third.settle(Disposition::Ack).await.unwrap();
    assert_ended(&mut consumer).await;
}

#[tokio::test]
async fn the_source_ends_only_after_the_last_message_is_settled() {
    let place = Place::with(lines(2));
    let mut consumer = place.open(config()).await;
    let [first, second] = several(&mut consumer, 2).await.try_into().unwrap();
    second.settle(Disposition::Ack).await.unwrap();
    {
        let mut end = consumer.receive(NonZeroUsize::MIN);
        tokio::select! {
            biased;
            _ = &mut end => panic!("a message is open"),
            () = tokio::task::yield_now() => {}
        }
        first.settle(Disposition::Ack).await.unwrap();
        assert_eq!(end.await.unwrap_err().kind(), ackord_broker::ErrorKind::Ended);
    }
}

#[tokio::test]
async fn a_receive_that_is_cancelled_loses_nothing() {
    let place = Place::with(lines(500));
    let mut consumer = place.open(config()).await;
    let mut ids = Vec::new();
    while ids.len() < 500 {
        tokio::select! {
            biased;
            deliveries = consumer.receive(NonZeroUsize::MIN) => for delivery in deliveries.unwrap() {
                ids.push(delivery.message().id.to_string());
                delivery.settle(Disposition::Ack).await.unwrap();
            },
            () = tokio::task::yield_now() => {}
        }
    }
    assert_eq!(ids, (0..500).map(|id| id.to_string()).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_drained_consumer_settles_what_is_open_and_leaves_the_rest_to_the_next() {
    let place = Place::with(lines(50));
    let mut consumer = place.open(config()).await;
    let [first, second, third] = several(&mut consumer, 3).await.try_into().unwrap();
    consumer.drain().await.unwrap();
    consumer.drain().await.unwrap();
    first.settle(Disposition::Ack).await.unwrap();
    second.settle(nack(None)).await.unwrap();
    third.extend(Duration::from_secs(1)).await.unwrap();
    drop(third);
    {
        let mut more = consumer.receive(NonZeroUsize::MIN);
        tokio::select! {
            biased;
            _ = &mut more => panic!("nothing is handed out after a drain"),
            () = tokio::task::yield_now() => {}
        }
    }
    drop(consumer);
    let rest = ack_all(&mut place.open(config()).await).await;
    assert_eq!(rest, (1..50).map(|id| id.to_string()).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_delivery_that_outlives_its_consumer_is_lost() {
    let place = Place::with(lines(3));
    let mut consumer = place.open(config()).await;
    let [a, b, c] = several(&mut consumer, 3).await.try_into().unwrap();
    drop(consumer);
    let mut next = place.open(config()).await;
    assert!(matches!(a.extend(Duration::from_secs(1)).await, Err(SettleError::Lost)));
    assert!(matches!(a.settle(Disposition::Ack).await, Err(SettleError::Lost)));
    assert!(matches!(b.settle(nack(None)).await, Err(SettleError::Lost)));
    assert!(matches!(c.settle(reject("no")).await, Err(SettleError::Lost)));
    assert_eq!(ack_all(&mut next).await, ["0", "1", "2"]);
    assert!(place.dead_letters().is_empty());
}

#[tokio::test]
async fn a_dead_letter_keeps_the_message_byte_for_byte_with_the_reason() {
    let line = r#"{"id":"a","key":{"base64":"/w=="},"headers":[["h","1"],["h",null]],"body":{"x": 1.50}}"#;
    let place = Place::with(line);
    let mut consumer = place.open(config()).await;
    let delivery = one(&mut consumer).await;
    let message = delivery.shared_message();
    delivery.settle(reject("five tries")).await.unwrap();
    assert_ended(&mut consumer).await;

    let written = std::fs::read(place.beside(".dlq.jsonl")).unwrap();
    assert_eq!(parse_line(written.strip_suffix(b"\n").unwrap()).unwrap(), *message);
    let letter = &place.dead_letters()[0]["dead_letter"];
    assert_eq!(*letter, serde_json::json!({"reason": "exhausted", "detail": "five tries", "flow": "orders"}));
}

#[tokio::test]
async fn a_dead_letter_that_is_read_again_has_its_reason_replaced() {
    let place = Place::with(lines(1));
    one(&mut place.open(config()).await).await.settle(reject("first")).await.unwrap();
    let again = Place::with(std::fs::read(place.beside(".dlq.jsonl")).unwrap());
    one(&mut again.open(config()).await).await.settle(reject("second")).await.unwrap();
    let letters = again.dead_letters();
    assert_eq!((letters.len(), &letters[0]["dead_letter"]["detail"]), (1, &"second".into()));
    assert_eq!(letters[0]["body"], serde_json::json!({"n": 0}));
}

#[tokio::test]
async fn the_subscription_says_first_where_dead_letters_go() {
    let place = Place::with(lines(1));
    let mut subscription = place.subscription();
    subscription.dead_letter = Some(place.beside(".theirs").to_str().unwrap().into());
    let broker = FileBroker::new(FileConfig { dead_letter: Some(place.beside(".ours")), ..config() });
    let mut consumer = broker.subscribe(&subscription).await.unwrap();
    one(&mut consumer).await.settle(reject("no")).await.unwrap();
    assert!(place.beside(".theirs").exists() && !place.beside(".ours").exists());
}

#[tokio::test(start_paused = true)]
async fn a_dead_letter_that_cannot_be_written_leaves_the_message_unsettled() {
    let place = Place::with(lines(1));
    std::fs::create_dir(place.beside(".dlq.jsonl")).unwrap();
    let mut consumer = place.open(config()).await;
    let before = Instant::now();
    let error = one(&mut consumer).await.settle(reject("no")).await.unwrap_err();
    let SettleError::Failed(error) = error else { panic!("{error:?}") };
    let reason = std::error::Error::source(&error).unwrap().to_string();
    assert!(reason.contains(".dlq.jsonl"), "{reason}");

    let again = one(&mut consumer).await;
    assert_eq!(again.attempt(), Attempt::Number(2));
    assert!(before.elapsed() >= Duration::from_secs(1), "it does not come again at once");
    std::fs::remove_dir(place.beside(".dlq.jsonl")).unwrap();
    again.settle(reject("no")).await.unwrap();
    assert_eq!(place.dead_letters().len(), 1);
    assert_ended(&mut consumer).await;
}

#[tokio::test]
async fn a_dead_letter_begins_on_a_line_of_its_own() {
    let place = Place::with(lines(1));
    std::fs::write(place.beside(".dlq.jsonl"), "{\"id\":\"torn").unwrap();
    one(&mut place.open(config()).await).await.settle(reject("no")).await.unwrap();
    let text = std::fs::read_to_string(place.beside(".dlq.jsonl")).unwrap();
    assert!(text.starts_with("{\"id\":\"torn\n{\"id\":\"0\""), "{text}");
}

#[tokio::test]
async fn a_line_that_is_no_message_is_kept_as_it_stands() {
    let place = Place::with(b"{\"ident\":1}\n\xff\xfe\n{\"id\":\"good\"}\n");
    let mut consumer = place.open(config()).await;
    let [unknown, binary, good] = several(&mut consumer, 3).await.try_into().unwrap();
    let Some(Fault::Undecodable(text)) = &unknown.message().fault else { panic!("{unknown:?}") };
    assert!(text.contains("`ident`"), "{text}");
    assert_eq!(good.message().fault, None);
    for delivery in [unknown, binary] {
        delivery.settle(reject("no message")).await.unwrap();
    }
    let letters = place.dead_letters();
    assert_eq!(letters[0]["body_text"], "{\"ident\":1}");
    assert_eq!(letters[0]["id"], "in.jsonl@0");
    assert_eq!(letters[1]["body_base64"], "//4=");
    assert_eq!(letters[1]["origin"]["position"], "12");
}

#[tokio::test]
async fn a_line_of_ten_megabytes_lands_whole_in_the_dead_letter_file() {
    let long: Vec<u8> = (0..10_000_001_u32).map(|n| b'!' + (n % 90) as u8).collect();
    let mut content = lines(1).into_bytes();
    content.extend_from_slice(&long);
    content.extend_from_slice(b"\r\n");
    content.extend_from_slice(lines(1).as_bytes());
    let place = Place::with(content);
    let mut consumer = place.open(config()).await;
    let [before, delivery, after] = several(&mut consumer, 3).await.try_into().unwrap();
    let limit = 1024 * 1024;
    assert_eq!(delivery.message().fault, Some(Fault::Oversize { size: 10_000_001, limit }));
    assert_eq!(delivery.message().body, None);
    let rejection = Rejection::new(RejectReason::Oversize, "too long");
    delivery.settle(Disposition::Reject(Box::new(rejection))).await.unwrap();
    let letter = &place.dead_letters()[0];
    assert!(STANDARD.decode(letter["body_base64"].as_str().unwrap()).unwrap() == long);
    assert_eq!(letter["dead_letter"]["reason"], "oversize");
    before.settle(Disposition::Ack).await.unwrap();
    after.settle(Disposition::Ack).await.unwrap();
    assert_ended(&mut consumer).await;
}
