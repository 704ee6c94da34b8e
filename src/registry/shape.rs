//! How a flow's messages are made: from the words of the configuration to the flow's description.

use crate::config::raw;
use crate::flow::{FlowBuilder, OnControl};

pub(super) fn describe(raw: &raw::Flow, mut builder: FlowBuilder) -> FlowBuilder {
    builder = match &raw.key {
        raw::Key::One(place) => builder.key(vec![place.clone()]),
        raw::Key::FirstOf(places) => builder.key(places.clone()),
        raw::Key::AllOf { all } => builder.key_all(all.clone()),
        raw::Key::Preset { preset } => builder.preset(preset),
    };
    if let Some(steps) = &raw.decode {
        builder = builder.decode(steps);
    }
    if let Some(place) = &raw.split {
        builder = builder.split(place);
    }
    for control in &raw.control {
        builder = match control {
            raw::Control::Tombstone => builder.tombstones_are_control(),
            raw::Control::Is(raw::ControlIs { place, equals }) => builder.control(place, equals),
        };
    }
    match &raw.fingerprint {
        None => {}
        Some(raw::Fingerprint::Fields(places)) => builder = builder.fingerprint(places.clone()),
        Some(raw::Fingerprint::Exclude(pointers)) => {
            builder = builder.fingerprint_without(pointers.iter().cloned());
        }
    }
    builder.on_control(match raw.on_control {
        raw::OnControl::Ignore => OnControl::Ignore,
        raw::OnControl::Park => OnControl::Park,
    })
}
