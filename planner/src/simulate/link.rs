//! The machine's links as servers: each moves one transfer at a time at full bandwidth, urgent ones
//! first. An urgent transfer interrupts one that is not, as the engine's pieces do.

use crate::residency::TransferId;
use crate::units::{Bandwidth, Bytes, Nanos};
use std::collections::VecDeque;

/// A transfer on a link.
#[derive(Clone, Copy, Debug)]
struct Job {
    transfer: TransferId,
    /// Link time that it needs in all.
    total: u64,
    /// Link time that it still needs.
    remaining: u64,
    /// When its first byte moved.
    started: Option<u64>,
}

/// A transfer that is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LinkCompletion {
    /// When its completion can be seen.
    pub(super) at: u64,
    pub(super) transfer: TransferId,
    /// When its first byte moved.
    pub(super) started: u64,
}

/// How far a transfer has come: `done` of `total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TransferProgress {
    pub(super) started: u64,
    pub(super) done: u64,
    pub(super) total: u64,
}

/// One link in one direction.
#[derive(Clone, Debug)]
pub(super) struct SimulatedLink {
    rate: Bandwidth,
    latency: u64,
    /// Until when the queues have been worked off.
    now: u64,
    urgent: VecDeque<Job>,
    ahead: VecDeque<Job>,
    /// Complete, and not yet told.
    landed: VecDeque<LinkCompletion>,
}

impl SimulatedLink {
    pub(super) fn new(rate: Bandwidth, latency: Nanos) -> Self {
        Self {
            rate,
            latency: latency.0,
            now: 0,
            urgent: VecDeque::new(),
            ahead: VecDeque::new(),
            landed: VecDeque::new(),
        }
    }

    pub(super) fn submit(&mut self, now: u64, transfer: TransferId, bytes: Bytes, urgent: bool) {
        self.work_until(now);
        let remaining = self.rate.time_for(bytes).0.max(1);
        let job = Job { transfer, total: remaining, remaining, started: None };
        if urgent { self.urgent.push_back(job) } else { self.ahead.push_back(job) }
    }

    /// Raises a transfer to urgent; one that is complete or urgent stays as it is.
    pub(super) fn expedite(&mut self, now: u64, transfer: TransferId) {
        self.work_until(now);
        let place = self.ahead.iter().position(|job| job.transfer == transfer);
        if let Some(job) = place.and_then(|place| self.ahead.remove(place)) {
            self.urgent.push_back(job);
        }
    }

    /// Takes a transfer off the link; false if it is complete or was never here.
    pub(super) fn cancel(&mut self, now: u64, transfer: TransferId) -> bool {
        self.work_until(now);
        for queue in [&mut self.urgent, &mut self.ahead] {
            if let Some(place) = queue.iter().position(|job| job.transfer == transfer) {
                queue.remove(place);
                return true;
            }
        }
        false
    }

    /// When the next completion can be seen, if nothing more is submitted.
    pub(super) fn next_completion(&self) -> Option<u64> {
        let landed = self.landed.front().map(|landed| landed.at);
        landed.or_else(|| Some(self.now + self.front()?.remaining + self.latency))
    }

    /// Moves what is complete by `now` to `complete`.
    pub(super) fn take_completed(&mut self, now: u64, complete: &mut Vec<LinkCompletion>) {
        self.work_until(now);
        let due = self.landed.iter().take_while(|landed| landed.at <= now).count();
        complete.extend(self.landed.drain(..due));
    }

    /// When the first byte of a transfer moved, and how much of it has moved as link time of all
    /// that it takes; `None` if nothing has. What is complete and not yet told is here as well.
    pub(super) fn progress(&mut self, now: u64, transfer: TransferId) -> Option<TransferProgress> {
        self.work_until(now);
        if let Some(landed) = self.landed.iter().find(|landed| landed.transfer == transfer) {
            return Some(TransferProgress { started: landed.started, done: 1, total: 1 });
        }
        let mut queued = self.urgent.iter().chain(&self.ahead);
        let job = queued.find(|job| job.transfer == transfer)?;
        let (done, total) = (job.total - job.remaining, job.total);
        Some(TransferProgress { started: job.started?, done, total })
    }

    fn front(&self) -> Option<&Job> {
        self.urgent.front().or(self.ahead.front())
    }

    fn work_until(&mut self, until: u64) {
        while self.now < until {
            let queue = if self.urgent.is_empty() { &mut self.ahead } else { &mut self.urgent };
            let Some(job) = queue.front_mut() else { break };
            let started = *job.started.get_or_insert(self.now);
            let part = job.remaining.min(until - self.now);
            job.remaining -= part;
            self.now += part;
            if job.remaining == 0 {
                let transfer = job.transfer;
                self.landed.push_back(LinkCompletion {
                    at: self.now + self.latency,
                    transfer,
                    started,
                });
                queue.pop_front();
            }
        }
        self.now = self.now.max(until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link() -> SimulatedLink {
        SimulatedLink::new(Bandwidth(1_000_000_000), Nanos(5))
    }

    fn order(link: &mut SimulatedLink) -> Vec<(u64, u64)> {
        let mut complete = Vec::new();
        link.take_completed(1_000_000, &mut complete);
        complete.iter().map(|landed| (landed.transfer.0, landed.at)).collect()
    }

    #[test]
    fn transfers_follow_each_other_at_full_bandwidth() {
        let mut link = link();
        link.submit(10, TransferId(1), Bytes(100), false);
        link.submit(10, TransferId(2), Bytes(50), false);
        assert_eq!(link.next_completion(), Some(115));
        assert_eq!(order(&mut link), [(1, 115), (2, 165)]);
    }

    #[test]
    fn an_urgent_transfer_interrupts_one_that_is_not() {
        let mut link = link();
        link.submit(0, TransferId(1), Bytes(100), false);
        link.submit(40, TransferId(2), Bytes(30), true);
        assert_eq!(link.next_completion(), Some(75));
        assert_eq!(order(&mut link), [(2, 75), (1, 135)]);
    }

    #[test]
    fn expediting_overtakes_the_queue() {
        let mut link = link();
        for transfer in 1..=3 {
            link.submit(0, TransferId(transfer), Bytes(100), false);
        }
        link.expedite(50, TransferId(3));
        assert_eq!(order(&mut link), [(3, 155), (1, 205), (2, 305)]);
    }

    #[test]
    fn a_transfer_tells_how_far_it_has_come() {
        let mut link = link();
        link.submit(10, TransferId(1), Bytes(100), false);
        link.submit(10, TransferId(2), Bytes(50), false);
        let progress =
            |link: &mut SimulatedLink, now, transfer| link.progress(now, TransferId(transfer));
        assert_eq!(
            progress(&mut link, 40, 1),
            Some(TransferProgress { started: 10, done: 30, total: 100 })
        );
        assert_eq!(progress(&mut link, 40, 2), None, "it waits for its turn");
        let landed = progress(&mut link, 112, 1).unwrap();
        assert_eq!((landed.started, landed.done), (10, landed.total), "complete, and not yet told");
    }

    #[test]
    fn a_cancelled_transfer_gives_its_time_back() {
        let mut link = link();
        link.submit(0, TransferId(1), Bytes(100), false);
        link.submit(0, TransferId(2), Bytes(100), false);
        assert!(link.cancel(40, TransferId(1)));
        assert!(!link.cancel(141, TransferId(2)), "its bytes have moved");
        assert_eq!(order(&mut link), [(2, 145)]);
    }
}
