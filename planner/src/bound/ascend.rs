//! The search for prices: the dual function climbs along its subgradients, with step sizes of
//! their own for every price (Adam), from the prices of a coarser round.
//!
//! Floating point is allowed here: what comes out is rounded to whole prices, and only what those
//! prove counts.

#![allow(clippy::cast_precision_loss, reason = "the search may be inexact, see above")]

use super::path::{Lives, Rates, Sink, TIERS_MAX};
use super::relax::{Prices, Relaxation};
use crate::units::Nanos;

/// Memory, then read and write of each tier, then room in host memory.
const KINDS: usize = 2 + 2 * TIERS_MAX;
const MEMORY: usize = 0;
const READ: usize = 1;
const WRITE: usize = 1 + TIERS_MAX;
const ROOM: usize = 1 + 2 * TIERS_MAX;

/// The first step of a round, as a part of a price's range: from nothing, and from a coarser round.
const FIRST_STEP: f64 = 0.05;
const FIRST_STEP_WARM: f64 = 0.01;

/// The share of the first step sizes that is left at the end of a round.
const LAST_STEP: f64 = 0.01;

/// How often the prices are rounded and looked at as a certificate.
const CERTIFY_EVERY: u32 = 20;

/// Per interval: links as shares of the time that they take, memory in its own unit.
type Point = Vec<[f64; KINDS]>;

pub(super) struct Ascent {
    point: Point,
    /// ns per byte that one unit of a memory price stands for.
    unit: f64,
    instants: Vec<u32>,
    /// The first step size, as a part of a price's range.
    step: f64,
    /// ns per byte written to SSDs, on top of the prices.
    toll: f64,
}

impl Ascent {
    /// From the prices of a coarser round where there is one.
    pub(super) fn new(relaxation: &Relaxation, coarse: Option<&Self>, toll: f64) -> Self {
        let instants = relaxation.instants().to_vec();
        let round_trip =
            1e9 / relaxation.tiers[0].read.0 as f64 + 1e9 / relaxation.tiers[0].write.0 as f64;
        let unit = round_trip * 40.0 / instants.len() as f64;
        let point = instants
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
        let step = if coarse.is_some() { FIRST_STEP_WARM } else { FIRST_STEP };
        Self { point, unit, instants, step, toll }
    }

    /// Climbs, and answers the best certificate found.
    pub(super) fn run(&mut self, relaxation: &Relaxation, steps: u32) -> (Nanos, Prices) {
        let count = self.point.len();
        let mut search = Search::new(relaxation);
        let mut mean = vec![[0.0; KINDS]; count];
        let mut spread = vec![[0.0; KINDS]; count];
        let mut average = self.point.clone();
        // Prices of nothing prove the time of the kernels.
        let nothing = vec![[0.0; KINDS]; count];
        let free = self.whole_prices(relaxation, &nothing);
        let value = relaxation.value(&free).unwrap_or_default();
        let mut best = (value, free, nothing);
        for step in 0..=steps {
            if step % CERTIFY_EVERY == 0 || step == steps {
                for point in [&self.point, &average] {
                    let prices = self.whole_prices(relaxation, point);
                    let Ok(value) = relaxation.value(&prices) else { continue };
                    if best.0 < value {
                        best = (value, prices, point.clone());
                    }
                }
            }
            let slope = search.slope(&self.point, self.unit, self.toll);
            let progress = f64::from(step) / f64::from(steps.max(1));
            let rate = self.step * LAST_STEP.powf(progress);
            let (keep, keep_spread) = (0.9f64, 0.98f64);
            let turns = f64::from(step + 1);
            let (fill, fill_spread) = (1.0 - keep.powf(turns), 1.0 - keep_spread.powf(turns));
            for index in 0..count {
                for kind in 0..KINDS {
                    let slope = slope[index][kind];
                    mean[index][kind] = keep * mean[index][kind] + (1.0 - keep) * slope;
                    spread[index][kind] =
                        keep_spread * spread[index][kind] + (1.0 - keep_spread) * slope * slope;
                    let scale = (spread[index][kind] / fill_spread).sqrt() + 1e-9;
                    self.point[index][kind] += rate * (mean[index][kind] / fill) / scale;
                }
                project(&mut self.point[index]);
                for (average, price) in average[index].iter_mut().zip(self.point[index]) {
                    *average += 0.05 * (price - *average);
                }
            }
        }
        let (value, prices, point) = best;
        self.point = point;
        (value, prices)
    }

    fn whole_prices(&self, relaxation: &Relaxation, point: &Point) -> Prices {
        let mut prices = Prices { toll: Relaxation::whole(self.toll), ..Prices::default() };
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

/// Back to prices that prove something: none below zero, links no more than the time.
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

fn float_rates(relaxation: &Relaxation, entry: &[f64; KINDS], unit: f64) -> Rates<f64> {
    let mut rates = Rates {
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

/// Works out subgradients.
struct Search<'a> {
    relaxation: &'a Relaxation,
    lives: Lives,
    moved: Point,
    rates: Vec<Rates<f64>>,
}

impl<'a> Search<'a> {
    fn new(relaxation: &'a Relaxation) -> Self {
        let count = relaxation.instants().len();
        Self {
            relaxation,
            lives: Lives::default(),
            moved: vec![[0.0; KINDS]; count],
            rates: Vec::with_capacity(count),
        }
    }

    /// How the bound changes with each price, per unit of [`Point`].
    fn slope(&mut self, point: &Point, unit: f64, toll: f64) -> Point {
        let relaxation = self.relaxation;
        let count = point.len();
        self.moved.fill([0.0; KINDS]);
        self.rates.clear();
        self.rates.extend(point.iter().map(|entry| {
            let rates = float_rates(relaxation, entry, unit);
            Rates { write: [rates.write[0] + toll, rates.write[1]], ..rates }
        }));
        let tiers = relaxation.tiers.len();
        for group in &relaxation.groups {
            let rates = &self.rates;
            let at = |step: usize| rates[(group.start + step) % count];
            let mut sum =
                Moved { to: &mut self.moved, start: group.start, bytes: group.bytes as f64 };
            self.lives.cheapest(tiers, group.shape, &group.steps, &at, Some(&mut sum));
        }
        let mut slope = vec![[0.0; KINDS]; count];
        for (index, entry) in slope.iter_mut().enumerate() {
            let moved = &self.moved[index];
            entry[MEMORY] = (moved[MEMORY] - relaxation.room[index] as f64) * unit;
            for (tier, described) in relaxation.tiers.iter().enumerate() {
                let time = relaxation.durations()[index] as f64;
                entry[READ + tier] = moved[READ + tier] * 1e9 / described.read.0 as f64 - time;
                entry[WRITE + tier] = moved[WRITE + tier] * 1e9 / described.write.0 as f64 - time;
                if let Some(memory) = described.memory {
                    entry[ROOM] = (moved[ROOM] - memory.0 as f64) * unit;
                }
            }
        }
        slope
    }
}

struct Moved<'a> {
    to: &'a mut Point,
    start: usize,
    bytes: f64,
}

impl Moved<'_> {
    fn add(&mut self, interval: usize, kind: usize) {
        let count = self.to.len();
        self.to[(self.start + interval) % count][kind] += self.bytes;
    }
}

impl Sink for Moved<'_> {
    fn memory(&mut self, interval: usize) {
        self.add(interval, MEMORY);
    }

    fn read(&mut self, interval: usize, tier: usize) {
        self.add(interval, READ + tier);
    }

    fn write(&mut self, interval: usize, tier: usize) {
        self.add(interval, WRITE + tier);
    }

    fn room(&mut self, interval: usize, tier: usize) {
        if tier == 1 {
            self.add(interval, ROOM);
        }
    }
}
