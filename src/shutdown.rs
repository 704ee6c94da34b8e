//! How a run ends: what was finished, what was cut, and the exit code that tells.

use std::error::Error as StdError;

use ackord_broker::BrokerError;
use thiserror::Error;

use crate::telemetry::{Summary, chain};

/// Exit codes of the binary.
pub mod exit_code {
    /// Everything that was taken is settled or handed back.
    pub const CLEAN: u8 = 0;
    /// A failure at run time.
    pub const FAILURE: u8 = 1;
    /// Wrong usage or configuration.
    pub const USAGE: u8 = 2;
    /// A broker or the store could not be reached at the start, with `--fail-fast`.
    pub const UNREACHABLE: u8 = 3;
    /// The drain time ran out: what was still running is unsettled and comes again.
    pub const DRAIN_RAN_OUT: u8 = 4;
}

/// How a run went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunReport {
    /// The counts.
    pub summary: Summary,
    /// How the drain went.
    pub drain: DrainReport,
    /// Whether it ended because it was asked to; else every source had ended.
    pub asked_to_stop: bool,
}

/// How the drain went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrainReport {
    /// Messages that were open when the drain began and came to an end in time.
    pub finished: usize,
    /// Messages that were dropped unsettled when the time was over.
    pub cut: usize,
}

impl RunReport {
    /// The exit code for a run that ended without an error.
    pub fn exit_code(&self) -> u8 {
        if self.drain.cut > 0 { exit_code::DRAIN_RAN_OUT } else { exit_code::CLEAN }
    }
}

/// Why a run ended before it should have.
#[derive(Debug, Error)]
pub enum RunError {
    /// A source refuses for good.
    #[error("{place}: {reason}")]
    SourceRefused {
        /// Broker and source.
        place: String,
        /// Why, and what cures it.
        reason: String,
        /// How the run went, when it had begun.
        report: Option<Box<RunReport>>,
    },
    /// A broker cannot be reached and `--fail-fast` is on.
    #[error("{place}: {reason}")]
    Unreachable {
        /// Broker and source.
        place: String,
        /// Why.
        reason: String,
        /// How the run went, when it had begun.
        report: Option<Box<RunReport>>,
    },
    /// The store refuses until a person does something.
    #[error("the store refuses: {reason}")]
    StoreRefused {
        /// Why, and what cures it.
        reason: String,
        /// How the run went.
        report: Box<RunReport>,
    },
    /// A second signal: nothing more was settled.
    #[error("stopped at once by a second signal; what is not settled comes again")]
    Interrupted {
        /// 130 for SIGINT, 143 for SIGTERM.
        code: u8,
    },
    /// A defect of ours.
    #[error("internal error: {0}")]
    Internal(String),
}

impl RunError {
    pub(crate) fn refused(place: String, error: &BrokerError) -> Self {
        Self::SourceRefused { place, reason: chain(error), report: None }
    }

    pub(crate) fn unreachable(place: String, error: &BrokerError) -> Self {
        Self::Unreachable { place, reason: chain(error), report: None }
    }

    pub(crate) fn panicked(error: impl StdError) -> Self {
        Self::Internal(error.to_string())
    }

    pub(crate) fn with(mut self, run: RunReport) -> Self {
        if let Self::SourceRefused { report, .. } | Self::Unreachable { report, .. } = &mut self {
            *report = Some(Box::new(run));
        }
        self
    }

    /// How the run went, when it had begun.
    pub fn report(&self) -> Option<&RunReport> {
        match self {
            Self::SourceRefused { report, .. } | Self::Unreachable { report, .. } => report.as_deref(),
            Self::StoreRefused { report, .. } => Some(report),
            Self::Interrupted { .. } | Self::Internal(_) => None,
        }
    }

    /// The exit code that tells it.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Unreachable { .. } => exit_code::UNREACHABLE,
            Self::Interrupted { code } => *code,
            Self::SourceRefused { .. } | Self::StoreRefused { .. } | Self::Internal(_) => exit_code::FAILURE,
        }
    }
}
