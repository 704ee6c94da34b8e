//! The part of a flow's description that says how its messages are made.

use std::sync::Arc;

use super::{FlowBuilder, Places};
use crate::fingerprint::Print;
use crate::flow::Keying;
use crate::flow::shape::{Control, MessageShape, OnControl};
use crate::key::decode::Decode;
use crate::key::preset::{Preset, conditions, shape as row, table};
use crate::key::reader::{KeyExpr, Reader, decode_steps};

/// What has been said of the messages so far.
#[derive(Debug, Default)]
pub(super) struct Described {
    decode: Vec<Decode>,
    shape: MessageShape,
}

impl FlowBuilder {
    /// What names a message: as that preset says (`cloudevents`, `s3-event` …; see
    /// [the page on message shapes](crate::docs::message_shapes)).
    pub fn preset(mut self, name: &str) -> Self {
        match Preset::named(name) {
            Some(preset) => self.key = Some(KeyExpr::Preset(Arc::new(preset))),
            None => {
                let known = Preset::names().collect::<Vec<_>>().join(", ");
                self.faults.push(match name {
                    "auto" => format!(
                        "key: `auto` would choose by how each message looks, and a flow never guesses; name the preset: {known}"
                    ),
                    name => {
                        let near = crate::config::unknown_key(name, Preset::names());
                        format!("key: `{name}`: {}", near.replace("unknown key", "no such preset"))
                    }
                });
                // Otherwise the key would be said to be missing too.
                self.key = Some(KeyExpr::FirstOf(Vec::new()));
            }
        }
        self
    }

    /// What is done to a body before anything is read from it: `gunzip`, `base64 | gunzip`, `json:/Message`. Steps are
    /// given the body as it came, or, with [`split`](FlowBuilder::split), the part of the decoded one.
    pub fn decode(mut self, steps: &str) -> Self {
        match decode_steps(steps) {
            Ok(steps) => self.described.decode = steps,
            Err(error) => self.faults.push(format!("decode: {error}")),
        }
        self
    }

    /// One message, several effects: each part of the list in that place (`body:/Records`) is run as a message of its own,
    /// with its own key. The message is settled when all parts have an outcome.
    pub fn split(mut self, place: &str) -> Self {
        match place.parse() {
            Ok(place @ (Reader::Body(_) | Reader::Decoded { .. })) => {
                self.described.shape.split = Some(place);
            }
            Ok(_) => {
                self.faults.push(format!("split: `{place}` is not in the body; write body:/<json/pointer>"))
            }
            Err(error) => self.faults.push(format!("split: {error}")),
        }
        self
    }

    /// Messages that are a tombstone (a record key, no body, no headers) ask for no effect.
    pub fn tombstones_are_control(self) -> Self {
        let mut builder = self;
        builder.add_control(&table::TOMBSTONE);
        builder
    }

    /// Messages with that text in that place ask for no effect.
    pub fn control(mut self, place: &str, equals: &str) -> Self {
        if let Some(place) = self.place("control", place) {
            let what = format!("{place} = {equals}");
            let test = crate::key::condition::Test::Is(equals.to_owned());
            let when = vec![crate::key::condition::Condition { places: vec![place], test }];
            self.described.shape.control.push(Control { what, when });
        }
        self
    }

    /// What happens to messages that ask for no effect. Default: they are acknowledged.
    pub fn on_control(mut self, on_control: OnControl) -> Self {
        self.described.shape.on_control = on_control;
        self
    }

    /// What defines "the same request": these places. Default: what the preset says, else the bytes of the body.
    pub fn fingerprint(mut self, places: impl Into<Places>) -> Self {
        let places = self.places("fingerprint.fields", places.into());
        self.described.shape.print = Print::Fields(places);
        self
    }

    /// What defines "the same request": the body as JSON without what stands at these JSON pointers.
    pub fn fingerprint_without(mut self, pointers: impl IntoIterator<Item = String>) -> Self {
        let pointers: Vec<String> = pointers.into_iter().collect();
        if let Some(wrong) = pointers.iter().find(|pointer| !pointer.starts_with('/')) {
            self.faults.push(format!(
                "fingerprint.exclude: `{wrong}` is no JSON pointer; write /<name>, for example /sentTime"
            ));
        }
        self.described.shape.print = Print::Without { body: Reader::Body(String::new()), pointers };
        self
    }

    /// What was said of the messages, with every reader of the body behind the decode steps.
    pub(super) fn finish_shape(&mut self) -> MessageShape {
        let Described { decode, mut shape } = std::mem::take(&mut self.described);
        if let Some(KeyExpr::Preset(preset)) = &self.key {
            let known = preset.shape();
            if let Some(place) = known.split {
                if shape.split.is_some() {
                    self.faults
                        .push(format!("split: the preset {} brings its own; leave it out", known.name));
                }
                shape.split = place.parse().ok();
            }
            for control in known.control {
                shape.control.extend(read_control(control));
            }
        }
        let mut whole: Vec<&mut Reader> =
            self.matches.iter_mut().map(|condition| &mut condition.place).collect();
        if let crate::flow::Order::Key { by, .. } = &mut self.order {
            whole.push(by);
        }
        let conditions = shape.control.iter_mut().flat_map(|control| &mut control.when);
        whole.extend(conditions.flat_map(|condition| &mut condition.places));
        whole.extend(&mut shape.split);
        whole.into_iter().for_each(|reader| reader.put_behind(&decode));
        // A part is decoded already.
        if shape.split.is_none() {
            let keys = self.key.iter_mut().flat_map(KeyExpr::readers_mut);
            let templates = self.steps.iter_mut().filter_map(|step| match &mut step.keying {
                Keying::Own(template) => Some(template),
                _ => None,
            });
            keys.chain(&mut self.namespace)
                .chain(shape.print.readers_mut())
                .chain(templates.flat_map(|template| template.readers_mut()))
                .for_each(|reader| reader.put_behind(&decode));
        }
        shape
    }

    fn add_control(&mut self, control: &'static row::Control) {
        self.described.shape.control.extend(read_control(control));
    }
}

/// A test reads every row of the table, so none is lost here.
fn read_control(control: &row::Control) -> Option<Control> {
    Some(Control { what: control.what.to_owned(), when: conditions(control.when).ok()? })
}
