//! Conditions on a message: what must stand in a place. Pure.

use std::fmt;

use super::reader::Reader;
use super::view::View;

/// A condition on the first of some places that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Condition {
    pub(crate) places: Vec<Reader>,
    pub(crate) test: Test,
}

/// What must stand there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Test {
    /// Anything usable.
    There,
    /// That text.
    Is(String),
    /// Text that begins so.
    Starts(String),
    /// That media type, whatever its case and parameters.
    Media(String),
    /// The message has no body at all.
    NoBody,
    /// The message has no header.
    NoHeaders,
}

impl Condition {
    /// A place that holds nothing usable meets no condition: it is never taken for a value.
    pub(crate) fn holds(&self, view: &View<'_>) -> bool {
        match self.test {
            Test::NoBody => return view.message().body.is_none(),
            Test::NoHeaders => return view.message().headers.is_empty(),
            _ => {}
        }
        let mut found = self.places.iter().filter_map(|place| place.read(view).transpose());
        let Some(Ok(text)) = found.next() else { return false };
        match &self.test {
            Test::There => true,
            Test::Is(expected) => text == expected.as_str(),
            Test::Starts(start) => text.starts_with(start.as_str()),
            Test::NoBody | Test::NoHeaders => false,
            Test::Media(expected) => media_type(&text).eq_ignore_ascii_case(expected),
        }
    }
}

fn media_type(text: &str) -> &str {
    text.split(';').next().unwrap_or_default().trim()
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(place) = self.places.first() {
            write!(f, "{place}")?;
        }
        match &self.test {
            Test::There => Ok(()),
            Test::Is(text) => write!(f, " = {text}"),
            Test::Starts(text) => write!(f, " = {text}…"),
            Test::Media(text) => write!(f, " = {text}"),
            Test::NoBody => f.write_str("no body"),
            Test::NoHeaders => f.write_str("no headers"),
        }
    }
}
