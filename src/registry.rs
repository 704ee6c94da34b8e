//! The only file that names adapters, stores and step kinds: from their words in the configuration to what runs.

mod shape;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ackord_broker::Broker;
use serde_json::{Map, Value};

use crate::backoff::Retry;
use crate::config::{Config, Fault, Faults, raw};
use crate::flow::{BuildError, DeadLetter, Flow, FlowBuilder, Keyless, Match, OnRetry, Step, StepContext};
use crate::gate::Circuit;
use crate::guard::{InDoubt, Reconciled, Terms, WaitPolicy};
use crate::idempotency::memory::MemoryStore;
use crate::idempotency::{IdempotencyStore, StoreError};
use crate::key::reader::{Reader, UnknownPlace};
use crate::policy::OnDecline;

/// What a configuration's words stand for, checked; nothing has been opened yet.
#[derive(Debug)]
pub struct Parts {
    /// Brokers by name.
    pub brokers: Vec<(String, Arc<dyn Broker>)>,
    /// Flows.
    pub flows: Vec<Flow>,
    /// The store, to be opened.
    pub store: StorePlan,
}

/// A store that has not been opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StorePlan {
    /// In memory.
    Memory,
    /// In a SQLite file.
    Sqlite(PathBuf),
}

impl StorePlan {
    /// Opens it.
    ///
    /// # Errors
    /// [`StoreError`] says what is wrong and what cures it.
    pub fn open(&self) -> Result<Arc<dyn IdempotencyStore>, StoreError> {
        match self {
            Self::Memory => Ok(Arc::new(MemoryStore::new())),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(path) => Ok(Arc::new(crate::idempotency::sqlite::SqliteStore::open(path)?)),
            #[cfg(not(feature = "sqlite"))]
            Self::Sqlite(_) => Err(StoreError::Refused {
                operation: "open",
                reason: "this program was built without the feature `sqlite`".to_owned(),
            }),
        }
    }

    /// One line for people.
    pub fn describe(&self) -> String {
        match self {
            Self::Memory => "store memory: forgets everything when the process ends".to_owned(),
            Self::Sqlite(path) => {
                format!("store sqlite {}: survives kill and power loss, guards one machine", path.display())
            }
        }
    }
}

/// Reads a configuration.
///
/// # Errors
/// Every fault, at once.
pub fn parts(config: &Config) -> Result<Parts, Faults> {
    let mut faults = Vec::new();
    let mut brokers = Vec::new();
    for (name, raw) in &config.brokers {
        match broker(config, name, raw) {
            Ok(broker) => brokers.push((name.clone(), broker)),
            Err(fault) => faults.push(fault),
        }
    }
    let store = store(config).map_err(|fault| faults.push(fault)).ok();
    let mut flows = Vec::new();
    for (name, raw) in &config.flows {
        match flow(config, name, raw) {
            Ok(flow) => flows.push(flow),
            Err(more) => faults.extend(more),
        }
    }
    if config.flows.is_empty() {
        faults.push(config.fault("", "there is no flow; add a table [flows.<name>]"));
    }
    match store {
        Some(store) if faults.is_empty() => Ok(Parts { brokers, flows, store }),
        _ => Err(Faults(faults)),
    }
}

fn broker(config: &Config, name: &str, raw: &raw::Broker) -> Result<Arc<dyn Broker>, Fault> {
    let key = format!("brokers.{name}");
    match raw.kind.as_str() {
        #[cfg(feature = "file")]
        "file" => {
            let mut options: ackord_file::FileConfig = options(config, &key, &raw.options)?;
            for path in [&mut options.progress, &mut options.dead_letter].into_iter().flatten() {
                *path = config.folder.join(&*path);
            }
            Ok(Arc::new(ackord_file::FileBroker::new(options)))
        }
        kind => {
            let known = if cfg!(feature = "file") { "file" } else { "none" };
            Err(config
                .fault(format!("{key}.kind"), format!("`{kind}` is no kind of broker; built in: {known}")))
        }
    }
}

fn store(config: &Config) -> Result<StorePlan, Fault> {
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Sqlite {
        #[serde(default = "default_path")]
        path: PathBuf,
    }
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Memory {}
    fn default_path() -> PathBuf {
        "ackord.db".into()
    }
    match config.store.kind.as_str() {
        "memory" => options(config, "store", &config.store.options).map(|Memory {}| StorePlan::Memory),
        "sqlite" => options(config, "store", &config.store.options)
            .map(|Sqlite { path }| StorePlan::Sqlite(config.folder.join(path))),
        kind => {
            Err(config.fault("store.kind", format!("`{kind}` is no kind of store; built in: memory, sqlite")))
        }
    }
}

fn options<T: serde::de::DeserializeOwned>(
    config: &Config,
    key: &str,
    options: &Map<String, Value>,
) -> Result<T, Fault> {
    crate::config::deserialize(Value::Object(options.clone()), key)
        .map_err(|(key, problem)| config.fault(key, problem))
}

fn flow(config: &Config, name: &str, raw: &raw::Flow) -> Result<Flow, Vec<Fault>> {
    let key = format!("flows.{name}");
    let mut faults = Vec::new();
    let mut fault = |at: &str, problem: String| faults.push(config.fault(format!("{key}.{at}"), problem));
    if !config.brokers.iter().any(|(known, _)| *known == raw.source.broker) {
        let known = config.brokers.iter().map(|(name, _)| name.as_str());
        let problem =
            crate::config::unknown_key(&raw.source.broker, known).replace("unknown key", "no such broker");
        fault("source.broker", format!("`{}`: {problem}", raw.source.broker));
    }
    let source = match source(config, &raw.source) {
        Ok(source) => source,
        Err(problem) => {
            fault("source", problem);
            String::new()
        }
    };
    let mut builder = Flow::builder(name).from(&raw.source.broker, source);
    builder = shape::describe(raw, builder);
    for condition in conditions(&raw.matches) {
        match condition {
            Ok(condition) => builder = builder.matching(condition),
            Err(problem) => fault("match", problem),
        }
    }
    if let Some(namespace) = &raw.namespace {
        // Text that names no place is the namespace itself.
        let place = match namespace.parse::<Reader>() {
            Err(UnknownPlace::Place(_)) => format!("const:{namespace}"),
            // A misspelt decode step is reported, not taken for a name.
            Ok(_) | Err(UnknownPlace::Step(_)) => namespace.clone(),
        };
        builder = builder.namespace(&place);
    }
    if let Some(version) = &raw.version {
        builder = builder.version(version);
    }
    if raw.order == raw::Order::Key {
        let on_retry = match raw.on_retry {
            raw::OnRetry::HoldKey => OnRetry::HoldKey,
            raw::OnRetry::Divert => OnRetry::Divert,
        };
        builder = builder.ordered(&raw.order_key, on_retry);
    }
    builder = settings(config, raw, builder);
    for step in &raw.steps {
        let (with_step, problem) = add_step(config, step, builder);
        builder = with_step;
        if let Some((at, problem)) = problem {
            fault(&at, problem);
        }
    }
    match builder.build() {
        Ok(flow) if faults.is_empty() => Ok(flow),
        Ok(_) => Err(faults),
        Err(BuildError { faults: more, .. }) => {
            // Each begins with its place in the flow.
            faults.extend(more.into_iter().map(|text| match text.split_once(": ") {
                Some((at, problem)) => config.fault(format!("{key}.{at}"), problem),
                None => config.fault(key.clone(), text),
            }));
            Err(faults)
        }
    }
}

fn source(config: &Config, raw: &raw::Source) -> Result<String, String> {
    match (&raw.queue, &raw.topic, &raw.path) {
        (Some(name), None, None) | (None, Some(name), None) => Ok(name.clone()),
        (None, None, Some(path)) if path == "-" => Ok(path.clone()),
        (None, None, Some(path)) => Ok(config.folder.join(path).display().to_string()),
        _ => Err("needs exactly one of queue, topic and path".to_owned()),
    }
}

fn conditions(raw: &raw::Matches) -> Vec<Result<Match, String>> {
    let list = match raw {
        raw::Matches::One(one) => std::slice::from_ref(one),
        raw::Matches::All(all) => all,
    };
    let condition = |raw: &raw::Match| {
        let place = match (&raw.header, &raw.place) {
            (Some(header), None) => Reader::Header(header.clone()),
            (None, Some(place)) => place.parse::<Reader>().map_err(|error| error.to_string())?,
            _ => return Err("needs exactly one of header and place".to_owned()),
        };
        match (&raw.equals, raw.present) {
            (Some(text), None) => Ok(Match::equals(place, text)),
            (None, Some(true)) => Ok(Match { place, equals: None }),
            _ => Err("needs exactly one of equals = \"…\" and present = true".to_owned()),
        }
    };
    list.iter().map(condition).collect()
}

fn settings(config: &Config, raw: &raw::Flow, builder: FlowBuilder) -> FlowBuilder {
    let faults = raw.fault_after.get();
    let circuit = match &raw.circuit {
        raw::Circuit::Word(raw::Off::Off) => Circuit { failures: None, faults, ..Circuit::default() },
        raw::Circuit::Limits(limits) => Circuit {
            failures: Some(limits.failures.get()),
            faults,
            probe_initial: limits.probe_initial.0,
            probe_max: limits.probe_max.0,
        },
    };
    let dead_letter = match raw.dead_letter.as_deref() {
        None => DeadLetter::Default,
        Some("none") => DeadLetter::Nowhere,
        // For a source that is a file, so is its dead-letter place.
        Some(place) if raw.source.path.is_some() => {
            DeadLetter::To(config.folder.join(Path::new(place)).display().to_string())
        }
        Some(place) => DeadLetter::To(place.to_owned()),
    };
    builder
        .on_missing_key(match raw.on_missing {
            raw::OnMissing::Park => Keyless::Park,
            raw::OnMissing::Ignore => Keyless::Ignore,
        })
        .concurrency(raw.concurrency.get())
        .max_held(raw.max_held)
        .retry(Retry { attempts: raw.retry.attempts, initial: raw.retry.initial.0, max: raw.retry.max.0 })
        .on_decline(match raw.on_decline {
            raw::OnDecline::Ack => OnDecline::Ack,
            raw::OnDecline::DeadLetter => OnDecline::DeadLetter,
        })
        .dead_letter(dead_letter)
        .circuit(circuit)
        .terms(Terms {
            lease: raw.lease.0,
            retention: raw.retention.0,
            decline_retention: raw.decline_retention.unwrap_or(raw.retention).0,
            result_cap: raw.result_cap.0,
            in_doubt: match raw.in_doubt {
                raw::InDoubt::Rerun => InDoubt::Rerun,
                raw::InDoubt::Reconcile => InDoubt::Reconcile,
                raw::InDoubt::Park => InDoubt::Park,
            },
            max_crashes: raw.max_crashes.get(),
            ..Terms::default()
        })
}

/// What is wrong with a step: its place in the flow, and the problem.
type StepFault = Option<(String, String)>;

fn add_step(config: &Config, raw: &raw::Step, mut builder: FlowBuilder) -> (FlowBuilder, StepFault) {
    let at = |what: &str| format!("steps.{}{what}", raw.name);
    let action = match action(config, raw.command.as_ref(), raw.http.as_ref()) {
        Ok(action) => action,
        Err(problem) => return (builder, Some((at(""), problem))),
    };
    builder = builder.step_of(&raw.name, action);
    match &raw.idempotency {
        None => {}
        Some(raw::Idempotency::Word(raw::Manual::Manual)) => builder = builder.manual(),
        Some(raw::Idempotency::Own(own)) => {
            if let Some(key) = &own.key {
                builder = builder.idempotent(key);
            }
            if let Some(retention) = own.retention {
                builder = builder.retention(retention.0);
            }
            let millis = std::time::Duration::from_millis;
            let mut wait = WaitPolicy::default();
            wait.timeout =
                own.wait.map(|span| span.0).or(own.settle_timeout_ms.map(millis)).unwrap_or(wait.timeout);
            wait.poll_interval = own
                .poll
                .map(|span| span.0)
                .or(own.poll_interval_ms.map(millis))
                .unwrap_or(wait.poll_interval);
            builder = builder.wait(wait);
        }
    }
    if let Some(reconcile) = &raw.reconcile {
        match self::action(config, reconcile.command.as_ref(), reconcile.http.as_ref()) {
            Ok(action) => {
                builder = builder.reconcile(move |cx: StepContext| {
                    let action = Arc::clone(&action);
                    async move {
                        match action.run(&cx).await {
                            Ok(value) => Ok(Reconciled::Happened(value)),
                            Err(error) if error.verdict() == crate::classify::Verdict::Declined => {
                                Ok(Reconciled::NotHappened)
                            }
                            Err(error) => Err(error),
                        }
                    }
                });
            }
            Err(problem) => return (builder, Some((at(".reconcile"), problem))),
        }
    }
    (builder, None)
}

fn action(
    config: &Config,
    command: Option<&raw::Command>,
    http: Option<&raw::Http>,
) -> Result<Arc<dyn Step>, String> {
    match (command, http) {
        (Some(raw), None) => command_step(config, raw),
        (None, Some(raw)) => http_step(raw),
        _ => Err("needs exactly one of command and http".to_owned()),
    }
}

#[cfg(feature = "command")]
fn command_step(config: &Config, raw: &raw::Command) -> Result<Arc<dyn Step>, String> {
    use crate::flow::command::{CommandSettings, CommandStep};
    if raw.run.is_empty() {
        return Err("command.run is empty; name a program, for example [\"./charge\"]".to_owned());
    }
    let dir = raw.dir.as_ref().map_or_else(|| config.folder.clone(), |dir| config.folder.join(dir));
    Ok(Arc::new(CommandStep::new(CommandSettings {
        run: raw.run.clone(),
        timeout: raw.timeout.0,
        dir: Some(dir),
        env: raw.env.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
        ..CommandSettings::default()
    })))
}

#[cfg(not(feature = "command"))]
fn command_step(_: &Config, _: &raw::Command) -> Result<Arc<dyn Step>, String> {
    Err("this program was built without the feature `command`".to_owned())
}

#[cfg(feature = "http")]
fn http_step(raw: &raw::Http) -> Result<Arc<dyn Step>, String> {
    use crate::flow::http::{HttpSettings, HttpStep};
    let settings = HttpSettings {
        method: raw.method.clone(),
        url: raw.url.clone(),
        timeout: raw.timeout.0,
        headers: raw.headers.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
        ..HttpSettings::default()
    };
    Ok(Arc::new(HttpStep::new(settings)?))
}

#[cfg(not(feature = "http"))]
fn http_step(_: &raw::Http) -> Result<Arc<dyn Step>, String> {
    Err("this program was built without the feature `http`".to_owned())
}
