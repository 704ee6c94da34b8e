//! What of a file is settled: pure bookkeeping, no I/O.

use std::collections::BTreeMap;

/// The bytes of a file that belong to one line: the line, its newline, and the empty lines before it. So the spans of
/// a file lie end to end, and neighbours can be merged without reading the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    /// Where the line before ended.
    pub(crate) from: u64,
    /// Where the next line's span begins.
    pub(crate) to: u64,
}

/// Which spans of a file are settled: all before a watermark, and some behind it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    watermark: u64,
    later: BTreeMap<u64, u64>,
}

impl Progress {
    /// Everything before `watermark` is settled, nothing else.
    pub(crate) fn starting_at(watermark: u64) -> Self {
        Self { watermark, later: BTreeMap::new() }
    }

    /// Notes a span as settled. Noting it twice changes nothing.
    pub(crate) fn settle(&mut self, mut span: Span) {
        if span.from < self.watermark {
            return;
        }
        if let Some(to) = self.later.remove(&span.to) {
            span.to = to;
        }
        if span.from == self.watermark {
            self.watermark = span.to;
            return;
        }
        // Neighbours are kept as one, so that a message that waits for long does not make us remember every later one.
        match self.later.range_mut(..=span.from).next_back() {
            Some((_, to)) if *to > span.from => {}
            Some((_, to)) if *to == span.from => *to = span.to,
            _ => {
                self.later.insert(span.from, span.to);
            }
        }
    }

    /// The offset before which everything is settled.
    pub(crate) fn watermark(&self) -> u64 {
        self.watermark
    }

    /// Where the settled lines end that begin at `from`, behind the watermark and behind a line that is not settled.
    pub(crate) fn settled_from(&self, from: u64) -> Option<u64> {
        self.later.get(&from).copied()
    }

    /// What is settled behind the watermark, in order, neighbours as one.
    pub(crate) fn later(&self) -> impl Iterator<Item = Span> {
        self.later.iter().map(|(from, to)| Span { from: *from, to: *to })
    }

    /// The end of the last settled span; a file shorter than this is not the file we knew.
    pub(crate) fn end(&self) -> u64 {
        self.later.last_key_value().map_or(self.watermark, |(_, to)| *to)
    }
}

#[cfg(test)]
mod tests {
    use proptest::strategy::Strategy;

    use super::*;

    fn after(settled: &[(u64, u64)]) -> (u64, Vec<(u64, u64)>) {
        let mut progress = Progress::default();
        for (from, to) in settled {
            progress.settle(Span { from: *from, to: *to });
        }
        (progress.watermark(), progress.later().map(|span| (span.from, span.to)).collect())
    }

    #[test]
    fn the_watermark_moves_over_what_lies_end_to_end() {
        assert_eq!(after(&[]), (0, vec![]));
        assert_eq!(after(&[(0, 5), (5, 9)]), (9, vec![]));
        assert_eq!(after(&[(5, 9)]), (0, vec![(5, 9)]));
        assert_eq!(after(&[(9, 12), (5, 9), (0, 5)]), (12, vec![]));
        assert_eq!(after(&[(9, 12), (0, 5)]), (5, vec![(9, 12)]));
        assert_eq!(after(&[(9, 12), (5, 9), (20, 25), (12, 15)]), (0, vec![(5, 15), (20, 25)]));
        assert_eq!(after(&[(5, 9), (12, 15), (9, 12), (0, 5)]), (15, vec![]));
    }

    #[test]
    fn settling_twice_changes_nothing() {
        assert_eq!(after(&[(0, 5), (0, 5), (9, 12), (9, 12)]), (5, vec![(9, 12)]));
        assert_eq!(after(&[(5, 9), (9, 12), (9, 12), (5, 9)]), (0, vec![(5, 12)]));
    }

    #[test]
    fn the_end_is_that_of_the_last_settled_span() {
        let mut progress = Progress::starting_at(7);
        assert_eq!(progress.end(), 7);
        progress.settle(Span { from: 20, to: 30 });
        assert_eq!(progress.end(), 30);
        assert_eq!(progress.settled_from(20), Some(30));
        assert_eq!(progress.settled_from(7), None);
    }

    proptest::proptest! {
        #[test]
        fn any_order_of_settling_ends_in_the_same_progress(
            order in proptest::sample::subsequence((0..12_u64).collect::<Vec<_>>(), 0..12)
                .prop_flat_map(|some| proptest::strategy::Just(some).prop_shuffle())
        ) {
            let mut progress = Progress::default();
            for line in &order {
                progress.settle(Span { from: line * 10, to: line * 10 + 10 });
            }
            let covers = |at| at < progress.watermark()
                || progress.later().any(|span| (span.from..span.to).contains(&at));
            for line in 0..12 {
                proptest::prop_assert_eq!(covers(line * 10), order.contains(&line));
            }
        }
    }
}
