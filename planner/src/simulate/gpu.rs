//! The GPU's clock: kernels in the order of their launches, and checksums that take their place.

use super::event::{SimulatedEvent, SimulatedEvents};
use crate::migration::MigrationDirection;
use crate::residency::TransferId;
use crate::units::{Nanos, OpIndex};
use std::collections::VecDeque;

/// Wait of a kernel beside its launch: an event, and which way the copy goes that it is of.
pub(super) type CopyWait = (SimulatedEvent, MigrationDirection);

/// A kernel that was launched.
#[derive(Clone, Debug)]
pub(super) struct LaunchedKernel {
    pub(super) op: OpIndex,
    pub(super) launched: u64,
    pub(super) duration: Nanos,
    pub(super) after: Vec<CopyWait>,
    /// Recorded behind it.
    pub(super) done: SimulatedEvent,
}

/// Activity of the GPU in a part of a step, or why it did nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GpuActivity {
    Kernel,
    Checksum,
    /// Idle: nothing was launched that it could have begun.
    Unlaunched,
    /// The next kernel waited for a copy.
    Waited(MigrationDirection),
}

/// A part of a step on the GPU's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GpuSpan {
    pub(super) begin: u64,
    pub(super) end: u64,
    pub(super) activity: GpuActivity,
}

/// Start of a kernel, and how long the GPU had been idle then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KernelBegin {
    pub(super) op: OpIndex,
    pub(super) at: u64,
    pub(super) idle: u64,
}

/// Purpose of a checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChecksumFor {
    /// The end of a transfer.
    End(TransferId),
    /// The beginning: this is recorded behind the checksum.
    Beginning(SimulatedEvent),
}

/// A checksum that takes `left` of the GPU's time, once these have happened.
#[derive(Clone, Debug)]
struct ChecksumKernel {
    reason: ChecksumFor,
    left: u64,
    after: Vec<SimulatedEvent>,
}

/// Simulated GPU, which runs one kernel at a time.
#[derive(Clone, Debug, Default)]
pub(super) struct SimulatedGpu {
    now: u64,
    /// True if a checksum interrupts a kernel; otherwise it waits for the kernel's end.
    interrupts: bool,
    kernels: VecDeque<LaunchedKernel>,
    /// Remaining time of the first kernel, once it runs.
    running: Option<u64>,
    /// The copy that the first one has waited for last.
    waited_for: Option<MigrationDirection>,
    checksums: VecDeque<ChecksumKernel>,
    checksum: Option<ChecksumKernel>,
    /// Time since when there has been nothing to account for.
    idle_since: u64,
    /// Idle parts whose reason is known when the next kernel begins.
    idle: Vec<(u64, u64)>,
    spans: Vec<GpuSpan>,
    begins: Vec<KernelBegin>,
}

impl SimulatedGpu {
    pub(super) fn new(interrupts: bool) -> Self {
        Self { interrupts, ..Self::default() }
    }

    /// Begins an iteration, from which on spans are kept.
    pub(super) fn begin_iteration(&mut self, now: u64) {
        self.spans.clear();
        self.begins.clear();
        self.idle.clear();
        self.idle_since = self.idle_since.max(now);
    }

    /// Returns the spans of activity since the iteration began, up to `now`, without gaps.
    pub(super) fn spans(&self, now: u64) -> Vec<GpuSpan> {
        let mut spans = self.spans.clone();
        let activity = GpuActivity::Unlaunched;
        spans.extend(self.idle.iter().map(|&(begin, end)| GpuSpan { begin, end, activity }));
        let begin = self.idle_since;
        if begin < now {
            let activity = match (&self.checksum, self.running) {
                (Some(_), _) => GpuActivity::Checksum,
                (None, Some(_)) => GpuActivity::Kernel,
                (None, None) => activity,
            };
            spans.push(GpuSpan { begin, end: now, activity });
        }
        spans.sort_unstable_by_key(|span| span.begin);
        spans
    }

    /// The kernels that began since the iteration did.
    pub(super) fn begins(&self) -> &[KernelBegin] {
        &self.begins
    }

    pub(super) fn launch(&mut self, kernel: LaunchedKernel) {
        self.kernels.push_back(kernel);
    }

    pub(super) fn check(&mut self, reason: ChecksumFor, length: Nanos, after: Vec<SimulatedEvent>) {
        self.checksums.push_back(ChecksumKernel { reason, left: length.0.max(1), after });
    }

    /// Looks which events have happened that the next kernel waits for, and begins what can begin.
    pub(super) fn look_at(&mut self, events: &SimulatedEvents) {
        if self.running.is_none()
            && let Some(kernel) = self.kernels.front_mut()
        {
            let waited_for = &mut self.waited_for;
            kernel.after.retain(|(event, direction)| {
                let has_passed = events.has_passed(*event);
                if has_passed {
                    *waited_for = Some(*direction);
                }
                !has_passed
            });
        }
        for checksum in &mut self.checksums {
            checksum.after.retain(|event| !events.has_passed(*event));
        }
        self.begin();
    }

    /// Returns the time at which something begins or ends, if nothing else happens.
    pub(super) fn next_change(&self) -> Option<u64> {
        if let Some(checksum) = &self.checksum {
            return Some(self.now + checksum.left);
        }
        if let Some(left) = self.running {
            return Some(self.now + left);
        }
        let next = self.kernels.front().filter(|kernel| kernel.after.is_empty())?;
        Some(next.launched.max(self.now))
    }

    /// Lets time pass, no further than to the next change. Returns the transfer that ends with the
    /// checksum which is complete.
    pub(super) fn work_until(
        &mut self,
        until: u64,
        events: &mut SimulatedEvents,
    ) -> Option<TransferId> {
        let part = until - self.now;
        self.now = until;
        if let Some(checksum) = &mut self.checksum {
            checksum.left -= part;
            if checksum.left == 0 {
                let reason = checksum.reason;
                self.checksum = None;
                self.account(GpuActivity::Checksum);
                match reason {
                    ChecksumFor::End(transfer) => return Some(transfer),
                    ChecksumFor::Beginning(event) => events.record(event, until),
                }
            }
        } else if let Some(left) = &mut self.running {
            *left -= part;
            if *left == 0 {
                self.running = None;
                self.account(GpuActivity::Kernel);
                if let Some(kernel) = self.kernels.pop_front() {
                    events.record(kernel.done, until);
                }
            }
        }
        None
    }

    fn begin(&mut self) {
        if self.checksum.is_some() || (self.running.is_some() && !self.interrupts) {
            return;
        }
        let due = self.checksums.iter().position(|checksum| checksum.after.is_empty());
        if let Some(checksum) = due.and_then(|at| self.checksums.remove(at)) {
            if self.running.is_some() {
                self.account(GpuActivity::Kernel);
            }
            self.end_idle_part();
            self.checksum = Some(checksum);
            return;
        }
        let now = self.now;
        let next = self.kernels.front();
        let next = next.filter(|next| next.after.is_empty() && next.launched <= now);
        if self.running.is_none()
            && let Some(LaunchedKernel { op, duration, launched, .. }) = next
        {
            let (op, duration, launched) = (*op, *duration, *launched);
            self.end_idle_part();
            let idle = self.idle.iter().map(|(begin, end)| end - begin).sum();
            self.begins.push(KernelBegin { op, at: now, idle });
            self.explain_idle_parts(launched);
            self.running = Some(duration.0.max(1));
        }
    }

    fn end_idle_part(&mut self) {
        if self.idle_since < self.now {
            self.idle.push((self.idle_since, self.now));
            self.idle_since = self.now;
        }
    }

    /// The next kernel begins, which was launched then: what was before it waited for the launch,
    /// the rest for copies.
    fn explain_idle_parts(&mut self, launched: u64) {
        // A kernel that begins after its launch and waited for no copy waited for its turn.
        let waited = self.waited_for.take().map_or(GpuActivity::Unlaunched, GpuActivity::Waited);
        for (begin, end) in self.idle.drain(..) {
            let cut = launched.clamp(begin, end);
            let parts = [(begin, cut, GpuActivity::Unlaunched), (cut, end, waited)];
            let parts = parts.into_iter().filter(|(begin, end, _)| begin < end);
            self.spans.extend(parts.map(|(begin, end, activity)| GpuSpan { begin, end, activity }));
        }
    }

    /// Accounts for the time since the last account, in which something ran that ends now, or is
    /// interrupted.
    fn account(&mut self, activity: GpuActivity) {
        if self.idle_since < self.now {
            self.spans.push(GpuSpan { begin: self.idle_since, end: self.now, activity });
            self.idle_since = self.now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::GpuActivity::{Checksum, Kernel as Runs, Unlaunched, Waited};
    use super::*;

    fn run(gpu: &mut SimulatedGpu, events: &mut SimulatedEvents) -> Vec<(u64, u64, GpuActivity)> {
        loop {
            gpu.look_at(events);
            let Some(next) = gpu.next_change() else { break };
            gpu.work_until(next, events);
        }
        let spans = gpu.spans(gpu.now).into_iter();
        spans.map(|span| (span.begin, span.end, span.activity)).collect()
    }

    fn kernel(
        events: &mut SimulatedEvents,
        launched: u64,
        length: u64,
        after: Vec<CopyWait>,
    ) -> LaunchedKernel {
        let (op, duration, done) = (OpIndex(0), Nanos(length), events.make());
        LaunchedKernel { op, launched, duration, after, done }
    }

    #[test]
    fn kernels_follow_each_other_and_wait_for_their_launch() {
        let (mut gpu, mut events) = (SimulatedGpu::new(false), SimulatedEvents::default());
        for launched in [0, 1, 50] {
            let kernel = kernel(&mut events, launched, 20, Vec::new());
            gpu.launch(kernel);
        }
        let expected = [(0, 20, Runs), (20, 40, Runs), (40, 50, Unlaunched), (50, 70, Runs)];
        assert_eq!(run(&mut gpu, &mut events), expected);
    }

    #[test]
    fn a_checksum_waits_for_the_kernels_end_or_interrupts_it() {
        for (interrupts, expected) in [
            (false, vec![(0, 20, Runs), (20, 25, Checksum), (25, 45, Runs)]),
            (true, vec![(0, 8, Runs), (8, 13, Checksum), (13, 25, Runs), (25, 45, Runs)]),
        ] {
            let (mut gpu, mut events) = (SimulatedGpu::new(interrupts), SimulatedEvents::default());
            for _ in 0..2 {
                let kernel = kernel(&mut events, 0, 20, Vec::new());
                gpu.launch(kernel);
            }
            gpu.look_at(&events);
            gpu.work_until(8, &mut events);
            gpu.check(ChecksumFor::End(TransferId(1)), Nanos(5), Vec::new());
            assert_eq!(run(&mut gpu, &mut events), expected);
        }
    }

    #[test]
    fn what_a_kernel_waits_for_is_told_apart_from_its_launch() {
        let (mut gpu, mut events) = (SimulatedGpu::new(false), SimulatedEvents::default());
        let copied = events.make();
        let waits = vec![(copied, MigrationDirection::In)];
        let kernel = kernel(&mut events, 10, 20, waits);
        gpu.launch(kernel);
        gpu.look_at(&events);
        assert_eq!(gpu.next_change(), None);
        gpu.work_until(35, &mut events);
        events.record(copied, 35);
        let expected =
            [(0, 10, Unlaunched), (10, 35, Waited(MigrationDirection::In)), (35, 55, Runs)];
        assert_eq!(run(&mut gpu, &mut events), expected);
    }
}
