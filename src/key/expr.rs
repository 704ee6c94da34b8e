//! How one id is made of several places. Pure.

use std::sync::Arc;

use super::preset::Preset;
use super::reader::{Reader, Refused};
use super::view::View;

/// How an id is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyExpr {
    /// The first place that is there.
    FirstOf(Vec<Reader>),
    /// All places, each of which must be there.
    AllOf(Vec<Reader>),
    /// As that preset says.
    Preset(Arc<Preset>),
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
                let text = |place: &Reader| place.read(view)?.map(Into::into).ok_or_else(|| absent(place));
                let parts: Vec<String> = places.iter().map(text).collect::<Result<_, _>>()?;
                Ok(join(&parts))
            }
            Self::Preset(preset) => preset.read(view).map(|named| named.id),
        }
    }

    /// Every reader in it.
    pub(crate) fn readers_mut(&mut self) -> Box<dyn Iterator<Item = &mut Reader> + '_> {
        match self {
            Self::FirstOf(places) | Self::AllOf(places) => Box::new(places.iter_mut()),
            Self::Preset(preset) => Box::new(Arc::make_mut(preset).readers_mut()),
        }
    }
}

impl std::fmt::Display for KeyExpr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let join = |places: &[Reader], with: &str| {
            places.iter().map(ToString::to_string).collect::<Vec<_>>().join(with)
        };
        match self {
            Self::FirstOf(places) => f.write_str(&join(places, " or ")),
            Self::AllOf(places) => f.write_str(&join(places, " and ")),
            Self::Preset(preset) => write!(f, "preset {}", preset.name()),
        }
    }
}

/// One text of several, escaped so that ("a|b", "c") and ("a", "b|c") differ. Whoever joins other numbers of parts never
/// meets this either: a part has no bare `|`.
pub(crate) fn join(parts: &[impl AsRef<str>]) -> String {
    let mut text = String::new();
    for (index, part) in parts.iter().enumerate() {
        if index > 0 {
            text.push('|');
        }
        text.push_str(&part.as_ref().replace('%', "%25").replace('|', "%7C"));
    }
    text
}

pub(super) fn absent(place: &Reader) -> Refused {
    Refused::Absent(place.to_string())
}

pub(super) fn list(places: &[Reader]) -> String {
    places.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
