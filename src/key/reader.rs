//! Where a key is read from: readers by place, with decode steps behind it. Pure.
//!
//! The rule is "refuse, never guess": a place that is there but holds nothing usable (null, blank, an object, bytes
//! that are not text, a body that is not JSON, a repeated header with different values) refuses the message; only a place
//! that is not there at all lets [`KeyExpr::FirstOf`] go on to the next.

use std::borrow::Cow;
use std::str::FromStr;
use std::sync::Arc;

use ackord_broker::Headers;
use bytes::Bytes;
use serde_json::Value;
use thiserror::Error;

use super::decode::{Decode, columns};
pub use super::expr::KeyExpr;
pub(crate) use super::expr::join;
pub use super::view::View;

/// One place in a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reader {
    /// `header:<name>`, names without regard to case.
    Header(String),
    /// `property:<name>` or `system:<name>`: what the protocol carries beside the headers.
    Property(String),
    /// `attribute:<name>`.
    Attribute(String),
    /// `record-key`: Kafka's record key, SQS's message group, the `key` of a JSON line.
    RecordKey,
    /// `message-id`.
    MessageId,
    /// `body:<JSON pointer>` (RFC 6901); `body:` alone is the whole body and never a scalar unless the body is one.
    Body(String),
    /// `position`: broker, source and position. Only sound where the broker's position names one message for good.
    Position,
    /// `const:<text>`.
    Const(String),
    /// `<place> | <step> | <step>`: a place and what is done to its bytes. `body` alone is the body's bytes as they are.
    Decoded {
        /// The place, never itself decoded.
        place: Box<Reader>,
        /// The steps, in order.
        steps: Vec<Decode>,
    },
}

/// A reader that could not be understood.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum UnknownPlace {
    /// There is no such place.
    #[error(
        "`{0}` names no place in a message; places are header:<name>, property:<name>, attribute:<name>, record-key, \
         message-id, body:/<json/pointer>, position, const:<text>"
    )]
    Place(String),
    /// There is no such decode step.
    #[error(
        "`{0}` is no decode step; steps are base64, base64url, gunzip, gunzip:<bytes>, frame:avro, frame:json, \
         frame:protobuf, json:/<json/pointer>, columns, hex"
    )]
    Step(String),
}

/// Why a message has no usable id.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Refused {
    /// No place that the expression names is there.
    #[error("none of {0} is there")]
    Absent(String),
    /// A place is there, but what it holds cannot be part of a key.
    #[error("{place} {why}")]
    Unusable {
        /// The place.
        place: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The message has not the shape that the flow's preset reads.
    #[error("not a message of preset {preset}: {why}")]
    OtherShape {
        /// The preset.
        preset: &'static str,
        /// What is missing, for each of the shapes that it reads.
        why: String,
    },
}

/// What stands in a place.
#[derive(Debug)]
pub(crate) enum Found<'a> {
    /// Bytes, perhaps text.
    Bytes(Cow<'a, [u8]>),
    /// A value in the body.
    Json(&'a Value),
    /// A value in what decode steps made, at that pointer.
    Decoded(Arc<Value>, &'a str),
}

impl Reader {
    /// What stands in that place; `None` when the place is not there.
    ///
    /// # Errors
    /// [`Refused::Unusable`] when it is there but cannot be part of a key.
    pub fn read<'a>(&'a self, view: &'a View<'_>) -> Result<Option<Cow<'a, str>>, Refused> {
        let text = match self.find(view)? {
            None => return Ok(None),
            Some(Found::Json(value)) => single(value),
            Some(Found::Decoded(value, at)) => match value.pointer(at) {
                Some(value) => single(value).map(|text| Cow::Owned(text.into_owned())),
                None => return Ok(None),
            },
            Some(Found::Bytes(Cow::Borrowed(bytes))) => {
                std::str::from_utf8(bytes).map(Cow::Borrowed).map_err(|_| NOT_TEXT)
            }
            Some(Found::Bytes(Cow::Owned(bytes))) => {
                String::from_utf8(bytes).map(Cow::Owned).map_err(|_| NOT_TEXT)
            }
        };
        match text {
            Ok(text) if text.trim().is_empty() => Err(self.unusable("is blank")),
            // Raw bytes are often text by chance; an id of letters has none of these.
            Ok(text) if text.bytes().any(|byte| byte.is_ascii_control() && !byte.is_ascii_whitespace()) => {
                Err(self.unusable("is not text: it has control characters"))
            }
            Ok(text) => Ok(Some(text)),
            Err(why) => Err(self.unusable(why)),
        }
    }

    /// What stands in that place, single value or not; `None` when the place is not there.
    pub(crate) fn find<'a>(&'a self, view: &'a View<'_>) -> Result<Option<Found<'a>>, Refused> {
        let message = view.message();
        let borrowed = |text: &'a str| Some(Found::Bytes(Cow::Borrowed(text.as_bytes())));
        Ok(match self {
            Self::Header(name) => self.one_of(&message.headers, name)?,
            Self::Property(name) => self.one_of(&message.properties, name)?,
            Self::Attribute(name) => self.one_of(&message.attributes, name)?,
            Self::RecordKey => message.record_key.as_ref().map(|key| Found::Bytes(Cow::Borrowed(key))),
            Self::MessageId => borrowed(message.id.as_str()),
            Self::Body(pointer) => {
                let body = view.body().map_err(|not_json| self.unusable(not_json.0))?;
                body.and_then(|json| json.pointer(pointer)).map(Found::Json)
            }
            Self::Position => message
                .origin
                .position
                .as_ref()
                .map(|_| Found::Bytes(Cow::Owned(message.origin.to_string().into_bytes()))),
            Self::Const(text) => borrowed(text),
            Self::Decoded { place, steps } => self.decode(place, steps, view)?,
        })
    }

    /// The same place in a body that must first be decoded by those steps. Places outside of the body stay.
    pub(crate) fn put_behind(&mut self, before: &[Decode]) {
        let whole = || Box::new(Self::Body(String::new()));
        match self {
            _ if before.is_empty() => {}
            Self::Body(pointer) => {
                let at = Decode::Json(std::mem::take(pointer));
                *self = Self::Decoded { place: whole(), steps: [before, &[at]].concat() };
            }
            Self::Decoded { place, steps } => {
                if let Self::Body(pointer) = &mut **place {
                    let at = (!pointer.is_empty()).then(|| Decode::Json(std::mem::take(pointer)));
                    let steps = [before, at.as_slice(), steps].concat();
                    *self = Self::Decoded { place: whole(), steps };
                }
            }
            _ => {}
        }
    }

    fn decode<'a>(
        &'a self,
        place: &'a Self,
        steps: &'a [Decode],
        view: &'a View<'_>,
    ) -> Result<Option<Found<'a>>, Refused> {
        // What another reader decoded already is not decoded again.
        let known = steps.iter().enumerate().rev().find_map(|(index, step)| match step {
            Decode::Json(pointer) => {
                view.decoded(place, &steps[..index]).map(|json| (index + 1, Found::Decoded(json, pointer)))
            }
            _ => None,
        });
        let (done, mut found) = match known {
            Some(known) => known,
            None => match (place, &view.message().body) {
                (Self::Body(pointer), Some(body)) if pointer.is_empty() => {
                    (0, Found::Bytes(Cow::Borrowed(&body[..])))
                }
                (Self::Body(pointer), None) if pointer.is_empty() => return Ok(None),
                _ => match place.find(view)? {
                    Some(found) => (0, found),
                    None => return Ok(None),
                },
            },
        };
        for (index, step) in steps.iter().enumerate().skip(done) {
            if matches!(&found, Found::Decoded(json, at) if json.pointer(at).is_none()) {
                return Ok(None);
            }
            found = match step {
                Decode::Json(pointer) => {
                    let json = Arc::new(self.parse(&self.bytes(found)?)?);
                    view.keep(place, &steps[..index], &json);
                    Found::Decoded(json, pointer)
                }
                Decode::Columns => {
                    let text = match &found {
                        Found::Json(json) => columns(json),
                        Found::Decoded(json, at) => json.pointer(at).map_or(Err("is not there"), columns),
                        Found::Bytes(bytes) => columns(&self.parse(bytes)?),
                    };
                    Found::Bytes(Cow::Owned(text.map_err(|why| self.unusable(why))?.into_bytes()))
                }
                step => Found::Bytes(step.bytes(self.bytes(found)?).map_err(|why| self.unusable(why))?),
            };
        }
        match &found {
            Found::Decoded(json, at) if json.pointer(at).is_none() => Ok(None),
            _ => Ok(Some(found)),
        }
    }

    fn parse(&self, bytes: &[u8]) -> Result<Value, Refused> {
        serde_json::from_slice(bytes).map_err(|_| self.unusable("is not JSON where JSON is read"))
    }

    /// What a decode step works on: bytes, or the bytes of a JSON text.
    fn bytes<'a>(&self, found: Found<'a>) -> Result<Cow<'a, [u8]>, Refused> {
        match found {
            Found::Bytes(bytes) => Ok(bytes),
            Found::Json(Value::String(text)) => Ok(Cow::Borrowed(text.as_bytes())),
            Found::Decoded(json, at) => match json.pointer(at) {
                Some(Value::String(text)) => Ok(Cow::Owned(text.clone().into_bytes())),
                _ => Err(self.unusable(NOT_TEXT)),
            },
            Found::Json(_) => Err(self.unusable(NOT_TEXT)),
        }
    }

    fn one_of<'a>(&self, headers: &'a Headers, name: &'a str) -> Result<Option<Found<'a>>, Refused> {
        let mut found: Option<Option<&Bytes>> = None;
        for value in headers.all(name) {
            match found {
                None => found = Some(value),
                Some(first) if first == value => {}
                Some(_) => return Err(self.unusable("is repeated with different values")),
            }
        }
        match found {
            None => Ok(None),
            Some(None) => Err(self.unusable("is null")),
            Some(Some(bytes)) if name.eq_ignore_ascii_case("idempotency-key") => {
                Ok(Some(Found::Bytes(Cow::Borrowed(without_quotes(bytes)))))
            }
            Some(Some(bytes)) => Ok(Some(Found::Bytes(Cow::Borrowed(bytes)))),
        }
    }

    pub(super) fn unusable(&self, why: &'static str) -> Refused {
        Refused::Unusable { place: self.to_string(), why }
    }
}

const NOT_TEXT: &str = "is not text";

/// A single value as text. A number keeps its digits as they were written, so that numbers beyond 2^53 stay apart; only its
/// exponent has one spelling (`1E5` is `1e+5`).
pub(super) fn single(value: &Value) -> Result<Cow<'_, str>, &'static str> {
    match value {
        Value::String(text) => Ok(Cow::Borrowed(text)),
        Value::Number(number) => Ok(Cow::Owned(number.to_string())),
        Value::Bool(flag) => Ok(Cow::Borrowed(if *flag { "true" } else { "false" })),
        Value::Null => Err("is null"),
        Value::Array(_) | Value::Object(_) => Err("is not a single value"),
    }
}

/// `Idempotency-Key` is a structured string (RFC 8941): one pair of quotes belongs to the syntax, not to the key.
fn without_quotes(text: &[u8]) -> &[u8] {
    let text = text.trim_ascii();
    match text.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")) {
        Some(inner) => inner,
        None => text,
    }
}

impl FromStr for Reader {
    type Err = UnknownPlace;

    fn from_str(text: &str) -> Result<Self, UnknownPlace> {
        let unknown = || UnknownPlace::Place(text.to_owned());
        match text {
            "record-key" => return Ok(Self::RecordKey),
            "message-id" => return Ok(Self::MessageId),
            "position" => return Ok(Self::Position),
            _ => {}
        }
        if text == "body" {
            return Ok(Self::Decoded { place: Box::new(Self::Body(String::new())), steps: Vec::new() });
        }
        if let Some((place, steps)) = text.split_once(" | ").filter(|_| !text.starts_with("const:")) {
            let place = match place.trim() {
                "body" => Self::Body(String::new()),
                place => place.parse()?,
            };
            return Ok(Self::Decoded { place: Box::new(place), steps: decode_steps(steps)? });
        }
        let (place, name) = text.split_once(':').ok_or_else(unknown)?;
        if place == "body" {
            let sound = name.is_empty() || name.starts_with('/');
            return if sound { Ok(Self::Body(name.to_owned())) } else { Err(unknown()) };
        }
        if name.trim().is_empty() {
            return Err(unknown());
        }
        let name = name.to_owned();
        match place {
            "header" => Ok(Self::Header(name)),
            "property" | "system" => Ok(Self::Property(name)),
            "attribute" => Ok(Self::Attribute(name)),
            "const" => Ok(Self::Const(name)),
            _ => Err(unknown()),
        }
    }
}

/// Decode steps as they are written: `base64 | gunzip`.
///
/// # Errors
/// When one of them does not exist.
pub(crate) fn decode_steps(text: &str) -> Result<Vec<Decode>, UnknownPlace> {
    let step = |step: &str| Decode::parse(step).ok_or_else(|| UnknownPlace::Step(step.to_owned()));
    text.split(" | ").map(|text| step(text.trim())).collect()
}

impl std::fmt::Display for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Property(name) => write!(f, "property:{name}"),
            Self::Attribute(name) => write!(f, "attribute:{name}"),
            Self::RecordKey => f.write_str("record-key"),
            Self::MessageId => f.write_str("message-id"),
            Self::Body(pointer) => write!(f, "body:{pointer}"),
            Self::Position => f.write_str("position"),
            Self::Const(text) => write!(f, "const:{text}"),
            Self::Decoded { place, steps } => {
                match &**place {
                    Self::Body(pointer) if pointer.is_empty() => f.write_str("body")?,
                    place => write!(f, "{place}")?,
                }
                steps.iter().try_for_each(|step| write!(f, " | {step}"))
            }
        }
    }
}

#[cfg(test)]
mod tests;
