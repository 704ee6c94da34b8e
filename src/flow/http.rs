//! A step that makes an HTTP request.

use std::error::Error as StdError;
use std::io;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Method, Response, Url, redirect};
use serde_json::Value;

use super::step::{Step, StepContext};
use crate::classify::{StepError, Verdict, http};

/// The longest wait that `Retry-After` can ask for.
const RETRY_AFTER_CAP: Duration = Duration::from_secs(3600);
/// The most bytes of a decline's answer that are kept.
const DECLINE_CAP: usize = 16 * 1024;

/// What an HTTP step sends, and within which limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpSettings {
    /// The method.
    pub method: String,
    /// The address.
    pub url: String,
    /// How long the whole exchange may take. After that, whether it took effect is in doubt. Half of it may go by until
    /// there is a connection; when there is none by then, nothing was sent and nothing is in doubt.
    pub timeout: Duration,
    /// Headers that are added.
    pub headers: Vec<(String, String)>,
    /// The most bytes of the answer that become the result.
    pub answer_cap: usize,
}

impl Default for HttpSettings {
    fn default() -> Self {
        Self {
            method: "POST".to_owned(),
            url: String::new(),
            timeout: Duration::from_secs(10),
            headers: Vec::new(),
            answer_cap: 256 * 1024,
        }
    }
}

/// Sends the body with the key as `Idempotency-Key`, the same on each try; a 2xx answer is the result.
#[derive(Debug)]
pub struct HttpStep {
    client: Client,
    method: Method,
    url: Url,
    headers: HeaderMap,
    answer_cap: usize,
}

impl HttpStep {
    /// A step that makes that request.
    ///
    /// # Errors
    /// A sentence that names the setting and what is wrong with it.
    pub fn new(settings: HttpSettings) -> Result<Self, String> {
        let method = Method::from_bytes(settings.method.as_bytes())
            .map_err(|_| format!("http.method: `{}` is no HTTP method", settings.method))?;
        let url =
            Url::parse(&settings.url).map_err(|error| format!("http.url: `{}`: {error}", settings.url))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(format!("http.url: `{url}` is neither http nor https"));
        }
        let mut headers = HeaderMap::new();
        for (name, value) in settings.headers {
            let wrong = || format!("http.headers: `{name}` cannot be sent");
            let value = HeaderValue::from_str(&value).map_err(|_| wrong())?;
            headers.append(HeaderName::from_bytes(name.as_bytes()).map_err(|_| wrong())?, value);
        }
        let client = Client::builder()
            .redirect(redirect::Policy::none())
            .timeout(settings.timeout)
            // Shorter than the whole, or a server that cannot be reached looks like one that does not answer.
            .connect_timeout(settings.timeout / 2)
            .user_agent(concat!("ackord/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| format!("http: {error}"))?;
        Ok(Self { client, method, url, headers, answer_cap: settings.answer_cap })
    }

    fn headers(&self, cx: &StepContext) -> HeaderMap {
        let message = cx.message();
        let mut headers = self.headers.clone();
        let mut set = |name: &'static str, value: &[u8]| {
            // What cannot stand in a header is left out; the key is made to fit below.
            if let Ok(value) = HeaderValue::from_bytes(value) {
                headers.entry(name).or_insert(value);
            }
        };
        let given = message.headers.all("content-type").flatten().next();
        let body = message.body.as_deref().unwrap_or_default();
        match given {
            Some(given) => set("content-type", given),
            None if serde_json::from_slice::<serde::de::IgnoredAny>(body).is_ok() => {
                set("content-type", b"application/json");
            }
            None => set("content-type", b"application/octet-stream"),
        }
        if let Some(parent) = message.headers.all("traceparent").flatten().next() {
            set("traceparent", parent);
        }
        set("x-ackord-flow", cx.flow().as_bytes());
        set("x-ackord-step", cx.step().as_bytes());
        set("x-ackord-attempt", cx.attempt().to_string().as_bytes());
        set("x-ackord-max-attempts", cx.max_attempts().to_string().as_bytes());
        set("x-ackord-message-id", message.id.as_str().as_bytes());
        set("x-ackord-source", message.origin.source.as_bytes());
        // Set last and over anything configured: the key must be the same on each try.
        if let Ok(key) = HeaderValue::from_str(&quoted(cx.key().as_str())) {
            headers.insert("idempotency-key", key);
        }
        headers
    }
}

#[async_trait]
impl Step for HttpStep {
    async fn run(&self, cx: &StepContext) -> Result<Value, StepError> {
        let request = self
            .client
            .request(self.method.clone(), self.url.clone())
            .headers(self.headers(cx))
            .body(cx.message().body.clone().unwrap_or_default());
        let response = request.send().await.map_err(transport)?;
        let status = response.status().as_u16();
        let retry_after = retry_after(&response, SystemTime::now());
        let verdict = http::verdict(status, retry_after);
        let answer = read(response, self.answer_cap).await;
        if verdict == Verdict::Done {
            // A success whose answer breaks off is still no answer: the work was done, its result is not known.
            return answer.map(|answer| result(&answer, self.answer_cap)).map_err(transport);
        }
        let answer = answer.unwrap_or_default();
        let error = StepError::with(verdict, code(&answer).unwrap_or_else(|| format!("http_{status}")));
        let error = error.detail(format!("{} answered {status}", self.url));
        if verdict == Verdict::Declined && !answer.is_empty() && answer.len() <= DECLINE_CAP {
            return Err(error.body(answer));
        }
        Err(error)
    }
}

/// The key as a structured string (RFC 8941), which holds printable ASCII only; the rest is percent-encoded.
fn quoted(key: &str) -> String {
    let mut text = String::from("\"");
    for byte in key.bytes() {
        match byte {
            b'"' | b'\\' => text.extend(['\\', char::from(byte)]),
            0x20..=0x7e => text.push(char::from(byte)),
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text.push('"');
    text
}

/// Both forms of RFC 9110 §10.2.3: seconds, or a date.
fn retry_after(response: &Response, now: SystemTime) -> Option<Duration> {
    let text = response.headers().get("retry-after")?.to_str().ok()?.trim();
    let wait = match text.parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => httpdate::parse_http_date(text).ok()?.duration_since(now).unwrap_or_default(),
    };
    Some(wait.min(RETRY_AFTER_CAP))
}

/// The answer, or its first bytes and one more than the cap: the guard's own cap then makes it "done, without its result".
async fn read(mut response: Response, cap: usize) -> Result<Bytes, reqwest::Error> {
    let mut answer = BytesMut::new();
    while let Some(chunk) = response.chunk().await? {
        let room = (cap + 1).saturating_sub(answer.len());
        answer.extend_from_slice(&chunk[..chunk.len().min(room)]);
        if answer.len() > cap {
            break;
        }
    }
    Ok(answer.freeze())
}

fn result(answer: &Bytes, cap: usize) -> Value {
    if answer.is_empty() {
        return Value::Null;
    }
    let text = || Value::String(String::from_utf8_lossy(answer).into_owned());
    // What was cut may still parse, as something else.
    if answer.len() > cap { text() } else { serde_json::from_slice(answer).unwrap_or_else(|_| text()) }
}

fn code(answer: &Bytes) -> Option<String> {
    let answer: Value = serde_json::from_slice(answer).ok()?;
    let found = ["/error/code", "/code"].iter().find_map(|at| answer.pointer(at)?.as_str());
    found.filter(|code| !code.is_empty() && code.len() <= 64).map(ToOwned::to_owned)
}

fn transport(error: reqwest::Error) -> StepError {
    let (verdict, code) = if error.is_builder() || error.is_redirect() {
        (Verdict::WorkerFault, "http_request")
    } else if error.is_connect() {
        // Nothing was sent. TLS that fails now will fail for the next message too.
        if is_tls(&error) { (Verdict::WorkerFault, "tls") } else { (Verdict::Transient, "connect") }
    } else if error.is_timeout() {
        (Verdict::InDoubt, "timeout")
    } else {
        // The request may have arrived; only the answer is known to be lost.
        (Verdict::InDoubt, "no_answer")
    };
    StepError::with(verdict, code).source(error.without_url())
}

fn is_tls(error: &(dyn StdError + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if error.is::<rustls::Error>() {
            return true;
        }
        // The source of an I/O error is the source of what it holds, which would leave out what it holds.
        let held = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        cause = held.map(|held| held as &(dyn StdError + 'static)).or_else(|| error.source());
    }
    false
}

#[cfg(test)]
#[path = "http_tests.rs"]
mod tests;
