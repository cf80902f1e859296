//! The GPU's part of a job: its copies, the checksums behind them, and the event that tells when
//! both are done.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tidelog_engine::memory::{ChunkPlace, GpuBytes, GpuDirection, GpuRange};

use super::Work;
use crate::checksum::{Crc32c, parts_of, sum_of};
use crate::copies::CopySequence;
use crate::cuda::{CopyTimer, CudaError, DevicePointer, Event, Gpu, HostMemory, HostWords, Stream};

/// Jobs that are given to the GPU at once, so that it need not wait for the host between two.
pub(super) const SLOTS: usize = 2;
/// Bytes of one checksum: few, so that the GPU has many to take at once.
pub(super) const UNIT: u32 = 64 << 10;
/// Words that the kernel returns for each checksum.
pub(super) const PARTS: u32 = parts_of(UNIT);
/// Words of a slot at first: those of a tensor of 64 MiB. To make room for more waits for all that
/// the GPU does.
const WORDS_FIRST: u32 = (64 << 20) / UNIT * PARTS;

/// One direction's stream, and what belongs to it.
pub(super) struct TierCopies {
    gpu: Arc<Gpu>,
    stream: Stream,
    kernel: Crc32c,
    slots: [Slot; SLOTS],
    memory: Arc<HostMemory>,
}

/// Resources of a job while it runs.
struct Slot {
    done: Event,
    timer: CopyTimer,
    /// Words of each checksum's parts.
    words: HostWords,
    /// Number of checksums of this job.
    units: u32,
}

impl TierCopies {
    pub(super) fn new(gpu: &Arc<Gpu>, memory: &Arc<HostMemory>) -> Result<Self, CudaError> {
        let slot = || {
            let words = HostWords::new(gpu, WORDS_FIRST)?;
            Ok(Slot { done: Event::awaited(gpu)?, timer: CopyTimer::new(gpu)?, words, units: 0 })
        };
        Ok(Self {
            gpu: Arc::clone(gpu),
            stream: Stream::of_highest_priority(gpu)?,
            kernel: Crc32c::new(gpu)?,
            slots: [slot()?, slot()?],
            memory: Arc::clone(memory),
        })
    }

    /// The calling thread is this one's for good.
    pub(super) fn stay(&self) -> Result<(), CudaError> {
        self.gpu.stay()
    }

    /// Puts a job into the stream, in a slot in which none runs. If that fails, nothing touches its
    /// memory.
    pub(super) fn begin(&mut self, slot: usize, work: &Work) -> Result<(), CudaError> {
        let GpuRange { address, length, after } = work.range();
        self.reserve(slot, length)?;
        let Slot { done, timer, words, .. } = &self.slots[slot];
        let memory = DevicePointer(address);
        let (direction, pieces) = match work {
            Work::Put { room, .. } => (GpuDirection::Fill, room.pieces()),
            Work::Get { held, .. } => (GpuDirection::Drain, held.room().pieces()),
            Work::Verify { .. } => (GpuDirection::Fill, &[][..]),
        };
        if let Work::Get { held, .. } = work
            && let Some(copied) = held.copied()
        {
            self.stream.wait_for(copied)?;
        }
        let place = |piece: &Range<usize>| self.memory.at(piece.start, piece.len());
        let sequence = CopySequence {
            direction,
            after,
            timer: Some(timer),
            memory,
            pieces: pieces.iter().map(|piece| (ChunkPlace::Host(place(piece)), piece.len())),
            zeroes: GpuBytes::default(),
            // SAFETY: nobody but the copies writes the GPU's bytes until the job's end is told; the
            // slot's words are enough for them (`reserve`), and nobody else's until `done`.
            checksum: |stream: &Stream| unsafe {
                self.kernel.launch(stream, memory, length as u64, UNIT, words.address(0))
            },
            landed: work.landed(),
            done,
        };
        // SAFETY: until the job's end is told, which comes after `done`, whoever gave the range
        // keeps it and its events: nobody writes what a put or a verification reads, nor touches
        // what a get writes. The host memory is kept beside the stream, and longer; a put's room is
        // the job's alone, and nobody writes the copy that a get holds.
        unsafe { sequence.put_into(&self.stream) }
    }

    /// Waits for the job in a slot, and returns the checksums of its bytes on the GPU, one for each
    /// [`UNIT`], and what its copies took.
    pub(super) fn finish(&self, slot: usize) -> Result<(Vec<u32>, Option<Duration>), CudaError> {
        let slot = &self.slots[slot];
        slot.done.wait()?;
        let sums = (0..slot.units).map(|unit| sum_of(&slot.words, unit * PARTS, PARTS)).collect();
        Ok((sums, slot.timer.took()))
    }

    /// Makes room for a job's checksums.
    fn reserve(&mut self, slot: usize, bytes: usize) -> Result<(), CudaError> {
        let units = units_of(bytes);
        let slot = &mut self.slots[slot];
        if units.saturating_mul(PARTS) as usize > slot.words.count() {
            slot.words =
                HostWords::new(&self.gpu, units.next_power_of_two().saturating_mul(PARTS))?;
        }
        slot.units = units;
        Ok(())
    }
}

impl Drop for TierCopies {
    fn drop(&mut self) {
        // A failure is that of the whole context, in which then nothing runs.
        let _ = self.stream.synchronize();
    }
}

/// Returns the number of checksums of `bytes` bytes.
pub(super) fn units_of(bytes: usize) -> u32 {
    // More than 256 TiB are on no GPU.
    u32::try_from(bytes.div_ceil(UNIT as usize)).unwrap_or(u32::MAX)
}
