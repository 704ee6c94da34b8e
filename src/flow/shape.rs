//! What a message is to a flow: one effect, several, or none. Pure.

use std::fmt;
use std::sync::Arc;

use ackord_broker::Message;

use super::{Flow, Keying, Keyless};
use crate::fingerprint::{Fingerprint, Print};
use crate::key::condition::Condition;
use crate::key::reader::{KeyExpr, Reader, Refused, View};
use crate::key::split;
use crate::key::{IdempotencyKey, Scope};

/// How a flow's messages are made.
#[derive(Debug, Default)]
pub(crate) struct MessageShape {
    /// Where the list of parts stands, when one message asks for several effects.
    pub(crate) split: Option<Reader>,
    /// Messages that ask for no effect.
    pub(crate) control: Vec<Control>,
    pub(crate) on_control: OnControl,
    pub(crate) print: Print,
}

/// A kind of message that asks for no effect: all conditions must hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Control {
    pub(crate) what: String,
    pub(crate) when: Vec<Condition>,
}

/// What happens to messages that ask for no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnControl {
    /// They are acknowledged, nothing runs.
    #[default]
    Ignore,
    /// They are kept aside.
    Park,
}

/// What a message asks for.
#[derive(Debug)]
pub enum Reading {
    /// No effect: a control record of that name.
    Control(String),
    /// These effects, in order; at least one.
    Effects(Vec<Effect>),
}

/// One effect that a message asks for.
#[derive(Debug)]
pub struct Effect {
    /// The message, or the part of it that asks for this effect as a message of its own.
    pub message: Arc<Message>,
    /// What the flow's `key` read.
    pub id: String,
    /// The key of the flow's outcome.
    pub key: IdempotencyKey,
    /// Whose effect it is.
    pub namespace: Option<String>,
    /// What defines the same request.
    pub fingerprint: Fingerprint,
    pub(crate) view: View<'static>,
}

/// Why no effect could be named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unnamed {
    /// Which part of the message, counted from 0; `None` for the whole.
    pub part: Option<usize>,
    /// What was read: `key`, `namespace`, `split` or `fingerprint`.
    pub reading: &'static str,
    /// What is wrong, with the place.
    pub why: String,
}

impl fmt::Display for Unnamed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(part) = self.part {
            write!(f, "part {part}: ")?;
        }
        match self.reading {
            "key" => f.write_str(&self.why),
            reading => write!(f, "{reading}: {}", self.why),
        }
    }
}

impl std::error::Error for Unnamed {}

impl Flow {
    /// What a message asks of this flow. Every key is read before anything runs, so nothing is half done when one of
    /// several cannot be read.
    ///
    /// # Errors
    /// [`Unnamed`] with the place and what is wrong.
    pub fn read(&self, message: &Arc<Message>) -> Result<Reading, Unnamed> {
        self.read_view(message, View::shared(Arc::clone(message)))
    }

    pub(crate) fn read_view(&self, message: &Arc<Message>, view: View<'static>) -> Result<Reading, Unnamed> {
        let is = |control: &&Control| control.when.iter().all(|condition| condition.holds(&view));
        if let Some(control) = self.shape.control.iter().find(is) {
            return Ok(Reading::Control(control.what.clone()));
        }
        let Some(place) = &self.shape.split else {
            return Ok(Reading::Effects(vec![self.effect(None, Arc::clone(message), view)?]));
        };
        let whole = |why: String| Unnamed { part: None, reading: "split", why };
        let parts = split::parts(place, &view).map_err(|refused| whole(refused.to_string()))?;
        let mut effects = Vec::with_capacity(parts.len());
        let mut first_left_out = None;
        for (index, part) in parts.into_iter().enumerate() {
            let part = Arc::new(part);
            match self.effect(Some(index), Arc::clone(&part), View::shared(part)) {
                Ok(effect) => effects.push(effect),
                Err(unnamed) if self.keyless == Keyless::Ignore => {
                    first_left_out.get_or_insert(unnamed);
                }
                Err(unnamed) => return Err(unnamed),
            }
        }
        if effects.is_empty() {
            return Err(first_left_out.unwrap_or_else(|| whole(format!("{place} is an empty list"))));
        }
        Ok(Reading::Effects(effects))
    }

    fn effect(
        &self,
        part: Option<usize>,
        message: Arc<Message>,
        view: View<'static>,
    ) -> Result<Effect, Unnamed> {
        let unnamed = |reading, why: String| Unnamed { part, reading, why };
        let refused = |reading| move |refused: Refused| unnamed(reading, refused.to_string());
        let (id, natural) = match &self.key {
            KeyExpr::Preset(preset) => {
                let named = preset.read(&view).map_err(refused("key"))?;
                (named.id, named.fingerprint)
            }
            key => {
                let id = key.read(&view).map_err(refused("key"))?;
                (id, Fingerprint::of_body(message.body.as_deref()))
            }
        };
        let fingerprint = self.shape.print.of(&view).map_err(refused("fingerprint"))?.unwrap_or(natural);
        let namespace = match &self.namespace {
            None => None,
            Some(place) => {
                let found = place.read(&view).map_err(refused("namespace"))?;
                let text = found.ok_or_else(|| unnamed("namespace", format!("{place} is not there")))?;
                Some(text.into_owned())
            }
        };
        let scope = Scope { namespace: namespace.as_deref(), version: self.version.as_deref() };
        let key = IdempotencyKey::for_flow(&self.name, &id, scope)
            .map_err(|blank| unnamed("key", blank.to_string()))?;
        // What was parsed is kept only while a step may need it: a message can wait for long.
        let reads_again = self.steps.iter().any(|step| matches!(step.keying, Keying::Own(_)));
        let view = if reads_again { view } else { View::shared(Arc::clone(&message)) };
        Ok(Effect { message, id, key, namespace, fingerprint, view })
    }
}
