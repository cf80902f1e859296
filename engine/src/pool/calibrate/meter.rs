//! Throughput of a pool's devices, all at once, past log and reactor.

use std::fs::File;
use std::io::Read;
use std::time::{Duration, Instant};

use super::CalibrateError;
use crate::layout::{CALIBRATION_MARK, SECTOR_BYTES};
use crate::memory::{DmaBuffer, DmaPool, Memory};
use crate::path::{Action, Completion, DataPath, Extent, Operation, OperationKind};
use crate::schedule::DrainError;
use crate::units::{ByteCount, DeviceIndex};

/// Least time for which one figure is measured.
const SLICE: Duration = Duration::from_millis(50);
/// A device that does not respond for so long is given up.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The time since some moment. A device that is a model brings its own.
pub(super) type Clock<'a> = dyn Fn() -> Duration + Sync + 'a;

/// Reads and writes one after the other within `area`, over and over, on all devices at once.
pub(super) struct Meter<'a> {
    path: Box<dyn DataPath>,
    memory: DmaPool,
    area: &'a [Extent],
    clock: &'a Clock<'a>,
}

impl<'a> Meter<'a> {
    /// `memory` is how much may be in flight.
    pub(super) fn new(
        mut path: Box<dyn DataPath>,
        memory: ByteCount,
        area: &'a [Extent],
        clock: &'a Clock<'a>,
    ) -> Result<Self, CalibrateError> {
        let memory = path.allocate(memory, true)?;
        if let Some(mut all) = memory.take(memory.size().0 as usize) {
            // Bytes that no device can compress.
            let random = File::open("/dev/urandom").and_then(|mut it| it.read_exact(&mut all));
            random.map_err(CalibrateError::Path)?;
            // What is left of a format that is interrupted here must be known as ours.
            for sector in all.chunks_mut(SECTOR_BYTES) {
                sector[..CALIBRATION_MARK.len()].copy_from_slice(&CALIBRATION_MARK);
            }
        }
        path.register(&memory);
        Ok(Self { path, memory, area, clock })
    }

    /// Ends what is in flight after an error: the space may belong to tensors again once the locks
    /// are given back.
    pub(super) fn give_up(mut self, why: CalibrateError) -> CalibrateError {
        match self.path.drain(Instant::now() + TIMEOUT, &mut Vec::new()) {
            0 => why,
            in_flight => {
                CalibrateError::Left { why: Box::new(why), left: DrainError { in_flight } }
            }
        }
    }

    /// Bytes per second of each device in operations of `chunk` bytes, `depth` of them in flight on
    /// each device.
    pub(super) fn rates(
        &mut self,
        kind: OperationKind,
        chunk: ByteCount,
        depth: u32,
    ) -> Result<Vec<f64>, CalibrateError> {
        let devices = self.path.capabilities().devices.len() as u64;
        let mut walk = Walk {
            kind,
            chunk,
            depth,
            places: places(self.area, chunk),
            turns: vec![0; devices as usize],
        };
        let clock = self.clock;
        let begun = clock();
        let elapsed = || clock().saturating_sub(begun);
        for tag in 0..devices * u64::from(depth) {
            let buffer = self.memory.take(chunk.0 as usize).ok_or(CalibrateError::Memory)?;
            self.path.submit(walk.operation(tag, buffer))?;
        }
        let (mut done, mut heard) = (vec![0; devices as usize], Instant::now());
        let mut completions: Vec<Completion> = Vec::new();
        while self.path.in_flight() > 0 {
            self.path.ring().map_err(CalibrateError::Path)?;
            if self.path.poll(&mut completions) == 0 {
                if heard.elapsed() > TIMEOUT {
                    return Err(CalibrateError::Silent(TIMEOUT));
                }
                self.path.wait(Some(TIMEOUT)).map_err(CalibrateError::Path)?;
                continue;
            }
            heard = Instant::now();
            let goes_on = elapsed() < SLICE;
            for Completion { tag, memory, result, .. } in completions.drain(..) {
                result?;
                done[(tag / u64::from(depth)) as usize] += chunk.0;
                let buffer = memory.and_then(Memory::into_host);
                if let Some(buffer) = buffer.filter(|_| goes_on) {
                    self.path.submit(walk.operation(tag, buffer))?;
                }
            }
        }
        let time = elapsed().as_secs_f64().max(f64::EPSILON);
        #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^53 bytes")]
        Ok(done.into_iter().map(|bytes: u64| bytes as f64 / time).collect())
    }
}

/// The operations of one measurement, in order.
struct Walk {
    kind: OperationKind,
    chunk: ByteCount,
    depth: u32,
    places: Vec<u64>,
    /// Number of operations that each device was given.
    turns: Vec<usize>,
}

impl Walk {
    fn operation(&mut self, tag: u64, buffer: DmaBuffer) -> Operation {
        let device = tag / u64::from(self.depth);
        let turn = &mut self.turns[device as usize];
        let offset = self.places[*turn % self.places.len()];
        *turn += 1;
        let action = match self.kind {
            OperationKind::Write => Action::write(buffer, false),
            _ => Action::read(buffer),
        };
        let extent = Extent::new(offset, self.chunk.0);
        Operation::new(tag, DeviceIndex(device as u8), extent, action)
    }
}

/// Returns the offsets of chunks of this size.
fn places(area: &[Extent], chunk: ByteCount) -> Vec<u64> {
    let of = |extent: &Extent| {
        let (start, count) = (extent.offset.0, extent.length.0 / chunk.0);
        (0..count).map(move |index| start + index * chunk.0)
    };
    area.iter().flat_map(of).collect()
}
