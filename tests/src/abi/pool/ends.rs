//! Waiting for any of several ends, an eventfd, and verification.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};

use tidelog::abi::*;

use super::{Caller, NAMES, POOL_SIZE, WAIT_MS, name_of};
use crate::abi::last_error;

impl Caller {
    /// Counts an operation of whose end the eventfd, if there is one, is told.
    pub(super) fn begun(&mut self) {
        self.eventfd.iter_mut().for_each(|(_, begun)| *begun += 1);
    }

    pub(super) fn wait_any(&mut self) {
        let timeout = if self.choices.percent(50) { 0 } else { WAIT_MS };
        let flights = self.flights.iter().map(|flight| flight.ticket);
        let tickets: Vec<u64> = flights.chain(self.commit.iter().map(|it| it.ticket)).collect();
        let mut index = usize::MAX;
        // SAFETY: as many tickets as is said; the place is ours.
        let status = unsafe {
            tide_ticket_wait_any(tickets.as_ptr(), tickets.len(), timeout, &raw mut index)
        };
        match status {
            TIDE_INVALID_ARGUMENT => assert!(tickets.is_empty(), "{}", last_error()),
            TIDE_WAITING => assert_eq!(timeout, 0, "none of {} ever ends", tickets.len()),
            TIDE_READY if index < self.flights.len() => {
                let status = tide_ticket_wait(tickets[index], 0);
                assert_ne!(status, TIDE_WAITING, "what was said to have ended has not");
                self.take(index, status);
            }
            TIDE_READY if index < tickets.len() => self.end_commit(0),
            other => panic!("{other}, index {index}: {}", last_error()),
        }
    }

    /// Has an eventfd told, or another one, or none any more.
    pub(super) fn set_eventfd(&mut self) {
        if self.eventfd.is_some() && self.choices.percent(50) {
            // SAFETY: -1 is none.
            assert_eq!(unsafe { tide_pool_eventfd(self.pool, -1) }, TIDE_READY);
            self.eventfd = None;
            return;
        }
        // SAFETY: the number is a new descriptor's, which nobody else closes.
        let eventfd = unsafe {
            let fd = libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC);
            assert!(fd >= 0, "{}", std::io::Error::last_os_error());
            File::from_raw_fd(fd)
        };
        // SAFETY: ours, and open.
        let set = unsafe { tide_pool_eventfd(self.pool, eventfd.as_raw_fd()) };
        assert_eq!(set, TIDE_READY, "{}", last_error());
        self.eventfd = Some((eventfd, 0));
    }

    /// Reads everything, or one tensor; and asks how full the pool is.
    pub(super) fn verify(&mut self) {
        let name = self.choices.below(2 * NAMES);
        let (kind, name) = if name < NAMES { ('s', name) } else { ('d', name - NAMES) };
        let possible = if kind == 's' { &self.scratch[&name] } else { &self.durable[&name] };
        let (may_be, may_lack) = (possible.iter().any(Option::is_some), possible.contains(&None));
        let (text, mut damaged) = (name_of(kind, name), 7);
        let (mut capacity, mut free) = (0, 0);
        // SAFETY: the name is NUL-terminated, the places are ours.
        unsafe {
            match tide_verify(self.pool, text.as_ptr()) {
                TIDE_READY => assert!(may_be, "verified what is not there"),
                TIDE_NOT_FOUND => assert!(may_lack, "{}", last_error()),
                other => panic!("{other}: {}", last_error()),
            }
            if self.choices.percent(20) {
                let scrubbed = tide_pool_scrub(self.pool, &raw mut damaged);
                assert_eq!((scrubbed, damaged), (TIDE_READY, 0), "{}", last_error());
            }
            let asked = tide_pool_capacity(self.pool, &raw mut capacity, &raw mut free);
            assert_eq!(asked, TIDE_READY, "{}", last_error());
        }
        assert!(free <= capacity && capacity <= POOL_SIZE, "{free} of {capacity}");
    }
}
