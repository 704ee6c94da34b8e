//! Which flow takes a message. Pure.

use std::sync::Arc;

use crate::flow::Flow;
use crate::key::reader::{Reader, View};

/// A condition on a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Match {
    /// Where to look.
    pub place: Reader,
    /// What must stand there; `None` = anything usable.
    pub equals: Option<String>,
}

impl Match {
    /// That place must hold that text.
    pub fn equals(place: Reader, text: impl Into<String>) -> Self {
        Self { place, equals: Some(text.into()) }
    }

    fn holds(&self, view: &View<'_>) -> bool {
        // A place that holds nothing usable matches nothing: it is never taken for a value.
        match (self.place.read(view), &self.equals) {
            (Ok(Some(found)), Some(expected)) => found == expected.as_str(),
            (Ok(Some(_)), None) => true,
            _ => false,
        }
    }
}

/// The first of the source's flows whose conditions all hold. A flow without conditions takes everything, so it is asked
/// last.
pub(crate) fn route<'a, F: AsRef<Flow>>(flows: &'a [Arc<F>], view: &View<'_>) -> Option<&'a Arc<F>> {
    let with_conditions = |flow: &&'a Arc<F>| !AsRef::<Flow>::as_ref(&***flow).matches.is_empty();
    let matching = |flow: &&'a Arc<F>| AsRef::<Flow>::as_ref(&***flow).matches.iter().all(|m| m.holds(view));
    flows
        .iter()
        .filter(with_conditions)
        .find(matching)
        .or_else(|| flows.iter().find(|flow| AsRef::<Flow>::as_ref(&***flow).matches.is_empty()))
}

impl AsRef<Flow> for Flow {
    fn as_ref(&self) -> &Flow {
        self
    }
}
