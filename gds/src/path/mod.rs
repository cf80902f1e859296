//! The engine's data path to GPU memory: whoever names it gets cuFile, or a reason.
//!
//! cuFile moves the memory of the path's own GPU, of which the host sees nothing: checksums are the
//! GPU's. The kernel does the rest on the same files, by a few threads of the engine's `posix`
//! path: the host's memory, and what cuFile has no call for (flush, zeroes, deallocation, a write
//! that must be on the medium).
#![allow(unsafe_code)]

mod provider;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidelog_engine::memory::{DmaPool, GpuMemory, GpuSlice, Memory, WindowSize};
use tidelog_engine::path::backend::{Gate, Slots, conclude};
use tidelog_engine::path::posix::PosixPath;
use tidelog_engine::path::{
    Action, Capabilities, Completion, DataPath, Device, Extent, Feature, Operation, PathError,
    Refusal, Refused, Status, Waker,
};

use crate::cuda::Gpu;
use crate::cufile::{CuFileError, Driver};
use crate::queue::{CuFileQueue, WindowCompletion, WindowRequest};

pub use provider::{CallerRegion, GdsBackend, GdsDevices, GdsOptions};

/// Time that a waiting thread sleeps between two polls: cuFile's batches wake nobody.
const NAP: Duration = Duration::from_micros(40);
/// Number of polls without a sleep, for transfers that are about to end.
const LOOKS: u32 = 50;

/// Tags from here on are ours, for the kernel's flush behind a write of cuFile: the rest is the
/// write's slot.
const OURS: u64 = 1 << 63;

/// One queue of cuFile to files and block devices, as the engine wants it.
pub struct GdsPath {
    capabilities: Capabilities,
    gate: Gate,
    /// Operations of the GPU's memory.
    slots: Slots,
    /// Queue that moves the bytes, once the path is to reach that memory.
    queue: Option<CuFileQueue>,
    /// Devices of the path.
    devices: Vec<Device>,
    driver: Arc<Driver>,
    registered: Vec<CallerRegion>,
    /// Data path of the kernel, for all other operations, and for the flush behind a write that
    /// must be on the medium.
    kernel: PosixPath,
    /// Checksums of each slot that the GPU took before the kernel's flush.
    checksums: Vec<Option<u32>>,
    /// Flushes that the kernel has, behind writes of ours.
    flushing: usize,
    gpu: Arc<Gpu>,
    /// The reason why cuFile no longer responds.
    dead: Option<CuFileError>,
}

impl GdsPath {
    fn advance(&mut self) -> io::Result<()> {
        if let Some(why) = &self.dead {
            return Err(io::Error::other(why.clone()));
        }
        self.queue.as_mut().map_or(Ok(()), CuFileQueue::advance).map_err(|error| {
            self.dead = Some(error.clone());
            io::Error::other(error)
        })
    }

    /// Gives an operation of the GPU's memory to cuFile.
    fn submit_of_gpu(&mut self, operation: Operation, memory: GpuSlice) -> Result<(), Refused> {
        if self.slots.is_full() {
            return Err(Refused { reason: Refusal::Full, operation });
        }
        let Some(queue) = &mut self.queue else {
            let reason = Refusal::Invalid("there is no window to that GPU's memory");
            return Err(Refused { reason, operation });
        };
        let (slot, operation) = self.slots.keep(operation);
        let request = WindowRequest::of(slot, operation, memory);
        // SAFETY: the gate has seen that the extent lies on the device and holds the memory, which
        // stays until the completion (`GpuSlice::new`), and that comes after the answer.
        let taken = unsafe { queue.submit(request) };
        let Err(reason) = taken else { return Ok(()) };
        self.slots.take(slot).map_or(Ok(()), |operation| Err(Refused { reason, operation }))
    }

    /// Has the kernel flush behind the write in a slot.
    fn flush_behind(&mut self, slot: u32) -> Result<(), Refusal> {
        let Some(device) = self.slots.get(slot).map(|operation| operation.device) else {
            return Ok(());
        };
        let (tag, extent) = (OURS | u64::from(slot), Extent::NOTHING);
        let flush = Operation::new(tag, device, extent, Action::Flush);
        self.kernel.submit(flush).map_err(|refused| refused.reason)?;
        self.flushing += 1;
        Ok(())
    }

    /// Ends an operation, with what its device answered.
    fn complete(
        &mut self,
        slot: u32,
        answer: Result<u32, Status>,
        completions: &mut Vec<Completion>,
    ) {
        let completion = self.conclude(slot, answer);
        if let Some(Err(error)) = completion.as_ref().map(|completion| completion.result) {
            self.gate.judge(error);
        }
        completions.extend(completion);
    }

    fn conclude(&mut self, slot: u32, answer: Result<u32, Status>) -> Option<Completion> {
        let mut completion = conclude(self.slots.take(slot)?, answer);
        let checksum = self.checksums[slot as usize].take();
        completion.checksum = checksum.filter(|_| completion.result.is_ok());
        Some(completion)
    }

    /// The flush behind a write has ended.
    fn flushed(&mut self, flush: &Completion, completions: &mut Vec<Completion>) {
        let slot = (flush.tag & !OURS) as u32;
        let length = self.slots.get(slot).map_or(0, |operation| operation.extent.length.0 as u32);
        let answer = flush.result.map(|()| length).map_err(|error| error.status);
        self.complete(slot, answer, completions);
    }

    /// Processes the completion of the operation in a slot.
    fn process_completions(&mut self, answer: WindowCompletion, completions: &mut Vec<Completion>) {
        let slot = answer.tag as u32;
        let Some(operation) = self.slots.get(slot) else { return };
        let length = operation.extent.length.0 as u32;
        let forced = matches!(operation.action, Action::Write { fua: true, .. });
        self.checksums[slot as usize] = answer.checksum;
        match answer.result {
            Ok(()) if forced => match self.flush_behind(slot) {
                Ok(()) => {}
                Err(Refusal::Latched(cause)) => self.complete(slot, Err(cause.status), completions),
                Err(_) => self.complete(slot, Err(Status::Errno(libc::EIO)), completions),
            },
            // The GPU failed, before the device got anything or after it had done its part.
            Err(status) if !answer.by_device => {
                completions.extend(self.conclude(slot, Err(status)));
            }
            result => self.complete(slot, result.map(|()| length), completions),
        }
    }
}

// SAFETY: an operation of the GPU's memory lies in its slot until the queue has answered (its word
// that no device touches the memory) and, where one was needed, until the kernel's flush has ended.
// Success is claimed for whole extents only. All other operations are the kernel path's, unchanged.
unsafe impl DataPath for GdsPath {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn register(&mut self, region: &DmaPool) {
        self.kernel.register(region);
        self.capabilities.registered_buffers =
            self.kernel.capabilities().registered_buffers.clone();
    }

    fn reach_gpu(&mut self, gpu: &dyn GpuMemory, window: WindowSize) -> Result<Feature, PathError> {
        let ours = self.gpu.to_string();
        if gpu.name() != ours {
            return Ok(Feature::Off(format!(
                "the gds data path goes by way of {ours}; name that GPU to it"
            )));
        }
        if self.queue.is_some() {
            return Ok(Feature::Off("the data path reaches a GPU already".into()));
        }
        self.open_queue(window)?;
        Ok(Feature::On)
    }

    fn submit(&mut self, operation: Operation) -> Result<(), Refused> {
        if operation.tag >= OURS {
            let reason = Refusal::Invalid("tags from 2^63 on are the path's own");
            return Err(Refused { reason, operation });
        }
        // What cuFile failed with shuts the device to the kernel's operations as well.
        if let Err(reason) = self.gate.admit(&self.capabilities, &operation) {
            return Err(Refused { reason, operation });
        }
        if self.in_flight() >= self.capabilities.depth as usize {
            return Err(Refused { reason: Refusal::Full, operation });
        }
        match operation.action.memory() {
            Some(&Memory::Gpu(memory)) => self.submit_of_gpu(operation, memory),
            _ => self.kernel.submit(operation),
        }
    }

    fn ring(&mut self) -> io::Result<()> {
        self.advance()
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) -> usize {
        let before = completions.len();
        // A path that is dead says so when it is rung or waited for.
        let _ = self.advance();
        let found: Vec<WindowCompletion> =
            self.queue.iter_mut().flat_map(CuFileQueue::completions).collect();
        for answer in found {
            self.process_completions(answer, completions);
        }
        let mut at = completions.len();
        self.kernel.poll(completions);
        while at < completions.len() {
            if completions[at].tag < OURS {
                if let Err(error) = completions[at].result {
                    self.gate.judge(error);
                }
                at += 1;
            } else {
                let flush = completions.swap_remove(at);
                self.flushing -= 1;
                self.flushed(&flush, completions);
            }
        }
        completions.len() - before
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        if self.queue.as_ref().is_none_or(|queue| queue.in_flight() == 0) {
            return self.kernel.wait(timeout);
        }
        let waker = self.waker();
        // The kernel's threads use the same waker; arming again costs nothing if the caller did.
        waker.arm();
        let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut looks = 0_u32;
        loop {
            self.advance()?;
            let over = end.is_some_and(|end| Instant::now() >= end);
            let answered = self.queue.as_ref().is_some_and(CuFileQueue::has_completions);
            if over || answered || waker.sleep(Some(Duration::ZERO))? {
                return Ok(());
            }
            looks = looks.saturating_add(1);
            if looks < LOOKS {
                std::hint::spin_loop();
            } else {
                std::thread::sleep(NAP);
            }
        }
    }

    fn waker(&self) -> Waker {
        self.kernel.waker()
    }

    fn abort(&mut self, tag: u64) {
        let slots: Vec<u32> = self.slots.find(Some(tag)).collect();
        if slots.is_empty() && tag < OURS {
            return self.kernel.abort(tag);
        }
        for slot in slots {
            self.queue.iter_mut().for_each(|queue| queue.abort(Some(slot.into())));
            self.kernel.abort(OURS | u64::from(slot));
        }
    }

    fn in_flight(&self) -> usize {
        self.kernel.in_flight() - self.flushing + self.slots.in_flight()
    }

    fn abort_all(&mut self) {
        self.queue.iter_mut().for_each(|queue| queue.abort(None));
        self.kernel.abort_all();
    }
}
