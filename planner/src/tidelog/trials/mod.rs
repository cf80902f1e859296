//! Improving a plan by trial, where trials are cheap: on short traces every period's other ways are
//! simulated in turn, until none of them helps, from one beginning after the other.

mod space;

use super::POLICY;
use super::maker::Maker;
use crate::migration::{Migration, Target};
use crate::simulate::{SimulateError, Simulator};
use crate::units::{Bytes, Nanos};
use space::PeriodWays;
use std::collections::{HashMap, HashSet};
use tidelog_random::Random;

/// Iterations that one simulation runs.
const ITERATIONS: u64 = 3;

/// Rows for each op of a plan that trials begin with: far more than ops use storages. A plan that
/// moves so much to and fro, since ops wait for ages, is simulated for long, and no trial saves it.
const ROWS_TRIED: usize = 64;

/// Limit of random changes in a row that have not helped, after which the search ends.
const IN_VAIN_MOST: u32 = 40;

/// Number of simulations that are enough for steps of about thirty ops.
const PLENTY: u64 = 2000;

/// Number of the best plans that are remembered.
const TOPS: usize = 8;

/// Seed of the random changes: any will do, as long as it is always the same.
const SEED: u64 = 7;

/// Merit of a plan: the smaller, the better.
type Merit = (Nanos, Bytes);

/// A plan's rows in their order, and what they led to.
type Tried = (Merit, Vec<Migration>);

/// Returns whether trials that simulate at most `most` ops can look at each of a step's ops twice.
pub(super) fn are_cheap(ops: u32, most: u64) -> bool {
    simulations(ops, most) >= 2 * u64::from(ops)
}

/// Returns whether the simulations are so many that those for less freedom can be made beforehand.
pub(super) fn are_plenty(ops: u32, most: u64) -> bool {
    simulations(ops, most) >= PLENTY
}

fn simulations(ops: u32, most: u64) -> u64 {
    most / (ITERATIONS * u64::from(ops).max(1))
}

/// Simulations that may still be made, and what those made led to.
pub(super) struct Trials<'a> {
    simulator: &'a Simulator<'a>,
    /// Tiers for storages.
    targets: &'a [Target],
    ops: u32,
    /// The time of a step that never waits.
    ideal: Nanos,
    left: u64,
    known: HashMap<Vec<Migration>, Merit>,
    /// Plans from which everything was tried.
    climbed: HashSet<Vec<Migration>>,
    /// The best plans that ways up ended with.
    tops: Vec<Tried>,
}

impl<'a> Trials<'a> {
    /// Trials that simulate at most `most` ops.
    pub(super) fn new(
        simulator: &'a Simulator<'a>,
        targets: &'a [Target],
        (ops, ideal): (u32, Nanos),
        most: u64,
    ) -> Self {
        let (left, known, climbed) = (simulations(ops, most), HashMap::new(), HashSet::new());
        Self { simulator, targets, ops, ideal, left, known, climbed, tops: Vec::new() }
    }

    /// The best plan that one of these becomes, or one that moves nothing or a single period: where
    /// several storages have to move, moving one alone may be worse than none. The makers say what
    /// moves together.
    pub(super) fn improve<'b>(
        &mut self,
        makers: &[&Maker<'_>],
        starts: impl Iterator<Item = &'b [Migration]>,
    ) -> Result<Vec<Migration>, SimulateError> {
        let (targets, ops) = (self.targets, self.ops);
        let narrow = makers.iter().map(|maker| space::narrow(maker, targets, ops));
        let narrow: Vec<Vec<PeriodWays>> = narrow.collect();
        let mut best: Tried = ((Nanos(u64::MAX), Bytes(0)), Vec::new());
        for start in starts {
            let mut start = start.to_vec();
            start.sort_unstable();
            start.dedup();
            if start.len() <= ROWS_TRIED * ops as usize {
                for space in &narrow {
                    best = self.climb_from(space, start.clone(), best)?;
                }
            }
        }
        for space in &narrow {
            // The first way of each is to stay: that moves nothing.
            for rows in space.iter().flat_map(|period| &period.ways) {
                best = self.climb_from(space, rows.clone(), best)?;
            }
        }
        let wide = makers.iter().filter_map(|maker| space::wide(maker, targets, (ops, self.left)));
        let wide: Vec<Vec<PeriodWays>> = wide.filter(|space| !space.is_empty()).collect();
        // There are more ways from where was climbed before.
        self.climbed.clear();
        for space in &wide {
            best = self.climb(space, best)?;
        }
        self.change_at_random(&wide, best)
    }

    /// Climbs from the best plan with some of its periods changed at random.
    fn change_at_random(
        &mut self,
        spaces: &[Vec<PeriodWays>],
        mut best: Tried,
    ) -> Result<Vec<Migration>, SimulateError> {
        let mut random = Random::new(SEED);
        let mut in_vain = 0;
        while in_vain < IN_VAIN_MOST && !spaces.is_empty() && !self.is_over(&best) {
            let space = &spaces[random.below(spaces.len() as u64) as usize];
            let rows = if random.chance(2) {
                self.mixed(space, &best.1, &mut random)
            } else {
                self.changed(space, &best.1, &mut random)
            };
            let before = best.0;
            best = self.climb_from(space, rows, best)?;
            in_vain = if best.0 < before { 0 } else { in_vain + 1 };
        }
        Ok(best.1)
    }

    /// The rows with some periods as in another of the best plans: two good halves may fit.
    fn mixed(
        &self,
        space: &[PeriodWays],
        rows: &[Migration],
        random: &mut Random,
    ) -> Vec<Migration> {
        let (_, other) = &self.tops[random.below(self.tops.len() as u64) as usize];
        let mut mixed = rows.to_vec();
        for period in space {
            if random.chance(2) {
                mixed = period.as_in(other, &mixed, self.ops);
            }
        }
        mixed
    }

    /// The rows with any other way in a few periods.
    fn changed(
        &self,
        space: &[PeriodWays],
        rows: &[Migration],
        random: &mut Random,
    ) -> Vec<Migration> {
        let mut changed = rows.to_vec();
        for _ in 0..2 + random.below(3) {
            let period = &space[random.below(space.len() as u64) as usize];
            let way = &period.ways[random.below(period.ways.len() as u64) as usize];
            changed = [period.taken_from(&changed, self.ops).as_slice(), way].concat();
        }
        changed
    }

    /// The best so far, or where this way up ends.
    fn climb_from(
        &mut self,
        space: &[PeriodWays],
        rows: Vec<Migration>,
        best: Tried,
    ) -> Result<Tried, SimulateError> {
        if self.is_over(&best) {
            return Ok(best);
        }
        let start = self.simulate(rows)?;
        let top = self.climb(space, start)?;
        self.tops.push(top.clone());
        self.tops.sort_unstable();
        self.tops.dedup();
        self.tops.truncate(TOPS);
        Ok(top.min(best))
    }

    /// Changes one period after the other for the better, until no change of one helps, nor a wait.
    fn climb(&mut self, space: &[PeriodWays], mut best: Tried) -> Result<Tried, SimulateError> {
        loop {
            if self.is_over(&best) || !self.climbed.insert(best.1.clone()) {
                return Ok(best);
            }
            let before = best.0;
            for period in space {
                let others = period.taken_from(&best.1, self.ops);
                for way in &period.ways {
                    if self.is_over(&best) {
                        return Ok(best);
                    }
                    let tried = self.simulate([others.as_slice(), way].concat())?;
                    if tried.0 < best.0 {
                        best = tried;
                    }
                }
            }
            if best.0 == before {
                best = self.wait(best)?;
            }
            if best.0 == before {
                return Ok(best);
            }
        }
    }

    /// Has ops wait for evictions that begin with them, where that helps.
    fn wait(&mut self, mut best: Tried) -> Result<Tried, SimulateError> {
        let rows = best.1.clone();
        let leaving = rows.iter().filter(|row| row.leaves());
        for row in leaving.filter(|row| !row.awaited) {
            if self.is_over(&best) {
                break;
            }
            let others = best.1.iter().filter(|other| *other != row).copied();
            let tried = self.simulate(others.chain([row.awaited_at_once()]).collect())?;
            if tried.0 < best.0 {
                best = tried;
            }
        }
        Ok(best)
    }

    /// Returns whether there is nothing left to try with, or to gain.
    fn is_over(&self, best: &Tried) -> bool {
        self.left == 0 || best.0.0 <= self.ideal
    }

    fn simulate(&mut self, mut rows: Vec<Migration>) -> Result<Tried, SimulateError> {
        rows.sort_unstable();
        if let Some(merit) = self.known.get(&rows) {
            return Ok((*merit, rows));
        }
        self.left = self.left.saturating_sub(1);
        let simulation = self.simulator.simulate(POLICY, &rows)?;
        let merit = (simulation.time, simulation.bytes.ssd_written);
        self.known.insert(rows.clone(), merit);
        Ok((merit, rows))
    }
}
