//! How a flow's messages are made: `key`, `control`, `fingerprint`.

use serde::Deserialize;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Error, MapAccess, SeqAccess};

use super::form::{Form, read_by_form};

/// What names a message.
#[derive(Debug, Clone)]
pub enum Key {
    /// One place.
    One(String),
    /// The first of these that is there.
    FirstOf(Vec<String>),
    /// All of these together.
    AllOf {
        /// The places.
        all: Vec<String>,
    },
    /// As a preset says.
    Preset {
        /// Its name.
        preset: String,
    },
}

impl Form for Key {
    const EXPECTING: &'static str =
        "a place such as \"header:id\", a list of places, { all = [...] }, or { preset = \"cloudevents\" }";

    fn text(text: &str) -> Option<Self> {
        Some(Self::One(text.to_owned()))
    }

    fn list<'de, A: SeqAccess<'de>>(list: A) -> Option<Result<Self, A::Error>> {
        Some(Vec::deserialize(SeqAccessDeserializer::new(list)).map(Self::FirstOf))
    }

    fn table<'de, A: MapAccess<'de>>(table: A) -> Option<Result<Self, A::Error>> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Table {
            all: Option<Vec<String>>,
            preset: Option<String>,
        }
        Some(Table::deserialize(MapAccessDeserializer::new(table)).and_then(|table| match table {
            Table { all: Some(_), preset: Some(_) } => {
                Err(A::Error::custom("needs exactly one of all and preset"))
            }
            Table { preset: Some(preset), .. } => Ok(Self::Preset { preset }),
            // An empty list is refused by the flow, but not when a misspelt `all` has been reported already.
            Table { all, .. } => Ok(Self::AllOf { all: all.unwrap_or_default() }),
        }))
    }
}

read_by_form!(Key);

/// Messages that ask for no effect.
#[derive(Debug, Clone)]
pub enum Control {
    /// A record key, no body, no headers.
    Tombstone,
    /// That text in that place.
    Is(ControlIs),
}

/// That text in that place.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ControlIs {
    /// The place, as in `key`.
    pub place: String,
    /// What must stand there.
    pub equals: String,
}

impl Form for Control {
    const EXPECTING: &'static str =
        "\"tombstone\" or a condition such as { place = \"body:/Event\", equals = \"s3:TestEvent\" }";

    fn text(text: &str) -> Option<Self> {
        (text == "tombstone").then_some(Self::Tombstone)
    }

    fn table<'de, A: MapAccess<'de>>(table: A) -> Option<Result<Self, A::Error>> {
        Some(ControlIs::deserialize(MapAccessDeserializer::new(table)).map(Self::Is))
    }
}

read_by_form!(Control);

/// What happens to messages that ask for no effect.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnControl {
    /// They are acknowledged, nothing runs.
    #[default]
    Ignore,
    /// They are kept aside.
    Park,
}

/// What defines the same request.
#[derive(Debug, Clone)]
pub enum Fingerprint {
    /// These places.
    Fields(Vec<String>),
    /// The body as JSON without these JSON pointers.
    Exclude(Vec<String>),
}

impl Form for Fingerprint {
    const EXPECTING: &'static str = "{ fields = [\"body:/amount\"] } or { exclude = [\"/sentTime\"] }";

    fn table<'de, A: MapAccess<'de>>(table: A) -> Option<Result<Self, A::Error>> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Table {
            fields: Option<Vec<String>>,
            exclude: Option<Vec<String>>,
        }
        Some(Table::deserialize(MapAccessDeserializer::new(table)).and_then(|table| match table {
            Table { fields: Some(_), exclude: Some(_) } => {
                Err(A::Error::custom("needs exactly one of fields and exclude"))
            }
            Table { exclude: Some(exclude), .. } => Ok(Self::Exclude(exclude)),
            Table { fields, .. } => Ok(Self::Fields(fields.unwrap_or_default())),
        }))
    }
}

read_by_form!(Fingerprint);
