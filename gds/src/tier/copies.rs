//! The GPU's part of a job: its copies, the checksums behind them, and the event that tells when
//! both are done.

use std::sync::Arc;

use super::Work;
use super::space::Room;
use crate::checksum::{Crc32c, parts_of, sum_of};
use crate::cuda::{CudaError, DevicePointer, Event, Gpu, HostMemory, HostWords, Stream};
use tidelog_engine::memory::{GpuEvent, GpuRange};

/// Jobs that are given to the GPU at once, so that it need not wait for the host between two.
pub(super) const SLOTS: usize = 2;
/// Bytes of one checksum: few, so that the GPU has many to take at once.
pub(super) const UNIT: u32 = 64 << 10;
/// Words that the kernel returns for each checksum.
const PARTS: u32 = parts_of(UNIT);

/// One direction's stream, and what belongs to it.
pub(super) struct TierCopies {
    gpu: Arc<Gpu>,
    stream: Stream,
    kernel: Crc32c,
    slots: [Slot; SLOTS],
    memory: Arc<HostMemory>,
}

/// What a job needs while it runs.
struct Slot {
    done: Event,
    /// Of each checksum its parts.
    words: HostWords,
    /// How many checksums are this job's.
    units: u32,
}

impl TierCopies {
    pub(super) fn new(gpu: &Arc<Gpu>, memory: &Arc<HostMemory>) -> Result<Self, CudaError> {
        let slot = || {
            Ok(Slot { done: Event::awaited(gpu)?, words: HostWords::new(gpu, 1 << 10)?, units: 0 })
        };
        Ok(Self {
            gpu: Arc::clone(gpu),
            stream: Stream::new(gpu)?,
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
        self.reserve(slot, work.range().length)?;
        self.enqueue(slot, work).inspect_err(|_| {
            // A part may be under way. Where this fails too, the context is lost and nothing runs
            // in it.
            let _ = self.stream.synchronize();
        })
    }

    /// Waits for the job in a slot, and returns the checksums of its bytes on the GPU, one for each
    /// [`UNIT`].
    pub(super) fn finish(&self, slot: usize) -> Result<Vec<u32>, CudaError> {
        let slot = &self.slots[slot];
        slot.done.wait()?;
        Ok((0..slot.units).map(|unit| sum_of(&slot.words, unit * PARTS, PARTS)).collect())
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

    fn enqueue(&self, slot: usize, work: &Work) -> Result<(), CudaError> {
        let GpuRange { address, length, after } = work.range();
        // SAFETY: whoever gave the range keeps its event open until the job's end is told.
        unsafe { after.map_or(Ok(()), |after| self.stream.wait_for_raw(after.as_raw())) }?;
        match work {
            // SAFETY: nobody writes the source until the job's end is told; the room is the job's
            // alone.
            Work::Put { room, .. } => unsafe { self.copy_out(address, room) }?,
            // SAFETY: nobody else touches the destination until then; the job holds the copy, which
            // nobody writes.
            Work::Get { held, .. } => unsafe { self.copy_in(&held.room, address) }?,
            Work::Verify { .. } => {}
        }
        let Slot { done, words, .. } = &self.slots[slot];
        // SAFETY: as above of the GPU's bytes; the slot's words are enough for them, and nobody
        // else's until `done`.
        unsafe {
            let (data, words) = (DevicePointer(address), words.address(0));
            self.kernel.launch(&self.stream, data, length as u64, UNIT, words)?;
        }
        if let Some(landed) = work.landed() {
            // SAFETY: whoever gave the event keeps it open until the job's end is told.
            unsafe { self.stream.record_raw(GpuEvent::as_raw(landed)) }?;
        }
        done.record(&self.stream)
    }

    /// # Safety
    /// Until the stream has done this, nobody writes the bytes at `from`, nor touches the room.
    unsafe fn copy_out(&self, from: u64, room: &Room) -> Result<(), CudaError> {
        let mut from = DevicePointer(from);
        for piece in room.pieces() {
            let to = self.memory.at(piece.start, piece.len());
            // SAFETY: passed on to the caller; the memory is kept beside the stream, and longer.
            unsafe { self.stream.copy_out(from, to, piece.len()) }?;
            from = from.offset(piece.len() as u64);
        }
        Ok(())
    }

    /// # Safety
    /// Until the stream has done this, nobody writes the room, nor touches the bytes at `to`.
    unsafe fn copy_in(&self, room: &Room, to: u64) -> Result<(), CudaError> {
        let mut to = DevicePointer(to);
        for piece in room.pieces() {
            let from = self.memory.at(piece.start, piece.len());
            // SAFETY: as in `copy_out`.
            unsafe { self.stream.copy_in(from, to, piece.len()) }?;
            to = to.offset(piece.len() as u64);
        }
        Ok(())
    }
}

impl Drop for TierCopies {
    fn drop(&mut self) {
        // A failure is that of the whole context, in which then nothing runs.
        let _ = self.stream.synchronize();
    }
}

fn units_of(bytes: usize) -> u32 {
    // More than 256 TiB are on no GPU.
    u32::try_from(bytes.div_ceil(UNIT as usize)).unwrap_or(u32::MAX)
}
