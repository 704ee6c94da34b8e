//! Time as an argument: what a store's clock is, and one that tests set by hand.

use std::fmt::Debug;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A moment, in milliseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// From milliseconds since the Unix epoch.
    pub fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    /// Milliseconds since the Unix epoch.
    pub fn as_millis(self) -> i64 {
        self.0
    }

    /// This moment and then some; saturates far in the future. A part of a millisecond counts as a whole one, so a
    /// deadline is never early.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        let millis = duration.as_nanos().div_ceil(1_000_000);
        Self(self.0.saturating_add(i64::try_from(millis).unwrap_or(i64::MAX)))
    }

    /// How long from `now` until this moment; zero when it is past.
    pub fn remaining(self, now: Timestamp) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(now.0)).unwrap_or(0))
    }
}

/// A source of the current time.
pub trait Clock: Send + Sync + Debug {
    /// Now.
    fn now(&self) -> Timestamp;
}

/// The machine's clock, read once at creation and carried on by the monotonic clock: setting the machine's time
/// while the process runs neither ends nor prolongs a lease.
#[derive(Debug)]
pub struct SystemClock {
    start: Timestamp,
    since: Instant,
}

impl SystemClock {
    /// Reads the machine's clock.
    pub fn new() -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { start: Timestamp(0).plus(since_epoch), since: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        self.start.plus(self.since.elapsed())
    }
}

/// A clock that stands still until it is told otherwise.
#[derive(Debug)]
pub struct ManualClock(AtomicI64);

impl ManualClock {
    /// A clock that shows that moment.
    pub fn at(now: Timestamp) -> Self {
        Self(AtomicI64::new(now.0))
    }

    /// Moves on.
    pub fn advance(&self, by: Duration) {
        let now = Timestamp(self.0.load(Ordering::SeqCst));
        self.0.store(now.plus(by).0, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::SeqCst))
    }
}
