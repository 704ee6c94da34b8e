//! `[[flows.<name>.steps]]`.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use serde::de::MapAccess;
use serde::de::value::MapAccessDeserializer;

use super::form::{Form, read_by_form};
use super::value::Span;

/// One step.
#[derive(Debug, Clone, Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "a step: a table with a name, and command = { ... } or http = { ... }"
)]
pub struct Step {
    /// Its name, unlike any other of the flow.
    pub name: String,
    /// A program.
    pub command: Option<Command>,
    /// An HTTP request.
    pub http: Option<Http>,
    /// What its outcome is kept under; the message's key and the step's name by default.
    pub idempotency: Option<Idempotency>,
    /// What finds out whether it took effect.
    pub reconcile: Option<Reconcile>,
}

/// What finds out whether a step took effect: success with a result says yes, a decline says no.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, expecting = "command = { ... } or http = { ... }")]
pub struct Reconcile {
    /// A program.
    pub command: Option<Command>,
    /// An HTTP request.
    pub http: Option<Http>,
}

/// A program.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a command such as { run = [\"./charge\"], timeout = \"30s\" }")]
pub struct Command {
    /// The program and its arguments; no shell is involved.
    pub run: Vec<String>,
    /// How long it may take.
    #[serde(default = "thirty_seconds")]
    pub timeout: Span,
    /// The folder it runs in; that of the configuration file by default.
    pub dir: Option<String>,
    /// Variables that are added.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
}

/// An HTTP request.
#[derive(Debug, Clone, Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "a request such as { url = \"http://localhost/charge\", timeout = \"10s\" }"
)]
pub struct Http {
    /// The method.
    #[serde(default = "post")]
    pub method: String,
    /// The address.
    pub url: String,
    /// How long it may take.
    #[serde(default = "ten_seconds")]
    pub timeout: Span,
    /// Headers that are added.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
}

fn thirty_seconds() -> Span {
    Span(Duration::from_secs(30))
}

fn post() -> String {
    "POST".to_owned()
}

fn ten_seconds() -> Span {
    Span(Duration::from_secs(10))
}

/// What a step's outcome is kept under.
#[derive(Debug, Clone)]
pub enum Idempotency {
    /// `"manual"`.
    Word(Manual),
    /// A key of its own and how it is kept.
    Own(OwnKey),
}

impl Form for Idempotency {
    const EXPECTING: &'static str =
        "\"manual\" or { key = \"receipt:{body:/order/id}\", retention = \"7d\", wait = \"3s\" }";

    fn text(text: &str) -> Option<Self> {
        (text == "manual").then_some(Self::Word(Manual::Manual))
    }

    fn table<'de, A: MapAccess<'de>>(table: A) -> Option<Result<Self, A::Error>> {
        Some(OwnKey::deserialize(MapAccessDeserializer::new(table)).map(Self::Own))
    }
}

read_by_form!(Idempotency);

/// The word `manual`.
#[derive(Debug, Clone, Copy)]
pub enum Manual {
    /// The step sees to it itself.
    Manual,
}

/// A key of its own and how it is kept.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OwnKey {
    /// The key; the message's key and the step's name by default.
    pub key: Option<String>,
    /// How long the outcome answers.
    pub retention: Option<Span>,
    /// How long to wait while somebody else is at it.
    pub wait: Option<Span>,
    /// The time between two looks while waiting.
    pub poll: Option<Span>,
    /// `wait` in milliseconds, by the reference's name.
    #[serde(rename = "settleTimeoutMs")]
    pub settle_timeout_ms: Option<u64>,
    /// `poll` in milliseconds, by the reference's name.
    #[serde(rename = "pollIntervalMs")]
    pub poll_interval_ms: Option<u64>,
}
