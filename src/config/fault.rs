//! What is wrong with a configuration, where, and what cures it.

use std::fmt;
use std::path::PathBuf;

/// One fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The key path: `flows.charge.retry.max`. Empty for the whole file.
    pub key: String,
    /// Where the value came from.
    pub place: Option<Place>,
    /// What is wrong, and the cure.
    pub problem: String,
}

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A line of a file, counted from 1.
    File {
        /// The file.
        path: PathBuf,
        /// The line.
        line: usize,
        /// The column, counted from 1, where the file cannot be read any further.
        column: Option<usize>,
    },
    /// An environment variable.
    Variable(String),
    /// `--set`.
    Set,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line, column: None } => write!(f, "{}:{line}", path.display()),
            Self::File { path, line, column: Some(column) } => {
                write!(f, "{}:{line}:{column}", path.display())
            }
            Self::Variable(name) => write!(f, "environment variable {name}"),
            Self::Set => f.write_str("--set"),
        }
    }
}

impl Fault {
    /// Faults are reported in the order of the file, then of the layers above it.
    pub(super) fn position(&self) -> (u8, usize) {
        match &self.place {
            None => (0, 0),
            Some(Place::File { line, .. }) => (1, *line),
            Some(Place::Variable(_)) => (2, 0),
            Some(Place::Set) => (3, 0),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(place) = &self.place {
            write!(f, "{place}: ")?;
        }
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.problem)
    }
}

/// Every fault, at once; never empty when it is an error.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Faults(pub Vec<Fault>);

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.0.len();
        let noun = if count == 1 { "fault" } else { "faults" };
        write!(f, "the configuration has {count} {noun}:")?;
        self.0.iter().try_for_each(|fault| write!(f, "\n  {fault}"))
    }
}

impl std::error::Error for Faults {}
