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
use super::slots::{Slots, complete, goes_on_at};
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
    /// Progress by slot: how many bytes of its operation are done: the kernel may do it in several
    /// goes.
    done: Vec<u32>,
    /// Slots whose operation has another go to come.
    unfinished: Vec<u32>,
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
            devices: devices.iter().map(capabilities_of).collect(),
            depth,
            registered_buffers: Feature::Off("no memory was registered yet".into()),
            registered_files: queue.register_files(&descriptors),
            notes: vec![note],
        };
        let (gate, slots) = (Gate::to(&devices), Slots::new(depth));
        let (done, unfinished) = (vec![0; depth as usize], Vec::with_capacity(depth as usize));
        Ok(Self { queue, devices, capabilities, gate, slots, done, unfinished })
    }

    /// Submits what is left of the operation in a slot; whether it was taken.
    #[inline]
    fn enqueue(&mut self, slot: u32) -> bool {
        let fixed = matches!(self.capabilities.registered_files, Feature::On);
        let Some(kept) = self.slots.get_mut(slot) else { return false };
        let device = &self.devices[usize::from(kept.device.0)];
        let file =
            entry::File { kind: device.kind(), descriptor: device.file().as_raw_fd(), fixed };
        let done = self.done[slot as usize];
        let entry = entry::of(kept, done, file, self.queue.registered()).user_data(slot.into());
        // SAFETY: the buffer lies in its slot until the completion was seen (see the comment on the
        // trait's impl).
        unsafe { self.queue.push(&entry) }.is_ok()
    }

    /// Submits the rest of what the kernel has done in part. What it does not take ends as it is.
    fn go_on(&mut self, completions: &mut Vec<Completion>) {
        while let Some(slot) = self.unfinished.pop() {
            if !self.enqueue(slot) {
                let Self { slots, gate, done, .. } = self;
                end(slots, gate, slot, Ok(done[slot as usize]), completions);
            }
        }
        // If the path is dead, the next ring or wait says so.
        let _ = self.queue.ring();
    }

    /// Adds a note on the path, if there is one.
    pub(in crate::path) fn note(&mut self, note: Option<String>) {
        self.capabilities.notes.extend(note);
    }
}

/// Returns what a device can do on this path.
fn capabilities_of(device: &Device) -> DeviceCapabilities {
    let placement_handles = device.write_streams().into();
    DeviceCapabilities { placement_handles, ..DeviceCapabilities::of(device) }
}

/// Ends the operation in a slot, given the bytes moved in all, or the kernel's error number.
#[inline]
fn end(
    slots: &mut Slots,
    gate: &Gate,
    slot: u32,
    answer: Result<u32, i32>,
    completions: &mut Vec<Completion>,
) {
    let Some(operation) = slots.take(slot) else { return };
    let completion = complete(operation, answer);
    if let Err(error) = completion.result {
        gate.judge(error);
    }
    completions.push(completion);
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

    fn unregister(&mut self) -> bool {
        self.queue.unregister()
    }

    fn submit(&mut self, operation: Operation) -> Result<(), Refused> {
        if let Err(reason) = self.gate.admit(&self.capabilities, &operation) {
            return Err(Refused { reason, operation });
        }
        if self.slots.is_full() {
            return Err(Refused { reason: Refusal::Full, operation });
        }
        let (slot, _) = self.slots.keep(operation);
        self.done[slot as usize] = 0;
        if !self.enqueue(slot)
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
        let Self { queue, slots, gate, done, unfinished, .. } = self;
        queue.reap(|slot, answer| {
            let slot = slot as u32;
            let Some(operation) = slots.get(slot) else { return };
            let done = &mut done[slot as usize];
            let answer = u32::try_from(answer).map_err(|_| answer.wrapping_neg());
            if let Ok(moved) = answer
                && let Some(next) = goes_on_at(operation, *done, moved)
            {
                *done = next;
                return unfinished.push(slot);
            }
            end(slots, gate, slot, answer.map(|moved| *done + moved), completions);
        });
        if !self.unfinished.is_empty() {
            self.go_on(completions);
        }
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::tests::{HalfDone, collect};
    use super::*;

    #[test]
    fn what_is_left_of_an_operation_is_done_where_it_belongs() {
        for (fua, registered) in [(false, false), (false, true), (true, false), (true, true)] {
            let half_done = HalfDone::new();
            let ring = ProbedRing::probe(4, None).unwrap();
            let mut path = UringPath::new(ring, vec![half_done.device()]).unwrap();
            if registered {
                path.register(&half_done.memory);
            }
            half_done.check(fua, |operation, done| {
                let (slot, _) = path.slots.keep(operation);
                path.done[slot as usize] = done;
                assert!(path.enqueue(slot));
                path.ring().unwrap();
                let completion = collect(&mut path, 1).pop().unwrap();
                completion.result.unwrap();
                completion.into_buffer().unwrap()
            });
        }
    }
}
