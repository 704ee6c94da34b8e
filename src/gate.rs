//! The gate of a flow: it closes when the worker is at fault, or when a step fails time after time, and then lets one
//! message at a time through to find out whether it is over.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use ackord_broker::MessageId;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::lock::lock;

/// When a flow's intake is paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Circuit {
    /// After this many failures in a row; `None` = never.
    pub failures: Option<u32>,
    /// After the worker was at fault with this many different messages in a row.
    pub faults: u32,
    /// The wait before the first probe; it doubles with each probe that fails.
    pub probe_initial: Duration,
    /// The longest wait between probes.
    pub probe_max: Duration,
}

impl Default for Circuit {
    fn default() -> Self {
        Self {
            failures: Some(20),
            faults: 3,
            probe_initial: Duration::from_secs(1),
            probe_max: Duration::from_secs(60),
        }
    }
}

/// How a step ended, as far as the gate cares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sign {
    /// The other side answered: a success or a decline.
    Well,
    /// It failed.
    Failed,
    /// The worker is at fault.
    AtFault,
}

#[derive(Debug)]
pub(crate) struct Gate {
    circuit: Circuit,
    state: Mutex<State>,
    /// Whether `state` is anything but a fresh one, so that the usual case takes no lock.
    troubled: AtomicBool,
    changed: Notify,
}

#[derive(Debug)]
struct State {
    /// The last messages in a row with which the worker was at fault, all different.
    at_fault: Vec<MessageId>,
    /// Failures in a row.
    failures: u32,
    closed: Option<Closed>,
}

#[derive(Debug)]
struct Closed {
    probes_failed: u32,
    next_probe: Instant,
    probing: bool,
}

/// The way through the gate. A probe that ends without a sign gives its turn to the next.
#[derive(Debug)]
pub(crate) struct Pass {
    probe_of: Option<Arc<Gate>>,
}

impl Gate {
    pub(crate) fn new(circuit: Circuit) -> Self {
        let state = State { at_fault: Vec::new(), failures: 0, closed: None };
        Self { circuit, state: Mutex::new(state), troubled: AtomicBool::new(false), changed: Notify::new() }
    }

    /// Waits until the gate is open, or until it is this message's turn to find out.
    pub(crate) async fn pass(self: &Arc<Self>) -> Pass {
        if !self.is_troubled() {
            return Pass { probe_of: None };
        }
        loop {
            let changed = self.changed.notified();
            let next_probe = {
                let mut state = self.state();
                match &mut state.closed {
                    None => return Pass { probe_of: None },
                    Some(closed) if !closed.probing && Instant::now() >= closed.next_probe => {
                        closed.probing = true;
                        return Pass { probe_of: Some(Arc::clone(self)) };
                    }
                    Some(closed) if closed.probing => None,
                    Some(closed) => Some(closed.next_probe),
                }
            };
            match next_probe {
                None => changed.await,
                Some(at) => tokio::select! {
                    () = changed => {}
                    () = tokio::time::sleep_until(at) => {}
                },
            }
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_troubled() && self.state().closed.is_some()
    }

    /// Takes note of how a step ended. Answers whether a fault is the worker's (`true`), or counts as a failure of this one
    /// message because others pass.
    pub(crate) fn note(&self, flow: &str, message: &MessageId, sign: Sign) -> bool {
        if sign == Sign::Well && !self.is_troubled() {
            return false;
        }
        let mut state = self.state();
        self.troubled.store(sign != Sign::Well, Ordering::Release);
        match sign {
            Sign::Well => {
                state.at_fault.clear();
                state.failures = 0;
                if state.closed.take().is_some() {
                    tracing::info!(flow, "a message passed: intake goes on");
                    self.changed.notify_waiters();
                }
                return false;
            }
            Sign::Failed => {
                state.at_fault.clear();
                state.failures = state.failures.saturating_add(1);
            }
            Sign::AtFault => {
                state.failures = state.failures.saturating_add(1);
                if !state.at_fault.contains(message) && state.at_fault.len() < self.circuit.faults as usize {
                    state.at_fault.push(message.clone());
                }
            }
        }
        let at_fault = state.at_fault.len() >= self.circuit.faults as usize;
        let failing = self.circuit.failures.is_some_and(|limit| state.failures >= limit);
        if state.closed.is_none() && (at_fault || failing) {
            let why = if at_fault { "the worker is at fault" } else { "a step fails time after time" };
            tracing::error!(
                flow,
                why,
                failures = state.failures,
                "intake paused, probing with one message at a time"
            );
            let next_probe = Instant::now() + self.circuit.probe_initial;
            state.closed = Some(Closed { probes_failed: 0, next_probe, probing: false });
        }
        at_fault
    }

    fn is_troubled(&self) -> bool {
        self.troubled.load(Ordering::Acquire)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let Some(gate) = &self.probe_of else { return };
        let mut state = gate.state();
        if let Some(closed) = &mut state.closed {
            closed.probes_failed = closed.probes_failed.saturating_add(1);
            let wait = gate.circuit.probe_initial.saturating_mul(1 << closed.probes_failed.min(31));
            closed.next_probe = Instant::now() + wait.min(gate.circuit.probe_max);
            closed.probing = false;
            gate.changed.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate() -> Arc<Gate> {
        Arc::new(Gate::new(Circuit { failures: Some(5), ..Circuit::default() }))
    }

    fn id(text: &str) -> MessageId {
        MessageId::from(text)
    }

    #[tokio::test(start_paused = true)]
    async fn one_odd_message_never_closes_the_gate_for_a_fault() {
        let gate = Gate::new(Circuit { failures: None, ..Circuit::default() });
        for _ in 0..10 {
            assert!(!gate.note("f", &id("odd"), Sign::AtFault));
        }
        assert!(!gate.is_closed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_fault_with_three_messages_in_a_row_closes_it_and_one_success_opens_it() {
        let gate = gate();
        assert!(!gate.note("f", &id("1"), Sign::AtFault));
        assert!(!gate.note("f", &id("2"), Sign::AtFault));
        assert!(gate.note("f", &id("3"), Sign::AtFault));
        assert!(gate.is_closed());
        let probe = gate.pass().await;
        gate.note("f", &id("4"), Sign::Well);
        drop(probe);
        assert!(!gate.is_closed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_success_in_between_starts_the_row_anew() {
        let gate = gate();
        for message in ["1", "2", "3", "4"] {
            gate.note("f", &id(message), Sign::AtFault);
            gate.note("f", &id("ok"), Sign::Well);
        }
        assert!(!gate.is_closed());
    }

    #[tokio::test(start_paused = true)]
    async fn while_closed_one_message_at_a_time_probes_with_growing_waits() {
        let gate = gate();
        for _ in 0..5 {
            gate.note("f", &id("x"), Sign::Failed);
        }
        let start = Instant::now();
        for expected in [1, 3, 7] {
            let probe = gate.pass().await;
            assert_eq!(start.elapsed().as_secs(), expected);
            let second = gate.pass();
            tokio::pin!(second);
            assert!(futures_util::poll!(second.as_mut()).is_pending());
            drop(probe);
        }
    }
}
