//! Sizes and depths that are tried, and the choice of one.

use super::meter::{Clock, Meter};
use super::{CalibrateError, CalibrateProgress, Calibration, DeviceRate, Measurement};
use crate::path::{Extent, OperationKind, PathProvider};
use crate::units::ByteCount;

/// The stripe units that are tried.
pub(super) const STRIPE_UNITS: [ByteCount; 6] = [
    ByteCount::kib(64),
    ByteCount::kib(128),
    ByteCount::kib(256),
    ByteCount::kib(512),
    ByteCount::mib(1),
    ByteCount::mib(2),
];
/// Limit of the depth: with more in flight an urgent read would wait behind too many others.
const DEPTH_MAX: u32 = 64;
/// The depths that are tried.
const DEPTHS: [u32; 7] = [1, 2, 4, 8, 16, 32, DEPTH_MAX];
/// The depth at which stripe units are compared.
const DEPTH: u32 = 32;
/// Share of the best throughput that counts as equally fast.
const ENOUGH: f64 = 0.97;
/// Number of measurements of each point, in turn with all others. Odd, as the median counts.
const ROUNDS: usize = 3;
/// Memory in flight, over all devices.
const MEMORY_MAX: u64 = 256 << 20;
/// An area has room for so many chunks at least, or a device's cache would be all that is measured.
const CHUNKS_MIN: u64 = 8;

/// Sweep over sizes and depths, with the area that it uses.
pub(super) struct CalibrationSweep<'a> {
    pub(super) devices: usize,
    /// Area that may be written, the same on each device.
    pub(super) area: &'a [Extent],
    /// The smallest is taken that is fast enough.
    pub(super) units: &'a [ByteCount],
    pub(super) clock: &'a Clock<'a>,
}

impl CalibrationSweep<'_> {
    /// Measures stripe units, if there is more than one, then depths.
    pub(super) fn run(
        &self,
        provider: Box<dyn PathProvider>,
        progress: &mut (dyn FnMut(CalibrateProgress) + Send),
    ) -> Result<Calibration, CalibrateError> {
        // A thread of its own: it stays near the devices once it has opened them.
        std::thread::scope(|scope| {
            let measuring = scope.spawn(|| self.measure(provider, progress));
            measuring.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn measure(
        &self,
        provider: Box<dyn PathProvider>,
        progress: &mut dyn FnMut(CalibrateProgress),
    ) -> Result<Calibration, CalibrateError> {
        let largest = self.units.iter().max().ok_or(CalibrateError::NoRoom)?;
        let memory = MEMORY_MAX.min(largest.0 * u64::from(DEPTH_MAX) * self.devices as u64);
        let path = provider.open(DEPTH_MAX)?.path;
        // A controller may take less at once than it was asked for.
        let takes = (path.capabilities().depth / self.devices.max(1) as u32).max(1);
        let mut meter = Meter::new(path, ByteCount(memory), self.area, self.clock)?;
        self.choose(&mut meter, takes, progress).map_err(|why| meter.give_up(why))
    }

    /// Measures with at most `takes` operations in flight on each device, and chooses.
    fn choose(
        &self,
        meter: &mut Meter<'_>,
        takes: u32,
        progress: &mut dyn FnMut(CalibrateProgress),
    ) -> Result<Calibration, CalibrateError> {
        let depths: Vec<u32> = DEPTHS.into_iter().filter(|&depth| depth <= takes).collect();
        let of_units = self.units.iter().map(|&unit| (unit, DEPTH.min(takes)));
        let units: Vec<Point> = self.points(of_units);
        let mut done = 0;
        let units_tried = if self.units.len() > 1 { units.len() } else { 0 };
        let total = ROUNDS * (units_tried + depths.len() + 1);
        let mut step = || {
            done += 1;
            progress(CalibrateProgress { done, total });
        };

        let mut measurements = Vec::new();
        let unit = if let [only] = self.units {
            *only
        } else {
            measurements = medians(meter, &units, &mut step)?;
            smallest_that_is_enough(&measurements).ok_or(CalibrateError::NoRoom)?.chunk
        };
        let depths = self.points(depths.iter().map(|&depth| (unit, depth)));
        let by_depth = medians(meter, &depths, &mut step)?;
        let chosen = smallest_that_is_enough(&by_depth).ok_or(CalibrateError::NoRoom)?;
        let (stripe_unit, depth) = (chosen.chunk, chosen.depth);
        measurements.extend(by_depth);
        let devices = each_device(meter, (stripe_unit, depth), &mut step)?;
        Ok(Calibration { measurements, stripe_unit, depth, devices })
    }

    /// Returns the points for which there is memory, and room in the area.
    fn points(&self, asked: impl Iterator<Item = Point>) -> Vec<Point> {
        let room = |chunk: ByteCount| self.area.iter().map(|it| it.length.0 / chunk.0).sum::<u64>();
        let in_flight = |(chunk, depth): Point| chunk.0 * u64::from(depth) * self.devices as u64;
        asked.filter(|it| room(it.0) >= CHUNKS_MIN && in_flight(*it) <= MEMORY_MAX).collect()
    }
}

/// Bytes in an operation, and operations in flight on each device.
type Point = (ByteCount, u32);

/// Measures each in turn, so that what disturbs the machine disturbs all of them.
fn medians(
    meter: &mut Meter<'_>,
    points: &[Point],
    step: &mut dyn FnMut(),
) -> Result<Vec<Measurement>, CalibrateError> {
    let mut writes = vec![[0.0; ROUNDS]; points.len()];
    let mut reads = writes.clone();
    for round in 0..ROUNDS {
        for (place, &(chunk, depth)) in points.iter().enumerate() {
            // What was never written may be read without any device.
            let [write, read] = [OperationKind::Write, OperationKind::Read]
                .map(|kind| meter.rates(kind, chunk, depth).map(|rates| rates.iter().sum()));
            (writes[place][round], reads[place][round]) = (write?, read?);
            step();
        }
    }
    let rates = writes.into_iter().zip(reads);
    let measured = points.iter().zip(rates).map(|(&(chunk, depth), (write, read))| {
        let (write, read) = (median(write), median(read));
        Measurement { chunk, depth, write, read }
    });
    Ok(measured.collect())
}

/// Measures what each device does of it while all are busy.
fn each_device(
    meter: &mut Meter<'_>,
    (chunk, depth): Point,
    step: &mut dyn FnMut(),
) -> Result<Vec<DeviceRate>, CalibrateError> {
    let (mut writes, mut reads) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        writes.push(meter.rates(OperationKind::Write, chunk, depth)?);
        reads.push(meter.rates(OperationKind::Read, chunk, depth)?);
        step();
    }
    let of_device = |rounds: &[Vec<f64>], device: usize| {
        median(std::array::from_fn(|round| rounds[round][device]))
    };
    let devices = 0..writes[0].len();
    let rate =
        |device| DeviceRate { write: of_device(&writes, device), read: of_device(&reads, device) };
    Ok(devices.map(rate).collect())
}

fn median(mut rates: [f64; ROUNDS]) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[ROUNDS / 2]
}

/// The first that is nearly as fast as the fastest, reading and writing; where none is fast in
/// both, the one that loses least.
pub(super) fn smallest_that_is_enough(measured: &[Measurement]) -> Option<&Measurement> {
    let best = |rate: fn(&Measurement) -> f64| measured.iter().map(rate).fold(0.0, f64::max);
    let (write, read) = (best(|it| it.write), best(|it| it.read));
    let score = |it: &Measurement| (it.write / write).min(it.read / read);
    let enough = measured.iter().map(score).fold(0.0, f64::max).min(ENOUGH);
    measured.iter().find(|it| score(it) >= enough)
}
