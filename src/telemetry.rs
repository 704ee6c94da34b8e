//! Every count and every log line of the worker, in one place.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ackord_broker::{Attempt, Delivery, RejectReason};
use serde::Serialize;

use crate::lock::lock;

/// What the worker has counted since it started.
#[derive(Debug, Default)]
pub struct Counters {
    messages: AtomicU64,
    redeliveries: AtomicU64,
    effects: AtomicU64,
    replays: AtomicU64,
    declines: AtomicU64,
    retries: AtomicU64,
    takeovers: AtomicU64,
    suspects: AtomicU64,
    lost: AtomicU64,
    late_effects: AtomicU64,
    adopted: AtomicU64,
    settle_failures: AtomicU64,
    unsettled: AtomicU64,
    handed_back: AtomicU64,
    panics: AtomicU64,
    dead_letters: Mutex<BTreeMap<&'static str, u64>>,
}

/// The counts at one moment; the JSON summary of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Messages received, redeliveries not counted.
    pub messages: u64,
    /// Deliveries of messages that had been delivered before, as far as the broker says.
    pub redeliveries: u64,
    /// Step actions that took effect and were put on record.
    pub effects: u64,
    /// Deliveries answered from a record of success.
    pub replays: u64,
    /// Deliveries that ended as a decline, replayed ones included.
    pub declines: u64,
    /// Deliveries that were put off to be tried again after a failure.
    pub retries: u64,
    /// Messages kept aside.
    pub dead_letters: u64,
    /// Deliveries that were dropped unsettled: the broker delivers them again.
    pub unsettled: u64,
    /// How long the run took, in milliseconds.
    pub duration_ms: u64,
    /// Expired claims that were taken over although their step had started: each may have had its effect twice.
    pub takeovers: u64,
    /// Steps run alone because an earlier run of them never ended.
    pub suspects: u64,
    /// Claims or broker leases lost while running.
    pub leases_lost: u64,
    /// Results that came after their claim was lost: each a probable double effect.
    pub double_effects_suspected: u64,
    /// Deliveries handed back at shutdown without having been started.
    pub handed_back: u64,
    /// Redeliveries of a message that was still being worked on.
    pub adopted: u64,
    /// Settlements that the broker did not take.
    pub settle_failures: u64,
    /// Panics contained.
    pub panics: u64,
    /// Dead letters by reason.
    pub dead_letters_by_reason: BTreeMap<&'static str, u64>,
}

macro_rules! count {
    ($($(#[$doc:meta])* $name:ident => $field:ident),* $(,)?) => {
        impl Counters {
            $($(#[$doc])* pub(crate) fn $name(&self) { self.$field.fetch_add(1, Relaxed); })*
        }
    };
}

count! {
    effect => effects,
    replay => replays,
    decline => declines,
    retry => retries,
    takeover => takeovers,
    suspect => suspects,
    lease_lost => lost,
    late_effect => late_effects,
    adoption => adopted,
    settle_failure => settle_failures,
    left_unsettled => unsettled,
    hand_back => handed_back,
    panic => panics,
}

impl Counters {
    pub(crate) fn received(&self, deliveries: &[Delivery]) {
        let again = deliveries.iter().filter(|delivery| match delivery.attempt() {
            Attempt::Again => true,
            Attempt::Number(number) => number > 1,
            Attempt::Unknown => false,
        });
        let again = again.count() as u64;
        self.messages.fetch_add(deliveries.len() as u64 - again, Relaxed);
        if again > 0 {
            self.redeliveries.fetch_add(again, Relaxed);
        }
    }

    pub(crate) fn dead_letter(&self, reason: RejectReason) {
        let mut by_reason = lock(&self.dead_letters);
        *by_reason.entry(reason.as_str()).or_default() += 1;
    }

    /// The counts now; the duration is the caller's.
    pub fn summary(&self, duration_ms: u64) -> Summary {
        let by_reason = lock(&self.dead_letters).clone();
        Summary {
            messages: self.messages.load(Relaxed),
            redeliveries: self.redeliveries.load(Relaxed),
            effects: self.effects.load(Relaxed),
            replays: self.replays.load(Relaxed),
            declines: self.declines.load(Relaxed),
            retries: self.retries.load(Relaxed),
            dead_letters: by_reason.values().sum(),
            unsettled: self.unsettled.load(Relaxed),
            duration_ms,
            takeovers: self.takeovers.load(Relaxed),
            suspects: self.suspects.load(Relaxed),
            leases_lost: self.lost.load(Relaxed),
            double_effects_suspected: self.late_effects.load(Relaxed),
            handed_back: self.handed_back.load(Relaxed),
            adopted: self.adopted.load(Relaxed),
            settle_failures: self.settle_failures.load(Relaxed),
            panics: self.panics.load(Relaxed),
            dead_letters_by_reason: by_reason,
        }
    }
}

/// An error and its causes in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
