//! The one sequence in which a GPU moves bytes: it waits for the caller's event, copies, fills up,
//! takes checksums, and records that all is done. The host tier puts it into streams of its own;
//! [`StreamCopies`] does so for staging memory and for windows.
#![allow(unsafe_code)]

use std::sync::Arc;

use tidelog_engine::memory::{
    ChunkPlace, CopyError, GpuBytes, GpuCopies, GpuCopy, GpuDirection, GpuEvent,
};

use crate::checksum::Checksums;
use crate::cuda::{CUDA, CopyTimer, CudaError, DevicePointer, Event, Gpu, Stream};
use crate::gdr::RemoteWrites;

/// Sequence of steps that a stream takes for one copy.
pub(crate) struct CopySequence<'a, Pieces, Checksum> {
    pub(crate) direction: GpuDirection,
    /// Step 1: what must have happened before the memory is touched.
    pub(crate) after: Option<GpuEvent>,
    /// Timer of the copies, if anybody asks what they take.
    pub(crate) timer: Option<&'a CopyTimer>,
    /// Step 2: copies between the memory, which begins here, and pieces of it elsewhere, one after
    /// the other.
    pub(crate) memory: DevicePointer,
    pub(crate) pieces: Pieces,
    /// Step 3: what becomes zeroes.
    pub(crate) zeroes: GpuBytes,
    /// Step 4: has checksums taken.
    pub(crate) checksum: Checksum,
    /// Step 5: the caller's event that says so, and ours.
    pub(crate) landed: Option<GpuEvent>,
    pub(crate) done: &'a Event,
}

impl<Pieces, Checksum> CopySequence<'_, Pieces, Checksum>
where
    Pieces: IntoIterator<Item = (ChunkPlace, usize)>,
    Checksum: FnOnce(&Stream) -> Result<(), CudaError>,
{
    /// Puts the sequence of steps into a stream. If that fails, nothing of it is under way.
    ///
    /// # Safety
    /// Until `done` has happened all memory that it names is allocated, and both events are open.
    /// Once `after` has happened nobody writes what it reads, nor touches what it writes.
    pub(crate) unsafe fn put_into(self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: passed on to the caller.
        unsafe { self.enqueue(stream) }.inspect_err(|_| {
            // A part may be under way, and no event would tell when it is done. Where this fails
            // too, the context is lost and nothing runs in it.
            let _ = stream.synchronize();
        })
    }

    /// # Safety
    /// As for [`CopySequence::put_into`].
    unsafe fn enqueue(self, stream: &Stream) -> Result<(), CudaError> {
        let mut memory = self.memory;
        // SAFETY: the events are open, and all memory is allocated, until `done` has happened, as
        // the caller says. `done` is recorded behind every step, and a stream does one step after
        // the other: so each has ended by then. None touches the memory before the stream has
        // waited for `after`, from when on nobody else interferes, as the caller says.
        unsafe {
            self.after.map_or(Ok(()), |after| stream.wait_for_raw(after.as_raw()))?;
            self.timer.map_or(Ok(()), |timer| timer.begin(stream))?;
            for (place, length) in self.pieces {
                match (self.direction, place) {
                    (GpuDirection::Fill, ChunkPlace::Host(to)) => {
                        stream.copy_out(memory, to.as_ptr(), length)?;
                    }
                    (GpuDirection::Drain, ChunkPlace::Host(from)) => {
                        stream.copy_in(from.as_ptr(), memory, length)?;
                    }
                    (GpuDirection::Fill, ChunkPlace::Gpu(to)) => {
                        stream.copy(memory, DevicePointer(to), length)?;
                    }
                    (GpuDirection::Drain, ChunkPlace::Gpu(from)) => {
                        stream.copy(DevicePointer(from), memory, length)?;
                    }
                }
                memory = memory.offset(length as u64);
            }
            self.timer.map_or(Ok(()), |timer| timer.end(stream))?;
            let GpuBytes { address, length } = self.zeroes;
            if length > 0 {
                stream.fill_with_zeroes(DevicePointer(address), length as usize)?;
            }
            (self.checksum)(stream)?;
            self.landed.map_or(Ok(()), |landed| stream.record_raw(landed.as_raw()))?;
        }
        self.done.record(stream)
    }
}

/// Copies to chunks and from them, each in a slot of its own: those to chunks have a stream and
/// those from chunks another, beside each other and beside everything that computes.
pub(crate) struct StreamCopies {
    gpu: Arc<Gpu>,
    fills: Stream,
    drains: Stream,
    /// Events behind the copy of each slot.
    done: Vec<Event>,
    /// Checksums of the GPU, or the reason why it takes none.
    checksums: Result<Checksums, CudaError>,
    /// Means by which the GPU sees what devices have written to a chunk, where no library sees to
    /// that.
    remote_writes: Option<RemoteWrites>,
}

impl StreamCopies {
    pub(crate) fn new(gpu: &Arc<Gpu>, slots: u32) -> Result<Self, CudaError> {
        Ok(Self {
            gpu: Arc::clone(gpu),
            fills: Stream::new(gpu)?,
            drains: Stream::new(gpu)?,
            done: (0..slots).map(|_| Event::new(gpu)).collect::<Result<_, _>>()?,
            checksums: Checksums::new(gpu, slots),
            remote_writes: None,
        })
    }

    /// Opens the copies for chunks in a window, of which nobody but the GPU can take checksums.
    pub(crate) fn in_window(gpu: &Arc<Gpu>, slots: u32) -> Result<Self, CudaError> {
        let copies = Self::new(gpu, slots)?;
        copies.why_no_checksums().map_or(Ok(copies), Err)
    }

    /// Adds the means for chunks that devices write without cuFile.
    pub(crate) fn behind(self, remote_writes: RemoteWrites) -> Self {
        Self { remote_writes: Some(remote_writes), ..self }
    }

    /// Returns the reason why the GPU takes no checksums, if it takes none.
    pub(crate) fn why_no_checksums(&self) -> Option<CudaError> {
        self.checksums.as_ref().err().copied()
    }

    /// # Safety
    /// As for [`GpuCopies::begin`].
    unsafe fn put(&self, slot: u32, copy: &GpuCopy) -> Result<(), CudaError> {
        let GpuCopy { direction, memory, chunk, zeroes, checked } = *copy;
        let _entered = self.gpu.enter()?;
        let stream = match direction {
            GpuDirection::Fill => &self.fills,
            GpuDirection::Drain => {
                self.remote_writes.as_ref().map_or(Ok(()), RemoteWrites::order)?;
                &self.drains
            }
        };
        let sequence = CopySequence {
            direction,
            after: memory.after,
            timer: None,
            memory: DevicePointer(memory.address),
            pieces: Some((chunk, memory.length)).filter(|(_, length)| *length > 0),
            zeroes,
            checksum: |stream: &Stream| match (&self.checksums, checked) {
                (_, GpuBytes { length: 0, .. }) => Ok(()),
                // SAFETY: nobody but the steps before writes the bytes until the copy is done, as
                // the caller says; the place is the slot's, in which nothing else is under way.
                (Ok(checksums), GpuBytes { address, length }) => unsafe {
                    checksums.take(stream, DevicePointer(address), length, slot)
                },
                (&Err(why), _) => Err(why),
            },
            landed: None,
            done: &self.done[slot as usize],
        };
        // SAFETY: passed on to the caller; what it was told is done is `done`.
        unsafe { sequence.put_into(stream) }
    }
}

// SAFETY: a copy is told to be done when the event behind all of its steps has happened, and `stop`
// has waited for both streams, in which all steps are; one that was refused is not under way
// (`CopySequence::put_into`). The host sees that event only after the bytes and the checksum before
// it are where devices, and the host, find them.
unsafe impl GpuCopies for StreamCopies {
    unsafe fn begin(&mut self, slot: u32, copy: &GpuCopy) -> Result<(), CopyError> {
        // SAFETY: passed on to the caller.
        Ok(unsafe { self.put(slot, copy) }?)
    }

    fn is_done(&mut self, slot: u32) -> Result<bool, CopyError> {
        Ok(self.done[slot as usize].has_happened()?)
    }

    fn has_happened(&mut self, event: GpuEvent) -> Result<bool, CopyError> {
        // SAFETY: who gave the event keeps it open until the transfer's release, which comes after
        // this.
        Ok(unsafe { self.fills.has_happened_raw(event.as_raw()) }?)
    }

    fn checksum(&self, slot: u32) -> u32 {
        self.checksums.as_ref().map_or(0, |checksums| checksums.taken(slot))
    }

    fn record(&mut self, event: GpuEvent, after: Option<GpuEvent>) -> Result<(), CopyError> {
        // SAFETY: who gave the events keeps them open until the transfer's release, which comes
        // after this.
        unsafe {
            after.map_or(Ok(()), |after| self.drains.wait_for_raw(after.as_raw()))?;
            self.drains.record_raw(event.as_raw())?;
        }
        Ok(())
    }

    fn stop(&mut self) -> bool {
        let stopped = [&self.fills, &self.drains].map(|stream| stream.synchronize().is_ok());
        stopped == [true; 2]
    }
}

impl From<CudaError> for CopyError {
    fn from(CudaError { what, code, .. }: CudaError) -> Self {
        Self { library: &CUDA, what, code }
    }
}
