//! From values to types, with every fault instead of the first.
//!
//! Serde stops at the first fault. So each fault is noted, struck from the value (where something is needed, a stand-in
//! takes its place), and the reading starts again, until nothing is wrong any more.

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use serde_path_to_error::Segment;

use super::fault::Fault;
use super::place::Layers;

/// Stands in for a value that is wrong or missing. A fault that names it only follows from another, and is not shown.
pub(super) const STAND_IN: &str = "<not readable>";

/// More faults than this in one table are not worth the search.
const MOST: usize = 200;

/// A key path, part by part; list elements by their index.
pub(super) type KeyPath = Vec<String>;

/// Reads sections and keeps what was wrong with them.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    pub(super) layers: &'a Layers,
    pub(super) faults: Vec<Fault>,
    /// Where something was struck: what is found wrong there later is no news.
    pub(super) struck: Vec<KeyPath>,
}

impl Reader<'_> {
    pub(super) fn note(&mut self, path: &[String], problem: String) {
        self.faults.push(self.layers.fault(path.join("."), problem));
        self.struck.push(path.to_vec());
    }

    /// Reads a section that may be missing.
    pub(super) fn section<T: DeserializeOwned + Default>(&mut self, value: Option<Value>, key: &str) -> T {
        value.and_then(|value| self.read(value, &[key])).unwrap_or_default()
    }

    /// Reads the tables of a section, `[key.<name>]`.
    pub(super) fn named<T: DeserializeOwned>(&mut self, value: Option<Value>, key: &str) -> Vec<(String, T)> {
        match value {
            None => Vec::new(),
            Some(Value::Object(map)) => map
                .into_iter()
                .filter_map(|(name, value)| Some((name.clone(), self.read(value, &[key, &name])?)))
                .collect(),
            Some(_) => {
                self.note(&[key.to_owned()], format!("needs tables, [{key}.<name>]"));
                Vec::new()
            }
        }
    }

    fn read<T: DeserializeOwned>(&mut self, mut value: Value, key: &[&str]) -> Option<T> {
        let mut excused: Vec<KeyPath> = Vec::new();
        for _ in 0..MOST {
            let wrong = match attempt::<T>(&value) {
                Ok(value) => return Some(value),
                Err(wrong) => wrong,
            };
            let full: KeyPath = key.iter().map(|part| (*part).to_owned()).chain(wrong.path.clone()).collect();
            let missing = matches!(wrong.kind, Kind::Missing);
            if wrong.problem.contains(STAND_IN) || (missing && excused.contains(&wrong.path)) {
                self.struck.push(full);
            } else {
                self.note(&full, wrong.problem.clone());
            }
            excused.push(wrong.path.clone());
            if let Kind::Unknown { meant: Some(meant) } = &wrong.kind {
                // The misspelt key was this one, which is not missing then.
                excused.push(beside(&wrong.path, meant));
            }
            if !strike::<T>(&mut value, &wrong) {
                return None;
            }
        }
        None
    }
}

/// What is wrong first.
struct Wrong {
    path: KeyPath,
    problem: String,
    kind: Kind,
}

enum Kind {
    Unknown { meant: Option<String> },
    Missing,
    Other,
}

/// Reads a table into a type; the error is the key path and what is wrong there.
pub(crate) fn deserialize<T: DeserializeOwned>(value: Value, key: &str) -> Result<T, (String, String)> {
    attempt(&value).map_err(|wrong| {
        let path = std::iter::once(key).chain(wrong.path.iter().map(String::as_str));
        (path.collect::<Vec<_>>().join("."), wrong.problem)
    })
}

fn attempt<T: DeserializeOwned>(value: &Value) -> Result<T, Wrong> {
    serde_path_to_error::deserialize(value.clone()).map_err(|error| {
        let path = error.path().iter().filter_map(|segment| match segment {
            Segment::Seq { index } => Some(index.to_string()),
            Segment::Map { key } => Some(key.clone()),
            Segment::Enum { .. } | Segment::Unknown => None,
        });
        let mut path: KeyPath = path.collect();
        let message = error.into_inner().to_string();
        if let Some((field, known)) = after("unknown field", &message) {
            // Some paths end in the unknown field, some in the table around it.
            if at(value, &path).is_some_and(|table| table.get(field).is_some()) {
                path.push(field.to_owned());
            }
            let meant = nearest(field, known.iter().copied()).map(ToOwned::to_owned);
            return Wrong {
                path,
                problem: unknown_key(field, known.into_iter()),
                kind: Kind::Unknown { meant },
            };
        }
        if let Some((field, _)) = after("missing field", &message) {
            path.push(field.to_owned());
            return Wrong { path, problem: "is missing".to_owned(), kind: Kind::Missing };
        }
        let problem = match after("unknown variant", &message) {
            Some((word, known)) => {
                let hint = nearest(word, known.iter().copied());
                let hint = hint.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
                format!("`{word}` is none of {}{hint}", known.join(", "))
            }
            None => message,
        };
        Wrong { path, problem, kind: Kind::Other }
    })
}

/// Serde's words of a name that it does not expect: the name, and those that it does expect.
fn after<'a>(words: &str, message: &'a str) -> Option<(&'a str, Vec<&'a str>)> {
    let rest = message.strip_prefix(words)?.strip_prefix(" `")?;
    let (name, rest) = rest.split_once('`')?;
    Some((name, rest.split('`').skip(1).step_by(2).collect()))
}

/// Takes what is wrong out of the value; `false` when nothing can be done about it.
fn strike<T: DeserializeOwned>(value: &mut Value, wrong: &Wrong) -> bool {
    let in_table =
        wrong.path.split_last().is_some_and(|(_, table)| matches!(at(value, table), Some(Value::Object(_))));
    if !in_table || matches!(wrong.kind, Kind::Missing) {
        return stand_in::<T>(value, &wrong.path);
    }
    remove(value, &wrong.path)
}

/// Puts the first stand-in there that can be read.
fn stand_in<T: DeserializeOwned>(value: &mut Value, path: &[String]) -> bool {
    let candidates = [
        json!(STAND_IN),
        json!([STAND_IN]),
        json!({ "kind": STAND_IN }),
        json!({ "name": STAND_IN }),
        json!({ "broker": STAND_IN, "path": STAND_IN }),
        json!({ "place": STAND_IN, "equals": STAND_IN }),
        json!({ "key": STAND_IN, "source": { "broker": STAND_IN, "path": STAND_IN } }),
    ];
    for candidate in candidates {
        if !put(value, path, candidate) {
            return false;
        }
        match attempt::<T>(value) {
            Ok(_) => return true,
            Err(wrong) if !wrong.path.starts_with(path) => return true,
            Err(_) => {}
        }
    }
    false
}

fn at<'a>(value: &'a Value, path: &[String]) -> Option<&'a Value> {
    path.iter().try_fold(value, |value, part| match value {
        Value::Object(map) => map.get(part),
        Value::Array(list) => list.get(part.parse::<usize>().ok()?),
        _ => None,
    })
}

fn at_mut<'a>(value: &'a mut Value, path: &[String]) -> Option<&'a mut Value> {
    path.iter().try_fold(value, |value, part| match value {
        Value::Object(map) => map.get_mut(part),
        Value::Array(list) => list.get_mut(part.parse::<usize>().ok()?),
        _ => None,
    })
}

fn put(value: &mut Value, path: &[String], new: Value) -> bool {
    let Some((last, table)) = path.split_last() else {
        *value = new;
        return true;
    };
    match at_mut(value, table) {
        Some(Value::Object(map)) => {
            map.insert(last.clone(), new);
            true
        }
        Some(Value::Array(list)) => {
            let element = last.parse::<usize>().ok().and_then(|index| list.get_mut(index));
            element.map(|element| *element = new).is_some()
        }
        _ => false,
    }
}

fn remove(value: &mut Value, path: &[String]) -> bool {
    match path.split_last().and_then(|(last, table)| Some((last, at_mut(value, table)?))) {
        Some((last, Value::Object(map))) => map.remove(last).is_some(),
        _ => false,
    }
}

fn beside(path: &[String], name: &str) -> KeyPath {
    let table = &path[..path.len().saturating_sub(1)];
    table.iter().cloned().chain([name.to_owned()]).collect()
}

pub(crate) fn unknown_key<'a>(key: &str, known: impl Iterator<Item = &'a str> + Clone) -> String {
    match nearest(key, known.clone()) {
        Some(name) => format!("unknown key; did you mean `{name}`?"),
        None => format!("unknown key; known are {}", known.collect::<Vec<_>>().join(", ")),
    }
}

fn nearest<'a>(key: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let (distance, name) = known.map(|name| (strsim::damerau_levenshtein(key, name), name)).min()?;
    (distance <= 2.max(key.len() / 3)).then_some(name)
}
