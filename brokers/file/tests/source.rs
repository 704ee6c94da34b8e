//! Reading a file: lines, their offsets, and progress from one consumer to the next.

mod common;

use std::fs::OpenOptions;
use std::io::Write;
use std::num::NonZeroUsize;

use ackord_broker::{Attempt, Disposition, ErrorKind, Fault};
use ackord_file::{FileConfig, LineFormat};
use common::{Place, ack_all, assert_ended, lines, one, reject, several};

fn config() -> FileConfig {
    FileConfig::default()
}

#[tokio::test]
async fn messages_come_in_the_order_of_their_lines_and_then_the_source_ends() {
    let place = Place::with(lines(1000));
    let mut consumer = place.open(config()).await;
    let expected: Vec<_> = (0..1000).map(|id| id.to_string()).collect();
    assert_eq!(ack_all(&mut consumer).await, expected);
    assert_ended(&mut consumer).await;
}

#[tokio::test]
async fn a_message_says_where_it_came_from() {
    let place = Place::with("{\"id\":\"a\"}\n{\"body\":1}\n");
    let mut consumer = place.open(config()).await;
    let second = several(&mut consumer, 2).await.pop().unwrap();
    assert_eq!(second.message().id.as_str(), "in.jsonl@11");
    assert_eq!(second.message().origin.to_string(), format!("file/{}@11", place.source.display()));
    assert_eq!(second.attempt(), Attempt::Number(1));
}

#[tokio::test]
async fn crlf_and_a_byte_order_mark_and_empty_lines_are_no_part_of_messages() {
    let place = Place::with("\u{feff}{\"id\":\"a\"}\r\n\r\n  \n\n{\"id\":\"b\"}\r\n\n");
    assert_eq!(ack_all(&mut place.open(config()).await).await, ["a", "b"]);
    let config = FileConfig { format: LineFormat::Body, progress: Some(place.beside(".p")), ..config() };
    let mut consumer = place.open(config).await;
    let bodies: Vec<_> =
        several(&mut consumer, 3).await.iter().map(|d| d.message().body.clone().unwrap()).collect();
    assert_eq!(bodies, ["{\"id\":\"a\"}", "  ", "{\"id\":\"b\"}"]);
}

#[tokio::test]
async fn a_last_line_without_a_newline_is_a_line() {
    let place = Place::with("{\"id\":\"a\"}\n{\"id\":\"b\"}");
    assert_eq!(ack_all(&mut place.open(config()).await).await, ["a", "b"]);
}

#[tokio::test]
async fn an_empty_file_ends_at_once() {
    let place = Place::with("");
    assert_ended(&mut place.open(config()).await).await;
}

#[tokio::test]
async fn lines_with_one_id_are_messages_of_their_own() {
    let place = Place::with("{\"id\":\"a\",\"body\":1}\n{\"id\":\"a\",\"body\":2}\n");
    let mut consumer = place.open(config()).await;
    let [first, second] = several(&mut consumer, 2).await.try_into().unwrap();
    first.settle(Disposition::Ack).await.unwrap();
    assert_eq!(second.message().body.as_deref(), Some(&b"2"[..]));
    drop((second, consumer));
    assert_eq!(one(&mut place.open(config()).await).await.message().body.as_deref(), Some(&b"2"[..]));
}

#[tokio::test]
async fn the_next_consumer_goes_on_with_what_was_not_settled() {
    let place = Place::with(lines(6));
    let mut consumer = place.open(config()).await;
    for (index, delivery) in several(&mut consumer, 5).await.into_iter().enumerate() {
        if index != 1 && index != 3 {
            delivery.settle(Disposition::Ack).await.unwrap();
        }
    }
    drop(consumer);
    assert_eq!(ack_all(&mut place.open(config()).await).await, ["1", "3", "5"]);
    assert_ended(&mut place.open(config()).await).await;
}

#[tokio::test]
async fn a_settled_line_is_found_settled_behind_empty_lines() {
    let place = Place::with("{\"id\":\"a\"}\n\n\n{\"id\":\"b\"}\n\n{\"id\":\"c\"}\n");
    let mut consumer = place.open(config()).await;
    let [_a, b, _c] = several(&mut consumer, 3).await.try_into().unwrap();
    b.settle(Disposition::Ack).await.unwrap();
    drop(consumer);
    assert_eq!(ack_all(&mut place.open(config()).await).await, ["a", "c"]);
}

#[tokio::test]
async fn a_torn_journal_costs_one_replay() {
    let place = Place::with(lines(3));
    let mut consumer = place.open(config()).await;
    let [_, second, third] = several(&mut consumer, 3).await.try_into().unwrap();
    second.settle(Disposition::Ack).await.unwrap();
    third.settle(Disposition::Ack).await.unwrap();
    drop(consumer);
    let mut journal = std::fs::read(place.beside(".progress")).unwrap();
    journal.truncate(journal.len() - 3);
    std::fs::write(place.beside(".progress"), journal).unwrap();
    assert_eq!(ack_all(&mut place.open(config()).await).await, ["0", "2"]);
}

#[tokio::test]
async fn a_file_that_grew_is_read_on() {
    let place = Place::with(lines(2));
    assert_eq!(ack_all(&mut place.open(config()).await).await.len(), 2);
    OpenOptions::new().append(true).open(&place.source).unwrap().write_all(b"{\"id\":\"new\"}\n").unwrap();
    assert_eq!(ack_all(&mut place.open(config()).await).await, ["new"]);
}

#[tokio::test]
async fn another_file_under_the_same_name_is_refused() {
    let place = Place::with(lines(5));
    ack_all(&mut place.open(config()).await).await;
    let progress = place.beside(".progress");
    for other in [lines(2), lines(5).replace("\"0\"", "\"x\"")] {
        std::fs::write(&place.source, other).unwrap();
        let text = place.refusal(config()).await;
        assert!(text.contains("another file") && text.contains(progress.to_str().unwrap()), "{text}");
    }
    std::fs::remove_file(progress).unwrap();
    assert_eq!(ack_all(&mut place.open(config()).await).await.len(), 5);
}

#[tokio::test]
async fn another_file_is_recognised_also_when_the_first_was_empty_at_first() {
    let place = Place::with("");
    let mut consumer = place.open(FileConfig { follow: true, ..config() }).await;
    std::fs::write(&place.source, lines(1)).unwrap();
    one(&mut consumer).await.settle(Disposition::Ack).await.unwrap();
    drop(consumer);
    std::fs::write(&place.source, "{\"id\":\"quite another file\"}\n{\"id\":\"b\"}\n").unwrap();
    assert!(place.refusal(config()).await.contains("another file"));
}

#[tokio::test]
async fn a_second_consumer_is_refused_and_told_of_the_lock() {
    let place = Place::with(lines(1));
    let first = place.open(config()).await;
    let text = place.refusal(config()).await;
    assert!(text.contains(place.beside(".progress.lock").to_str().unwrap()), "{text}");
    drop(first);
    assert_eq!(ack_all(&mut place.open(config()).await).await, ["0"]);
}

#[tokio::test]
async fn what_cannot_be_opened_is_refused_with_its_path() {
    let place = Place::with("");
    std::fs::remove_file(&place.source).unwrap();
    assert!(place.refusal(config()).await.contains("check the path"));
    std::fs::create_dir(&place.source).unwrap();
    assert!(place.refusal(config()).await.contains("in.jsonl is a directory"));
    std::fs::remove_dir(&place.source).unwrap();
    std::fs::write(&place.source, "").unwrap();
    let progress = place.dir.path().join("missing/progress");
    let text = place.refusal(FileConfig { progress: Some(progress.clone()), ..config() }).await;
    assert!(text.contains(progress.to_str().unwrap()) && text.contains("set `progress`"), "{text}");
    let text = place.refusal(FileConfig { dead_letter: Some(place.source.clone()), ..config() }).await;
    assert!(text.contains("is the source itself"), "{text}");
}

#[tokio::test]
async fn a_file_that_is_no_journal_is_not_written_over() {
    let place = Place::with(lines(1));
    std::fs::write(place.beside(".progress"), "my notes\n").unwrap();
    assert!(place.refusal(config()).await.contains("is not a progress file"));
    assert_eq!(std::fs::read_to_string(place.beside(".progress")).unwrap(), "my notes\n");
}

#[tokio::test]
async fn a_followed_file_hands_out_whole_lines_as_they_come() {
    let place = Place::with("{\"id\":\"a\"}\n{\"id\":");
    let mut consumer = place.open(FileConfig { follow: true, ..config() }).await;
    let a = one(&mut consumer).await;
    assert_eq!(a.message().id.as_str(), "a");
    a.settle(Disposition::Ack).await.unwrap();
    OpenOptions::new().append(true).open(&place.source).unwrap().write_all(b"\"b\"}\n").unwrap();
    let b = one(&mut consumer).await;
    assert_eq!((b.message().id.as_str(), &b.message().fault), ("b", &None));
}

#[tokio::test]
async fn a_followed_file_that_is_truncated_is_an_error() {
    let place = Place::with(lines(3));
    let mut consumer = place.open(FileConfig { follow: true, ..config() }).await;
    let open = several(&mut consumer, 3).await;
    std::fs::write(&place.source, "").unwrap();
    let error = consumer.receive(NonZeroUsize::MIN).await.expect_err("the file became shorter");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    drop(open);
}

#[tokio::test]
async fn lines_up_to_the_limit_are_messages_wherever_the_reads_fall() {
    let limit = 300_000;
    let longest = "x".repeat(limit);
    let place =
        Place::with(format!("\u{feff}{longest}\r\n{longest}y\n{longest}\n{longest}{longest}\r\nend\n"));
    let config =
        FileConfig { max_line: NonZeroUsize::new(limit).unwrap(), format: LineFormat::Body, ..config() };
    let mut consumer = place.open(config).await;
    let found: Vec<_> = several(&mut consumer, 5)
        .await
        .iter()
        .map(|d| match &d.message().fault {
            Some(Fault::Oversize { size, limit: 300_000 }) => (*size, false),
            other => {
                assert_eq!(*other, None);
                (d.message().body.as_ref().unwrap().len() as u64, true)
            }
        })
        .collect();
    assert_eq!(found, [(300_000, true), (300_001, false), (300_000, true), (600_000, false), (3, true)]);
}

#[tokio::test]
async fn a_line_that_is_settled_at_the_end_of_a_growing_file_is_not_read_twice() {
    let place = Place::with("{\"id\":\"a\"}\n{\"id\":\"b\"}");
    let mut consumer = place.open(config()).await;
    several(&mut consumer, 2).await.pop().unwrap().settle(reject("no")).await.unwrap();
    drop(consumer);
    OpenOptions::new().append(true).open(&place.source).unwrap().write_all(b"\n{\"id\":\"c\"}\n").unwrap();
    assert_eq!(ack_all(&mut place.open(config()).await).await, ["a", "c"]);
}
