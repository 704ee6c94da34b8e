//! `[flows.<name>]`.

use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use serde::Deserialize;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{MapAccess, SeqAccess};

use super::form::{Form, read_by_form};
use super::shape::{Control, Fingerprint, Key, OnControl};
use super::step::Step;
use super::value::{Size, Span};

/// `[flows.<name>]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table with source, key and steps")]
pub struct Flow {
    /// Where its messages come from.
    pub source: Source,
    /// Which messages of the source it takes; all by default.
    #[serde(rename = "match", default)]
    pub matches: Matches,
    /// What names a message.
    pub key: Key,
    /// What is done to a body before anything is read from it.
    pub decode: Option<String>,
    /// Where the list of parts stands, when one message asks for several effects.
    pub split: Option<String>,
    /// Messages that ask for no effect, beside those that the key's preset knows.
    #[serde(default)]
    pub control: Vec<Control>,
    /// What happens to them.
    #[serde(default)]
    pub on_control: OnControl,
    /// What defines the same request.
    pub fingerprint: Option<Fingerprint>,
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
#[serde(deny_unknown_fields, expecting = "a source such as { broker = \"shop\", queue = \"orders\" }")]
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
#[derive(Debug, Clone)]
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

impl Form for Matches {
    const EXPECTING: &'static str =
        "a condition such as { header = \"type\", equals = \"order.paid\" }, or a list of them";

    fn list<'de, A: SeqAccess<'de>>(list: A) -> Option<Result<Self, A::Error>> {
        Some(Vec::deserialize(SeqAccessDeserializer::new(list)).map(Self::All))
    }

    fn table<'de, A: MapAccess<'de>>(table: A) -> Option<Result<Self, A::Error>> {
        Some(Match::deserialize(MapAccessDeserializer::new(table)).map(Self::One))
    }
}

read_by_form!(Matches);

/// One condition.
#[derive(Debug, Clone, Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "a condition such as { header = \"type\", equals = \"order.paid\" }"
)]
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
#[serde(
    deny_unknown_fields,
    default,
    expecting = "a table such as { attempts = 5, initial = \"1s\", max = \"5m\" }"
)]
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
#[derive(Debug, Clone)]
pub enum Circuit {
    /// `"off"`.
    Word(Off),
    /// The limits.
    Limits(CircuitLimits),
}

impl Form for Circuit {
    const EXPECTING: &'static str =
        "\"off\" or { failures = 20, probe_initial = \"1s\", probe_max = \"1m\" }";

    fn text(text: &str) -> Option<Self> {
        (text == "off").then_some(Self::Word(Off::Off))
    }

    fn table<'de, A: MapAccess<'de>>(table: A) -> Option<Result<Self, A::Error>> {
        Some(CircuitLimits::deserialize(MapAccessDeserializer::new(table)).map(Self::Limits))
    }
}

read_by_form!(Circuit);

/// The word `off`.
#[derive(Debug, Clone, Copy)]
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
