//! Presets: what names a message in the shapes that are in common use. The shapes themselves are data, in `table`.

pub(crate) mod shape;
pub(crate) mod table;

use crate::fingerprint::Fingerprint;

use self::shape::{Form, Part, Shape, When};
use super::condition::{Condition, Test};
use super::expr::{join, list};
use super::reader::{Reader, Refused, UnknownPlace};
use super::view::View;

/// One preset, ready to read messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preset {
    shape: &'static Shape,
    forms: Vec<ReadForm>,
}

/// What a preset reads from a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) id: String,
    pub(crate) fingerprint: Fingerprint,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct ReadForm {
    what: &'static str,
    when: Vec<Condition>,
    unless: Vec<Condition>,
    key: Vec<ReadPart>,
    content: Vec<ReadPart>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum ReadPart {
    First(Vec<Reader>),
    Same(Vec<Reader>),
}

impl Preset {
    /// The preset of that name; `None` when there is none.
    pub fn named(name: &str) -> Option<Self> {
        let shape = table::SHAPES.iter().find(|shape| shape.name == name)?;
        // A test reads every row of the table, so none is lost here.
        let forms = shape.forms.iter().map(ReadForm::new).collect::<Result<_, _>>().ok()?;
        Some(Self { shape, forms })
    }

    /// The names of all presets.
    pub fn names() -> impl Iterator<Item = &'static str> + Clone {
        table::SHAPES.iter().map(|shape| shape.name)
    }

    /// The presets whose shape the message has. To show a person, never to choose a key by: a message can look like
    /// several.
    pub fn candidates(view: &View<'_>) -> Vec<&'static str> {
        let fits = |name: &&str| Self::named(name).is_some_and(|preset| preset.fits(view));
        Self::names().filter(fits).collect()
    }

    /// The name.
    pub fn name(&self) -> &'static str {
        self.shape.name
    }

    pub(crate) fn shape(&self) -> &'static Shape {
        self.shape
    }

    /// Reads the id, and what defines "the same request".
    ///
    /// # Errors
    /// [`Refused`] when the message has another shape, or not all that the shape must have, or says two things at once.
    pub(crate) fn read(&self, view: &View<'_>) -> Result<Named, Refused> {
        let mut found: Option<Named> = None;
        let mut others = Vec::new();
        for form in &self.forms {
            match form.fits(view) {
                Ok(()) => {
                    let named = form.read(view)?;
                    match &found {
                        None => found = Some(named),
                        Some(first) if first.id == named.id => {}
                        Some(first) => {
                            let why = format!("it gives two keys, `{}` and `{}`", first.id, named.id);
                            return Err(self.other_shape(why));
                        }
                    }
                }
                Err(why) => others.push(format!("{}: {why}", form.what)),
            }
        }
        found.ok_or_else(|| self.other_shape(others.join("; ")))
    }

    pub(crate) fn readers_mut(&mut self) -> impl Iterator<Item = &mut Reader> {
        self.forms.iter_mut().flat_map(|form| {
            let conditions = form.when.iter_mut().chain(&mut form.unless);
            let places = form.key.iter_mut().chain(&mut form.content);
            conditions
                .flat_map(|condition| condition.places.iter_mut())
                .chain(places.flat_map(|part| part.readers_mut().iter_mut()))
        })
    }

    fn fits(&self, view: &View<'_>) -> bool {
        match self.shape.split.map(str::parse::<Reader>) {
            None => self.read(view).is_ok(),
            Some(Ok(split)) => super::split::parts(&split, view).is_ok_and(|parts| {
                let fits = |part: &ackord_broker::Message| self.read(&View::new(part)).is_ok();
                !parts.is_empty() && parts.iter().all(fits)
            }),
            Some(Err(_)) => false,
        }
    }

    fn other_shape(&self, why: String) -> Refused {
        Refused::OtherShape { preset: self.shape.name, why }
    }
}

impl ReadForm {
    fn new(form: &'static Form) -> Result<Self, UnknownPlace> {
        Ok(Self {
            what: form.what,
            when: conditions(form.when)?,
            unless: conditions(form.unless)?,
            key: parts(form.key)?,
            content: parts(form.content)?,
        })
    }

    fn fits(&self, view: &View<'_>) -> Result<(), String> {
        if let Some(missing) = self.when.iter().find(|condition| !condition.holds(view)) {
            return Err(format!("needs {missing}"));
        }
        match self.unless.iter().find(|condition| condition.holds(view)) {
            Some(wrong) => Err(format!("has {wrong}")),
            None => Ok(()),
        }
    }

    fn read(&self, view: &View<'_>) -> Result<Named, Refused> {
        let key = self.key.iter().map(|part| part.read(view)).collect::<Result<Vec<_>, _>>()?;
        let fingerprint = match &self.content[..] {
            [] => Fingerprint::of_body(view.message().body.as_deref()),
            content => {
                let contents =
                    content.iter().map(|part| part.content(view)).collect::<Result<Vec<_>, _>>()?;
                Fingerprint::of_contents(&contents)
            }
        };
        Ok(Named { id: join(&key), fingerprint })
    }
}

impl ReadPart {
    fn read(&self, view: &View<'_>) -> Result<String, Refused> {
        let mut found: Option<String> = None;
        for place in self.readers() {
            let Some(text) = place.read(view)? else { continue };
            match (&found, self) {
                (None, Self::First(_)) => return Ok(text.into_owned()),
                (None, Self::Same(_)) => found = Some(text.into_owned()),
                (Some(first), _) if *first == text => {}
                (Some(_), _) => {
                    return Err(place.unusable("says something else than another place of the same id"));
                }
            }
        }
        found.ok_or_else(|| Refused::Absent(list(self.readers())))
    }

    fn content<'a>(&'a self, view: &'a View<'_>) -> Result<Option<super::reader::Found<'a>>, Refused> {
        for place in self.readers() {
            if let Some(found) = place.find(view)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    fn readers(&self) -> &[Reader] {
        match self {
            Self::First(places) | Self::Same(places) => places,
        }
    }

    fn readers_mut(&mut self) -> &mut [Reader] {
        match self {
            Self::First(places) | Self::Same(places) => places,
        }
    }
}

fn parts(parts: &[Part]) -> Result<Vec<ReadPart>, UnknownPlace> {
    let part = |part: &Part| {
        Ok(match part {
            Part::One(place) => ReadPart::First(vec![place.parse()?]),
            Part::First(places) => ReadPart::First(readers(places)?),
            Part::Same(places) => ReadPart::Same(readers(places)?),
        })
    };
    parts.iter().map(part).collect()
}

/// The conditions of a row, ready to be asked.
pub(crate) fn conditions(rows: &[When]) -> Result<Vec<Condition>, UnknownPlace> {
    let condition = |row: &When| {
        let (places, test) = match row {
            When::There(places) => (*places, Test::There),
            When::Is(places, text) => (*places, Test::Is((*text).to_owned())),
            When::Starts(places, text) => (*places, Test::Starts((*text).to_owned())),
            When::Media(text) => (table::CONTENT_TYPE, Test::Media((*text).to_owned())),
            When::NoBody => (&[][..], Test::NoBody),
            When::NoHeaders => (&[][..], Test::NoHeaders),
        };
        Ok(Condition { places: readers(places)?, test })
    };
    rows.iter().map(condition).collect()
}

fn readers(places: &[&str]) -> Result<Vec<Reader>, UnknownPlace> {
    places.iter().map(|place| place.parse()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_the_table_can_be_read() {
        for shape in table::SHAPES {
            assert!(Preset::named(shape.name).is_some(), "{}", shape.name);
            assert!(shape.split.is_none_or(|split| split.parse::<Reader>().is_ok()));
            for control in shape.control {
                conditions(control.when).unwrap();
            }
            assert!(shape.forms.iter().all(|form| !form.key.is_empty() && !form.when.is_empty()));
        }
    }

    #[test]
    fn every_preset_stands_in_the_documentation() {
        let page = include_str!("../docs/message_shapes.md");
        for name in Preset::names() {
            assert!(page.contains(&format!("| `{name}` |")), "{name}");
        }
    }
}
