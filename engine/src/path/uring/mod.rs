//! The path of choice: `io_uring` on files and block devices, without the page cache.
//!
//! One ring serves all devices of a reactor and belongs to its thread. Files are registered, and so
//! is the staging memory where the memlock limit allows; what the kernel has is probed, not assumed
//! (5.15 and newer).

mod entry;
mod probe;

pub use probe::Ring;

use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use io_uring::{IoUring, opcode, squeue, types};

use super::choose::{PathError, PathKind};
use super::device::Device;
use super::gate::Gate;
use super::operation::{Completion, Operation, Refusal, Refused};
use super::slots::{Slots, complete};
use super::{Capabilities, DataPath, DeviceCapabilities, Feature, Waker};
use crate::memory::DmaPool;
use crate::units::ByteCount;

/// Completions that are not operations: the waker's, and those of cancellations.
const WAKE: u64 = u64::MAX;
const CANCEL: u64 = u64::MAX - 1;

/// So many entries at most wait for [`DataPath::ring`]. The kernel starts a batch's devices only when it has taken in
/// the whole batch, so that a long one leaves them idle meanwhile, and its completions come in one bunch, too.
/// Shorter ones cost a system call more often (docs/data-paths.md has the figures).
const BATCH: u32 = 8;

/// One ring to files and block devices.
pub struct UringPath {
    ring: IoUring,
    devices: Vec<Device>,
    capabilities: Capabilities,
    gate: Gate,
    slots: Slots,
    /// Operations that the kernel was not told of yet.
    fresh: u32,
    /// The memory registered as fixed buffers: address and length.
    registered: Option<(usize, usize)>,
    waker: Waker,
    /// Whether the ring watches the waker.
    watching: bool,
}

impl UringPath {
    /// Opens `devices` on a probed ring.
    pub fn new(ring: Ring, devices: Vec<Device>) -> Result<Self, PathError> {
        let Ring { uring: ring, depth, notes } = ring;
        let kind = PathKind::Uring;
        let waker = Waker::new().map_err(|source| PathError::System {
            kind,
            what: "make an eventfd",
            source,
        })?;
        let descriptors: Vec<_> = devices.iter().map(|device| device.file().as_raw_fd()).collect();
        let registered_files = match ring.submitter().register_files(&descriptors) {
            Ok(()) => Feature::On,
            Err(error) => Feature::Off(format!("the kernel refused: {error}")),
        };
        let capabilities = Capabilities {
            kind,
            devices: devices.iter().map(DeviceCapabilities::of).collect(),
            depth,
            registered_buffers: Feature::Off("no memory was registered yet".into()),
            registered_files,
            notes,
        };
        let (gate, slots) = (Gate::new(devices.len()), Slots::new(depth));
        let (fresh, registered, watching) = (0, None, false);
        Ok(Self { ring, devices, capabilities, gate, slots, fresh, registered, waker, watching })
    }

    /// Puts an entry into the submission queue, making room if it is full.
    ///
    /// # Safety
    /// Memory that the entry names must stay valid, and untouched where the kernel writes it, until
    /// the entry's completion was seen.
    unsafe fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        // SAFETY: passed on to the caller.
        if unsafe { self.ring.submission().push(entry) }.is_ok() {
            return Ok(());
        }
        self.ring.submit()?;
        // SAFETY: passed on to the caller.
        let pushed = unsafe { self.ring.submission().push(entry) };
        pushed.map_err(|_| io::ErrorKind::WouldBlock.into())
    }

    fn cancel(&mut self, slot: u32) {
        let entry = opcode::AsyncCancel::new(u64::from(slot)).build().user_data(CANCEL);
        // SAFETY: the entry names no memory. When the queue has no room the operation simply is not
        // cancelled, which callers must expect anyway.
        let _ = unsafe { self.push(&entry) };
    }

    /// Has the ring watch the waker's descriptor until it fires.
    fn watch(&mut self) -> io::Result<()> {
        if self.watching {
            return Ok(());
        }
        let descriptor = types::Fd(self.waker.descriptor());
        let entry = opcode::PollAdd::new(descriptor, libc::POLLIN as u32).build().user_data(WAKE);
        // SAFETY: the entry names no memory.
        unsafe { self.push(&entry) }?;
        self.watching = true;
        Ok(())
    }
}

// SAFETY: an accepted operation stays in its slot, with its buffer, until its completion entry was
// seen, which is the kernel's word that it is done with the memory; `drop` leaks what is left. Success
// is claimed only when the kernel moved the whole extent (`complete`).
unsafe impl DataPath for UringPath {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn register(&mut self, region: &DmaPool) {
        let (base, length) = region.span();
        let runs: Vec<_> = (0..length)
            .step_by(entry::REGISTERED_RUN)
            .map(|start| libc::iovec {
                iov_base: base.wrapping_add(start).cast(),
                iov_len: (length - start).min(entry::REGISTERED_RUN),
            })
            .collect();
        // SAFETY: the pages are pinned by the kernel for as long as the ring lives, so unmapping them
        // early would not let a device write into other memory; buffers keep the mapping anyway.
        let answer = unsafe { self.ring.submitter().register_buffers(&runs) };
        self.capabilities.registered_buffers = match answer {
            Ok(()) => {
                self.registered = Some((base as usize, length));
                Feature::On
            }
            Err(error) => Feature::Off(why_unregistered(region.size(), &error)),
        };
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
        let entry = entry::of(kept, file, self.registered).user_data(slot.into());
        // SAFETY: the buffer lies in its slot until the completion was seen (see the impl's comment).
        if unsafe { self.push(&entry) }.is_err()
            && let Some(operation) = self.slots.take(slot)
        {
            return Err(Refused { reason: Refusal::Full, operation });
        }
        self.fresh += 1;
        if self.fresh >= BATCH {
            // The operation was accepted whatever the kernel answers; if the path is dead, `ring` says so.
            let _ = self.ring();
        }
        Ok(())
    }

    fn ring(&mut self) -> io::Result<()> {
        let submission = self.ring.submission();
        if submission.is_empty() && !submission.taskrun() && !submission.cq_overflow() {
            return Ok(());
        }
        drop(submission);
        self.fresh = 0;
        tolerate(self.ring.submit())
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) -> usize {
        let before = completions.len();
        for entry in self.ring.completion() {
            match entry.user_data() {
                WAKE => self.watching = false,
                CANCEL => {}
                slot => {
                    let Some(operation) = self.slots.take(slot as u32) else { continue };
                    let answer = u32::try_from(entry.result());
                    let answer = answer.map_err(|_| entry.result().wrapping_neg());
                    let completion = complete(operation, answer);
                    if let Err(error) = completion.result {
                        self.gate.judge(error);
                    }
                    completions.push(completion);
                }
            }
        }
        completions.len() - before
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.watch()?;
        self.fresh = 0;
        let submitter = self.ring.submitter();
        tolerate(match timeout {
            None => submitter.submit_and_wait(1),
            Some(timeout) => {
                let time = types::Timespec::from(timeout);
                submitter.submit_with_args(1, &types::SubmitArgs::new().timespec(&time))
            }
        })
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn abort(&mut self, tag: u64) {
        let slots: Vec<u32> = self.slots.find(Some(tag)).collect();
        for slot in slots {
            self.cancel(slot);
        }
    }

    fn in_flight(&self) -> usize {
        self.slots.in_flight()
    }

    fn abort_all(&mut self) {
        let slots: Vec<u32> = self.slots.find(None).collect();
        for slot in slots {
            self.cancel(slot);
        }
    }
}

impl Drop for UringPath {
    fn drop(&mut self) {
        // Closing the ring does not wait for what is on a device.
        self.slots.leak();
    }
}

/// Interruptions, a time that is up and a completion queue to be emptied first are no failures.
fn tolerate(answer: io::Result<usize>) -> io::Result<()> {
    match answer {
        Ok(_) => Ok(()),
        Err(error) => match error.raw_os_error() {
            Some(libc::EINTR | libc::ETIME | libc::EBUSY | libc::EAGAIN) => Ok(()),
            _ => Err(error),
        },
    }
}

fn why_unregistered(size: ByteCount, error: &io::Error) -> String {
    if error.raw_os_error() != Some(libc::ENOMEM) {
        return format!("the kernel refused to register {size}: {error}");
    }
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call writes one rlimit, which is ours.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) } == 0;
    let limit = if known { ByteCount(limit.rlim_cur).to_string() } else { "unknown".into() };
    format!("{size} do not fit into the memlock limit of {limit} (ulimit -l raises it)")
}
