//! Sleep until a descriptor has something to say.

use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

/// Sleeps until a descriptor is readable or the time is up; returns which. A signal ends it early.
pub(in crate::path) fn await_readable(
    descriptor: RawFd,
    timeout: Option<Duration>,
) -> io::Result<bool> {
    let mut poll = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
    // To the nanosecond: whoever looks at a GPU's copies naps for much less than the millisecond
    // that poll counts in.
    let timeout = timeout.map(|timeout| libc::timespec {
        tv_sec: timeout.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    });
    let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: one pollfd and one timespec, which live across the call; without a mask the thread's
    // own holds.
    let answer = unsafe { libc::ppoll(&raw mut poll, 1, timeout, std::ptr::null()) };
    match answer {
        -1 => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => Ok(false),
            error => Err(error),
        },
        ready => Ok(ready > 0),
    }
}
