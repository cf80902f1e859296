//! A caller's eventfd(2), which epoll waits for.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, fstat};
use rustix::io::{Errno, fcntl_dupfd_cloexec, write};
use tidelog_engine::schedule::EndListener;

use crate::error::Failure;

/// A duplicate of a caller's: its number stays ours, whatever the caller closes.
pub(super) struct EventFd(Mutex<OwnedFd>);

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
        Ok(Self(Mutex::new(own)))
    }
}

impl EndListener for EventFd {
    fn ended(&self) {
        // One at a time, so that nobody else of ours takes the room that was seen.
        let own = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A caller's that blocks would stop every transfer where its counter is full. It is
        // readable then, and no end more tells its caller anything.
        let mut room = [PollFd::new(&*own, PollFlags::OUT)];
        if poll(&mut room, Some(&Timespec::default())).is_ok_and(|ready| ready > 0) {
            let _ = write(&*own, &1_u64.to_ne_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::io::read;
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_full_one_that_blocks_holds_nobody_up() {
        let caller = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        // SAFETY: it is open for the whole test.
        let own = unsafe { EventFd::duplicate(caller.as_raw_fd()) }.unwrap();
        write(&caller, &(u64::MAX - 2).to_ne_bytes()).unwrap();
        own.ended();
        own.ended();
        let mut count = [0; 8];
        read(&caller, &mut count).unwrap();
        assert_eq!(u64::from_ne_bytes(count), u64::MAX - 1);
        own.ended();
        read(&caller, &mut count).unwrap();
        assert_eq!(u64::from_ne_bytes(count), 1);
    }
}
