//! A message's turn: its slot in the worker and its permit to run. Whoever waits gives the permit back and moves to a
//! held slot, so that waiting stops neither the running nor the taking of other messages.

use std::sync::{Arc, Mutex};

use ackord_broker::MessageId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::classify::{StepError, Verdict};
use crate::gate::{Gate, Pass, Sign};
use crate::lock::lock;
use crate::policy::Decision;

/// What all messages of a flow share.
#[derive(Debug)]
pub(crate) struct FlowLimits {
    pub(crate) name: Arc<str>,
    pub(crate) running: Arc<Semaphore>,
    pub(crate) gate: Arc<Gate>,
}

/// One message's turn.
#[derive(Debug)]
pub(crate) struct Turn {
    limits: Arc<FlowLimits>,
    message: MessageId,
    held: Arc<Semaphore>,
    stopping: CancellationToken,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    slot: OwnedSemaphorePermit,
    slot_is_held: bool,
    running: Option<(OwnedSemaphorePermit, Pass)>,
}

/// The worker is stopping: what has not started does not start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stopping;

impl Turn {
    pub(crate) fn new(
        limits: Arc<FlowLimits>,
        message: MessageId,
        slot: OwnedSemaphorePermit,
        held: Arc<Semaphore>,
        stopping: CancellationToken,
    ) -> Self {
        let state = State { slot, slot_is_held: false, running: None };
        Self { limits, message, held, stopping, state: Mutex::new(state) }
    }

    /// Waits for the gate and for a permit; nothing to do when it has them.
    pub(crate) async fn take(&self) -> Result<(), Stopping> {
        if self.with(|state| state.running.is_some()) {
            return Ok(());
        }
        if self.stopping.is_cancelled() {
            return Err(Stopping);
        }
        if self.limits.gate.is_closed() {
            self.park();
        }
        let wait = async {
            let pass = self.limits.gate.pass().await;
            // The semaphore is never closed.
            let permit = Arc::clone(&self.limits.running).acquire_owned().await.map_err(|_| Stopping)?;
            Ok((permit, pass))
        };
        let running = tokio::select! {
            biased;
            running = wait => running?,
            () = self.stopping.cancelled() => return Err(Stopping),
        };
        self.with(|state| state.running = Some(running));
        Ok(())
    }

    /// Gives the permit back and moves to a held slot, in order to wait.
    pub(crate) fn rest(&self) {
        self.with(|state| state.running = None);
        self.park();
    }

    /// Moves to a held slot, so that the worker can take another message meanwhile. Where all held slots are taken the
    /// message stays where it is: then intake slows down, which is the limit's purpose.
    pub(crate) fn park(&self) {
        self.with(|state| {
            if !state.slot_is_held
                && let Ok(held) = Arc::clone(&self.held).try_acquire_owned()
            {
                state.slot = held;
                state.slot_is_held = true;
            }
        });
    }

    /// The run is over: gives the permit back, and moves to a held slot when a wait follows.
    pub(crate) fn rest_if_waiting(&self, decision: &Decision) {
        match decision {
            Decision::Retry { .. } => self.rest(),
            Decision::Ack | Decision::Reject(_) => self.with(|state| state.running = None),
        }
    }

    /// Resolves when the worker is stopping.
    pub(crate) async fn stopping(&self) {
        self.stopping.cancelled().await;
    }

    /// Takes note of a step's end, and answers what its error means now that the other messages are known: a fault of
    /// the worker that others do not meet is a failure of this message.
    pub(crate) fn judge(&self, end: Result<(), &StepError>) -> Verdict {
        let verdict = end.map_or_else(StepError::verdict, |()| Verdict::Done);
        let sign = match verdict {
            Verdict::Done | Verdict::Declined => Sign::Well,
            Verdict::Transient | Verdict::InDoubt => Sign::Failed,
            Verdict::WorkerFault => Sign::AtFault,
            Verdict::Throttled { .. } | Verdict::LeaseLost => return verdict,
        };
        let at_fault = self.limits.gate.note(&self.limits.name, &self.message, sign);
        match verdict {
            Verdict::WorkerFault if !at_fault => Verdict::Transient,
            verdict => verdict,
        }
    }

    fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        f(&mut lock(&self.state))
    }
}
