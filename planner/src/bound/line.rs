//! Stretches of a storage's life, made from its uses.

use super::lives::LifetimeEnd;
use super::states::{Instant, IntervalEvent, IntervalStep};
use super::stretches::{Layout, StretchId};
use crate::lifetime::{At, Lifetime};

/// The line of two iterations, cut at the instants.
pub(super) struct IntervalLine<'a> {
    pub(super) ops: u32,
    pub(super) instants: &'a [u32],
    pub(super) layout: Layout,
}

impl IntervalLine<'_> {
    /// The interval that holds an unrolled op, unrolled from the iteration before on: the first
    /// instant may come after op 0.
    pub(super) fn interval(&self, op: u32) -> usize {
        let (round, op) = ((op / self.ops) as usize, op % self.ops);
        let before = self.instants.partition_point(|instant| *instant <= op);
        (round + 1) * self.instants.len() + before - 1
    }

    /// Returns whether an op begins at the instant of its interval.
    fn at_instant(&self, op: u32) -> bool {
        self.instants.binary_search(&(op % self.ops)).is_ok()
    }

    /// The instants that see a storage, wherever it is.
    pub(super) fn instants_of(&self, life: Lifetime) -> Vec<usize> {
        let Some(death) = life.death else { return (0..self.instants.len()).collect() };
        let birth = life.birth.unwrap_or(0);
        let first = self.interval(birth) + usize::from(!self.at_instant(birth));
        (first..=self.interval(death)).map(|interval| interval % self.instants.len()).collect()
    }

    /// Returns the stretches of a storage's life; nothing where no instant sees it.
    pub(super) fn stretches(
        &self,
        life: Lifetime,
        uses: &[At],
    ) -> Option<(Vec<StretchId>, LifetimeEnd)> {
        match (life.birth, life.death) {
            // What is made between iterations is there before op 0 begins, and may be out by then.
            (birth, Some(death)) => {
                let (first, last) = (self.interval(birth.unwrap_or(0)), self.interval(death));
                let at_instant = birth.is_some_and(|birth| self.at_instant(birth));
                if first == last && !at_instant {
                    return None;
                }
                let instant = if at_instant { Instant::Held } else { Instant::Before };
                let mut path = Path::new(
                    self.layout,
                    first,
                    IntervalStep { event: IntervalEvent::Modify, instant },
                );
                for (interval, step) in self.steps(uses) {
                    if first < interval && interval <= last {
                        path.step(interval, step);
                    }
                }
                path.idle_before(last + 1);
                Some((path.stretches, LifetimeEnd::Death))
            }
            _ => Some(self.for_ever(uses)),
        }
    }

    /// Returns the stretches from one modification to the same one of the next iteration, if there
    /// is any.
    fn for_ever(&self, uses: &[At]) -> (Vec<StretchId>, LifetimeEnd) {
        let count = self.instants.len();
        let mut steps = self.steps(uses);
        for (interval, _) in &mut steps {
            *interval %= count;
        }
        // What is used before the first instant is in the last interval.
        steps.sort_by_key(|(interval, _)| *interval);
        let mut merged: Vec<(usize, IntervalStep)> = Vec::new();
        for (interval, step) in steps {
            merge(&mut merged, interval, step);
        }
        let modified = merged.iter().position(|(_, step)| step.event == IntervalEvent::Modify);
        let first = modified.map_or(0, |index| merged[index].0);
        merged.rotate_left(modified.unwrap_or(0));
        let mut path = match modified {
            Some(_) => {
                let (_, again) = merged.remove(0);
                merged.push((first, again));
                let begin = IntervalStep { event: IntervalEvent::Modify, instant: Instant::Before };
                Path::new(self.layout, first, begin)
            }
            None => Path { layout: self.layout, stretches: Vec::new(), next: 0 },
        };
        for (place, step) in merged {
            path.step(if place < path.next { place + count } else { place }, step);
        }
        if modified.is_none() {
            path.idle_before(count);
        }
        (
            path.stretches,
            if modified.is_some() { LifetimeEnd::Modified } else { LifetimeEnd::Never },
        )
    }

    /// The intervals with uses in the order of time, and what is in them.
    fn steps(&self, uses: &[At]) -> Vec<(usize, IntervalStep)> {
        let mut steps = Vec::new();
        for at in uses {
            let event = if at.modifies { IntervalEvent::Modify } else { IntervalEvent::Read };
            let instant = if self.at_instant(at.op) { Instant::Held } else { Instant::Free };
            merge(&mut steps, self.interval(at.op), IntervalStep { event, instant });
        }
        steps
    }
}

/// Appends a step, or makes it part of the last one if that is in the same interval.
fn merge(steps: &mut Vec<(usize, IntervalStep)>, interval: usize, step: IntervalStep) {
    match steps.last_mut() {
        Some((last, known)) if *last == interval => *known = known.and(step),
        _ => steps.push((interval, step)),
    }
}

/// Writes a life, unrolled interval by interval.
struct Path {
    layout: Layout,
    stretches: Vec<StretchId>,
    /// The interval that comes next.
    next: usize,
}

impl Path {
    fn new(layout: Layout, interval: usize, step: IntervalStep) -> Self {
        let mut path = Self { layout, stretches: Vec::new(), next: interval };
        path.step(interval, step);
        path
    }

    fn step(&mut self, interval: usize, step: IntervalStep) {
        self.idle_before(interval);
        self.stretches.push(self.layout.step(step, interval % self.layout.count));
        self.next = interval + 1;
    }

    fn idle_before(&mut self, interval: usize) {
        while self.next < interval {
            let first = self.next % self.layout.count;
            let length = (interval - self.next).min(self.layout.count - first);
            self.stretches.extend(self.layout.run(first, first + length - 1));
            self.next += length;
        }
    }
}
