//! An eventfd as loom can follow it: a count that a sleeper waits for. Time never runs out, so that
//! a wake-up that is lost shows as a deadlock.
//!
//! The announcement is behind a lock: loom keeps no total order of one variable's writes, and so
//! lets an exchange read a value that was exchanged away before. The real one is sequentially
//! consistent, as this is.

use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

use crate::sync::{Condvar, Mutex};

#[derive(Debug, Default)]
pub(super) struct Announcement(Mutex<bool>);

impl Announcement {
    pub(super) fn make(&self) {
        *self.0.lock().expect("not poisoned") = true;
    }

    pub(super) fn take(&self) -> bool {
        std::mem::take(&mut *self.0.lock().expect("not poisoned"))
    }

    pub(super) fn stands(&self) -> bool {
        *self.0.lock().expect("not poisoned")
    }
}

#[derive(Debug, Default)]
pub(super) struct WakeEvent {
    raised: Mutex<u64>,
    risen: Condvar,
}

impl WakeEvent {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self::default())
    }

    pub(super) fn raise(&self) {
        *self.raised.lock().expect("not poisoned") += 1;
        self.risen.notify_all();
    }

    pub(super) fn clear(&self) -> u64 {
        std::mem::take(&mut *self.raised.lock().expect("not poisoned"))
    }

    pub(super) fn descriptor(&self) -> RawFd {
        unimplemented!("no model waits for a file")
    }

    pub(super) fn wait(&self, _timeout: Option<Duration>) -> io::Result<bool> {
        let mut raised = self.raised.lock().expect("not poisoned");
        while *raised == 0 {
            raised = self.risen.wait(raised).expect("not poisoned");
        }
        Ok(true)
    }
}
