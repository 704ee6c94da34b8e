//! The messages that are not settled: pure bookkeeping, `now` is an argument.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use ackord_broker::Message;
use tokio::time::Instant;

use crate::progress::Span;

/// One message with what it takes to settle it or to deliver it again.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) message: Message,
    pub(crate) span: Span,
    /// How often it has been delivered, this time included; 1 is the first.
    pub(crate) attempt: u32,
    /// Where its line stands in the file, when it is too long to be held.
    pub(crate) unheld: Option<Unheld>,
}

/// A line that was left in its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unheld {
    pub(crate) at: u64,
    pub(crate) length: u64,
}

/// Messages that are out, and those that wait to be delivered again.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    ready: VecDeque<Entry>,
    /// By the time at which they are due, and then by the order in which they came back.
    delayed: BTreeMap<(Instant, u64), Entry>,
    returned: u64,
    unsettled: usize,
}

impl Backlog {
    /// Notes that this many new messages are given out.
    pub(crate) fn give_out(&mut self, count: usize) {
        self.unsettled += count;
    }

    /// Notes that a message that was out is settled.
    pub(crate) fn settled(&mut self) {
        self.unsettled -= 1;
    }

    /// Whether no message is out and none waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.unsettled == 0
    }

    /// Takes a message back, to be delivered again when `delay` has passed.
    pub(crate) fn take_back(&mut self, mut entry: Entry, delay: Option<Duration>, now: Instant) {
        entry.attempt = entry.attempt.saturating_add(1);
        match delay.filter(|delay| !delay.is_zero()) {
            None => self.ready.push_back(entry),
            Some(delay) => {
                self.returned += 1;
                self.delayed.insert((now + delay.min(LONGEST_DELAY), self.returned), entry);
            }
        }
    }

    /// Up to `max` messages that are due again.
    pub(crate) fn due(&mut self, max: usize, now: Instant) -> Vec<Entry> {
        while let Some(first) = self.delayed.first_entry()
            && first.key().0 <= now
        {
            self.ready.push_back(first.remove());
        }
        let count = max.min(self.ready.len());
        self.ready.drain(..count).collect()
    }

    /// When the next delayed message is due.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.delayed.first_key_value().map(|((due, _), _)| *due)
    }

    /// Lets go of what waits. It stays unsettled.
    pub(crate) fn let_go(&mut self) {
        self.ready.clear();
        self.delayed.clear();
    }
}

/// The longest delay of a message that comes back.
pub(crate) const LONGEST_DELAY: Duration = Duration::from_secs(365 * 24 * 3600);

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(id: &str) -> Entry {
        Entry { message: Message::new(id, ""), span: Span { from: 0, to: 1 }, attempt: 1, unheld: None }
    }

    fn ids(entries: &[Entry]) -> Vec<(&str, u32)> {
        entries.iter().map(|entry| (entry.message.id.as_str(), entry.attempt)).collect()
    }

    #[test]
    fn a_delayed_message_is_due_at_its_time_and_not_before() {
        let (mut backlog, now, second) = (Backlog::default(), Instant::now(), Duration::from_secs(1));
        backlog.give_out(3);
        backlog.take_back(entry("late"), Some(2 * second), now);
        backlog.take_back(entry("early"), Some(second), now);
        backlog.take_back(entry("at once"), None, now);
        assert_eq!(ids(&backlog.due(9, now)), [("at once", 2)]);
        assert_eq!(backlog.next_due(), Some(now + second));
        assert_eq!(ids(&backlog.due(9, now + second)), [("early", 2)]);
        assert_eq!(ids(&backlog.due(9, now + 3 * second)), [("late", 2)]);
        assert!(!backlog.is_empty(), "none of them is settled");
    }

    #[test]
    fn messages_of_one_time_come_in_the_order_in_which_they_came_back() {
        let (mut backlog, now, second) = (Backlog::default(), Instant::now(), Duration::from_secs(1));
        for id in ["a", "b", "c"] {
            backlog.take_back(entry(id), Some(second), now);
        }
        assert_eq!(ids(&backlog.due(2, now + second)), [("a", 2), ("b", 2)]);
        assert_eq!(ids(&backlog.due(2, now + second)), [("c", 2)]);
    }

    #[test]
    fn a_delay_beyond_all_measure_is_cut() {
        let (mut backlog, now) = (Backlog::default(), Instant::now());
        backlog.take_back(entry("a"), Some(Duration::MAX), now);
        assert_eq!(backlog.next_due(), Some(now + LONGEST_DELAY));
    }
}
