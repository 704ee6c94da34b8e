//! The message format: one message a line of JSON.

mod write;

use std::borrow::Cow;
use std::fmt;

use ackord_broker::{Header, Headers, Message, Origin};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use thiserror::Error;

pub(crate) use write::head;
pub use write::write_line;

/// Reads one line of the message format.
///
/// ```
/// let message = ackord_file::parse_line(br#"{"id":"a1","headers":{"try":3},"body":{"amount": 1.50}}"#)?;
/// assert_eq!(message.id.as_str(), "a1");
/// assert_eq!(message.headers.all("try").next().flatten().unwrap(), "3");
/// assert_eq!(message.body.unwrap(), r#"{"amount": 1.50}"#);
/// # Ok::<(), ackord_file::FormatError>(())
/// ```
///
/// | field | takes |
/// |---|---|
/// | `id` | text or a number; without one, the id is empty and the caller chooses one |
/// | `key` | a value, the record key |
/// | `headers`, `properties`, `attributes` | an object from names to values, or a list of pairs of name and value |
/// | `body` | any JSON, kept byte for byte; null is no body |
/// | `body_text`, `body_base64` | instead of `body`: a body as text, or as bytes in base64 |
/// | `origin` | an object of `broker`, `source` and `position` |
/// | `dead_letter` | an object that [`write_line`] adds to a rejected message; not part of the message |
///
/// A value is text, `{"base64":"…"}` for what is not text, null, or a number, true or false, taken as their text.
///
/// # Errors
/// [`FormatError`] says which part is wrong; a field that is not in this table is an error too.
pub fn parse_line(line: &[u8]) -> Result<Message, FormatError> {
    let text = std::str::from_utf8(line).map_err(|error| FormatError::Utf8(error.valid_up_to()))?;
    if !text.trim_start().starts_with('{') {
        return Err(match serde_json::from_str::<&RawValue>(text) {
            Ok(_) => FormatError::NotAnObject,
            Err(error) => FormatError::Json(error),
        });
    }
    let line: Line<'_> = serde_json::from_str(text).map_err(FormatError::Json)?;
    if let Some(raw) = line.dead_letter
        && !raw.get().starts_with('{')
    {
        return Err(FormatError::field("dead_letter", "must be an object"));
    }
    Ok(Message {
        id: match line.id {
            Some(raw) => id(raw)?.as_ref().into(),
            None => "".into(),
        },
        record_key: line.key.map(|raw| value("key", raw)).transpose()?.flatten(),
        headers: headers("headers", line.headers)?,
        properties: headers("properties", line.properties)?,
        attributes: headers("attributes", line.attributes)?,
        body: body(&line)?,
        origin: line.origin.map(origin).transpose()?.unwrap_or_default(),
        fault: None,
    })
}

/// What is wrong with a line.
#[derive(Debug, Error)]
pub enum FormatError {
    /// The line is not text.
    #[error("byte {0} of the line is not valid UTF-8")]
    Utf8(usize),
    /// The line is JSON, but not an object.
    #[error("the line is not a JSON object")]
    NotAnObject,
    /// The line is not JSON, or has an unknown or a repeated field.
    #[error("{0}")]
    Json(serde_json::Error),
    /// A field has a value that it cannot have.
    #[error("field `{field}`: {problem}")]
    Field {
        /// The field's name, with the header's name where it is one.
        field: String,
        /// What is wrong with it.
        problem: String,
    },
    /// More than one of `body`, `body_text` and `body_base64`.
    #[error("`{0}` and `{1}` are both there, a message has one body")]
    TwoBodies(&'static str, &'static str),
}

impl FormatError {
    fn field(field: impl Into<String>, problem: impl fmt::Display) -> Self {
        Self::Field { field: field.into(), problem: problem.to_string() }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    key: Option<&'a RawValue>,
    #[serde(borrow)]
    headers: Option<&'a RawValue>,
    #[serde(borrow)]
    properties: Option<&'a RawValue>,
    #[serde(borrow)]
    attributes: Option<&'a RawValue>,
    #[serde(borrow)]
    body: Option<&'a RawValue>,
    #[serde(borrow)]
    body_text: Option<&'a RawValue>,
    #[serde(borrow)]
    body_base64: Option<&'a RawValue>,
    #[serde(borrow)]
    origin: Option<&'a RawValue>,
    #[serde(borrow)]
    dead_letter: Option<&'a RawValue>,
}

fn id(raw: &RawValue) -> Result<Cow<'_, str>, FormatError> {
    match raw.get().as_bytes()[0] {
        b'"' => text("id", raw),
        b'-' | b'0'..=b'9' => Ok(Cow::Borrowed(raw.get())),
        _ => Err(FormatError::field("id", "must be text or a number")),
    }
}

fn body(line: &Line<'_>) -> Result<Option<Bytes>, FormatError> {
    let forms = [("body", line.body), ("body_text", line.body_text), ("body_base64", line.body_base64)];
    let mut given = forms.into_iter().filter_map(|(name, raw)| raw.map(|raw| (name, raw)));
    let Some((name, raw)) = given.next() else { return Ok(None) };
    if let Some((other, _)) = given.next() {
        return Err(FormatError::TwoBodies(name, other));
    }
    Ok(Some(match name {
        "body" => Bytes::copy_from_slice(raw.get().as_bytes()),
        "body_text" => bytes(text(name, raw)?),
        _ => base64_text(name, &text(name, raw)?)?,
    }))
}

fn headers(field: &str, raw: Option<&RawValue>) -> Result<Headers, FormatError> {
    let Some(raw) = raw else { return Ok(Headers::default()) };
    let wrong = |error: serde_json::Error| FormatError::field(field, error);
    match raw.get().as_bytes()[0] {
        b'{' => {
            let Object(pairs) = serde_json::from_str(raw.get()).map_err(wrong)?;
            pairs
                .into_iter()
                .map(|(name, raw)| {
                    let value = value(field, raw).map_err(|error| inside(error, field, &name))?;
                    Ok(Header { name: Bytes::from(name), value })
                })
                .collect()
        }
        b'[' => {
            let pairs: Vec<[&RawValue; 2]> = serde_json::from_str(raw.get()).map_err(wrong)?;
            pairs
                .into_iter()
                .map(|[name, raw]| {
                    let name = match name.get().as_bytes()[0] {
                        b'"' | b'{' => value(field, name)?.expect("neither text nor an object is null"),
                        _ => {
                            return Err(FormatError::field(
                                field,
                                "a name must be text or {\"base64\":\"…\"}",
                            ));
                        }
                    };
                    let value = value(field, raw)
                        .map_err(|error| inside(error, field, &String::from_utf8_lossy(&name)))?;
                    Ok(Header { name, value })
                })
                .collect()
        }
        _ => Err(FormatError::field(field, "must be an object or a list of pairs")),
    }
}

/// Adds the header's name to an error in its value.
fn inside(error: FormatError, field: &str, name: &str) -> FormatError {
    match error {
        FormatError::Field { problem, .. } => FormatError::field(format!("{field}.{name}"), problem),
        other => other,
    }
}

fn origin(raw: &RawValue) -> Result<Origin, FormatError> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Written {
        broker: Option<String>,
        source: Option<String>,
        position: Option<String>,
    }
    if !raw.get().starts_with('{') {
        return Err(FormatError::field("origin", "must be an object"));
    }
    let written: Written =
        serde_json::from_str(raw.get()).map_err(|error| FormatError::field("origin", error))?;
    Ok(Origin {
        broker: written.broker.unwrap_or_default().into(),
        source: written.source.unwrap_or_default().into(),
        position: written.position.map(Into::into),
    })
}

/// A key's or a header's value: text, bytes, null, or a number, true or false as their text.
fn value(field: &str, raw: &RawValue) -> Result<Option<Bytes>, FormatError> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Binary {
        base64: String,
    }
    match raw.get().as_bytes()[0] {
        b'"' => text(field, raw).map(|text| Some(bytes(text))),
        b'n' => Ok(None),
        b'{' => {
            let binary: Binary =
                serde_json::from_str(raw.get()).map_err(|error| FormatError::field(field, error))?;
            base64_text(field, &binary.base64).map(Some)
        }
        b'[' => Err(FormatError::field(field, "a list is not a value; write it as text")),
        _ => Ok(Some(Bytes::copy_from_slice(raw.get().as_bytes()))),
    }
}

fn text<'a>(field: &str, raw: &'a RawValue) -> Result<Cow<'a, str>, FormatError> {
    let quoted = raw.get();
    if !quoted.starts_with('"') {
        return Err(FormatError::field(field, "must be text"));
    }
    // Most text has no escapes; then what stands between the quotes is the text itself.
    let inner = &quoted[1..quoted.len() - 1];
    if !inner.contains('\\') {
        return Ok(Cow::Borrowed(inner));
    }
    serde_json::from_str(quoted).map(Cow::Owned).map_err(|error| FormatError::field(field, error))
}

fn bytes(text: Cow<'_, str>) -> Bytes {
    match text {
        Cow::Borrowed(text) => Bytes::copy_from_slice(text.as_bytes()),
        Cow::Owned(text) => Bytes::from(text),
    }
}

fn base64_text(field: &str, text: &str) -> Result<Bytes, FormatError> {
    STANDARD
        .decode(text)
        .map(Bytes::from)
        .map_err(|error| FormatError::field(field, format!("not base64: {error}")))
}

/// An object's fields in order, repeats kept.
struct Object<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Object<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Object<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Object(fields))
            }
        }
        deserializer.deserialize_map(Fields)
    }
}
