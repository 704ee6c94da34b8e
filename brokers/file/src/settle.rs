use std::io;
use std::sync::Arc;
use std::time::Duration;

use ackord_broker::{BrokerError, Disposition, ErrorKind, Fault, Rejection, Settle, SettleError};
use async_trait::async_trait;
use tokio::time::Instant;

use crate::consumer::Shared;
use crate::dead_letter::RawLine;
use crate::reader::Line;

/// How long a line waits whose settlement could not be written.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// The right to settle one line.
pub(crate) struct LineHandle {
    shared: Arc<Shared>,
    /// Gone when it is settled.
    line: Option<Line>,
}

impl LineHandle {
    pub(crate) fn new(shared: Arc<Shared>, line: Line) -> Self {
        Self { shared, line: Some(line) }
    }

    /// Remembers that the line is settled; it comes again when that cannot be written.
    fn done(&mut self) -> Result<(), SettleError> {
        let Some(line) = self.line.take() else { return Err(SettleError::Lost) };
        let mut state = self.shared.lock();
        let noted = state.progress.settle(line.start);
        if noted.is_ok() {
            state.open -= 1;
        }
        let last = state.open == 0;
        drop(state);
        match noted {
            Ok(()) => {
                if last {
                    self.shared.changed.notify_waiters();
                }
                Ok(())
            }
            Err(error) => {
                self.come_again(line, Some(AFTER_FAILURE));
                Err(failed(error))
            }
        }
    }

    fn come_again(&self, line: Line, delay: Option<Duration>) {
        let mut state = self.shared.lock();
        state.open -= 1;
        if !state.drained {
            match delay {
                None => state.ready.push_back(line),
                Some(delay) => drop(state.delayed.insert((Instant::now() + delay, line.start), line)),
            }
        }
        drop(state);
        self.shared.changed.notify_waiters();
    }

    async fn reject(&mut self, rejection: Rejection) -> Result<(), SettleError> {
        let Some(line) = self.line.clone() else { return Err(SettleError::Lost) };
        let dead_letters = Arc::clone(&self.shared.dead_letters);
        let path = dead_letters.path().display().to_string();
        // On a thread of its own, since it waits for the disk.
        let append = move || {
            let raw = raw_line(&line);
            dead_letters.append(&line.message, &rejection, raw.as_ref())
        };
        let appended =
            tokio::task::spawn_blocking(append).await.unwrap_or_else(|error| Err(io::Error::other(error)));
        match appended {
            Ok(()) => self.done(),
            Err(error) => {
                if let Some(line) = self.line.take() {
                    self.come_again(line, Some(AFTER_FAILURE));
                }
                let cure = "make it writable or name another dead_letter";
                Err(failed(io::Error::new(error.kind(), format!("dead letters {path}: {error}; {cure}"))))
            }
        }
    }
}

/// A line that was too long is still in its file only.
fn raw_line(line: &Line) -> Option<RawLine> {
    match line.message.fault {
        Some(Fault::Oversize { size, .. }) if line.message.body.is_none() => Some(RawLine {
            path: line.message.origin.source.to_string().into(),
            start: line.start,
            length: size,
        }),
        _ => None,
    }
}

fn failed(error: io::Error) -> SettleError {
    SettleError::Failed(BrokerError::new(ErrorKind::Unavailable, "settle", error))
}

#[async_trait]
impl Settle for LineHandle {
    async fn settle(mut self: Box<Self>, disposition: Disposition) -> Result<(), SettleError> {
        match disposition {
            Disposition::Ack => self.done(),
            Disposition::Nack { delay, .. } => {
                let line = self.line.take().ok_or(SettleError::Lost)?;
                self.come_again(line, delay);
                Ok(())
            }
            Disposition::Reject(rejection) => self.reject(*rejection).await,
        }
    }

    async fn extend(&self, _by: Duration) -> Result<(), SettleError> {
        // Nobody else can take it while this process lives.
        Ok(())
    }
}

impl Drop for LineHandle {
    fn drop(&mut self) {
        if let Some(line) = self.line.take() {
            self.come_again(line, None);
        }
    }
}
