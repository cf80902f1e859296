//! Threads of `pread` and `pwrite`, for containers that forbid `io_uring`. Each device has threads
//! of its own: one that does not answer keeps no other waiting.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam::channel::{Receiver, Sender, bounded};

use super::device::{Device, fallocate_mode};
use super::error::PathError;
use super::gate::Gate;
use super::kind::PathKind;
use super::operation::{Action, Completion, Operation, Refusal, Refused};
use super::slots::{complete, goes_on_at};
use super::{Capabilities, DataPath, DeviceCapabilities, Feature, MemoryKinds, Waker};
use crate::memory::DmaPool;

/// Threads per device: enough to hide the latency of a disk, too few to crowd a small machine.
const THREADS_PER_DEVICE: u32 = 4;
/// Threads at most, unless there are more devices.
const THREADS_MAX: u32 = 32;

/// A few threads that do one operation at a time.
pub struct PosixPath {
    capabilities: Capabilities,
    gate: Gate,
    /// The tag of what is in flight, by slot; the operation itself is with a thread.
    tags: Vec<Option<u64>>,
    free: Vec<u32>,
    aborted: Arc<[AtomicBool]>,
    /// Queues of jobs, by device.
    jobs: Vec<Sender<Job>>,
    done: Receiver<(u32, Completion)>,
    waker: Waker,
}

struct Job {
    slot: u32,
    operation: Operation,
}

impl PosixPath {
    /// Adds a note on the path, if there is one.
    pub(super) fn note(&mut self, note: Option<String>) {
        self.capabilities.notes.extend(note);
    }

    /// Opens `devices` with room for `depth` operations and starts the threads. Threads end when
    /// the path is dropped; one that is stuck in a device keeps its buffer.
    pub fn new(devices: Vec<Device>, depth: u32) -> Result<Self, PathError> {
        let kind = PathKind::Posix;
        let failed = |what| move |source| PathError::System { kind, what, source };
        let depth = depth.max(1);
        let count = devices.len() as u32;
        let each = (THREADS_MAX / count.max(1)).clamp(1, THREADS_PER_DEVICE).min(depth);
        let waker = Waker::new().map_err(failed("make an eventfd"))?;
        // As large as what may be in flight, so that neither side ever waits to send.
        let (finished, done) = bounded(depth as usize);
        let aborted: Arc<[AtomicBool]> = (0..depth).map(|_| AtomicBool::new(false)).collect();
        let capabilities = Capabilities {
            memory: MemoryKinds::HOST,
            priorities: false,
            kind,
            devices: devices.iter().map(DeviceCapabilities::of).collect(),
            depth,
            registered_buffers: Feature::Off("pread and pwrite know none".into()),
            registered_files: Feature::Off("pread and pwrite know none".into()),
            notes: vec![format!("{} threads", count * each)],
        };
        let gate = Gate::to(&devices);
        let devices: Arc<[Device]> = devices.into();
        let mut jobs = Vec::new();
        for device in 0..count {
            let (sender, to_do) = bounded(depth as usize);
            jobs.push(sender);
            for index in 0..each {
                let worker = Worker {
                    devices: Arc::clone(&devices),
                    aborted: Arc::clone(&aborted),
                    jobs: to_do.clone(),
                    done: finished.clone(),
                    waker: waker.clone(),
                };
                std::thread::Builder::new()
                    .name(format!("tidelog-posix-{}", device * each + index))
                    .spawn(move || worker.run())
                    .map_err(failed("start a thread"))?;
            }
        }
        let (tags, free) = (vec![None; depth as usize], (0..depth).rev().collect());
        Ok(Self { capabilities, gate, tags, free, aborted, jobs, done, waker })
    }
}

// SAFETY: an operation and its buffer move to a thread and come back by value; a thread that never
// returns never drops them. Success is claimed only for whole extents (`complete`).
unsafe impl DataPath for PosixPath {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn register(&mut self, _region: &DmaPool) {}

    fn unregister(&mut self) -> bool {
        true
    }

    fn submit(&mut self, operation: Operation) -> Result<(), Refused> {
        if let Err(reason) = self.gate.admit(&self.capabilities, &operation) {
            return Err(Refused { reason, operation });
        }
        let Some(slot) = self.free.pop() else {
            return Err(Refused { reason: Refusal::Full, operation });
        };
        let (tag, device) = (operation.tag, usize::from(operation.device.0));
        self.aborted[slot as usize].store(false, Ordering::Relaxed);
        if let Err(unsent) = self.jobs[device].try_send(Job { slot, operation }) {
            self.free.push(slot);
            let operation = unsent.into_inner().operation;
            return Err(Refused { reason: Refusal::Full, operation });
        }
        self.tags[slot as usize] = Some(tag);
        Ok(())
    }

    fn ring(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) -> usize {
        let before = completions.len();
        for (slot, completion) in self.done.try_iter() {
            self.tags[slot as usize] = None;
            self.free.push(slot);
            if let Err(error) = completion.result {
                self.gate.judge(error);
            }
            completions.push(completion);
        }
        completions.len() - before
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        // The threads use the same waker; arming again costs nothing if the caller did.
        self.waker.arm();
        if self.done.is_empty() { self.waker.sleep(timeout).map(|_| ()) } else { Ok(()) }
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn abort(&mut self, tag: u64) {
        for (carried, aborted) in self.tags.iter().zip(self.aborted.iter()) {
            aborted.fetch_or(*carried == Some(tag), Ordering::Relaxed);
        }
    }

    fn in_flight(&self) -> usize {
        self.tags.len() - self.free.len()
    }

    fn abort_all(&mut self) {
        self.aborted.iter().for_each(|aborted| aborted.store(true, Ordering::Relaxed));
    }
}

/// One thread.
struct Worker {
    devices: Arc<[Device]>,
    aborted: Arc<[AtomicBool]>,
    jobs: Receiver<Job>,
    done: Sender<(u32, Completion)>,
    waker: Waker,
}

impl Worker {
    fn run(self) {
        for Job { slot, mut operation } in &self.jobs {
            let answer = if self.aborted[slot as usize].load(Ordering::Relaxed) {
                Err(libc::ECANCELED)
            } else {
                let device = &self.devices[usize::from(operation.device.0)];
                perform_all(device, &mut operation)
                    .map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))
            };
            if self.done.send((slot, complete(operation, answer))).is_err() {
                return;
            }
            self.waker.wake();
        }
    }
}

/// Does the operation, in as many goes as the kernel makes of it; returns the bytes moved.
fn perform_all(device: &Device, operation: &mut Operation) -> io::Result<u32> {
    let mut done = 0;
    loop {
        let moved = perform(device, operation, done)?;
        match goes_on_at(operation, done, moved) {
            Some(next) => done = next,
            None => return Ok(done + moved),
        }
    }
}

/// Does the operation but for its first `done` bytes; returns the bytes moved.
fn perform(device: &Device, operation: &mut Operation, done: u32) -> io::Result<u32> {
    let offset = operation.extent.offset.0 + u64::from(done);
    let length = operation.extent.length.0 - u64::from(done);
    let done = done as usize;
    let descriptor = device.file().as_raw_fd();
    let moved = match &mut operation.action {
        Action::Read(memory) => {
            let to = memory.address().wrapping_add(done).cast();
            uninterrupted(|| {
                // SAFETY: the gate admits the host's memory alone, as long as the extent at least,
                // of which `done` bytes are no more than the length; it is the operation's, and
                // nobody else's, for the call.
                moved(unsafe { libc::pread(descriptor, to, length as usize, offset.cast_signed()) })
            })?
        }
        Action::Write { memory, fua } => {
            let (from, length) = (memory.address().wrapping_add(done).cast(), length as usize);
            let (forced, offset) = (*fua, offset.cast_signed());
            let run = libc::iovec { iov_base: from, iov_len: length };
            uninterrupted(|| {
                // SAFETY: as above; the kernel only reads it.
                moved(unsafe {
                    if forced {
                        libc::pwritev2(descriptor, &raw const run, 1, offset, libc::RWF_DSYNC)
                    } else {
                        libc::pwrite(descriptor, from, length, offset)
                    }
                })
            })?
        }
        Action::Flush => device.file().sync_data().map(|()| 0)?,
        action @ (Action::WriteZeroes | Action::Deallocate) => {
            let mode = fallocate_mode(device.kind(), action);
            uninterrupted(|| {
                // SAFETY: no memory arguments; the descriptor is open for the call. Offsets beyond
                // what the kernel's signed type holds were refused, as no device is that large.
                match unsafe {
                    libc::fallocate(descriptor, mode, offset.cast_signed(), length.cast_signed())
                } {
                    0 => Ok(0),
                    _ => Err(io::Error::last_os_error()),
                }
            })?
        }
    };
    Ok(moved as u32)
}

/// Converts a system call's result: the bytes that it moved.
fn moved(answer: isize) -> io::Result<usize> {
    usize::try_from(answer).map_err(|_| io::Error::last_os_error())
}

fn uninterrupted(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            answer => return answer,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::tests::HalfDone;
    use super::*;

    #[test]
    fn what_is_left_of_an_operation_is_done_where_it_belongs() {
        for fua in [false, true] {
            let half_done = HalfDone::new();
            let device = half_done.device();
            half_done.check(fua, |mut operation, done| {
                let left = operation.extent.length.0 as u32 - done;
                assert_eq!(perform(&device, &mut operation, done).unwrap(), left);
                operation.action.into_buffer().unwrap()
            });
        }
    }
}
