//! One simulated disk: its medium, its faults and its latencies.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tidelog_random::Random;

use super::media::{DiskMedia, DiskPage};
use super::peer;
use super::trouble::DiskStall;
use crate::memory::{ALIGNMENT, Memory};
use crate::path::operation::{Action, Extent, Operation, OperationKind};
use crate::path::waker::Waker;
use crate::units::ByteCount;

/// Virtual time.
pub(super) type Ticks = u64;

/// Behaviour of a simulated disk without faults.
#[derive(Clone, Copy, Debug)]
pub struct SimProfile {
    /// Decides latencies, hence the order of completions, and what a torn cache keeps.
    pub seed: u64,
    /// The longest an operation takes, in ticks; the shortest is one. One tick for all keeps order.
    pub latency_ticks_max: u64,
    /// The smallest unit that is written whole or not at all, in bytes: 512 or 4096.
    pub logical_block: u32,
    /// True if a write that completed may still be lost. Without, it is on the medium.
    pub volatile_cache: bool,
    /// True if the disk knows writes that are forced to the medium (FUA); if not it refuses each.
    pub forced_writes: bool,
}

impl SimProfile {
    /// Returns the profile of a disk that does as little as it can: it keeps order, and has no
    /// cache.
    pub fn plain() -> Self {
        Self { volatile_cache: false, latency_ticks_max: 1, ..Self::default() }
    }
}

impl Default for SimProfile {
    fn default() -> Self {
        Self {
            seed: 1,
            latency_ticks_max: 64,
            logical_block: 512,
            volatile_cache: true,
            forced_writes: true,
        }
    }
}

/// Fault of a future operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The operation fails with this error number and nothing is moved.
    Errno(i32),
    /// The operation moves this many bytes (rounded down to 4 KiB) and says so.
    Short(u32),
    /// A read returns with one bit flipped, this once, and claims success.
    Corrupt,
    /// A write claims success and is never written.
    Lost,
    /// A write claims success and goes to this byte offset instead of its own (rounded down to 4
    /// KiB); a read returns what is stored there.
    Misdirected(u64),
    /// The operation takes this many ticks longer.
    Slow(u64),
}

/// Remains of writes that were not flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerCut {
    /// None.
    DropAll,
    /// All acknowledged writes.
    KeepAll,
    /// Each block survives or not, decided by this seed. Also tears what was in flight.
    Torn(u64),
}

/// Counters of a disk's operations, for tests of how much is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SimCounters {
    /// Reads completed.
    pub reads: u64,
    /// Writes completed.
    pub writes: u64,
    /// Writes completed that were forced to the medium.
    pub forced_writes: u64,
    /// Flushes completed.
    pub flushes: u64,
    /// Bytes written.
    pub bytes_written: u64,
}

/// A disk in memory. Clones are handles of the same disk.
#[derive(Clone)]
pub struct SimDisk {
    size: ByteCount,
    logical_block: u32,
    volatile_cache: bool,
    state: Arc<Mutex<DiskState>>,
}

pub(super) struct DiskState {
    pub(super) media: DiskMedia,
    profile: SimProfile,
    random: Random,
    faults: Vec<Planned>,
    /// The planned faults that have struck and that nobody has asked for yet.
    struck: Vec<(OperationKind, Fault)>,
    counters: SimCounters,
    waker: Option<Waker>,
    countdown: Option<Countdown>,
    held: bool,
    hung: bool,
    removed: bool,
    pub(super) stall: DiskStall,
    /// Bytes per second of real time, if it is to take any.
    rate: Option<ByteCount>,
    /// Time at which what was given to it is done, at its rate.
    busy_until: Instant,
    /// Counts power cuts; what was started in an earlier life fails.
    life: u64,
    next_id: u64,
    /// Operations started and not completed.
    operations: usize,
    /// Writes that were started and have not completed: their number, place and bytes.
    in_flight: Vec<(u64, u64, Vec<DiskPage>)>,
}

/// Countdown of operations, after which the power of several disks is cut at once.
#[derive(Clone)]
struct Countdown {
    left: Arc<AtomicU64>,
    disks: Arc<[SimDisk]>,
    cut: PowerCut,
}

struct Planned {
    kind: OperationKind,
    /// Operations of this kind that pass before the fault strikes.
    passes: u64,
    fault: Fault,
}

/// An operation in flight, decided but not completed.
pub(super) struct StartedOperation {
    id: u64,
    life: u64,
    due: Ticks,
    /// Time before which it does not complete, on a disk that has a rate.
    pub(super) ready: Option<Instant>,
    fault: Option<Fault>,
    aborted: bool,
}

impl StartedOperation {
    pub(super) fn abort(&mut self) {
        self.aborted = true;
    }
}

impl SimDisk {
    /// A disk of `size` bytes (a multiple of 4 KiB), all zero, that reorders by seed 1.
    pub fn new(size: ByteCount) -> Self {
        Self::with_profile(size, SimProfile::default())
    }

    /// A disk that behaves as `profile` says.
    pub fn with_profile(size: ByteCount, profile: SimProfile) -> Self {
        let state = DiskState {
            media: DiskMedia::default(),
            profile,
            random: Random::new(profile.seed),
            faults: Vec::new(),
            struck: Vec::new(),
            counters: SimCounters::default(),
            waker: None,
            countdown: None,
            held: false,
            hung: false,
            removed: false,
            stall: DiskStall::Over,
            rate: None,
            busy_until: Instant::now(),
            life: 0,
            next_id: 0,
            operations: 0,
            in_flight: Vec::new(),
        };
        let size = ByteCount(size.0 & !(ALIGNMENT as u64 - 1));
        let SimProfile { logical_block, volatile_cache, .. } = profile;
        Self { size, logical_block, volatile_cache, state: Arc::new(Mutex::new(state)) }
    }

    /// The capacity.
    pub fn size(&self) -> ByteCount {
        self.size
    }

    /// Returns whether both are handles of one disk.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.state, &other.state)
    }

    /// The smallest unit that is written whole or not at all.
    pub fn logical_block(&self) -> u32 {
        self.logical_block
    }

    /// Returns whether a write that completed may still be lost.
    pub fn has_volatile_cache(&self) -> bool {
        self.volatile_cache
    }

    /// Strikes the `nth` operation of `kind` from now on (0 is the next one) with `fault`.
    pub fn plan_fault(&self, kind: OperationKind, nth: u64, fault: Fault) {
        self.state().faults.push(Planned { kind, passes: nth, fault });
    }

    /// Forgets the faults that have not struck.
    pub fn clear_faults(&self) {
        self.state().faults.clear();
    }

    /// The planned faults that have struck since this was asked last, in order.
    pub fn take_struck(&self) -> Vec<(OperationKind, Fault)> {
        std::mem::take(&mut self.state().struck)
    }

    /// Flips the bits of `mask` in the byte at `offset`, on every read until it is written again.
    pub fn rot(&self, offset: u64, mask: u8) {
        self.state().media.rot(offset, mask);
    }

    /// Completes nothing from now on, so that a test can look at what is in flight.
    pub fn hold(&self) {
        self.state().held = true;
    }

    /// Moves `rate` bytes per second of real time from now on; without a limit it takes no time.
    pub fn set_rate(&self, rate: Option<ByteCount>) {
        self.state().rate = rate;
    }

    /// Ends a [`hold`](SimDisk::hold).
    pub fn release(&self) {
        let mut state = self.state();
        state.held = false;
        state.wake();
    }

    /// Completes nothing any more, not even what is aborted: a device that never lets go.
    pub fn hang(&self) {
        self.state().hung = true;
    }

    /// Pulls the disk: everything in flight and to come fails with `ENODEV`.
    pub fn remove_device(&self) {
        let mut state = self.state();
        state.removed = true;
        state.wake();
    }

    /// Cuts the power. Unflushed writes end as `cut` says; what is in flight fails with `ENODEV`,
    /// and so does what comes, until a path opens the disk again (which also ends hold, hang and
    /// removal).
    pub fn cut_power(&self, cut: PowerCut) {
        let mut state = self.state();
        let state = &mut *state;
        if let PowerCut::Torn(seed) = cut {
            let mut random = Random::new(seed);
            for (_, offset, pages) in std::mem::take(&mut state.in_flight) {
                // The host gave it away; the disk may have taken it in before the power went.
                if random.below(2) == 0 {
                    let count = pages.len();
                    state.media.write(offset, pages, count);
                }
            }
            state.media.tear_cache(self.logical_block, &mut random);
        }
        if cut == PowerCut::KeepAll {
            state.media.flush();
        }
        state.media.drop_cache();
        state.in_flight.clear();
        state.life += 1;
        state.removed = true;
        state.wake();
    }

    /// Cuts the power of all these disks at once, as [`SimDisk::cut_power`] does, when they are
    /// given the `nth` operation from now on that changes something (0 is the next one, which then
    /// fails). It strikes once.
    pub fn cut_power_at(disks: &[Self], nth: u64, cut: PowerCut) {
        let left = Arc::new(AtomicU64::new(nth + 1));
        let countdown = Countdown { left, disks: disks.into(), cut };
        for disk in disks {
            disk.state().countdown = Some(countdown.clone());
        }
    }

    /// Returns whether the power was cut since the disk was opened.
    pub fn is_off(&self) -> bool {
        self.state().removed
    }

    /// Returns the counters of the disk.
    pub fn counters(&self) -> SimCounters {
        self.state().counters
    }

    /// Returns the number of operations in flight.
    pub fn in_flight(&self) -> usize {
        self.state().operations
    }

    /// The bytes that a read would answer now, damage included, as if all could be read.
    pub fn peek(&self, offset: u64, length: usize) -> Vec<u8> {
        let first = offset - offset % ALIGNMENT as u64;
        let skip = (offset - first) as usize;
        let mut bytes = vec![0; skip + length];
        self.state().media.read(first, &mut bytes);
        bytes.split_off(skip)
    }

    /// Puts whole pages on the medium from outside, as another machine could have before.
    pub fn overwrite(&self, offset: u64, bytes: &[u8]) {
        let mut state = self.state();
        let pages = state.media.store(bytes);
        let count = pages.len();
        state.media.write(offset, pages, count);
        state.media.settle(offset, bytes.len() as u64);
    }

    pub(super) fn attach(&self, waker: Waker) {
        let mut state = self.state();
        (state.removed, state.held, state.hung, state.stall) =
            (false, false, false, DiskStall::Over);
        state.waker = Some(waker);
    }

    /// Decides how an operation will end, and when.
    pub(super) fn start(
        &self,
        kind: OperationKind,
        extent: Extent,
        data: &[u8],
        now: Ticks,
    ) -> StartedOperation {
        // A write is on its way when the power goes, and may be there in part; a flush has done
        // nothing.
        if !matches!(kind, OperationKind::Read | OperationKind::Write) {
            let countdown = self.state().countdown.clone();
            count_down(countdown);
        }
        let mut state = self.state();
        let id = state.next_id;
        state.next_id += 1;
        state.operations += 1;
        let latency_max = state.profile.latency_ticks_max.max(1);
        let fault = state.take_fault(kind);
        let delay = if let Some(Fault::Slow(ticks)) = fault { ticks } else { 0 };
        let due = now + 1 + delay + state.random.below(latency_max);
        // A flush covers what has completed by now. Deciding at submission is the strictest reading
        // that still never loses what was promised: later completions stay volatile.
        if kind == OperationKind::Flush && fault.is_none() && !state.removed {
            state.media.flush();
        }
        if kind == OperationKind::Write && !matches!(fault, Some(Fault::Errno(_))) && !state.removed
        {
            let pages = state.media.store(data);
            state.in_flight.push((id, extent.offset.0, pages));
        }
        let ready = state.time_of(kind, extent.length);
        let started = StartedOperation { id, life: state.life, due, ready, fault, aborted: false };
        let countdown = state.countdown.clone().filter(|_| kind == OperationKind::Write);
        drop(state);
        count_down(countdown);
        started
    }

    /// Returns the operations that may complete at this time.
    pub(super) fn fault_state(&self, now: Ticks) -> FaultState {
        let mut state = self.state();
        state.stall = state.stall.at(now);
        let DiskState { held, hung, removed, stall, .. } = *state;
        FaultState { held, hung, removed, stall }
    }

    /// Completes an operation; returns the bytes moved or an error number, as the kernel does.
    pub(super) fn finish(
        &self,
        started: &StartedOperation,
        operation: &mut Operation,
    ) -> Result<u32, i32> {
        let mut state = self.state();
        state.operations -= 1;
        let at = state.in_flight.iter().position(|(id, ..)| *id == started.id);
        let mut write = at.map(|at| state.in_flight.swap_remove(at).2);
        let answer = self.carry_out(&mut state, started, operation, &mut write);
        if let Some(pages) = write {
            state.media.lose(pages);
        }
        answer
    }

    fn carry_out(
        &self,
        state: &mut DiskState,
        started: &StartedOperation,
        operation: &mut Operation,
        write: &mut Option<Vec<DiskPage>>,
    ) -> Result<u32, i32> {
        if state.removed || state.life != started.life {
            return Err(libc::ENODEV);
        }
        if started.aborted {
            return Err(libc::ECANCELED);
        }
        let Extent { offset, length } = operation.extent;
        let mut moved = length.0;
        let forced = matches!(operation.action, Action::Write { fua: true, .. });
        if forced && !state.profile.forced_writes {
            return Err(libc::EOPNOTSUPP);
        }
        match started.fault {
            Some(Fault::Errno(errno)) => return Err(errno),
            Some(Fault::Short(bytes)) => moved = u64::from(bytes - bytes % ALIGNMENT as u32),
            _ => {}
        }
        let place = match started.fault {
            Some(Fault::Misdirected(elsewhere)) => self.elsewhere(elsewhere, length.0),
            _ => offset.0,
        };
        if matches!(operation.action, Action::Read(_)) && !state.media.is_readable(place, moved) {
            return Err(libc::EIO);
        }
        match &mut operation.action {
            Action::Read(Memory::Host(buffer)) => {
                state.read(started, place, &mut buffer[..moved as usize]);
            }
            Action::Read(memory) => {
                let mut bytes = vec![0; moved as usize];
                state.read(started, place, &mut bytes);
                peer::write(memory, &bytes);
            }
            Action::Write { .. } => {
                if let Some(pages) = write.take_if(|_| started.fault != Some(Fault::Lost)) {
                    state.media.write(place, pages, moved as usize / ALIGNMENT);
                    if forced || !self.volatile_cache {
                        state.media.settle(place, moved);
                    }
                }
                state.counters.writes += 1;
                state.counters.forced_writes += u64::from(forced);
                state.counters.bytes_written += moved;
            }
            Action::WriteZeroes | Action::Deallocate => {
                state.media.zero(offset.0, length.0);
                if !self.volatile_cache {
                    state.media.settle(offset.0, length.0);
                }
            }
            Action::Flush => state.counters.flushes += 1,
        }
        Ok(moved as u32)
    }

    /// The process went with this in flight: a write of it counts as processed, unflushed.
    pub(super) fn abandon(&self, started: &StartedOperation) {
        let mut state = self.state();
        state.operations -= 1;
        if let Some(at) = state.in_flight.iter().position(|(id, ..)| *id == started.id) {
            let (_, offset, pages) = state.in_flight.swap_remove(at);
            let count = pages.len();
            state.media.write(offset, pages, count);
        }
    }

    /// Returns the place of a misdirected operation: aligned, and within the disk.
    fn elsewhere(&self, offset: u64, length: u64) -> u64 {
        let last = self.size.0.saturating_sub(length);
        offset.min(last) & !(ALIGNMENT as u64 - 1)
    }

    pub(super) fn state(&self) -> MutexGuard<'_, DiskState> {
        // A test that panicked while holding the lock fails anyway; the others may go on.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts an operation that changes something; whoever calls this holds no disk's lock.
fn count_down(countdown: Option<Countdown>) {
    let Some(Countdown { left, disks, cut }) = countdown else { return };
    if left.fetch_sub(1, Ordering::Relaxed) == 1 {
        for disk in disks.iter() {
            disk.state().countdown = None;
            disk.cut_power(cut);
        }
    }
}

/// Treatment by a disk of operations that are due.
#[derive(Clone, Copy)]
pub(super) struct FaultState {
    held: bool,
    hung: bool,
    removed: bool,
    stall: DiskStall,
}

impl FaultState {
    /// Returns the time at which a started operation may complete, or `None` while the disk is
    /// held.
    pub(super) fn due(self, started: &StartedOperation) -> Option<Ticks> {
        let lets_go = !self.hung && (!self.held || started.aborted);
        let due = if self.removed { started.due } else { self.stall.put_off(started.due) };
        (lets_go || self.removed).then_some(due)
    }
}

impl DiskState {
    /// Returns the time at which an operation is done that is given to the disk now, if it has a
    /// rate: it does one after the other.
    fn time_of(&mut self, kind: OperationKind, length: ByteCount) -> Option<Instant> {
        let moves = matches!(kind, OperationKind::Read | OperationKind::Write);
        let rate = self.rate.filter(|_| moves)?;
        let takes = Duration::from_nanos(length.0 * 1_000_000_000 / rate.0.max(1));
        self.busy_until = self.busy_until.max(Instant::now()) + takes;
        Some(self.busy_until)
    }

    /// Fills `bytes` as a read does.
    fn read(&mut self, started: &StartedOperation, place: u64, bytes: &mut [u8]) {
        self.media.read(place, bytes);
        if started.fault == Some(Fault::Corrupt) {
            bytes[bytes.len() / 2] ^= 0x10;
        }
        self.counters.reads += 1;
    }

    /// Has the path look again, if it sleeps.
    fn wake(&self) {
        if let Some(waker) = &self.waker {
            waker.wake();
        }
    }

    /// The fault that this operation meets, if any.
    fn take_fault(&mut self, kind: OperationKind) -> Option<Fault> {
        let mut struck = None;
        self.faults.retain_mut(|planned| {
            if planned.kind != kind {
                return true;
            }
            if planned.passes == 0 && struck.is_none() {
                struck = Some(planned.fault);
                return false;
            }
            planned.passes = planned.passes.saturating_sub(1);
            true
        });
        self.struck.extend(struck.map(|fault| (kind, fault)));
        struck
    }
}
