use bytes::Bytes;

use crate::{Attempt, Header, Headers, Message};

use super::Lie;

/// The message as a lying adapter hands it out.
pub(super) fn distorted(lie: Lie, mut message: Message, attempt: Attempt) -> Message {
    match lie {
        Lie::DropsRepeatedHeaders => message.headers = last_of_each(&message.headers),
        Lie::ReversesHeaders => message.headers = message.headers.iter().rev().cloned().collect(),
        Lie::NullHeaderBecomesEmpty => {
            message.headers = each_value(&message.headers, |value| Some(value.cloned().unwrap_or_default()));
        }
        Lie::HeadersBecomeText => {
            message.headers = each_value(&message.headers, |value| value.map(text));
        }
        Lie::NullBecomesEmpty => message.body = Some(message.body.unwrap_or_default()),
        Lie::EmptyBecomesNull => message.body = message.body.filter(|body| !body.is_empty()),
        Lie::BodyBecomesText => message.body = message.body.as_ref().map(text),
        Lie::TrimsTheBody => {
            message.body = message.body.map(|body| Bytes::copy_from_slice(body.trim_ascii()))
        }
        Lie::LosesRecordKey => message.record_key = None,
        Lie::IdChanges => message.id = format!("{}-{attempt:?}", message.id).into(),
        Lie::PositionChanges => {
            message.origin.position = message.origin.position.map(|at| format!("{at}-{attempt:?}").into());
        }
        _ => {}
    }
    message
}

fn last_of_each(headers: &Headers) -> Headers {
    let all: Vec<_> = headers.iter().collect();
    let last = |at: usize| all[at + 1..].iter().all(|later| later.name != all[at].name);
    (0..all.len()).filter(|at| last(*at)).map(|at| all[at].clone()).collect()
}

fn each_value(headers: &Headers, change: impl Fn(Option<&Bytes>) -> Option<Bytes>) -> Headers {
    headers
        .iter()
        .map(|header| Header { name: header.name.clone(), value: change(header.value.as_ref()) })
        .collect()
}

fn text(bytes: &Bytes) -> Bytes {
    String::from_utf8_lossy(bytes).into_owned().into()
}
