use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ackord_broker::{Attempt, BrokerError, Consumer, Delivery, ErrorKind};
use async_trait::async_trait;
use tokio::sync::Notify;
use tokio::sync::mpsc::Receiver;
use tokio::time::Instant;

use crate::dead_letter::DeadLetterFile;
use crate::progress::Progress;
use crate::reader::{Batch, Line};
use crate::settle::LineHandle;

/// What the consumer and the handles of its messages share.
#[derive(Debug)]
pub(crate) struct Shared {
    state: Mutex<State>,
    pub(crate) dead_letters: Arc<DeadLetterFile>,
    pub(crate) changed: Notify,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) progress: Progress,
    pub(crate) ready: VecDeque<Line>,
    /// Nacked with a delay, by the moment at which they are ready again.
    pub(crate) delayed: BTreeMap<(Instant, u64), Line>,
    /// How many are in somebody's hands.
    pub(crate) open: usize,
    /// No inflow any more: what comes back stays for the next run.
    pub(crate) drained: bool,
}

impl Shared {
    pub(crate) fn new(progress: Progress, dead_letters: DeadLetterFile) -> Self {
        let state =
            State { progress, ready: VecDeque::new(), delayed: BTreeMap::new(), open: 0, drained: false };
        Self { state: Mutex::new(state), dead_letters: Arc::new(dead_letters), changed: Notify::new() }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // A panic never happens while the lock is held, so a poisoned lock still guards sound data.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) struct FileConsumer {
    shared: Arc<Shared>,
    lines: Receiver<Batch>,
    /// Whether the end of the input was reached.
    ended: bool,
}

impl FileConsumer {
    pub(crate) fn new(shared: Arc<Shared>, lines: Receiver<Batch>) -> Self {
        Self { shared, lines, ended: false }
    }

    fn take_in(&mut self, batch: Option<Batch>) -> Result<(), BrokerError> {
        match batch {
            None => self.ended = true,
            Some(Err(error)) => return Err(BrokerError::new(ErrorKind::Refused, "receive", error)),
            Some(Ok(lines)) => {
                let mut state = self.shared.lock();
                for line in lines {
                    let is_new = state.progress.read(line.start, line.end);
                    if !is_new {
                        continue;
                    }
                    if line.blank {
                        let noted = state.progress.settle(line.start);
                        noted.map_err(|error| BrokerError::new(ErrorKind::Refused, "receive", error))?;
                    } else {
                        state.ready.push_back(line);
                    }
                }
            }
        }
        Ok(())
    }

    fn hand_out(&self, state: &mut State, max: usize) -> Vec<Delivery> {
        let count = max.min(state.ready.len());
        let lines: Vec<_> = state.ready.drain(..count).collect();
        state.open += count;
        lines
            .into_iter()
            .map(|mut line| {
                line.deliveries += 1;
                let attempt = Attempt::Number(line.deliveries);
                let message = line.message.clone();
                Delivery::new(message, attempt, Box::new(LineHandle::new(Arc::clone(&self.shared), line)))
            })
            .collect()
    }
}

#[async_trait]
impl Consumer for FileConsumer {
    async fn receive(&mut self, max: NonZeroUsize) -> Result<Vec<Delivery>, BrokerError> {
        loop {
            let shared = Arc::clone(&self.shared);
            let changed = shared.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let next_ready = {
                let mut state = shared.lock();
                let now = Instant::now();
                while let Some(entry) = state.delayed.first_entry().filter(|entry| entry.key().0 <= now) {
                    let line = entry.remove();
                    state.ready.push_back(line);
                }
                // When inflow has stopped, whoever still waits here waits until it is cancelled.
                if !state.drained && !state.ready.is_empty() {
                    return Ok(self.hand_out(&mut state, max.get()));
                }
                if !state.drained && self.ended && state.open == 0 && state.delayed.is_empty() {
                    return Err(BrokerError::ended());
                }
                state.delayed.keys().next().map(|(at, _)| *at)
            };
            let wait = async {
                match next_ready {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                batch = self.lines.recv(), if !self.ended => self.take_in(batch)?,
                () = changed => {}
                () = wait => {}
            }
        }
    }

    async fn drain(&mut self) -> Result<(), BrokerError> {
        let mut state = self.shared.lock();
        state.drained = true;
        // Read but not handed out: not settled, so the next run reads it again.
        state.ready.clear();
        state.delayed.clear();
        drop(state);
        self.lines.close();
        Ok(())
    }
}
