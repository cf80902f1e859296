//! Moves of the cheapest lives under given prices, in each interval: with it the bound changes as
//! prices do.

#![allow(clippy::cast_precision_loss, reason = "for the search, which may be inexact")]

use super::costs::{Matrix, Warm};
use super::lives::Spreading;
use super::relax::Relaxation;
use super::states::{Instant, IntervalPrices, IntervalStep, TIERS_MAX, out_on};
use super::stretches::{Layout, Stretches};

/// Memory, then read and write of each tier, then room in host memory.
pub(super) const KINDS: usize = 2 + 2 * TIERS_MAX;
pub(super) const MEMORY: usize = 0;
pub(super) const READ: usize = 1;
pub(super) const WRITE: usize = 1 + TIERS_MAX;
pub(super) const ROOM: usize = 1 + 2 * TIERS_MAX;

/// One value per interval and kind.
pub(super) type IntervalValues = Vec<[f64; KINDS]>;

pub(super) trait MovedBytes {
    /// Bytes in memory at each instant, read and written in each interval, in host memory; and how
    /// long each interval is. `left`: what a nanosecond of each is worth beside its links.
    /// `warmth`: the temperature, in ns per byte.
    fn at(
        &mut self,
        rates: &[IntervalPrices<f64>],
        left: &[f64],
        warmth: f64,
    ) -> (IntervalValues, Vec<f64>);
}

pub(super) struct Flow<'a, const S: usize> {
    relaxation: &'a Relaxation,
    costs: Stretches<Warm, S>,
    spreading: Spreading<S>,
    /// Bytes that go each way of each stretch.
    bytes: Vec<Matrix<f64, S>>,
}

impl<'a, const S: usize> Flow<'a, S> {
    pub(super) fn new(relaxation: &'a Relaxation) -> Self {
        let layout = Layout { count: relaxation.instants().len() };
        let bytes = vec![[[0.0; S]; S]; layout.stretches()];
        Self { relaxation, costs: Stretches::new(layout), spreading: Spreading::default(), bytes }
    }
}

impl<const S: usize> MovedBytes for Flow<'_, S> {
    fn at(
        &mut self,
        rates: &[IntervalPrices<f64>],
        left: &[f64],
        warmth: f64,
    ) -> (IntervalValues, Vec<f64>) {
        let warm = |rate: f64| Warm(rate / warmth);
        let rates: Vec<_> = rates.iter().map(|rates| rates.map(warm)).collect();
        self.costs.price(&rates);
        self.bytes.fill([[0.0; S]; S]);
        let lives = &self.relaxation.lives;
        for life in lives.all.iter().filter(|life| life.bytes > 0) {
            let what = (life.end, life.bytes as f64);
            self.spreading.spread(&self.costs, lives.of(life), what, &mut self.bytes);
        }
        let mut time: Vec<f64> =
            self.relaxation.durations().iter().map(|time| *time as f64).collect();
        self.relaxation.skips.spread(
            (lives, &self.costs),
            (left, warmth),
            &mut self.spreading,
            (&mut self.bytes, &mut time),
        );
        self.costs.resolve(&mut self.bytes);
        (self.counted(), time)
    }
}

impl<const S: usize> Flow<'_, S> {
    /// The bytes of single steps by what they pay for.
    fn counted(&self) -> IntervalValues {
        let count = self.costs.layout.count;
        let mut point = vec![[0.0; KINDS]; count];
        let steps = self.bytes.chunks(count).zip(IntervalStep::KINDS);
        for (bytes, step) in steps {
            for (from, to) in (0..S * S).map(|way| (way / S, way % S)) {
                let Some(moves) = step.moves(from, to) else { continue };
                let paid = match (step.instant, out_on(from)) {
                    (Instant::Free | Instant::Held, None) => Some(MEMORY),
                    // Where the SSDs have room without end, it costs nothing.
                    (Instant::Free | Instant::Held, Some(1)) => Some(ROOM),
                    _ => None,
                };
                let read = moves.read.map(|tier| READ + tier);
                let written = moves.written.map(|tier| WRITE + tier);
                for kind in [paid, read, written].into_iter().flatten() {
                    for (entry, bytes) in point.iter_mut().zip(bytes) {
                        entry[kind] += bytes[from][to];
                    }
                }
            }
        }
        point
    }
}
