//! The cheapest life of one byte under given prices.
//!
//! At an instant a byte is in memory without a valid copy (*dirty*), in memory beside its copy on a
//! tier (*clean*), or on the tier only (*out*). Between two instants it may be written, read, both or
//! neither; a use in between brings it in, a modification makes its copy worthless.

use std::ops::Add;

/// Where bytes can go: SSDs, and host memory where the machine has it.
pub(super) const TIERS_MAX: usize = 2;

/// Dirty, then clean and out per tier.
pub(super) const STATES: usize = 1 + 2 * TIERS_MAX;

const DIRTY: usize = 0;

const fn clean(tier: usize) -> usize {
    1 + 2 * tier
}

const fn out(tier: usize) -> usize {
    2 + 2 * tier
}

/// What a byte's life costs: whole numbers to certify, floating point to search.
pub(super) trait Cost: Copy + Add<Output = Self> + PartialOrd {
    const ZERO: Self;
    /// More than any life costs, and far enough from overflow to be added up.
    const FORBIDDEN: Self;
}

impl Cost for u64 {
    const ZERO: Self = 0;
    const FORBIDDEN: Self = 1 << 60;
}

impl Cost for f64 {
    const ZERO: Self = 0.0;
    const FORBIDDEN: Self = 1e30;
}

/// What an interval holds for a storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Event {
    /// No use.
    Idle,
    /// It is read.
    Read,
    /// It is changed, and perhaps read.
    Modify,
}

/// One interval of a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Step {
    pub(super) event: Event,
    /// The op at the instant that the interval begins with uses it: it is in memory then.
    pub(super) held: bool,
}

/// How a life begins and ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Shape {
    /// Made in the first step, gone in the last. `at_instant`: it is there at the first step's instant.
    Mortal { at_instant: bool },
    /// Alive in every iteration; the steps are one of them.
    Global { constant: bool },
}

/// What is paid in one interval and at the instant it begins with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rates<C> {
    pub(super) memory: C,
    pub(super) read: [C; TIERS_MAX],
    pub(super) write: [C; TIERS_MAX],
    /// A byte that is out, on the tier.
    pub(super) room: [C; TIERS_MAX],
}

/// What one byte of a life moves: the gradient of its cost.
pub(super) trait Sink {
    fn memory(&mut self, interval: usize);
    fn read(&mut self, interval: usize, tier: usize);
    fn write(&mut self, interval: usize, tier: usize);
    fn room(&mut self, interval: usize, tier: usize);
}

/// What a transition moves.
#[derive(Clone, Copy, Debug, Default)]
struct Move {
    from: u8,
    read: bool,
    /// The tier written to, plus one.
    write: u8,
}

type Values<C> = [C; STATES];

/// Works out lives on tables that it keeps.
#[derive(Default)]
pub(super) struct Lives {
    moves: Vec<[Move; STATES]>,
}

impl Lives {
    /// The cost of the cheapest life per byte and iteration, rounded down for whole numbers.
    /// `rates` gives those of a step, counted from the first.
    pub(super) fn cheapest<C: Cost + Mean>(
        &mut self,
        tiers: usize,
        shape: Shape,
        steps: &[Step],
        rates: &impl Fn(usize) -> Rates<C>,
        sink: Option<&mut impl Sink>,
    ) -> C {
        match shape {
            Shape::Mortal { at_instant } => {
                let mut start = [C::FORBIDDEN; STATES];
                start[DIRTY] = C::ZERO;
                let (cost, last) = self.mortal(tiers, at_instant, start, steps, rates);
                if let Some(sink) = sink {
                    self.trace_back(steps.len(), last, at_instant, sink);
                }
                cost
            }
            Shape::Global { constant } => self.global(tiers, constant, steps, rates, sink),
        }
    }

    fn mortal<C: Cost>(
        &mut self,
        tiers: usize,
        at_instant: bool,
        start: Values<C>,
        steps: &[Step],
        rates: &impl Fn(usize) -> Rates<C>,
    ) -> (C, usize) {
        let mut values = start;
        self.moves.clear();
        for (index, step) in steps.iter().enumerate() {
            let rate = rates(index);
            if index > 0 || at_instant {
                pay_instant(tiers, &mut values, *step, &rate);
            }
            let event = if index == 0 { Event::Modify } else { step.event };
            values = self.step(tiers, &values, event, &rate);
        }
        best(&values)
    }

    /// The cheapest closed walk: an average iteration of any walk costs at least as much as the best
    /// cycle of states, which may take up to as many iterations as there are states.
    fn global<C: Cost + Mean>(
        &mut self,
        tiers: usize,
        constant: bool,
        steps: &[Step],
        rates: &impl Fn(usize) -> Rates<C>,
        sink: Option<&mut impl Sink>,
    ) -> C {
        let states = 1 + 2 * tiers;
        let mut around = [[C::FORBIDDEN; STATES]; STATES];
        let from_states = if constant { 1..states } else { 0..states };
        for from in from_states {
            let mut start = [C::FORBIDDEN; STATES];
            start[from] = C::ZERO;
            let (_, values) = self.walk(tiers, start, steps, rates);
            around[from] = values;
        }
        let mut power = around;
        let (mut cheapest, mut at) = (C::FORBIDDEN, 0);
        for turns in 1..=states as u64 {
            for (state, row) in power.iter().enumerate().take(states) {
                let mean = row[state].mean(turns);
                if mean < cheapest {
                    (cheapest, at) = (mean, state);
                }
            }
            power = product(&power, &around);
        }
        if let Some(sink) = sink {
            let mut start = [C::FORBIDDEN; STATES];
            start[at] = C::ZERO;
            self.walk(tiers, start, steps, rates);
            self.trace_back(steps.len(), at, true, sink);
        }
        cheapest
    }

    fn walk<C: Cost>(
        &mut self,
        tiers: usize,
        start: Values<C>,
        steps: &[Step],
        rates: &impl Fn(usize) -> Rates<C>,
    ) -> (C, Values<C>) {
        let mut values = start;
        self.moves.clear();
        for (index, step) in steps.iter().enumerate() {
            let rate = rates(index);
            pay_instant(tiers, &mut values, *step, &rate);
            values = self.step(tiers, &values, step.event, &rate);
        }
        (best(&values).0, values)
    }

    /// Through one interval: the cheapest way into each state at its end.
    fn step<C: Cost>(
        &mut self,
        tiers: usize,
        before: &Values<C>,
        event: Event,
        rate: &Rates<C>,
    ) -> Values<C> {
        let mut after = [C::FORBIDDEN; STATES];
        let mut moves = [Move::default(); STATES];
        let mut offer = |to: usize, cost: C, from: usize, read: bool, write: usize| {
            if cost < after[to] {
                after[to] = cost;
                moves[to] = Move { from: from as u8, read, write: write as u8 };
            }
        };
        // In memory in the course of the interval, at the least cost, and from where.
        let mut within = (before[DIRTY], DIRTY, false);
        for tier in 0..tiers {
            let fetched = before[out(tier)] + rate.read[tier];
            for candidate in [(before[clean(tier)], clean(tier), false), (fetched, out(tier), true)]
            {
                if candidate.0 < within.0 {
                    within = candidate;
                }
            }
        }
        if event == Event::Modify {
            let (cost, from, read) = within;
            offer(DIRTY, cost, from, read, 0);
            for tier in 0..tiers {
                let written = cost + rate.write[tier];
                offer(clean(tier), written, from, read, tier + 1);
                offer(out(tier), written, from, read, tier + 1);
            }
        } else {
            offer(DIRTY, before[DIRTY], DIRTY, false, 0);
            for tier in 0..tiers {
                let fetched = before[out(tier)] + rate.read[tier];
                let written = within.0 + rate.write[tier];
                offer(clean(tier), before[clean(tier)], clean(tier), false, 0);
                offer(clean(tier), fetched, out(tier), true, 0);
                offer(clean(tier), written, within.1, within.2, tier + 1);
                offer(out(tier), before[clean(tier)], clean(tier), false, 0);
                if event == Event::Read {
                    offer(out(tier), fetched, out(tier), true, 0);
                } else {
                    offer(out(tier), before[out(tier)], out(tier), false, 0);
                }
                offer(out(tier), written, within.1, within.2, tier + 1);
            }
        }
        self.moves.push(moves);
        after
    }

    /// Walks the kept tables back and tells what the cheapest life moves. `first`: whether the first
    /// step's instant is one of its own.
    fn trace_back(&self, steps: usize, last: usize, first: bool, sink: &mut impl Sink) {
        let mut state = last;
        for index in (0..steps).rev() {
            let taken = self.moves[index][state];
            let from = taken.from as usize;
            if taken.read {
                sink.read(index, (from - 1) / 2);
            }
            if taken.write > 0 {
                sink.write(index, taken.write as usize - 1);
            }
            if index > 0 || first {
                if from != DIRTY && from.is_multiple_of(2) {
                    sink.room(index, (from - 1) / 2);
                } else {
                    sink.memory(index);
                }
            }
            state = from;
        }
    }
}

/// What a cycle of several iterations costs in each, never rounded up.
pub(super) trait Mean {
    fn mean(self, turns: u64) -> Self;
}

impl Mean for u64 {
    fn mean(self, turns: u64) -> Self {
        self / turns
    }
}

impl Mean for f64 {
    #[allow(clippy::cast_precision_loss, reason = "a handful of turns")]
    fn mean(self, turns: u64) -> Self {
        self / turns as f64
    }
}

fn pay_instant<C: Cost>(tiers: usize, values: &mut Values<C>, step: Step, rate: &Rates<C>) {
    values[DIRTY] = values[DIRTY] + rate.memory;
    for tier in 0..tiers {
        values[clean(tier)] = values[clean(tier)] + rate.memory;
        values[out(tier)] =
            if step.held { C::FORBIDDEN } else { values[out(tier)] + rate.room[tier] };
    }
}

fn best<C: Cost>(values: &Values<C>) -> (C, usize) {
    let mut found = (values[0], 0);
    for (state, value) in values.iter().enumerate() {
        if *value < found.0 {
            found = (*value, state);
        }
    }
    found
}

fn product<C: Cost>(
    left: &[Values<C>; STATES],
    right: &[Values<C>; STATES],
) -> [Values<C>; STATES] {
    let mut result = [[C::FORBIDDEN; STATES]; STATES];
    for (row, entries) in result.iter_mut().zip(left) {
        for (middle, first) in entries.iter().enumerate() {
            for (entry, second) in row.iter_mut().zip(&right[middle]) {
                let sum = *first + *second;
                if sum < *entry {
                    *entry = sum;
                }
            }
        }
    }
    result
}
