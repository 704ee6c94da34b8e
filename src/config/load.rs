//! From the layers to the valid configuration.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use figment::Figment;
use figment::providers::Serialized;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::Config;
use super::fault::{Fault, Faults, Place};
use super::place::{Layers, line_and_column};
use super::read::{KeyPath, Reader, STAND_IN, unknown_key};
use super::variable::fill_in;

const PREFIX: &str = "ACKORD__";
const DEFAULT_FILES: [&str; 2] = ["ackord.toml", "/etc/ackord/ackord.toml"];

/// What a configuration is loaded from; nothing is read from anywhere else.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// The file that was asked for; else the first of `./ackord.toml` and `/etc/ackord/ackord.toml` that is there.
    pub file: Option<PathBuf>,
    /// The `--set path=value` flags, in order.
    pub sets: Vec<String>,
    /// The environment.
    pub variables: Vec<(String, String)>,
}

pub(super) fn load(sources: Sources) -> Result<Config, Faults> {
    let mut layers = Layers::default();
    let mut faults = Vec::new();
    let values = match read_file(&sources, &mut layers, &mut faults) {
        Ok(values) => values,
        Err(fault) => {
            // Nothing else can be checked then, since each key would be missing.
            faults.push(fault);
            return Err(Faults(faults));
        }
    };
    let written = values.clone();
    let mut figment = Figment::new().merge(Serialized::defaults(values));
    for (name, value) in &sources.variables {
        let Some(path) = name.strip_prefix(PREFIX) else { continue };
        if !path.split("__").all(is_part) {
            let problem = format!("names no key; write {PREFIX}WORKER__DRAIN for worker.drain");
            faults.push(Fault { key: String::new(), place: Some(Place::Variable(name.clone())), problem });
            continue;
        }
        let key = as_written(path, &written);
        figment = figment.merge(Serialized::default(&key, guess(value)));
        layers.variables.insert(key, name.clone());
    }
    for set in &sources.sets {
        match set.split_once('=').map(|(key, value)| (key.trim(), value)) {
            Some((key, value)) if key.split('.').all(is_part) => {
                figment = figment.merge(Serialized::default(key, guess(value)));
                layers.sets.push(key.to_owned());
            }
            _ => faults.push(Fault {
                key: String::new(),
                place: Some(Place::Set),
                problem: format!("`{set}` is not path=value, for example worker.drain=10s"),
            }),
        }
    }
    match figment.extract() {
        Ok(values) => interpret(values, layers, faults),
        Err(error) => {
            faults.extend(
                error.into_iter().map(|error| layers.fault(error.path.join("."), error.kind.to_string())),
            );
            Err(Faults(faults))
        }
    }
}

fn is_part(part: &str) -> bool {
    !part.is_empty()
}

/// The key path that a variable stands for. Variables are written in capitals, so names of the file are found whatever
/// their case.
fn as_written(path: &str, written: &Map<String, Value>) -> String {
    let mut table = Some(written);
    let parts = path.split("__").map(|part| {
        let found = table.and_then(|table| table.iter().find(|(name, _)| name.eq_ignore_ascii_case(part)));
        table = found.and_then(|(_, value)| value.as_object());
        found.map_or_else(|| part.to_lowercase(), |(name, _)| name.clone())
    });
    parts.collect::<Vec<_>>().join(".")
}

/// A variable's or a flag's text, read as a TOML value where it is one: `8` is a number, `[1, 2]` a list, `30s` text.
fn guess(text: &str) -> Value {
    let parsed = text.parse::<toml_edit::de::ValueDeserializer>().ok();
    parsed.and_then(|value| Value::deserialize(value).ok()).unwrap_or_else(|| Value::String(text.to_owned()))
}

/// The values of the file, variables filled in; none when no file was asked for and none is there.
fn read_file(
    sources: &Sources,
    layers: &mut Layers,
    faults: &mut Vec<Fault>,
) -> Result<Map<String, Value>, Fault> {
    let file = sources.file.clone();
    let Some(path) = file.or_else(|| DEFAULT_FILES.iter().map(PathBuf::from).find(|path| path.is_file()))
    else {
        return Ok(Map::new());
    };
    let text = std::fs::read_to_string(&path).map_err(|error| Fault {
        key: String::new(),
        place: None,
        problem: format!("{} cannot be read: {error}; name a file with --config", path.display()),
    })?;
    let mut values: Map<String, Value> = toml_edit::de::from_str(&text).map_err(|error| {
        let (line, column) = line_and_column(&text, error.span().map_or(0, |span| span.start));
        let place = Some(Place::File { path: path.clone(), line, column: Some(column) });
        Fault { key: String::new(), place, problem: error.message().trim_end().replace('\n', ", ") }
    })?;
    layers.file = Some((path, text));
    let variables: BTreeMap<&str, &str> =
        sources.variables.iter().map(|(name, value)| (&**name, &**value)).collect();
    for (key, value) in &mut values {
        fill_in(value, key, &variables, &mut |key, problem| faults.push(layers.fault(key, problem)));
    }
    Ok(values)
}

fn interpret(mut values: Map<String, Value>, layers: Layers, faults: Vec<Fault>) -> Result<Config, Faults> {
    let has_flows = values.contains_key("flows");
    let mut reader = Reader { layers: &layers, faults, struck: Vec::new() };
    let worker = reader.section(values.remove("worker"), "worker");
    let log = reader.section(values.remove("log"), "log");
    let store = reader.section(values.remove("store"), "store");
    let brokers = reader.named(values.remove("brokers"), "brokers");
    let flows = reader.named(values.remove("flows"), "flows");
    for unknown in values.keys() {
        let known = ["worker", "log", "store", "brokers", "flows"];
        reader.note(std::slice::from_ref(unknown), unknown_key(unknown, known.iter().copied()));
    }
    let Reader { mut faults, struck, .. } = reader;
    let folder =
        layers.file.as_ref().and_then(|(path, _)| path.parent()).map(Path::to_owned).unwrap_or_default();
    // Made absolute here, so that nothing depends on the working directory later.
    let folder = std::path::absolute(if folder.as_os_str().is_empty() { Path::new(".") } else { &folder });
    let config = Config { worker, log, store, brokers, flows, folder: folder.unwrap_or_default(), layers };
    let mut more = super::check::faults(&config);
    if faults.is_empty() && more.is_empty() {
        return Ok(config);
    }
    // What the words mean is checked by the registry. Asked here too, so that both kinds of fault are in one report.
    more.extend(crate::registry::parts(&config).err().into_iter().flat_map(|Faults(faults)| faults));
    let scopes: Vec<String> = struck.iter().map(|path| scope(path, &config)).collect();
    faults.extend(more.into_iter().filter(|fault| is_news(fault, &scopes, has_flows)));
    faults.sort_by_key(Fault::position);
    Err(Faults(faults))
}

/// How far what was struck may lead astray what else is checked: the setting that it belongs to, with all its parts.
fn scope(struck: &KeyPath, config: &Config) -> String {
    let depth = match struck.first().map(String::as_str) {
        Some("flows") => 3,
        Some("brokers") => 2,
        _ => 1,
    };
    if let [_, flow, steps, index, ..] = &struck[..]
        && steps == "steps"
        && let Some((_, flow)) = config.flows.iter().find(|(name, _)| name == flow)
        && let Some(step) = index.parse::<usize>().ok().and_then(|index| flow.steps.get(index))
    {
        // The registry knows steps by name.
        return format!("flows.{}.steps.{}", struck[1], step.name);
    }
    struck[..depth.min(struck.len())].join(".")
}

fn is_news(fault: &Fault, scopes: &[String], has_flows: bool) -> bool {
    let within = |scope: &String| {
        fault.key.strip_prefix(scope.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    let from_another = fault.key.contains(STAND_IN) || fault.problem.contains(STAND_IN);
    let no_brokers = scopes.iter().any(|scope| scope == "brokers") && fault.key.ends_with(".source.broker");
    let no_flows = has_flows && fault.key.is_empty();
    // A step that was struck is not there to be counted.
    let no_steps = fault.key.ends_with(".steps") && scopes.iter().any(|scope| scope.starts_with(&fault.key));
    !(from_another || no_brokers || no_flows || no_steps || scopes.iter().any(within))
}
