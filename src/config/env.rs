//! The only place that reads the environment.

use std::path::PathBuf;

/// All variables that are text.
pub fn variables() -> Vec<(String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

/// The file that `ACKORD_CONFIG` names.
pub fn config_file() -> Option<PathBuf> {
    std::env::var_os("ACKORD_CONFIG").filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// A name for this process that tells it from others: host and pid.
pub fn worker_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = if host.trim().is_empty() { "localhost" } else { host.trim() };
    format!("{host}:{}", std::process::id())
}
