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
    decoded: Mutex<Vec<(Reader, Vec<Decode>, Arc<Value>)>>,
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
        let found = decoded.iter().find(|(known, by, _)| known == place && by == steps);
        found.map(|(_, _, value)| Arc::clone(value))
    }

    pub(super) fn keep(&self, place: &Reader, steps: &[Decode], value: &Arc<Value>) {
        lock(&self.decoded).push((place.clone(), steps.to_vec(), Arc::clone(value)));
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
