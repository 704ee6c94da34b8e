use std::sync::Arc;

use ackord_broker::Message;
use futures_util::FutureExt;
use futures_util::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::flow::StepCall;
use crate::key::{IdempotencyKey, Scope};

fn context() -> StepContext {
    context_of(Message::new("m-1", r#"{"amount":1}"#).with_header("traceparent", "00-a-b-01"))
}

fn context_of(mut message: Message) -> StepContext {
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
    assert_eq!(verdict("503 Away").await, Verdict::InDoubt);
    assert_eq!(verdict("401 No").await, Verdict::WorkerFault);
    assert_eq!(verdict("302 Found\r\nlocation: http://127.0.0.1:1/").await, Verdict::WorkerFault);
    let seconds = |after| Verdict::Throttled { after: Some(Duration::from_secs(after)) };
    assert_eq!(verdict("429 Slow\r\nretry-after: 7").await, seconds(7));
    assert_eq!(verdict("503 Away\r\nretry-after: 7").await, seconds(7));
    assert_eq!(verdict("503 Away\r\nretry-after: 99999").await, seconds(3600));
    assert_eq!(verdict("429 Slow\r\nretry-after: Wed, 21 Oct 2015 07:28:00 GMT").await, seconds(0));
    // So far ahead that the cap counts, whatever the time.
    let ahead = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(86_400));
    assert_eq!(verdict(&format!("429 Slow\r\nretry-after: {ahead}")).await, seconds(3600));
    assert_eq!(verdict("429 Slow\r\nretry-after: soon").await, Verdict::Throttled { after: None });
}

#[tokio::test]
async fn a_decline_keeps_its_code_and_its_answer() {
    let body = r#"{"error":{"code":"CardDeclined"}}"#;
    let error = answer("402 Payment Required", body).await.unwrap_err();
    assert_eq!((error.verdict(), error.code()), (Verdict::Declined, "CardDeclined"));
    assert_eq!(error.answer().map(|answer| &answer[..]), Some(body.as_bytes()));
    assert_eq!(answer("400 Bad", r#"{"code":"Closed"}"#).await.unwrap_err().code(), "Closed");
    assert_eq!(answer("422 Bad", "no").await.unwrap_err().code(), "http_422");
    let long = answer("402 Payment Required", &"x".repeat(DECLINE_CAP + 1)).await.unwrap_err();
    assert_eq!((long.verdict(), long.answer()), (Verdict::Declined, None));
}

#[test]
fn an_answer_over_the_cap_is_no_json_even_if_it_looks_like_it() {
    let answer = Bytes::from_static(b"12345");
    assert_eq!(result(&answer, 5), serde_json::json!(12345));
    assert_eq!(result(&answer, 4), Value::from("12345"));
}

#[tokio::test]
async fn a_server_that_cannot_be_reached_in_time_is_transient() {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    // Nobody accepts, so after the first few no connection comes about any more.
    let mut crowd = Box::pin(join_all((0..16).map(|_| TcpStream::connect(address))));
    assert!(crowd.as_mut().now_or_never().is_none());
    let timeout = Duration::from_millis(400);
    let settings = HttpSettings { url: format!("http://{address}/"), timeout, ..HttpSettings::default() };
    let error = HttpStep::new(settings).unwrap().run(&context()).await.unwrap_err();
    assert_eq!((error.verdict(), error.code()), (Verdict::Transient, "connect"), "{error}");
}

#[tokio::test]
async fn tls_that_fails_is_the_workers_fault() {
    // A fatal alert (handshake_failure), and an answer of a server that speaks no TLS.
    for answer in [&b"\x15\x03\x03\x00\x02\x02\x28"[..], b"HTTP/1.1 400 Bad Request\r\n\r\n"] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}/", listener.local_addr().unwrap());
        let step = HttpStep::new(HttpSettings { url, ..HttpSettings::default() }).unwrap();
        let cx = context();
        let serve = async {
            let (mut socket, _) = listener.accept().await.unwrap();
            socket.read_buf(&mut Vec::new()).await.unwrap();
            socket.write_all(answer).await.unwrap();
            socket
        };
        let (error, _socket) = tokio::join!(step.run(&cx), serve);
        let error = error.unwrap_err();
        assert_eq!((error.verdict(), error.code()), (Verdict::WorkerFault, "tls"), "{error}");
    }
}

#[test]
fn tls_is_found_wherever_it_stands_among_the_causes() {
    let tls = rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
    assert!(is_tls(&io::Error::other(io::Error::new(io::ErrorKind::InvalidData, tls))));
    assert!(!is_tls(&io::Error::other("no certificate")));
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

#[tokio::test]
async fn the_content_type_is_the_messages_own_or_follows_from_its_body() {
    let step = HttpStep::new(HttpSettings {
        url: "http://localhost/".into(),
        headers: vec![("Idempotency-Key".into(), "mine".into()), ("X-Team".into(), "pay".into())],
        ..HttpSettings::default()
    })
    .unwrap();
    for (message, expected) in [
        (Message::new("m", "{}"), "application/json"),
        (Message::new("m", "{"), "application/octet-stream"),
        (Message::new("m", "{}").with_header("Content-Type", "text/x"), "text/x"),
    ] {
        let headers = step.headers(&context_of(message));
        assert_eq!(headers["content-type"], expected);
        assert_eq!(headers["x-team"], "pay");
        assert_ne!(headers["idempotency-key"], "mine", "the key must be the same on each try");
        assert!(!headers.contains_key("traceparent"));
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
