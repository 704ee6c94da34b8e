use std::error::Error as StdError;
use std::fmt;

/// An operation on a broker that failed.
#[derive(Debug)]
pub struct BrokerError {
    kind: ErrorKind,
    operation: &'static str,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl BrokerError {
    /// An error of that kind in that operation (`subscribe`, `receive`, `settle` …).
    pub fn new(
        kind: ErrorKind,
        operation: &'static str,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        Self { kind, operation, source: Some(source.into()) }
    }

    /// A finite source has been read to its end and everything from it is settled.
    pub fn ended() -> Self {
        Self { kind: ErrorKind::Ended, operation: "receive", source: None }
    }

    /// What kind of failure it is.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The operation that failed.
    pub fn operation(&self) -> &'static str {
        self.operation
    }

    /// Whether trying the same again may help.
    pub fn is_transient(&self) -> bool {
        matches!(self.kind, ErrorKind::Unavailable)
    }
}

impl fmt::Display for BrokerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            ErrorKind::Unavailable => "the broker is not available",
            ErrorKind::Refused => "the broker refused",
            ErrorKind::Ended => "the source has ended",
        };
        write!(f, "{}: {what}", self.operation)
    }
}

impl StdError for BrokerError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_ref().map(|s| s.as_ref() as _)
    }
}

/// What kind of failure an operation had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The broker is away, slow or restarting: trying again may help.
    Unavailable,
    /// Wrong credential, no such source, bad option: trying again cannot help until a person changes something.
    Refused,
    /// The source is finite and has been read and settled to its end. Not a fault.
    Ended,
}
