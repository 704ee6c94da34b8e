//! What a row of the table of presets says.

/// One shape of messages.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// The preset's name.
    pub(crate) name: &'static str,
    /// The forms in which it comes. All whose conditions hold must give one key.
    pub(crate) forms: &'static [Form],
    /// Where the list of parts stands, when one message holds several.
    pub(crate) split: Option<&'static str>,
    /// Messages of that shape that ask for no effect.
    pub(crate) control: &'static [Control],
}

/// One form of a shape.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Form {
    /// What it is called in a report.
    pub(crate) what: &'static str,
    /// What must all hold.
    pub(crate) when: &'static [When],
    /// What must not hold.
    pub(crate) unless: &'static [When],
    /// The parts of the key, in order; each must be there.
    pub(crate) key: &'static [Part],
    /// What defines the same request; the bytes of the body when it is empty. Leaves out what a redelivery changes.
    pub(crate) content: &'static [Part],
}

/// A message that asks for no effect.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Control {
    pub(crate) what: &'static str,
    pub(crate) when: &'static [When],
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum When {
    /// One of these is there, and the first of them is usable.
    There(&'static [&'static str]),
    /// The first of these that is there is that text.
    Is(&'static [&'static str], &'static str),
    /// The first of these that is there begins so.
    Starts(&'static [&'static str], &'static str),
    /// The content type, whatever its case and parameters.
    Media(&'static str),
    NoBody,
    NoHeaders,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Part {
    One(&'static str),
    /// The first that is there.
    First(&'static [&'static str]),
    /// All that are there, which must say the same.
    Same(&'static [&'static str]),
}
