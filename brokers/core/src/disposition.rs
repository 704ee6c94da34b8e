use std::fmt;
use std::time::Duration;

use thiserror::Error;

use crate::BrokerError;

/// What the broker is told about one delivery. There is no default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Disposition {
    /// Done with it: do not deliver it again.
    Ack,
    /// Deliver it again.
    Nack {
        /// Not before this much time has passed; `None` = at once. A lower bound.
        delay: Option<Duration>,
        /// Whether a try was made. Some brokers count the one and not the other.
        cause: NackCause,
    },
    /// It will never work: keep it aside with the reason, do not deliver it again.
    Reject(Box<Rejection>),
}

/// Why a message is handed back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NackCause {
    /// We ran it and it failed.
    Tried,
    /// It was not run: we are stopping, or somebody else is running it.
    Untried,
}

/// Everything that a dead letter says beside the message itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// The reason in one word.
    pub reason: RejectReason,
    /// What went wrong in a sentence for people; at most 1 KiB, cut by [`Rejection::new`].
    pub detail: String,
    /// Further facts (flow, step, key, attempts …) by name; adapters write each as a header `ackord-<name>`.
    pub notes: Vec<(&'static str, String)>,
}

impl Rejection {
    /// A rejection without notes; the detail is cut at 1,024 bytes.
    pub fn new(reason: RejectReason, detail: impl Into<String>) -> Self {
        const LIMIT: usize = 1024;
        let mut detail = detail.into();
        if detail.len() > LIMIT {
            let cut = (0..=LIMIT).rev().find(|at| detail.is_char_boundary(*at)).unwrap_or(0);
            detail.truncate(cut);
        }
        Self { reason, detail, notes: Vec::new() }
    }
}

/// Why a message was dead-lettered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RejectReason {
    /// The business said no, and the flow asks for declines to be kept aside.
    Declined,
    /// It failed as often as the flow allows.
    Exhausted,
    /// It could not be decoded.
    Undecodable,
    /// No idempotency key could be derived.
    Keyless,
    /// Its key was used before with different content.
    Mismatch,
    /// It is larger than the limit.
    Oversize,
    /// The worker died while running it, more often than allowed.
    Crashed,
    /// Whether its effect happened is unknown, and the flow asks for a person to look.
    InDoubt,
    /// The record of its outcome cannot be read.
    Unreadable,
    /// No flow takes it.
    Unroutable,
}

impl RejectReason {
    /// The word that stands in headers, files and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Declined => "declined",
            Self::Exhausted => "exhausted",
            Self::Undecodable => "undecodable",
            Self::Keyless => "keyless",
            Self::Mismatch => "mismatch",
            Self::Oversize => "oversize",
            Self::Crashed => "crashed",
            Self::InDoubt => "in_doubt",
            Self::Unreadable => "unreadable",
            Self::Unroutable => "unroutable",
        }
    }
}

impl fmt::Display for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a delivery could not be settled or extended.
#[derive(Debug, Error)]
pub enum SettleError {
    /// The message is no longer ours: its lease ran out, its partition was revoked, its channel closed.
    #[error("the message is no longer held by this consumer")]
    Lost,
    /// The broker did not confirm; the message counts as unsettled.
    #[error("the broker did not confirm")]
    Failed(#[source] BrokerError),
}
