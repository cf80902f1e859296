//! Waking a thread that sleeps in its data path.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::Duration;

/// Ends the sleep of the thread that drives a data path; cheap while that thread is awake.
///
/// The sleeper arms the waker, looks once more for work, and only then sleeps. Others make work
/// visible first and wake afterwards. So either the sleeper sees the work or the waker sees it armed.
#[derive(Clone, Debug)]
pub struct Waker(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// An eventfd, not blocking.
    event: File,
    armed: AtomicBool,
}

impl Waker {
    /// A waker of its own.
    pub(super) fn new() -> io::Result<Self> {
        // SAFETY: eventfd has no memory arguments.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made and nobody else owns it.
        let event = unsafe { File::from_raw_fd(fd) };
        Ok(Self(Arc::new(Inner { event, armed: AtomicBool::new(false) })))
    }

    /// Ends the current sleep, or the next one if the sleeper has armed already.
    pub fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.0.armed.swap(false, Ordering::SeqCst) {
            // Fails only when the counter is full, and then the sleeper is being woken anyway.
            let _ = (&self.0.event).write(&1_u64.to_ne_bytes());
        }
    }

    /// Announces sleep; look for work once more after this, and before sleeping.
    pub fn arm(&self) {
        self.0.armed.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Takes the announcement back and forgets a wake-up that came meanwhile.
    pub fn disarm(&self) {
        self.0.armed.store(false, Ordering::SeqCst);
        // Read even if nobody seems to have woken us: a waker that saw us armed may write only now,
        // and a count left standing would turn every later sleep into a spin. Not readable is fine.
        let mut count = [0; 8];
        let _ = (&self.0.event).read(&mut count);
    }

    /// The descriptor that turns readable on a wake-up.
    pub(super) fn descriptor(&self) -> RawFd {
        self.0.event.as_raw_fd()
    }

    /// Sleeps until woken or until the time is up.
    pub(super) fn sleep(&self, timeout: Option<Duration>) -> io::Result<()> {
        let mut poll = libc::pollfd { fd: self.descriptor(), events: libc::POLLIN, revents: 0 };
        let milliseconds = timeout.map_or(-1, |timeout| {
            // Rounded up, so that the last fraction of a millisecond is not spent spinning.
            timeout.as_nanos().div_ceil(1_000_000).try_into().unwrap_or(i32::MAX)
        });
        // SAFETY: one pollfd, which lives across the call.
        let answer = unsafe { libc::poll(&raw mut poll, 1, milliseconds) };
        match answer {
            -1 => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => Ok(()),
                error => Err(error),
            },
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_wake_between_arming_and_sleeping_is_not_lost() {
        let waker = Waker::new().unwrap();
        waker.arm();
        waker.clone().wake();
        let begun = Instant::now();
        waker.sleep(Some(Duration::from_secs(20))).unwrap();
        assert!(begun.elapsed() < Duration::from_secs(10));
        waker.disarm();
        // The wake-up was consumed: the next sleep runs its full time.
        waker.arm();
        let begun = Instant::now();
        waker.sleep(Some(Duration::from_millis(20))).unwrap();
        assert!(begun.elapsed() >= Duration::from_millis(20));
    }
}
