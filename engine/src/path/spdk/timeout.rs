//! Getting back what does not come by itself: what takes too long, what is to be aborted, and what
//! was on a controller that is lost.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tidelog_spdk_sys as sys;

use super::flight::AbortStage;
use super::path::SpdkPath;
use super::queue::TimeoutCheck;
use crate::path::{DeviceError, Extent, OperationKind, Status};
use crate::units::DeviceIndex;

/// Interval at which operations are checked.
const LOOK: Duration = Duration::from_millis(100);
/// Number of polls for which the clock is read once: to read it for each, or for each operation,
/// costs as much as a tenth of what SPDK does with a command.
const POLLS: u32 = 16;
/// Counters of aborts and resets since the path was opened: for tests, which tell an abort from a
/// reset by it.
#[derive(Debug, Default)]
pub struct TimeoutCounters {
    aborts: AtomicU32,
    not_aborted: AtomicU32,
    recalls: AtomicU32,
}

impl TimeoutCounters {
    /// Operations that were aborted.
    pub fn aborts(&self) -> u32 {
        self.aborts.load(Ordering::Relaxed)
    }

    /// Commands of which the controller has said that it did not abort them. Some never do.
    pub fn not_aborted(&self) -> u32 {
        self.not_aborted.load(Ordering::Relaxed)
    }

    pub(super) fn count_not_aborted(&self) {
        self.not_aborted.fetch_add(1, Ordering::Relaxed);
    }

    /// Resets of controllers, and connections that were closed.
    pub fn recalls(&self) -> u32 {
        self.recalls.load(Ordering::Relaxed)
    }
}

/// Looks over all operations, by whose number their ages are told: each is one [`LOOK`] after the
/// other, or later.
pub(super) struct TimeoutScan {
    count: u32,
    last: Instant,
    /// Polls since the clock was read.
    polls: u32,
}

impl TimeoutScan {
    pub(super) fn new() -> Self {
        Self { count: 0, last: Instant::now(), polls: 0 }
    }

    /// Returns the number of events.
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// Returns whether the timeout scan is time for the next one. For each poll.
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

    /// The least that has passed since what began after so many looks; no more is known, so that a
    /// thread that was away takes nothing for late that it has not looked for.
    fn age_of(&self, since: u32) -> Duration {
        LOOK * self.count.wrapping_sub(since).saturating_sub(1)
    }
}

impl SpdkPath {
    /// Aborts what takes too long; if that was of no use, resets the controller. Looks only now and
    /// then.
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
            if flight.abort_stage.get() < AbortStage::TimedOut {
                flight.abort_stage.set(AbortStage::TimedOut);
                self.abort_slot(slot);
            } else if age >= self.timeout.saturating_mul(2)
                && flight.is_out()
                && !self.queues[device].is_moving()
            {
                if self.queues[device].is_connection() {
                    self.write_no_more(device);
                }
                self.recall(device);
            }
        }
    }

    /// Does what a look at a device's queue asks for.
    pub(super) fn timeout(&mut self, device: usize, looked: TimeoutCheck) {
        let queue = &mut self.queues[device];
        match looked {
            TimeoutCheck::Same => {}
            TimeoutCheck::Reset => queue.recall(),
            TimeoutCheck::Died => self.abandon(device),
            TimeoutCheck::Failed if queue.is_connection() => {
                self.write_no_more(device);
                self.recall(device);
            }
            TimeoutCheck::Failed => {
                let is_any_out = self.is_any_out(device);
                self.timeouts.recalls.fetch_add(u32::from(is_any_out), Ordering::Relaxed);
                self.queues[device].lose(is_any_out);
                if self.queues[device].is_dead() {
                    self.abandon(device);
                }
            }
        }
    }

    /// Stops writes: what has completed on a device whose connection ended may not be on its
    /// medium, and no flush can tell: its target may have started anew. So nothing more is written
    /// until it is opened again.
    fn write_no_more(&mut self, device: usize) {
        let (kind, extent) = (OperationKind::Flush, Extent::NOTHING);
        let status = Status::Errno(libc::ECONNRESET);
        self.gate.judge(DeviceError { device: DeviceIndex(device as u8), kind, extent, status });
    }

    /// Gets back what is in flight on a device that does not answer, or is gone.
    fn recall(&mut self, device: usize) {
        if self.is_any_out(device) {
            self.timeouts.recalls.fetch_add(1, Ordering::Relaxed);
        }
        if self.queues[device].is_connection() {
            self.end_all_but_waiting_reads(device);
        }
        self.queues[device].recall();
        if self.queues[device].is_dead() {
            self.abandon(device);
        }
    }

    /// Ends the operations that a connection had in flight, which are not sent again; nor are
    /// writes that were not sent yet.
    fn end_all_but_waiting_reads(&mut self, device: usize) {
        let slots: Vec<u32> = self.slots_of(device).collect();
        for slot in slots {
            let flight = self.flights.get(slot);
            let kind = self.slots.get(slot).map(|it| it.action.kind());
            let is_over = !flight.is_out() && !flight.waiting.get();
            if is_over || kind == Some(OperationKind::Read) && !flight.is_out() {
                continue;
            }
            flight.fail(Status::Errno(libc::ECONNRESET));
            if flight.waiting.get() {
                self.waiting.leave(device, slot);
                flight.leave_waiting();
            }
        }
    }

    fn is_any_out(&self, device: usize) -> bool {
        self.slots_of(device).any(|slot| self.flights.get(slot).is_out())
    }

    /// Ends what is in flight on a controller that could not be stopped. It may still write the
    /// buffers, which are therefore leaked.
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
        flight.abort_stage.set(flight.abort_stage.get().max(AbortStage::Asked));
        // What was not sent need not be.
        if flight.unsent.get().peek().is_some() {
            flight.fail(Status::Errno(libc::ECANCELED));
        }
        self.timeouts.aborts.fetch_add(1, Ordering::Relaxed);
        self.queues[device].abort(flight, &self.timeouts);
        if flight.waiting.get() {
            self.waiting.leave(device, slot);
            flight.leave_waiting();
        }
    }
}

impl Status {
    /// Returns whether the driver itself ended the command: because it was to, or because its queue
    /// is gone.
    pub(super) fn is_ended_by_driver(self) -> bool {
        const GENERIC: u8 = sys::SPDK_NVME_SCT_GENERIC as u8;
        const BY_REQUEST: u8 = sys::SPDK_NVME_SC_ABORTED_BY_REQUEST as u8;
        const QUEUE_GONE: u8 = sys::SPDK_NVME_SC_ABORTED_SQ_DELETION as u8;
        const PATH: u8 = sys::SPDK_NVME_SCT_PATH as u8;
        match self {
            Self::Nvme { code_type: GENERIC, code: BY_REQUEST | QUEUE_GONE, .. } => true,
            Self::Nvme { code_type, .. } => code_type == PATH,
            Self::Errno(errno) => errno == libc::ECANCELED || self.is_removal(),
            Self::Short { .. } | Self::ErrorLibrary { .. } => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_is_never_told_too_high() {
        let mut looks = TimeoutScan::new();
        let since = looks.count();
        assert!((0..3 * POLLS).all(|_| !looks.are_due()), "no time has passed");
        for late in [LOOK, 20 * LOOK] {
            looks.last -= late;
            assert_eq!((0..POLLS).filter(|_| looks.are_due()).count(), 1, "once after {late:?}");
        }
        assert_eq!(looks.age_of(since), LOOK, "the first look may have come a moment after it");
        assert_eq!(looks.age_of(looks.count()), Duration::ZERO);
    }
}
