//! The command line: one file per verb. Data goes to stdout, logs to stderr.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};
use serde::Serialize;

use crate::config::raw::{Level, LogFormat};
use crate::config::{Config, Faults, Sources, env};
use crate::registry::{self, Parts};
use crate::shutdown::exit_code;

mod check;
mod log;
mod run;
mod stop;

/// A queue consumer worker that turns at-least-once delivery into effects that happen once.
#[derive(Debug, Parser)]
#[command(name = "ackord", version, arg_required_else_help = true)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Args)]
struct Global {
    /// The configuration file [default: $ACKORD_CONFIG, ./ackord.toml, /etc/ackord/ackord.toml]
    #[arg(long, global = true, value_name = "PATH")]
    config: Option<PathBuf>,
    /// Sets one value over file and environment, for example --set worker.drain=10s
    #[arg(long = "set", global = true, value_name = "PATH=VALUE")]
    sets: Vec<String>,
    /// The form of what goes to stdout
    #[arg(long, global = true, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// The least level of log lines on stderr
    #[arg(long, global = true, value_enum)]
    log_level: Option<Level>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people
    Text,
    /// One JSON object
    Json,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Consumes until told to stop, or until every source has ended
    #[command(
        after_help = "Exit codes: 0 clean, 1 failure at run time, 2 usage or configuration, 3 not reachable with \
                            --fail-fast, 4 the drain time ran out, 130/143 second SIGINT/SIGTERM."
    )]
    Run(run::RunArgs),
    /// Checks the configuration without connecting to anything, and says what is promised
    Check,
}

/// Runs the program and says how it should exit.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are answers, not errors.
            let code = if error.use_stderr() { exit_code::USAGE } else { exit_code::CLEAN };
            let _ = error.print();
            return code.into();
        }
    };
    let sources = Sources {
        file: cli.global.config.clone().or_else(env::config_file),
        sets: cli.global.sets.clone(),
        variables: env::variables(),
    };
    let loaded = Config::load(sources).and_then(|config| Ok((registry::parts(&config)?, config)));
    let (parts, config) = match loaded {
        Ok(loaded) => loaded,
        Err(faults) => return refuse(&faults, cli.global.format),
    };
    let level = cli.global.log_level.unwrap_or(config.log.level);
    log::start(level, config.log.format);
    match cli.verb {
        Verb::Run(args) => run::run(&args, &config, parts, cli.global.format),
        Verb::Check => check::check(&config, &parts, cli.global.format),
    }
}

fn refuse(faults: &Faults, format: Format) -> ExitCode {
    #[derive(Serialize)]
    struct Refusal {
        faults: Vec<String>,
    }
    match format {
        Format::Text => complain(&faults.to_string()),
        Format::Json => print_json(&Refusal { faults: faults.0.iter().map(ToString::to_string).collect() }),
    }
    exit_code::USAGE.into()
}

/// An error for people, on stderr.
fn complain(text: &str) {
    let mut stderr = std::io::stderr().lock();
    let _ = writeln!(stderr, "ackord: {text}");
}

/// Text on stdout. Whoever closed it does not want it.
fn print(text: &str) {
    let mut stdout = std::io::stdout().lock();
    let _ = writeln!(stdout, "{text}");
}

fn print_json(value: &impl Serialize) {
    match serde_json::to_string(value) {
        Ok(text) => print(&text),
        Err(error) => complain(&format!("the answer cannot be written as JSON: {error}")),
    }
}

fn is_json(format: LogFormat) -> bool {
    match format {
        LogFormat::Auto => !std::io::stderr().is_terminal(),
        LogFormat::Text => false,
        LogFormat::Json => true,
    }
}

fn promises(config: &Config, parts: &Parts) -> Vec<String> {
    let mut lines = vec![parts.store.describe()];
    for flow in &parts.flows {
        lines.push(flow.describe());
        lines.extend(flow.limits(config.worker.drain.0).into_iter().map(|limit| format!("  note: {limit}")));
    }
    lines
}
