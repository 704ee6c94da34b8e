//! JSON lines from a file or from stdin as a source of messages.
//!
//! - [`FileBroker`]: the adapter; [`FileConfig`]: its options.
//! - [`parse_line`] and [`write_line`]: the message format, one message a line, also for tools that write such files.

mod backlog;
mod broker;
mod config;
mod consumer;
mod dead_letter;
mod format;
mod journal;
mod line;
mod progress;
mod reader;
mod settle;

pub use broker::FileBroker;
pub use config::{FileConfig, LineFormat};
pub use format::{FormatError, parse_line, write_line};
