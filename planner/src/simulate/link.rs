//! The machine's links as servers: each moves one transfer at a time at full bandwidth, urgent ones
//! first. An urgent transfer interrupts one that is not, as the engine's pieces do. A GPU's stream
//! is such a link, too: there a copy waits for events, and what has begun goes on to its end.

use super::event::{SimulatedEvent, SimulatedEvents};
use crate::residency::TransferId;
use crate::units::{Bandwidth, Bytes, Nanos};
use std::collections::VecDeque;

/// Factor of a transfer's remaining bytes, so that it is whole at any rate.
const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// A transfer as it is handed to a link.
#[derive(Clone, Debug)]
pub(super) struct LinkJob {
    pub(super) transfer: TransferId,
    pub(super) bytes: Bytes,
    pub(super) urgent: bool,
    /// Events before which it does not begin.
    pub(super) after: Vec<SimulatedEvent>,
}

/// A transfer on a link.
#[derive(Clone, Debug)]
struct Job {
    transfer: TransferId,
    submitted: u64,
    /// Link time that it needs in all.
    total: u64,
    /// Bytes times nanoseconds of a second that it still needs.
    remaining: u128,
    /// Time at which its first byte moved.
    started: Option<u64>,
    /// Events that have not happened yet and must before it begins.
    after: Vec<SimulatedEvent>,
}

/// A transfer that is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LinkCompletion {
    /// Time at which its completion can be seen.
    pub(super) at: u64,
    pub(super) transfer: TransferId,
    /// Time at which its first byte moved.
    pub(super) started: u64,
}

/// Progress of a transfer: `done` of `total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TransferProgress {
    pub(super) started: u64,
    pub(super) done: u64,
    pub(super) total: u64,
}

/// One link in one direction.
#[derive(Clone, Debug)]
pub(super) struct SimulatedLink {
    /// Rates of the link: alone, and now.
    alone: Bandwidth,
    rate: Bandwidth,
    latency: u64,
    /// True if a transfer that has begun goes on to its end, whoever is urgent.
    uninterrupted: bool,
    /// Time that its thread takes between a job that it waited for and one that came meanwhile.
    gap: u64,
    /// Time until which the queues have been processed.
    now: u64,
    /// Time before which nothing begins.
    idle_until: u64,
    /// Start of the transfer that holds the stream though its bytes have moved.
    held: Option<u64>,
    urgent: VecDeque<Job>,
    ahead: VecDeque<Job>,
    /// Complete, and not yet told.
    landed: VecDeque<LinkCompletion>,
}

impl SimulatedLink {
    pub(super) fn new(rate: Bandwidth, latency: Nanos) -> Self {
        Self {
            alone: rate,
            rate,
            latency: latency.0,
            uninterrupted: false,
            gap: 0,
            now: 0,
            idle_until: 0,
            held: None,
            urgent: VecDeque::new(),
            ahead: VecDeque::new(),
            landed: VecDeque::new(),
        }
    }

    /// Turns the link into a stream of a GPU, which copies whole transfers. A thread hands it one
    /// when it has seen the end of the last one, and takes `gap` for that.
    pub(super) fn into_stream(self, gap: Nanos) -> Self {
        Self { uninterrupted: true, gap: gap.0, ..self }
    }

    pub(super) fn submit(&mut self, now: u64, job: LinkJob) {
        self.work_until(now);
        let LinkJob { transfer, bytes, urgent, after } = job;
        let total = self.alone.time_for(bytes).0.max(1);
        let remaining = (u128::from(bytes.0) * NANOS_PER_SECOND).max(1);
        let job = Job { transfer, submitted: now, total, remaining, started: None, after };
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
        let uninterrupted = self.uninterrupted;
        for queue in [&mut self.urgent, &mut self.ahead] {
            if let Some(place) = queue.iter().position(|job| job.transfer == transfer) {
                let stays = uninterrupted && queue[place].started.is_some();
                if !stays {
                    queue.remove(place);
                }
                return !stays;
            }
        }
        false
    }

    /// Returns the time at which the next completion can be seen, if nothing more is submitted.
    pub(super) fn next_completion(&self) -> Option<u64> {
        let landed = self.landed.front().map(|landed| landed.at);
        landed.or_else(|| Some(self.now + self.time_left(self.front()?) + self.latency))
    }

    /// Moves what is complete by `now` to `complete`.
    pub(super) fn take_completed(&mut self, now: u64, complete: &mut Vec<LinkCompletion>) {
        self.work_until(now);
        let due = self.landed.iter().take_while(|landed| landed.at <= now).count();
        complete.extend(self.landed.drain(..due));
    }

    /// Returns the time at which the first byte of a transfer moved, and how much of it has moved,
    /// as link time; `None` if nothing has. What is complete and not yet told is here as well.
    pub(super) fn progress(&mut self, now: u64, transfer: TransferId) -> Option<TransferProgress> {
        self.work_until(now);
        if let Some(landed) = self.landed.iter().find(|landed| landed.transfer == transfer) {
            return Some(TransferProgress { started: landed.started, done: 1, total: 1 });
        }
        let mut queued = self.urgent.iter().chain(&self.ahead);
        let job = queued.find(|job| job.transfer == transfer)?;
        let left = time_for(job.remaining, self.alone);
        let (done, total) = (job.total.saturating_sub(left), job.total);
        Some(TransferProgress { started: job.started?, done, total })
    }

    /// Returns whether bytes move now.
    pub(super) fn is_moving(&self) -> bool {
        self.idle_until <= self.now && self.startable().is_some()
    }

    /// Returns the time at which bytes begin or cease to move, or a completion can be seen, if
    /// nothing else happens.
    pub(super) fn next_change(&self) -> Option<u64> {
        let change = self.startable().map(|job| {
            let waits = self.idle_until > self.now;
            if waits { self.idle_until } else { self.now + self.time_left(job) }
        });
        let landed = self.landed.front().map(|landed| landed.at);
        landed.into_iter().chain(change).min()
    }

    /// Changes the rate from now on.
    pub(super) fn set_rate(&mut self, rate: Bandwidth) {
        self.rate = rate;
    }

    /// Looks which events have happened that the next transfer waits for.
    pub(super) fn look_at(&mut self, events: &SimulatedEvents) {
        if let Some(job) = self.front_mut() {
            job.after.retain(|event| !events.has_passed(*event));
        }
    }

    /// The stream is not free after its last transfer, which began at `started`, until
    /// [`Self::let_go`].
    pub(super) fn hold(&mut self, started: u64) {
        self.held = Some(started);
    }

    /// Releases the stream: its holder has ended.
    pub(super) fn let_go(&mut self, now: u64) {
        if let Some(started) = self.held.take() {
            self.wait_for_thread(now, started);
        }
    }

    /// The transfer that began at `started` is over: what came since then is handed over when the
    /// thread has seen that.
    fn wait_for_thread(&mut self, now: u64, started: u64) {
        let is_there = self.front().is_some_and(|job| job.submitted <= started);
        self.idle_until = if is_there { now } else { now + self.gap };
    }

    fn startable(&self) -> Option<&Job> {
        self.front().filter(|job| self.held.is_none() && job.after.is_empty())
    }

    fn front(&self) -> Option<&Job> {
        if self.is_ahead_first() { self.ahead.front() } else { self.urgent.front() }
    }

    fn front_mut(&mut self) -> Option<&mut Job> {
        self.front_queue().front_mut()
    }

    fn front_queue(&mut self) -> &mut VecDeque<Job> {
        if self.is_ahead_first() { &mut self.ahead } else { &mut self.urgent }
    }

    fn is_ahead_first(&self) -> bool {
        let goes_on = self.uninterrupted && self.ahead.front().is_some_and(|j| j.started.is_some());
        self.urgent.is_empty() || goes_on
    }

    fn time_left(&self, job: &Job) -> u64 {
        time_for(job.remaining, self.rate)
    }

    pub(super) fn work_until(&mut self, until: u64) {
        while self.now < until {
            if self.startable().is_none() {
                break;
            }
            if self.now < self.idle_until {
                self.now = self.idle_until.min(until);
                continue;
            }
            self.move_front(until);
        }
        self.now = self.now.max(until);
    }

    /// Moves bytes of the first transfer until it is complete, or until then.
    fn move_front(&mut self, until: u64) {
        let (now, rate, latency) = (self.now, self.rate, self.latency);
        let Some(job) = self.front_mut() else { return };
        let started = *job.started.get_or_insert(now);
        let left = time_for(job.remaining, rate);
        let part = left.min(until - now);
        let moved = u128::from(part) * u128::from(rate.0.max(1));
        job.remaining = job.remaining.saturating_sub(moved);
        let transfer = job.transfer;
        self.now += part;
        if part == left {
            let at = self.now + latency;
            self.landed.push_back(LinkCompletion { at, transfer, started });
            self.front_queue().pop_front();
            self.wait_for_thread(self.now, started);
        }
    }
}

fn time_for(remaining: u128, rate: Bandwidth) -> u64 {
    u64::try_from(remaining.div_ceil(u128::from(rate.0.max(1)))).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link() -> SimulatedLink {
        SimulatedLink::new(Bandwidth(1_000_000_000), Nanos(5))
    }

    fn submit(link: &mut SimulatedLink, now: u64, transfer: u64, bytes: u64, urgent: bool) {
        let (transfer, bytes, after) = (TransferId(transfer), Bytes(bytes), Vec::new());
        link.submit(now, LinkJob { transfer, bytes, urgent, after });
    }

    fn order(link: &mut SimulatedLink) -> Vec<(u64, u64)> {
        let mut complete = Vec::new();
        link.take_completed(1_000_000, &mut complete);
        complete.iter().map(|landed| (landed.transfer.0, landed.at)).collect()
    }

    #[test]
    fn transfers_follow_each_other_at_full_bandwidth() {
        let mut link = link();
        submit(&mut link, 10, 1, 100, false);
        submit(&mut link, 10, 2, 50, false);
        assert_eq!(link.next_completion(), Some(115));
        assert_eq!(order(&mut link), [(1, 115), (2, 165)]);
    }

    #[test]
    fn an_urgent_transfer_interrupts_one_that_is_not() {
        let mut link = link();
        submit(&mut link, 0, 1, 100, false);
        submit(&mut link, 40, 2, 30, true);
        assert_eq!(link.next_completion(), Some(75));
        assert_eq!(order(&mut link), [(2, 75), (1, 135)]);
    }

    #[test]
    fn expediting_overtakes_the_queue() {
        let mut link = link();
        for transfer in 1..=3 {
            submit(&mut link, 0, transfer, 100, false);
        }
        link.expedite(50, TransferId(3));
        assert_eq!(order(&mut link), [(3, 155), (1, 205), (2, 305)]);
    }

    #[test]
    fn a_transfer_tells_how_far_it_has_come() {
        let mut link = link();
        submit(&mut link, 10, 1, 100, false);
        submit(&mut link, 10, 2, 50, false);
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
        submit(&mut link, 0, 1, 100, false);
        submit(&mut link, 0, 2, 100, false);
        assert!(link.cancel(40, TransferId(1)));
        assert!(!link.cancel(141, TransferId(2)), "its bytes have moved");
        assert_eq!(order(&mut link), [(2, 145)]);
    }

    #[test]
    fn a_stream_ends_what_it_has_begun() {
        let mut link = link().into_stream(Nanos(0));
        submit(&mut link, 0, 1, 100, false);
        submit(&mut link, 40, 2, 30, true);
        assert!(!link.cancel(50, TransferId(1)), "its bytes move");
        assert_eq!(order(&mut link), [(1, 105), (2, 135)]);
    }

    #[test]
    fn a_thread_that_waited_for_one_takes_its_time_to_hand_over_what_came_meanwhile() {
        let mut link = link().into_stream(Nanos(7));
        submit(&mut link, 0, 1, 100, false);
        submit(&mut link, 0, 2, 100, false);
        submit(&mut link, 50, 3, 100, false);
        assert_eq!(order(&mut link), [(1, 105), (2, 205), (3, 305)]);
        submit(&mut link, 1_000_000, 4, 10, false);
        submit(&mut link, 1_000_001, 5, 10, false);
        let mut complete = Vec::new();
        link.take_completed(2_000_000, &mut complete);
        let at: Vec<u64> = complete.iter().map(|landed| landed.at - 1_000_000).collect();
        assert_eq!(at, [15, 32], "the second came while the thread waited for the first");
    }

    #[test]
    fn a_transfer_waits_for_its_events_and_those_behind_it_wait_too() {
        let (mut link, mut events) = (link(), SimulatedEvents::default());
        let event = events.make();
        let (transfer, bytes, after) = (TransferId(1), Bytes(100), vec![event]);
        link.submit(0, LinkJob { transfer, bytes, urgent: false, after });
        submit(&mut link, 0, 2, 100, false);
        link.look_at(&events);
        assert_eq!(link.next_change(), None);
        link.work_until(70);
        events.record(event, 70);
        link.look_at(&events);
        assert_eq!(link.next_change(), Some(170));
        assert_eq!(order(&mut link), [(1, 175), (2, 275)]);
    }

    #[test]
    fn another_rate_counts_from_where_it_begins() {
        let mut link = link();
        submit(&mut link, 0, 1, 100, false);
        link.work_until(40);
        link.set_rate(Bandwidth(500_000_000));
        assert_eq!(link.next_change(), Some(160));
        assert_eq!(order(&mut link), [(1, 165)]);
    }
}
