use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::{Disposition, Message, Rejection};

use super::{LONGEST_DELAY, Settled};

/// The bookkeeping of one queue. It knows no lock and no clock: `now` is an argument.
#[derive(Debug)]
pub(super) struct Queue {
    /// How long a consumer may hold a message; `None` = until it lets go.
    lease: Option<Duration>,
    /// What a consumer can have now, by ascending place.
    ready: VecDeque<Entry>,
    /// What a nack hid until some instant. The receipt makes keys unique and keeps nacks of one instant in order.
    delayed: BTreeMap<(Instant, Receipt), Entry>,
    /// What consumers hold.
    held: HashMap<Receipt, Held>,
    /// When held messages come back; empty without a lease.
    leases: BTreeSet<(Instant, Receipt)>,
    next_position: u64,
    next_place: u64,
    next_receipt: Receipt,
    closed: bool,
    /// Test door: whether a rejected message can be kept.
    keeps_dead_letters: bool,
    dead: Vec<(Message, Rejection)>,
    settled: Settled,
}

/// Names one handing-out of a message; a later delivery of the same message has another receipt.
pub(super) type Receipt = u64;

#[derive(Debug)]
struct Entry {
    message: Message,
    /// Where it stands in the queue: kept when it comes back unsettled, given anew by a nack.
    place: u64,
    deliveries: u32,
}

#[derive(Debug)]
struct Held {
    entry: Entry,
    /// The end of its lease, the key in [`Queue::leases`].
    until: Option<Instant>,
}

/// A message on its way to a consumer.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) message: Message,
    pub(super) receipt: Receipt,
    pub(super) deliveries: u32,
}

/// What a look into the queue gave.
#[derive(Debug)]
pub(super) enum Look {
    Taken(Vec<Taken>),
    /// Nothing now; the instant is when a delay or a lease ends.
    Wait(Option<Instant>),
    /// Closed, and everything that came is settled.
    Ended,
}

/// What settling did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Settled, and somebody who waits may want to look again.
    Changed,
    /// Settled, of no interest to others.
    Quiet,
    /// The receipt is stale; nothing changed.
    Lost,
    /// The dead letter could not be kept; nothing changed.
    Unparked,
}

impl Queue {
    pub(super) fn new(lease: Option<Duration>) -> Self {
        Self {
            lease,
            ready: VecDeque::new(),
            delayed: BTreeMap::new(),
            held: HashMap::new(),
            leases: BTreeSet::new(),
            next_position: 0,
            next_place: 0,
            next_receipt: 0,
            closed: false,
            keeps_dead_letters: true,
            dead: Vec::new(),
            settled: Settled::default(),
        }
    }

    pub(super) fn push(&mut self, mut message: Message, broker: &Arc<str>, source: &Arc<str>) {
        message.origin.broker = Arc::clone(broker);
        message.origin.source = Arc::clone(source);
        message.origin.position = Some(self.next_position.to_string().into());
        self.next_position += 1;
        let place = self.new_place();
        self.ready.push_back(Entry { message, place, deliveries: 0 });
    }

    pub(super) fn close(&mut self) {
        self.closed = true;
    }

    /// Hands out up to `max` messages.
    pub(super) fn take(&mut self, max: usize, now: impl Fn() -> Instant) -> Look {
        if !self.delayed.is_empty() || self.lease.is_some() {
            self.bring_back(now());
        }
        if self.ready.is_empty() {
            return self.look();
        }
        let until = self.lease.map(|lease| after(now(), lease));
        let count = max.min(self.ready.len());
        let mut taken = Vec::with_capacity(count);
        for mut entry in self.ready.drain(..count) {
            let receipt = self.next_receipt;
            self.next_receipt += 1;
            entry.deliveries = entry.deliveries.saturating_add(1);
            taken.push(Taken { message: entry.message.clone(), receipt, deliveries: entry.deliveries });
            if let Some(until) = until {
                self.leases.insert((until, receipt));
            }
            self.held.insert(receipt, Held { entry, until });
        }
        Look::Taken(taken)
    }

    /// What a consumer that takes nothing more has to wait for.
    pub(super) fn look(&self) -> Look {
        if self.closed && self.depth() == 0 {
            return Look::Ended;
        }
        let delay = self.delayed.keys().next().map(|(at, _)| *at);
        let lease = self.leases.first().map(|(at, _)| *at);
        Look::Wait([delay, lease].into_iter().flatten().min())
    }

    pub(super) fn settle(
        &mut self,
        receipt: Receipt,
        disposition: Disposition,
        now: impl Fn() -> Instant,
    ) -> Outcome {
        if self.lease.is_some() {
            self.bring_back(now());
        }
        if matches!(disposition, Disposition::Reject(_)) && !self.keeps_dead_letters {
            return if self.held.contains_key(&receipt) { Outcome::Unparked } else { Outcome::Lost };
        }
        let Some(mut entry) = self.let_go(receipt) else { return Outcome::Lost };
        match disposition {
            Disposition::Ack => self.settled.acks += 1,
            Disposition::Nack { delay, .. } => {
                self.settled.nacks += 1;
                match delay.filter(|delay| !delay.is_zero()) {
                    Some(delay) => {
                        self.delayed.insert((after(now(), delay.min(LONGEST_DELAY)), receipt), entry);
                    }
                    None => {
                        // At the end of the queue, so that a message that always fails starves nobody.
                        entry.place = self.new_place();
                        self.ready.push_back(entry);
                    }
                }
                return Outcome::Changed;
            }
            Disposition::Reject(rejection) => {
                self.settled.rejects += 1;
                self.dead.push((entry.message, *rejection));
            }
        }
        if self.closed && self.depth() == 0 { Outcome::Changed } else { Outcome::Quiet }
    }

    /// Prolongs the lease; answers whether the receipt is still good.
    pub(super) fn extend(&mut self, receipt: Receipt, by: Duration, now: impl Fn() -> Instant) -> bool {
        if self.lease.is_none() {
            return self.held.contains_key(&receipt);
        }
        let now = now();
        self.bring_back(now);
        let Some(held) = self.held.get_mut(&receipt) else { return false };
        let until = after(now, by);
        if let Some(old) = held.until.replace(until) {
            self.leases.remove(&(old, receipt));
        }
        self.leases.insert((until, receipt));
        true
    }

    /// A delivery was dropped unsettled. With a lease nothing happens before it ends. Answers whether the message
    /// is back.
    pub(super) fn dropped(&mut self, receipt: Receipt) -> bool {
        if self.lease.is_some() {
            return false;
        }
        let Some(entry) = self.let_go(receipt) else { return false };
        self.put_back(entry);
        true
    }

    pub(super) fn depth(&self) -> usize {
        self.ready.len() + self.delayed.len() + self.held.len()
    }

    #[cfg(feature = "conformance")]
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    pub(super) fn settled(&self) -> Settled {
        self.settled
    }

    pub(super) fn dead(&self) -> &[(Message, Rejection)] {
        &self.dead
    }

    pub(super) fn keep_dead_letters(&mut self, keep: bool) {
        self.keeps_dead_letters = keep;
    }

    /// Makes available what was hidden until now: ended leases at their old place, ended delays at the end.
    fn bring_back(&mut self, now: Instant) {
        while let Some((at, receipt)) = self.leases.first().copied().filter(|(at, _)| *at <= now) {
            self.leases.remove(&(at, receipt));
            let held = self.held.remove(&receipt).expect("a lease lives exactly as long as its held message");
            self.put_back(held.entry);
        }
        while let Some(first) = self.delayed.first_entry().filter(|first| first.key().0 <= now) {
            let mut entry = first.remove();
            entry.place = self.new_place();
            self.ready.push_back(entry);
        }
    }

    fn let_go(&mut self, receipt: Receipt) -> Option<Entry> {
        let held = self.held.remove(&receipt)?;
        if let Some(until) = held.until {
            self.leases.remove(&(until, receipt));
        }
        Some(held.entry)
    }

    /// Returns a message to its place: near the front as a rule, so the insertion moves little.
    fn put_back(&mut self, entry: Entry) {
        let at = self.ready.partition_point(|other| other.place < entry.place);
        self.ready.insert(at, entry);
    }

    fn new_place(&mut self) -> u64 {
        let place = self.next_place;
        self.next_place += 1;
        place
    }
}

/// `by` after `now`, or as far as an instant can reach for practical purposes.
fn after(now: Instant, by: Duration) -> Instant {
    now + by.min(LONGEST_DELAY)
}
