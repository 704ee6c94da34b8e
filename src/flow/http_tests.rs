use std::sync::Arc;

use ackord_broker::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::flow::StepCall;
use crate::key::{IdempotencyKey, Scope};

fn context() -> StepContext {
    let mut message = Message::new("m-1", r#"{"amount":1}"#).with_header("traceparent", "00-a-b-01");
    message.origin.source = "orders".into();
    StepContext::from(StepCall {
        message: Arc::new(message),
        flow: "charge".into(),
        step: "pay".into(),
        key: IdempotencyKey::scoped("é\"1", Scope::default()).unwrap(),
        attempt: 2,
        max_attempts: 5,
        outputs: Arc::default(),
        lost: CancellationToken::new(),
    })
}

/// Answers one request with that text and hands back what was sent.
async fn exchange(answer: &str) -> (Result<Value, StepError>, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/pay", listener.local_addr().unwrap());
    let answer = answer.to_owned();
    let server = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut request = Vec::new();
        while !request.ends_with(br#"{"amount":1}"#) {
            assert!(socket.read_buf(&mut request).await.unwrap() > 0);
        }
        socket.write_all(answer.as_bytes()).await.unwrap();
        socket.shutdown().await.unwrap();
        String::from_utf8(request).unwrap()
    });
    let step = HttpStep::new(HttpSettings { url, ..HttpSettings::default() }).unwrap();
    let result = step.run(&context()).await;
    (result, server.await.unwrap())
}

async fn answer(head: &str, body: &str) -> Result<Value, StepError> {
    exchange(&format!("HTTP/1.1 {head}\r\ncontent-length: {}\r\n\r\n{body}", body.len())).await.0
}

async fn verdict(head: &str) -> Verdict {
    answer(head, "").await.unwrap_err().verdict()
}

#[tokio::test]
async fn a_success_gives_its_body_as_the_result() {
    assert_eq!(answer("200 OK", r#"{"id":"ch_1"}"#).await.unwrap(), serde_json::json!({"id": "ch_1"}));
    assert_eq!(answer("200 OK", "plain").await.unwrap(), Value::from("plain"));
    assert_eq!(answer("201 Created", "").await.unwrap(), Value::Null);
}

#[tokio::test]
async fn each_status_has_its_verdict_and_a_redirect_is_not_followed() {
    assert_eq!(verdict("404 Not Found").await, Verdict::Transient);
    assert_eq!(verdict("500 Oops").await, Verdict::InDoubt);
    assert_eq!(verdict("401 No").await, Verdict::WorkerFault);
    assert_eq!(verdict("302 Found\r\nlocation: http://127.0.0.1:1/").await, Verdict::WorkerFault);
    let seconds = |after| Verdict::Throttled { after: Some(Duration::from_secs(after)) };
    assert_eq!(verdict("429 Slow\r\nretry-after: 7").await, seconds(7));
    assert_eq!(verdict("503 Away\r\nretry-after: 7").await, seconds(7));
    assert_eq!(verdict("503 Away\r\nretry-after: 99999").await, seconds(3600));
    assert_eq!(verdict("429 Slow\r\nretry-after: Wed, 21 Oct 2015 07:28:00 GMT").await, seconds(0));
}

#[tokio::test]
async fn a_decline_keeps_its_code_and_its_answer() {
    let body = r#"{"error":{"code":"CardDeclined"}}"#;
    let error = answer("402 Payment Required", body).await.unwrap_err();
    assert_eq!((error.verdict(), error.code()), (Verdict::Declined, "CardDeclined"));
    assert_eq!(error.answer().map(|answer| &answer[..]), Some(body.as_bytes()));
}

#[tokio::test]
async fn what_was_not_sent_is_transient_and_what_was_not_answered_is_in_doubt() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let timeout = Duration::from_millis(50);
    let step = HttpStep::new(HttpSettings { url, timeout, ..HttpSettings::default() }).unwrap();
    assert_eq!(step.run(&context()).await.unwrap_err().verdict(), Verdict::InDoubt, "never answered");
    drop(listener);
    assert_eq!(step.run(&context()).await.unwrap_err().verdict(), Verdict::Transient, "refused");
    assert_eq!(exchange("").await.0.unwrap_err().verdict(), Verdict::InDoubt, "closed");
    let cut = exchange("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{").await.0;
    assert_eq!(cut.unwrap_err().verdict(), Verdict::InDoubt, "broke off");
}

#[tokio::test]
async fn the_request_says_who_asks_and_under_which_key() {
    let (_, request) = exchange("HTTP/1.1 204 No Content\r\n\r\n").await;
    let request = request.to_lowercase();
    for line in [
        "post /pay http/1.1",
        "idempotency-key: \"ff:idemp:::%c3%a9\\\"1\"",
        "content-type: application/json",
        "traceparent: 00-a-b-01",
        "x-ackord-flow: charge",
        "x-ackord-step: pay",
        "x-ackord-attempt: 2",
        "x-ackord-max-attempts: 5",
        "x-ackord-message-id: m-1",
        "x-ackord-source: orders",
    ] {
        assert!(request.contains(&format!("{line}\r\n")), "{line} in {request}");
    }
}

#[test]
fn a_wrong_setting_is_named() {
    for (url, method, part) in
        [("nowhere", "POST", "http.url"), ("ftp://x", "POST", "http.url"), ("http://x", "P T", "http.method")]
    {
        let settings = HttpSettings { url: url.into(), method: method.into(), ..HttpSettings::default() };
        assert!(HttpStep::new(settings).unwrap_err().contains(part));
    }
}
