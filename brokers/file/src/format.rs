//! The project's message format: one JSON object in one line.
//!
//! `{"id":…, "key":…, "headers":{…} or [[name, value],…], "properties":…, "attributes":…, "body":<any JSON>,
//! "origin":{…}}`. Instead of `body` there may be `body_text` (text that is not JSON) or `body_base64` (bytes). A value
//! that is not text is `{"base64":"…"}`; null is null. In `body` the bytes are kept as they are written. A name that is not
//! text, and names that repeat, need the list form. A dead letter carries `dead_letter` beside these; it is ignored when
//! the line is read.

use ackord_broker::{Header, Headers, Message, Origin, Rejection};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use thiserror::Error;

/// Why a line is not a message.
#[derive(Debug, Error)]
pub enum FormatError {
    /// It is not JSON, or a field is unknown or of the wrong type; the text says which and where.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    /// A field does not hold what it should.
    #[error("`{field}` {problem}")]
    Field {
        /// The field.
        field: String,
        /// What is wrong with it.
        problem: &'static str,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line<'a> {
    id: Option<Value>,
    key: Option<Value>,
    headers: Option<Value>,
    properties: Option<Value>,
    attributes: Option<Value>,
    #[serde(borrow)]
    body: Option<&'a RawValue>,
    body_text: Option<String>,
    body_base64: Option<String>,
    origin: Option<OriginFields>,
    dead_letter: Option<&'a RawValue>,
}

#[derive(Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
struct OriginFields {
    broker: String,
    source: String,
    position: Option<String>,
}

/// Reads a line. The message's id is empty when the line has none: the caller knows a better one.
///
/// # Errors
/// [`FormatError`] names the field or the column.
pub fn parse_line(line: &[u8]) -> Result<Message, FormatError> {
    let line: Line<'_> = serde_json::from_slice(line)?;
    let _ = line.dead_letter;
    let bodies = [line.body.is_some(), line.body_text.is_some(), line.body_base64.is_some()];
    if bodies.iter().filter(|given| **given).count() > 1 {
        return Err(wrong("body", "is given more than once (body, body_text, body_base64)"));
    }
    let body = match (line.body, line.body_text, line.body_base64) {
        (Some(json), _, _) => Some(Bytes::copy_from_slice(json.get().as_bytes())),
        (_, Some(text), _) => Some(Bytes::from(text)),
        (_, _, Some(text)) => Some(decode("body_base64", &text)?),
        (None, None, None) => None,
    };
    let id = match line.id {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text,
        Some(Value::Number(number)) => number.to_string(),
        Some(_) => return Err(wrong("id", "is neither text nor a number")),
    };
    let origin = line.origin.unwrap_or_default();
    Ok(Message {
        id: id.into(),
        record_key: line.key.map(|key| value("key", key)).transpose()?.flatten(),
        headers: headers("headers", line.headers)?,
        properties: headers("properties", line.properties)?,
        attributes: headers("attributes", line.attributes)?,
        body,
        origin: Origin {
            broker: origin.broker.into(),
            source: origin.source.into(),
            position: origin.position.map(Into::into),
        },
        fault: None,
    })
}

fn headers(field: &str, given: Option<Value>) -> Result<Headers, FormatError> {
    let pairs: Vec<(Bytes, Value)> = match given {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Object(map)) => map.into_iter().map(|(name, value)| (Bytes::from(name), value)).collect(),
        Some(Value::Array(list)) => {
            list.into_iter().map(|pair| name_and_value(field, pair)).collect::<Result<_, _>>()?
        }
        Some(_) => return Err(wrong(field, "is neither an object nor a list of [name, value]")),
    };
    pairs
        .into_iter()
        .map(|(name, given)| {
            let place = format!("{field}.{}", String::from_utf8_lossy(&name));
            Ok(Header { value: value(&place, given)?, name })
        })
        .collect()
}

fn name_and_value(field: &str, pair: Value) -> Result<(Bytes, Value), FormatError> {
    let Value::Array(pair) = pair else { return Err(wrong(field, "has an entry that is not [name, value]")) };
    let [name, value_given]: [Value; 2] =
        pair.try_into().map_err(|_| wrong(field, "has an entry that is not [name, value]"))?;
    let name = value(field, name)?.ok_or_else(|| wrong(field, "has a name that is null"))?;
    Ok((name, value_given))
}

fn value(field: &str, given: Value) -> Result<Option<Bytes>, FormatError> {
    match given {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(Bytes::from(text))),
        Value::Number(number) => Ok(Some(Bytes::from(number.to_string()))),
        Value::Bool(flag) => Ok(Some(Bytes::from(flag.to_string()))),
        Value::Object(map) => match map.get("base64") {
            Some(Value::String(text)) if map.len() == 1 => Ok(Some(decode(field, text)?)),
            _ => Err(wrong(field, "is an object other than {\"base64\":\"…\"}")),
        },
        Value::Array(_) => Err(wrong(field, "is a list, not a value")),
    }
}

fn decode(field: &str, text: &str) -> Result<Bytes, FormatError> {
    STANDARD.decode(text).map(Bytes::from).map_err(|_| wrong(field, "is not base64"))
}

fn wrong(field: &str, problem: &'static str) -> FormatError {
    FormatError::Field { field: field.to_owned(), problem }
}

#[derive(Serialize)]
struct Written<'a> {
    id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<Value>,
    #[serde(skip_serializing_if = "Value::is_null")]
    headers: Value,
    #[serde(skip_serializing_if = "Value::is_null")]
    properties: Value,
    #[serde(skip_serializing_if = "Value::is_null")]
    attributes: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body_text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body_base64: Option<String>,
    origin: OriginFields,
    #[serde(skip_serializing_if = "Option::is_none")]
    dead_letter: Option<Value>,
}

/// Writes a message as one line, without the newline; the inverse of [`parse_line`].
pub fn write_line(message: &Message, rejection: Option<&Rejection>) -> String {
    let mut written = Written {
        id: message.id.as_str(),
        key: message.record_key.as_ref().map(written_value),
        headers: written_headers(&message.headers),
        properties: written_headers(&message.properties),
        attributes: written_headers(&message.attributes),
        body: None,
        body_text: None,
        body_base64: None,
        origin: OriginFields {
            broker: message.origin.broker.to_string(),
            source: message.origin.source.to_string(),
            position: message.origin.position.as_ref().map(ToString::to_string),
        },
        dead_letter: rejection.map(written_rejection),
    };
    if let Some(body) = &message.body {
        match (json_in_one_line(body), std::str::from_utf8(body)) {
            (Some(json), _) => written.body = Some(json),
            (None, Ok(text)) => written.body_text = Some(text),
            (None, Err(_)) => written.body_base64 = Some(STANDARD.encode(body)),
        }
    }
    serde_json::to_string(&written).expect("text, numbers and raw JSON always serialise")
}

/// The body as it is, when it can stand in the line without changing a byte of it.
fn json_in_one_line(body: &Bytes) -> Option<&RawValue> {
    let json: &RawValue = serde_json::from_slice(body).ok()?;
    // Blank space around it would be lost, a newline would break the line, and null means no body at all.
    let unchanged = json.get().len() == body.len() && !body.contains(&b'\n') && !body.contains(&b'\r');
    (unchanged && json.get() != "null").then_some(json)
}

pub(crate) fn written_rejection(rejection: &Rejection) -> Value {
    let mut map = Map::new();
    map.insert("reason".to_owned(), json!(rejection.reason.as_str()));
    map.insert("detail".to_owned(), json!(rejection.detail));
    for (name, text) in &rejection.notes {
        map.insert((*name).to_owned(), json!(text));
    }
    Value::Object(map)
}

fn written_headers(headers: &Headers) -> Value {
    if headers.is_empty() {
        return Value::Null;
    }
    let mut map = Map::new();
    for header in headers.iter() {
        let Ok(name) = std::str::from_utf8(&header.name) else { return written_list(headers) };
        let value = header.value.as_ref().map_or(Value::Null, written_value);
        if map.insert(name.to_owned(), value).is_some() {
            return written_list(headers);
        }
    }
    Value::Object(map)
}

fn written_list(headers: &Headers) -> Value {
    let pair = |header: &Header| {
        let value = header.value.as_ref().map_or(Value::Null, written_value);
        json!([written_value(&header.name), value])
    };
    headers.iter().map(pair).collect()
}

fn written_value(bytes: &Bytes) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => json!(text),
        Err(_) => json!({"base64": STANDARD.encode(bytes)}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_field_by_field() {
        let line = br#"{"id":7,"key":"k","headers":{"a":"x","n":1,"none":null},"body": {"b": [1,  2.10]} }"#;
        let message = parse_line(line).unwrap();
        assert_eq!(message.id.as_str(), "7");
        assert_eq!(message.record_key.as_deref(), Some(b"k".as_slice()));
        assert_eq!(message.headers.all("n").next(), Some(Some(&Bytes::from("1"))));
        assert_eq!(message.headers.all("none").next(), Some(None));
        assert_eq!(message.body.as_deref(), Some(br#"{"b": [1,  2.10]}"#.as_slice()));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (line, part) in [
            ("{\"idd\":1}", "idd"),
            ("not json", "expected"),
            ("{\"headers\":7}", "headers"),
            ("{\"headers\":{\"x\":[1]}}", "headers.x"),
            ("{\"body\":1,\"body_text\":\"x\"}", "body"),
            ("{\"body_base64\":\"%\"}", "body_base64"),
            ("{\"id\":[]}", "id"),
        ] {
            let error = parse_line(line.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(part), "{line}: {error}");
        }
    }

    #[test]
    fn every_message_comes_back_as_it_was() {
        let bodies: [Option<&[u8]>; 9] = [
            None,
            Some(b""),
            Some(b"{\"a\": 1.10,  \"b\":12345678901234567890123}"),
            Some(b" {\"a\":1}"),
            Some(b"{\n}"),
            Some(b"null"),
            Some(b"plain text \"quoted\""),
            Some(b"\xff\x00"),
            Some("é\u{2028}".as_bytes()),
        ];
        for body in bodies {
            let mut message = Message::new("m", "").with_header("a", "1").with_header("b", "2");
            message.body = body.map(Bytes::copy_from_slice);
            assert_eq!(parse_line(write_line(&message, None).as_bytes()).unwrap(), message);
            message.headers.push("a", None);
            message.headers.push(&b"\xff"[..], Some(Bytes::from_static(b"\xfe")));
            message.record_key = Some(Bytes::from_static(b"\x00\xff"));
            message.origin.position = Some("3/17".into());
            assert_eq!(parse_line(write_line(&message, None).as_bytes()).unwrap(), message);
            assert!(!write_line(&message, None).contains('\n'));
        }
    }
}
