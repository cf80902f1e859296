//! Transfers between GPU memory and SSDs, in batches of cuFile: the engine's window, whose rules of
//! order hold because cuFile is not ordered with CUDA's streams, and what fills its chunks from
//! SSDs and empties them to SSDs.
#![allow(unsafe_code)]

mod batches;

use std::sync::Arc;

use tidelog_engine::memory::{ALIGNMENT, WindowSize};
use tidelog_engine::path::backend::{TransferStatus, Window, WindowTransfer};
use tidelog_engine::path::{Device, Refusal, Status};
use tidelog_engine::units::ByteCount;

pub use tidelog_engine::path::backend::{DmaDirection, WindowCompletion, WindowRequest};

use crate::copies::StreamCopies;
use crate::cuda::{CudaError, DeviceMemory, DevicePointer, Gpu};
use crate::cufile::{CuFileError, Driver, RegisteredFile, RegisteredMemory};
use batches::Batches;

/// A queue could not be made.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    /// CUDA refused.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// cuFile refused.
    #[error(transparent)]
    CuFile(#[from] CuFileError),
    /// cuFile took a device, and could not read it.
    #[error("cuFile took {device} and could not read its first block: {status}")]
    Probe {
        /// The device.
        device: String,
        /// Status of the read.
        status: Status,
    },
}

/// Registered memory and files. Kept together because they must outlive whatever is on its way.
struct Registered {
    window: RegisteredMemory,
    regions: Vec<RegisteredMemory>,
    files: Vec<RegisteredFile>,
    _memory: DeviceMemory,
    _devices: Vec<Device>,
}

/// Transfers to a few devices, driven by one thread.
pub struct CuFileQueue {
    driver: Arc<Driver>,
    gpu: Arc<Gpu>,
    window: Window,
    batches: Batches,
    ready: Vec<WindowTransfer>,
    told: Vec<(u32, TransferStatus)>,
    /// Taken out only to be leaked.
    registered: Option<Registered>,
}

impl CuFileQueue {
    /// Registers `devices`, and a window on `gpu`, and reads a block of each device to see whether
    /// it works. At most `depth` requests are in flight.
    pub fn open(
        gpu: &Arc<Gpu>,
        driver: &Arc<Driver>,
        devices: Vec<Device>,
        size: WindowSize,
        depth: u32,
    ) -> Result<Self, QueueError> {
        // cuFile's calls on this thread need the GPU's context.
        let _entered = gpu.enter()?;
        let memory = DeviceMemory::in_pages(gpu, size.bytes())?;
        let registered = RegisteredMemory::of(driver, &memory)?;
        let mut files = Vec::with_capacity(devices.len());
        for device in &devices {
            let name = device.path().display().to_string();
            let file = RegisteredFile::new(driver, device.file(), &name)?;
            let block = (device.size().0 as usize).min(ALIGNMENT);
            file.probe(&registered, block)
                .map_err(|status| QueueError::Probe { device: name, status })?;
            files.push(file);
        }
        let copies = Box::new(StreamCopies::in_window(gpu, Window::slots(size))?);
        Ok(Self {
            driver: Arc::clone(driver),
            gpu: Arc::clone(gpu),
            window: Window::new(copies, memory.base().0, size, (devices.len(), depth)),
            batches: Batches::new(driver, devices.len()),
            ready: Vec::new(),
            told: Vec::new(),
            registered: Some(Registered {
                window: registered,
                regions: Vec::new(),
                files,
                _memory: memory,
                _devices: devices,
            }),
        })
    }

    /// GPU memory that the queue holds; it counts against a budget.
    pub fn staging(&self) -> ByteCount {
        ByteCount(self.window.size().bytes() as u64)
    }

    /// Requests that have not been answered.
    pub fn in_flight(&self) -> usize {
        self.window.in_flight()
    }

    /// Registers memory of the caller, so that aligned transfers of it need no copy. Memory of
    /// `cuMemAlloc`: what was mapped by `cuMemMap`, as frameworks' expandable segments are, is
    /// refused with that said, and goes through the ring.
    ///
    /// # Safety
    /// The memory stays allocated for as long as the queue.
    pub unsafe fn register(
        &mut self,
        base: DevicePointer,
        length: usize,
    ) -> Result<(), CuFileError> {
        let _entered = self.gpu.enter()?;
        // SAFETY: passed on to the caller.
        let region = unsafe { RegisteredMemory::new(&self.driver, base, length) };
        let region = region.map_err(CuFileError::of_callers_memory)?;
        // SAFETY: the registration is kept beside the window; the rest is passed on to the caller.
        unsafe { self.window.add_region(region.span()) };
        self.registered
            .get_or_insert_with(|| unreachable!("only `drop` takes it"))
            .regions
            .push(region);
        Ok(())
    }

    /// Takes a request.
    ///
    /// # Errors
    /// The queue is full, or the request longer than a chunk of its window.
    ///
    /// # Safety
    /// The request names a device of this queue, and lies within it. Its memory is as long as it
    /// says, and until its answer it stays allocated; nobody writes it meanwhile, nor reads what a
    /// read writes.
    pub unsafe fn submit(&mut self, request: WindowRequest) -> Result<(), Refusal> {
        // SAFETY: passed on to the caller.
        unsafe { self.window.submit(request) }
    }

    /// Moves everything on that can move. An error means that cuFile itself no longer responds.
    pub fn advance(&mut self) -> Result<(), CuFileError> {
        if self.window.is_idle() {
            return Ok(());
        }
        let gpu = Arc::clone(&self.gpu);
        let _entered = gpu.enter()?;
        let polled = self.batches.poll(&mut self.told);
        self.process_completions();
        polled?;
        self.window.advance();
        self.window.ready(&mut self.ready);
        if let Some(registered) = &self.registered {
            // SAFETY: every transfer is ready: its chunk is its own and filled, or its memory is
            // the caller's until the answer; both stay as they are while the transfer is in flight.
            unsafe {
                self.batches.submit(&mut self.ready, registered, &self.window, &mut self.told);
            }
        }
        self.process_completions();
        Ok(())
    }

    /// Hands out what was answered since the last call.
    pub fn completions(&mut self) -> impl Iterator<Item = WindowCompletion> + '_ {
        std::iter::from_fn(|| self.window.next_answer())
    }

    /// Returns whether there are completions to hand out.
    pub fn has_completions(&self) -> bool {
        self.window.has_completions()
    }

    /// Asks that requests end soon: the one with this tag, or all. What has not reached an SSD does
    /// not.
    pub fn abort(&mut self, tag: Option<u64>) {
        self.window.abort(tag);
        if tag.is_none() {
            self.batches.cancel_all();
        }
    }

    /// Has the window know what became of its transfers.
    fn process_completions(&mut self) {
        for (slot, told) in self.told.drain(..) {
            self.window.tell(slot, told);
        }
    }
}

impl Drop for CuFileQueue {
    fn drop(&mut self) {
        let _entered = self.gpu.enter();
        // Copies end by themselves. What an SSD has not let go of is leaked: unmapping it would let
        // the SSD write into memory that is somebody else's by then.
        if !self.window.stop() || self.window.is_any_in_flight() {
            std::mem::forget(self.registered.take());
        }
        drop(self.registered.take());
    }
}
