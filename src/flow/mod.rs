//! Flows: what is done for a message, step by step.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::Value;

use crate::classify::StepError;
use crate::gate::Circuit;
use crate::guard::{Reconciled, Terms};
use crate::key::reader::{KeyExpr, Reader};
use crate::key::template::KeyTemplate;
use crate::policy::Settings;

pub mod builder;
#[cfg(feature = "command")]
pub mod command;
#[cfg(feature = "http")]
pub mod http;
pub mod route;
pub mod shape;
pub mod step;

pub use builder::{BuildError, FlowBuilder};
pub use route::Match;
pub use shape::OnControl;
pub use step::{Step, StepCall, StepContext};

/// What is done for the messages of one source: where they come from, what names them, and the steps. Valid by
/// construction: [`Flow::builder`] checks everything.
#[derive(Debug)]
pub struct Flow {
    pub(crate) name: Arc<str>,
    pub(crate) broker: String,
    pub(crate) source: String,
    pub(crate) matches: Vec<Match>,
    pub(crate) key: KeyExpr,
    pub(crate) shape: shape::MessageShape,
    pub(crate) namespace: Option<Reader>,
    pub(crate) version: Option<String>,
    pub(crate) keyless: Keyless,
    pub(crate) order: Order,
    pub(crate) concurrency: NonZeroUsize,
    pub(crate) max_held: usize,
    pub(crate) settings: Settings,
    pub(crate) terms: Terms,
    pub(crate) circuit: Circuit,
    pub(crate) dead_letter: DeadLetter,
    pub(crate) steps: Vec<StepDef>,
}

/// What happens to a message without a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Keyless {
    /// It is kept aside with the reason `keyless`.
    #[default]
    Park,
    /// It is acknowledged unseen.
    Ignore,
}

/// In which order messages run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Order {
    /// In any.
    #[default]
    None,
    /// Those of one order key one after the other; different keys side by side.
    Key {
        /// Where the order key stands; a message without one is in no order.
        by: Reader,
        /// What a failed message does to those behind it.
        on_retry: OnRetry,
    },
}

/// What a failed message does to those of its order key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnRetry {
    /// They wait until it has passed or is kept aside.
    #[default]
    HoldKey,
    /// It goes back to the broker, and they overtake it.
    Divert,
}

/// Where rejected messages go.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum DeadLetter {
    /// To the adapter's own place.
    #[default]
    Default,
    /// To that place.
    To(String),
    /// Nowhere: they are acknowledged and only counted.
    Nowhere,
}

/// A step in a flow.
#[derive(Debug)]
pub struct StepDef {
    pub(crate) name: Arc<str>,
    pub(crate) action: Arc<dyn Step>,
    pub(crate) keying: Keying,
    pub(crate) terms: Terms,
    pub(crate) on_after: Option<AfterHook>,
    pub(crate) reconcile: Option<Reconciler>,
}

/// What a step's outcome is kept under.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Keying {
    /// The message's key and the step's name. In a flow of one step, the flow's own record.
    Message,
    /// A key of its own, so that different messages can share one effect.
    Own(KeyTemplate),
    /// Nothing: the step sees to it itself. The flow's record and settlement still apply.
    Manual,
}

/// Runs after a step's action and before its record is completed.
#[derive(Clone)]
pub struct AfterHook(pub(crate) Arc<HookFn>);
type HookFn = dyn Fn(Value, StepContext) -> BoxFuture<'static, Result<(), StepError>> + Send + Sync;

/// Finds out whether a step took effect when nobody knows.
#[derive(Clone)]
pub struct Reconciler(pub(crate) Arc<ReconcileFn>);
type ReconcileFn = dyn Fn(StepContext) -> BoxFuture<'static, Result<Reconciled, StepError>> + Send + Sync;

impl fmt::Debug for AfterHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AfterHook")
    }
}

impl fmt::Debug for Reconciler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reconciler")
    }
}

impl Flow {
    /// Starts the description of a flow of that name.
    pub fn builder(name: impl Into<String>) -> FlowBuilder {
        FlowBuilder::new(name.into())
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The broker's name and the source in the broker's own spelling.
    pub fn source(&self) -> (&str, &str) {
        (&self.broker, &self.source)
    }

    /// Whether one record serves both the flow and its only step: two store calls for a message instead of four.
    pub(crate) fn has_one_record(&self) -> bool {
        matches!(&self.steps[..], [only] if only.keying == Keying::Message)
    }

    /// One line for people: source, key, order, attempts and what is promised.
    pub fn describe(&self) -> String {
        let split =
            self.shape.split.as_ref().map(|place| format!(" of each part of {place}")).unwrap_or_default();
        let order = match &self.order {
            Order::None => "none".to_owned(),
            Order::Key { by, .. } => format!("by {by}"),
        };
        let steps: Vec<_> = self.steps.iter().map(|step| &*step.name).collect();
        format!(
            "flow {}: source {}/{}, key {}{split}, order {order}, {} at a time, {} attempts, steps {}, effects once while \
             records live ({})",
            self.name,
            self.broker,
            self.source,
            self.key,
            self.concurrency,
            self.settings.retry.attempts,
            steps.join(" → "),
            humantime::format_duration(self.terms.retention.min(self.terms.decline_retention)),
        )
    }

    /// Why the promise is not larger, one sentence each.
    pub fn limits(&self, drain: Duration) -> Vec<String> {
        let mut limits = Vec::new();
        if self.terms.lease < Duration::from_secs(3) {
            limits.push(format!(
                "lease {} is short: a pause of the process longer than that lets another worker take over",
                humantime::format_duration(self.terms.lease)
            ));
        }
        if self.version.is_some() {
            limits.push("a version is part of the key: changing it forgets all past work".to_owned());
        }
        for step in self.steps.iter().filter(|step| step.keying == Keying::Manual) {
            limits.push(format!("step {} is manual: a retry runs it again", step.name));
        }
        if self.dead_letter == DeadLetter::Nowhere {
            limits.push("dead_letter is none: rejected messages are dropped and only counted".to_owned());
        }
        if drain.is_zero() {
            limits.push("drain is zero: a stop leaves running steps in doubt".to_owned());
        }
        limits
    }
}
