use std::collections::HashSet;

use ackord_broker::{Headers, Message, Origin, Rejection};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::value::RawValue;

/// Writes a message as one line of the message format, without the newline at its end; with a rejection, as a dead
/// letter.
///
/// What [`parse_line`](crate::parse_line) reads from it is the same message, byte for byte, but for its
/// [`fault`](Message::fault), which the format does not carry. The body of a message with a fault is never written as
/// JSON, because whether it is JSON was the question.
pub fn write_line(message: &Message, rejection: Option<&Rejection>) -> String {
    let mut line = head(message, rejection);
    match &message.body {
        None => line.push_str("\"body\":null"),
        Some(body) => match std::str::from_utf8(body) {
            Ok(text) if message.fault.is_none() && is_one_line_of_json(text) => {
                line.push_str("\"body\":");
                line.push_str(text);
            }
            Ok(text) => {
                line.push_str("\"body_text\":");
                push_text(&mut line, text);
            }
            Err(_) => {
                line.push_str("\"body_base64\":\"");
                STANDARD.encode_string(body, &mut line);
                line.push('"');
            }
        },
    }
    line.push('}');
    line
}

/// The line up to its body, which comes last so that a long one can be streamed behind this.
pub(crate) fn head(message: &Message, rejection: Option<&Rejection>) -> String {
    let mut line = String::with_capacity(256);
    line.push('{');
    if !message.id.as_str().is_empty() {
        line.push_str("\"id\":");
        push_text(&mut line, message.id.as_str());
        line.push(',');
    }
    if let Some(key) = &message.record_key {
        line.push_str("\"key\":");
        push_value(&mut line, Some(key));
        line.push(',');
    }
    push_headers(&mut line, "headers", &message.headers);
    push_headers(&mut line, "properties", &message.properties);
    push_headers(&mut line, "attributes", &message.attributes);
    push_origin(&mut line, &message.origin);
    if let Some(rejection) = rejection {
        push_rejection(&mut line, rejection);
    }
    line
}

/// Whether the text can stand as it is for `body`: read back, it gives the same bytes. A null would be read as no
/// body, space around the value would be lost, and a newline would end the line.
fn is_one_line_of_json(text: &str) -> bool {
    text != "null"
        && !text.contains('\n')
        && serde_json::from_str::<&RawValue>(text).is_ok_and(|value| value.get().len() == text.len())
}

fn push_headers(line: &mut String, field: &str, headers: &Headers) {
    if headers.is_empty() {
        return;
    }
    push_text(line, field);
    let mut seen = HashSet::new();
    let as_object =
        headers.iter().all(|header| std::str::from_utf8(&header.name).is_ok() && seen.insert(&header.name));
    line.push_str(if as_object { ":{" } else { ":[" });
    for (index, header) in headers.iter().enumerate() {
        if index > 0 {
            line.push(',');
        }
        if !as_object {
            line.push('[');
        }
        push_value(line, Some(&header.name));
        line.push(if as_object { ':' } else { ',' });
        push_value(line, header.value.as_deref());
        if !as_object {
            line.push(']');
        }
    }
    line.push_str(if as_object { "}," } else { "]," });
}

fn push_origin(line: &mut String, origin: &Origin) {
    if *origin == Origin::default() {
        return;
    }
    line.push_str("\"origin\":{\"broker\":");
    push_text(line, &origin.broker);
    line.push_str(",\"source\":");
    push_text(line, &origin.source);
    if let Some(position) = &origin.position {
        line.push_str(",\"position\":");
        push_text(line, position);
    }
    line.push_str("},");
}

fn push_rejection(line: &mut String, rejection: &Rejection) {
    line.push_str("\"dead_letter\":{\"reason\":");
    push_text(line, rejection.reason.as_str());
    line.push_str(",\"detail\":");
    push_text(line, &rejection.detail);
    // A note must not contradict the two fields above.
    for (name, note) in rejection.notes.iter().filter(|(name, _)| !matches!(*name, "reason" | "detail")) {
        line.push(',');
        push_text(line, name);
        line.push(':');
        push_text(line, note);
    }
    line.push_str("},");
}

fn push_value(line: &mut String, value: Option<&[u8]>) {
    match value.map(|bytes| std::str::from_utf8(bytes).map_err(|_| bytes)) {
        None => line.push_str("null"),
        Some(Ok(text)) => push_text(line, text),
        Some(Err(bytes)) => {
            line.push_str("{\"base64\":\"");
            STANDARD.encode_string(bytes, line);
            line.push_str("\"}");
        }
    }
}

fn push_text(line: &mut String, text: &str) {
    line.push_str(&serde_json::to_string(text).expect("writing text as JSON into memory cannot fail"));
}
