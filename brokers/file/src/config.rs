use std::num::NonZeroUsize;
use std::path::PathBuf;

use serde::Deserialize;

/// The options of a file source. Each has a default; an unknown one is an error.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FileConfig {
    /// The longest line in bytes, its end not counted; a longer one becomes a message with
    /// [`Fault::Oversize`](ackord_broker::Fault::Oversize). 1 MiB unless set.
    pub max_line: NonZeroUsize,
    /// What stands on a line.
    pub format: LineFormat,
    /// Whether to wait for more at the end of the file instead of ending there. A last line without its newline
    /// is then still being written and waits too; without this it is taken for whole, so set it when a writer is at
    /// work. Stdin always ends with its writer.
    pub follow: bool,
    /// Where progress is remembered; `<file>.progress` unless set. Stdin has none.
    pub progress: Option<PathBuf>,
    /// Where rejected messages go unless the subscription says; `<file>.dlq.jsonl` or `stdin.dlq.jsonl` unless set.
    pub dead_letter: Option<PathBuf>,
}

impl Default for FileConfig {
    fn default() -> Self {
        Self {
            max_line: NonZeroUsize::new(1024 * 1024).expect("1 MiB is not zero"),
            format: LineFormat::default(),
            follow: false,
            progress: None,
            dead_letter: None,
        }
    }
}

/// What stands on a line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LineFormat {
    /// A message in the message format, see [`parse_line`](crate::parse_line).
    #[default]
    Message,
    /// A body and nothing else, whatever its bytes are.
    Body,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_set_gives_the_defaults() {
        let config: FileConfig = serde_json::from_str("{}").unwrap();
        assert_eq!(config, FileConfig::default());
        assert_eq!(config.max_line.get(), 1_048_576);
        assert!(!config.follow);
    }

    #[test]
    fn an_unknown_option_is_named() {
        let error = serde_json::from_str::<FileConfig>(r#"{"folow":true}"#).unwrap_err();
        assert!(error.to_string().contains("folow"), "{error}");
    }

    #[test]
    fn the_formats_have_lower_case_names() {
        let config: FileConfig = serde_json::from_str(r#"{"format":"body","max_line":10}"#).unwrap();
        assert_eq!(config.format, LineFormat::Body);
        assert!(serde_json::from_str::<FileConfig>(r#"{"max_line":0}"#).is_err());
    }
}
