//! Log lines: JSON when stderr is not a terminal.

use tracing::level_filters::LevelFilter;

use super::is_json;
use crate::config::raw::{Level, LogFormat};

pub(super) fn start(level: Level, format: LogFormat) {
    let filter = match level {
        Level::Error => LevelFilter::ERROR,
        Level::Warn => LevelFilter::WARN,
        Level::Info => LevelFilter::INFO,
        Level::Debug => LevelFilter::DEBUG,
        Level::Trace => LevelFilter::TRACE,
    };
    let builder =
        tracing_subscriber::fmt().with_max_level(filter).with_writer(std::io::stderr).with_target(false);
    if is_json(format) {
        builder.json().flatten_event(true).init();
    } else {
        builder.init();
    }
}
