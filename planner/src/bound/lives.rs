//! The cheapest life of one byte under given prices.

use super::costs::Warm;
use super::costs::{Cost, Matrix, after, before, product};
use super::states::DIRTY;
use super::stretches::{StretchId, Stretches};
use std::collections::HashMap;

/// End of a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum LifetimeEnd {
    /// Death: the storage is made in its first interval, dirty, and is gone after its last one.
    Death,
    /// Modification: the storage lives for ever: after its last interval it is modified as it was
    /// in the first.
    Modified,
    /// None: nothing ever modifies it: a life is one iteration of it.
    Never,
}

/// Storages that live alike, to the interval.
#[derive(Clone, Debug)]
pub(super) struct Life {
    first: u32,
    count: u32,
    pub(super) end: LifetimeEnd,
    pub(super) bytes: u64,
}

/// All lives of an iteration.
#[derive(Clone, Debug, Default)]
pub(super) struct Lives {
    pub(super) all: Vec<Life>,
    stretches: Vec<StretchId>,
}

impl Lives {
    pub(super) fn of(&self, life: &Life) -> &[StretchId] {
        &self.stretches[life.first as usize..][..life.count as usize]
    }

    /// Returns the cost of the cheapest lives of all bytes.
    pub(super) fn cost<const S: usize>(&self, costs: &Stretches<u64, S>) -> i128 {
        let cost = |life| i128::from(cheapest(costs, self.of(life), life.end));
        self.all.iter().map(|life| i128::from(life.bytes) * cost(life)).sum()
    }
}

/// Puts storages together that live alike.
#[derive(Default)]
pub(super) struct Gathering {
    lives: Lives,
    known: HashMap<(Vec<StretchId>, LifetimeEnd), usize>,
}

impl Gathering {
    pub(super) fn add(&mut self, stretches: Vec<StretchId>, end: LifetimeEnd, bytes: u64) {
        let number = self.number(stretches, end);
        self.lives.all[number].bytes += bytes;
    }

    /// The number of a life, of which there need not be any bytes.
    pub(super) fn number(&mut self, stretches: Vec<StretchId>, end: LifetimeEnd) -> usize {
        let lives = &mut self.lives;
        *self.known.entry((stretches, end)).or_insert_with_key(|(stretches, _)| {
            let (first, count) = (lives.stretches.len() as u32, stretches.len() as u32);
            lives.stretches.extend(stretches);
            lives.all.push(Life { first, count, end, bytes: 0 });
            lives.all.len() - 1
        })
    }

    pub(super) fn finish(self) -> Lives {
        self.lives
    }
}

/// The cost of the cheapest life per byte and iteration, rounded down.
pub(super) fn cheapest<const S: usize>(
    costs: &Stretches<u64, S>,
    life: &[StretchId],
    end: LifetimeEnd,
) -> u64 {
    let through =
        || life.iter().fold(only(DIRTY), |reached, one| after(&reached, costs.cost(*one)));
    match end {
        LifetimeEnd::Death => u64::either(through()),
        LifetimeEnd::Modified => through()[DIRTY],
        LifetimeEnd::Never => cheapest_cycle(costs, life),
    }
}

/// The cheapest closed walk: an average iteration of any walk costs at least as much as the best
/// cycle of states, which may take up to as many iterations as there are states. A byte that is
/// modified passes through one state in every iteration, so that this is for those that never are.
fn cheapest_cycle<const S: usize>(costs: &Stretches<u64, S>, life: &[StretchId]) -> u64 {
    let mut around: Matrix<u64, S> = std::array::from_fn(only);
    for stretch in life {
        around = product(&around, costs.cost(*stretch));
    }
    // What nothing modifies has had a copy for ever.
    around[DIRTY] = [u64::FORBIDDEN; S];
    let (mut power, mut cheapest) = (around, u64::FORBIDDEN);
    for turns in 1..=S as u64 {
        let closed = u64::either(std::array::from_fn::<_, S, _>(|state| power[state][state]));
        cheapest = cheapest.min(closed / turns);
        power = product(&power, &around);
    }
    cheapest
}

/// Returns costs that allow one state, at no cost.
pub(super) fn only<C: Cost, const S: usize>(state: usize) -> [C; S] {
    std::array::from_fn(|one| if one == state { C::NOTHING } else { C::FORBIDDEN })
}

/// Spreads the bytes of lives over their ways, by what these cost.
#[derive(Default)]
pub(super) struct Spreading<const S: usize> {
    /// Costs of reaching each state along one life.
    reached: Vec<[Warm; S]>,
}

impl<const S: usize> Spreading<S> {
    /// Adds a life's bytes to the ways of its stretches.
    pub(super) fn spread(
        &mut self,
        costs: &Stretches<Warm, S>,
        life: &[StretchId],
        (end, bytes): (LifetimeEnd, f64),
        to: &mut [Matrix<f64, S>],
    ) {
        match end {
            LifetimeEnd::Death => {
                let all = self.cost(costs, life, end);
                self.back(costs, life, ([Warm::NOTHING; S], all), bytes, to);
            }
            LifetimeEnd::Modified => {
                let all = self.cost(costs, life, end);
                self.back(costs, life, (only(DIRTY), all), bytes, to);
            }
            LifetimeEnd::Never => {
                let around = self.around(costs, life);
                let all = Warm::either(around);
                for (state, cost) in around.into_iter().enumerate() {
                    let share = cost.share(all);
                    if share > 0.0 {
                        self.walk(costs, life, state);
                        self.back(costs, life, (only(state), cost), share * bytes, to);
                    }
                }
            }
        }
    }

    /// Returns the cost of a byte's life, all its ways together.
    pub(super) fn cost(
        &mut self,
        costs: &Stretches<Warm, S>,
        life: &[StretchId],
        end: LifetimeEnd,
    ) -> Warm {
        match end {
            LifetimeEnd::Death => Warm::either(*self.walk(costs, life, DIRTY)),
            LifetimeEnd::Modified => self.walk(costs, life, DIRTY)[DIRTY],
            LifetimeEnd::Never => Warm::either(self.around(costs, life)),
        }
    }

    /// Returns the costs of a closed walk from each state; what nothing modifies has had a copy for
    /// ever.
    fn around(&mut self, costs: &Stretches<Warm, S>, life: &[StretchId]) -> [Warm; S] {
        std::array::from_fn(|state| match state {
            DIRTY => Warm::FORBIDDEN,
            _ => self.walk(costs, life, state)[state],
        })
    }

    fn walk(&mut self, costs: &Stretches<Warm, S>, life: &[StretchId], from: usize) -> &[Warm; S] {
        self.reached.clear();
        self.reached.push(only(from));
        for (index, stretch) in life.iter().enumerate() {
            self.reached.push(after(&self.reached[index], costs.cost(*stretch)));
        }
        &self.reached[life.len()]
    }

    /// Walks back along the walk: what each way of each stretch has of all ways.
    fn back(
        &self,
        costs: &Stretches<Warm, S>,
        life: &[StretchId],
        (mut left, all): ([Warm; S], Warm),
        bytes: f64,
        to: &mut [Matrix<f64, S>],
    ) {
        for (reached, stretch) in self.reached.iter().zip(life).rev() {
            let cost = costs.cost(*stretch);
            let to = &mut to[*stretch as usize];
            for from in 0..S {
                for by in 0..S {
                    let way = reached[from].plus(cost[from][by]).plus(left[by]);
                    to[from][by] += bytes * way.share(all);
                }
            }
            left = before(cost, &left);
        }
    }
}
