//! CUDA's driver: GPUs, their memory, streams and events.
//!
//! Thin over `cudarc`, which opens the driver's library when it is first used. Handles are closed
//! on drop by the thread that drops them, which enters the GPU's context first. Device memory has
//! an address and no contents: nothing here dereferences it.
#![allow(unsafe_code)]

mod context;
mod host;
mod names;

use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;
use tidelog_engine::library::ErrorLibrary;

pub use context::Entered;
pub(crate) use host::{HostLock, HostMemory, HostWords};
pub use names::name_of;

/// CUDA, as the source of an operation's error.
pub static CUDA: ErrorLibrary = ErrorLibrary { name: "CUDA", describe: name_of };

/// CUDA answered that something failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("CUDA could not {what}: error {code} ({name})")]
pub struct CudaError {
    /// What was asked of it.
    pub what: &'static str,
    /// Its number.
    pub code: i32,
    /// Its name for the number.
    pub name: &'static str,
}

impl CudaError {
    pub(crate) fn of(what: &'static str) -> impl Fn(DriverError) -> Self {
        move |error| {
            let code = error.0 as i32;
            Self { what, code, name: name_of(code) }
        }
    }
}

/// There is no GPU to work with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CudaUnavailable {
    /// The driver's library is not installed.
    #[error(
        "there is no NVIDIA driver here (libcuda.so is not found); install it, or pass the GPU into the container"
    )]
    NoLibrary,
    /// The library is there and does not work.
    #[error(transparent)]
    Driver(#[from] CudaError),
    /// It works and has no such GPU.
    #[error("there is no GPU {ordinal}; CUDA shows {count} (CUDA_VISIBLE_DEVICES hides others)")]
    NoGpu {
        /// Which one was asked for.
        ordinal: i32,
        /// How many there are.
        count: i32,
    },
}

/// Starts the driver; returns how many GPUs it shows.
pub fn gpu_count() -> Result<i32, CudaUnavailable> {
    // SAFETY: opening the driver's library runs its initialisers, as any program that uses CUDA
    // does.
    if !unsafe { sys::is_culib_present() } {
        return Err(CudaUnavailable::NoLibrary);
    }
    result::init().map_err(CudaError::of("start its driver"))?;
    Ok(result::device::get_count().map_err(CudaError::of("count the GPUs"))?)
}

/// One GPU, by its primary context, which frameworks in this process share.
pub struct Gpu {
    device: sys::CUdevice,
    context: sys::CUcontext,
    ordinal: i32,
    name: String,
    pci_address: String,
}

// SAFETY: contexts belong to the process; every call enters the context on its own thread first.
unsafe impl Send for Gpu {}
// SAFETY: as above; the driver's functions may be called from several threads at once.
unsafe impl Sync for Gpu {}

impl Gpu {
    /// Opens a GPU, by CUDA's number for it.
    pub fn open(ordinal: i32) -> Result<Arc<Self>, CudaUnavailable> {
        let count = gpu_count()?;
        if !(0..count).contains(&ordinal) {
            return Err(CudaUnavailable::NoGpu { ordinal, count });
        }
        let device = result::device::get(ordinal).map_err(CudaError::of("find the GPU"))?;
        let name = result::device::get_name(device).map_err(CudaError::of("name the GPU"))?;
        let attribute = |attribute| attribute_of(device, attribute, "read where the GPU is");
        let pci_address = format!(
            "{:04x}:{:02x}:{:02x}.0",
            attribute(sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?,
            attribute(sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?,
            attribute(sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?,
        );
        // SAFETY: `device` came from the driver; `drop` releases what is retained here.
        let context = unsafe { result::primary_ctx::retain(device) }
            .map_err(CudaError::of("open the GPU's context"))?;
        Ok(Arc::new(Self { device, context, ordinal, name, pci_address }))
    }

    /// Makes the GPU the one that calls of this thread mean, until what is answered goes.
    pub fn enter(&self) -> Result<Entered<'_>, CudaError> {
        Entered::new(self)
    }

    /// The same for good, on a thread of our own: what it does then need not come and go.
    pub fn stay(&self) -> Result<(), CudaError> {
        context::set(self.context)
    }

    /// What the driver says of the device.
    pub(crate) fn attribute(
        &self,
        attribute: sys::CUdevice_attribute,
        what: &'static str,
    ) -> Result<i32, CudaError> {
        attribute_of(self.device, attribute, what)
    }

    /// CUDA's number for it.
    pub fn ordinal(&self) -> i32 {
        self.ordinal
    }

    /// Its maker's name for it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where it is, as in `0000:3b:00.0`.
    pub fn pci_address(&self) -> &str {
        &self.pci_address
    }

    /// Bytes of its memory: free, and all.
    pub fn memory(&self) -> Result<(u64, u64), CudaError> {
        let _entered = self.enter()?;
        let (free, all) =
            result::mem_get_info().map_err(CudaError::of("read its memory's size"))?;
        Ok((free as u64, all as u64))
    }

    /// Waits until everything that was asked of the GPU in this context is done.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        let _entered = self.enter()?;
        result::ctx::synchronize().map_err(CudaError::of("wait for the GPU"))
    }
}

fn attribute_of(
    device: sys::CUdevice,
    attribute: sys::CUdevice_attribute,
    what: &'static str,
) -> Result<i32, CudaError> {
    // SAFETY: `device` came from the driver.
    unsafe { result::device::get_attribute(device, attribute) }.map_err(CudaError::of(what))
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // SAFETY: balances `retain`. A failure leaves the context open, which harms nobody.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

impl fmt::Display for Gpu {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "GPU {} ({}) at {}", self.ordinal, self.name, self.pci_address)
    }
}

impl fmt::Debug for Gpu {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Gpu({}, {} at {})", self.ordinal, self.name, self.pci_address)
    }
}

/// An address in a GPU's memory. It cannot be dereferenced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DevicePointer(pub u64);

impl DevicePointer {
    /// So many bytes further on.
    #[must_use]
    pub fn offset(self, bytes: u64) -> Self {
        Self(self.0 + bytes)
    }
}

/// The pages in which a GPU's memory is pinned for other devices. Memory that does not begin on one
/// goes through a bounce buffer of cuFile's, or cannot be mapped.
pub(crate) const PAGE: usize = 64 << 10;

/// Memory of a GPU, freed on drop.
#[derive(Debug)]
pub struct DeviceMemory {
    gpu: Arc<Gpu>,
    /// What the driver gave, and gets back.
    allocated: DevicePointer,
    base: DevicePointer,
    length: usize,
}

impl DeviceMemory {
    /// Allocates; what it holds is undefined.
    pub fn new(gpu: &Arc<Gpu>, length: usize) -> Result<Self, CudaError> {
        let _entered = gpu.enter()?;
        // SAFETY: the memory is owned by what is made here, and never read by the host.
        let base =
            unsafe { result::malloc_sync(length) }.map_err(CudaError::of("allocate GPU memory"))?;
        let base = DevicePointer(base);
        Ok(Self { gpu: Arc::clone(gpu), allocated: base, base, length })
    }

    /// Allocates whole pages, for other devices: at least `length` bytes. The driver by itself
    /// aligns to 256 bytes.
    pub fn in_pages(gpu: &Arc<Gpu>, length: usize) -> Result<Self, CudaError> {
        let length = length.next_multiple_of(PAGE);
        let mut memory = Self::new(gpu, length + PAGE)?;
        memory.base = DevicePointer(memory.allocated.0.next_multiple_of(PAGE as u64));
        memory.length = length;
        Ok(memory)
    }

    /// Where it begins.
    pub fn base(&self) -> DevicePointer {
        self.base
    }

    /// How many bytes it has.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The GPU that it belongs to.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Has copies that the host waits for be over when their call returns, also those within the
    /// GPU, as memory wants it that other devices reach.
    pub(crate) fn synchronize_copies(&self) -> Result<(), CudaError> {
        let (on, attribute) = (1_u32, sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS);
        let _entered = self.gpu.enter()?;
        // SAFETY: the attribute is a word, which the call reads; the memory is allocated.
        let answer =
            unsafe { sys::cuPointerSetAttribute((&raw const on).cast(), attribute, self.base.0) };
        answer.result().map_err(CudaError::of("prepare memory for other devices"))
    }

    /// Copies from host memory and waits for it.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<(), CudaError> {
        assert!(offset + bytes.len() <= self.length, "a copy beyond the GPU memory it goes to");
        let _entered = self.gpu.enter()?;
        // SAFETY: the range lies within the allocation. From memory that is not page-locked the
        // call returns when the driver has taken the bytes; they are there when its stream, the
        // default one, is done.
        unsafe {
            result::memcpy_htod_sync(self.base.0 + offset as u64, bytes)
                .and_then(|()| result::stream::synchronize(std::ptr::null_mut()))
        }
        .map_err(CudaError::of("copy to the GPU"))
    }

    /// Copies to host memory and waits for it.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), CudaError> {
        assert!(offset + bytes.len() <= self.length, "a copy beyond the GPU memory it comes from");
        let _entered = self.gpu.enter()?;
        // SAFETY: as in `write`.
        unsafe { result::memcpy_dtoh_sync(bytes, self.base.0 + offset as u64) }
            .map_err(CudaError::of("copy from the GPU"))
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if let Ok(_entered) = self.gpu.enter() {
            // SAFETY: allocated in `new`, freed once. A failure means that the context is gone, and
            // the memory with it.
            let _ = unsafe { result::free_sync(self.allocated.0) };
        }
    }
}

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

    /// The same, for a thread that sleeps until it has happened.
    pub(crate) fn awaited(gpu: &Arc<Gpu>) -> Result<Self, CudaError> {
        let flags = [
            sys::CUevent_flags::CU_EVENT_DISABLE_TIMING,
            sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC,
        ];
        Self::with(gpu, flags.into_iter().fold(0, |all, flag| all | flag as u32))
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

    /// Moves it behind everything that was put into `stream` so far.
    pub fn record(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: the event is open.
        unsafe { stream.record_raw(self.as_raw()) }
    }

    /// Whether it has happened. An error is the error of anything that came before it.
    pub fn has_happened(&self) -> Result<bool, CudaError> {
        let _entered = self.gpu.enter()?;
        // SAFETY: the handle is open.
        match unsafe { result::event::query(self.event) } {
            Ok(()) => Ok(true),
            Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)) => Ok(false),
            Err(error) => Err(CudaError::of("reach an event")(error)),
        }
    }

    /// Waits until it has happened. An error is the error of anything that came before it.
    pub(crate) fn wait(&self) -> Result<(), CudaError> {
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
        let _entered = gpu.enter()?;
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking)
            .map_err(CudaError::of("make a stream"))?;
        Ok(Self { gpu: Arc::clone(gpu), stream })
    }

    /// What comes after in this stream waits for `event`; the host does not.
    pub fn wait_for(&self, event: &Event) -> Result<(), CudaError> {
        // SAFETY: the event is open.
        unsafe { self.wait_for_raw(event.as_raw()) }
    }

    /// The same, for an event that a framework made.
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
