//! Ops that may be left out of an iteration: the bound holds whichever are, in each iteration anew.
//!
//! Leaving ops out changes what the others are bounded by in two ways: their time is saved, and
//! storages of their own need not be, while others live longer in their place. Everything else is
//! taken as where they are left out: that they do not use it can only make the bound smaller. So
//! under given prices each group of ops is a choice of its own, and the cheaper way of each counts.

use super::costs::{Cost, Matrix, Warm};
use super::line::IntervalLine;
use super::lives::{Gathering, Lives, Spreading, cheapest};
use super::stretches::Stretches;
use crate::lifetime::{At, Lifetime, Lifetimes, uses_by_storage};
use crate::trace::{PlanStorage, Storage, Trace};
use crate::units::Nanos;

/// Ops that an iteration may leave out together: what it has computed once already, or what runs on
/// another processor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Skippable {
    /// The ops.
    pub ops: Vec<u32>,
    /// Storages that the ops make, and that others stand for.
    pub made: Vec<MadeTwice>,
    /// Storages that only these ops use: where the ops are left out, they need not be.
    pub own: Vec<PlanStorage>,
    /// Storages that others use, too. Where the ops are left out they are written anew for the
    /// first of the others, and of no use after the last.
    pub shared: Vec<PlanStorage>,
    /// Storages that are used at the place of these ops even where they are left out.
    pub read: Vec<PlanStorage>,
    /// Time of what runs in place of ops that are left out, beside which op.
    pub instead: Vec<(u32, Nanos)>,
}

/// A storage that ops make which may be left out, and what stands for it then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadeTwice {
    /// Storage that the ops make.
    pub again: PlanStorage,
    /// Storage of the same bytes, made before.
    pub first: PlanStorage,
    /// True if `again` is used after these ops: `first` has to live on for that.
    pub outlives: bool,
}

/// One of the two ways of a group: what it takes.
#[derive(Clone, Debug, Default)]
struct Way {
    /// Time in intervals.
    time: Vec<(usize, u64)>,
    /// Bytes of lives.
    lives: Vec<(usize, u64)>,
}

/// A group of ops, run or left out.
#[derive(Clone, Debug, Default)]
struct Skip {
    run: Way,
    left_out: Way,
    /// Bytes that live in either way, for the search.
    bytes: u64,
}

/// All groups of an iteration.
#[derive(Clone, Debug, Default)]
pub(super) struct Skips {
    all: Vec<Skip>,
}

/// Lives as they are whichever ops are left out, and those that are only in one way.
pub(super) struct LivesOfTrace {
    pub(super) lifetimes: Vec<Lifetime>,
    pub(super) uses: Vec<Vec<At>>,
    /// Lifetimes and uses where all ops run.
    whole: (Vec<Lifetime>, Vec<Vec<At>>),
    /// True if a storage's life is a matter of a group.
    pub(super) is_optional: Vec<bool>,
}

/// Returns whether each op may be left out.
pub(super) fn may_be_left_out(trace: &Trace, groups: &[Skippable]) -> Vec<bool> {
    let mut ops = vec![false; trace.ops.len()];
    for op in groups.iter().flat_map(|group| &group.ops) {
        ops[*op as usize] = true;
    }
    ops
}

impl LivesOfTrace {
    /// Uses by ops that may be left out do not count; what dies beside one may be gone before.
    pub(super) fn of(trace: &Trace, lifetimes: &Lifetimes, left_out: &[bool]) -> Self {
        let count = trace.ops.len() as u32;
        let stays = |op: u32| !left_out[(op % count) as usize];
        let whole = (lifetimes.lifetimes.clone(), uses_by_storage(trace));
        let mut uses = whole.1.clone();
        for uses in &mut uses {
            uses.retain(|at| stays(at.op));
        }
        let last = |life: &Lifetime| Lifetime {
            death: life.death.map(|death| {
                let first = life.birth.unwrap_or(0);
                (first..=death).rev().find(|op| stays(*op)).unwrap_or(first)
            }),
            ..*life
        };
        let lifetimes = lifetimes.lifetimes.iter().map(last).collect();
        Self { lifetimes, uses, whole, is_optional: vec![false; trace.storages.len()] }
    }

    /// Returns a storage's life where all ops run.
    fn whole(&self, storage: PlanStorage) -> (Lifetime, &[At]) {
        let index = storage.0 as usize;
        (self.whole.0[index], &self.whole.1[index])
    }

    /// Returns a storage's life where it is only what the ops that stay use, written anew for the
    /// first of them; nothing where none does.
    fn rest(&self, storage: PlanStorage) -> Option<(Lifetime, &[At])> {
        let uses = &self.uses[storage.0 as usize];
        let (first, last) = (uses.first()?, uses.last()?);
        Some((Lifetime { birth: Some(first.op), death: Some(last.op) }, uses))
    }
}

impl Skips {
    /// The groups' ways. Notes in `lives` which storages are theirs.
    pub(super) fn of(
        trace: &Trace,
        groups: &[Skippable],
        cut: &IntervalLine<'_>,
        lives: &mut LivesOfTrace,
        gathered: &mut Gathering,
    ) -> Self {
        let mut skips = Self::default();
        for group in groups {
            let mut skip = Skip::default();
            let interval = |op: u32| cut.interval(op) % cut.instants.len();
            for op in &group.ops {
                skip.run.add_time(interval(*op), trace.ops[*op as usize].duration.0);
            }
            for (op, time) in &group.instead {
                skip.left_out.add_time(interval(*op), time.0);
            }
            for one in &group.made {
                let [made, instead] = [one.again, one.first].map(|storage| storage.0 as usize);
                let size = trace.storages[made].size.0;
                let mut add = |way: &mut Way, life: Lifetime, uses: &[At]| {
                    if let Some((stretches, end)) = cut.stretches(life, uses) {
                        way.lives.push((gathered.number(stretches, end), size));
                        skip.bytes += size;
                    }
                };
                lives.is_optional[made] = true;
                if !trace.storages[made].movable {
                    continue;
                }
                add(&mut skip.run, lives.lifetimes[made], &lives.uses[made]);
                if one.outlives {
                    lives.is_optional[instead] = true;
                    let short = lives.lifetimes[instead];
                    add(&mut skip.run, short, &lives.uses[instead]);
                    let both = [&lives.uses[instead][..], &lives.uses[made]].concat();
                    let long = Lifetime { death: lives.lifetimes[made].death, ..short };
                    add(&mut skip.left_out, long, &both);
                }
            }
            skip.add_lives(trace, group, lives, &mut |(life, uses), size| {
                let (stretches, end) = cut.stretches(life, uses)?;
                Some((gathered.number(stretches, end), size))
            });
            skips.all.push(skip);
        }
        skips
    }

    /// Returns the cost of the groups' cheaper ways. `left`: what a nanosecond of each interval is
    /// worth, times 10^9.
    pub(super) fn cost<const S: usize>(
        &self,
        lives: &Lives,
        costs: &Stretches<u64, S>,
        left: &[i128],
    ) -> i128 {
        let ways = self.both(lives, costs, left).into_iter();
        ways.map(|[run, left_out]| run.min(left_out)).sum()
    }

    /// Returns the cost of each group if it runs, and if it is left out.
    pub(super) fn both<const S: usize>(
        &self,
        lives: &Lives,
        costs: &Stretches<u64, S>,
        left: &[i128],
    ) -> Vec<[i128; 2]> {
        let cost = |way: &Way| {
            let time = way
                .time
                .iter()
                .map(|(interval, time)| i128::from(*time) * left[*interval] / 1_000_000_000);
            let of_lives = way.lives.iter().map(|(life, bytes)| {
                let life = &lives.all[*life];
                i128::from(cheapest(costs, lives.of(life), life.end)) * i128::from(*bytes)
            });
            time.sum::<i128>() + of_lives.sum::<i128>()
        };
        self.all.iter().map(|skip| [cost(&skip.run), cost(&skip.left_out)]).collect()
    }

    /// Spreads each group over its two ways, by how little more than the cheaper one each costs per
    /// byte, and the bytes of their lives with them. Adds the time of what runs to `time`.
    #[allow(clippy::cast_precision_loss, reason = "for the search, which may be inexact")]
    pub(super) fn spread<const S: usize>(
        &self,
        (lives, costs): (&Lives, &Stretches<Warm, S>),
        (left, warmth): (&[f64], f64),
        spreading: &mut Spreading<S>,
        to: (&mut [Matrix<f64, S>], &mut [f64]),
    ) {
        let (bytes_to, time_to) = to;
        for skip in &self.all {
            let ways = [&skip.run, &skip.left_out];
            let cost = ways.map(|way| {
                let time = way.time.iter().map(|(interval, time)| *time as f64 * left[*interval]);
                let mut cost: f64 = time.sum();
                for (life, bytes) in &way.lives {
                    let life = &lives.all[*life];
                    let one = spreading.cost(costs, lives.of(life), life.end);
                    cost += *bytes as f64 * one.0 * warmth;
                }
                Warm(cost / warmth / skip.bytes.max(1) as f64)
            });
            let all = Warm::either(cost);
            for (way, cost) in ways.into_iter().zip(cost) {
                let share = cost.share(all);
                if share == 0.0 {
                    continue;
                }
                for (interval, time) in &way.time {
                    time_to[*interval] += share * *time as f64;
                }
                for (life, bytes) in &way.lives {
                    let life = &lives.all[*life];
                    let what = (life.end, share * *bytes as f64);
                    spreading.spread(costs, lives.of(life), what, bytes_to);
                }
            }
        }
    }
}

impl Skip {
    /// Adds what lives only while the group's ops run, or otherwise where they do not. `life`
    /// numbers a life of so many bytes.
    fn add_lives(
        &mut self,
        trace: &Trace,
        group: &Skippable,
        lives: &mut LivesOfTrace,
        life: &mut impl FnMut((Lifetime, &[At]), u64) -> Option<(usize, u64)>,
    ) {
        for storage in &group.read {
            let (life, uses) = lives.whole(*storage);
            let uses = uses.to_vec();
            let index = storage.0 as usize;
            (lives.lifetimes[index], lives.uses[index]) = (life, uses);
        }
        for storage in group.own.iter().chain(&group.shared) {
            let Storage { size, movable, .. } = trace.storages[storage.0 as usize];
            lives.is_optional[storage.0 as usize] = true;
            if movable {
                self.bytes += size.0;
                self.run.lives.extend(life(lives.whole(*storage), size.0));
            }
        }
        for storage in &group.shared {
            let Storage { size, movable, .. } = trace.storages[storage.0 as usize];
            let rest = lives.rest(*storage).filter(|_| movable);
            self.left_out.lives.extend(rest.and_then(|rest| life(rest, size.0)));
        }
    }
}

impl Way {
    fn add_time(&mut self, interval: usize, time: u64) {
        match self.time.last_mut() {
            Some((last, sum)) if *last == interval => *sum += time,
            _ => self.time.push((interval, time)),
        }
    }
}
