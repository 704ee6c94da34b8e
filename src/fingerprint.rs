//! What "the same request" means: a hash of the fields that define it. Pure.

use std::fmt;

use serde_json::Value;

use crate::key::reader::{Found, Reader, Refused, View};

/// A BLAKE3 hash of a request's defining content.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// The fingerprint of a body as it is. No body and an empty body differ.
    pub fn of_body(body: Option<&[u8]>) -> Self {
        let mut hasher = blake3::Hasher::new();
        match body {
            Some(bytes) => hasher.update(b"\x01").update(bytes),
            None => hasher.update(b"\x00"),
        };
        Self(hasher.finalize().into())
    }

    /// The fingerprint of several parts in order; ("ab", "c") and ("a", "bc") differ.
    pub fn of_parts<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"\x02");
        for part in parts {
            hasher.update(&(part.len() as u64).to_be_bytes()).update(part);
        }
        Self(hasher.finalize().into())
    }

    /// The fingerprint of what stands in several places, by meaning: JSON counts without its spaces and whatever the order
    /// of its fields, a JSON text is the text, a number is the text that was written.
    pub(crate) fn of_contents(contents: &[Option<Found<'_>>]) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"\x03");
        for content in contents {
            match content {
                None => add(&mut hasher, b'0', b""),
                Some(Found::Json(value)) => add_json(&mut hasher, value),
                Some(Found::Decoded(json, at)) => match json.pointer(at) {
                    Some(value) => add_json(&mut hasher, value),
                    None => add(&mut hasher, b'0', b""),
                },
                Some(Found::Bytes(bytes)) => match serde_json::from_slice(bytes) {
                    Ok(value) => add_json(&mut hasher, &value),
                    Err(_) => add(&mut hasher, b's', bytes),
                },
            }
        }
        Self(hasher.finalize().into())
    }

    /// The 32 bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The inverse of [`as_bytes`](Fingerprint::as_bytes).
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({})", blake3::Hash::from(self.0).to_hex())
    }
}

/// What defines "the same request" in a flow's messages.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Print {
    /// What the key's preset says, else the bytes of the body.
    #[default]
    Natural,
    /// What stands in these places; one that is not there counts as such.
    Fields(Vec<Reader>),
    /// The body as JSON, without these places in it.
    Without {
        /// The body.
        body: Reader,
        /// JSON pointers.
        pointers: Vec<String>,
    },
}

impl Print {
    /// The fingerprint of a message; `None` when that is left to the key's preset, or the body.
    ///
    /// # Errors
    /// [`Refused`] when a place holds nothing that can be read.
    pub(crate) fn of(&self, view: &View<'_>) -> Result<Option<Fingerprint>, Refused> {
        let contents = match self {
            Self::Natural => return Ok(None),
            Self::Fields(places) => {
                places.iter().map(|place| place.find(view)).collect::<Result<Vec<_>, _>>()?
            }
            Self::Without { body, pointers } => {
                let mut value = match body.find(view)? {
                    Some(Found::Json(value)) => value.clone(),
                    Some(Found::Decoded(json, at)) => json.pointer(at).cloned().unwrap_or_default(),
                    Some(Found::Bytes(_)) | None => return Ok(Some(Fingerprint::of_contents(&[None]))),
                };
                pointers.iter().for_each(|pointer| remove(&mut value, pointer));
                return Ok(Some(Fingerprint::of_contents(&[Some(Found::Json(&value))])));
            }
        };
        Ok(Some(Fingerprint::of_contents(&contents)))
    }

    pub(crate) fn readers_mut(&mut self) -> &mut [Reader] {
        match self {
            Self::Natural => &mut [],
            Self::Fields(places) => places,
            Self::Without { body, .. } => std::slice::from_mut(body),
        }
    }
}

fn remove(value: &mut Value, pointer: &str) {
    let Some((table, name)) = pointer.rsplit_once('/') else { return };
    match value.pointer_mut(table) {
        Some(Value::Object(fields)) => {
            fields.shift_remove(&name.replace("~1", "/").replace("~0", "~"));
        }
        Some(Value::Array(_)) => {
            if let Some(element) = value.pointer_mut(pointer) {
                *element = Value::Null;
            }
        }
        _ => {}
    }
}

fn add(hasher: &mut blake3::Hasher, kind: u8, bytes: &[u8]) {
    hasher.update(&[kind]).update(&(bytes.len() as u64).to_be_bytes()).update(bytes);
}

/// JSON was parsed with a limit on its depth, so this does not run out of stack.
fn add_json(hasher: &mut blake3::Hasher, value: &Value) {
    match value {
        Value::Null => add(hasher, b'n', b""),
        Value::Bool(flag) => add(hasher, b'b', &[u8::from(*flag)]),
        Value::Number(number) => add(hasher, b'd', number.to_string().as_bytes()),
        Value::String(text) => add(hasher, b's', text.as_bytes()),
        Value::Array(list) => {
            add(hasher, b'l', &(list.len() as u64).to_be_bytes());
            list.iter().for_each(|value| add_json(hasher, value));
        }
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().collect();
            fields.sort_by_key(|(name, _)| *name);
            add(hasher, b'o', &(fields.len() as u64).to_be_bytes());
            for (name, value) in fields {
                add(hasher, b'k', name.as_bytes());
                add_json(hasher, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(body: &'static str, print: &Print) -> Fingerprint {
        let message = ackord_broker::Message::new("m", body);
        print.of(&View::new(&message)).unwrap().unwrap()
    }

    #[test]
    fn fields_count_by_meaning_and_by_their_place() {
        let print = Print::Fields(vec!["body:/a".parse().unwrap(), "body:/b".parse().unwrap()]);
        let same = [r#"{"a":{"x":1,"y":[2]},"c":3}"#, r#"{ "c": 4, "a": {"y": [2], "x": 1} }"#];
        assert_eq!(of(same[0], &print), of(same[1], &print));
        let mut seen = std::collections::HashSet::new();
        for other in [
            "{}",
            r#"{"a":null}"#,
            r#"{"a":""}"#,
            r#"{"a":"1"}"#,
            r#"{"a":1}"#,
            r#"{"b":1}"#,
            r#"{"a":1.0}"#,
            r#"{"a":9007199254740993}"#,
            r#"{"a":9007199254740992}"#,
            r#"{"a":[1]}"#,
            r#"{"a":[[1]]}"#,
            r#"{"a":{"1":1}}"#,
        ] {
            assert!(seen.insert(of(other, &print)), "{other}");
        }
    }

    #[test]
    fn what_is_left_out_does_not_count_and_a_body_that_is_no_json_is_refused() {
        let pointers = ["/sent", "/deep/a~1b", "/none/x"].map(str::to_owned).to_vec();
        let print = Print::Without { body: "body:".parse().unwrap(), pointers };
        let one = r#"{"id":1,"sent":2,"deep":{"a/b":3,"c":4}}"#;
        assert_eq!(of(one, &print), of(r#"{"deep":{"c":4,"a/b":5},"id":1}"#, &print));
        assert_ne!(of(one, &print), of(r#"{"id":1,"deep":{"a/b":3,"c":5}}"#, &print));
        let message = ackord_broker::Message::new("m", "no json");
        assert!(print.of(&View::new(&message)).is_err());
    }

    #[test]
    fn no_body_and_an_empty_body_differ() {
        assert_ne!(Fingerprint::of_body(None), Fingerprint::of_body(Some(b"")));
    }

    #[test]
    fn the_border_between_parts_counts() {
        let one = Fingerprint::of_parts([b"ab".as_slice(), b"c"]);
        let other = Fingerprint::of_parts([b"a".as_slice(), b"bc"]);
        assert_ne!(one, other);
    }
}
