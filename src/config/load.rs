//! From the layers to the valid configuration.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use figment::Figment;
use figment::providers::Serialized;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use toml_edit::{Document, Item};

use super::Config;
use super::fault::{Fault, Faults, Place};

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

/// Where each value came from.
#[derive(Debug, Default)]
pub struct Layers {
    file: Option<(PathBuf, String)>,
    variables: BTreeMap<String, String>,
    sets: Vec<String>,
}

impl Layers {
    pub(super) fn fault(&self, key: String, problem: String) -> Fault {
        Fault { place: self.place(&key), key, problem }
    }

    /// The place of the key, or of the nearest key above it that is written down.
    pub fn place(&self, key: &str) -> Option<Place> {
        let mut path = key;
        loop {
            if self.sets.iter().any(|set| set == path) {
                return Some(Place::Set);
            }
            if let Some(variable) = self.variables.get(&path.to_lowercase()) {
                return Some(Place::Variable(variable.clone()));
            }
            if let Some((file, text)) = &self.file
                && let Some(line) = line_of(text, path)
            {
                return Some(Place::File { path: file.clone(), line });
            }
            path = &path[..path.rfind('.')?];
        }
    }
}

fn line_of(text: &str, key: &str) -> Option<usize> {
    let document = Document::parse(text).ok()?;
    let mut item: &Item = document.as_item();
    let mut span = None;
    for part in key.split('.') {
        if let Ok(index) = part.parse::<usize>() {
            item = item.get(index)?;
            span = item.span().or(span);
            continue;
        }
        let table = item.as_table_like()?;
        let (written, next) = table.get_key_value(part)?;
        span = written.span().or_else(|| next.span()).or(span);
        item = next;
    }
    span.map(|span| text[..span.start].matches('\n').count() + 1)
}

pub(super) fn load(sources: Sources) -> Result<Config, Faults> {
    let mut layers = Layers::default();
    let mut faults = Vec::new();
    let mut figment = Figment::new();
    if let Some(values) = read_file(&sources, &mut layers, &mut faults) {
        figment = figment.merge(Serialized::defaults(values));
    }
    if !faults.is_empty() {
        return Err(Faults(faults));
    }
    for (name, value) in &sources.variables {
        if let Some(path) = name.strip_prefix(PREFIX) {
            let key = path.to_lowercase().replace("__", ".");
            figment = figment.merge(Serialized::default(&key, guess(value)));
            layers.variables.insert(key, name.clone());
        }
    }
    for set in &sources.sets {
        match set.split_once('=') {
            Some((key, value)) => {
                figment = figment.merge(Serialized::default(key.trim(), guess(value)));
                layers.sets.push(key.trim().to_owned());
            }
            None => faults.push(Fault {
                key: String::new(),
                place: Some(Place::Set),
                problem: format!("`{set}` is not path=value, for example worker.drain=10s"),
            }),
        }
    }
    let values: Map<String, Value> = match figment.extract() {
        Ok(values) => values,
        Err(error) => {
            faults.extend(
                error.into_iter().map(|error| layers.fault(error.path.join("."), error.kind.to_string())),
            );
            return Err(Faults(faults));
        }
    };
    interpret(values, layers, faults)
}

/// A variable's or a flag's text, read as a TOML value where it is one: `8` is a number, `[1, 2]` a list, `30s` text.
fn guess(text: &str) -> Value {
    let parsed = text.parse::<toml_edit::de::ValueDeserializer>().ok();
    parsed.and_then(|value| Value::deserialize(value).ok()).unwrap_or_else(|| Value::String(text.to_owned()))
}

fn read_file(sources: &Sources, layers: &mut Layers, faults: &mut Vec<Fault>) -> Option<Map<String, Value>> {
    let path = match &sources.file {
        Some(path) => path.clone(),
        None => DEFAULT_FILES.iter().map(PathBuf::from).find(|path| path.is_file())?,
    };
    let whole = |problem: String| Fault { key: String::new(), place: None, problem };
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) => {
            faults.push(whole(format!(
                "{} cannot be read: {error}; name a file with --config",
                path.display()
            )));
            return None;
        }
    };
    let mut values: Map<String, Value> = match toml_edit::de::from_str(&text) {
        Ok(values) => values,
        Err(error) => {
            let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
            let place = Some(Place::File { path, line });
            faults.push(Fault { key: String::new(), place, problem: error.message().to_owned() });
            return None;
        }
    };
    layers.file = Some((path, text));
    let variables: BTreeMap<&str, &str> =
        sources.variables.iter().map(|(name, value)| (&**name, &**value)).collect();
    for (key, value) in &mut values {
        fill_in(value, key, &variables, &mut |key, problem| faults.push(layers.fault(key, problem)));
    }
    Some(values)
}

/// Replaces `${NAME}` and `${NAME:-default}` in texts; `$$` is a dollar sign.
fn fill_in(
    value: &mut Value,
    key: &str,
    variables: &BTreeMap<&str, &str>,
    fault: &mut impl FnMut(String, String),
) {
    match value {
        Value::String(text) if text.contains('$') => match substitute(text, variables) {
            Ok(filled) => *text = filled,
            Err(problem) => fault(key.to_owned(), problem),
        },
        Value::Array(list) => {
            for (index, value) in list.iter_mut().enumerate() {
                fill_in(value, &format!("{key}.{index}"), variables, fault);
            }
        }
        Value::Object(map) => {
            for (name, value) in map.iter_mut() {
                fill_in(value, &format!("{key}.{name}"), variables, fault);
            }
        }
        _ => {}
    }
}

fn substitute(text: &str, variables: &BTreeMap<&str, &str>) -> Result<String, String> {
    let mut filled = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        filled.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            filled.push('$');
            rest = after;
        } else if let Some(inner) = rest.strip_prefix('{') {
            let end = inner.find('}').ok_or("has `${` without `}`; write `$$` for a dollar sign")?;
            let (name, default) = match inner[..end].split_once(":-") {
                Some((name, default)) => (name, Some(default)),
                None => (&inner[..end], None),
            };
            let value = variables.get(name).copied().or(default);
            filled.push_str(value.ok_or_else(|| {
                format!("environment variable {name} is not set; set it, or write ${{{name}:-default}}")
            })?);
            rest = &inner[end + 1..];
        } else {
            filled.push('$');
        }
    }
    filled.push_str(rest);
    Ok(filled)
}

fn interpret(
    mut values: Map<String, Value>,
    layers: Layers,
    mut faults: Vec<Fault>,
) -> Result<Config, Faults> {
    let worker = section(values.remove("worker"), "worker", &layers, &mut faults);
    let log = section(values.remove("log"), "log", &layers, &mut faults);
    let store = section(values.remove("store"), "store", &layers, &mut faults);
    let brokers = named(values.remove("brokers"), "brokers", &layers, &mut faults);
    let flows = named(values.remove("flows"), "flows", &layers, &mut faults);
    for unknown in values.keys() {
        let known = ["worker", "log", "store", "brokers", "flows"];
        faults.push(layers.fault(unknown.clone(), unknown_key(unknown, known.iter().copied())));
    }
    if !faults.is_empty() {
        return Err(Faults(faults));
    }
    let folder =
        layers.file.as_ref().and_then(|(path, _)| path.parent()).map(Path::to_owned).unwrap_or_default();
    // Made absolute here, so that nothing depends on the working directory later.
    let folder = std::path::absolute(if folder.as_os_str().is_empty() { Path::new(".") } else { &folder });
    Ok(Config { worker, log, store, brokers, flows, folder: folder.unwrap_or_default(), layers })
}

fn section<T: DeserializeOwned + Default>(
    value: Option<Value>,
    key: &str,
    layers: &Layers,
    faults: &mut Vec<Fault>,
) -> T {
    value.and_then(|value| read(value, key, layers, faults)).unwrap_or_default()
}

fn named<T: DeserializeOwned>(
    value: Option<Value>,
    key: &str,
    layers: &Layers,
    faults: &mut Vec<Fault>,
) -> Vec<(String, T)> {
    match value {
        None => Vec::new(),
        Some(Value::Object(map)) => map
            .into_iter()
            .filter_map(|(name, value)| {
                Some((name.clone(), read(value, &format!("{key}.{name}"), layers, faults)?))
            })
            .collect(),
        Some(_) => {
            faults.push(layers.fault(key.to_owned(), format!("needs tables, [{key}.<name>]")));
            Vec::new()
        }
    }
}

fn read<T: DeserializeOwned>(value: Value, key: &str, layers: &Layers, faults: &mut Vec<Fault>) -> Option<T> {
    match deserialize(value, key) {
        Ok(value) => Some(value),
        Err((key, problem)) => {
            faults.push(layers.fault(key, problem));
            None
        }
    }
}

/// Reads a table into a type; the error is the key path and what is wrong there.
pub(crate) fn deserialize<T: DeserializeOwned>(value: Value, key: &str) -> Result<T, (String, String)> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string().replace('[', ".").replace(']', "");
        let inner = error.into_inner().to_string();
        let at = if path == "." { key.to_owned() } else { format!("{key}.{}", path.trim_start_matches('.')) };
        match unknown_field(&inner) {
            Some((field, known)) => {
                // Some paths end in the unknown field, some in the table around it.
                let at = if at.ends_with(&format!(".{field}")) { at } else { format!("{at}.{field}") };
                (at, unknown_key(field, known.into_iter()))
            }
            None => (at, inner),
        }
    })
}

/// What serde says of a field that it does not know: the field, and those that it knows.
fn unknown_field(message: &str) -> Option<(&str, Vec<&str>)> {
    let rest = message.strip_prefix("unknown field `")?;
    let (field, rest) = rest.split_once('`')?;
    Some((field, rest.split('`').skip(1).step_by(2).collect()))
}

pub(crate) fn unknown_key<'a>(key: &str, known: impl Iterator<Item = &'a str> + Clone) -> String {
    let near = known
        .clone()
        .map(|name| (strsim::damerau_levenshtein(key, name), name))
        .min()
        .filter(|(distance, _)| *distance <= 2.max(key.len() / 3));
    match near {
        Some((_, name)) => format!("unknown key; did you mean `{name}`?"),
        None => format!("unknown key; known are {}", known.collect::<Vec<_>>().join(", ")),
    }
}
