//! The plans found so far, and which of them is the best.

use super::Goal;
use crate::cost::Machine;
use crate::endurance::WriteBudget;
use crate::migration::Migration;
use crate::plan::{Expectation, Plan};
use crate::simulate::Simulation;
use crate::trace::Trace;

/// Plans whose time is within this part of the shortest one's are as fast.
const AS_FAST_PARTS: u64 = 1000;

/// Tolerance, 1 / this, within which plans are fast enough for fewer bytes to count.
const FAST_ENOUGH_PARTS: u64 = 100;

/// A plan that was simulated.
#[derive(Clone)]
pub(super) struct Candidate {
    /// The rows, in any order.
    pub(super) rows: Vec<Migration>,
    /// Expectation of its maker; what the simulation found takes the place of most of it.
    pub(super) expects: Expectation,
    pub(super) simulation: Simulation,
}

impl Candidate {
    fn time(&self) -> u64 {
        self.simulation.time.0
    }

    fn written(&self) -> u64 {
        self.simulation.bytes.ssd_written.0
    }

    /// Returns whether another one is no better, neither in time nor in bytes written.
    fn beats(&self, other: &Self) -> bool {
        self.time() <= other.time() && self.written() <= other.written()
    }

    fn keeps_to(&self, budget: WriteBudget) -> bool {
        budget.allows(self.simulation.time, self.simulation.bytes.ssd_written)
    }

    pub(super) fn into_plan(self, trace: &Trace, machine: &Machine) -> (Plan, Simulation) {
        let expects = self.simulation.expectation(&self.expects);
        (Plan::new(super::POLICY, trace, machine, self.rows, expects), self.simulation)
    }
}

/// Plans that no other one beats in both time and bytes written.
#[derive(Default)]
pub(super) struct Candidates {
    kept: Vec<Candidate>,
    /// The shortest time of the published algorithm's plans.
    published: Option<u64>,
}

impl Candidates {
    pub(super) fn offer(&mut self, new: Candidate) {
        if self.kept.iter().any(|known| known.beats(&new)) {
            return;
        }
        self.kept.retain(|known| !new.beats(known));
        self.kept.push(new);
    }

    pub(super) fn offer_published(&mut self, new: Candidate) {
        let time = new.time();
        self.published = Some(self.published.map_or(time, |known| known.min(time)));
        self.offer(new);
    }

    pub(super) fn fastest_first(&self) -> Vec<&Candidate> {
        let mut found: Vec<&Candidate> = self.kept.iter().collect();
        found.sort_by_key(|one| one.time());
        found
    }

    /// Returns the candidate with rows for another trace, in which all that they move is moved
    /// alike.
    pub(super) fn map(&self, rows: impl Fn(&[Migration]) -> Vec<Migration>) -> Self {
        let mapped = |one: &Candidate| Candidate { rows: rows(&one.rows), ..one.clone() };
        Self { kept: self.kept.iter().map(mapped).collect(), published: self.published }
    }

    /// The best so far; none if there is no plan yet.
    pub(super) fn best(&self, goal: Goal) -> Option<&Candidate> {
        let shortest = self.kept.iter().map(Candidate::time).min()?;
        let within = |parts| shortest + shortest / parts;
        // Never slower than the published plans, not even by a hair.
        let published = self.published.unwrap_or(u64::MAX);
        let limit = match goal {
            Goal::Time => within(AS_FAST_PARTS).min(published),
            Goal::Balanced => within(FAST_ENOUGH_PARTS).min(published),
            Goal::Wear => self.published.unwrap_or(within(AS_FAST_PARTS)),
            Goal::Budget(budget) => return self.best_under(budget),
        };
        let allowed = self.kept.iter().filter(|one| one.time() <= limit);
        allowed.min_by_key(|one| (one.written(), one.time()))
    }

    /// Returns whether the plan that is balanced writes more than a budget allows.
    pub(super) fn is_beyond(&self, budget: WriteBudget) -> bool {
        self.best(Goal::Balanced).is_some_and(|one| !one.keeps_to(budget))
    }

    fn best_under(&self, budget: WriteBudget) -> Option<&Candidate> {
        let balanced = self.best(Goal::Balanced)?;
        if balanced.keeps_to(budget) {
            return Some(balanced);
        }
        let paced =
            |one: &Candidate| budget.paced(one.simulation.time, one.simulation.bytes.ssd_written).0;
        let shortest = self.kept.iter().map(paced).min()?;
        let limit = shortest.saturating_add(shortest / FAST_ENOUGH_PARTS);
        let allowed = self.kept.iter().filter(|one| paced(one) <= limit);
        allowed.min_by_key(|one| (one.written(), one.time()))
    }
}
