//! The path of choice: `io_uring` on files and block devices, without the page cache.
//!
//! One ring serves all devices of a reactor and belongs to its thread. Files are registered, and so
//! is the staging memory where the memlock limit allows; what the kernel has is probed, not assumed
//! (5.15 and newer).
//!
//! [`passthrough`] sends NVMe commands through a ring of the same kind, to whole namespaces.

mod entry;
pub mod passthrough;
mod probe;
mod queue;
mod valgrind;

pub use probe::ProbedRing;

use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use io_uring::{cqueue, squeue};

use super::device::Device;
use super::error::PathError;
use super::gate::Gate;
use super::kind::PathKind;
use super::operation::{Completion, Operation, Refusal, Refused};
use super::slots::{Slots, complete};
use super::{Capabilities, DataPath, DeviceCapabilities, Feature, MemoryKinds, Waker};
use crate::memory::DmaPool;

use self::queue::{OwnedRing, RUN_MAX};

/// A thread of the kernel that looks for submissions, so that none is a system call (SQPOLL): for
/// `io_uring` alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SubmissionThread {
    /// The processor that it runs on; any where there is none.
    pub processor: Option<u32>,
}

/// One ring to files and block devices.
pub struct UringPath {
    queue: OwnedRing<squeue::Entry, cqueue::Entry>,
    devices: Vec<Device>,
    capabilities: Capabilities,
    gate: Gate,
    slots: Slots,
}

impl UringPath {
    /// Opens `devices` on a probed ring.
    pub fn new(ring: ProbedRing, devices: Vec<Device>) -> Result<Self, PathError> {
        let (kind, depth, note) = (PathKind::Uring, ring.depth, ring.note());
        let queue = OwnedRing::new(ring.uring, kind)?;
        let descriptors: Vec<_> = devices.iter().map(|device| device.file().as_raw_fd()).collect();
        let capabilities = Capabilities {
            memory: MemoryKinds::HOST,
            priorities: true,
            kind,
            devices: devices.iter().map(DeviceCapabilities::of).collect(),
            depth,
            registered_buffers: Feature::Off("no memory was registered yet".into()),
            registered_files: queue.register_files(&descriptors),
            notes: vec![note],
        };
        let (gate, slots) = (Gate::new(devices.len()), Slots::new(depth));
        Ok(Self { queue, devices, capabilities, gate, slots })
    }

    /// Something more to be told of the path, if there is anything.
    pub(in crate::path) fn note(&mut self, note: Option<String>) {
        self.capabilities.notes.extend(note);
    }
}

// SAFETY: an accepted operation stays in its slot, with its buffer, until its completion entry was
// seen, which is the kernel's word that it is done with the memory; `drop` leaks what is left.
// Success is claimed only when the kernel moved the whole extent (`complete`).
unsafe impl DataPath for UringPath {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn register(&mut self, region: &DmaPool) {
        self.capabilities.registered_buffers = self.queue.register(region, RUN_MAX);
    }

    fn submit(&mut self, operation: Operation) -> Result<(), Refused> {
        if let Err(reason) = self.gate.admit(&self.capabilities, &operation) {
            return Err(Refused { reason, operation });
        }
        if self.slots.is_full() {
            return Err(Refused { reason: Refusal::Full, operation });
        }
        let fixed = self.capabilities.registered_files == Feature::On;
        let device = &self.devices[usize::from(operation.device.0)];
        let file =
            entry::File { kind: device.kind(), descriptor: device.file().as_raw_fd(), fixed };
        let (slot, kept) = self.slots.keep(operation);
        let entry = entry::of(kept, file, self.queue.registered()).user_data(slot.into());
        // SAFETY: the buffer lies in its slot until the completion was seen (see the impl's
        // comment).
        if unsafe { self.queue.push(&entry) }.is_err()
            && let Some(operation) = self.slots.take(slot)
        {
            return Err(Refused { reason: Refusal::Full, operation });
        }
        Ok(())
    }

    fn ring(&mut self) -> io::Result<()> {
        self.queue.ring()
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) -> usize {
        let before = completions.len();
        let Self { queue, slots, gate, .. } = self;
        queue.reap(|slot, answer| {
            let Some(operation) = slots.take(slot as u32) else { return };
            let answer = u32::try_from(answer).map_err(|_| answer.wrapping_neg());
            let completion = complete(operation, answer);
            if let Err(error) = completion.result {
                gate.judge(error);
            }
            completions.push(completion);
        });
        completions.len() - before
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.queue.wait(timeout)
    }

    fn waker(&self) -> Waker {
        self.queue.waker()
    }

    fn abort(&mut self, tag: u64) {
        let slots: Vec<u32> = self.slots.find(Some(tag)).collect();
        for slot in slots {
            self.queue.cancel(slot.into());
        }
    }

    fn in_flight(&self) -> usize {
        self.slots.in_flight()
    }

    fn abort_all(&mut self) {
        let slots: Vec<u32> = self.slots.find(None).collect();
        for slot in slots {
            self.queue.cancel(slot.into());
        }
    }
}

impl Drop for UringPath {
    fn drop(&mut self) {
        // Closing the ring does not wait for what is on a device.
        self.slots.leak();
    }
}
