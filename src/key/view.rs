//! A message as readers see it: what several of them need is decoded once.

use std::ops::Deref;
use std::sync::{Arc, Mutex, OnceLock};

use ackord_broker::Message;
use serde_json::Value;

use super::decode::Decode;
use super::reader::Reader;
use crate::lock::lock;

/// A message whose body is parsed at most once, and only when a reader asks for it.
#[derive(Debug)]
pub struct View<'a> {
    message: Held<'a>,
    json: OnceLock<Result<Value, NotJson>>,
    /// What decode steps made of a place. A message has few of them, so a list is searched.
    decoded: Mutex<Vec<Decoded>>,
}

/// JSON that decode steps made of a place.
#[derive(Debug)]
struct Decoded {
    place: Reader,
    steps: Vec<Decode>,
    json: Arc<Value>,
}

/// The body is there, but is not JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NotJson(pub(super) &'static str);

#[derive(Debug)]
enum Held<'a> {
    Borrowed(&'a Message),
    Shared(Arc<Message>),
}

impl<'a> View<'a> {
    /// A view of that message.
    pub fn new(message: &'a Message) -> Self {
        Self::of(Held::Borrowed(message))
    }

    fn of(message: Held<'a>) -> Self {
        Self { message, json: OnceLock::new(), decoded: Mutex::default() }
    }

    /// The message.
    pub fn message(&self) -> &Message {
        &self.message
    }

    /// The body as JSON; `None` when there is none or it is something else.
    pub fn json(&self) -> Option<&Value> {
        self.body().ok().flatten()
    }

    /// The body as JSON; `None` when there is no body.
    pub(super) fn body(&self) -> Result<Option<&Value>, NotJson> {
        let Some(body) = self.message().body.as_deref() else { return Ok(None) };
        let parsed = self.json.get_or_init(|| match serde_json::from_slice(body) {
            Ok(value) => Ok(value),
            Err(_) if std::str::from_utf8(body).is_err() => {
                Err(NotJson("cannot be read: the body is not UTF-8, so not JSON"))
            }
            Err(_) => Err(NotJson("cannot be read: the body is not JSON")),
        });
        parsed.as_ref().map(Some).map_err(|error| *error)
    }

    /// What those steps made of that place before.
    pub(super) fn decoded(&self, place: &Reader, steps: &[Decode]) -> Option<Arc<Value>> {
        let decoded = lock(&self.decoded);
        let found = decoded.iter().find(|known| known.place == *place && known.steps == steps);
        found.map(|known| Arc::clone(&known.json))
    }

    pub(super) fn keep(&self, place: &Reader, steps: &[Decode], json: &Arc<Value>) {
        let (place, steps, json) = (place.clone(), steps.to_vec(), Arc::clone(json));
        lock(&self.decoded).push(Decoded { place, steps, json });
    }
}

impl View<'static> {
    /// A view that keeps the message alive, to be handed on.
    pub fn shared(message: Arc<Message>) -> Self {
        Self::of(Held::Shared(message))
    }
}

impl Deref for Held<'_> {
    type Target = Message;

    fn deref(&self) -> &Message {
        match self {
            Self::Borrowed(message) => message,
            Self::Shared(message) => message,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_parsed_once_for_all_that_read_it_also_behind_decode_steps() {
        let message = Arc::new(Message::new("m", r#"{"s":"{\"a\":1,\"b\":{\"c\":2}}","t":"x"}"#));
        let view = View::shared(message);
        let read = |place: &str| {
            let reader: Reader = place.parse().unwrap();
            reader.read(&view).unwrap().unwrap().into_owned()
        };
        assert_eq!(read("body:/t"), "x");
        let first: *const Value = view.json().unwrap();
        assert_eq!(
            (read("body:/s | json:/a"), read("body:/s | json:/b/c")),
            ("1".to_owned(), "2".to_owned())
        );
        assert_eq!(read("body | json:/s | json:/a"), "1");
        assert_eq!(read("body | json:/t"), "x");
        assert!(std::ptr::eq(first, view.json().unwrap()));
        // The text at /s by two ways, and the body behind `json`.
        assert_eq!(lock(&view.decoded).len(), 3);
    }
}
