//! A step that runs a program.

use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::FutureExt;
use futures_util::future::{Fuse, FusedFuture};
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::step::{Step, StepContext};
use crate::classify::{REFERENCE_DECLINES, StepError, Verdict, exit};

/// How long a command that ran out of time has to end by itself.
const TERM_GRACE: Duration = Duration::from_secs(5);
/// How long the pipes of a command that has exited may stay open in the hands of what it left running.
const PIPE_GRACE: Duration = Duration::from_secs(1);
/// Earlier outputs that are larger than this are not passed: the system limits the size of an environment.
const OUTPUTS_CAP: usize = 64 * 1024;
const LINE_CAP: usize = 1024;
const LINES_CAP: usize = 100;

/// What a command step runs, and within which limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandSettings {
    /// The program and its arguments. No shell is involved.
    pub run: Vec<String>,
    /// How long it may take. After that its process group is ended, and whether it took effect is in doubt.
    pub timeout: Duration,
    /// The folder it runs in; a program that is named by a relative path is looked up from there.
    pub dir: Option<PathBuf>,
    /// Variables that are added to the worker's own.
    pub env: Vec<(String, String)>,
    /// The most bytes of its output that become the result.
    pub output_cap: usize,
}

impl Default for CommandSettings {
    fn default() -> Self {
        Self {
            run: Vec::new(),
            timeout: Duration::from_secs(30),
            dir: None,
            env: Vec::new(),
            output_cap: 256 * 1024,
        }
    }
}

/// Runs a program: the body goes to its stdin, its stdout is the result, its stderr goes to the log.
///
/// A result that parses is taken as JSON, other text as a string (without its last line end), no output as null, and
/// what is not UTF-8 as `{"base64": "…"}`. What the program leaves running in its process group is ended with it.
///
/// # The usual mistake
/// Exiting with 1 on a business "no": that is tried again. A decline is exit code 65, or any other than 0 with
/// `{"status":"decline","code":"CardDeclined"}` on stdout.
#[derive(Debug)]
pub struct CommandStep {
    settings: CommandSettings,
    term_grace: Duration,
}

impl CommandStep {
    /// A step that runs that command.
    pub fn new(settings: CommandSettings) -> Self {
        Self { settings, term_grace: TERM_GRACE }
    }

    fn command(&self, cx: &StepContext, program: &str) -> Command {
        let mut path = PathBuf::from(program);
        let mut command = if let (Some(dir), true) = (&self.settings.dir, program.contains('/')) {
            // Joined here, since what a relative program means together with a folder differs between systems.
            path = dir.join(path);
            Command::new(path)
        } else {
            Command::new(path)
        };
        if let Some(dir) = &self.settings.dir {
            command.current_dir(dir);
        }
        let message = cx.message();
        command
            .args(&self.settings.run[1..])
            .envs(self.settings.env.iter().map(|(name, value)| (name, value)))
            .env("ACKORD_FLOW", cx.flow())
            .env("ACKORD_STEP", cx.step())
            .env("ACKORD_KEY", without_nul(cx.key().as_str()))
            .env("ACKORD_ATTEMPT", cx.attempt().to_string())
            .env("ACKORD_MAX_ATTEMPTS", cx.max_attempts().to_string())
            .env("ACKORD_MESSAGE_ID", without_nul(message.id.as_str()))
            .env("ACKORD_SOURCE", without_nul(&message.origin.source))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        match traceparent(cx) {
            Some(value) => command.env("TRACEPARENT", value),
            None => command.env_remove("TRACEPARENT"),
        };
        match outputs(cx) {
            Some(value) => command.env("ACKORD_OUTPUTS", value),
            None => command.env_remove("ACKORD_OUTPUTS"),
        };
        command
    }
}

#[async_trait]
impl Step for CommandStep {
    async fn run(&self, cx: &StepContext) -> Result<Value, StepError> {
        let Some(program) = self.settings.run.first() else {
            return Err(StepError::fault("not_started").detail("the command of this step is empty"));
        };
        let mut child = self.command(cx, program).spawn().map_err(|error| {
            let place = self.settings.dir.as_ref().map(|dir| format!(" in {}", dir.display()));
            let place = place.unwrap_or_default();
            StepError::fault("not_started").detail(format!("cannot start {program}{place}: {error}"))
        })?;
        let mut group = Group::of(&child);
        let mut output = Output { bytes: Vec::new(), cap: self.settings.output_cap };
        let mut log = Log { flow: cx.flow(), step: cx.step(), lines: 0, last: String::new() };
        let status = {
            let pipes = pipes(&mut child, cx.message().body.as_deref(), &mut output, &mut log).fuse();
            tokio::pin!(pipes);
            let status = match timeout(self.settings.timeout, exited(&mut child, pipes.as_mut())).await {
                Ok(status) => Some(status),
                Err(_) => {
                    group.send(Signal::TERM);
                    let _ = timeout(self.term_grace, exited(&mut child, pipes.as_mut())).await;
                    group.send(Signal::KILL);
                    // Reaped here, so that the step has not ended before its command has.
                    let _ = child.wait().await;
                    None
                }
            };
            if status.is_some() && !pipes.is_terminated() && timeout(PIPE_GRACE, pipes).await.is_err() {
                group.send(Signal::KILL);
            }
            group.disarm();
            status
        };
        let Some(status) = status else {
            let limit = humantime::format_duration(self.settings.timeout);
            let detail = format!("{program} did not end within {limit}");
            return Err(StepError::in_doubt("timeout").detail(with_line(detail, &log.last)));
        };
        match status {
            Ok(status) if status.success() => Ok(output.result()),
            Ok(status) => Err(failure(program, status, &output, &log.last)),
            Err(error) => Err(StepError::in_doubt("not_awaited").detail(program).source(error)),
        }
    }
}

/// Waits for the command's end, while its pipes go on being served: one that is blocked on a full pipe cannot end.
async fn exited<F>(child: &mut Child, mut pipes: Pin<&mut Fuse<F>>) -> io::Result<ExitStatus>
where
    F: Future<Output = ()>,
{
    loop {
        tokio::select! {
            () = &mut pipes => {}
            status = child.wait() => return status,
        }
    }
}

/// Feeds the command and takes all that it writes, so that it never blocks on us.
fn pipes<'a, 'b>(
    child: &mut Child,
    body: Option<&'a [u8]>,
    output: &'a mut Output,
    log: &'a mut Log<'b>,
) -> impl Future<Output = ()> + Send + use<'a, 'b> {
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let feed = async move {
        if let (Some(mut stdin), Some(body)) = (stdin, body) {
            // A command need not read its input (EPIPE); its exit code says how it went.
            let _ = stdin.write_all(body).await;
            let _ = stdin.shutdown().await;
        }
    };
    let read = async move {
        if let Some(stdout) = stdout {
            let _ = output.read(stdout).await;
        }
    };
    let note = async move {
        if let Some(stderr) = stderr {
            let _ = log.read(stderr).await;
        }
    };
    async move {
        tokio::join!(feed, read, note);
    }
}

/// The process group of a running command. Dropped while armed it kills the group, so that a step that is given up
/// leaves nothing behind.
struct Group(Option<Pid>);

impl Group {
    fn of(child: &Child) -> Self {
        Self(child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw))
    }

    fn send(&self, signal: Signal) {
        if let Some(group) = self.0 {
            // The only way to fail is that nobody is left.
            let _ = kill_process_group(group, signal);
        }
    }

    fn disarm(&mut self) {
        self.0 = None;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.send(Signal::KILL);
    }
}

/// The first bytes of stdout, one more than the cap at most.
struct Output {
    bytes: Vec<u8>,
    cap: usize,
}

impl Output {
    async fn read(&mut self, mut from: impl AsyncRead + Unpin) -> io::Result<()> {
        let mut chunk = vec![0; 16 * 1024];
        loop {
            let read = from.read(&mut chunk).await?;
            if read == 0 {
                return Ok(());
            }
            let room = self.cap.saturating_add(1).saturating_sub(self.bytes.len());
            self.bytes.extend_from_slice(&chunk[..read.min(room)]);
        }
    }

    fn over(&self) -> bool {
        self.bytes.len() > self.cap
    }

    fn result(&self) -> Value {
        if self.over() {
            // Larger than any result that is kept: the guard makes it "done, without its result".
            return Value::String(String::from_utf8_lossy(&self.bytes).into_owned());
        }
        if let Ok(value) = serde_json::from_slice(&self.bytes) {
            return value;
        }
        let Ok(text) = std::str::from_utf8(&self.bytes) else {
            return json!({ "base64": STANDARD.encode(&self.bytes) });
        };
        let text = text.strip_suffix('\n').map_or(text, |text| text.strip_suffix('\r').unwrap_or(text));
        if text.is_empty() { Value::Null } else { Value::String(text.to_owned()) }
    }
}

/// The lines of stderr on their way to the log.
struct Log<'a> {
    flow: &'a str,
    step: &'a str,
    lines: usize,
    last: String,
}

impl Log<'_> {
    async fn read(&mut self, from: impl AsyncRead + Unpin) -> io::Result<()> {
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        loop {
            let chunk = from.fill_buf().await?;
            let end = chunk.iter().position(|byte| *byte == b'\n');
            let text = &chunk[..end.unwrap_or(chunk.len())];
            let room = LINE_CAP - line.len();
            line.extend_from_slice(&text[..text.len().min(room)]);
            let (used, done) = (end.map_or(chunk.len(), |end| end + 1), chunk.is_empty());
            from.consume(used);
            if end.is_some() || done {
                self.note(&line);
                line.clear();
            }
            if done {
                return Ok(());
            }
        }
    }

    fn note(&mut self, line: &[u8]) {
        let text = String::from_utf8_lossy(line);
        let text = text.trim_end();
        if text.is_empty() {
            return;
        }
        self.lines += 1;
        if self.lines <= LINES_CAP {
            tracing::info!(flow = self.flow, step = self.step, line = text, "the command says");
        } else if self.lines == LINES_CAP + 1 {
            tracing::info!(flow = self.flow, step = self.step, "the command says more, which is left out");
        }
        text.clone_into(&mut self.last);
    }
}

/// What a command that failed may say about itself on stdout.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Hint {
    status: Option<String>,
    after: Option<String>,
    code: Option<String>,
    detail: Option<String>,
}

fn failure(program: &str, status: ExitStatus, output: &Output, last_line: &str) -> StepError {
    use std::os::unix::process::ExitStatusExt as _;

    let Some(code) = status.code() else {
        let signal = status.signal().unwrap_or_default();
        let detail = with_line(format!("{program} was ended by signal {signal}"), last_line);
        return StepError::with(exit::verdict(None), format!("signal_{signal}")).detail(detail);
    };
    let hint: Hint = serde_json::from_slice(&output.bytes).unwrap_or_default();
    let verdict = verdict(code, &hint);
    let detail = match &hint.detail {
        Some(detail) => detail.clone(),
        None if verdict == Verdict::WorkerFault => {
            with_line(format!("{program} ended with {code}"), last_line)
        }
        None => last_line.to_owned(),
    };
    let error = StepError::with(verdict, hint.code.unwrap_or_else(|| format!("exit_{code}"))).detail(detail);
    if verdict == Verdict::Declined && !output.bytes.is_empty() && !output.over() {
        error.body(output.bytes.clone())
    } else {
        error
    }
}

/// The command's own word first, then a code that is known to be a decline, then the exit code.
fn verdict(code: i32, hint: &Hint) -> Verdict {
    let after = hint.after.as_deref().and_then(|after| humantime::parse_duration(after).ok());
    let by_code = exit::verdict(Some(code));
    match hint.status.as_deref() {
        Some("retry") if after.is_some() => Verdict::Throttled { after },
        Some("retry") => Verdict::Transient,
        Some("decline") => Verdict::Declined,
        Some("fault") => Verdict::WorkerFault,
        _ => match &hint.code {
            Some(code) if by_code == Verdict::Transient && REFERENCE_DECLINES.contains(&&**code) => {
                Verdict::Declined
            }
            _ => by_code,
        },
    }
}

fn with_line(detail: String, last_line: &str) -> String {
    if last_line.is_empty() { detail } else { format!("{detail}: {last_line}") }
}

/// An environment cannot hold NUL; a message's id can, and that is no reason not to run.
fn without_nul(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

fn traceparent(cx: &StepContext) -> Option<&str> {
    let value = cx.message().headers.all("traceparent").flatten().next()?;
    let text = std::str::from_utf8(value).ok()?;
    text.bytes().all(|byte| byte.is_ascii_graphic()).then_some(text)
}

fn outputs(cx: &StepContext) -> Option<String> {
    let outputs: Map<String, Value> =
        cx.outputs().iter().map(|(step, value)| (step.to_string(), value.clone())).collect();
    let text = serde_json::to_string(&outputs).ok()?;
    (text.len() <= OUTPUTS_CAP).then_some(text)
}

#[cfg(test)]
#[path = "command_tests.rs"]
mod tests;
