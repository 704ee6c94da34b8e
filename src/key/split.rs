//! Splitting one message into several, each a message of its own with its own key. Pure.

use ackord_broker::Message;
use bytes::Bytes;
use serde_json::Value;

use super::reader::{Found, Reader, Refused};
use super::view::View;

/// The parts of the list in that place: each a message with the part as its body, and all else as in the whole.
///
/// # Errors
/// [`Refused`] when the place is not there, or holds no list.
pub(crate) fn parts(place: &Reader, view: &View<'_>) -> Result<Vec<Message>, Refused> {
    let found = place.find(view)?.ok_or_else(|| super::expr::absent(place))?;
    let list = match &found {
        Found::Json(value) => Some(*value),
        Found::Decoded(json, at) => json.pointer(at),
        Found::Bytes(_) => None,
    };
    let list = list.and_then(Value::as_array).ok_or_else(|| place.unusable("is not a list"))?;
    // A value writes itself with its numbers as they were written, and with its fields in their order.
    let part = |part: &Value| Message { body: Some(Bytes::from(part.to_string())), ..view.message().clone() };
    Ok(list.iter().map(part).collect())
}
