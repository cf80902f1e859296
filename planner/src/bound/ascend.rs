//! The search for prices: the dual function climbs along its slope, with step sizes of their own
//! for every price (Adam), from the prices of a coarser round.
//!
//! The function has a corner wherever two lives cost the same, and near its top they all do: the
//! slope there says little. So it is smoothed, by a temperature that falls from the beginning of a
//! round to its end.
//!
//! Floating point is allowed here: what comes out is rounded to whole prices, and only what those
//! prove counts.

#![allow(clippy::cast_precision_loss, reason = "the search may be inexact, see above")]

use super::moved::{Flow, IntervalValues, KINDS, MEMORY, MovedBytes, READ, ROOM, WRITE};
use super::relax::{Prices, Relaxation};
use super::shared::prices_of_bytes;
use super::states::{IntervalPrices, TIERS_MAX, states};
use crate::units::Nanos;

/// The first step of a round, as a part of a price's range, and the share of it that is left at its
/// end.
const STEPS: [f64; 2] = [0.05, 0.003];

/// Step sizes where bytes alone count: most of memory's prices are nothing then, and the others
/// high.
const STEPS_FOR_BYTES: [f64; 2] = [0.5, 0.01];

/// Interval, in steps, at which the prices are rounded and checked as a certificate.
const CERTIFY_EVERY: u32 = 20;

/// The temperature at a round's beginning and end, as a part of what writing a byte takes.
const FIRST_WARMTH: f64 = 0.01;
const LAST_WARMTH: f64 = 0.00005;

/// Share of the slopes before (and of their squares) that counts in the next step.
const KEEP: f64 = 0.9;
const KEEP_SQUARE: f64 = 0.98;

#[derive(Debug)]
pub(super) struct DualAscent {
    /// Links as shares of the time that they take, memory in its own unit.
    point: IntervalValues,
    /// ns per byte that one unit of a memory price stands for.
    unit: f64,
    instants: Vec<u32>,
    aim: Aim,
    /// The step that comes next, and how far each price went in those before.
    step: u32,
    strides: Vec<[Stride; KINDS]>,
    /// The best certificate found so far, and where.
    best: (Nanos, Prices, IntervalValues),
}

/// Goal of the search.
#[derive(Clone, Copy, Debug)]
pub(super) struct Aim {
    /// ns per byte written to SSDs, on top of the prices.
    pub(super) write_penalty: f64,
    /// True if the goal is what memory is worth, and not the links' time.
    pub(super) bytes: bool,
}

impl Aim {
    /// Returns the cost of a byte out of memory relative to that of moving it: how far prices will
    /// go.
    fn beside(self) -> f64 {
        if self.bytes { self.write_penalty } else { 0.0 }
    }

    fn steps(self) -> [f64; 2] {
        if self.bytes { STEPS_FOR_BYTES } else { STEPS }
    }
}

impl DualAscent {
    /// Starts with the prices of a coarser round where there is one.
    pub(super) fn new(relaxation: &Relaxation, coarse: Option<&Self>, aim: Aim) -> Self {
        let instants = relaxation.instants().to_vec();
        let round_trip =
            1e9 / relaxation.tiers[0].read.0 as f64 + 1e9 / relaxation.tiers[0].write.0 as f64;
        let unit = (round_trip + aim.beside()) * 40.0 / instants.len() as f64;
        let point: IntervalValues = instants
            .iter()
            .map(|op| {
                let Some(coarse) = coarse else {
                    let mut start = [0.0; KINDS];
                    start[READ] = 0.3;
                    start[WRITE] = 0.3;
                    return start;
                };
                let at = coarse.instants.partition_point(|known| known <= op);
                coarse.point[(at + coarse.point.len() - 1) % coarse.point.len()]
            })
            .collect();
        let strides = vec![[Stride::default(); KINDS]; point.len()];
        let nothing = vec![[0.0; KINDS]; point.len()];
        let best = (Nanos(0), Prices::default(), nothing);
        let mut ascent = Self { point, unit, instants, aim, step: 0, strides, best };
        // Prices of nothing prove the time of the kernels.
        let prices = ascent.whole_prices(relaxation, &ascent.best.2);
        (ascent.best.0, ascent.best.1) = (relaxation.value(&prices).unwrap_or_default(), prices);
        ascent
    }

    /// Climbs a part of the way: `most` of the round's `steps`. Returns whether some are left.
    pub(super) fn climb(&mut self, relaxation: &Relaxation, steps: u32, most: u32) -> bool {
        let mut moved: Box<dyn MovedBytes + '_> = match relaxation.tiers.len() {
            1 => Box::new(Flow::<{ states(1) }>::new(relaxation)),
            _ => Box::new(Flow::<{ states(2) }>::new(relaxation)),
        };
        let writing = 1e9 / relaxation.tiers[0].write.0 as f64;
        let warmest = FIRST_WARMTH * (writing + self.aim.beside());
        let [first_step, last_step] = self.aim.steps();
        let until = self.step.saturating_add(most).min(steps + 1);
        for step in self.step..until {
            if step % CERTIFY_EVERY == 0 || step == steps {
                let prices = self.whole_prices(relaxation, &self.point);
                let value = relaxation.value(&prices).unwrap_or_default();
                if self.best.0 < value {
                    self.best = (value, prices, self.point.clone());
                }
            }
            let progress = f64::from(step) / f64::from(steps.max(1));
            let warmth = warmest * (LAST_WARMTH / FIRST_WARMTH).powf(progress);
            let rate = first_step * last_step.powf(progress);
            let slope = self.slope(relaxation, &mut *moved, warmth);
            let turns = f64::from(step + 1);
            let seen = [1.0 - KEEP.powf(turns), 1.0 - KEEP_SQUARE.powf(turns)];
            let strides = &mut self.strides;
            for ((entry, slope), strides) in self.point.iter_mut().zip(slope).zip(strides) {
                for ((price, slope), stride) in entry.iter_mut().zip(slope).zip(strides) {
                    *price += rate * stride.along(slope, seen);
                }
                project(entry);
            }
        }
        self.step = until;
        until <= steps
    }

    /// The best certificate found. A finer round begins from its prices.
    pub(super) fn found(&mut self) -> (Nanos, Prices) {
        let (value, prices, point) = &self.best;
        self.point.clone_from(point);
        (*value, prices.clone())
    }

    /// Returns the slope of the bound in each price, per unit of [`Self::point`].
    fn slope(
        &self,
        relaxation: &Relaxation,
        moved: &mut dyn MovedBytes,
        warmth: f64,
    ) -> IntervalValues {
        let rates = |entry| {
            let ways = float_rates(relaxation, entry, self.unit);
            let rates = prices_of_bytes(relaxation.links(), ways);
            IntervalPrices {
                write: [rates.write[0] + self.aim.write_penalty, rates.write[1]],
                ..rates
            }
        };
        let rates: Vec<IntervalPrices<f64>> = self.point.iter().map(rates).collect();
        let left = |entry: &[f64; KINDS]| 1.0 - entry[READ..ROOM].iter().sum::<f64>();
        let left: Vec<f64> = self.point.iter().map(left).collect();
        let (mut slope, time) = moved.at(&rates, &left, warmth);
        for (index, entry) in slope.iter_mut().enumerate() {
            let time = time[index];
            entry[MEMORY] = (entry[MEMORY] - relaxation.room[index] as f64) * self.unit;
            for (tier, described) in relaxation.tiers.iter().enumerate() {
                let (read, written) = (entry[READ + tier], entry[WRITE + tier]);
                let [on_writes, on_reads] = described.link.parts();
                let (reading, writing) = (read + on_reads * written, written + on_writes * read);
                entry[READ + tier] = reading * 1e9 / described.read.0 as f64 - time;
                entry[WRITE + tier] = writing * 1e9 / described.write.0 as f64 - time;
                if let Some(memory) = described.memory {
                    entry[ROOM] = (entry[ROOM] - memory.0 as f64) * self.unit;
                }
            }
        }
        slope
    }

    fn whole_prices(&self, relaxation: &Relaxation, point: &IntervalValues) -> Prices {
        let mut prices = Prices {
            write_penalty: Relaxation::whole(self.aim.write_penalty),
            ..Prices::default()
        };
        for entry in point {
            let rates = float_rates(relaxation, entry, self.unit);
            prices.memory.push(Relaxation::whole(rates.memory));
            prices.read.push(rates.read.map(Relaxation::whole));
            prices.write.push(rates.write.map(Relaxation::whole));
            prices.room.push(Relaxation::whole(rates.room[1]));
        }
        prices
    }
}

/// Adam's estimates of a slope and of its square.
#[derive(Clone, Copy, Debug, Default)]
struct Stride {
    mean: f64,
    square: f64,
}

impl Stride {
    /// Returns the length of the next move, in steps. `seen`: how much of mean and square the
    /// slopes so far make up.
    fn along(&mut self, slope: f64, seen: [f64; 2]) -> f64 {
        self.mean = KEEP * self.mean + (1.0 - KEEP) * slope;
        self.square = KEEP_SQUARE * self.square + (1.0 - KEEP_SQUARE) * slope * slope;
        self.mean / seen[0] / ((self.square / seen[1]).sqrt() + 1e-9)
    }
}

/// Projects prices to prices that prove something: none below zero, links no more than the time.
fn project(point: &mut [f64; KINDS]) {
    for price in point.iter_mut() {
        *price = price.max(0.0);
    }
    let links = READ..ROOM;
    let sum: f64 = point[links.clone()].iter().sum();
    if sum <= 1.0 {
        return;
    }
    // Onto the simplex: the same is taken from all that have it.
    let mut sorted: Vec<f64> = point[links.clone()].to_vec();
    sorted.sort_by(|a, b| b.total_cmp(a));
    let (mut taken, mut total) = (0.0, 0.0);
    for (index, price) in sorted.iter().enumerate() {
        total += price;
        let level = (total - 1.0) / (index + 1) as f64;
        if *price > level {
            taken = level;
        }
    }
    for price in &mut point[links] {
        *price = (*price - taken).max(0.0);
    }
}

fn float_rates(relaxation: &Relaxation, entry: &[f64; KINDS], unit: f64) -> IntervalPrices<f64> {
    let mut rates = IntervalPrices {
        memory: entry[MEMORY] * unit,
        read: [0.0; TIERS_MAX],
        write: [0.0; TIERS_MAX],
        room: [0.0, entry[ROOM] * unit],
    };
    for (index, tier) in relaxation.tiers.iter().enumerate() {
        // A hair below the time that it takes, so that rounding cannot lift the sum above it.
        rates.read[index] = entry[READ + index] * 1e9 / tier.read.0 as f64 * (1.0 - 1e-12);
        rates.write[index] = entry[WRITE + index] * 1e9 / tier.write.0 as f64 * (1.0 - 1e-12);
    }
    rates
}
