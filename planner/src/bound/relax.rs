//! The relaxation: which bytes must be where, and what prices prove about the time.

use super::line::IntervalLine;
use super::lives::{Gathering, Lives};
use super::shared::SharedLink;
use super::skips::{LivesOfTrace, Skippable, Skips, may_be_left_out};
use super::states::{IntervalPrices, TIERS_MAX, states};
use super::stretches::{Layout, Stretches};
use crate::cost::{Machine, Timeline};
use crate::lifetime::Lifetimes;
use crate::simulate::CopyRates;
use crate::trace::Trace;
use crate::units::{Bandwidth, Bytes, Nanos};
use serde::{Deserialize, Serialize};

/// Prices are whole multiples of this part of a nanosecond per byte.
const PRICE_BITS: u32 = 32;

/// No byte is worth more than this much: sums over a life stay far below what a word holds.
const PRICE_MAX: u64 = 1 << 44;

/// Prices of the resources of an iteration, in 2^-32 ns per byte.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prices {
    /// A byte in memory at each instant.
    pub memory: Vec<u64>,
    /// A byte read from SSDs, and from host memory, in each interval. Where a link has lower rates
    /// when bytes go both ways at once: this, and a part of the other way's price.
    pub read: Vec<[u64; TIERS_MAX]>,
    /// A byte written to them.
    pub write: Vec<[u64; TIERS_MAX]>,
    /// A byte kept in host memory at each instant.
    pub room: Vec<u64>,
    /// Penalty of every byte written to SSDs: with it, time plus write penalty times bytes written
    /// is bounded.
    pub write_penalty: u64,
}

/// Prices that prove nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPrices {
    /// Made for other instants.
    #[error("prices for {found} instants, the relaxation has {expected}")]
    Count {
        /// Number of prices.
        found: usize,
        /// Number that is needed.
        expected: usize,
    },
    /// The links of an interval cost more than its time is worth.
    #[error("interval {interval}: transfers cost more than the time that they take")]
    Link {
        /// Index of the interval.
        interval: usize,
    },
    /// A price that no sum should hold.
    #[error("interval {interval}: a price is beyond 2^44")]
    TooHigh {
        /// Index of the interval.
        interval: usize,
    },
}

/// The relaxed problem of one trace on one machine.
#[derive(Clone, Debug)]
pub struct Relaxation {
    /// Number of instants that was asked for.
    wanted: u32,
    /// The op that begins at each instant.
    instants: Vec<u32>,
    /// Least duration of each interval, without the ops that may be left out.
    durations: Vec<u64>,
    /// Room for storages that can move at each instant; below zero where nothing helps.
    pub(super) room: Vec<i64>,
    pub(super) lives: Lives,
    pub(super) skips: Skips,
    pub(super) tiers: Vec<Tier>,
}

/// A place to put bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tier {
    pub(super) read: Bandwidth,
    pub(super) write: Bandwidth,
    pub(super) memory: Option<Bytes>,
    pub(super) link: SharedLink,
}

impl Relaxation {
    /// The relaxation with about `instants` instants, closer together where more moves.
    pub fn new(trace: &Trace, machine: &Machine, instants: u32) -> Self {
        Self::with_skips(trace, machine, instants, &[])
    }

    /// Relaxes a step where an iteration may leave ops out, whichever it likes.
    pub fn with_skips(
        trace: &Trace,
        machine: &Machine,
        instants: u32,
        groups: &[Skippable],
    ) -> Self {
        let lifetimes = Lifetimes::of(trace);
        let timeline = Timeline::of(trace);
        let wanted = instants;
        let left_out = may_be_left_out(trace, groups);
        // An op that may be left out begins at no instant.
        let instants = choose_instants(&lifetimes, &timeline, machine, (instants, &left_out));
        let count = instants.len();
        let cut =
            IntervalLine { ops: timeline.ops(), instants: &instants, layout: Layout { count } };
        let mut durations = vec![0; count];
        for (op, recorded) in trace.ops.iter().enumerate().filter(|(op, _)| !left_out[*op]) {
            durations[cut.interval(op as u32) % count] += recorded.duration.0;
        }
        let mut room = vec![signed(machine.capacity().0); count];
        let mut gathered = Gathering::default();
        let mut lives = LivesOfTrace::of(trace, &lifetimes, &left_out);
        let skips = Skips::of(trace, groups, &cut, &mut lives, &mut gathered);
        for (index, storage) in trace.storages.iter().enumerate() {
            let life = lives.lifetimes[index];
            if lives.is_optional[index] {
                continue;
            }
            if !storage.movable {
                for at in cut.instants_of(life) {
                    room[at] -= signed(storage.size.0);
                }
            } else if let Some((stretches, end)) = cut.stretches(life, &lives.uses[index]) {
                gathered.add(stretches, end, storage.size.0);
            }
        }
        let link = SharedLink::default();
        let ssd = Tier { read: machine.ssd.read, write: machine.ssd.write, memory: None, link };
        let host = machine.host.map(|host| Tier {
            read: host.read,
            write: host.write,
            memory: Some(host.memory),
            link,
        });
        Self {
            wanted,
            durations,
            room,
            lives: gathered.finish(),
            skips,
            tiers: [Some(ssd), host].into_iter().flatten().collect(),
            instants,
        }
    }

    /// Gives the link to host memory, if there is one, these rates when bytes go both ways at once.
    #[must_use]
    pub fn with_both_ways(mut self, both: Option<CopyRates>) -> Self {
        if let (Some(both), Some(host)) = (both, self.tiers.get_mut(1)) {
            host.link = SharedLink::of(CopyRates { out: host.write, back: host.read }, both);
        }
        self
    }

    /// Returns the number of instants that was asked for: with the trace and the machine, what it
    /// is made of.
    pub fn wanted(&self) -> u32 {
        self.wanted
    }

    /// The ops that begin at the instants.
    pub fn instants(&self) -> &[u32] {
        &self.instants
    }

    /// The least length of each interval, without the ops that may be left out.
    pub(super) fn durations(&self) -> &[u64] {
        &self.durations
    }

    /// Returns the bound that these prices prove: the average iteration of any run takes at least
    /// this long.
    pub fn value(&self, prices: &Prices) -> Result<Nanos, BadPrices> {
        let (mut value, rates, left) = self.priced(prices)?;
        value += match self.tiers.len() {
            1 => self.cost_of_lives::<{ states(1) }>(&rates, &left),
            _ => self.cost_of_lives::<{ states(2) }>(&rates, &left),
        };
        Ok(Nanos(u64::try_from(value >> PRICE_BITS).unwrap_or(0)))
    }

    /// Returns the gain of leaving each group of ops out at these prices, in 2^-32 ns: where it is
    /// more than nothing, they are better left out.
    pub fn saved_by_leaving_out(&self, prices: &Prices) -> Result<Vec<i128>, BadPrices> {
        let (_, rates, left) = self.priced(prices)?;
        let both = match self.tiers.len() {
            1 => self.skips.both(&self.lives, &priced::<{ states(1) }>(&rates), &left),
            _ => self.skips.both(&self.lives, &priced::<{ states(2) }>(&rates), &left),
        };
        Ok(both.into_iter().map(|[run, left_out]| run - left_out).collect())
    }

    /// Prices time and memory, bytes, and a nanosecond of each interval beside its links.
    #[allow(clippy::type_complexity, reason = "what a value is made of")]
    fn priced(
        &self,
        prices: &Prices,
    ) -> Result<(i128, Vec<IntervalPrices<u64>>, Vec<i128>), BadPrices> {
        let count = self.instants.len();
        let lengths =
            [prices.memory.len(), prices.read.len(), prices.write.len(), prices.room.len()];
        if let Some(&found) = lengths.iter().find(|length| **length != count) {
            return Err(BadPrices::Count { found, expected: count });
        }
        let mut value: i128 = 0;
        let (mut rates, mut worth) = (Vec::with_capacity(count), Vec::with_capacity(count));
        for interval in 0..count {
            let rate = Self::rates(prices, interval)?;
            let left = self.time_left(&rate).ok_or(BadPrices::Link { interval })?;
            value += i128::from(self.durations[interval]) * left / 1_000_000_000;
            value -= i128::from(self.room[interval]) * i128::from(rate.memory);
            for (tier, price) in self.tiers.iter().zip(rate.room) {
                value -= i128::from(tier.memory.map_or(0, |bytes| bytes.0)) * i128::from(price);
            }
            worth.push(left);
            let rate = self.rates_of_bytes(rate);
            rates.push(IntervalPrices {
                write: [rate.write[0] + prices.write_penalty, rate.write[1]],
                ..rate
            });
        }
        Ok((value, rates, worth))
    }

    fn cost_of_lives<const S: usize>(&self, rates: &[IntervalPrices<u64>], left: &[i128]) -> i128 {
        let costs = priced::<S>(rates);
        self.lives.cost(&costs) + self.skips.cost(&self.lives, &costs, left)
    }

    fn rates(prices: &Prices, interval: usize) -> Result<IntervalPrices<u64>, BadPrices> {
        let (read, write) = (prices.read[interval], prices.write[interval]);
        // Where the SSDs have room without end, a price for it would prove nothing.
        let room = [0, prices.room[interval]];
        let memory = prices.memory[interval];
        let all = read.iter().chain(&write).chain(&room).chain([&memory]);
        if all.into_iter().chain([&prices.write_penalty]).any(|price| *price > PRICE_MAX) {
            return Err(BadPrices::TooHigh { interval });
        }
        Ok(IntervalPrices { memory, read, write, room })
    }

    /// Returns the prices of bytes where these are the prices of each way of the links.
    fn rates_of_bytes(&self, mut rate: IntervalPrices<u64>) -> IntervalPrices<u64> {
        for (index, tier) in self.tiers.iter().enumerate() {
            let ways = (rate.read[index], rate.write[index]);
            [rate.read[index], rate.write[index]] = tier.link.of_bytes(ways.0, ways.1, PRICE_MAX);
        }
        rate
    }

    /// Returns the links that have lower rates when bytes go both ways at once.
    pub(super) fn links(&self) -> [SharedLink; TIERS_MAX] {
        std::array::from_fn(|tier| {
            self.tiers.get(tier).map_or_else(SharedLink::default, |t| t.link)
        })
    }

    /// The least that an iteration writes to SSDs if it takes at most `time`, as far as prices with
    /// a write penalty prove it: write penalty times bytes is what their bound says beyond the
    /// time.
    pub fn written_at_least(&self, prices: &Prices, time: Nanos) -> Result<Bytes, BadPrices> {
        let beyond = self.value(prices)?.0.saturating_sub(time.0);
        let bytes = (u128::from(beyond) << PRICE_BITS) / u128::from(prices.write_penalty.max(1));
        Ok(Bytes(u64::try_from(bytes).unwrap_or(u64::MAX)))
    }

    /// Returns the worth of a nanosecond of the interval beside its links, times 10^9 times 2^32;
    /// `None` if that is less than nothing.
    fn time_left(&self, rate: &IntervalPrices<u64>) -> Option<i128> {
        let links = self.tiers.iter().enumerate().map(|(index, tier)| {
            i128::from(tier.read.0) * i128::from(rate.read[index])
                + i128::from(tier.write.0) * i128::from(rate.write[index])
        });
        let left = (1_000_000_000i128 << PRICE_BITS) - links.sum::<i128>();
        (left >= 0).then_some(left)
    }

    /// A floating-point price in ns per byte as a whole one that is not larger.
    pub(super) fn whole(price: f64) -> u64 {
        #[allow(
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a power of two; prices are not negative"
        )]
        let whole = (price.max(0.0) * (1u64 << PRICE_BITS) as f64) as u64;
        whole.min(PRICE_MAX)
    }
}

/// Returns the costs of every stretch at these prices of bytes.
fn priced<const S: usize>(rates: &[IntervalPrices<u64>]) -> Stretches<u64, S> {
    let mut costs = Stretches::<u64, S>::new(Layout { count: rates.len() });
    costs.price(rates);
    costs
}

/// Instants at equal shares of the iteration's time and of what its ops touch; each is moved to the
/// op nearby at which most memory is wanted, of those that are not left out.
fn choose_instants(
    lifetimes: &Lifetimes,
    timeline: &Timeline,
    machine: &Machine,
    (count, left_out): (u32, &[bool]),
) -> Vec<u32> {
    let ops = timeline.ops();
    let weight = |op: u32| {
        let time = u128::from(timeline.begin(op + 1).0 - timeline.begin(op).0);
        let touched = machine.ssd.read.time_for(lifetimes.active[op as usize]);
        (time, u128::from(touched.0))
    };
    let totals = (0..ops).map(weight).fold((1, 1), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    let share = |(time, touched): (u128, u128)| {
        (time << 40) / totals.0 * 2 + (touched << 40) / totals.1 + (1u128 << 40) / u128::from(ops)
    };
    let whole: u128 = (0..ops).map(|op| share(weight(op))).sum();
    let part = (whole / u128::from(count.min(ops))).max(1);
    let mut chosen: Vec<u32> = Vec::new();
    let (mut sum, mut best) = (0u128, None);
    let memory = |op: u32| lifetimes.memory[op as usize];
    for op in 0..ops {
        if !left_out[op as usize] && best.is_none_or(|best| memory(op) > memory(best)) {
            best = Some(op);
        }
        sum += share(weight(op));
        if sum >= part * (chosen.len() as u128 + 1) || op + 1 == ops {
            chosen.extend(best.take());
        }
    }
    chosen
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
