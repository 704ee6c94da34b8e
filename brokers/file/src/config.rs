use std::path::PathBuf;

use serde::Deserialize;

/// How a file or stdin is read.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FileConfig {
    /// The longest line in bytes; a longer one is dead-lettered as `oversize`. Default 1 MiB.
    pub max_line: usize,
    /// What a line is.
    pub format: LineFormat,
    /// Whether to wait for more lines at the end of the file instead of ending. Default: no.
    pub follow: bool,
    /// Where progress is remembered; by default beside the file, in `<file>.progress`.
    pub progress: Option<PathBuf>,
    /// Where rejected messages go; by default beside the file, in `<file>.dlq.jsonl`.
    pub dead_letter: Option<PathBuf>,
}

/// What a line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LineFormat {
    /// A message: `{"id":…,"headers":…,"body":…}`, see [`format`](crate::format).
    #[default]
    Message,
    /// The body alone.
    Body,
}

impl Default for FileConfig {
    fn default() -> Self {
        Self {
            max_line: 1024 * 1024,
            format: LineFormat::Message,
            follow: false,
            progress: None,
            dead_letter: None,
        }
    }
}
