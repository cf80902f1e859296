//! Operations that failed with a status that lets them be retried: a write that failed for good
//! shuts its device, so what the kernel's block layer would have repeated is repeated here.

use std::fs;
use std::time::{Duration, Instant};

use crate::path::Status;

/// Number of retries by the block layer, unless it is configured.
const RETRIES: u32 = 5;

/// The operations that are to be sent once more, by slot, and when.
#[derive(Debug)]
pub(super) struct Retries {
    waiting: Vec<(Instant, u32)>,
    most: u32,
}

impl Retries {
    /// Reads the number of retries from this kernel's block layer.
    pub(super) fn new() -> Self {
        let parameter = fs::read_to_string("/sys/module/nvme_core/parameters/max_retries");
        let most = parameter.ok().and_then(|text| text.trim().parse().ok());
        Self { waiting: Vec::new(), most: most.unwrap_or(RETRIES) }
    }

    /// Returns whether an operation that failed so, and was retried so often, is to be retried.
    pub(super) fn allow(&self, status: Status, tried: u32) -> bool {
        let may = matches!(status, Status::Nvme { do_not_retry: false, .. });
        may && !status.is_unsupported() && tried < self.most
    }

    /// Keeps a slot for later.
    pub(super) fn keep(&mut self, slot: u32, delay: Duration) {
        self.waiting.push((Instant::now() + delay, slot));
    }

    /// Makes these slots due now.
    pub(super) fn expire(&mut self, mut wanted: impl FnMut(u32) -> bool) {
        let now = Instant::now();
        let chosen = self.waiting.iter_mut().filter(|(_, slot)| wanted(*slot));
        chosen.for_each(|(due, _)| *due = now);
    }

    /// A slot that is due.
    pub(super) fn next_due(&mut self) -> Option<u32> {
        if self.waiting.is_empty() {
            return None;
        }
        let now = Instant::now();
        let place = self.waiting.iter().position(|(due, _)| *due <= now)?;
        Some(self.waiting.swap_remove(place).1)
    }

    /// Returns the time for a sleep that would otherwise take this long.
    pub(super) fn poll_timeout(&self, timeout: Option<Duration>) -> Option<Duration> {
        let Some((due, _)) = self.waiting.iter().min() else { return timeout };
        let left = due.saturating_duration_since(Instant::now());
        Some(timeout.map_or(left, |timeout| timeout.min(left)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn retries() -> Retries {
        Retries { waiting: Vec::new(), most: 2 }
    }

    #[test]
    fn what_the_controller_says_may_be_tried_again_is_so_often_and_no_more() {
        let status = |code_type, code, do_not_retry| Status::Nvme { code_type, code, do_not_retry };
        let internal = status(0, 6, false);
        assert_eq!([0, 1, 2].map(|tried| retries().allow(internal, tried)), [true, true, false]);
        assert!(!retries().allow(status(0, 6, true), 0), "it would fail again");
        assert!(!retries().allow(status(0, 1, false), 0), "it is not known there");
        assert!(!retries().allow(Status::Errno(libc::EIO), 0));
    }

    #[test]
    fn a_slot_waits_for_as_long_as_the_controller_asked_or_until_somebody_is_in_a_hurry() {
        let mut retries = retries();
        assert_eq!((retries.next_due(), retries.poll_timeout(None)), (None, None));
        let hour = Duration::from_secs(3600);
        retries.keep(7, hour);
        assert_eq!(retries.next_due(), None);
        assert!(retries.poll_timeout(None).is_some_and(|poll_timeout| poll_timeout <= hour));
        assert_eq!(retries.poll_timeout(Some(Duration::ZERO)), Some(Duration::ZERO));
        retries.expire(|slot| slot == 8);
        assert_eq!(retries.next_due(), None);
        retries.keep(8, Duration::ZERO);
        assert_eq!(retries.next_due(), Some(8));
        retries.expire(|slot| slot == 7);
        assert_eq!(retries.next_due(), Some(7));
        assert_eq!(retries.next_due(), None);
    }
}
