//! Worth of a storage's absence in a period, by the relaxation's prices.

use crate::bound::Prices;
use crate::cost::Machine;
use crate::lifetime::{ContentVersion, Lifetimes, Period, PeriodEnd};
use crate::migration::Target;
use crate::trace::{Identity, Trace};

/// A storage smaller than one part in this many of the capacity is left where it is.
const SMALL_PARTS: u64 = 1 << 14;

/// A period in which a storage may be out, and where it may be then.
#[derive(Clone, Copy, Debug)]
pub(super) struct AbsencePeriod {
    pub(super) period: Period,
    pub(super) target: Target,
    /// Gain of a byte by it: below zero where staying is better, as far as there is room.
    gain: i64,
    /// True if a copy of the same contents is expected to be there.
    pub(super) clean: bool,
    /// Number of the period: only one of those with the same number can be chosen.
    pub(super) number: u32,
    /// Number of the contents: their one copy is in one place.
    pub(super) contents: u32,
    /// The ops from the first of the contents' periods to the end of the last, unrolled: how long
    /// host memory holds the copy at most.
    pub(super) held: (u32, u32),
}

/// Prices along two iterations of ops, behind one that they come from.
pub(super) struct Worth {
    ops: u32,
    /// Price that a byte in memory has paid until each op.
    memory: Vec<i64>,
    tiers: Vec<TierWorth>,
}

/// Costs of moving to a tier and back.
struct TierWorth {
    target: Target,
    /// Price that a byte on the tier has paid until each op.
    room: Vec<i64>,
    /// Cost of reading a byte before an op, beside its room until then, if it is read at the best
    /// moment and kept.
    read: Vec<i64>,
    /// Cost of writing a byte from an op on, beside its room from then on, if it is kept until the
    /// best moment.
    write: Vec<i64>,
}

impl Worth {
    pub(super) fn new(trace: &Trace, machine: &Machine, instants: &[u32], prices: &Prices) -> Self {
        let ops = trace.ops.len() as u32;
        let (count, length) = (instants.len(), 3 * ops);
        let interval_of =
            |at: u32| (instants.partition_point(|op| *op <= at % ops) + count - 1) % count;
        // What is paid at instants, summed up.
        let paid = |price: &[u64]| -> Vec<i64> {
            let mut sum = vec![0];
            for at in 0..length {
                let interval = interval_of(at);
                let is_instant = instants[interval] == at % ops;
                sum.push(sum[at as usize] + if is_instant { signed(price[interval]) } else { 0 });
            }
            sum
        };
        let memory = paid(&prices.memory);
        let has_host = machine.host.is_some_and(|host| host.memory.0 > 0);
        let targets = [Some(Target::Ssd), has_host.then_some(Target::Host)];
        let tier = |(tier, target)| {
            let (room, write_penalty) = match target {
                Target::Ssd => (vec![0; memory.len()], signed(prices.write_penalty)),
                Target::Host => (paid(&prices.room), 0),
            };
            let price = |of: &[[u64; 2]], at: u32| signed(of[interval_of(at)][tier]);
            let mut read: Vec<i64> = (0..length).map(|at| price(&prices.read, at)).collect();
            let mut write: Vec<i64> =
                (0..length).map(|at| price(&prices.write, at) + write_penalty).collect();
            // In memory rather than on the tier from one op to the next.
            let kept = |at: usize| memory[at + 1] - memory[at] - (room[at + 1] - room[at]);
            for at in 1..read.len() {
                read[at] = read[at].min(read[at - 1] + kept(at - 1));
            }
            for at in (0..write.len() - 1).rev() {
                write[at] = write[at].min(write[at + 1] + kept(at));
            }
            TierWorth { target, room, read, write }
        };
        let tiers = targets.into_iter().flatten().enumerate().map(tier).collect();
        Self { ops, memory, tiers }
    }

    /// All periods in which a storage may be out, by what that gains.
    pub(super) fn choices(
        &self,
        trace: &Trace,
        machine: &Machine,
        lifetimes: &Lifetimes,
    ) -> Vec<AbsencePeriod> {
        let small = machine.capacity().0 / SMALL_PARTS;
        let may_leave = |period: &&Period| {
            let storage = trace.storage(period.storage);
            let moves = storage.movable && storage.identity != Identity::Arrival;
            moves && period.size.0 > small && period.from < period.to
        };
        let mut periods: Vec<Period> =
            lifetimes.periods.iter().filter(may_leave).copied().collect();
        periods.sort_by_key(|period| (period.storage, period.version, period.order()));
        let alike = periods.chunk_by(|a, b| (a.storage, a.version) == (b.storage, b.version));
        let (mut choices, mut number) = (Vec::new(), 0);
        for (contents, periods) in alike.enumerate() {
            for tier in &self.tiers {
                // A copy that is made once is on the SSDs for ever.
                if tier.target == Target::Ssd || periods[0].version != ContentVersion::Constant {
                    choices.extend(self.chain(tier, periods, (number, contents as u32)));
                }
            }
            number += periods.len() as u32;
        }
        choices.sort_by_key(|one| {
            let place = (one.period.storage, one.period.from, one.target == Target::Host);
            (std::cmp::Reverse(one.gain), place)
        });
        choices
    }

    /// The periods of one contents, in their order: a copy that is made in one serves those after
    /// it.
    fn chain(
        &self,
        tier: &TierWorth,
        periods: &[Period],
        (first, contents): (u32, u32),
    ) -> Vec<AbsencePeriod> {
        // Of what comes after a period: its cost with a copy, and what it costs more without one.
        let (mut with, mut without) = (0, 0);
        let mut copies = vec![0; periods.len()];
        for (index, period) in periods.iter().enumerate().rev() {
            copies[index] = without - with;
            let away = self.stay(period).min(self.away(tier, period));
            without = (without + self.stay(period)).min(with + self.out(tier, period) + away);
            with += away;
        }
        let last = periods[periods.len() - 1];
        let around = if last.carried && !periods[0].carried { self.ops } else { 0 };
        let held = (periods[0].from, (last.to + around).min(periods[0].from + self.ops));
        let mut clean = periods.iter().any(|one| one.version == ContentVersion::Constant);
        let choice = |(index, (period, copy)): (usize, (&Period, i64))| {
            let written = if clean { 0 } else { self.out(tier, period) - copy };
            let gain = self.stay(period) - self.away(tier, period) - written;
            let number = first + index as u32;
            let (period, target) = (*period, tier.target);
            let choice = AbsencePeriod { period, target, gain, clean, number, contents, held };
            clean |= gain > 0;
            choice
        };
        periods.iter().zip(copies).enumerate().map(choice).collect()
    }

    fn at(&self, op: u32) -> usize {
        (op + self.ops) as usize
    }

    fn stay(&self, period: &Period) -> i64 {
        self.memory[self.at(period.to)] - self.memory[self.at(period.from)]
    }

    /// Returns the worth of a period on the tier all the time, and back at the end if it is used
    /// then.
    fn away(&self, tier: &TierWorth, period: &Period) -> i64 {
        let room = tier.room[self.at(period.to)] - tier.room[self.at(period.from)];
        match period.end {
            PeriodEnd::Use => room + tier.read[self.at(period.to)],
            PeriodEnd::Unused => room,
        }
    }

    fn out(&self, tier: &TierWorth, period: &Period) -> i64 {
        tier.write[self.at(period.from)]
    }
}

fn signed(price: u64) -> i64 {
    i64::try_from(price).unwrap_or(i64::MAX / 4)
}
