//! How long to wait before the next try. Pure: the randomness is an argument.

use std::num::NonZeroU32;
use std::time::Duration;

/// How often a message is tried, and how long it waits in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    /// The most tries, the first included.
    pub attempts: NonZeroU32,
    /// The upper bound of the first wait; it doubles with each try.
    pub initial: Duration,
    /// The upper bound of any wait.
    pub max: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            attempts: NonZeroU32::new(5).expect("5 is not zero"),
            initial: Duration::from_secs(1),
            max: Duration::from_secs(300),
        }
    }
}

impl Retry {
    /// The upper bound of the wait after that try (1 = the first).
    pub fn bound(&self, attempt: u32) -> Duration {
        let doublings = attempt.saturating_sub(1).min(31);
        self.initial.saturating_mul(1 << doublings).min(self.max)
    }

    /// The wait after that try: full jitter, so evenly spread between nothing and [`bound`](Retry::bound), which
    /// keeps many that failed together from coming back together. `random` is any 64 random bits.
    pub fn delay(&self, attempt: u32, random: u64) -> Duration {
        let share = (random >> 11) as f64 / (1u64 << 53) as f64;
        self.bound(attempt).mul_f64(share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn retry(initial: u64, max: u64) -> Retry {
        Retry { initial: Duration::from_secs(initial), max: Duration::from_secs(max), ..Retry::default() }
    }

    #[test]
    fn the_bound_doubles_up_to_the_most() {
        let retry = retry(1, 10);
        let bounds: Vec<_> = (0..7).map(|attempt| retry.bound(attempt).as_secs()).collect();
        assert_eq!(bounds, [1, 1, 2, 4, 8, 10, 10]);
    }

    #[test]
    fn no_number_of_attempts_overflows() {
        let retry = Retry { initial: Duration::MAX, max: Duration::MAX, ..Retry::default() };
        assert_eq!(retry.bound(u32::MAX), Duration::MAX);
        assert!(retry.delay(u32::MAX, u64::MAX >> 1) <= Duration::MAX);
    }

    #[test]
    fn the_delay_is_spread_over_the_whole_bound() {
        let retry = retry(8, 8);
        assert_eq!(retry.delay(1, 0), Duration::ZERO);
        assert_eq!(retry.delay(1, 1 << 63), Duration::from_secs(4));
        assert!(retry.delay(1, u64::MAX) <= Duration::from_secs(8));
        assert!(retry.delay(1, u64::MAX) > Duration::from_millis(7_999));
    }
}
