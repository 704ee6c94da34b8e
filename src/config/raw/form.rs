//! Values that can be written in more than one form.
//!
//! Not serde's `untagged`: that forgets which key inside the value was wrong.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Error, MapAccess, SeqAccess, Unexpected, Visitor};

/// A value whose form (text, list, table) says which of its variants is meant. `None` = that form is not one of its.
pub(super) trait Form: Sized {
    /// What is needed, with an example, for the error.
    const EXPECTING: &'static str;

    fn text(_: &str) -> Option<Self> {
        None
    }

    fn list<'de, A: SeqAccess<'de>>(_: A) -> Option<Result<Self, A::Error>> {
        None
    }

    fn table<'de, A: MapAccess<'de>>(_: A) -> Option<Result<Self, A::Error>> {
        None
    }
}

/// Implements `Deserialize` for a [`Form`].
macro_rules! read_by_form {
    ($form:ty) => {
        impl<'de> Deserialize<'de> for $form {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any($crate::config::raw::form::ByForm::new())
            }
        }
    };
}
pub(super) use read_by_form;

pub(super) struct ByForm<T>(PhantomData<T>);

impl<T> ByForm<T> {
    pub(super) fn new() -> Self {
        Self(PhantomData)
    }
}

impl<'de, T: Form> Visitor<'de> for ByForm<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::EXPECTING)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        T::text(text).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<T, A::Error> {
        T::list(list).unwrap_or_else(|| Err(A::Error::invalid_type(Unexpected::Seq, &self)))
    }

    fn visit_map<A: MapAccess<'de>>(self, table: A) -> Result<T, A::Error> {
        T::table(table).unwrap_or_else(|| Err(A::Error::invalid_type(Unexpected::Map, &self)))
    }
}
