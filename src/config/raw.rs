//! The shape of the configuration file. Unknown keys are refused; every default is here.

use std::collections::BTreeMap;
use std::fmt;
use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use serde::de::{Error as _, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

/// `[worker]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
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
#[serde(deny_unknown_fields, default)]
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
pub struct Broker {
    /// The kind of broker.
    pub kind: String,
    /// The options of that kind.
    #[serde(flatten)]
    pub options: Map<String, Value>,
}

/// `[flows.<name>]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Flow {
    /// Where its messages come from.
    pub source: Source,
    /// Which messages of the source it takes; all by default.
    #[serde(rename = "match", default)]
    pub matches: Matches,
    /// What names a message.
    pub key: Key,
    /// Whose effects these are: a place, or text that is no place.
    pub namespace: Option<String>,
    /// Makes the version part of each key.
    pub version: Option<String>,
    /// What happens to a message without a key.
    #[serde(default)]
    pub on_missing: OnMissing,
    /// How many messages run at once.
    #[serde(default = "concurrency")]
    pub concurrency: NonZeroUsize,
    /// In which order messages run.
    #[serde(default)]
    pub order: Order,
    /// Where the order key stands.
    #[serde(default = "order_key")]
    pub order_key: String,
    /// What a failed message does to those of its order key.
    #[serde(default)]
    pub on_retry: OnRetry,
    /// How many more messages may wait while others run.
    #[serde(default = "max_held")]
    pub max_held: usize,
    /// Tries and waits.
    #[serde(default)]
    pub retry: Retry,
    /// Where rejected messages go; `none` = nowhere.
    pub dead_letter: Option<String>,
    /// What happens to a declined message.
    #[serde(default)]
    pub on_decline: OnDecline,
    /// What happens when it is unknown whether a step took effect.
    #[serde(default)]
    pub in_doubt: InDoubt,
    /// How long a claim lives without a sign of life.
    #[serde(default = "lease")]
    pub lease: Span,
    /// How long a success answers.
    #[serde(default = "day")]
    pub retention: Span,
    /// How long a decline answers; as long as a success by default.
    pub decline_retention: Option<Span>,
    /// The largest result that is kept.
    #[serde(default = "result_cap")]
    pub result_cap: Size,
    /// After this many runs that never ended a message is kept aside.
    #[serde(default = "max_crashes")]
    pub max_crashes: NonZeroU32,
    /// When intake pauses because a step fails time after time.
    #[serde(default)]
    pub circuit: Circuit,
    /// Intake pauses after the worker was at fault with this many different messages in a row.
    #[serde(default = "max_crashes")]
    pub fault_after: NonZeroU32,
    /// The steps, in order.
    #[serde(default)]
    pub steps: Vec<Step>,
}

fn concurrency() -> NonZeroUsize {
    NonZeroUsize::new(16).expect("16 is not zero")
}

fn order_key() -> String {
    "record-key".to_owned()
}

fn max_held() -> usize {
    4096
}

fn lease() -> Span {
    Span(Duration::from_secs(30))
}

fn day() -> Span {
    Span(Duration::from_secs(24 * 3600))
}

fn result_cap() -> Size {
    Size(256 * 1024)
}

fn max_crashes() -> NonZeroU32 {
    NonZeroU32::new(3).expect("3 is not zero")
}

/// A broker and a place in it, under the name that fits the broker.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// The name of a `[brokers.<name>]`.
    pub broker: String,
    /// A queue.
    pub queue: Option<String>,
    /// A topic.
    pub topic: Option<String>,
    /// A file, or `-` for stdin.
    pub path: Option<String>,
}

/// Conditions, all of which must hold.
#[derive(Debug, Clone, Deserialize)]
#[serde(
    untagged,
    expecting = "needs a condition such as { header = \"type\", equals = \"order.paid\" }, or a list of them"
)]
pub enum Matches {
    /// One.
    One(Match),
    /// Several.
    All(Vec<Match>),
}

impl Default for Matches {
    fn default() -> Self {
        Self::All(Vec::new())
    }
}

/// One condition.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Match {
    /// A header by name.
    pub header: Option<String>,
    /// Any place, as in `key`.
    pub place: Option<String>,
    /// What must stand there.
    pub equals: Option<String>,
    /// Instead: it must be there.
    pub present: Option<bool>,
}

/// What names a message.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged, expecting = "needs a place such as \"header:id\", a list of places, or { all = [...] }")]
pub enum Key {
    /// One place.
    One(String),
    /// The first of these that is there.
    FirstOf(Vec<String>),
    /// All of these together.
    AllOf {
        /// The places.
        all: Vec<String>,
    },
}

/// What happens to a message without a key.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnMissing {
    /// It is kept aside.
    #[default]
    Park,
    /// It is acknowledged unseen.
    Ignore,
}

/// In which order messages run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// In any.
    #[default]
    None,
    /// Those of one order key one after the other.
    Key,
}

/// What a failed message does to those of its order key.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnRetry {
    /// They wait.
    #[default]
    HoldKey,
    /// They overtake it.
    Divert,
}

/// What happens to a declined message.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnDecline {
    /// It is acknowledged.
    #[default]
    Ack,
    /// It is kept aside.
    DeadLetter,
}

/// What happens when it is unknown whether a step took effect.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InDoubt {
    /// It is run again.
    #[default]
    Rerun,
    /// The step's `reconcile` is asked.
    Reconcile,
    /// It is kept aside for a person.
    Park,
}

/// Tries and waits.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Retry {
    /// The most tries.
    pub attempts: NonZeroU32,
    /// The upper bound of the first wait.
    pub initial: Span,
    /// The upper bound of any wait.
    pub max: Span,
}

impl Default for Retry {
    fn default() -> Self {
        let retry = crate::backoff::Retry::default();
        Self { attempts: retry.attempts, initial: Span(retry.initial), max: Span(retry.max) }
    }
}

/// When intake pauses.
#[derive(Debug, Clone, Deserialize)]
#[serde(
    untagged,
    expecting = "needs \"off\" or { failures = 20, probe_initial = \"1s\", probe_max = \"1m\" }"
)]
pub enum Circuit {
    /// `"off"`.
    Word(Off),
    /// The limits.
    Limits(CircuitLimits),
}

/// The word `off`.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Off {
    /// Never.
    Off,
}

/// When intake pauses.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CircuitLimits {
    /// After this many failures in a row.
    pub failures: NonZeroU32,
    /// The wait before the first probe.
    pub probe_initial: Span,
    /// The longest wait between probes.
    pub probe_max: Span,
}

impl Default for CircuitLimits {
    fn default() -> Self {
        Self {
            failures: NonZeroU32::new(20).expect("20 is not zero"),
            probe_initial: Span(Duration::from_secs(1)),
            probe_max: Span(Duration::from_secs(60)),
        }
    }
}

impl Default for Circuit {
    fn default() -> Self {
        Self::Limits(CircuitLimits::default())
    }
}

/// One step.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
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
#[serde(deny_unknown_fields)]
pub struct Reconcile {
    /// A program.
    pub command: Option<Command>,
    /// An HTTP request.
    pub http: Option<Http>,
}

/// A program.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Command {
    /// The program and its arguments; no shell is involved.
    pub run: Vec<String>,
    /// How long it may take.
    #[serde(default = "lease")]
    pub timeout: Span,
    /// The folder it runs in; that of the configuration file by default.
    pub dir: Option<String>,
    /// Variables that are added.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
}

/// An HTTP request.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
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

fn post() -> String {
    "POST".to_owned()
}

fn ten_seconds() -> Span {
    Span(Duration::from_secs(10))
}

/// What a step's outcome is kept under.
#[derive(Debug, Clone, Deserialize)]
#[serde(
    untagged,
    expecting = "needs \"manual\" or { key = \"receipt:{body:/order/id}\", retention = \"7d\", wait = \"3s\" }"
)]
pub enum Idempotency {
    /// `"manual"`.
    Word(Manual),
    /// A key of its own and how it is kept.
    Own(OwnKey),
}

/// The word `manual`.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
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

/// A duration, written with its unit: `"30s"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
pub struct Span(pub Duration);

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Span;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration with its unit, for example \"30s\", \"5m\" or \"7d\"")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Span, E> {
                humantime::parse_duration(text).map(Span).map_err(|_| {
                    E::custom(format!("`{text}` is no duration; write a number and its unit, for example \"30s\", \"5m\" or \"7d\""))
                })
            }
        }
        deserializer.deserialize_any(Text)
    }
}

/// A number of bytes: `65536` or `"256KiB"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size(pub usize);

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let wrong = || D::Error::custom("needs a number of bytes, for example 65536, \"256KiB\" or \"1MiB\"");
        match Value::deserialize(deserializer)? {
            Value::Number(number) => number.to_string().parse().map(Size).map_err(|_| wrong()),
            Value::String(text) => {
                let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
                let (number, unit) = text.split_at(digits);
                let factor = match unit.trim() {
                    "" | "B" => 1,
                    "KiB" => 1024,
                    "MiB" => 1024 * 1024,
                    "GiB" => 1024 * 1024 * 1024,
                    _ => return Err(wrong()),
                };
                let number: usize = number.parse().map_err(|_| wrong())?;
                number.checked_mul(factor).map(Size).ok_or_else(wrong)
            }
            _ => Err(wrong()),
        }
    }
}
