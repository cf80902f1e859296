//! Transfers between memory and SSDs by way of the GPU, each taken through copy and I/O in the one order that is right.
//!
//! The rules, because cuFile is not ordered with CUDA's streams and nothing else keeps them:
//!
//! - A write: its stream waits for the caller's event `after` (the bytes are there), copies them to a chunk, records an
//!   event. Only when the host has seen that event does the SSD get to read the chunk. Only when the SSD is done is
//!   the chunk anybody else's.
//! - A read: the SSD fills a chunk. When the host has seen that, the other stream waits for `after` (nobody uses the
//!   destination any more), copies, records an event. Only when that has happened is the chunk anybody else's.
//! - The checksum of what lies in GPU memory is taken of what the SSD gets, or has brought: by a kernel between the copy and
//!   the SSD, in the stream of that copy. It is in the answer.
//! - Memory that is registered, and aligned, is read and written in place. The host sees `after` happen first.
//! - An answer means that no device touches the caller's memory any more. Where that cannot be known there is no answer,
//!   and the memory is leaked. A chunk in that state is never used again.
#![allow(unsafe_code)]

mod batches;
mod parts;

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Arc;

use tidelog_engine::memory::{ALIGNMENT, GpuSlice};
use tidelog_engine::path::{Device, Status};
use tidelog_engine::units::{ByteCount, DeviceIndex};

use crate::checksum::Checksums;
use crate::cuda::{CUDA, CudaError, DeviceMemory, DevicePointer, Gpu, Stream};
use crate::cufile::{CuFileError, Driver, RegisteredFile, RegisteredMemory};
use crate::ring::{CHUNK_MAX, Ring};
use batches::Batches;
use parts::Parts;

/// How a queue is made.
#[derive(Clone, Copy, Debug)]
pub struct QueueOptions {
    /// GPU memory for staging.
    pub staging: ByteCount,
    /// The longest piece that moves at once.
    pub chunk: ByteCount,
    /// Requests in flight, at most.
    pub depth: u32,
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self { staging: ByteCount::mib(32), chunk: ByteCount::mib(1), depth: 128 }
    }
}

/// A queue could not be made.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    /// The chunk is none that the SSDs could fill.
    #[error("chunks of {0} do not work: take a multiple of 4 KiB, at most 16 MiB")]
    Chunk(ByteCount),
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
        /// What the read answered.
        status: Status,
    },
}

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the SSD.
    Read,
    /// To the SSD.
    Write,
}

/// The caller's memory.
#[derive(Clone, Copy, Debug)]
pub enum End {
    /// Host memory.
    Host(NonNull<u8>),
    /// GPU memory; what is written, and not in it, is zeroes.
    Device(GpuSlice),
}

/// One transfer.
#[derive(Clone, Debug)]
pub struct Request {
    /// The caller's name for it.
    pub tag: u64,
    /// The device.
    pub device: DeviceIndex,
    /// Where on it: a multiple of 4 KiB.
    pub offset: u64,
    /// How much: a multiple of 4 KiB.
    pub length: u32,
    /// Which way.
    pub direction: Direction,
    /// From or to where.
    pub end: End,
}

/// The end of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The request's tag.
    pub tag: u64,
    /// Whether all of it was moved.
    pub result: Result<(), Status>,
    /// The CRC32C of what was moved from or to GPU memory.
    pub checksum: Option<u32>,
}

/// A request that is being worked on.
struct Active {
    request: Request,
    /// Bytes of which parts were begun.
    begun: u32,
    /// Parts that have not ended.
    parts: u32,
    /// Of the parts that have ended, where each lies: what they bring to the checksum of the whole.
    checksum: u32,
    failure: Option<Status>,
}

impl Active {
    fn has_more(&self) -> bool {
        self.failure.is_none() && self.begun < self.request.length
    }

    fn is_over(&self) -> bool {
        self.parts == 0 && !self.has_more()
    }
}

/// Registered memory and files. Kept together because they must outlive whatever is on its way.
struct Registered {
    ring: RegisteredMemory,
    regions: Vec<RegisteredMemory>,
    files: Vec<RegisteredFile>,
    _memory: DeviceMemory,
    _devices: Vec<Device>,
}

/// Transfers to a few devices, driven by one thread.
pub struct Queue {
    gpu: Arc<Gpu>,
    driver: Arc<Driver>,
    copies_in: Stream,
    copies_out: Stream,
    requests: Vec<Option<Active>>,
    free: Vec<u32>,
    /// Requests that have parts to begin.
    waiting: VecDeque<u32>,
    ring: Ring,
    parts: Parts,
    checksums: Checksums,
    batches: Batches,
    answers: Vec<Answer>,
    /// Taken out only to be leaked.
    registered: Option<Registered>,
}

// SAFETY: the raw addresses in requests are the caller's, who vouched for them whatever thread drives the queue.
unsafe impl Send for Queue {}

impl Queue {
    /// Registers `devices`, and staging memory on `gpu`, and reads a block of each device to see whether it works.
    pub fn open(
        gpu: &Arc<Gpu>,
        driver: &Arc<Driver>,
        devices: Vec<Device>,
        options: QueueOptions,
    ) -> Result<Self, QueueError> {
        let chunk = u32::try_from(options.chunk.0)
            .ok()
            .filter(|chunk| {
                (1..=CHUNK_MAX).contains(chunk) && chunk.is_multiple_of(ALIGNMENT as u32)
            })
            .ok_or(QueueError::Chunk(options.chunk))?;
        let ring = Ring::new(options.staging.0, chunk);
        let memory = DeviceMemory::new(gpu, ring.bytes())?;
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
        let depth = options.depth.max(1);
        let parts = Parts::new(gpu, (ring.bytes() / chunk as usize) as u32)?;
        Ok(Self {
            gpu: Arc::clone(gpu),
            driver: Arc::clone(driver),
            copies_in: Stream::new(gpu)?,
            copies_out: Stream::new(gpu)?,
            requests: std::iter::repeat_with(|| None).take(depth as usize).collect(),
            free: (0..depth).rev().collect(),
            waiting: VecDeque::with_capacity(depth as usize),
            checksums: Checksums::new(gpu, parts.count())?,
            parts,
            ring,
            batches: Batches::new(driver),
            answers: Vec::with_capacity(depth as usize),
            registered: Some(Registered {
                ring: registered,
                regions: Vec::new(),
                files,
                _memory: memory,
                _devices: devices,
            }),
        })
    }

    /// GPU memory that the queue holds; it counts against a budget.
    pub fn staging(&self) -> ByteCount {
        ByteCount(self.ring.bytes() as u64)
    }

    /// Requests that have not been answered.
    pub fn in_flight(&self) -> usize {
        self.requests.len() - self.free.len() + self.answers.len()
    }

    /// Whether nothing is on its way, not even what was answered.
    pub fn is_idle(&self) -> bool {
        self.in_flight() == 0 && self.parts.is_empty()
    }

    /// Registers memory of the caller, so that aligned transfers of it need no copy.
    ///
    /// # Safety
    /// The memory stays allocated for as long as the queue.
    pub unsafe fn register(
        &mut self,
        base: DevicePointer,
        length: usize,
    ) -> Result<(), CuFileError> {
        // SAFETY: passed on to the caller.
        let region = unsafe { RegisteredMemory::new(&self.driver, base, length) }?;
        self.registered
            .get_or_insert_with(|| unreachable!("only `drop` takes it"))
            .regions
            .push(region);
        Ok(())
    }

    /// Takes a request, or gives it back when the queue is full.
    ///
    /// # Safety
    /// The request names a device of this queue, and lies within it. Its memory is as long as it says, and until its
    /// answer it stays allocated; nobody writes it meanwhile, nor reads what a read writes.
    pub unsafe fn submit(&mut self, request: Request) -> Result<(), Request> {
        let Some(slot) = self.free.pop() else { return Err(request) };
        let active = Active { request, begun: 0, parts: 0, checksum: 0, failure: None };
        self.requests[slot as usize] = Some(active);
        self.waiting.push_back(slot);
        Ok(())
    }

    /// Moves everything on that can move. An error means that cuFile itself no longer answers.
    pub fn advance(&mut self) -> Result<(), CuFileError> {
        if self.is_idle() {
            return Ok(());
        }
        if let Err(error) = self.gpu.enter() {
            return Err(CuFileError::Cuda { what: error.what.into(), code: error.code });
        }
        self.land_transfers()?;
        self.look_at_events();
        self.begin_parts();
        self.submit_ready();
        Ok(())
    }

    /// Hands out what was answered since the last call.
    pub fn answers(&mut self) -> std::vec::Drain<'_, Answer> {
        self.answers.drain(..)
    }

    /// Whether there are answers to hand out.
    pub fn has_answers(&self) -> bool {
        !self.answers.is_empty()
    }

    /// Asks that requests end soon: the one with this tag, or all. What has not reached an SSD does not.
    pub fn abort(&mut self, tag: Option<u64>) {
        for slot in 0..self.requests.len() as u32 {
            let Some(active) = &mut self.requests[slot as usize] else { continue };
            if tag.is_none_or(|tag| active.request.tag == tag)
                && active.begun < active.request.length
            {
                active.failure.get_or_insert(Status::Errno(libc::ECANCELED));
                self.settle(slot);
            }
        }
        self.cancel_ready(tag);
        if tag.is_none() {
            self.batches.cancel_all();
        }
    }

    fn registered(&self) -> &Registered {
        self.registered.as_ref().unwrap_or_else(|| unreachable!("only `drop` takes it"))
    }

    /// Answers a request that is over.
    fn settle(&mut self, slot: u32) {
        let Some(active) = &self.requests[slot as usize] else { return };
        if !active.is_over() {
            return;
        }
        let Some(active) = self.requests[slot as usize].take() else { return };
        self.free.push(slot);
        let Active { request, checksum, failure, .. } = active;
        let result = failure.map_or(Ok(()), Err);
        let summed = result.is_ok() && matches!(request.end, End::Device(_));
        let checksum = summed.then_some(checksum);
        self.answers.push(Answer { tag: request.tag, result, checksum });
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // Copies end by themselves. What an SSD has not let go of is leaked: unmapping it would let the SSD write
        // into memory that is somebody else's by then.
        let copied = self.gpu.enter().and_then(|()| self.copies_in.synchronize());
        let copied = copied.and_then(|()| self.copies_out.synchronize());
        if copied.is_err() || self.parts.is_any_flying() {
            std::mem::forget(self.registered.take());
        }
    }
}

/// As the status of an operation.
pub(crate) fn status_of(error: CudaError) -> Status {
    Status::Library { library: &CUDA, code: error.code }
}
