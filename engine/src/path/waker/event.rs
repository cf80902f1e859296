//! Eventfd that a sleeper waits for; and the announcement that it is about to.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::Duration;

use super::readable::await_readable;

/// Announcement that a thread is about to sleep. What is written before it is made or taken is seen
/// by whoever takes or makes it after.
#[derive(Debug, Default)]
pub(super) struct Announcement(AtomicBool);

impl Announcement {
    pub(super) fn make(&self) {
        self.0.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Returns whether the announcement stood; it does not any more.
    pub(super) fn take(&self) -> bool {
        fence(Ordering::SeqCst);
        self.0.swap(false, Ordering::SeqCst)
    }

    /// Returns whether the announcement stands, without taking it.
    pub(super) fn stands(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// An eventfd, not blocking.
#[derive(Debug)]
pub(super) struct WakeEvent(File);

impl WakeEvent {
    pub(super) fn new() -> io::Result<Self> {
        // SAFETY: eventfd has no memory arguments.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made and nobody else owns it.
        Ok(Self(unsafe { File::from_raw_fd(fd) }))
    }

    /// Ends the sleep, or the next one.
    pub(super) fn raise(&self) {
        // Fails only when the counter is full, and then the sleeper is being woken anyway.
        let _ = (&self.0).write(&1_u64.to_ne_bytes());
    }

    /// Clears the event; returns how often it was raised.
    pub(super) fn clear(&self) -> u64 {
        let mut count = [0; 8];
        // Not readable is fine: it was not raised.
        (&self.0).read(&mut count).map_or(0, |_| u64::from_ne_bytes(count))
    }

    pub(super) fn descriptor(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Sleeps until it is raised or the time is up; returns which.
    pub(super) fn wait(&self, timeout: Option<Duration>) -> io::Result<bool> {
        await_readable(self.descriptor(), timeout)
    }
}
