//! How one message, or one guarded step, ended.

use std::time::Duration;

use serde_json::Value;

use crate::idempotency::Decline;

/// How it ended. [`policy::decide`](crate::policy::decide) says what the broker is told.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// It took effect, now or (`replayed`) before.
    Done {
        /// The result as decoded from the record, so that the first run and a replay are equal.
        value: Value,
        /// Whether this run was answered from the record.
        replayed: bool,
    },
    /// The business said no, now or (`replayed`) before.
    Declined {
        /// The decline on record.
        decline: Decline,
        /// Whether this run was answered from the record.
        replayed: bool,
    },
    /// It was tried and did not succeed; it may be tried again.
    Failed {
        /// What kind of failure.
        kind: Failure,
        /// The error in one line.
        error: String,
        /// Which try this was.
        attempt: u32,
    },
    /// It may have taken effect, and the flow asks for a person to look.
    Parked {
        /// What is known.
        note: String,
    },
    /// Somebody else is at it and alive.
    Busy {
        /// What is left of their lease.
        remaining: Duration,
    },
    /// The right to run was lost while running; whoever took it decides.
    LostOwnership,
    /// The key was used before with other content.
    Mismatch,
    /// The record cannot be read.
    Unreadable {
        /// Why.
        reason: String,
    },
    /// The message cannot be decoded.
    Undecodable {
        /// Why.
        reason: String,
    },
    /// The message is larger than the adapter's limit. Sizes in bytes.
    Oversize {
        /// How large it is.
        size: u64,
        /// The limit.
        limit: u64,
    },
    /// No key could be derived.
    Keyless {
        /// Why.
        reason: String,
        /// Whether the flow lets such messages pass unseen.
        ignored: bool,
    },
    /// It asks for no effect: a tombstone, a test event.
    Control {
        /// Which kind of control record it is.
        what: String,
        /// Whether the flow lets such records pass.
        ignored: bool,
    },
    /// No flow takes it.
    Unroutable,
    /// The store could not be asked, so nothing was run.
    StoreAway {
        /// What went wrong.
        reason: String,
    },
    /// It was started and never ended as often as allowed.
    Crashed {
        /// How often.
        crashes: u32,
    },
    /// The worker is stopping and had not started it.
    Stopping,
}

/// The kinds of failure after which a message may be tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// It counts as an attempt.
    Transient,
    /// It counts as an attempt, and may have taken effect.
    InDoubt,
    /// We were told to come back later; does not count.
    Throttled {
        /// Not before this much time has passed.
        after: Option<Duration>,
    },
    /// The worker is at fault; does not count.
    WorkerFault,
}

impl Outcome {
    /// The word that stands in logs and metrics.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Done { replayed: false, .. } => "done",
            Self::Done { replayed: true, .. } => "replayed",
            Self::Declined { replayed: false, .. } => "declined",
            Self::Declined { replayed: true, .. } => "decline_replayed",
            Self::Failed { kind: Failure::Transient, .. } => "transient",
            Self::Failed { kind: Failure::InDoubt, .. } => "in_doubt",
            Self::Failed { kind: Failure::Throttled { .. }, .. } => "throttled",
            Self::Failed { kind: Failure::WorkerFault, .. } => "worker_fault",
            Self::Parked { .. } => "parked",
            Self::Busy { .. } => "busy",
            Self::LostOwnership => "lease_lost",
            Self::Mismatch => "mismatch",
            Self::Unreadable { .. } => "unreadable",
            Self::Undecodable { .. } => "undecodable",
            Self::Oversize { .. } => "oversize",
            Self::Keyless { .. } => "keyless",
            Self::Control { .. } => "control",
            Self::Unroutable => "unroutable",
            Self::StoreAway { .. } => "store_away",
            Self::Crashed { .. } => "crashed",
            Self::Stopping => "stopping",
        }
    }

    /// The error in one line, for logs and dead letters; empty when there is none.
    pub fn error(&self) -> String {
        match self {
            Self::Failed { error, .. } => error.clone(),
            Self::Declined { decline, .. } if decline.detail.is_empty() => decline.code.clone(),
            Self::Declined { decline, .. } => format!("{}: {}", decline.code, decline.detail),
            Self::Parked { note } => note.clone(),
            Self::Mismatch => "the key was used before with other content".to_owned(),
            Self::Unreadable { reason } | Self::Undecodable { reason } | Self::StoreAway { reason } => {
                reason.clone()
            }
            Self::Keyless { reason, .. } => reason.clone(),
            Self::Oversize { size, limit } => format!("{size} bytes, the limit is {limit}"),
            Self::Crashed { crashes } => format!("started {crashes} times without an end"),
            Self::Unroutable => "no flow of this source matches".to_owned(),
            Self::LostOwnership => "the claim was lost while running".to_owned(),
            Self::Control { what, ignored: false } => format!("{what} asks for no effect"),
            Self::Control { ignored: true, .. } | Self::Done { .. } | Self::Busy { .. } | Self::Stopping => {
                String::new()
            }
        }
    }
}
