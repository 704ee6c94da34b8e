//! What an error means: the seven verdicts, and the tables that give them.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;

pub mod exit;
pub mod http;
pub mod io;

/// What a step's end means for its key and its message. The README tells what follows from each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It took effect.
    Done,
    /// The business said no; asking again gives the same answer. The only failure that is ever cached.
    Declined,
    /// It failed and may pass later. Counts as an attempt.
    Transient,
    /// We were told to come back later. Does not count as an attempt.
    Throttled {
        /// Not before this much time has passed, if we were told.
        after: Option<Duration>,
    },
    /// The worker itself is at fault (credential, address, missing program): every message would meet it.
    WorkerFault,
    /// It may have taken effect, and nobody knows.
    InDoubt,
    /// The right to run was lost while running; whoever holds it now decides.
    LeaseLost,
}

impl Verdict {
    /// The word that stands in logs, metrics and rules.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Declined => "declined",
            Self::Transient => "transient",
            Self::Throttled { .. } => "throttled",
            Self::WorkerFault => "worker_fault",
            Self::InDoubt => "in_doubt",
            Self::LeaseLost => "lease_lost",
        }
    }
}

/// Why a step did not succeed. Any error becomes one by `?`, and is then judged by [`io::verdict`] or as transient.
///
/// It does not implement [`std::error::Error`] itself, which is what lets `?` take every error that does.
pub struct StepError {
    verdict: Verdict,
    code: String,
    detail: String,
    body: Option<Bytes>,
    source: Option<Box<dyn StdError + Send + Sync>>,
    undecodable: bool,
}

impl StepError {
    /// A permanent business decline with its code (`CardDeclined`); it is cached and answered to every later delivery.
    pub fn permanent(code: impl Into<String>) -> Self {
        Self::with(Verdict::Declined, code)
    }

    /// Failed now, may pass later.
    pub fn transient(code: impl Into<String>) -> Self {
        Self::with(Verdict::Transient, code)
    }

    /// The worker is at fault, not the message.
    pub fn fault(code: impl Into<String>) -> Self {
        Self::with(Verdict::WorkerFault, code)
    }

    /// It may have taken effect.
    pub fn in_doubt(code: impl Into<String>) -> Self {
        Self::with(Verdict::InDoubt, code)
    }

    /// An error of that verdict.
    pub fn with(verdict: Verdict, code: impl Into<String>) -> Self {
        Self {
            verdict,
            code: code.into(),
            detail: String::new(),
            body: None,
            source: None,
            undecodable: false,
        }
    }

    /// It took effect, but its result cannot be kept; it counts as done and is never repeated.
    pub fn done_without_result(why: impl Into<String>) -> Self {
        Self::with(Verdict::Done, "not_encodable").detail(why)
    }

    /// The input cannot be decoded: the message is dead-lettered as such, nothing is cached.
    pub fn undecodable(source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        let source = source.into();
        Self {
            verdict: Verdict::Transient,
            code: "undecodable".to_owned(),
            detail: source.to_string(),
            body: None,
            source: Some(source),
            undecodable: true,
        }
    }

    /// Not before this much time has passed; makes it throttled, so that it does not count as an attempt.
    #[must_use]
    pub fn retry_after(mut self, after: Duration) -> Self {
        self.verdict = Verdict::Throttled { after: Some(after) };
        self
    }

    /// Adds a sentence for people.
    #[must_use]
    pub fn detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = detail.into();
        self
    }

    /// Adds the answer that carried a decline; it is kept on record.
    #[must_use]
    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = Some(body.into());
        self
    }

    /// Adds the cause.
    #[must_use]
    pub fn source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// What it means.
    pub fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// The code.
    pub fn code(&self) -> &str {
        &self.code
    }

    /// The answer that carried a decline.
    pub fn answer(&self) -> Option<&Bytes> {
        self.body.as_ref()
    }

    /// Whether the input could not be decoded, so that no try can ever pass.
    pub fn is_undecodable(&self) -> bool {
        self.undecodable
    }

    /// Code, detail and the chain of causes in one line.
    pub fn summary(&self) -> String {
        let mut line = self.code.clone();
        let mut add = |text: &str| {
            if !text.is_empty() && !line.ends_with(text) {
                line.push_str(": ");
                line.push_str(text);
            }
        };
        add(&self.detail);
        let mut cause = self.source.as_deref().map(|s| s as &(dyn StdError + 'static));
        while let Some(error) = cause {
            add(&error.to_string());
            cause = error.source();
        }
        line
    }

    /// The sentence for people, without the causes.
    pub fn detail_text(&self) -> &str {
        &self.detail
    }
}

/// Names that the reference lists as permanent business errors. A step that reports one of them as its code, without a
/// verdict of its own, has declined.
pub const REFERENCE_DECLINES: [&str; 3] = ["CardDeclined", "AccountNotFound", "InvalidCurrency"];

impl<E: StdError + Send + Sync + 'static> From<E> for StepError {
    fn from(error: E) -> Self {
        let (verdict, code) = match io::find(&error) {
            Some(found) => (io::verdict(found), format!("io_{:?}", found.kind())),
            None => (Verdict::Transient, "error".to_owned()),
        };
        Self {
            verdict,
            code,
            detail: String::new(),
            body: None,
            source: Some(Box::new(error)),
            undecodable: false,
        }
    }
}

impl fmt::Debug for StepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StepError({}, {})", self.verdict.as_str(), self.summary())
    }
}

impl fmt::Display for StepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.summary())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fails() -> Result<(), StepError> {
        Err(std::fmt::Error)?;
        Ok(())
    }

    #[test]
    fn an_unknown_error_is_transient_and_never_a_decline() {
        assert_eq!(fails().unwrap_err().verdict(), Verdict::Transient);
    }

    #[test]
    fn a_retry_after_makes_it_throttled() {
        let error = StepError::transient("busy").retry_after(Duration::from_secs(3));
        assert_eq!(error.verdict(), Verdict::Throttled { after: Some(Duration::from_secs(3)) });
    }

    #[test]
    fn the_summary_says_each_cause_once() {
        let inner = std::io::Error::other("disk on fire");
        let error = StepError::transient("save").detail("disk on fire").source(inner);
        assert_eq!(error.summary(), "save: disk on fire");
    }
}
