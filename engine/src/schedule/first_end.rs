//! Hearing of ends: whoever waits for the first of several transfers, or has a file descriptor
//! signalled.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use super::ticket::{FOREVER, Ticket};
use crate::sync::{Condvar, Mutex};

/// Hears that a transfer, or a commit, has ended.
pub trait EndListener: Send + Sync {
    /// Called once for each end, when its ticket has the outcome. It runs on the reactor's thread,
    /// so it neither waits nor panics.
    fn ended(&self);
}

/// Wakes a thread at the first end.
#[derive(Default)]
struct FirstEnd {
    came: Mutex<bool>,
    arrived: Condvar,
}

impl EndListener for FirstEnd {
    fn ended(&self) {
        *self.came.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.arrived.notify_one();
    }
}

impl FirstEnd {
    fn wait(&self, timeout: Duration) {
        let deadline = Instant::now() + timeout.min(FOREVER);
        let mut came = self.came.lock().unwrap_or_else(PoisonError::into_inner);
        while !*came {
            let left = deadline.duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let woken = self.arrived.wait_timeout(came, left);
            came = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Ticket {
    /// Waits at most `timeout` until one of these has ended, well or not. Returns its place in the
    /// list: of several that have ended, the first. In a child of fork the parent's have all ended.
    pub fn wait_any(tickets: &[&Self], timeout: Duration) -> Option<usize> {
        let ended = || tickets.iter().position(|ticket| ticket.has_ended());
        let found = ended();
        if found.is_some() || tickets.is_empty() || timeout.is_zero() {
            return found;
        }
        if tickets.iter().any(|ticket| ticket.is_stepped()) {
            // In a simulation whatever moves does so for those who wait.
            while tickets.iter().any(|ticket| ticket.step()) && ended().is_none() {}
            return ended();
        }
        // The tickets keep it weakly: those that go on forget it when it is gone.
        let first = Arc::new(FirstEnd::default());
        for ticket in tickets {
            ticket.listen(&first);
        }
        first.wait(timeout);
        ended()
    }
}
