//! What a GPU does for a window: copies in two streams, one to the chunks and one from them, and
//! checksums by a kernel in the same streams.
#![allow(unsafe_code)]

use std::sync::Arc;

use tidelog_engine::path::Status;
use tidelog_engine::path::backend::{Copied, WindowCopies, WindowCopy, WindowDirection};

use crate::checksum::Checksums;
use crate::cuda::{CUDA, CudaError, DevicePointer, Event, Gpu, Stream};
use crate::gdr::RemoteWrites;

/// Copies between chunks of GPU memory and the rest, each in a slot of its own.
pub(crate) struct StreamCopies {
    gpu: Arc<Gpu>,
    fills: Stream,
    drains: Stream,
    /// For each slot, what happens behind all of it.
    done: Vec<Event>,
    checksums: Checksums,
    /// How the GPU comes to see what devices have written to a chunk, where no library sees to
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
            checksums: Checksums::new(gpu, slots)?,
            remote_writes: None,
        })
    }

    /// The same, for chunks that devices write without cuFile.
    pub(crate) fn behind(self, remote_writes: RemoteWrites) -> Self {
        Self { remote_writes: Some(remote_writes), ..self }
    }

    fn stream(&self, direction: WindowDirection) -> &Stream {
        match direction {
            WindowDirection::Fill => &self.fills,
            WindowDirection::Drain => &self.drains,
        }
    }

    /// # Safety
    /// As for [`WindowCopies::begin`].
    unsafe fn enqueue(&self, slot: u32, copy: &WindowCopy) -> Result<(), CudaError> {
        let _entered = self.gpu.enter()?;
        // SAFETY: passed on to the caller.
        unsafe {
            match copy.direction {
                WindowDirection::Fill => {
                    self.wait_for_memory(copy)?;
                    self.copy(copy)?;
                    self.fill_up(copy)?;
                    self.sum(slot, copy)?;
                }
                WindowDirection::Drain => {
                    self.remote_writes.as_ref().map_or(Ok(()), RemoteWrites::order)?;
                    self.sum(slot, copy)?;
                    self.wait_for_memory(copy)?;
                    self.copy(copy)?;
                }
            }
        }
        self.done[slot as usize].record(self.stream(copy.direction))
    }

    /// # Safety
    /// As for [`WindowCopies::begin`].
    unsafe fn wait_for_memory(&self, copy: &WindowCopy) -> Result<(), CudaError> {
        let stream = self.stream(copy.direction);
        // SAFETY: the event is open, as the caller says.
        copy.after.map_or(Ok(()), |after| unsafe { stream.wait_for_raw(after.as_raw()) })
    }

    /// # Safety
    /// As for [`WindowCopies::begin`].
    unsafe fn copy(&self, copy: &WindowCopy) -> Result<(), CudaError> {
        let Some(Copied { first, length, with }) = copy.copied else { return Ok(()) };
        let stream = self.stream(copy.direction);
        let part = DevicePointer(copy.place).offset(first.into());
        let length = length as usize;
        // SAFETY: both ends are allocated, and the copy's alone, until it is done, as the caller
        // says.
        unsafe {
            match copy.direction {
                WindowDirection::Fill => stream.copy(DevicePointer(with), part, length),
                WindowDirection::Drain => stream.copy(part, DevicePointer(with), length),
            }
        }
    }

    /// # Safety
    /// As for [`WindowCopies::begin`].
    unsafe fn fill_up(&self, copy: &WindowCopy) -> Result<(), CudaError> {
        if copy.zeroes == 0 {
            return Ok(());
        }
        let behind = copy.copied.map_or(0, |copied| copied.first + copied.length);
        let to = DevicePointer(copy.place).offset(behind.into());
        // SAFETY: the part is the copy's alone, as the caller says.
        unsafe { self.stream(copy.direction).fill_with_zeroes(to, copy.zeroes as usize) }
    }

    /// # Safety
    /// As for [`WindowCopies::begin`].
    unsafe fn sum(&self, slot: u32, copy: &WindowCopy) -> Result<(), CudaError> {
        let (stream, part) = (self.stream(copy.direction), DevicePointer(copy.place));
        // SAFETY: nobody writes the part until this is done, as the caller says; the place is the
        // slot's.
        unsafe { self.checksums.take(stream, part, copy.checked, slot) }
    }
}

// SAFETY: a slot is done when the event behind all that it was asked has happened, in the one
// stream that it was put into; `stop` has waited for both streams.
unsafe impl WindowCopies for StreamCopies {
    unsafe fn begin(&mut self, slot: u32, copy: &WindowCopy) -> Result<(), Status> {
        // SAFETY: passed on to the caller.
        unsafe { self.enqueue(slot, copy) }.map_err(status_of)
    }

    fn is_done(&mut self, slot: u32) -> Result<bool, Status> {
        self.done[slot as usize].has_happened().map_err(status_of)
    }

    fn checksum(&self, slot: u32) -> u32 {
        self.checksums.taken(slot)
    }

    fn stop(&mut self) -> bool {
        self.fills.synchronize().is_ok() && self.drains.synchronize().is_ok()
    }
}

/// As the status of an operation.
fn status_of(error: CudaError) -> Status {
    Status::Library { library: &CUDA, code: error.code }
}
