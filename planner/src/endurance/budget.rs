//! A write budget: how long steps have to be to keep to it, and what of it is left as time goes on.

use crate::units::{Bytes, Nanos};

pub(super) const DAY: u128 = 86_400 * 1_000_000_000;

/// Time for which bytes that were not written may be written later.
const KEPT: u128 = DAY / 24;

/// Bytes that steps may write a day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteBudget {
    /// Bytes of a day.
    pub per_day: Bytes,
    /// Time that a step takes beside its simulation.
    pub beside: Nanos,
}

impl WriteBudget {
    /// The length of a step that writes so much and takes so long, with the pause that keeps to the
    /// budget.
    pub fn paced(&self, time: Nanos, written: Bytes) -> Nanos {
        let needed = (u128::from(written.0) * DAY).div_ceil(u128::from(self.per_day.0.max(1)));
        self.unpaced(time).max(Nanos(whole(needed)))
    }

    /// Returns whether such a step keeps to the budget without a pause.
    pub fn allows(&self, time: Nanos, written: Bytes) -> bool {
        self.paced(time, written) == self.unpaced(time)
    }

    fn unpaced(&self, time: Nanos) -> Nanos {
        Nanos(time.0.saturating_add(self.beside.0))
    }
}

/// Bytes that may be written now under a budget: the number grows with time, up to what an hour
/// allows, and shrinks by what is written. Below zero it has to be waited for.
#[derive(Clone, Copy, Debug)]
pub struct WriteAllowance {
    /// Bytes that it grows by in a day.
    per_day: Bytes,
    /// Bytes times the nanoseconds of a day: what a nanosecond brings is whole then.
    left: i128,
    /// The time of the last count.
    at: Nanos,
}

impl WriteAllowance {
    /// Makes an allowance of nothing, which grows from `now` on.
    pub fn new(per_day: Bytes, now: Nanos) -> Self {
        Self { per_day, left: 0, at: now }
    }

    /// Returns the bytes that it grows by in a day.
    pub fn per_day(&self) -> Bytes {
        self.per_day
    }

    /// Subtracts bytes that were written since the last time.
    pub fn wrote(&mut self, bytes: Bytes, now: Nanos) {
        self.left = self.left_at(now) - (u128::from(bytes.0) * DAY).cast_signed();
        self.at = self.at.max(now);
    }

    /// Returns the time for which nothing may be written from `now` on.
    pub fn pause(&self, now: Nanos) -> Nanos {
        let owed = self.left_at(now).min(0).unsigned_abs();
        Nanos(whole(owed.div_ceil(u128::from(self.per_day.0.max(1)))))
    }

    fn left_at(&self, now: Nanos) -> i128 {
        let grown = |time: u128| (u128::from(self.per_day.0) * time).cast_signed();
        let since = now.0.saturating_sub(self.at.0);
        (self.left + grown(since.into())).min(grown(KEPT))
    }
}

pub(super) fn whole(amount: u128) -> u64 {
    u64::try_from(amount).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidelog_random::Random;

    const SECOND: u64 = 1_000_000_000;
    /// A thousand bytes a second.
    const PER_DAY: Bytes = Bytes(86_400_000);

    #[test]
    fn a_step_is_as_long_as_its_bytes_need_or_as_it_takes() {
        let budget = WriteBudget { per_day: PER_DAY, beside: Nanos(SECOND) };
        assert_eq!(budget.paced(Nanos(SECOND), Bytes(5_000)), Nanos(5 * SECOND));
        assert!(!budget.allows(Nanos(SECOND), Bytes(5_000)));
        assert_eq!(budget.paced(Nanos(SECOND), Bytes(2_000)), Nanos(2 * SECOND));
        assert!(budget.allows(Nanos(SECOND), Bytes(2_000)), "what lies beside it counts");
        assert_eq!(budget.paced(Nanos(SECOND), Bytes(2_001)), Nanos(2_001 * (SECOND / 1_000)));
    }

    #[test]
    fn what_was_written_too_early_is_waited_for_and_what_was_not_is_kept_for_an_hour() {
        let mut left = WriteAllowance::new(PER_DAY, Nanos(7));
        assert_eq!(left.pause(Nanos(7)), Nanos(0));
        left.wrote(Bytes(3_000), Nanos(7));
        assert_eq!(left.pause(Nanos(7)), Nanos(3 * SECOND));
        assert_eq!(left.pause(Nanos(7 + SECOND)), Nanos(2 * SECOND));
        assert_eq!(left.pause(Nanos(7 + 3 * SECOND)), Nanos(0));
        // A week of rest is worth an hour of writing.
        let week = Nanos(7 * 86_400 * SECOND);
        left.wrote(Bytes(3_600_000), week);
        assert_eq!(left.pause(week), Nanos(0));
        left.wrote(Bytes(1), week);
        assert_eq!(left.pause(week), Nanos(SECOND / 1_000));
    }

    #[test]
    fn no_figure_overflows() {
        for per_day in [0, 1, u64::MAX] {
            let mut left = WriteAllowance::new(Bytes(per_day), Nanos(0));
            left.wrote(Bytes(u64::MAX), Nanos(u64::MAX));
            left.wrote(Bytes(u64::MAX), Nanos(0));
            let _ = left.pause(Nanos(u64::MAX));
            let budget = WriteBudget { per_day: Bytes(per_day), beside: Nanos(u64::MAX) };
            assert_eq!(budget.paced(Nanos(u64::MAX), Bytes(u64::MAX)), Nanos(u64::MAX));
        }
    }

    /// A program that pauses as long as it says writes no more in any stretch of time than the
    /// budget allows in that and in an hour, and one step; and in all no more than the budget.
    #[test]
    fn no_stretch_of_steps_writes_more() {
        let allowed = |time: u64| u128::from(time) * u128::from(PER_DAY.0) / DAY;
        for seed in 0..100 {
            let mut random = Random::new(seed);
            let (mut left, mut now) = (WriteAllowance::new(PER_DAY, Nanos(0)), Nanos(0));
            let mut ends = vec![(now, 0)];
            for _ in 0..80 {
                now.0 += random.below(2 * SECOND);
                let bytes = random.below(9_000);
                left.wrote(Bytes(bytes), now);
                ends.push((now, ends[ends.len() - 1].1 + bytes));
                now.0 += left.pause(now).0;
                assert_eq!(left.pause(now), Nanos(0));
            }
            for (begin, &(from, before)) in ends.iter().enumerate() {
                // What was written before a step ended, after the pauses behind the others.
                for pair in ends[begin..].windows(2) {
                    let (until, written) = (pair[1].0, pair[0].1 - before);
                    let most = allowed(until.0 - from.0) + 3_600_000 + 9_000;
                    assert!(u128::from(written) <= most, "seed {seed}, from step {begin}");
                }
            }
            assert!(u128::from(ends[ends.len() - 1].1) <= allowed(now.0) + 1, "seed {seed}");
        }
    }
}
