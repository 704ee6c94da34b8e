//! JSON lines from a file or stdin as a source of messages: ackord's embedded default, for work that needs no server.
//!
//! Each line is one message in the project's [message format](format). What is settled is remembered beside the file, so
//! that a second run goes on where the first stopped; what is rejected is appended, whole and with its reason, to a
//! dead-letter file in the same format.

mod broker;
mod config;
mod consumer;
mod dead_letter;
pub mod format;
mod progress;
mod reader;
mod settle;

pub use broker::FileBroker;
pub use config::{FileConfig, LineFormat};
