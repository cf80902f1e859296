//! The reactor thread: takes commands, begins pieces, processes completions, sleeps.

mod completion;
mod gpu;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::active::{Active, Job};
use super::chunks::Chunks;
use super::flights::{Leg, PieceInFlight, PiecesInFlight};
use super::idle::{IdleWork, LastUse};
use super::in_progress::{InProgress, TransferKey};
use super::mailbox::{Abandon, Mailbox, ReactorMessage, Refuse};
use super::options::{ReactorOptions, StartError};
use super::pace::StepToken;
use super::queues::{PieceNeeds, QueuePlace, Queues, WaitingPiece};
use super::stats::{DeviceCounters, ReactorStats};
use super::ticket::FOREVER;
use super::transfer::{Piece, TransferError, Urgency};
use crate::memory::{DmaBuffer, DmaPool};
use crate::path::{Action, Completion, DataPath, Operation, PathProvider};
use crate::units::{ByteCount, DeviceIndex};
use gpu::OnGpu;

/// Results of a started reactor, which its thread sends.
pub(super) struct StartedReactor {
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) stats: ReactorStats,
    pub(super) counters: Arc<[DeviceCounters]>,
    /// Memory for callers, besides staging memory.
    pub(super) memory: DmaPool,
}

/// Origin of a worker's staging memory.
pub(super) struct Staging {
    /// Number of threads that share it alike.
    pub(super) threads: usize,
    /// Memory, if it has been mapped already.
    pub(super) memory: Option<DmaPool>,
}

/// State that the reactor thread owns. Fields drop in this order: when the thread panics, nothing
/// more is taken, then transfers end before the path, which leaks what devices may still touch.
pub(super) struct Worker {
    _refuse: Refuse,
    /// Transfers on the GPU; none ends while the GPU still copies from or to its memory.
    on_gpu: OnGpu,
    transfers: InProgress,
    /// Transfers that have ended since the mailbox was emptied last.
    ended: VecDeque<Box<Active>>,
    commands: VecDeque<ReactorMessage>,
    /// The pieces to begin.
    queues: Queues,
    flights: PiecesInFlight,
    idle: IdleWork,
    /// Devices of which the path took no more pieces in this round.
    full: Vec<bool>,
    /// Read, and not yet compared with their checksums.
    unchecked: VecDeque<(PieceInFlight, DmaBuffer)>,
    /// Pieces that are read once more, or go on to their other copy.
    again: VecDeque<(PieceInFlight, Action)>,
    chunks: Chunks,
    /// Memory of the chunks.
    memory: DmaPool,
    /// The memory's pages have gone back to the kernel; it is registered again when it is needed.
    rests: bool,
    completions: Vec<Completion>,
    counters: Arc<[DeviceCounters]>,
    start: Instant,
    /// Time at which this round began, in nanoseconds since the start. In a stepped reactor there
    /// is no time.
    now: u64,
    /// Rounds since then.
    rounds: u32,
    options: ReactorOptions,
    mailbox: Abandon,
    path: Box<dyn DataPath>,
}

/// Result of beginning the next piece.
enum BeginResult {
    /// Nothing: no piece can be begun now.
    Nothing,
    /// None was begun, as the path takes no more for a device.
    Passed,
    /// A piece was begun, of which `copied` bytes were copied or checked.
    Begun { copied: usize },
}

impl Worker {
    /// Opens the path and maps the staging memory, on the thread that will use them.
    pub(super) fn open(
        provider: Box<dyn PathProvider>,
        options: ReactorOptions,
        (staging, last_use): (Staging, Arc<LastUse>),
    ) -> Result<(Self, StartedReactor), StartError> {
        let opened = provider.open(options.depth)?;
        let mut path = opened.path;
        let chunk = options.chunk.0;
        let all = (options.staging.0 / chunk) as usize;
        let each = all / staging.threads;
        let (memory, count) = if let Some(memory) = staging.memory {
            (memory, each)
        } else {
            // In one mapping with what callers get, as a ring registers its memory once.
            let bytes = ByteCount((all as u64 * chunk).saturating_add(options.buffers.0));
            // What cannot be shared alike is the first one's, so that none of it is left for
            // callers.
            (path.allocate(bytes, options.huge_pages)?, all - each * (staging.threads - 1))
        };
        path.register(&memory);
        let chunks: Vec<DmaBuffer> =
            std::iter::from_fn(|| memory.take(chunk as usize)).take(count).collect();
        let (on_gpu, gpu) = OnGpu::open(&options, count, &memory, &mut *path)?;
        let capabilities = path.capabilities().clone();
        let devices = capabilities.devices.len();
        let depth = capabilities.depth;
        let start = last_use.start;
        let counters: Arc<[DeviceCounters]> =
            (0..devices).map(|_| DeviceCounters::new(start)).collect();
        let mailbox = Arc::new(Mailbox::new(path.waker(), options.stepped));
        let stats = ReactorStats {
            capabilities,
            why_not: opened.why_not,
            staging: ByteCount(memory.size().0 - options.buffers.0),
            backing: memory.backing(),
            backing_why: memory.why().to_owned(),
            gpu,
            threads: 1,
            devices: Vec::new(),
        };
        let worker = Self {
            _refuse: Refuse::new(&mailbox),
            on_gpu,
            transfers: InProgress::default(),
            ended: VecDeque::new(),
            commands: VecDeque::new(),
            queues: Queues::new(devices),
            full: vec![false; devices],
            flights: PiecesInFlight::new(depth, devices, options.depth),
            idle: IdleWork::new(last_use, devices, options.stepped),
            unchecked: VecDeque::with_capacity(depth as usize),
            again: VecDeque::new(),
            chunks: Chunks::new(chunks, devices),
            memory: memory.clone(),
            rests: false,
            completions: Vec::with_capacity(depth as usize),
            counters: Arc::clone(&counters),
            start,
            now: 0,
            rounds: 0,
            options,
            mailbox: Abandon::new(&mailbox),
            path,
        };
        Ok((worker, StartedReactor { mailbox, stats, counters, memory }))
    }

    /// Works until the mailbox is closed and everything has ended. Returns how many operations
    /// never came back; their memory is leaked.
    pub(super) fn run(mut self) -> usize {
        let (mut drained_at, mut still) = (None, 0_u32);
        loop {
            let in_turns = self.mailbox.step_token().is_some_and(StepToken::await_turn);
            self.look_at_clock();
            let closing = self.mailbox.empty_into(&mut self.commands, &mut self.ended);
            if closing.ends_at.is_some_and(|end| Instant::now() >= end) {
                return self.stop();
            }
            if closing.closed && drained_at.is_none() {
                drained_at = Some(Instant::now() + self.options.drain_timeout.min(FOREVER));
            }
            let moved = !self.commands.is_empty();
            self.process_commands();
            self.enter_held_back();
            let moved = self.complete() || moved;
            let moved = self.complete_copies() || self.on_gpu.is_copying() || moved;
            let again = self.launch_again();
            let begun = self.begin_some() || again;
            if begun && let Err(error) = self.path.ring() {
                return self.die(&error);
            }
            let busy = self.check_some() || begun;
            still = if moved || busy { 0 } else { still.saturating_add(1) };
            if in_turns && still == 1 {
                // Simulated disks that stall go on in the next round, as there is nothing else to
                // do.
                let _ = self.path.wait(Some(Duration::ZERO));
            }
            self.mailbox.step_token().inspect(|step_token| step_token.went_round(still < 2));
            if busy || in_turns {
                continue;
            }
            let end = [drained_at, closing.ends_at].into_iter().flatten().min();
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if (closing.closed && self.transfers.is_empty())
                || left.is_some_and(|left| left.is_zero())
            {
                return self.stop();
            }
            let waker = self.path.waker();
            waker.arm();
            let slept = if self.mailbox.has_news(closing) {
                Ok(())
            } else {
                self.path.wait(self.on_gpu.poll_timeout(left))
            };
            waker.disarm();
            // Time has passed.
            self.rounds = u32::MAX;
            if let Err(error) = slept {
                return self.die(&error);
            }
        }
    }

    /// A look costs as much as a twentieth of a small operation, so there is one in some rounds.
    fn look_at_clock(&mut self) {
        const ROUNDS: u32 = 16;
        self.rounds = self.rounds.wrapping_add(1);
        if !self.options.stepped && self.rounds.is_multiple_of(ROUNDS) {
            self.now = self.start.elapsed().as_nanos() as u64;
        }
    }

    fn process_commands(&mut self) {
        while let Some(command) = self.commands.pop_front() {
            match command {
                ReactorMessage::Begin(active) => self.admit(active),
                ReactorMessage::Cancel(id) => self.cancel(id),
                ReactorMessage::Expedite(id) => self.expedite(id),
                ReactorMessage::ReleaseStaging(answer) => {
                    let released = self.release_staging();
                    // Who does not listen need not know.
                    let _ = answer.try_send(released);
                }
            }
        }
    }

    fn cancel(&mut self, id: u64) {
        let Some(key) = self.transfers.find(id) else { return };
        if let Some(active) = self.transfers.get_mut(key) {
            active.cancel();
            self.settle(key);
        }
    }

    fn expedite(&mut self, id: u64) {
        let Some(key) = self.transfers.find(id) else { return };
        if let Some(active) = self.transfers.get_mut(key)
            && active.urgency == Urgency::Ahead
            && active.has_more()
        {
            active.urgency = Urgency::Urgent;
            self.queues.expedite(key);
        }
    }

    /// Gives the pages of staging memory back until the next transfer, where nothing moves and
    /// nobody has them locked.
    fn release_staging(&mut self) -> bool {
        let is_idle = self.transfers.is_empty() && self.path.in_flight() == 0;
        if self.options.gpu.is_some() || !is_idle || !self.path.unregister() {
            return false;
        }
        self.rests = true;
        self.chunks.decommit();
        true
    }

    fn admit(&mut self, mut active: Box<Active>) {
        if std::mem::take(&mut self.rests) {
            self.path.register(&self.memory);
        }
        if !active.has_more() {
            active.conclude();
            return self.ended.push_back(active);
        }
        let after = active.after();
        let key = self.transfers.insert(active);
        if !after.is_some_and(|after| self.on_gpu.hold_back(key, after)) {
            self.enter(key);
        }
    }

    /// Enters a transfer into the queues, with all of its pieces.
    fn enter(&mut self, key: TransferKey) {
        let Some(active) = self.transfers.get_mut(key) else { return };
        active.queued = true;
        if self.on_gpu.is_reached() {
            active.reach_gpu();
        }
        self.idle.note_use(active.urgency, self.now);
        let (needs, on_devices) = (active.needs(), active.is_on_devices());
        let Active { pieces, links, urgency, .. } = active;
        self.queues.enter(key, *urgency, needs, on_devices, (pieces, links));
    }

    /// Begins pieces until nothing more can be, or until copies took so long that devices should be
    /// told of them, and others have a look in; returns whether there was any.
    fn begin_some(&mut self) -> bool {
        /// Limit of the bytes that are copied in a row: small pieces are as many as the kernel is
        /// told of together, a longer one is copied whole.
        const BYTES: usize = 32 << 10;
        let (mut begun, mut bytes) = (false, 0);
        self.full.fill(false);
        while bytes < BYTES {
            match self.begin_next() {
                BeginResult::Nothing => break,
                BeginResult::Passed => {}
                BeginResult::Begun { copied } => (begun, bytes) = (true, bytes + copied),
            }
        }
        begun
    }

    fn begin_next(&mut self) -> BeginResult {
        let Self { queues, flights, idle, full, chunks, now, .. } = self;
        let next = queues.next(|place, waiting| {
            let (device, PieceNeeds { chunk, room }) = (place.device(), waiting.needs);
            let has_room = !room || (flights.has_room(device) && !full[usize::from(device.0)]);
            let has_room = has_room
                && (place.urgency != Urgency::Idle
                    || idle.may_begin(device, flights.on_device(device), *now));
            // Where there are none any more, it is to fail.
            has_room && (!chunk || chunks.may_take(device, place.urgency) || chunks.are_gone())
        });
        let Some((place, WaitingPiece { transfer: key, piece: index, needs, .. })) = next else {
            return BeginResult::Nothing;
        };
        let Some(active) = self.transfers.get_mut(key) else {
            // Only what is in the table stands in a queue.
            self.queues.remove(key, place.urgency);
            return BeginResult::Begun { copied: 0 };
        };
        if needs.chunk && self.chunks.are_gone() {
            active.fail(TransferError::without_staging());
            self.settle(key);
            return BeginResult::Begun { copied: 0 };
        }
        let index = index as usize;
        if active.is_reached() {
            return self.begin_reached(key, place, index);
        }
        if active.reads_gpu() {
            return self.begin_copy_out(key, place, index);
        }
        let memory = match active.parts() {
            _ if needs.chunk => self.chunks.take(place.device()),
            Some(parts) => parts.take(index),
            None => None,
        };
        let length = active.pieces[index].length as usize;
        let (action, copied) = match (&active.job, memory) {
            (Job::Verify { .. }, _) => {
                active.verify(index);
                self.queues.advance(place, &active.links);
                self.settle(key);
                return BeginResult::Begun { copied: length };
            }
            (Job::WriteZeroes, _) => (Action::WriteZeroes, 0),
            (Job::Flush, _) => (Action::Flush, 0),
            (Job::Deallocate, _) => (Action::Deallocate, 0),
            (Job::Read { .. }, Some(buffer)) => (Action::read(buffer), 0),
            (Job::Write { fua, .. }, Some(mut buffer)) => {
                let fua = *fua;
                active.stage(index, &mut buffer);
                (Action::write(buffer, fua), length)
            }
            (Job::Read { .. } | Job::Write { .. }, None) => return BeginResult::Nothing,
        };
        self.launch_next(key, place, index, (action, copied))
    }

    /// Gives the piece of a place to its device, and has the one after it take the place. Of
    /// a piece that is taken, or never will be, so many bytes were `copied`.
    fn launch_next(
        &mut self,
        key: TransferKey,
        place: QueuePlace,
        piece: usize,
        (action, copied): (Action, usize),
    ) -> BeginResult {
        let flight = self.flight(key, piece, place.device());
        let refused = match self.offer(flight, action) {
            Ok(()) => None,
            Err((None, buffer)) => {
                self.take_back(flight, buffer);
                self.full[usize::from(place.device().0)] = true;
                return BeginResult::Passed;
            }
            Err((Some(failure), buffer)) => Some((failure, buffer)),
        };
        if let Some(active) = self.transfers.get_mut(key) {
            if place.urgency == Urgency::Idle {
                self.idle.note_begin(place.device(), self.now);
            }
            self.queues.advance(place, &active.links);
            active.advance();
        }
        if let Some((failure, buffer)) = refused {
            self.accept(flight, Some(failure), buffer);
        }
        self.settle(key);
        BeginResult::Begun { copied }
    }

    /// A piece that is begun now.
    fn flight(&self, transfer: TransferKey, piece: usize, device: DeviceIndex) -> PieceInFlight {
        PieceInFlight { transfer, piece, leg: Leg::First, device, began: self.now, again: false }
    }

    /// Gives a piece to its device. Hands back the buffer of an operation that was not taken; no
    /// error beside it means that the path is full and nothing happened.
    fn offer(
        &mut self,
        flight: PieceInFlight,
        action: Action,
    ) -> Result<(), (Option<Box<TransferError>>, Option<DmaBuffer>)> {
        let Some(active) = self.transfers.get(flight.transfer) else {
            return Err((None, action.into_buffer()));
        };
        let piece = active.placed(flight);
        let flight = PieceInFlight { began: self.now, ..flight };
        let Some(tag) = self.flights.begin(flight) else {
            return Err((None, action.into_buffer()));
        };
        let Piece { device, placement, .. } = piece;
        let operation =
            Operation { placement, ..Operation::new(tag, device, piece.extent(), action) };
        match self.path.submit(operation) {
            Ok(()) => {
                if let Some(active) = self.transfers.get_mut(flight.transfer) {
                    active.in_flight += 1;
                }
                if !self.options.stepped {
                    self.counters[usize::from(device.0)].asked(self.now);
                }
                Ok(())
            }
            Err(refused) => {
                self.flights.complete(tag);
                let buffer = refused.operation.action.into_buffer();
                Err((TransferError::refused(refused.reason, piece), buffer))
            }
        }
    }

    /// Fails a transfer because of a device, in words: which one, and which tensor.
    fn report_failure(&mut self, key: TransferKey, failure: TransferError) {
        if let Some(active) = self.transfers.get_mut(key) {
            let devices = &self.path.capabilities().devices;
            let failure = failure.named(&active.subject, devices);
            active.fail(failure);
        }
    }

    /// Takes a transfer off its queue when it has begun everything, and ends it when all is back.
    fn settle(&mut self, key: TransferKey) {
        let Some(active) = self.transfers.get_mut(key) else { return };
        if active.has_more() {
            return;
        }
        if std::mem::take(&mut active.queued) {
            // What was begun to its last piece has left its queues.
            if active.is_failed() || !active.is_on_devices() {
                self.queues.remove(key, active.urgency);
            }
        }
        if active.is_over()
            && let Some(mut active) = self.transfers.remove(key)
        {
            active.landed.take().into_iter().for_each(|landed| self.on_gpu.tell(landed));
            self.idle.note_use(active.urgency, self.now);
            active.conclude();
            self.ended.push_back(active);
        }
    }

    /// Ends the thread: what is left ends as stopped, and devices get the path's grace to let go.
    fn stop(mut self) -> usize {
        self.fail_all("it was closed, and time ran out");
        self.stop_copies();
        let mut completions = std::mem::take(&mut self.completions);
        let left = self.path.drain(Instant::now(), &mut completions);
        for completion in completions.drain(..) {
            self.complete_one(completion);
        }
        left
    }

    /// Ends the thread because the kernel refuses the path as a whole.
    fn die(mut self, error: &std::io::Error) -> usize {
        let reason = format!("its data path died: {error}");
        self.mailbox.close(&reason);
        self.fail_all(&reason);
        self.path.in_flight()
    }

    fn fail_all(&mut self, reason: &str) {
        for key in self.transfers.keys() {
            if let Some(active) = self.transfers.get_mut(key) {
                active.fail(TransferError::Stopped { reason: reason.into() });
                self.settle(key);
            }
        }
        // Nobody wants their bytes any more.
        while self.check_some() {}
        self.launch_again();
    }
}
