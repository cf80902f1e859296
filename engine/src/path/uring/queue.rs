//! One ring of the kernel: entries in, completions out, and sleep meanwhile.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

use io_uring::{IoUring, cqueue, opcode, squeue, types};

use super::super::error::PathError;
use super::super::kind::PathKind;
use super::super::waker::await_readable;
use super::super::{Feature, Waker};
use super::valgrind;
use crate::memory::DmaPool;
use crate::units::ByteCount;

/// Completions that are not operations: the waker's, and those of cancellations.
const WAKE: u64 = u64::MAX;
const CANCEL: u64 = u64::MAX - 1;

/// Limit of entries that wait for [`Queue::ring`]. The kernel starts a batch's devices only when it
/// has processed the whole batch, so that a long one leaves them idle meanwhile, and its
/// completions come in one bunch, too. Shorter ones cost a system call more often
/// (docs/measurements.md has the figures).
const BATCH: u32 = 8;

/// The kernel registers at most this much memory as one buffer.
pub(super) const RUN_MAX: usize = 1 << 30;

/// A ring, of the thread that made it.
pub(super) struct OwnedRing<S: squeue::EntryMarker, C: cqueue::EntryMarker> {
    ring: IoUring<S, C>,
    /// Entries that the kernel was not told of yet.
    fresh: u32,
    registered: Registered,
    waker: Waker,
    /// True if the ring watches the waker.
    watching: bool,
    /// True under valgrind, where a thread that waits in `io_uring_enter` keeps all others waiting.
    under_valgrind: bool,
}

/// The memory registered as fixed buffers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Registered {
    base: usize,
    length: usize,
    /// Bytes of each buffer but the last.
    run: usize,
}

impl<S: squeue::EntryMarker + From<squeue::Entry>, C: cqueue::EntryMarker> OwnedRing<S, C> {
    pub(super) fn new(ring: IoUring<S, C>, kind: PathKind) -> Result<Self, PathError> {
        let waker = Waker::new().map_err(|source| PathError::System {
            kind,
            what: "make an eventfd",
            source,
        })?;
        let registered = Registered::default();
        let under_valgrind = valgrind::is_there();
        Ok(Self { ring, fresh: 0, registered, waker, watching: false, under_valgrind })
    }

    pub(super) fn register_files(&self, descriptors: &[RawFd]) -> Feature {
        match self.ring.submitter().register_files(descriptors) {
            Ok(()) => Feature::On,
            Err(error) => Feature::Off(format!("the kernel refused: {error}")),
        }
    }

    /// Registers a region as buffers of at most `run` bytes.
    pub(super) fn register(&mut self, region: &DmaPool, run: usize) -> Feature {
        let (base, length) = region.span();
        let runs: Vec<_> = (0..length)
            .step_by(run)
            .map(|start| libc::iovec {
                iov_base: base.wrapping_add(start).cast(),
                iov_len: (length - start).min(run),
            })
            .collect();
        // SAFETY: the pages are pinned by the kernel for as long as the ring lives, so unmapping
        // them early would not let a device write into other memory; buffers keep the mapping
        // anyway.
        match unsafe { self.ring.submitter().register_buffers(&runs) } {
            Ok(()) => {
                self.registered = Registered { base: base as usize, length, run };
                Feature::On
            }
            Err(error) => Feature::Off(why_unregistered(region.size(), &error)),
        }
    }

    /// Lets go of the region, if there is one. `false`: the kernel refused, and its pages stay
    /// pinned until the ring goes.
    pub(super) fn unregister(&mut self) -> bool {
        let Registered { length, .. } = std::mem::take(&mut self.registered);
        length == 0 || self.ring.submitter().unregister_buffers().is_ok()
    }

    pub(super) fn registered(&self) -> &Registered {
        &self.registered
    }

    /// Completions that it holds before the kernel has to keep some elsewhere.
    pub(super) fn room(&self) -> u32 {
        self.ring.params().cq_entries()
    }

    /// Puts an entry into the submission queue, making room if it is full. Every few of them the
    /// kernel is told.
    ///
    /// # Safety
    /// Memory that the entry names must stay valid, and untouched where the kernel writes it, until
    /// the entry's completion was seen.
    #[inline]
    pub(super) unsafe fn push(&mut self, entry: &S) -> io::Result<()> {
        // SAFETY: passed on to the caller.
        unsafe { self.enqueue(entry) }?;
        self.fresh += 1;
        if self.fresh >= BATCH {
            // The entry was accepted whatever the kernel returns; if the path is dead, `ring` says
            // so.
            let _ = self.ring();
        }
        Ok(())
    }

    /// # Safety
    /// As for `push`.
    #[inline]
    unsafe fn enqueue(&mut self, entry: &S) -> io::Result<()> {
        // SAFETY: passed on to the caller.
        if unsafe { self.ring.submission().push(entry) }.is_ok() {
            return Ok(());
        }
        self.ring.submit()?;
        if self.ring.params().is_setup_sqpoll() {
            // The kernel's thread has not taken what was submitted yet.
            self.ring.submitter().squeue_wait()?;
        }
        // SAFETY: passed on to the caller.
        let pushed = unsafe { self.ring.submission().push(entry) };
        pushed.map_err(|_| io::ErrorKind::WouldBlock.into())
    }

    /// Asks for the entry back that carries this.
    pub(super) fn cancel(&mut self, carried: u64) {
        let entry = opcode::AsyncCancel::new(carried).build().user_data(CANCEL);
        // SAFETY: the entry names no memory. When the queue has no room the operation simply is not
        // cancelled, which callers must expect anyway.
        let _ = unsafe { self.enqueue(&entry.into()) };
    }

    /// Lets the kernel see what is new.
    pub(super) fn ring(&mut self) -> io::Result<()> {
        let submission = self.ring.submission();
        if submission.is_empty() && !submission.taskrun() && !submission.cq_overflow() {
            return Ok(());
        }
        drop(submission);
        self.fresh = 0;
        tolerate(self.ring.submit())
    }

    /// Hands out what has completed: what each entry carried, and the kernel's answer.
    pub(super) fn reap(&mut self, mut each: impl FnMut(u64, i32)) {
        for entry in self.ring.completion() {
            let entry: cqueue::Entry = entry.into();
            match entry.user_data() {
                WAKE => self.watching = false,
                CANCEL => {}
                carried => each(carried, entry.result()),
            }
        }
    }

    /// Rings, then sleeps until something has completed, the waker is woken, or the time is up.
    pub(super) fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.watch()?;
        if self.under_valgrind {
            return self.poll_descriptor(timeout);
        }
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

    /// Waits where nothing interrupts: the kernel looks for completions when it is asked, and only
    /// for as long as something is `in_flight`. Such a ring cannot watch the waker either.
    pub(super) fn spin(&mut self, timeout: Option<Duration>, in_flight: bool) -> io::Result<()> {
        self.fresh = 0;
        if !in_flight {
            return self.waker.sleep(timeout).map(drop);
        }
        let until = timeout.map(|timeout| Instant::now() + timeout);
        loop {
            self.look()?;
            let is_over = || until.is_some_and(|until| Instant::now() >= until);
            if !self.ring.completion().is_empty() || self.waker.was_woken() || is_over() {
                return Ok(());
            }
        }
    }

    /// Rings, and has the kernel look once for completions that interrupt nobody.
    pub(super) fn look(&mut self) -> io::Result<()> {
        self.fresh = 0;
        tolerate(self.ring.submit())
    }

    /// Rings, then sleeps in `poll` on the ring's descriptor, during which other threads run under
    /// valgrind.
    fn poll_descriptor(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.look()?;
        await_readable(self.ring.as_raw_fd(), timeout).map(drop)
    }

    /// Has the ring watch the waker's descriptor until it fires.
    fn watch(&mut self) -> io::Result<()> {
        if self.watching {
            return Ok(());
        }
        let descriptor = types::Fd(self.waker.descriptor());
        let entry = opcode::PollAdd::new(descriptor, libc::POLLIN as u32).build().user_data(WAKE);
        // SAFETY: the entry names no memory.
        unsafe { self.enqueue(&entry.into()) }?;
        self.watching = true;
        Ok(())
    }

    pub(super) fn waker(&self) -> Waker {
        self.waker.clone()
    }
}

impl Registered {
    /// The registered buffer that holds all of `length` bytes at `address`.
    pub(super) fn holding(&self, address: *const u8, length: usize) -> Option<u16> {
        let start = (address as usize).checked_sub(self.base)?;
        let last = start.checked_add(length)?.checked_sub(1)?;
        let run = start.checked_div(self.run)?;
        let whole = last < self.length && last / self.run == run;
        if whole { u16::try_from(run).ok() } else { None }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_across_two_registered_runs_goes_unregistered() {
        let region = Registered { base: 4096, length: 2 * RUN_MAX, run: RUN_MAX };
        let run = |region: Registered, at: usize, length| {
            region.holding(std::ptr::without_provenance(at), length)
        };
        assert_eq!(run(region, 4096, 4096), Some(0));
        assert_eq!(run(region, 4096 + RUN_MAX, 4096), Some(1));
        assert_eq!(run(region, 4096 + RUN_MAX - 4096, 8192), None);
        assert_eq!(run(region, 4096 + 2 * RUN_MAX - 4096, 8192), None);
        assert_eq!(run(region, 0, 4096), None);
        assert_eq!(run(Registered::default(), 4096, 4096), None);
    }
}
