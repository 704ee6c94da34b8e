//! Key templates: text with places in braces, `receipt:{body:/order/id}` or `ship:{step:charge:/id}`. Pure.

use std::str::FromStr;

use serde_json::Value;
use thiserror::Error;

use super::escape_into;
use super::reader::{Reader, Refused, UnknownPlace, View};
use crate::flow::step::Outputs;

/// A key's text with places in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyTemplate(Vec<Part>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Place(Reader),
    Output { step: String, pointer: String },
}

/// A template that could not be understood.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TemplateError {
    /// A brace without its partner.
    #[error("`{0}` has a brace without its partner")]
    Unbalanced(String),
    /// A place that does not exist.
    #[error(transparent)]
    UnknownPlace(#[from] UnknownPlace),
    /// A template without a place gives every message the same key.
    #[error("`{0}` has no place in braces, so every message would have the same key")]
    Constant(String),
}

impl KeyTemplate {
    /// Fills the places in. Values are escaped where they could be mistaken for the template's own text.
    ///
    /// # Errors
    /// [`Refused`] when a place is not there or holds nothing usable.
    pub fn fill(&self, view: &View<'_>, outputs: &Outputs) -> Result<String, Refused> {
        let mut text = String::new();
        for part in &self.0 {
            match part {
                Part::Text(fixed) => text.push_str(fixed),
                Part::Place(place) => {
                    let value = place.read(view)?.ok_or_else(|| Refused::Absent(place.to_string()))?;
                    escape_into(&mut text, &value);
                }
                Part::Output { step, pointer } => escape_into(&mut text, &output(outputs, step, pointer)?),
            }
        }
        Ok(text)
    }

    /// Every reader in it.
    pub(crate) fn readers_mut(&mut self) -> impl Iterator<Item = &mut Reader> {
        self.0.iter_mut().filter_map(|part| match part {
            Part::Place(place) => Some(place),
            Part::Text(_) | Part::Output { .. } => None,
        })
    }

    /// The names of the steps whose outputs it reads.
    pub fn steps(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|part| match part {
            Part::Output { step, .. } => Some(step.as_str()),
            _ => None,
        })
    }
}

fn output(outputs: &Outputs, step: &str, pointer: &str) -> Result<String, Refused> {
    let place = || format!("step:{step}:{pointer}");
    let found =
        outputs.iter().find(|(name, _)| &**name == step).and_then(|(_, value)| value.pointer(pointer));
    match found {
        None => Err(Refused::Absent(place())),
        Some(Value::String(text)) if !text.trim().is_empty() => Ok(text.clone()),
        Some(Value::Number(number)) => Ok(number.to_string()),
        Some(Value::Bool(flag)) => Ok(flag.to_string()),
        Some(_) => {
            Err(Refused::Unusable { place: place(), why: "is not a single value that says something" })
        }
    }
}

impl FromStr for KeyTemplate {
    type Err = TemplateError;

    fn from_str(text: &str) -> Result<Self, TemplateError> {
        let unbalanced = || TemplateError::Unbalanced(text.to_owned());
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some(open) = rest.find(['{', '}']) {
            if rest.as_bytes()[open] == b'}' {
                return Err(unbalanced());
            }
            if open > 0 {
                parts.push(Part::Text(rest[..open].to_owned()));
            }
            let close = rest[open..].find('}').ok_or_else(unbalanced)? + open;
            let inner = &rest[open + 1..close];
            parts.push(match inner.strip_prefix("step:") {
                Some(output) => {
                    let (step, pointer) =
                        output.split_once(':').ok_or_else(|| UnknownPlace::Place(inner.to_owned()))?;
                    Part::Output { step: step.to_owned(), pointer: pointer.to_owned() }
                }
                None => Part::Place(inner.parse()?),
            });
            rest = &rest[close + 1..];
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.to_owned()));
        }
        if parts.iter().all(|part| matches!(part, Part::Text(_))) {
            return Err(TemplateError::Constant(text.to_owned()));
        }
        Ok(Self(parts))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ackord_broker::Message;
    use serde_json::json;

    use super::*;

    fn fill(template: &str, message: &Message, outputs: &[(&str, Value)]) -> Result<String, Refused> {
        let outputs: Outputs =
            Arc::new(outputs.iter().map(|(name, value)| ((*name).into(), value.clone())).collect());
        template.parse::<KeyTemplate>().unwrap().fill(&View::new(message), &outputs)
    }

    #[test]
    fn places_and_outputs_are_filled_in() {
        let message = Message::new("m", r#"{"order":{"id":42}}"#);
        let outputs = [("charge", json!({"id": "ch_1"}))];
        assert_eq!(fill("receipt:{body:/order/id}", &message, &outputs), Ok("receipt:42".into()));
        assert_eq!(fill("{step:charge:/id}/x", &message, &outputs), Ok("ch_1/x".into()));
        assert!(fill("{step:charge:/none}", &message, &outputs).is_err());
        assert!(fill("{step:other:/id}", &message, &outputs).is_err());
        assert!(fill("{header:none}", &message, &outputs).is_err());
    }

    #[test]
    fn a_value_is_never_mistaken_for_the_templates_text() {
        let one = Message::new("m", r#"{"a":"x:y","b":"z"}"#);
        let other = Message::new("m", r#"{"a":"x","b":"y:z"}"#);
        assert_ne!(fill("{body:/a}:{body:/b}", &one, &[]), fill("{body:/a}:{body:/b}", &other, &[]));
    }

    #[test]
    fn what_is_not_a_template_is_refused() {
        for wrong in ["", "constant", "{header:x", "header:x}", "{nowhere:x}", "{step:charge}"] {
            assert!(wrong.parse::<KeyTemplate>().is_err(), "{wrong}");
        }
    }
}
