//! Getting back what does not come by itself: what takes too long, what is to be aborted, and what was on a controller
//! that is lost.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tidelog_spdk_sys as sys;

use super::flight::Impatience;
use super::path::SpdkPath;
use crate::path::Status;

/// How often operations are looked over.
const LOOK: Duration = Duration::from_millis(100);
/// The clock is read once in so many polls: to read it for each, or for each operation, costs as much as a tenth of what
/// SPDK does with a command.
const POLLS: u32 = 16;
/// How long SPDK may take to end what was on a lost queue pair.
const LETTING_GO: Duration = Duration::from_secs(2);

/// What was done to get commands back, since the path was opened: for tests, which tell an abort from a reset by it.
#[derive(Debug, Default)]
pub struct Rescues {
    aborts: AtomicU32,
    recalls: AtomicU32,
}

impl Rescues {
    /// Operations that were aborted.
    pub fn aborts(&self) -> u32 {
        self.aborts.load(Ordering::Relaxed)
    }

    /// Resets of controllers, and connections that were closed.
    pub fn recalls(&self) -> u32 {
        self.recalls.load(Ordering::Relaxed)
    }
}

/// Looks over all operations, by whose number their ages are told: each is one [`LOOK`] after the other, or later.
pub(super) struct Looks {
    count: u32,
    last: Instant,
    /// Polls since the clock was read.
    polls: u32,
}

impl Looks {
    pub(super) fn new() -> Self {
        Self { count: 0, last: Instant::now(), polls: 0 }
    }

    /// How many there were.
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// Whether it is time for the next one. For each poll.
    fn are_due(&mut self) -> bool {
        self.polls += 1;
        if self.polls < POLLS {
            return false;
        }
        self.polls = 0;
        let due = self.last.elapsed() >= LOOK;
        if due {
            self.last = Instant::now();
            self.count = self.count.wrapping_add(1);
        }
        due
    }

    /// The least that has passed since what began after so many looks; no more is known, so that a thread that was away takes
    /// nothing for late that it has not looked for.
    fn age_of(&self, since: u32) -> Duration {
        LOOK * self.count.wrapping_sub(since).saturating_sub(1)
    }
}

impl SpdkPath {
    /// Aborts what takes too long; if that was of no use, resets the controller. Looks only now and then.
    pub(super) fn look_over(&mut self) {
        if !self.looks.are_due() {
            return;
        }
        let slots: Vec<u32> = self.slots.find(None).collect();
        for slot in slots {
            let flight = self.flights.get(slot);
            let age = self.looks.age_of(flight.since.get());
            if age < self.timeout {
                continue;
            }
            let Some(operation) = self.slots.get(slot) else { continue };
            let device = usize::from(operation.device.0);
            if flight.impatience.get() < Impatience::TimedOut {
                flight.impatience.set(Impatience::TimedOut);
                self.abort_slot(slot);
            } else if age >= self.timeout.saturating_mul(2) && flight.is_out() {
                // Everything that was in flight on it comes back, so this is enough for now.
                return self.recall(device);
            }
        }
    }

    /// Gets back what is in flight on a device: one that was just lost, or does not answer.
    pub(super) fn recall(&mut self, device: usize) {
        if self.is_any_out(device) {
            self.rescues.recalls.fetch_add(1, Ordering::Relaxed);
            self.queues[device].recall();
        }
        if self.queues[device].is_lost() && !self.queues[device].is_dead() {
            let queue = &self.queues[device];
            if !ends(LETTING_GO, || queue.drain(), || !self.is_any_out(device)) {
                self.queues[device].give_up();
            }
        }
        if self.queues[device].is_dead() {
            self.abandon(device);
        }
    }

    fn is_any_out(&self, device: usize) -> bool {
        self.slots_of(device).any(|slot| self.flights.get(slot).is_out())
    }

    /// Ends what is in flight on a controller that could not be stopped. It may still write the buffers, which are
    /// therefore leaked.
    fn abandon(&mut self, device: usize) {
        for slot in self.slots_of(device) {
            let flight = self.flights.get(slot);
            if flight.is_out() {
                flight.waiting.set(false);
                flight.fail(Status::Errno(libc::ENODEV));
                flight.abandon();
            }
        }
        for slot in self.waiting.leave_all(device) {
            let flight = self.flights.get(slot);
            if flight.waiting.get() {
                flight.fail(Status::Errno(libc::ENODEV));
                flight.leave_waiting();
            }
        }
    }

    fn slots_of(&self, device: usize) -> impl Iterator<Item = u32> + '_ {
        let is_there = move |slot: &u32| {
            self.slots.get(*slot).is_some_and(|it| usize::from(it.device.0) == device)
        };
        self.slots.find(None).filter(is_there)
    }

    pub(super) fn abort_slot(&mut self, slot: u32) {
        let Some(operation) = self.slots.get(slot) else { return };
        let (flight, device) = (self.flights.get(slot), usize::from(operation.device.0));
        flight.impatience.set(flight.impatience.get().max(Impatience::Asked));
        // What was not sent need not be.
        if flight.unsent.get().peek().is_some() {
            flight.fail(Status::Errno(libc::ECANCELED));
        }
        self.rescues.aborts.fetch_add(1, Ordering::Relaxed);
        self.queues[device].abort(flight);
        if flight.waiting.get() {
            self.waiting.leave(device, slot);
            flight.leave_waiting();
        }
    }
}

/// Polls until there is nothing more to wait for. Answers whether that came in time.
fn ends(patience: Duration, poll: impl Fn(), is_over: impl Fn() -> bool) -> bool {
    let begun = Instant::now();
    while !is_over() {
        if begun.elapsed() > patience {
            return false;
        }
        poll();
        std::thread::yield_now();
    }
    true
}

impl Status {
    /// Whether the driver itself ended the command: because it was to, or because its queue is gone.
    pub(super) fn is_ended_by_driver(self) -> bool {
        const GENERIC: u8 = sys::SPDK_NVME_SCT_GENERIC as u8;
        const BY_REQUEST: u8 = sys::SPDK_NVME_SC_ABORTED_BY_REQUEST as u8;
        const QUEUE_GONE: u8 = sys::SPDK_NVME_SC_ABORTED_SQ_DELETION as u8;
        const PATH: u8 = sys::SPDK_NVME_SCT_PATH as u8;
        match self {
            Self::Nvme { code_type: GENERIC, code: BY_REQUEST | QUEUE_GONE, .. } => true,
            Self::Nvme { code_type, .. } => code_type == PATH,
            Self::Errno(errno) => errno == libc::ECANCELED || self.is_removal(),
            Self::Short { .. } | Self::Library { .. } => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn an_age_is_never_told_too_high() {
        let mut looks = Looks::new();
        let since = looks.count();
        assert!((0..3 * POLLS).all(|_| !looks.are_due()), "no time has passed");
        for late in [LOOK, 20 * LOOK] {
            looks.last -= late;
            assert_eq!((0..POLLS).filter(|_| looks.are_due()).count(), 1, "once after {late:?}");
        }
        assert_eq!(looks.age_of(since), LOOK, "the first look may have come a moment after it");
        assert_eq!(looks.age_of(looks.count()), Duration::ZERO);
    }

    #[test]
    fn what_comes_back_late_is_waited_for_but_not_for_ever() {
        let out = Cell::new(1000);
        assert!(ends(LETTING_GO, || out.set(out.get() - 1), || out.get() == 0));
        let polls = Cell::new(0);
        assert!(!ends(Duration::from_millis(20), || polls.set(polls.get() + 1), || false));
        assert!(polls.get() > 1);
    }
}
