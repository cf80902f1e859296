//! Work that nobody waits for: how much of it devices have at once.
//!
//! What a device has taken it does, whatever comes after it. So while a pool is in use, a device
//! gets such work one piece at a time, when it has nothing else to do; and a little all the same
//! where it always has, so that the work comes to its end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::transfer::Urgency;
use crate::units::DeviceIndex;

/// A pool of which nothing was wanted for this long is not in use.
const UNUSED: Duration = Duration::from_secs(1);
/// Pieces on a device at once while the pool is not in use: enough for one that does several at a
/// time, few for whoever comes then.
const DEPTH: u32 = 8;
/// Time after which a device that always has something else to do gets a piece.
const WAIT: Duration = Duration::from_millis(10);

/// Clock of a reactor's threads, and the time at which something was wanted of one last.
#[derive(Debug)]
pub(super) struct LastUse {
    pub(super) start: Instant,
    /// Nanoseconds since the start, or zero if nothing was.
    at: AtomicU64,
}

impl LastUse {
    pub(super) fn new() -> Self {
        Self { start: Instant::now(), at: AtomicU64::new(0) }
    }

    /// Returns whether something was wanted a short while ago.
    pub(super) fn is_recent(&self) -> bool {
        self.was_before(self.start.elapsed().as_nanos() as u64)
    }

    /// Returns whether something was wanted a short while before this time.
    fn was_before(&self, now: u64) -> bool {
        let used = self.at.load(Ordering::Relaxed);
        used > 0 && Duration::from_nanos(now.saturating_sub(used)) < UNUSED
    }
}

/// Idle work of one thread.
pub(super) struct IdleWork {
    last: Arc<LastUse>,
    /// Time at which the last piece was begun, by device.
    begun: Vec<u64>,
    /// Time of the last use that was noted: others read where that is, and it is written only when
    /// time has passed.
    noted: u64,
    /// True if there is no time.
    stepped: bool,
}

impl IdleWork {
    pub(super) fn new(last: Arc<LastUse>, devices: usize, stepped: bool) -> Self {
        Self { last, begun: vec![0; devices], noted: 0, stepped }
    }

    /// Notes that something is wanted, or was until now.
    pub(super) fn note_use(&mut self, urgency: Urgency, now: u64) {
        let now = now.max(1);
        if urgency != Urgency::Idle && !self.stepped && now != self.noted {
            self.noted = now;
            self.last.at.store(now, Ordering::Relaxed);
        }
    }

    /// Returns whether a piece may go to a device that has this many in flight.
    pub(super) fn may_begin(&self, device: DeviceIndex, in_flight: u32, now: u64) -> bool {
        if self.stepped || !self.last.was_before(now) {
            return in_flight < DEPTH;
        }
        let is_long_ago = |then: &u64| Duration::from_nanos(now.saturating_sub(*then)) >= WAIT;
        in_flight == 0 || self.begun.get(usize::from(device.0)).is_some_and(is_long_ago)
    }

    /// Notes that a piece was begun.
    pub(super) fn note_begin(&mut self, device: DeviceIndex, now: u64) {
        if let Some(begun) = self.begun.get_mut(usize::from(device.0)) {
            *begun = now;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const DEVICE: DeviceIndex = DeviceIndex(0);

    fn nanos(time: Duration) -> u64 {
        time.as_nanos() as u64
    }

    #[test]
    fn a_pool_in_use_gets_one_piece_at_a_time_where_a_device_has_nothing_else() {
        let last = Arc::new(LastUse::new());
        let [mut one, mut other] = [(); 2].map(|()| IdleWork::new(Arc::clone(&last), 1, false));
        assert!(one.may_begin(DEVICE, DEPTH - 1, 0) && !one.may_begin(DEVICE, DEPTH, 0));
        let used = nanos(Duration::from_secs(5));
        other.note_use(Urgency::Idle, used);
        assert!(one.may_begin(DEVICE, 1, used), "idle work is no use");
        other.note_use(Urgency::Ahead, used);
        one.note_begin(DEVICE, used);
        assert!(one.may_begin(DEVICE, 0, used) && !one.may_begin(DEVICE, 1, used));
        assert!(!one.may_begin(DEVICE, 1, used + nanos(WAIT) - 1));
        assert!(one.may_begin(DEVICE, 40, used + nanos(WAIT)), "it comes to its end");
        assert!(one.may_begin(DEVICE, DEPTH - 1, used + nanos(UNUSED)));
    }
}
