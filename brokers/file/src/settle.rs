//! What consumer, deliveries and journal share, and the right to settle one message.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use ackord_broker::{Attempt, BrokerError, Delivery, Disposition, ErrorKind, Rejection, Settle, SettleError};
use async_trait::async_trait;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::backlog::{Backlog, Entry};
use crate::dead_letter::DeadLetters;
use crate::journal::Journal;

/// Shared by a consumer and its open deliveries.
#[derive(Debug)]
pub(crate) struct Shared {
    ledger: Mutex<Ledger>,
    waiting: Mutex<Waiting>,
    /// Tells the consumer that something came back or that the last message is settled.
    wake: Notify,
    dead_letters: Arc<DeadLetters>,
}

/// Where settled lines are written down.
#[derive(Debug)]
pub(crate) enum Ledger {
    /// In a progress file.
    Journal(Box<Journal>),
    /// Nowhere: stdin cannot be read twice.
    Unwritten,
    /// The consumer is gone and with it the lock: nothing can be settled any more.
    Closed,
}

#[derive(Debug)]
struct Waiting {
    backlog: Backlog,
    /// Whether what comes back is delivered again by this consumer.
    takes_back: bool,
}

impl Shared {
    pub(crate) fn new(ledger: Ledger, dead_letters: DeadLetters) -> Self {
        Self {
            ledger: Mutex::new(ledger),
            waiting: Mutex::new(Waiting { backlog: Backlog::default(), takes_back: true }),
            wake: Notify::new(),
            dead_letters: Arc::new(dead_letters),
        }
    }

    /// Up to `max` messages that are due again, and when to look next.
    pub(crate) fn due(&self, max: usize) -> (Vec<Entry>, Option<Instant>) {
        let mut waiting = self.waiting();
        (waiting.backlog.due(max, Instant::now()), waiting.backlog.next_due())
    }

    /// Makes deliveries of messages of which the last `new` are given out for the first time.
    pub(crate) fn give_out(self: &Arc<Self>, entries: Vec<Entry>, new: usize) -> Vec<Delivery> {
        self.waiting().backlog.give_out(new);
        entries.into_iter().map(|entry| self.delivery(entry)).collect()
    }

    /// Whether everything that was given out is settled.
    pub(crate) fn is_settled(&self) -> bool {
        self.waiting().backlog.is_empty()
    }

    /// Returns when something may have changed since the last call.
    pub(crate) async fn changed(&self) {
        self.wake.notified().await;
    }

    /// From now on what comes back stays unsettled for the next consumer.
    pub(crate) fn drain(&self) {
        let mut waiting = self.waiting();
        waiting.takes_back = false;
        waiting.backlog.let_go();
    }

    /// The consumer goes away: gives the progress file back.
    pub(crate) fn close(&self) {
        self.drain();
        *self.ledger() = Ledger::Closed;
    }

    fn delivery(self: &Arc<Self>, entry: Entry) -> Delivery {
        let message = entry.message.clone();
        let attempt = Attempt::Number(entry.attempt);
        Delivery::new(message, attempt, Box::new(Handle { shared: Arc::clone(self), entry: Some(entry) }))
    }

    fn write_down(&self, entry: &Entry) -> Result<(), SettleError> {
        match &mut *self.ledger() {
            Ledger::Closed => return Err(SettleError::Lost),
            Ledger::Unwritten => {}
            Ledger::Journal(journal) => journal.settle(entry.span).map_err(not_confirmed)?,
        }
        let mut waiting = self.waiting();
        waiting.backlog.settled();
        if waiting.backlog.is_empty() {
            self.wake.notify_one();
        }
        Ok(())
    }

    fn take_back(&self, entry: Entry, delay: Option<Duration>) {
        let mut waiting = self.waiting();
        if waiting.takes_back {
            waiting.backlog.take_back(entry, delay, Instant::now());
            self.wake.notify_one();
        }
    }

    fn is_closed(&self) -> bool {
        matches!(*self.ledger(), Ledger::Closed)
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().expect("nothing panics while it holds the ledger")
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().expect("nothing panics while it holds the backlog")
    }
}

/// The right to settle one message. Dropped, it gives the message back.
struct Handle {
    shared: Arc<Shared>,
    /// `None` once the message is settled or handed back.
    entry: Option<Entry>,
}

impl Handle {
    fn finish(&mut self) -> Result<(), SettleError> {
        let entry =
            self.entry.take().expect("a message is finished once, by the call that consumes its handle");
        let written = self.shared.write_down(&entry);
        if matches!(written, Err(SettleError::Failed(_))) {
            self.shared.take_back(entry, Some(AFTER_FAILURE));
        }
        written
    }

    fn nack(&mut self, delay: Option<Duration>) -> Result<(), SettleError> {
        if self.shared.is_closed() {
            return Err(SettleError::Lost);
        }
        if let Some(entry) = self.entry.take() {
            self.shared.take_back(entry, delay);
        }
        Ok(())
    }

    async fn reject(&mut self, rejection: Box<Rejection>) -> Result<(), SettleError> {
        if self.shared.is_closed() {
            return Err(SettleError::Lost);
        }
        let entry =
            self.entry.clone().expect("a message is finished once, by the call that consumes its handle");
        let dead_letters = Arc::clone(&self.shared.dead_letters);
        // The letter is synced to the disk, which takes too long for the threads that run tasks.
        let kept = tokio::task::spawn_blocking(move || dead_letters.append(&entry, &rejection)).await;
        match kept.unwrap_or_else(|stopped| Err(io::Error::other(stopped))) {
            Ok(()) => self.finish(),
            Err(error) => {
                if let Some(entry) = self.entry.take() {
                    self.shared.take_back(entry, Some(AFTER_FAILURE));
                }
                Err(not_confirmed(error))
            }
        }
    }
}

#[async_trait]
impl Settle for Handle {
    async fn settle(mut self: Box<Self>, disposition: Disposition) -> Result<(), SettleError> {
        match disposition {
            Disposition::Ack => self.finish(),
            Disposition::Nack { delay, cause: _ } => self.nack(delay),
            Disposition::Reject(rejection) => self.reject(rejection).await,
        }
    }

    async fn extend(&self, _by: Duration) -> Result<(), SettleError> {
        // Nobody else can have the message while the consumer holds the lock.
        if self.shared.is_closed() { Err(SettleError::Lost) } else { Ok(()) }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Some(entry) = self.entry.take() {
            self.shared.take_back(entry, None);
        }
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("entry", &self.entry).finish_non_exhaustive()
    }
}

fn not_confirmed(error: io::Error) -> SettleError {
    SettleError::Failed(BrokerError::new(ErrorKind::Unavailable, "settle", error))
}

/// How long a message waits that could not be settled: a full disk is not freed by asking at once.
const AFTER_FAILURE: Duration = Duration::from_secs(1);
