//! Where a key is read from: readers by place, and how several make one id. Pure.
//!
//! The rule is "refuse, never guess": a place that is there but holds nothing usable (null, blank, an object, bytes
//! that are not text, a repeated header with different values) refuses the message; only a place that is not there at all
//! lets [`KeyExpr::FirstOf`] go on to the next.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::str::FromStr;

use ackord_broker::{Headers, Message};
use bytes::Bytes;
use serde_json::Value;
use thiserror::Error;

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
}

/// How an id is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyExpr {
    /// The first place that is there.
    FirstOf(Vec<Reader>),
    /// All places, each of which must be there.
    AllOf(Vec<Reader>),
}

/// A reader that could not be understood.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "`{0}` names no place in a message; places are header:<name>, property:<name>, attribute:<name>, record-key, \
     message-id, body:/<json/pointer>, position, const:<text>"
)]
pub struct UnknownPlace(pub String);

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
}

/// A message whose body is parsed at most once, and only when a reader asks for it.
#[derive(Debug)]
pub struct View<'a> {
    message: &'a Message,
    json: OnceCell<Option<Value>>,
}

impl<'a> View<'a> {
    /// A view of that message.
    pub fn new(message: &'a Message) -> Self {
        Self { message, json: OnceCell::new() }
    }

    /// The message.
    pub fn message(&self) -> &'a Message {
        self.message
    }

    /// The body as JSON; `None` when there is none or it is something else.
    pub fn json(&self) -> Option<&Value> {
        self.json.get_or_init(|| serde_json::from_slice(self.message.body.as_deref()?).ok()).as_ref()
    }
}

impl KeyExpr {
    /// Reads the id.
    ///
    /// # Errors
    /// [`Refused`] with the place and what is wrong.
    pub fn read(&self, view: &View<'_>) -> Result<String, Refused> {
        match self {
            Self::FirstOf(places) => {
                for place in places {
                    if let Some(text) = place.read(view)? {
                        return Ok(text.into_owned());
                    }
                }
                Err(Refused::Absent(list(places)))
            }
            Self::AllOf(places) => {
                let mut id = String::new();
                for (index, place) in places.iter().enumerate() {
                    let text = place.read(view)?.ok_or_else(|| Refused::Absent(place.to_string()))?;
                    if index > 0 {
                        id.push('|');
                    }
                    // Escaped, so that ("a|b", "c") and ("a", "b|c") differ.
                    id.push_str(&text.replace('%', "%25").replace('|', "%7C"));
                }
                Ok(id)
            }
        }
    }
}

impl Reader {
    /// What stands in that place; `None` when the place is not there.
    ///
    /// # Errors
    /// [`Refused::Unusable`] when it is there but cannot be part of a key.
    pub fn read<'a>(&'a self, view: &'a View<'_>) -> Result<Option<Cow<'a, str>>, Refused> {
        let message = view.message();
        let found = match self {
            Self::Header(name) => self.one_of(&message.headers, name)?,
            Self::Property(name) => self.one_of(&message.properties, name)?,
            Self::Attribute(name) => self.one_of(&message.attributes, name)?,
            Self::RecordKey => match &message.record_key {
                Some(bytes) => Some(Cow::Borrowed(self.text(bytes)?)),
                None => None,
            },
            Self::MessageId => Some(Cow::Borrowed(message.id.as_str())),
            Self::Body(pointer) => match view.json().and_then(|json| json.pointer(pointer)) {
                None => None,
                Some(Value::String(text)) => Some(Cow::Borrowed(text.as_str())),
                // The text as it was written, so that numbers beyond 2^53 stay apart.
                Some(Value::Number(number)) => Some(Cow::Owned(number.to_string())),
                Some(Value::Bool(flag)) => Some(Cow::Borrowed(if *flag { "true" } else { "false" })),
                Some(Value::Null) => return Err(self.unusable("is null")),
                Some(Value::Array(_) | Value::Object(_)) => {
                    return Err(self.unusable("is not a single value"));
                }
            },
            Self::Position => {
                message.origin.position.is_some().then(|| Cow::Owned(message.origin.to_string()))
            }
            Self::Const(text) => Some(Cow::Borrowed(text.as_str())),
        };
        match found {
            Some(text) if text.trim().is_empty() => Err(self.unusable("is blank")),
            found => Ok(found),
        }
    }

    fn one_of<'a>(&self, headers: &'a Headers, name: &'a str) -> Result<Option<Cow<'a, str>>, Refused> {
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
            Some(Some(bytes)) => {
                let text = self.text(bytes)?;
                Ok(Some(Cow::Borrowed(if name.eq_ignore_ascii_case("idempotency-key") {
                    without_quotes(text)
                } else {
                    text
                })))
            }
        }
    }

    fn text<'a>(&self, bytes: &'a Bytes) -> Result<&'a str, Refused> {
        std::str::from_utf8(bytes).map_err(|_| self.unusable("is not text"))
    }

    fn unusable(&self, why: &'static str) -> Refused {
        Refused::Unusable { place: self.to_string(), why }
    }
}

/// `Idempotency-Key` is a structured string (RFC 8941): one pair of quotes belongs to the syntax, not to the key.
fn without_quotes(text: &str) -> &str {
    let text = text.trim();
    match text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
        Some(inner) => inner,
        None => text,
    }
}

fn list(places: &[Reader]) -> String {
    places.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

impl FromStr for Reader {
    type Err = UnknownPlace;

    fn from_str(text: &str) -> Result<Self, UnknownPlace> {
        let unknown = || UnknownPlace(text.to_owned());
        match text {
            "record-key" => return Ok(Self::RecordKey),
            "message-id" => return Ok(Self::MessageId),
            "position" => return Ok(Self::Position),
            _ => {}
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
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(message: &Message, reader: &str) -> Result<Option<String>, Refused> {
        let reader: Reader = reader.parse().unwrap();
        let view = View::new(message);
        reader.read(&view).map(|found| found.map(Cow::into_owned))
    }

    fn with_body(body: &'static str) -> Message {
        Message::new("m1", body)
    }

    #[test]
    fn each_place_is_read() {
        let mut message =
            with_body(r#"{"order":{"id":"o-1","a/b":7}}"#).with_header("X-Key", "h").with_record_key("r");
        message.properties.push("message_id", Some(Bytes::from_static(b"p")));
        message.attributes.push("kind", Some(Bytes::from_static(b"a")));
        message.origin.broker = "shop".into();
        message.origin.source = "orders".into();
        message.origin.position = Some("3/17".into());
        let expected = [
            ("header:x-key", "h"),
            ("property:message_id", "p"),
            ("system:message_id", "p"),
            ("attribute:kind", "a"),
            ("record-key", "r"),
            ("message-id", "m1"),
            ("body:/order/id", "o-1"),
            ("body:/order/a~1b", "7"),
            ("position", "shop/orders@3/17"),
            ("const:all", "all"),
        ];
        for (reader, text) in expected {
            assert_eq!(read(&message, reader), Ok(Some(text.to_owned())), "{reader}");
            assert_eq!(reader.parse::<Reader>().unwrap().to_string(), reader.replace("system:", "property:"));
        }
    }

    #[test]
    fn what_is_not_there_is_absent_and_what_is_unusable_is_refused() {
        let mut message =
            with_body(r#"{"null":null,"blank":" ","list":[1],"object":{}}"#).with_header("blank", " ");
        message.headers.push("null", None);
        message.headers.push("bytes", Some(Bytes::from_static(b"\xff")));
        message = message.with_header("twice", "a").with_header("TWICE", "b");
        message = message.with_header("same", "a").with_header("same", "a");
        for absent in ["header:none", "body:/none", "record-key", "position", "body:/blank/deeper"] {
            assert_eq!(read(&message, absent), Ok(None), "{absent}");
        }
        for refused in [
            "body:/null",
            "body:/blank",
            "body:/list",
            "body:/object",
            "body:",
            "header:blank",
            "header:null",
        ] {
            assert!(read(&message, refused).is_err(), "{refused}");
        }
        assert!(read(&message, "header:bytes").is_err());
        assert!(read(&message, "header:twice").is_err());
        assert_eq!(read(&message, "header:same"), Ok(Some("a".to_owned())));
    }

    #[test]
    fn a_number_keeps_its_text() {
        for number in ["9007199254740993", "123456789012345678901234567890", "1.10", "-0"] {
            let message = Message::new("m", format!("{{\"n\":{number}}}"));
            assert_eq!(read(&message, "body:/n"), Ok(Some(number.to_owned())));
        }
    }

    #[test]
    fn one_pair_of_quotes_belongs_to_the_syntax_of_idempotency_key_only() {
        let message = with_body("{}").with_header("Idempotency-Key", "\"a\"").with_header("other", "\"a\"");
        assert_eq!(read(&message, "header:idempotency-key"), Ok(Some("a".to_owned())));
        assert_eq!(read(&message, "header:other"), Ok(Some("\"a\"".to_owned())));
        let empty = with_body("{}").with_header("Idempotency-Key", "\"\"");
        assert!(read(&empty, "header:idempotency-key").is_err());
    }

    #[test]
    fn first_of_goes_past_absent_places_but_never_past_unusable_ones() {
        let expr = KeyExpr::FirstOf(vec!["header:k".parse().unwrap(), "body:/id".parse().unwrap()]);
        let absent = with_body(r#"{"id":"b"}"#);
        assert_eq!(expr.read(&View::new(&absent)), Ok("b".to_owned()));
        let blank = with_body(r#"{"id":"b"}"#).with_header("k", "");
        assert!(expr.read(&View::new(&blank)).is_err());
        let neither = with_body("not json");
        let refused = expr.read(&View::new(&neither)).unwrap_err();
        assert_eq!(refused.to_string(), "none of header:k, body:/id is there");
    }

    #[test]
    fn all_of_needs_each_place_and_keeps_the_border_between_them() {
        let expr = KeyExpr::AllOf(vec!["header:a".parse().unwrap(), "header:b".parse().unwrap()]);
        let id = |a: &'static str, b: &'static str| {
            let message = with_body("{}").with_header("a", a).with_header("b", b);
            expr.read(&View::new(&message)).unwrap()
        };
        assert_eq!(id("x", "y"), "x|y");
        assert_ne!(id("x|y", "z"), id("x", "y|z"));
        assert_ne!(id("x%7Cy", "z"), id("x|y", "z"));
        let half = with_body("{}").with_header("a", "x");
        assert!(expr.read(&View::new(&half)).is_err());
    }

    #[test]
    fn a_place_that_does_not_exist_is_named() {
        for wrong in ["headr:x", "header:", "body:order", "id", ""] {
            assert_eq!(wrong.parse::<Reader>(), Err(UnknownPlace(wrong.to_owned())));
        }
    }
}
