//! A caller's eventfd(2), which epoll waits for.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{FileType, fstat};
use rustix::io::{Errno, fcntl_dupfd_cloexec, write};
use tidelog_engine::schedule::EndListener;

use crate::error::Failure;

/// A duplicate of a caller's: its number stays ours, whatever the caller closes.
pub(super) struct EventFd(OwnedFd);

impl EventFd {
    /// Refuses what is no eventfd: a write to a full pipe would stop every transfer.
    ///
    /// # Safety
    /// Nobody closes `fd` during the call.
    pub(super) unsafe fn duplicate(fd: i32) -> Result<Self, Failure> {
        let refused = |error: Errno| Failure::invalid(format!("fd {fd} is no eventfd: {error}"));
        if fd < 0 {
            return Err(refused(Errno::BADF));
        }
        // SAFETY: not -1, and by this function's contract not closed meanwhile; one that is not
        // open is refused by the kernel.
        let caller = unsafe { BorrowedFd::borrow_raw(fd) };
        let own = fcntl_dupfd_cloexec(caller, 3).map_err(refused)?;
        let kind = FileType::from_raw_mode(fstat(&own).map_err(refused)?.st_mode);
        if kind != FileType::Unknown {
            return Err(refused(Errno::INVAL));
        }
        // Adds nothing, which no other nameless file takes.
        write(&own, &0_u64.to_ne_bytes()).map_err(refused)?;
        Ok(Self(own))
    }
}

impl EndListener for EventFd {
    fn ended(&self) {
        // It fails only where 2^64 ends were never looked at, and is readable then anyway.
        let _ = write(&self.0, &1_u64.to_ne_bytes());
    }
}
