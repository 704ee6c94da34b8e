//! The store contract: who may run a step, and what came of it.
//!
//! A store decides on **its own clock**, in one atomic step, and never on a clock of the worker: requests carry
//! durations, never times. Two numbers that are easily mixed up: the *lease* says how long a claim lives without a sign of
//! life; the *retention* says how long a record answers, counted from its completion.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use thiserror::Error;

use crate::fingerprint::Fingerprint;
use crate::key::IdempotencyKey;

pub mod admin;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod facade;
pub mod memory;
#[cfg(feature = "sqlite")]
pub mod sqlite;
mod state;

/// A store of claims and records.
///
/// # Atomicity
/// Each method on one key is one atomic step in the store. Of any number of callers that claim one free key at the
/// same moment exactly one is told [`ClaimOutcome::Claimed`].
///
/// # Durability
/// A method returns `Ok` only when what it promises survives what the store claims to survive ([`Durability`]).
///
/// # Cancellation
/// A dropped future may or may not have taken effect; what it may leave behind is a claim that expires.
///
/// # The usual mistake
/// Answering `Claimed` to two callers when a lease runs out: the takeover must be one conditional write with a new
/// token.
#[async_trait]
pub trait IdempotencyStore: Send + Sync + fmt::Debug {
    /// The store's kind in lower case, as written in configuration files: `memory`, `sqlite`.
    fn name(&self) -> &'static str;

    /// What a record survives.
    fn durability(&self) -> Durability;

    /// Asks for the right to run the step of that key.
    ///
    /// On a free, released or expired key the claim is granted, its attempt number is one higher than the last, and all of
    /// this is durable before the answer: the start of a step is on record before the step runs. A repeated request with
    /// the token that already holds the key is granted again as the *same* claim, with the same attempt (its first answer was lost).
    ///
    /// Any key that is on record with another fingerprint answers [`ClaimOutcome::Mismatch`], whatever its state.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Refused`] or [`StoreError::Unreadable`]; nothing may be run then.
    async fn claim(&self, request: &ClaimRequest) -> Result<ClaimOutcome, StoreError>;

    /// Prolongs claims: each lives for its `lease` from now. Answers in the order of the request.
    ///
    /// # Errors
    /// An error of the whole call leaves every lease as it was. A single claim that is no longer ours answers
    /// [`Renewal::Lost`].
    async fn renew(&self, claims: &[ClaimRef], lease: Duration) -> Result<Vec<Renewal>, StoreError>;

    /// Keeps the result of a step's action under its claim, so that whoever claims next runs only what comes after the
    /// action (see [`Claim::kept`]). The claim stays open.
    ///
    /// # Errors
    /// [`StoreError::LostOwnership`] when the token no longer holds the key; nothing is changed then.
    async fn keep(&self, claim: &ClaimRef, result: &Bytes) -> Result<(), StoreError>;

    /// Puts the outcome on record for `retention`. Repeating the call with the same token is fine (its first answer was lost).
    ///
    /// # Errors
    /// [`StoreError::LostOwnership`] when the token no longer holds the key; nothing is changed then.
    async fn complete(
        &self,
        claim: &ClaimRef,
        record: &Record,
        retention: Duration,
    ) -> Result<(), StoreError>;

    /// Gives the claim back. The attempt number stays with the key, and the count of crashes is reset, as [`Release`] says.
    ///
    /// # Errors
    /// [`StoreError::LostOwnership`] when the token no longer holds the key; nothing is changed then.
    async fn release(&self, claim: &ClaimRef, how: Release) -> Result<(), StoreError>;

    /// Marks that nobody knows whether the step took effect. The key answers [`ClaimOutcome::InDoubt`] until an
    /// operator settles it ([`StoreAdmin`](admin::StoreAdmin)) or its retention is over.
    ///
    /// # Errors
    /// [`StoreError::LostOwnership`] when the token no longer holds the key; nothing is changed then.
    async fn doubt(&self, claim: &ClaimRef, note: &str) -> Result<(), StoreError>;

    /// Reads a key without changing it; `None` when it is unknown or its retention is over.
    ///
    /// # Errors
    /// As [`claim`](IdempotencyStore::claim).
    async fn get(&self, key: &IdempotencyKey) -> Result<Option<Entry>, StoreError>;

    /// Whether the store answers at all; used to find out when it is back.
    ///
    /// # Errors
    /// As [`claim`](IdempotencyStore::claim).
    async fn ping(&self) -> Result<(), StoreError>;
}

/// What a record survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// Nothing: it is gone when the process ends.
    Process,
    /// The kill of a process and the loss of power, on one machine.
    Machine,
    /// The loss of this machine.
    Shared,
}

/// A request for the right to run a step.
#[derive(Debug, Clone)]
pub struct ClaimRequest {
    /// The key, computed once per message or step.
    pub key: IdempotencyKey,
    /// Made by the caller before asking, so that a claim whose answer was lost can be recognised as its own.
    pub token: Token,
    /// What "the same request" means.
    pub fingerprint: Fingerprint,
    /// Who asks, in words for people: host, process, flow.
    pub owner: Arc<str>,
    /// How long the claim lives without a sign of life.
    pub lease: Duration,
    /// How long the attempt number is remembered when the key is never completed.
    pub retention: Duration,
    /// Whether the step starts as soon as the claim is granted. A claim that never started can be taken over without a doubt.
    pub starts: bool,
}

/// The answer to a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimOutcome {
    /// Go ahead.
    Claimed(Claim),
    /// The step has an outcome already.
    Completed(Record),
    /// Somebody else is at it and alive.
    InProgress {
        /// How long their claim lives without a further sign of life.
        remaining: Duration,
        /// Who they are.
        owner: Arc<str>,
    },
    /// It may have taken effect, and nobody knows.
    InDoubt {
        /// What is known.
        note: String,
        /// How many tries were made.
        attempt: u32,
    },
    /// The key is on record for a request with other content.
    Mismatch,
}

/// The right to run a step, granted by the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// What names this claim to the store.
    pub held: ClaimRef,
    /// 1 for the first try. A lower bound of the tries made.
    pub attempt: u32,
    /// How many tries in a row, right before this one, started and never ended.
    pub crashes: u32,
    /// Set when an expired claim was taken over.
    pub took_over: Option<Takeover>,
    /// The action's result from an earlier try, see [`IdempotencyStore::keep`].
    pub kept: Option<Bytes>,
}

/// A claim by name: enough to renew, complete or release it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimRef {
    /// The key.
    pub key: IdempotencyKey,
    /// The token that must hold the key.
    pub token: Token,
}

/// Whose claim was taken over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Takeover {
    /// The owner whose sign of life stayed away.
    pub from: Arc<str>,
    /// Whether their step had started: then it is unknown whether it took effect.
    pub started: bool,
}

/// How a claim is given back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Release {
    /// Whether this try counts. If not, the attempt number falls back by one.
    pub counted: bool,
    /// Whether the step was started. If not, the count of crashes stays as it was: nothing is known that would reset it.
    pub started: bool,
    /// The error in short, for operators; at most 1 KiB is kept.
    pub note: Option<String>,
}

/// The answer to the renewal of one claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewal {
    /// It lives on.
    Renewed,
    /// It is no longer ours.
    Lost,
}

/// What came of a step, for good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// It took effect; this is its encoded result. An encoded `null` is a result.
    Succeeded(Bytes),
    /// It took effect and must not be repeated, but its result is not kept.
    SucceededWithoutBody(MissingBody),
    /// The business said no.
    Declined(Decline),
}

/// Why a result is not kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MissingBody {
    /// It is larger than the cap. Sizes in bytes.
    TooLarge {
        /// The size of the encoded result.
        size: u64,
        /// The cap.
        cap: u64,
    },
    /// It cannot be encoded.
    NotEncodable(String),
}

/// A permanent business decision against.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decline {
    /// A short code: `CardDeclined`.
    pub code: String,
    /// A sentence for people.
    pub detail: String,
    /// The encoded answer that carried it, if any.
    pub body: Option<Bytes>,
}

/// What the store knows about a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The state.
    pub state: EntryState,
    /// How many tries were made.
    pub attempt: u32,
    /// How long this will be remembered.
    pub retained: Duration,
    /// The last error or note.
    pub note: Option<String>,
}

/// The states of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntryState {
    /// Claimed; `remaining` is zero when its lease is over and it can be taken.
    InProgress {
        /// Who holds it.
        owner: Arc<str>,
        /// What is left of the lease.
        remaining: Duration,
        /// Whether the step had started.
        started: bool,
    },
    /// Free, with a history.
    Released,
    /// Completed.
    Completed(Record),
    /// Nobody knows.
    InDoubt,
}

/// A random number that names one claim; nobody can guess or repeat it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token(u128);

impl Token {
    /// A new token from the operating system's seeded generator.
    pub fn random() -> Self {
        Self(rand::random())
    }

    /// The token as 16 bytes.
    pub fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }

    /// The inverse of [`to_bytes`](Token::to_bytes).
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(u128::from_be_bytes(bytes))
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({:032x})", self.0)
    }
}

/// Why a store did not do what it was asked.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The token does not hold the key (any longer). Nothing was changed.
    #[error("the claim on {key} is held by somebody else, or over")]
    LostOwnership {
        /// The key.
        key: IdempotencyKey,
    },
    /// The store is away, slow or restarting: trying again may help.
    #[error("{operation}: the store is not available")]
    Unavailable {
        /// What was asked.
        operation: &'static str,
        /// What went wrong.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The store cannot do it until a person changes something (full disk, wrong password, locked file).
    #[error("{operation}: {reason}")]
    Refused {
        /// What was asked.
        operation: &'static str,
        /// What is wrong and what cures it.
        reason: String,
    },
    /// What is on record under the key cannot be read. The step must not be run again because of that.
    #[error("the record of {key} cannot be read: {reason}")]
    Unreadable {
        /// The key.
        key: IdempotencyKey,
        /// What is wrong with it.
        reason: String,
    },
}
