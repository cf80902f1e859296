//! Waking a thread that sleeps in its data path.

#[cfg(not(loom))]
mod event;
#[cfg(loom)]
#[path = "waker/model.rs"]
mod event;
mod readable;

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use event::{Announcement, WakeEvent};
pub(super) use readable::await_readable;

/// Ends the sleep of the thread that drives a data path; cheap while that thread is awake.
///
/// The sleeper arms the waker, looks once more for work, and only then sleeps. Others make work
/// visible first and wake afterwards. So either the sleeper sees the work or the waker sees it
/// armed.
#[derive(Clone, Debug)]
pub struct Waker(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    event: WakeEvent,
    armed: Announcement,
    /// Wake-ups whose announcement was taken and whose event was not cleared: some may be raised
    /// only later. The sleeper alone counts them.
    uncleared: AtomicU64,
}

impl Waker {
    /// A waker of its own, for a data path.
    pub fn new() -> io::Result<Self> {
        let (event, armed) = (WakeEvent::new()?, Announcement::default());
        Ok(Self(Arc::new(Inner { event, armed, uncleared: AtomicU64::new(0) })))
    }

    /// Ends the current sleep, or the next one if the sleeper has armed already.
    pub fn wake(&self) {
        if self.0.armed.take() {
            self.0.event.raise();
        }
    }

    /// Announces sleep; look for work once more after this, and before sleeping.
    pub fn arm(&self) {
        self.0.armed.make();
    }

    /// Takes the announcement back and forgets a wake-up that came meanwhile.
    pub fn disarm(&self) {
        let taken = u64::from(!self.0.armed.take());
        let uncleared = self.0.uncleared.load(Ordering::Relaxed) + taken;
        // Where nobody has woken us, a look at the event would be a system call for nothing. Who
        // has may raise it only now, and left standing it would turn every later sleep into a spin.
        if uncleared > 0 {
            let left = uncleared.saturating_sub(self.0.event.clear());
            self.0.uncleared.store(left, Ordering::Relaxed);
        }
    }

    /// Returns whether somebody has woken it since it was armed.
    pub(super) fn was_woken(&self) -> bool {
        !self.0.armed.stands()
    }

    /// The descriptor that turns readable on a wake-up.
    pub(super) fn descriptor(&self) -> RawFd {
        self.0.event.descriptor()
    }

    /// Sleeps until woken or until the time is up; for a data path.
    pub fn sleep(&self, timeout: Option<Duration>) -> io::Result<bool> {
        self.0.event.wait(timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    /// The wake-up ends one sleep and is consumed by it: the next one runs its full time.
    fn assert_one_sleep_ends(waker: &Waker) {
        let begun = Instant::now();
        waker.sleep(Some(Duration::from_secs(600))).unwrap();
        assert!(begun.elapsed() < Duration::from_secs(300));
        waker.disarm();
        waker.arm();
        let begun = Instant::now();
        waker.sleep(Some(Duration::from_millis(20))).unwrap();
        assert!(begun.elapsed() >= Duration::from_millis(20));
    }

    #[test]
    fn a_wake_between_arming_and_sleeping_is_not_lost() {
        let waker = Waker::new().unwrap();
        waker.arm();
        waker.clone().wake();
        assert_one_sleep_ends(&waker);
    }

    #[test]
    fn a_wake_up_that_is_raised_late_ends_one_sleep_and_no_other() {
        let waker = Waker::new().unwrap();
        waker.arm();
        // Another thread has taken the announcement, and is about to raise the event.
        assert!(waker.0.armed.take());
        waker.disarm();
        waker.0.event.raise();
        waker.arm();
        assert_one_sleep_ends(&waker);
        assert_eq!(waker.0.uncleared.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_nap_is_much_shorter_than_a_millisecond() {
        let waker = Waker::new().unwrap();
        let poll_timeout = |_| {
            let begun = Instant::now();
            waker.sleep(Some(Duration::from_micros(20))).unwrap();
            begun.elapsed()
        };
        // The machine may be busy with other things for some of them.
        let shortest = (0..200).map(poll_timeout).min().unwrap();
        assert!(shortest >= Duration::from_micros(20), "{shortest:?}");
        assert!(shortest < Duration::from_micros(800), "{shortest:?}");
    }
}
