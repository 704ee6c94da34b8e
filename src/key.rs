//! Idempotency keys: text that names one effect. Pure.

pub(crate) mod condition;
pub mod decode;
mod expr;
pub mod preset;
pub mod reader;
pub(crate) mod split;
pub mod template;
mod view;

use std::fmt;
use std::sync::Arc;

use thiserror::Error;

/// The most bytes a key may have as it is; a longer one keeps a readable head and ends in a hash of the whole.
pub const LONGEST_KEY: usize = 512;

/// The name of one effect. Equal keys mean "the same effect", so each part is escaped: no two lists of parts give the
/// same text.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IdempotencyKey(Arc<str>);

/// What a key is scoped by. A part that is `None` is an empty slot in the text; a part that is given must not be blank.
#[derive(Debug, Clone, Copy, Default)]
pub struct Scope<'a> {
    /// Whose effect it is: a tenant, an account.
    pub namespace: Option<&'a str>,
    /// The flow's version. Off by default: a new version forgets all past work.
    pub version: Option<&'a str>,
}

/// A part of a key that was given but says nothing.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("the {part} of the idempotency key is blank")]
pub struct BlankPart {
    /// Which part.
    pub part: &'static str,
}

impl IdempotencyKey {
    /// `ff:idemp:<namespace>:<version>:<id>`.
    ///
    /// ```
    /// use ackord::key::{IdempotencyKey, Scope};
    /// let scope = Scope { namespace: Some("tenant-a"), version: Some("2.0.0") };
    /// let key = IdempotencyKey::scoped("order-1234", scope)?;
    /// assert_eq!(key.as_str(), "ff:idemp:tenant-a:2.0.0:order-1234");
    /// # Ok::<(), ackord::key::BlankPart>(())
    /// ```
    ///
    /// # Errors
    /// When the id, or a part of the scope that is given, is blank.
    pub fn scoped(id: &str, scope: Scope<'_>) -> Result<Self, BlankPart> {
        Self::build(scope, &[("id", id)])
    }

    /// The key of a whole flow's outcome: `ff:idemp:<namespace>:<version>:flow:<flow>:<id>`.
    ///
    /// # Errors
    /// As [`scoped`](IdempotencyKey::scoped).
    pub fn for_flow(flow: &str, id: &str, scope: Scope<'_>) -> Result<Self, BlankPart> {
        Self::build(scope, &[("level", "flow"), ("flow", flow), ("id", id)])
    }

    /// The key of a step that names its effect itself: `ff:idemp:<namespace>:<version>:flow:<flow>:own:<step>:<id>`.
    ///
    /// # Errors
    /// As [`scoped`](IdempotencyKey::scoped).
    pub(crate) fn for_own_step(
        flow: &str,
        step: &str,
        id: &str,
        scope: Scope<'_>,
    ) -> Result<Self, BlankPart> {
        let level = [("level", "flow"), ("flow", flow), ("level", "own")];
        Self::build(scope, &[&level[..], &[("step", step), ("id", id)]].concat())
    }

    /// A key that somebody else made, taken as it is.
    ///
    /// # Errors
    /// When it is blank.
    pub fn verbatim(text: &str) -> Result<Self, BlankPart> {
        not_blank("key", text)?;
        Ok(Self(shortened(text.to_owned()).into()))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn build(scope: Scope<'_>, parts: &[(&'static str, &str)]) -> Result<Self, BlankPart> {
        let mut text = String::with_capacity(64);
        text.push_str("ff:idemp");
        for (name, part) in [("namespace", scope.namespace), ("version", scope.version)] {
            text.push(':');
            if let Some(part) = part {
                not_blank(name, part)?;
                escape_into(&mut text, part);
            }
        }
        for (name, part) in parts {
            not_blank(name, part)?;
            text.push(':');
            escape_into(&mut text, part);
        }
        Ok(Self(shortened(text).into()))
    }
}

/// The key of one step of the message whose flow has that key.
pub(crate) fn step_in_flow(flow_key: &IdempotencyKey, step: &str) -> IdempotencyKey {
    let mut text = format!("{flow_key}:step:");
    escape_into(&mut text, step);
    IdempotencyKey(shortened(text).into())
}

/// The key of a step of a saga: `saga:<saga_id>:<step>`.
///
/// ```
/// let key = ackord::key::step_idempotency_key("s_1", "charge")?;
/// assert_eq!(key.as_str(), "saga:s_1:charge");
/// # Ok::<(), ackord::key::BlankPart>(())
/// ```
///
/// # Errors
/// When a part is blank.
pub fn step_idempotency_key(saga_id: &str, step: &str) -> Result<IdempotencyKey, BlankPart> {
    let mut text = String::from("saga");
    for (name, part) in [("saga id", saga_id), ("step", step)] {
        not_blank(name, part)?;
        text.push(':');
        escape_into(&mut text, part);
    }
    Ok(IdempotencyKey(shortened(text).into()))
}

fn not_blank(part: &'static str, text: &str) -> Result<(), BlankPart> {
    if text.trim().is_empty() { Err(BlankPart { part }) } else { Ok(()) }
}

fn escape_into(text: &mut String, part: &str) {
    for c in part.chars() {
        match c {
            ':' => text.push_str("%3A"),
            '%' => text.push_str("%25"),
            c => text.push(c),
        }
    }
}

/// `%#` never stands in an escaped part, so no short key can be mistaken for a shortened one.
fn shortened(text: String) -> String {
    const MARK: &str = "%#";
    if text.len() <= LONGEST_KEY {
        return text;
    }
    let hash = blake3::hash(text.as_bytes()).to_hex();
    let room = LONGEST_KEY - MARK.len() - hash.len();
    let cut = (0..=room).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    format!("{}{MARK}{hash}", &text[..cut])
}

impl fmt::Display for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn in_namespace(namespace: &str, id: &str) -> IdempotencyKey {
        IdempotencyKey::scoped(id, Scope { namespace: Some(namespace), version: None }).unwrap()
    }

    #[test]
    fn an_absent_part_is_an_empty_slot() {
        let key = IdempotencyKey::scoped("order-1234", Scope::default()).unwrap();
        assert_eq!(key.as_str(), "ff:idemp:::order-1234");
    }

    /// paveg/hono-idempotency#22
    #[test]
    fn parts_that_share_their_letters_never_meet() {
        let long = "x".repeat(10_000);
        let longer = format!("{long}y");
        let mut keys = vec![
            in_namespace("a:b", "c"),
            in_namespace("a", "b:c"),
            in_namespace("a%3Ab", "c"),
            in_namespace("a", "%3A"),
            in_namespace("a", ":"),
            in_namespace("é", "日本"),
            in_namespace("a", &long),
            in_namespace("a", &longer),
            step_idempotency_key("1:x", "y").unwrap(),
            step_idempotency_key("1", "x:y").unwrap(),
            IdempotencyKey::for_flow("f", "1", Scope::default()).unwrap(),
            step_in_flow(&IdempotencyKey::for_flow("f", "1", Scope::default()).unwrap(), "s"),
            IdempotencyKey::for_own_step("f", "s", "1", Scope::default()).unwrap(),
            IdempotencyKey::for_flow("flow", "s:1", Scope::default()).unwrap(),
        ];
        // A key that spells out what a long one is shortened to.
        keys.push(in_namespace("a", &in_namespace("a", &long).as_str()["ff:idemp:a::".len()..]));
        assert!(keys.iter().all(|key| key.as_str().len() <= LONGEST_KEY));
        let distinct: HashSet<_> = keys.iter().collect();
        assert_eq!(distinct.len(), keys.len());
    }

    #[test]
    fn a_step_that_names_its_effect_has_one_key_however_long_the_namespace_is() {
        let long = "n".repeat(600);
        for namespace in ["n", &long] {
            let scope = Scope { namespace: Some(namespace), version: None };
            let key = |id| IdempotencyKey::for_own_step("f", "s", id, scope).unwrap();
            assert_eq!(key("1"), key("1"));
            assert_ne!(key("1"), key("2"));
        }
        let key = IdempotencyKey::for_own_step("f", "s", "a:1", Scope::default()).unwrap();
        assert_eq!(key.as_str(), "ff:idemp:::flow:f:own:s:a%3A1");
    }

    #[test]
    fn a_blank_part_is_refused_by_name() {
        for blank in ["", " ", "\t\n", "\u{a0}"] {
            assert_eq!(IdempotencyKey::scoped(blank, Scope::default()), Err(BlankPart { part: "id" }));
            let scope = Scope { namespace: Some(blank), version: None };
            assert_eq!(IdempotencyKey::scoped("1", scope), Err(BlankPart { part: "namespace" }));
            assert!(step_idempotency_key("1", blank).is_err());
        }
    }

    #[test]
    fn a_long_key_keeps_a_readable_head() {
        let key = in_namespace("tenant", &"é".repeat(2_000));
        assert!(key.as_str().starts_with("ff:idemp:tenant::éé"));
        assert!(key.as_str().len() <= LONGEST_KEY);
    }
}
