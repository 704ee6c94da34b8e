//! The builder of flows: required things first, everything checked in [`FlowBuilder::build`].

mod shape;

use std::collections::HashSet;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use thiserror::Error;

use super::{
    AfterHook, DeadLetter, Flow, Keying, Keyless, Match, OnRetry, Order, Reconciler, Step, StepContext,
    StepDef,
};
use crate::backoff::Retry;
use crate::classify::StepError;
use crate::gate::Circuit;
use crate::guard::{InDoubt, Reconciled, Terms, WaitPolicy};
use crate::key::reader::{KeyExpr, Reader};
use crate::policy::{OnDecline, Settings};

/// Every fault of a flow's description, at once.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("flow {flow}: {}", faults.join("; "))]
pub struct BuildError {
    /// The flow's name.
    pub flow: String,
    /// What is wrong, one sentence each, with the place in the description (`steps.charge.key`).
    pub faults: Vec<String>,
}

/// Describes a flow. Setters never fail; [`build`](FlowBuilder::build) names every fault.
///
/// ```
/// use ackord::flow::{Flow, StepContext};
///
/// let flow = Flow::builder("charge")
///     .from("shop", "orders.paid")
///     .key(["header:idempotency-key", "body:/order/id"])
///     .step("charge", |order: serde_json::Value, cx: StepContext| async move {
///         let amount: u64 = order["amount"].to_string().parse()?; // `?` is transient
///         Ok(format!("charged {amount} under {}", cx.key()))
///     })
///     .step("receipt", |_: serde_json::Value, cx: StepContext| async move {
///         let charge: Option<String> = cx.output("charge")?;
///         Ok(charge)
///     })
///     .idempotent("receipt:{body:/order/id}")
///     .build()?;
/// assert_eq!(flow.name(), "charge");
/// # Ok::<(), ackord::flow::BuildError>(())
/// ```
#[derive(Debug)]
#[must_use]
pub struct FlowBuilder {
    name: String,
    from: Option<(String, String)>,
    matches: Vec<Match>,
    key: Option<KeyExpr>,
    namespace: Option<Reader>,
    version: Option<String>,
    keyless: Keyless,
    order: Order,
    concurrency: usize,
    max_held: usize,
    settings: Settings,
    terms: Terms,
    circuit: Circuit,
    dead_letter: DeadLetter,
    steps: Vec<StepDef>,
    described: shape::Described,
    faults: Vec<String>,
}

/// The places a key is read from: one text, or several of which the first that is there counts.
#[derive(Debug)]
pub struct Places(Vec<String>);

impl From<&str> for Places {
    fn from(place: &str) -> Self {
        Self(vec![place.to_owned()])
    }
}

impl<const N: usize> From<[&str; N]> for Places {
    fn from(places: [&str; N]) -> Self {
        Self(places.iter().map(|place| (*place).to_owned()).collect())
    }
}

impl From<Vec<String>> for Places {
    fn from(places: Vec<String>) -> Self {
        Self(places)
    }
}

impl FlowBuilder {
    pub(super) fn new(name: String) -> Self {
        Self {
            name,
            from: None,
            matches: Vec::new(),
            key: None,
            namespace: None,
            version: None,
            keyless: Keyless::default(),
            order: Order::default(),
            concurrency: 16,
            max_held: 4096,
            settings: Settings {
                retry: Retry::default(),
                on_decline: OnDecline::default(),
                busy_cap: Duration::from_secs(30),
            },
            terms: Terms::default(),
            circuit: Circuit::default(),
            dead_letter: DeadLetter::default(),
            steps: Vec::new(),
            described: shape::Described::default(),
            faults: Vec::new(),
        }
    }

    /// Where its messages come from: the broker's name in the worker, and queue, topic or path.
    pub fn from(mut self, broker: impl Into<String>, source: impl Into<String>) -> Self {
        self.from = Some((broker.into(), source.into()));
        self
    }

    /// Takes only messages for which this holds, and all others that are given.
    pub fn matching(mut self, condition: Match) -> Self {
        self.matches.push(condition);
        self
    }

    /// What names a message: the first of these places that is there (`header:x`, `body:/order/id` …).
    pub fn key(mut self, places: impl Into<Places>) -> Self {
        let places = self.places("key", places.into());
        self.key = Some(KeyExpr::FirstOf(places));
        self
    }

    /// What names a message: all of these places together.
    pub fn key_all(mut self, places: impl Into<Places>) -> Self {
        let places = self.places("key", places.into());
        self.key = Some(KeyExpr::AllOf(places));
        self
    }

    /// Whose effects these are: a place (`header:tenant`) or a constant (`const:acme`).
    pub fn namespace(mut self, place: &str) -> Self {
        self.namespace = self.place("namespace", place);
        self
    }

    /// Makes the version part of each key. A new version forgets all past work.
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.version = Some(version.into());
        self
    }

    /// What happens to a message without a key. Default: it is kept aside.
    pub fn on_missing_key(mut self, keyless: Keyless) -> Self {
        self.keyless = keyless;
        self
    }

    /// Runs messages of one order key one after the other; `by` is the place of the order key.
    pub fn ordered(mut self, by: &str, on_retry: OnRetry) -> Self {
        if let Some(by) = self.place("order_key", by) {
            self.order = Order::Key { by, on_retry };
        }
        self
    }

    /// How many messages run at once. Default 16.
    pub fn concurrency(mut self, messages: usize) -> Self {
        self.concurrency = messages;
        self
    }

    /// How many more messages may wait (behind their order key, for their retry, for another's outcome) while others run.
    /// Default 4,096; beyond that intake slows down.
    pub fn max_held(mut self, messages: usize) -> Self {
        self.max_held = messages;
        self
    }

    /// Tries and waits. Default: 5 attempts, 1 s doubling to 5 min, full jitter.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.settings.retry = retry;
        self
    }

    /// What happens to a declined message. Default: it is acknowledged.
    pub fn on_decline(mut self, on_decline: OnDecline) -> Self {
        self.settings.on_decline = on_decline;
        self
    }

    /// Lease, retention and the like, for the flow and for the steps that are added after this.
    pub fn terms(mut self, terms: Terms) -> Self {
        self.terms = terms;
        self
    }

    /// When intake pauses.
    pub fn circuit(mut self, circuit: Circuit) -> Self {
        self.circuit = circuit;
        self
    }

    /// Where rejected messages go. Default: the adapter's own place.
    pub fn dead_letter(mut self, place: DeadLetter) -> Self {
        self.dead_letter = place;
        self
    }

    /// Adds a step: an async function of the decoded body and the context.
    pub fn step<I, O, F, Fut>(self, name: impl Into<String>, run: F) -> Self
    where
        I: DeserializeOwned + Send + 'static,
        O: Serialize + Send + 'static,
        F: Fn(I, StepContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<O, StepError>> + Send + 'static,
    {
        self.step_of(name, FnStep { run, types: PhantomData::<fn(I) -> O> })
    }

    /// Adds a step of any kind.
    pub fn step_of(mut self, name: impl Into<String>, action: impl Step + 'static) -> Self {
        self.steps.push(StepDef {
            name: name.into().into(),
            action: Arc::new(action),
            keying: Keying::Message,
            terms: self.terms.clone(),
            on_after: None,
            reconcile: None,
        });
        self
    }

    /// Gives the last step a key of its own (`receipt:{body:/order/id}`): messages that give the same text share one effect.
    pub fn idempotent(mut self, template: &str) -> Self {
        match template.parse() {
            Ok(template) => self.with_last("idempotent", |step| step.keying = Keying::Own(template)),
            Err(error) => self.faults.push(format!("{}: {error}", self.last_step("key"))),
        }
        self
    }

    /// Takes the last step out of the guard: it sees to it itself that it takes effect once.
    pub fn manual(mut self) -> Self {
        self.with_last("manual", |step| step.keying = Keying::Manual);
        self
    }

    /// Waits while somebody else runs the last step under the same key.
    pub fn wait(mut self, wait: WaitPolicy) -> Self {
        self.with_last("wait", |step| step.terms.wait = wait);
        self
    }

    /// How long the last step's outcome answers.
    pub fn retention(mut self, retention: Duration) -> Self {
        self.with_last("retention", |step| {
            step.terms.retention = retention;
            step.terms.decline_retention = retention;
        });
        self
    }

    /// Keeps the last step's result before its hooks run, so that a failing hook does not repeat the action.
    pub fn recovery_point(mut self) -> Self {
        self.with_last("recovery_point", |step| step.terms.recovery_point = true);
        self
    }

    /// Runs after the last step's action and before its record is completed: while it fails, the step is not done.
    pub fn on_after<F, Fut>(mut self, hook: F) -> Self
    where
        F: Fn(Value, StepContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), StepError>> + Send + 'static,
    {
        let hook = AfterHook(Arc::new(move |value, cx| hook(value, cx).boxed()));
        self.with_last("on_after", |step| step.on_after = Some(hook));
        self
    }

    /// Finds out whether the last step took effect when that is unknown, instead of running it again.
    pub fn reconcile<F, Fut>(mut self, reconcile: F) -> Self
    where
        F: Fn(StepContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Reconciled, StepError>> + Send + 'static,
    {
        let reconcile = Reconciler(Arc::new(move |cx| reconcile(cx).boxed()));
        self.with_last("reconcile", |step| {
            step.terms.in_doubt = InDoubt::Reconcile;
            step.reconcile = Some(reconcile);
        });
        self
    }

    /// Checks everything.
    ///
    /// # Errors
    /// All faults at once.
    pub fn build(mut self) -> Result<Flow, BuildError> {
        self.check_names();
        self.check_steps();
        let shape = self.finish_shape();
        if self.concurrency == 0 {
            self.faults.push("concurrency: must be at least 1".to_owned());
        }
        if self.settings.retry.max < self.settings.retry.initial {
            self.faults.push("retry.max: is shorter than retry.initial".to_owned());
        }
        if self.terms.lease < Duration::from_millis(100) {
            self.faults.push("lease: must be at least 100ms".to_owned());
        }
        if self.from.is_none() {
            self.faults.push("source: is missing".to_owned());
        }
        if self.key.is_none() {
            self.faults
                .push("key: is missing; say what names a message, for example \"header:id\"".to_owned());
        }
        match (self.from, self.key, NonZeroUsize::new(self.concurrency), self.faults.is_empty()) {
            (Some((broker, source)), Some(key), Some(concurrency), true) => Ok(Flow {
                name: self.name.into(),
                broker,
                source,
                matches: self.matches,
                key,
                shape,
                namespace: self.namespace,
                version: self.version,
                keyless: self.keyless,
                order: self.order,
                concurrency,
                max_held: self.max_held,
                settings: self.settings,
                terms: self.terms,
                circuit: self.circuit,
                dead_letter: self.dead_letter,
                steps: self.steps,
            }),
            _ => Err(BuildError { flow: self.name, faults: self.faults }),
        }
    }

    fn check_names(&mut self) {
        let sound = |name: &str| {
            !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c))
        };
        if !sound(&self.name) {
            self.faults.push("name: only letters, digits, `_`, `-` and `.`".to_owned());
        }
        let mut seen = HashSet::new();
        for step in &self.steps {
            if !sound(&step.name) {
                self.faults.push(format!("steps.{}: only letters, digits, `_`, `-` and `.`", step.name));
            }
            if !seen.insert(Arc::clone(&step.name)) {
                self.faults
                    .push(format!("steps.{}: two steps have this name; each needs its own", step.name));
            }
        }
    }

    fn check_steps(&mut self) {
        if self.steps.is_empty() {
            self.faults.push("steps: a flow needs at least one".to_owned());
        }
        let mut before: Vec<&str> = Vec::new();
        for step in &self.steps {
            if let Keying::Own(template) = &step.keying {
                for read in template.steps().filter(|read| !before.contains(read)) {
                    self.faults.push(format!("steps.{}.key: no step `{read}` runs before it", step.name));
                }
            }
            if step.terms.in_doubt == InDoubt::Reconcile && step.reconcile.is_none() {
                self.faults.push(format!("steps.{}: in_doubt = reconcile needs a reconciler", step.name));
            }
            before.push(&step.name);
        }
    }

    fn places(&mut self, at: &str, places: Places) -> Vec<Reader> {
        if places.0.is_empty() {
            self.faults.push(format!("{at}: names no place"));
        }
        places.0.iter().filter_map(|place| self.place(at, place)).collect()
    }

    fn place(&mut self, at: &str, place: &str) -> Option<Reader> {
        match place.parse() {
            Ok(reader) => Some(reader),
            Err(error) => {
                self.faults.push(format!("{at}: {error}"));
                None
            }
        }
    }

    fn last_step(&self, what: &str) -> String {
        match self.steps.last() {
            Some(step) => format!("steps.{}.{what}", step.name),
            None => format!("{what} (before the first step)"),
        }
    }

    fn with_last(&mut self, what: &str, f: impl FnOnce(&mut StepDef)) {
        match self.steps.last_mut() {
            Some(step) => f(step),
            None => self.faults.push(format!("{what}: stands before the first step")),
        }
    }
}

/// An async function as a step.
struct FnStep<I, O, F> {
    run: F,
    types: PhantomData<fn(I) -> O>,
}

impl<I, O, F> fmt::Debug for FnStep<I, O, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FnStep")
    }
}

#[async_trait]
impl<I, O, F, Fut> Step for FnStep<I, O, F>
where
    I: DeserializeOwned + Send + 'static,
    O: Serialize + Send + 'static,
    F: Fn(I, StepContext) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<O, StepError>> + Send + 'static,
{
    async fn run(&self, cx: &StepContext) -> Result<Value, StepError> {
        let output = (self.run)(cx.body()?, cx.clone()).await?;
        // It took effect, so a result that cannot be encoded must not make it run again.
        serde_json::to_value(output).map_err(|error| StepError::done_without_result(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn nothing(_: Value, _: StepContext) -> Result<(), StepError> {
        Ok(())
    }

    #[test]
    fn every_fault_is_named_at_once() {
        let error = Flow::builder("bad name")
            .key("headr:id")
            .concurrency(0)
            .step("a", nothing)
            .idempotent("{step:later:/id}")
            .step("a", nothing)
            .build()
            .unwrap_err();
        for part in ["name:", "headr:id", "concurrency", "steps.a: two steps", "no step `later`", "source:"] {
            assert!(error.to_string().contains(part), "{part} in {error}");
        }
    }
}
