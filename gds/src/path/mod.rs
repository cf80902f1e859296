//! The engine's data path by way of GPU memory: whoever names it gets cuFile, or a reason.
//!
//! cuFile reads and writes. What it has no call for (flush, zeroes, deallocation, a write that must be on the medium)
//! the kernel does, on the same files: a few threads of the engine's `posix` path. The engine's buffers are in host
//! memory; they pass through the ring like everything else. Memory of the path's own GPU never sees the host: its checksums
//! are the GPU's.
#![allow(unsafe_code)]

mod provider;

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidelog_engine::memory::{DmaPool, GpuError, GpuMemory, Memory};
use tidelog_engine::path::backend::{Gate, Slots, WindowSize, conclude};
use tidelog_engine::path::posix::PosixPath;
use tidelog_engine::path::{
    Action, Capabilities, Completion, DataPath, Extent, Feature, Operation, Refusal, Refused,
    Status, Waker,
};

use crate::cuda::{Gpu, HostLock};
use crate::cufile::CuFileError;
use crate::queue::{Answer, Direction, End, Queue, Request};

pub use provider::{GdsBackend, GdsDevices, GdsOptions, Region};

/// How long a thread that waits naps between two looks: cuFile's batches wake nobody.
const NAP: Duration = Duration::from_micros(40);
/// So many looks without a nap come first, for transfers that are about to end.
const LOOKS: u32 = 50;

/// One queue of cuFile to files and block devices, as the engine wants it.
pub struct GdsPath {
    capabilities: Capabilities,
    gate: Gate,
    slots: Slots,
    queue: Queue,
    /// For what cuFile has no call for. Its tags are our slots.
    kernel: PosixPath,
    kernel_done: Vec<Completion>,
    /// For each slot, what the GPU found before the kernel's flush.
    checksums: Vec<Option<u32>>,
    gpu: Arc<Gpu>,
    /// Unlocked before the memory that it locks goes.
    host_lock: Option<HostLock>,
    host_memory: Option<DmaPool>,
    /// Why cuFile no longer answers.
    dead: Option<CuFileError>,
}

impl GdsPath {
    fn advance(&mut self) -> io::Result<()> {
        if let Some(why) = &self.dead {
            return Err(io::Error::other(why.clone()));
        }
        self.queue.advance().map_err(|error| {
            self.dead = Some(error.clone());
            io::Error::other(error)
        })
    }

    /// Puts an operation that cuFile has no call for before the kernel.
    fn submit_to_kernel(
        &mut self,
        slot: u32,
        extent: Extent,
        action: Action,
    ) -> Result<(), Refusal> {
        let Some(device) = self.slots.get(slot).map(|operation| operation.device) else {
            return Ok(());
        };
        let twin = Operation::new(u64::from(slot), device, extent, action);
        self.kernel.submit(twin).map_err(|refused| refused.reason)
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

    /// What cuFile answered about the operation in a slot.
    fn take_in(&mut self, answer: Answer, completions: &mut Vec<Completion>) {
        let slot = answer.tag as u32;
        let Some(operation) = self.slots.get(slot) else { return };
        let length = operation.extent.length.0 as u32;
        let forced = matches!(operation.action, Action::Write { fua: true, .. });
        self.checksums[slot as usize] = answer.checksum;
        match answer.result {
            Ok(()) if forced => match self.submit_to_kernel(slot, Extent::NOTHING, Action::Flush) {
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

// SAFETY: an operation lies in its slot, with its buffer, until the queue has answered (its word that no device touches
// the buffer) and, where one was needed, until the kernel's flush has ended. `drop` leaks the rest. Success is claimed
// for whole extents only.
unsafe impl DataPath for GdsPath {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn register(&mut self, region: &DmaPool) {
        let (base, length) = region.span();
        self.host_lock = None;
        // SAFETY: the mapping is kept by `host_memory`, which is dropped after the lock.
        let locked = unsafe { HostLock::new(&self.gpu, base, length) };
        self.capabilities.registered_buffers = match locked {
            Ok(lock) => {
                self.host_lock = Some(lock);
                Feature::On
            }
            Err(error) => Feature::Off(format!("{error}; copies bounce in the driver")),
        };
        self.host_memory = Some(region.clone());
    }

    fn reach_gpu(&mut self, gpu: &dyn GpuMemory, _window: WindowSize) -> Result<(), GpuError> {
        let ours = self.gpu.to_string();
        let reached = gpu.name() == ours;
        self.capabilities.memory.gpu = reached;
        if reached {
            return Ok(());
        }
        Err(GpuError(format!("the gds data path goes by way of {ours}; name that GPU to it")))
    }

    fn submit(&mut self, operation: Operation) -> Result<(), Refused> {
        if let Err(reason) = self.gate.admit(&self.capabilities, &operation) {
            return Err(Refused { reason, operation });
        }
        if self.slots.is_full() {
            return Err(Refused { reason: Refusal::Full, operation });
        }
        let (device, extent) = (operation.device, operation.extent);
        let (slot, kept) = self.slots.keep(operation);
        let plain = match &mut kept.action {
            Action::Read(memory) => Ok((Direction::Read, end_of(memory))),
            Action::Write { memory, .. } => Ok((Direction::Write, end_of(memory))),
            Action::WriteZeroes => Err(Action::WriteZeroes),
            Action::Flush => Err(Action::Flush),
            Action::Deallocate => Err(Action::Deallocate),
        };
        let refusal = match plain {
            Ok((direction, end)) => {
                let (offset, length) = (extent.offset.0, extent.length.0 as u32);
                let request =
                    Request { tag: u64::from(slot), device, offset, length, direction, end };
                // SAFETY: the gate has seen that the extent lies on the device and in the buffer, or holds the GPU's memory;
                // the buffer stays in its slot until the answer, the memory stays until the completion (`GpuSlice::new`).
                unsafe { self.queue.submit(request) }.err().map(|_| Refusal::Full)
            }
            Err(action) => self.submit_to_kernel(slot, extent, action).err(),
        };
        match refusal.and_then(|reason| Some((reason, self.slots.take(slot)?))) {
            Some((reason, operation)) => Err(Refused { reason, operation }),
            None => Ok(()),
        }
    }

    fn ring(&mut self) -> io::Result<()> {
        self.advance()
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) -> usize {
        let before = completions.len();
        // A path that is dead says so when it is rung or waited for.
        let _ = self.advance();
        let answers: Vec<Answer> = self.queue.answers().collect();
        for answer in answers {
            self.take_in(answer, completions);
        }
        let mut done = std::mem::take(&mut self.kernel_done);
        self.kernel.poll(&mut done);
        for completion in done.drain(..) {
            let slot = completion.tag as u32;
            let length =
                self.slots.get(slot).map_or(0, |operation| operation.extent.length.0 as u32);
            let answer = completion.result.map(|()| length).map_err(|error| error.status);
            self.complete(slot, answer, completions);
        }
        self.kernel_done = done;
        completions.len() - before
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        if self.queue.in_flight() == 0 {
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
            if over || self.queue.has_answers() || waker.sleep(Some(Duration::ZERO))? {
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
        for slot in slots {
            self.queue.abort(Some(u64::from(slot)));
            self.kernel.abort(u64::from(slot));
        }
    }

    fn in_flight(&self) -> usize {
        self.slots.in_flight()
    }

    fn abort_all(&mut self) {
        self.queue.abort(None);
        self.kernel.abort_all();
    }
}

/// Memory as the end of a transfer.
fn end_of(memory: &mut Memory) -> End {
    match memory {
        Memory::Gpu(slice) => End::Device(*slice),
        memory => End::Host(NonNull::new(memory.address()).unwrap_or(NonNull::dangling())),
    }
}

impl Drop for GdsPath {
    fn drop(&mut self) {
        if self.slots.in_flight() > 0 {
            // Buffers that a copy may still touch keep their memory, and it stays locked.
            self.slots.leak();
            std::mem::forget(self.host_lock.take());
        }
    }
}
