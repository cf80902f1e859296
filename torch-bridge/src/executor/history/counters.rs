//! Counters: bytes by class and direction, stalls, and how fast the pool moves bytes.

use std::time::{Duration, Instant};

use serde::Serialize;
use tidelog_gds::TimedCopies;
use tidelog_planner::migration::Target;
use tidelog_planner::residency::CopyKind;
use tidelog_planner::trace::StorageKind;
use tidelog_planner::units::{Bandwidth, Nanos};

use crate::executor::step_rate::StepRate;
use crate::executor::transfer::{StorageTransfer, TransferDirection};

/// Bytes by what their storage is for, in the order of [`Kind::ALL`].
pub(in crate::executor) type BytesByKind = [u64; StorageKind::ALL.len()];

/// Counted since the session was opened, or over one step.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(in crate::executor) struct Totals {
    /// Bytes to the pool, and from it.
    pub(in crate::executor) bytes_written: u64,
    bytes_read: u64,
    bytes_to_host: u64,
    bytes_from_host: u64,
    pub(in crate::executor) evictions: u64,
    pub(in crate::executor) fetches: u64,
    /// Evictions that copied nothing, because a copy was proved to be the same.
    pub(in crate::executor) clean_drops: u64,
    pub(in crate::executor) stalls: u64,
    pub(in crate::executor) stall_ns: u64,
    /// Number of evictions and fetches of parts of storages, and the bytes that they moved or
    /// proved.
    evictions_of_parts: u64,
    fetches_of_parts: u64,
    bytes_of_parts: u64,
    /// Time that the caller took for requests: to let memory go, to get some, to hand transfers
    /// over.
    pub(in crate::executor) handling_ns: u64,
}

impl Totals {
    /// Counts between two moments.
    fn since(self, before: Self) -> Self {
        Self {
            bytes_written: self.bytes_written - before.bytes_written,
            bytes_read: self.bytes_read - before.bytes_read,
            bytes_to_host: self.bytes_to_host - before.bytes_to_host,
            bytes_from_host: self.bytes_from_host - before.bytes_from_host,
            evictions: self.evictions - before.evictions,
            fetches: self.fetches - before.fetches,
            clean_drops: self.clean_drops - before.clean_drops,
            stalls: self.stalls - before.stalls,
            stall_ns: self.stall_ns - before.stall_ns,
            evictions_of_parts: self.evictions_of_parts - before.evictions_of_parts,
            fetches_of_parts: self.fetches_of_parts - before.fetches_of_parts,
            bytes_of_parts: self.bytes_of_parts - before.bytes_of_parts,
            handling_ns: self.handling_ns - before.handling_ns,
        }
    }
}

/// The session's counters.
#[derive(Default)]
pub(in crate::executor) struct Counters {
    totals: Totals,
    written: BytesByKind,
    read: BytesByKind,
    last_step: Totals,
    /// Rate of the last step.
    last_pace: StepRate,
    step_began_at: Totals,
    step_began: Option<Moment>,
    /// The end of the last step, or of the pause behind it.
    step_ended: Option<Instant>,
    /// Time between the last step's end and the next one.
    between: Duration,
    writes: Busy,
    reads: Busy,
    /// Copies to host memory and from it that are done.
    host_writes: Moved,
    host_reads: Moved,
}

/// Bytes that moved, and the time that took.
type Moved = (u64, Duration);

/// Bytes that each direction has moved.
#[derive(Clone, Copy, Default)]
struct MovedByLink {
    reads: Moved,
    writes: Moved,
    host_reads: Moved,
    host_writes: Moved,
}

/// Counts until a moment.
#[derive(Clone, Copy, Default)]
pub(super) struct CountedUntil {
    totals: Totals,
    moved: MovedByLink,
}

/// Time that at least one transfer of a direction was in flight, and what moved meanwhile.
#[derive(Default)]
struct Busy {
    in_flight: u32,
    since: Option<Instant>,
    /// End of the last transfer: before it was seen to, at the next op boundary.
    ended: Option<Instant>,
    time: Duration,
    bytes: u64,
}

/// Start of a step, and what the directions had moved by then.
#[derive(Clone, Copy)]
struct Moment {
    at: Instant,
    moved: MovedByLink,
}

impl Busy {
    fn started(&mut self) {
        self.in_flight += 1;
        self.since.get_or_insert_with(Instant::now);
    }

    fn finished(&mut self, bytes: u64, at: Instant) {
        self.bytes += bytes;
        self.in_flight = self.in_flight.saturating_sub(1);
        let ended = self.ended.map_or(at, |before| before.max(at));
        self.ended = Some(ended);
        if self.in_flight == 0 {
            let since = self.since.take();
            self.time +=
                since.map_or(Duration::ZERO, |since| ended.saturating_duration_since(since));
        }
    }

    /// Bytes moved, and the time that took, until now.
    fn so_far(&self) -> Moved {
        let running = self.since.map_or(Duration::ZERO, |since| since.elapsed());
        (self.bytes, self.time + running)
    }
}

/// Bytes that tell how fast a link is: of the pool's, whose time the host takes, and of a GPU's,
/// which has a clock of its own.
const ENOUGH_FOR_POOL: u64 = 16 << 20;
const ENOUGH_FOR_GPU: u64 = 4 << 20;

/// Bytes per second while busy, between two moments, once enough has moved to tell.
fn bandwidth(since: Moved, until: Moved, enough: u64) -> Option<Bandwidth> {
    let (bytes, nanos) = (until.0 - since.0, until.1.saturating_sub(since.1).as_nanos());
    (bytes >= enough && nanos > 0).then(|| {
        let per_second = u128::from(bytes) * 1_000_000_000 / nanos;
        Bandwidth(u64::try_from(per_second).unwrap_or(u64::MAX))
    })
}

impl Counters {
    pub(in crate::executor) fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Returns the totals of the last step.
    pub(in crate::executor) fn last_step(&self) -> &Totals {
        &self.last_step
    }

    /// Returns the rate of the last step.
    pub(in crate::executor) fn last_pace(&self) -> StepRate {
        self.last_pace
    }

    /// Returns the time between the last two steps, without pauses.
    pub(in crate::executor) fn between(&self) -> Nanos {
        Nanos(self.between.as_nanos() as u64)
    }

    /// Returns the bytes to the pool.
    pub(in crate::executor) fn written(&self) -> &BytesByKind {
        &self.written
    }

    /// Returns the bytes from the pool.
    pub(in crate::executor) fn read(&self) -> &BytesByKind {
        &self.read
    }

    pub(super) fn started(&mut self, transfer: &StorageTransfer) {
        if let Some(link) = self.link(transfer) {
            link.started();
        }
    }

    /// A transfer that had started ended, well or not.
    pub(super) fn completed(&mut self, transfer: &StorageTransfer, done: bool, at: Instant) {
        let &StorageTransfer { kind, direction, target, .. } = transfer;
        let moved = if done { transfer.bytes } else { 0 };
        if let Some(link) = self.link(transfer) {
            link.finished(moved, at);
        }
        if transfer.of.part.is_some() && done {
            let is_out = matches!(direction, TransferDirection::Out(_));
            self.totals.evictions_of_parts += u64::from(is_out);
            self.totals.fetches_of_parts += u64::from(!is_out);
            self.totals.bytes_of_parts += moved;
        }
        match direction {
            TransferDirection::Out(copy) => {
                // A second check belongs to the eviction that wrote what it checks.
                self.totals.evictions += u64::from(done && copy != CopyKind::Recheck);
                match copy {
                    CopyKind::Write => self.went_out(target, kind, moved),
                    CopyKind::Verify => self.totals.clean_drops += u64::from(done),
                    CopyKind::Recheck => {}
                }
            }
            TransferDirection::In => {
                self.totals.fetches += u64::from(done);
                self.came_back(target, kind, moved);
            }
        }
    }

    fn went_out(&mut self, target: Target, kind: StorageKind, bytes: u64) {
        match target {
            Target::Ssd => {
                self.totals.bytes_written += bytes;
                self.written[place_of(kind)] += bytes;
            }
            Target::Host => self.totals.bytes_to_host += bytes,
        }
    }

    fn came_back(&mut self, target: Target, kind: StorageKind, bytes: u64) {
        match target {
            Target::Ssd => {
                self.totals.bytes_read += bytes;
                self.read[place_of(kind)] += bytes;
            }
            Target::Host => self.totals.bytes_from_host += bytes,
        }
    }

    /// Returns the link of the pool that a transfer keeps busy; a comparison, nothing. The GPU says
    /// what copies to host memory take ([`Counters::host_copied`]).
    fn link(&mut self, transfer: &StorageTransfer) -> Option<&mut Busy> {
        match (transfer.direction, transfer.target) {
            (TransferDirection::Out(CopyKind::Verify | CopyKind::Recheck), _)
            | (_, Target::Host) => None,
            (TransferDirection::Out(CopyKind::Write), Target::Ssd) => Some(&mut self.writes),
            (TransferDirection::In, Target::Ssd) => Some(&mut self.reads),
        }
    }

    /// Notes what has been copied from host memory, and to it.
    pub(super) fn host_copied(&mut self, back: TimedCopies, out: TimedCopies) {
        self.host_reads = (back.bytes, back.time);
        self.host_writes = (out.bytes, out.time);
    }

    fn moved(&self) -> MovedByLink {
        MovedByLink {
            reads: self.reads.so_far(),
            writes: self.writes.so_far(),
            host_reads: self.host_reads,
            host_writes: self.host_writes,
        }
    }

    pub(super) fn stalled(&mut self, time: Duration) {
        self.totals.stalls += 1;
        self.totals.stall_ns += time.as_nanos() as u64;
    }

    pub(super) fn handled(&mut self, time: Duration) {
        self.totals.handling_ns += time.as_nanos() as u64;
    }

    /// Returns the caller's time for one transfer so far, on average.
    pub(in crate::executor) fn handling(&self) -> Nanos {
        let Totals { evictions, fetches, handling_ns, .. } = self.totals;
        Nanos(handling_ns / (evictions + fetches).max(1))
    }

    pub(super) fn step_begins(&mut self) {
        self.step_began_at = self.totals;
        self.between = self.step_ended.map_or(Duration::ZERO, |ended| ended.elapsed());
        self.step_began = Some(Moment { at: Instant::now(), moved: self.moved() });
    }

    /// All until now.
    pub(super) fn counted(&self) -> CountedUntil {
        CountedUntil { totals: self.totals, moved: self.moved() }
    }

    /// Has the step go on, `later`, from where it was when `from` was counted.
    pub(super) fn goes_on(&mut self, later: Duration, from: &CountedUntil) {
        let CountedUntil { totals, moved } = self.counted();
        self.step_began_at = totals.since(from.totals.since(self.step_began_at));
        if let Some(began) = &mut self.step_began {
            let shift = |at: &mut Moved, from: Moved, to: Moved| {
                *at = (at.0 + (to.0 - from.0), at.1 + to.1.saturating_sub(from.1));
            };
            began.at += later;
            let (at, from) = (&mut began.moved, &from.moved);
            shift(&mut at.reads, from.reads, moved.reads);
            shift(&mut at.writes, from.writes, moved.writes);
            shift(&mut at.host_reads, from.host_reads, moved.host_reads);
            shift(&mut at.host_writes, from.host_writes, moved.host_writes);
        }
    }

    pub(super) fn step_ends(&mut self) {
        self.last_step = self.totals.since(self.step_began_at);
        self.last_pace = self.pace();
        self.step_ended = Some(Instant::now());
    }

    /// Notes that the program was throttled behind a step until now.
    pub(super) fn throttled(&mut self) {
        self.step_ended = Some(Instant::now());
    }

    /// Measured bandwidths of the pool or of host memory, back and out, as far as transfers have
    /// shown them.
    pub(in crate::executor) fn bandwidths(
        &self,
        target: Target,
    ) -> (Option<Bandwidth>, Option<Bandwidth>) {
        let moved = self.moved();
        let (back, out, enough) = match target {
            Target::Ssd => (moved.reads, moved.writes, ENOUGH_FOR_POOL),
            Target::Host => (moved.host_reads, moved.host_writes, ENOUGH_FOR_GPU),
        };
        let opened = Moved::default();
        (bandwidth(opened, back, enough), bandwidth(opened, out, enough))
    }

    fn pace(&self) -> StepRate {
        let Some(Moment { at, moved: before }) = self.step_began else {
            return StepRate::default();
        };
        let (took, now) = (at.elapsed().as_nanos() as u64, self.moved());
        StepRate {
            compute: Some(Nanos(took.saturating_sub(self.last_step.stall_ns))),
            read: bandwidth(before.reads, now.reads, ENOUGH_FOR_POOL),
            write: bandwidth(before.writes, now.writes, ENOUGH_FOR_POOL),
            host_read: bandwidth(before.host_reads, now.host_reads, ENOUGH_FOR_GPU),
            host_write: bandwidth(before.host_writes, now.host_writes, ENOUGH_FOR_GPU),
        }
    }
}

/// Returns the index of a kind in [`BytesByKind`].
pub(super) fn place_of(kind: StorageKind) -> usize {
    StorageKind::ALL.iter().position(|&each| each == kind).unwrap_or(0)
}
