//! The shape of the configuration file. Unknown keys are refused; every default is here.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value};

mod flow;
mod form;
mod shape;
mod step;
mod value;

pub use flow::{
    Circuit, CircuitLimits, Flow, InDoubt, Match, Matches, Off, OnDecline, OnMissing, OnRetry, Order, Retry,
    Source,
};
pub use shape::{Control, ControlIs, Fingerprint, Key, OnControl};
pub use step::{Command, Http, Idempotency, Manual, OwnKey, Reconcile, Step};
pub use value::{Size, Span};

/// `[worker]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table, [worker]")]
pub struct Worker {
    /// How long running messages have to finish after a stop.
    pub drain: Span,
    /// The worker's name in claims and dead letters; host and pid by default.
    pub name: Option<String>,
}

impl Default for Worker {
    fn default() -> Self {
        Self { drain: Span(Duration::from_secs(25)), name: None }
    }
}

/// `[log]`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table, [log]")]
pub struct Log {
    /// The least level that is shown.
    pub level: Level,
    /// The form of a line.
    pub format: LogFormat,
}

/// Levels of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Errors only.
    Error,
    /// And warnings.
    Warn,
    /// And what a person wants to know.
    #[default]
    Info,
    /// And a line for each message.
    Debug,
    /// And everything else.
    Trace,
}

/// Forms of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Text on a terminal, else JSON.
    #[default]
    Auto,
    /// Text.
    Text,
    /// JSON.
    Json,
}

/// `[store]`: a kind, and what that kind needs.
#[derive(Debug, Clone, Deserialize)]
#[serde(expecting = "a table, [store]")]
pub struct Store {
    /// The kind of store.
    #[serde(default = "sqlite")]
    pub kind: String,
    /// The options of that kind.
    #[serde(flatten)]
    pub options: Map<String, Value>,
}

impl Default for Store {
    fn default() -> Self {
        Self { kind: sqlite(), options: Map::new() }
    }
}

fn sqlite() -> String {
    "sqlite".to_owned()
}

/// `[brokers.<name>]`: a kind, and what that kind needs.
#[derive(Debug, Clone, Deserialize)]
#[serde(expecting = "a table with a kind")]
pub struct Broker {
    /// The kind of broker.
    pub kind: String,
    /// The options of that kind.
    #[serde(flatten)]
    pub options: Map<String, Value>,
}
