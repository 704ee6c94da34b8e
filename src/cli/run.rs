//! `ackord run`: the worker.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::{Format, complain, print, print_json, promises, stop};
use crate::config::{Config, env};
use crate::registry::Parts;
use crate::shutdown::{RunError, RunReport, exit_code};
use crate::telemetry::Summary;
use crate::worker::{Worker, WorkerFaults};

#[derive(Debug, Args)]
pub(super) struct RunArgs {
    /// Ends with exit code 3 when a broker or the store cannot be reached at the start, instead of trying on
    #[arg(long)]
    fail_fast: bool,
}

/// The last line on stdout with `--format json`.
#[derive(Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    summary: &'a Summary,
    drained: usize,
    cut: usize,
    exit_code: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

pub(super) fn run(args: &RunArgs, config: &Config, parts: Parts, format: Format) -> ExitCode {
    for line in promises(config, &parts) {
        tracing::info!("{line}");
    }
    let store = match parts.store.open() {
        Ok(store) => store,
        Err(error) => {
            complain(&error.to_string());
            let code = if args.fail_fast { exit_code::UNREACHABLE } else { exit_code::FAILURE };
            return code.into();
        }
    };
    let name = config.worker.name.clone().unwrap_or_else(env::worker_name);
    let mut builder =
        Worker::builder(store).name(name).drain(config.worker.drain.0).fail_fast(args.fail_fast);
    for (name, broker) in parts.brokers {
        builder = builder.broker(name, broker);
    }
    for flow in parts.flows {
        builder = builder.flow(flow);
    }
    let worker = match builder.build() {
        Ok(worker) => worker,
        Err(WorkerFaults(faults)) => {
            complain(&format!("the configuration has faults:\n  {}", faults.join("\n  ")));
            return exit_code::USAGE.into();
        }
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            complain(&format!("cannot start: {error}"));
            return exit_code::FAILURE.into();
        }
    };
    let ended = runtime.block_on(async {
        let (first, second) = stop::listen()?;
        tokio::select! {
            ended = worker.run(first) => Ok(ended),
            // Dropping the worker drops every step, which ends the commands that they run.
            code = second => {
                tracing::error!(code, "second signal: ending at once, what is not settled comes again");
                Ok::<_, std::io::Error>(Err(RunError::Interrupted { code }))
            }
        }
    });
    // A read that never returns must not hold up the end.
    runtime.shutdown_timeout(Duration::from_secs(1));
    match ended {
        Ok(Ok(report)) => finish(&report, None, report.exit_code(), format),
        Ok(Err(error)) => fail(&error, format),
        Err(error) => {
            complain(&format!("signals cannot be caught: {error}"));
            exit_code::FAILURE.into()
        }
    }
}

fn fail(error: &RunError, format: Format) -> ExitCode {
    complain(&error.to_string());
    match error.report() {
        Some(report) => finish(report, Some(error.to_string()), error.exit_code(), format),
        None => error.exit_code().into(),
    }
}

fn finish(report: &RunReport, error: Option<String>, exit_code: u8, format: Format) -> ExitCode {
    let RunReport { summary, drain, .. } = report;
    match format {
        Format::Json => {
            print_json(&Report { summary, drained: drain.finished, cut: drain.cut, exit_code, error });
        }
        Format::Text => print(&table(report)),
    }
    exit_code.into()
}

fn table(report: &RunReport) -> String {
    let RunReport { summary, drain, .. } = report;
    let took = humantime::format_duration(Duration::from_millis(summary.duration_ms));
    let mut lines = vec![
        format!("{:>8}  messages in {took}", summary.messages),
        format!("{:>8}  effects", summary.effects),
        format!("{:>8}  replays, answered from the record", summary.replays),
        format!("{:>8}  declines", summary.declines),
        format!("{:>8}  retries", summary.retries),
        format!("{:>8}  dead letters{}", summary.dead_letters, reasons(summary)),
        format!("{:>8}  unsettled, they come again", summary.unsettled),
    ];
    let mut more = |count: u64, what: &str| {
        if count > 0 {
            lines.push(format!("{count:>8}  {what}"));
        }
    };
    more(summary.takeovers, "takeovers of a step that had started: each may have taken effect twice");
    more(summary.double_effects_suspected, "results after a lost claim: each is probably a double effect");
    more(summary.leases_lost, "claims or leases lost while running");
    more(summary.handed_back, "handed back at the stop, not started");
    more(summary.settle_failures, "settlements that the broker did not take");
    more(summary.panics, "panics contained");
    more(drain.cut as u64, "cut when the drain time was over");
    lines.join("\n")
}

fn reasons(summary: &Summary) -> String {
    if summary.dead_letters == 0 {
        return String::new();
    }
    let list: Vec<_> =
        summary.dead_letters_by_reason.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
    format!(" ({})", list.join(", "))
}
