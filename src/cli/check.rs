//! `ackord check`: the configuration is sound, and this is what it promises.

use std::process::ExitCode;

use serde::Serialize;

use super::{Format, print, print_json, promises};
use crate::config::Config;
use crate::registry::Parts;
use crate::shutdown::exit_code;

#[derive(Serialize)]
struct Answer {
    ok: bool,
    flows: usize,
    brokers: usize,
    promises: Vec<String>,
}

pub(super) fn check(config: &Config, parts: &Parts, format: Format) -> ExitCode {
    let promises = promises(config, parts);
    match format {
        Format::Text => {
            print("the configuration is sound");
            promises.iter().for_each(|line| print(line));
        }
        Format::Json => {
            print_json(&Answer { ok: true, flows: parts.flows.len(), brokers: parts.brokers.len(), promises })
        }
    }
    exit_code::CLEAN.into()
}
