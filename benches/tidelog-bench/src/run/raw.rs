//! The raw level: operations on bytes of devices, through one queue of a data path.

mod completed;
mod flush;
mod next;
mod waiting;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidelog_engine::memory::DmaBuffer;
use tidelog_engine::path::{
    Action, Capabilities, Completion, DataPath, Extent, IoPriority, Operation, PathKind,
    PathProvider,
};
use tidelog_engine::units::{ByteCount, DeviceIndex};

use completed::CompletedIo;
use waiting::Waiting;

use super::backlog::Backlog;
use super::beside::RunThread;
use super::budget::Budget;
use super::depth::{Depth, DepthStep};
use super::dump;
use super::floor::Floor;
use super::start::JobEnd;
use super::throttle::Throttle;
use crate::direction::DataDirection;
use crate::exit::BenchError;
use crate::load::{BlockRange, FileOrder, Filler, OffsetStream, Origin, stamp};
use crate::option::JobOptions;
use crate::stats::{Recorder, Steady, nanos};
use crate::target;

/// Limit of the sleep of a throttled job, before it checks whether it is over.
const THROTTLED_MAX: Duration = Duration::from_millis(100);

/// A raw job that is ready to run.
pub(super) struct RawJob {
    job: JobOptions,
    member: Arc<RunThread>,
    path: Box<dyn DataPath>,
    rings_early: bool,
    stream: OffsetStream,
    filler: Option<Filler>,
    backlog: Backlog,
    budget: Budget,
    throttle: Throttle,
    floor: Floor,
    /// The search for a depth, if there is one, and whether what is in flight ends before anything
    /// begins.
    depth: Option<Depth>,
    drains: bool,
    /// Operations begun since the last thinktime, and when the one that goes on is over.
    thought_after: u64,
    thinks_until: Option<Instant>,
    /// Next operation and its time, if that has not come.
    held: Option<(BlockRange, DataDirection)>,
    due: Option<Instant>,
    /// Writes begun since the last flush; files that are to be flushed; flushes in flight.
    unsynced: u64,
    to_sync: Vec<usize>,
    syncing: usize,
    /// True if the queue was full, and is not filled before it has run down.
    runs_down: bool,
    /// Operation that was begun and found no place.
    waiting: Option<Waiting>,
    /// Buffers of operations that have no use for one, by tag.
    parked: Vec<Option<DmaBuffer>>,
    /// Places that were trimmed, and are to be written next.
    trimmed: Vec<BlockRange>,
    /// Chooses the direction of each operation of a mix.
    random: fastrand::Rng,
    /// Chooses the priority of each operation, where there are two.
    priorities: fastrand::Rng,
    /// Flights, by tag.
    flights: Vec<Flight>,
    /// Origin of the times of flights.
    epoch: Instant,
    /// Tags that are free, with their buffers.
    idle: Vec<(usize, DmaBuffer)>,
    /// Tags of operations that the kernel has not been told of yet.
    fresh: Vec<usize>,
    completions: Vec<Completion>,
    /// Completions that were seen, with their times, which are counted once the devices have new
    /// work. What was begun together mostly ends together: so many of each in a row.
    landed: Vec<(CompletedIo, u64)>,
    landed_at: Instant,
    /// Origin of this job's stamps: those of what is begun next, or while reading back, the oldest
    /// that may stand where is read next. Its pass is the number of passes that were completed.
    origin: Origin,
    /// Operations begun in this pass.
    begun_in_pass: u64,
    ended: JobEnd,
}

#[derive(Clone, Copy)]
struct Flight {
    place: BlockRange,
    direction: DataDirection,
    priority: Option<IoPriority>,
    /// The pass of a write; of a read that compares, the oldest that may be found.
    pass: u64,
    /// True if the flight reads a block of the backlog.
    is_check: bool,
    /// True if the flight is a flush.
    is_sync: bool,
    /// Time from the decision to do it until it was issued, and when that was, in nanoseconds since
    /// the job's `epoch`: to take instants from each other costs more, for each of a million
    /// operations a second.
    slat: u64,
    issued: u64,
}

/// Operation that begins next.
struct BegunIo {
    place: BlockRange,
    direction: DataDirection,
    /// The pass of a block that is read back from the backlog.
    check: Option<u64>,
}

/// Purpose of a round through the stream.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Measured round.
    Load,
    /// Flush of the writes.
    Sync,
    /// Verification of the writes: what the last pass reached, and then what only the one before it
    /// did.
    Verify { reached: u64, before: Option<u64> },
    /// Verification of the rest of the backlog.
    Backlog,
}

impl RawJob {
    /// Opens the data path on the calling thread, which must be the one that runs the job.
    pub(super) fn prepare(
        job: &JobOptions,
        clone: u32,
        member: &Arc<RunThread>,
        origin: Origin,
        provider: Box<dyn PathProvider>,
    ) -> Result<Self, BenchError> {
        let seed = job.randseed.wrapping_add(u64::from(clone) << 32);
        // The depth is a device's there, and the job's here.
        let path = provider.open(job.iodepth.div_ceil(job.filename.len() as u32))?.path;
        let devices = &path.capabilities().devices;
        let sizes: Vec<ByteCount> = devices.iter().map(|device| device.size).collect();
        let windows = target::windows(job, &sizes, clone)?;
        let pass = windows.iter().map(|window| window.length).sum();
        let (buffers, path) = buffers(job, path, seed)?;
        // Nobody wakes this thread. A path that finds its waker unarmed takes it for woken, and
        // does not wait.
        path.waker().arm();
        let nowhere = BlockRange { file: 0, offset: 0, length: 0 };
        let flight = Flight {
            place: nowhere,
            direction: DataDirection::Read,
            priority: None,
            pass: 0,
            is_check: false,
            is_sync: false,
            slat: 0,
            issued: 0,
        };
        Ok(Self {
            stream: OffsetStream::new(windows, job.sizes.clone(), FileOrder::of(job, seed)),
            filler: Filler::of(job, clone),
            backlog: Backlog::new(job),
            budget: Budget::new(job, pass),
            throttle: Throttle::new(job),
            floor: Floor::new(job),
            depth: Depth::of(job),
            drains: false,
            thought_after: 0,
            thinks_until: None,
            held: None,
            due: None,
            unsynced: 0,
            to_sync: Vec::new(),
            syncing: 0,
            runs_down: false,
            waiting: None,
            parked: std::iter::repeat_with(|| None).take(job.iodepth as usize).collect(),
            trimmed: Vec::with_capacity(job.iodepth as usize),
            random: fastrand::Rng::with_seed(seed ^ 1),
            priorities: fastrand::Rng::with_seed(seed ^ 2),
            flights: vec![flight; job.iodepth as usize],
            epoch: Instant::now(),
            idle: buffers.into_iter().enumerate().collect(),
            fresh: Vec::with_capacity(job.iodepth as usize),
            completions: Vec::with_capacity(job.iodepth as usize),
            landed: Vec::with_capacity(job.iodepth as usize),
            landed_at: Instant::now(),
            origin,
            begun_in_pass: 0,
            ended: JobEnd::default(),
            job: job.clone(),
            member: Arc::clone(member),
            rings_early: path.capabilities().kind == PathKind::Spdk,
            path,
        })
    }

    /// The data path, as it was opened.
    pub(super) fn capabilities(&self) -> Capabilities {
        self.path.capabilities().clone()
    }

    /// Runs the job, and reads back what it wrote if that was asked for.
    pub(super) fn run(mut self, recorder: &mut Recorder) -> JobEnd {
        self.go_through(Phase::Load, recorder);
        if self.job.end_fsync && self.job.load.writes {
            self.to_sync = (0..self.job.filename.len()).collect();
            self.go_through(Phase::Sync, recorder);
        }
        self.member.zones.iter().for_each(|zones| zones.leave(self.origin.writer));
        self.ended.steady = self.steady().map(Steady::result).map(Box::new);
        let Self { job, .. } = &self;
        if job.verify && job.do_verify && job.load.writes && self.ended.failure.is_none() {
            if self.backlog.is_any() {
                self.backlog.flush();
                self.go_through(Phase::Backlog, recorder);
                return self.ended;
            }
            // With a pass completed every block was written.
            let before = self.origin.pass.checked_sub(1);
            self.stream.rewind();
            self.go_through(Phase::Verify { reached: self.begun_in_pass, before }, recorder);
        }
        self.ended
    }

    fn go_through(&mut self, mut phase: Phase, recorder: &mut Recorder) {
        let depth = self.flights.len();
        loop {
            let now = Instant::now();
            let before = self.idle.len();
            self.fill_up(&mut phase, recorder, now);
            let begun = before - self.idle.len();
            let due = self.due.take();
            // Devices that are told without a system call begin while the last round is counted;
            // for others, to ring and to wait is one.
            let told = if begun > 0 && self.rings_early { self.path.ring() } else { Ok(()) };
            self.count_landed(recorder);
            if phase == Phase::Load {
                recorder.tick(now);
                self.look_at_floor(recorder, now);
                if let Some(steady) = self.steady() {
                    steady.look(now);
                }
                self.look_at_depth(recorder, now);
            }
            if self.idle.len() == depth && due.is_none() {
                return;
            }
            let at_most = due.map(|due| due.saturating_duration_since(now).min(THROTTLED_MAX));
            let path = &mut self.path;
            let has_rest = !self.completions.is_empty();
            let waited = |()| if has_rest { path.ring() } else { path.wait(at_most) };
            if let Err(error) = told.and_then(waited) {
                self.ended.fail(format!("the data path died: {error}"));
                return;
            }
            self.complete(phase, recorder);
        }
    }

    /// Begins operations until the queue is full or the phase is over.
    fn fill_up(&mut self, phase: &mut Phase, recorder: &mut Recorder, now: Instant) {
        // Also when the time is up: it was begun before.
        if !self.send_waiting(*phase, recorder) {
            return;
        }
        let is_time_up = *phase == Phase::Load && self.budget.is_time_up(recorder, now);
        if is_time_up || self.ended.is_over(&self.job, &self.member) {
            return;
        }
        while self.has_room(*phase)
            && let Some((tag, buffer)) = self.idle.pop()
        {
            if let Some(file) = self.to_sync.pop() {
                if !self.begin_sync(tag, buffer, file) {
                    break;
                }
                self.fresh.push(tag);
                continue;
            }
            let next = if self.syncing > 0 { None } else { self.next(phase, now) };
            let Some(BegunIo { place, direction, check }) = next else {
                self.idle.push((tag, buffer));
                break;
            };
            if !self.begin(tag, buffer, place, direction, check) {
                break;
            }
            self.fresh.push(tag);
            if *phase == Phase::Load && check.is_none() {
                recorder.depth.count(self.flights.len() - self.idle.len(), 1);
                self.note_write(direction);
            }
            let batch = self.job.queue.submit as usize;
            if batch > 0 && self.fresh.len() >= batch {
                self.stamp_fresh(now, *phase, recorder);
                // A path that is dead says so again where it is waited for.
                let _ = self.path.ring();
            }
        }
        self.stamp_fresh(now, *phase, recorder);
    }

    /// Takes one look at the clock for all that go to the kernel together.
    fn stamp_fresh(&mut self, now: Instant, phase: Phase, recorder: &mut Recorder) {
        if self.fresh.is_empty() {
            return;
        }
        if phase == Phase::Load {
            recorder.submitted.count_batch(self.fresh.len());
        }
        let (begun, issued) = (nanos(self.epoch, now), nanos(self.epoch, Instant::now()));
        for tag in self.fresh.drain(..) {
            let flight = &mut self.flights[tag];
            (flight.slat, flight.issued) = (issued - begun, issued);
        }
    }

    /// Returns whether the depth that is tried, if one is looked for, leaves room for another
    /// operation.
    fn has_room(&mut self, phase: Phase) -> bool {
        let in_flight = self.flights.len() - self.idle.len();
        self.drains &= in_flight > 0;
        let low = self.job.queue.low as usize;
        if low > 0 && phase == Phase::Load {
            self.runs_down = in_flight > low && (self.runs_down || in_flight == self.flights.len());
        }
        let limit = self.depth.as_ref().filter(|_| phase == Phase::Load).map(Depth::limit);
        let is_low = self.runs_down && phase == Phase::Load;
        !(self.drains || is_low) && limit.is_none_or(|limit| in_flight < limit)
    }

    fn look_at_depth(&mut self, recorder: &mut Recorder, now: Instant) {
        let Some(depth) = &mut self.depth else { return };
        match depth.look(now) {
            DepthStep::On => {}
            DepthStep::Drain => self.drains = true,
            DepthStep::Measure => {
                self.drains = true;
                self.ended.depth = Some(depth.limit());
                recorder.restart(now);
            }
            DepthStep::Over => self.budget.end(),
            DepthStep::Never => {
                let what = "latency_target: operations take longer even one at a time";
                self.ended.fail(what.to_owned());
            }
        }
    }

    fn look_at_floor(&mut self, recorder: &Recorder, now: Instant) {
        if self.floor.is_any() {
            let moved = recorder.stats.each_ref().map(|stats| stats.bytes);
            if let Some(what) = self.floor.missed(moved, now) {
                self.ended.fail(what);
            }
        }
    }

    /// Returns whether an operation is in flight besides the one that is about to begin.
    fn is_one_in_flight(&self) -> bool {
        self.idle.len() + 1 < self.flights.len()
    }

    fn begin(
        &mut self,
        tag: usize,
        mut buffer: DmaBuffer,
        place: BlockRange,
        direction: DataDirection,
        check: Option<u64>,
    ) -> bool {
        let (pass, is_check) = (check.unwrap_or(self.origin.pass), check.is_some());
        let priority = self.job.kernel.priorities.draw(direction, &mut self.priorities);
        self.flights[tag] = Flight {
            place,
            direction,
            priority,
            pass,
            is_check,
            is_sync: false,
            slat: 0,
            issued: 0,
        };
        let action = match direction {
            DataDirection::Read => Action::read(buffer),
            DataDirection::Write => {
                if let Some(filler) = &mut self.filler {
                    filler.fill(&mut buffer[..place.length as usize]);
                }
                if self.job.verify {
                    if self.job.verify_dump {
                        dump::fill(&mut buffer[..place.length as usize], place, self.origin);
                    }
                    stamp(&mut buffer[..place.length as usize], place.offset, self.origin);
                }
                Action::write(buffer, self.job.sync)
            }
            DataDirection::Trim => {
                self.parked[tag] = Some(buffer);
                Action::Deallocate
            }
        };
        let (device, extent) =
            (DeviceIndex(place.file as u8), Extent::new(place.offset, place.length));
        let operation =
            Operation { priority, ..Operation::new(tag as u64, device, extent, action) };
        self.send(tag, operation)
    }

    fn steady(&self) -> Option<&Steady> {
        self.member.steady()
    }
}

/// A buffer for each operation in flight, registered where possible, full of bytes that do not
/// compress.
fn buffers(
    job: &JobOptions,
    mut path: Box<dyn DataPath>,
    seed: u64,
) -> Result<(Vec<DmaBuffer>, Box<dyn DataPath>), BenchError> {
    let each = job.sizes.most() as usize;
    let bytes = ByteCount((each * job.iodepth as usize) as u64);
    let pool = path.allocate(bytes, true).map_err(|error| {
        let source = std::io::Error::other(error);
        BenchError::System { what: format!("{}: no memory for buffers", job.name), source }
    })?;
    let mut random = fastrand::Rng::with_seed(seed);
    let mut buffers: Vec<DmaBuffer> =
        std::iter::from_fn(|| pool.take(each)).take(job.iodepth as usize).collect();
    for buffer in &mut buffers {
        random.fill(buffer);
    }
    path.register(&pool);
    Ok((buffers, path))
}
