//! The plans found so far, and which of them is the best.

use super::Goal;
use crate::plan::Plan;
use crate::simulate::Simulation;

/// Plans whose time is within this part of the shortest one's are as fast.
const AS_FAST_PARTS: u64 = 1000;

/// Plans that no other one beats in both time and bytes written.
#[derive(Default)]
pub(super) struct Candidates {
    kept: Vec<(Plan, Simulation)>,
    /// The shortest time of the published algorithm's plans.
    published: Option<u64>,
}

fn time(one: &(Plan, Simulation)) -> u64 {
    one.1.time.0
}

fn written(one: &(Plan, Simulation)) -> u64 {
    one.1.bytes.ssd_written.0
}

impl Candidates {
    pub(super) fn offer(&mut self, plan: Plan, simulation: Simulation) {
        let new = (plan, simulation);
        let beats = |one: &(Plan, Simulation), other: &(Plan, Simulation)| {
            time(one) <= time(other) && written(one) <= written(other)
        };
        if self.kept.iter().any(|known| beats(known, &new)) {
            return;
        }
        self.kept.retain(|known| !beats(&new, known));
        self.kept.push(new);
    }

    pub(super) fn offer_published(&mut self, plan: Plan, simulation: Simulation) {
        let time = simulation.time.0;
        self.published = Some(self.published.map_or(time, |known| known.min(time)));
        self.offer(plan, simulation);
    }

    pub(super) fn fastest_first(mut self) -> Vec<(Plan, Simulation)> {
        self.kept.sort_by_key(time);
        self.kept
    }

    pub(super) fn best(self, goal: Goal) -> (Plan, Simulation) {
        let shortest = self.kept.iter().map(time).min().unwrap_or(0);
        let as_fast = shortest + shortest / AS_FAST_PARTS;
        let limit = match (goal, self.published) {
            // Never slower than the published plans, not even by a hair.
            (Goal::Time, Some(published)) => as_fast.min(published),
            (Goal::Time, None) => as_fast,
            (Goal::Wear, published) => published.unwrap_or(as_fast),
        };
        let allowed = self.kept.into_iter().filter(|one| time(one) <= limit);
        allowed.min_by_key(|one| (written(one), time(one))).expect("there is at least one round")
    }
}
