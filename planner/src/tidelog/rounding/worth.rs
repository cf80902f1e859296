//! What it is worth, by the relaxation's prices, that a storage is out in a period.

use crate::bound::Prices;
use crate::cost::Machine;
use crate::lifetime::{ContentVersion, Lifetimes, Period, PeriodEnd};
use crate::trace::{Identity, Trace};

/// A storage smaller than one part in this many of the capacity is left where it is.
const SMALL_PARTS: u64 = 1 << 14;

/// A period in which a storage may be out.
#[derive(Clone, Copy, Debug)]
pub(super) struct AbsencePeriod {
    pub(super) period: Period,
    /// What a byte gains by it: below zero where staying is better, as far as there is room.
    gain: i64,
    /// Whether a copy of the same contents is expected to be there.
    pub(super) clean: bool,
}

/// Prices along two iterations of ops, behind one that they come from.
pub(super) struct Worth {
    ops: u32,
    /// What a byte has paid that was in memory until an op.
    memory: Vec<i64>,
    /// What reading a byte before an op costs, if it is read at the best moment and kept.
    read: Vec<i64>,
    /// What writing a byte from an op on costs, if it is kept until the best moment.
    write: Vec<i64>,
}

impl Worth {
    pub(super) fn new(trace: &Trace, instants: &[u32], prices: &Prices) -> Self {
        let ops = trace.ops.len() as u32;
        let (count, length) = (instants.len(), 3 * ops as usize);
        let (mut memory, mut read, mut write) = (vec![0], Vec::new(), Vec::new());
        let write_penalty = signed(prices.write_penalty);
        for at in 0..3 * ops {
            let interval = (instants.partition_point(|op| *op <= at % ops) + count - 1) % count;
            let is_instant = instants[interval] == at % ops;
            let paid = if is_instant { signed(prices.memory[interval]) } else { 0 };
            memory.push(memory[at as usize] + paid);
            read.push(signed(prices.read[interval][0]));
            write.push(signed(prices.write[interval][0]) + write_penalty);
        }
        for at in 1..length {
            read[at] = read[at].min(read[at - 1] + memory[at] - memory[at - 1]);
        }
        for at in (0..length - 1).rev() {
            write[at] = write[at].min(write[at + 1] + memory[at + 1] - memory[at]);
        }
        Self { ops, memory, read, write }
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
            // A constant that nothing uses: whatever is done with it costs nothing more in each
            // iteration.
            let is_known =
                period.end == PeriodEnd::Use || period.version != ContentVersion::Constant;
            moves && is_known && period.size.0 > small && period.from < period.to
        };
        let mut periods: Vec<Period> =
            lifetimes.periods.iter().filter(may_leave).copied().collect();
        periods.sort_by_key(|period| (period.storage, period.version, period.order()));
        let alike = periods.chunk_by(|a, b| (a.storage, a.version) == (b.storage, b.version));
        let mut choices: Vec<AbsencePeriod> =
            alike.flat_map(|periods| self.chain(periods)).collect();
        choices
            .sort_by_key(|one| (std::cmp::Reverse(one.gain), one.period.storage, one.period.from));
        choices
    }

    /// The periods of one contents, in their order: a copy that is made in one serves those after
    /// it.
    fn chain(&self, periods: &[Period]) -> Vec<AbsencePeriod> {
        // Of what comes after a period: its cost with a copy, and what it costs more without one.
        let (mut with, mut without) = (0, 0);
        let mut copies = vec![0; periods.len()];
        for (index, period) in periods.iter().enumerate().rev() {
            copies[index] = without - with;
            let away = self.stay(period).min(self.back(period));
            without = (without + self.stay(period)).min(with + self.out(period) + away);
            with += away;
        }
        let mut clean = periods.iter().any(|one| one.version == ContentVersion::Constant);
        let choice = |(period, copy): (&Period, i64)| {
            let written = if clean { 0 } else { self.out(period) - copy };
            let gain = self.stay(period) - self.back(period) - written;
            let choice = AbsencePeriod { period: *period, gain, clean };
            clean |= gain > 0;
            choice
        };
        periods.iter().zip(copies).map(choice).collect()
    }

    fn stay(&self, period: &Period) -> i64 {
        self.memory[(period.to + self.ops) as usize]
            - self.memory[(period.from + self.ops) as usize]
    }

    fn back(&self, period: &Period) -> i64 {
        match period.end {
            PeriodEnd::Use => self.read[(period.to + self.ops) as usize],
            PeriodEnd::Unused => 0,
        }
    }

    fn out(&self, period: &Period) -> i64 {
        self.write[(period.from + self.ops) as usize]
    }
}

fn signed(price: u64) -> i64 {
    i64::try_from(price).unwrap_or(i64::MAX / 4)
}
