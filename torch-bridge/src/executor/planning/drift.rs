//! True if what a plan was made with still holds, judged by the steps under it.
//!
//! A plan is worth making again when a figure was off by more than [`SHARE`] in the same direction
//! in all of the last [`STEPS`] steps, and the plan before is [`INTERVAL`] steps old. The new plan
//! is made with the median of those steps, so that going back takes as large a change again: no
//! flapping.

use std::collections::VecDeque;

use tidelog_planner::units::Bytes;

use super::planned::seconds;
use crate::executor::step_rate::{FIGURES, StepRate};

/// Part of a figure, 1 / this, by which it must be off.
const SHARE: u64 = 4;
/// Number of steps in a row.
const STEPS: usize = 4;
/// Steps under one plan, at least.
const INTERVAL: u64 = 16;

/// Figures of a plan, and the steps since.
#[derive(Default)]
pub(super) struct Drift {
    /// Rate that the plan assumed, without a time until steps ran under the first plan: its ops'
    /// times leave out what lies between ops.
    assumed: StepRate,
    lately: VecDeque<StepRate>,
    /// Number of steps since the plan was made, or tried to be.
    steps: u64,
}

impl Drift {
    /// Records the figures of a plan that is followed; those that it lacks stay.
    pub(super) fn planned_with(&mut self, figures: StepRate) {
        self.assumed = figures.or(self.assumed);
        self.rest();
    }

    /// No judgement for an interval.
    pub(super) fn rest(&mut self) {
        self.lately.clear();
        self.steps = 0;
    }

    pub(super) fn assumed(&self) -> StepRate {
        self.assumed
    }

    /// A step that followed the plan went like this. Returns the pace to plan again
    /// with, if the steps have drifted.
    pub(super) fn step_ends(&mut self, pace: StepRate) -> Option<StepRate> {
        self.steps += 1;
        if self.lately.len() == STEPS {
            self.lately.pop_front();
        }
        self.lately.push_back(pace);
        if self.lately.len() < STEPS {
            return None;
        }
        let seen = StepRate::of(std::array::from_fn(|figure| self.median(figure)));
        self.assumed.compute = self.assumed.compute.or(seen.compute);
        let drifted = (0..FIGURES).any(|figure| self.is_off(figure));
        (drifted && self.steps >= INTERVAL).then(|| seen.or(self.assumed))
    }

    /// Returns whether all steps lately were off in the same direction.
    fn is_off(&self, figure: usize) -> bool {
        let Some(assumed) = self.assumed.figures()[figure] else { return false };
        let all = |off: &dyn Fn(u64) -> bool| {
            self.lately.iter().all(|step| step.figures()[figure].is_some_and(off))
        };
        all(&|seen| is_above(seen, assumed)) || all(&|seen| is_above(assumed, seen))
    }

    /// The middle one of the steps lately, if all of them showed the figure.
    fn median(&self, figure: usize) -> Option<u64> {
        let seen: Option<Vec<u64>> =
            self.lately.iter().map(|step| step.figures()[figure]).collect();
        let mut seen = seen?;
        seen.sort_unstable();
        seen.get(seen.len() / 2).copied()
    }
}

fn is_above(one: u64, other: u64) -> bool {
    one > other.saturating_add(other / SHARE)
}

/// Describes the change by more than the share.
pub(super) fn difference(before: StepRate, now: StepRate) -> String {
    let rate = |rate: u64| format!("{}/s", Bytes(rate));
    let labels: [(&str, &dyn Fn(u64) -> String); FIGURES] = [
        ("computing takes", &seconds),
        ("reads run at", &rate),
        ("writes run at", &rate),
        ("copies from host memory run at", &rate),
        ("copies to host memory run at", &rate),
    ];
    let changes = labels.iter().zip(before.figures()).zip(now.figures());
    let words = changes.filter_map(|(((what, show), before), now)| {
        let (before, now) = before.zip(now)?;
        let far = is_above(now, before) || is_above(before, now);
        far.then(|| format!("{what} {}, not {}", show(now), show(before)))
    });
    words.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(compute: u64, read: u64) -> StepRate {
        StepRate::of([Some(compute), Some(read), None, Some(500), None])
    }

    /// Returns a rate with these links from host memory, and to it.
    fn over_a_link(host_read: Option<u64>, host_write: Option<u64>) -> StepRate {
        StepRate::of([Some(1000), Some(100), None, host_read, host_write])
    }

    /// A plan made with 100 bytes/s, under which steps compute for 1000 ns.
    fn settled() -> Drift {
        let mut drift = Drift::default();
        drift.planned_with(StepRate { compute: None, ..pace(0, 100) });
        for _ in 0..INTERVAL {
            assert_eq!(drift.step_ends(pace(1000, 100)), None);
        }
        assert_eq!(drift.assumed(), pace(1000, 100));
        drift
    }

    /// Returns the number of plans that a course of steps brings, if each is taken over at once.
    fn plans(drift: &mut Drift, steps: impl Iterator<Item = StepRate>) -> usize {
        steps.filter_map(|step| drift.step_ends(step).map(|new| drift.planned_with(new))).count()
    }

    #[test]
    fn a_lasting_change_is_planned_for_once_whichever_figure_it_is() {
        for changed in [pace(1300, 100), pace(700, 100), pace(1000, 130), pace(1000, 70)] {
            let mut drift = settled();
            assert_eq!(plans(&mut drift, std::iter::repeat_n(changed, 100)), 1, "{changed:?}");
            assert_eq!(drift.assumed(), changed);
        }
    }

    /// Checks the links to host memory, each in its direction: half as fast, or twice.
    #[test]
    fn a_link_to_host_memory_that_becomes_slower_or_faster_is_planned_for_once() {
        for changed in [
            over_a_link(Some(250), None),
            over_a_link(Some(1000), None),
            over_a_link(Some(500), Some(400)),
            over_a_link(Some(500), Some(1600)),
        ] {
            let mut drift = settled();
            drift.planned_with(over_a_link(Some(500), Some(800)));
            assert_eq!(plans(&mut drift, std::iter::repeat_n(changed, 100)), 1, "{changed:?}");
            assert_eq!(drift.assumed(), changed.or(over_a_link(None, Some(800))));
        }
        let mut drift = settled();
        drift.planned_with(over_a_link(Some(500), Some(800)));
        let close = std::iter::repeat_n(over_a_link(Some(450), Some(900)), 100);
        assert_eq!(plans(&mut drift, close), 0);
        let words =
            difference(over_a_link(Some(500), Some(800)), over_a_link(Some(250), Some(900)));
        assert_eq!(words, "copies from host memory run at 250 B/s, not 500 B/s");
    }

    #[test]
    fn a_small_change_or_a_short_one_is_none() {
        let small = std::iter::repeat_n(pace(1200, 120), 100);
        assert_eq!(plans(&mut settled(), small), 0);
        let short =
            (0..100).map(|step| if step % 4 == 0 { pace(1000, 100) } else { pace(5000, 9) });
        assert_eq!(plans(&mut settled(), short), 0, "never so many in a row");
        let both_ways = (0..100).map(|step| pace(1000, if step % 2 == 0 { 10 } else { 900 }));
        assert_eq!(plans(&mut settled(), both_ways), 0);
    }

    #[test]
    fn what_changes_to_and_fro_is_planned_for_once_an_interval_at_most() {
        let swinging = (0..160).map(|step| pace(1000, if step / 8 % 2 == 0 { 20 } else { 100 }));
        let made = plans(&mut settled(), swinging);
        assert!((1..=10).contains(&made), "{made}");
    }

    #[test]
    fn what_a_step_does_not_show_is_not_judged_and_stays() {
        let mut drift = settled();
        let silent = StepRate { read: None, ..pace(2000, 0) };
        assert_eq!(plans(&mut drift, std::iter::repeat_n(silent, 20)), 1);
        assert_eq!(drift.assumed(), pace(2000, 100));
    }

    #[test]
    fn words_name_what_changed_and_nothing_else() {
        let words = difference(pace(1_000_000_000, 1 << 30), pace(1_100_000_000, 1 << 29));
        assert_eq!(words, "reads run at 512.0 MiB/s, not 1.0 GiB/s");
    }
}
