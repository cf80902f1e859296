//! Streams, what is put into them, and events: points of a stream that others wait for.

use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

use super::{CudaError, DevicePointer, Gpu};

/// A point in a stream that others can wait for.
pub struct Event {
    gpu: Arc<Gpu>,
    event: sys::CUevent,
}

// SAFETY: events belong to the context; the driver's functions on them may be called from any
// thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// An event that has happened already, as one that was never recorded counts.
    pub fn new(gpu: &Arc<Gpu>) -> Result<Self, CudaError> {
        Self::with(gpu, sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32)
    }

    /// Makes an event for a thread that sleeps until it has happened.
    pub(crate) fn awaited(gpu: &Arc<Gpu>) -> Result<Self, CudaError> {
        let flags = [
            sys::CUevent_flags::CU_EVENT_DISABLE_TIMING,
            sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC,
        ];
        Self::with(gpu, flags.into_iter().fold(0, |all, flag| all | flag as u32))
    }

    /// Makes an event that notes when it happens.
    fn timed(gpu: &Arc<Gpu>) -> Result<Self, CudaError> {
        Self::with(gpu, sys::CUevent_flags::CU_EVENT_DEFAULT as u32)
    }

    fn with(gpu: &Arc<Gpu>, flags: u32) -> Result<Self, CudaError> {
        let _entered = gpu.enter()?;
        let mut event = std::ptr::null_mut();
        // SAFETY: the handle is written to a place of ours.
        unsafe { sys::cuEventCreate(&raw mut event, flags) }
            .result()
            .map_err(CudaError::of("make an event"))?;
        Ok(Self { gpu: Arc::clone(gpu), event })
    }

    /// Moves the event behind everything that was put into `stream` so far.
    pub fn record(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: the event is open.
        unsafe { stream.record_raw(self.as_raw()) }
    }

    /// Moves the event behind everything that was put into a framework's stream so far.
    ///
    /// # Safety
    /// `stream` is open, and of the event's GPU.
    pub unsafe fn record_in(&self, stream: ForeignStream) -> Result<(), CudaError> {
        let _entered = self.gpu.enter()?;
        // SAFETY: the event is open, and the caller says so of the stream.
        unsafe { result::event::record(self.event, stream.raw()) }
            .map_err(CudaError::of("record an event"))
    }

    /// Makes a framework's stream wait for the event before what comes next; the host does not.
    ///
    /// # Safety
    /// As for [`Event::record_in`].
    pub unsafe fn block(&self, stream: ForeignStream) -> Result<(), CudaError> {
        let _entered = self.gpu.enter()?;
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: the event is open, and the caller says so of the stream.
        unsafe { result::stream::wait_event(stream.raw(), self.event, flags) }
            .map_err(CudaError::of("have a stream wait"))
    }

    /// Returns whether the event has happened. An error is the error of anything that came before
    /// it.
    pub fn has_happened(&self) -> Result<bool, CudaError> {
        let _entered = self.gpu.enter()?;
        // SAFETY: the handle is open.
        unsafe { query(self.event) }
    }

    /// Waits until it has happened. An error is the error of anything that came before it.
    pub fn wait(&self) -> Result<(), CudaError> {
        let _entered = self.gpu.enter()?;
        // SAFETY: the handle is open.
        unsafe { result::event::synchronize(self.event) }.map_err(CudaError::of("reach an event"))
    }

    /// The driver's handle, for frameworks that wait for it on streams of their own.
    pub fn as_raw(&self) -> *mut c_void {
        self.event.cast()
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Ok(_entered) = self.gpu.enter() {
            // SAFETY: made in `new`, destroyed once; the driver defers it where somebody still
            // waits.
            let _ = unsafe { result::event::destroy(self.event) };
        }
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Event({:p})", self.event)
    }
}

/// Time that copies take, by the GPU's clock: not what they wait in their stream, nor the host.
#[derive(Debug)]
pub(crate) struct CopyTimer {
    begun: Event,
    ended: Event,
}

impl CopyTimer {
    pub(crate) fn new(gpu: &Arc<Gpu>) -> Result<Self, CudaError> {
        Ok(Self { begun: Event::timed(gpu)?, ended: Event::timed(gpu)? })
    }

    /// The copies begin when all that was put into the stream so far is done.
    pub(crate) fn begin(&self, stream: &Stream) -> Result<(), CudaError> {
        self.begun.record(stream)
    }

    /// The copies were put into the stream.
    pub(crate) fn end(&self, stream: &Stream) -> Result<(), CudaError> {
        self.ended.record(stream)
    }

    /// Returns the time of copies that are done. Nothing where the GPU does not say.
    pub(crate) fn took(&self) -> Option<Duration> {
        let _entered = self.begun.gpu.enter().ok()?;
        // SAFETY: both are open.
        let took = unsafe { result::event::elapsed(self.begun.event, self.ended.event) };
        let seconds = f64::from(took.ok()?) / 1000.0;
        Duration::try_from_secs_f64(seconds).ok().filter(|took| !took.is_zero())
    }
}

/// Returns whether an event has happened.
///
/// # Safety
/// It is open.
unsafe fn query(event: sys::CUevent) -> Result<bool, CudaError> {
    // SAFETY: the caller says so.
    match unsafe { result::event::query(event) } {
        Ok(()) => Ok(true),
        Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)) => Ok(false),
        Err(error) => Err(CudaError::of("reach an event")(error)),
    }
}

/// A stream that a framework has made, by the driver's handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ForeignStream(pub u64);

impl ForeignStream {
    fn raw(self) -> sys::CUstream {
        self.0 as sys::CUstream
    }

    /// Returns whether what is put into it becomes part of a graph, and does not happen.
    ///
    /// # Safety
    /// It is open, and of this GPU.
    pub unsafe fn is_captured(self, gpu: &Gpu) -> Result<bool, CudaError> {
        let _entered = gpu.enter()?;
        // SAFETY: the caller says so.
        match unsafe { result::stream::is_capturing(self.raw()) } {
            Ok(status) => Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE),
            // The default stream, while another one is captured that waits for it.
            Err(DriverError(sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)) => Ok(true),
            Err(error) => Err(CudaError::of("tell whether a stream is captured")(error)),
        }
    }
}

/// A stream: what is put into it happens in that order, and beside all other streams.
pub struct Stream {
    gpu: Arc<Gpu>,
    stream: sys::CUstream,
}

// SAFETY: as for events.
unsafe impl Send for Stream {}
// SAFETY: as for events.
unsafe impl Sync for Stream {}

impl Stream {
    /// A stream that does not wait for the default one.
    pub fn new(gpu: &Arc<Gpu>) -> Result<Self, CudaError> {
        Self::made(gpu, || result::stream::create(result::stream::StreamKind::NonBlocking))
    }

    /// Makes a stream whose kernels get what becomes free of the GPU before those of other streams.
    pub(crate) fn of_highest_priority(gpu: &Arc<Gpu>) -> Result<Self, CudaError> {
        Self::made(gpu, || {
            let (_, highest) = result::stream::get_priority_range()?;
            result::stream::create_with_priority(result::stream::StreamKind::NonBlocking, highest)
        })
    }

    fn made(
        gpu: &Arc<Gpu>,
        make: impl FnOnce() -> Result<sys::CUstream, DriverError>,
    ) -> Result<Self, CudaError> {
        let _entered = gpu.enter()?;
        let stream = make().map_err(CudaError::of("make a stream"))?;
        Ok(Self { gpu: Arc::clone(gpu), stream })
    }

    /// Makes the stream wait for `event` before what comes next; the host does not.
    pub fn wait_for(&self, event: &Event) -> Result<(), CudaError> {
        // SAFETY: the event is open.
        unsafe { self.wait_for_raw(event.as_raw()) }
    }

    /// Makes the stream wait for an event that a framework made.
    ///
    /// # Safety
    /// `event` is the handle of an open event.
    pub unsafe fn wait_for_raw(&self, event: *mut c_void) -> Result<(), CudaError> {
        let _entered = self.gpu.enter()?;
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: the stream is open, and the caller says so of the event.
        unsafe { result::stream::wait_event(self.stream, event.cast(), flags) }
            .map_err(CudaError::of("have a stream wait"))
    }

    /// Moves an event that a framework made behind everything that was put into the stream so far.
    ///
    /// # Safety
    /// `event` is the handle of an open event.
    pub unsafe fn record_raw(&self, event: *mut c_void) -> Result<(), CudaError> {
        let _entered = self.gpu.enter()?;
        // SAFETY: as in `wait_for_raw`.
        unsafe { result::event::record(event.cast(), self.stream) }
            .map_err(CudaError::of("record an event"))
    }

    /// Returns whether an event that a framework made has happened.
    ///
    /// # Safety
    /// `event` is the handle of an open event.
    pub unsafe fn has_happened_raw(&self, event: *mut c_void) -> Result<bool, CudaError> {
        let _entered = self.gpu.enter()?;
        // SAFETY: as in `wait_for_raw`.
        unsafe { query(event.cast()) }
    }

    /// Puts a copy between two places of GPU memory into the stream.
    ///
    /// # Safety
    /// Both ranges are allocated, and nobody writes either or reads `to`, until an event recorded
    /// behind this happened.
    pub unsafe fn copy(
        &self,
        from: DevicePointer,
        to: DevicePointer,
        length: usize,
    ) -> Result<(), CudaError> {
        let _entered = self.gpu.enter()?;
        // SAFETY: passed on to the caller.
        unsafe { result::memcpy_dtod_async(to.0, from.0, length, self.stream) }
            .map_err(CudaError::of("copy within the GPU"))
    }

    /// Puts a copy from host memory into the stream.
    ///
    /// # Safety
    /// As for [`Stream::copy`].
    pub unsafe fn copy_in(
        &self,
        from: *const u8,
        to: DevicePointer,
        length: usize,
    ) -> Result<(), CudaError> {
        let _entered = self.gpu.enter()?;
        // SAFETY: the slice is only handed to the driver; its validity is passed on to the caller.
        unsafe {
            let bytes = std::slice::from_raw_parts(from, length);
            result::memcpy_htod_async(to.0, bytes, self.stream)
        }
        .map_err(CudaError::of("copy to the GPU"))
    }

    /// Puts a copy to host memory into the stream.
    ///
    /// # Safety
    /// As for [`Stream::copy`].
    pub unsafe fn copy_out(
        &self,
        from: DevicePointer,
        to: *mut u8,
        length: usize,
    ) -> Result<(), CudaError> {
        let _entered = self.gpu.enter()?;
        // SAFETY: as in `copy_in`.
        unsafe {
            let bytes = std::slice::from_raw_parts_mut(to, length);
            result::memcpy_dtoh_async(bytes, from.0, self.stream)
        }
        .map_err(CudaError::of("copy from the GPU"))
    }

    /// Has zeroes put into GPU memory.
    ///
    /// # Safety
    /// As for [`Stream::copy`], of the memory that is written.
    pub(crate) unsafe fn fill_with_zeroes(
        &self,
        to: DevicePointer,
        length: usize,
    ) -> Result<(), CudaError> {
        let _entered = self.gpu.enter()?;
        // SAFETY: passed on to the caller.
        unsafe { result::memset_d8_async(to.0, 0, length, self.stream) }
            .map_err(CudaError::of("fill GPU memory with zeroes"))
    }

    /// Waits until everything in it is done.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        let _entered = self.gpu.enter()?;
        // SAFETY: the handle is open.
        unsafe { result::stream::synchronize(self.stream) }
            .map_err(CudaError::of("wait for a stream"))
    }

    pub(crate) fn raw(&self) -> sys::CUstream {
        self.stream
    }

    /// Returns the stream as one of a framework's, by its handle, while it is open.
    pub fn foreign(&self) -> ForeignStream {
        ForeignStream(self.stream as u64)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Ok(_entered) = self.gpu.enter() {
            // SAFETY: made in `new`, destroyed once; what is in it still happens.
            let _ = unsafe { result::stream::destroy(self.stream) };
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Stream({:p})", self.stream)
    }
}
