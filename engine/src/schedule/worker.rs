//! The reactor thread: takes commands, begins pieces, lands completions, sleeps.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use super::active::{Active, Job};
use super::mailbox::{Command, Mailbox};
use super::options::{ReactorOptions, StartError};
use super::stats::{DeviceCounters, ReactorStats};
use super::ticket::FOREVER;
use super::transfer::{Piece, TransferError, Urgency};
use crate::memory::{DmaBuffer, DmaPool};
use crate::path::{Action, Completion, DataPath, Operation, PathProvider, Refusal};
use crate::units::ByteCount;

/// What the starter of a reactor gets from its thread.
pub(super) struct Started {
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) stats: ReactorStats,
    pub(super) counters: Arc<[DeviceCounters]>,
}

/// Everything the reactor thread owns. Fields drop in this order: when the thread panics, transfers
/// end before the path, which leaks what devices may still touch.
pub(super) struct Worker {
    transfers: HashMap<u64, Active>,
    commands: VecDeque<Command>,
    /// Transfers that have pieces to begin, in the order they came.
    urgent: VecDeque<u64>,
    ahead: VecDeque<u64>,
    /// Pieces on their devices; a slot's number is the operation's tag.
    flights: Vec<Option<Flight>>,
    free_flights: Vec<u32>,
    /// Operations in flight, by device.
    per_device: Vec<u32>,
    chunks: Vec<DmaBuffer>,
    /// Chunks that only urgent pieces may take.
    reserve: usize,
    completions: Vec<Completion>,
    counters: Arc<[DeviceCounters]>,
    options: ReactorOptions,
    mailbox: Abandon,
    path: Box<dyn DataPath>,
}

/// A piece on its device.
#[derive(Clone, Copy)]
struct Flight {
    transfer: u64,
    piece: usize,
    /// A read that is done again because its checksum did not match.
    again: bool,
}

/// What beginning the next piece came to.
#[derive(PartialEq)]
enum Begun {
    /// Nothing can be begun now.
    Nothing,
    /// Something was, at hardly any cost.
    Light,
    /// Something was, and it took the time of a copy: others should have a look in.
    Heavy,
}

/// Closes the mailbox when the thread ends, in whatever way.
struct Abandon(Arc<Mailbox>);

impl Drop for Abandon {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

impl Worker {
    /// Opens the path and maps the staging memory, on the thread that will use them.
    pub(super) fn open(
        provider: Box<dyn PathProvider>,
        options: ReactorOptions,
    ) -> Result<(Self, Started), StartError> {
        let opened = provider.open(options.depth)?;
        let mut path = opened.path;
        let chunk = options.chunk.0;
        let count = (options.staging.0 / chunk) as usize;
        let staging = DmaPool::new(ByteCount(count as u64 * chunk), options.huge_pages)?;
        path.register(&staging);
        let chunks: Vec<DmaBuffer> =
            std::iter::from_fn(|| staging.take(chunk as usize)).take(count).collect();
        let capabilities = path.capabilities().clone();
        let devices = capabilities.devices.len();
        let depth = capabilities.depth;
        let counters: Arc<[DeviceCounters]> =
            (0..devices).map(|_| DeviceCounters::default()).collect();
        let mailbox = Arc::new(Mailbox::new(path.waker()));
        let stats = ReactorStats {
            capabilities,
            why_not: opened.why_not,
            staging: staging.size(),
            backing: staging.backing(),
            backing_why: staging.why().to_owned(),
            devices: Vec::new(),
        };
        let worker = Self {
            transfers: HashMap::new(),
            commands: VecDeque::new(),
            urgent: VecDeque::new(),
            ahead: VecDeque::new(),
            flights: vec![None; depth as usize],
            free_flights: (0..depth).rev().collect(),
            per_device: vec![0; devices],
            // An urgent piece should find a chunk without waiting for a device, where there are enough.
            reserve: if count >= 4 { (count / 8).max(1) } else { 0 },
            chunks,
            completions: Vec::with_capacity(depth as usize),
            counters: Arc::clone(&counters),
            options,
            mailbox: Abandon(Arc::clone(&mailbox)),
            path,
        };
        Ok((worker, Started { mailbox, stats, counters }))
    }

    /// Works until the mailbox is closed and everything has ended. Answers how many operations never
    /// came back; their memory is leaked.
    pub(super) fn run(mut self) -> usize {
        let mut last_moment = None;
        loop {
            if self.mailbox.0.empty_into(&mut self.commands) && last_moment.is_none() {
                last_moment = Some(Instant::now() + self.options.drain_timeout.min(FOREVER));
            }
            self.obey();
            self.land();
            match self.begin_some() {
                Begun::Heavy | Begun::Light => match self.path.ring() {
                    Ok(()) => continue,
                    Err(error) => return self.die(&error),
                },
                Begun::Nothing => {}
            }
            let left = last_moment.map(|end| end.saturating_duration_since(Instant::now()));
            if left.is_some()
                && (self.transfers.is_empty() || left.is_some_and(|left| left.is_zero()))
            {
                return self.stop();
            }
            let waker = self.path.waker();
            waker.arm();
            let slept = if self.mailbox.0.has_news(last_moment.is_some()) {
                Ok(())
            } else {
                self.path.wait(left)
            };
            waker.disarm();
            if let Err(error) = slept {
                return self.die(&error);
            }
        }
    }

    fn obey(&mut self) {
        while let Some(command) = self.commands.pop_front() {
            match command {
                Command::Begin(active) => self.admit(*active),
                Command::Cancel(id) => {
                    if let Some(active) = self.transfers.get_mut(&id) {
                        active.cancel();
                        self.settle(id);
                    }
                }
                Command::Expedite(id) => {
                    let Some(active) = self.transfers.get_mut(&id) else { continue };
                    if active.urgency == Urgency::Ahead && active.has_more() {
                        active.urgency = Urgency::Urgent;
                        remove(&mut self.ahead, id);
                        self.urgent.push_back(id);
                    }
                }
            }
        }
    }

    fn admit(&mut self, mut active: Active) {
        if !active.has_more() {
            return active.conclude();
        }
        let id = active.id();
        active.queued = true;
        match active.urgency {
            Urgency::Urgent => self.urgent.push_back(id),
            Urgency::Ahead => self.ahead.push_back(id),
        }
        self.transfers.insert(id, active);
    }

    /// Begins pieces until nothing more can be, or until one took the time of a copy.
    fn begin_some(&mut self) -> Begun {
        let mut begun = Begun::Nothing;
        loop {
            match self.begin_next() {
                Begun::Nothing => return begun,
                Begun::Light => begun = Begun::Light,
                Begun::Heavy => return Begun::Heavy,
            }
        }
    }

    fn begin_next(&mut self) -> Begun {
        let (id, spare) = match (self.urgent.front(), self.ahead.front()) {
            (Some(&id), _) => (id, 0),
            (None, Some(&id)) => (id, self.reserve),
            (None, None) => return Begun::Nothing,
        };
        let Some(active) = self.transfers.get_mut(&id) else {
            // Only what is in the table stands in a queue.
            remove(&mut self.urgent, id);
            remove(&mut self.ahead, id);
            return Begun::Light;
        };
        let piece = active.pieces[active.next];
        let needs_chunk = match &active.job {
            Job::Verify { .. } => {
                active.verify_next();
                self.settle(id);
                return Begun::Heavy;
            }
            Job::Write { .. } | Job::Read { .. } => true,
            Job::WriteZeroes | Job::Flush | Job::Deallocate => false,
        };
        let busy = self.per_device[usize::from(piece.device.0)] >= self.options.depth;
        if busy || self.free_flights.is_empty() || (needs_chunk && self.chunks.len() <= spare) {
            return Begun::Nothing;
        }
        let mut cost = Begun::Light;
        let action = match &active.job {
            Job::Verify { .. } => return Begun::Nothing,
            Job::WriteZeroes => Action::WriteZeroes,
            Job::Flush => Action::Flush,
            Job::Deallocate => Action::Deallocate,
            Job::Write { fua, .. } => {
                let fua = *fua;
                let Some(mut buffer) = self.chunks.pop() else { return Begun::Nothing };
                active.stage(&mut buffer);
                cost = Begun::Heavy;
                Action::Write { buffer, fua }
            }
            Job::Read { .. } => {
                let Some(buffer) = self.chunks.pop() else { return Begun::Nothing };
                Action::Read(buffer)
            }
        };
        let flight = Flight { transfer: id, piece: active.next, again: false };
        let taken = self.launch(flight, piece, action);
        if let Some(active) = self.transfers.get_mut(&id) {
            match taken {
                Ok(()) => active.advance(),
                Err(None) => return Begun::Nothing,
                Err(Some(failure)) => active.fail(failure),
            }
        }
        self.settle(id);
        cost
    }

    /// Gives a piece to its device. `Err(None)` means that the path is full and nothing happened.
    fn launch(
        &mut self,
        flight: Flight,
        piece: Piece,
        action: Action,
    ) -> Result<(), Option<TransferError>> {
        let Some(slot) = self.free_flights.pop() else {
            self.chunks.extend(action.into_buffer());
            return Err(None);
        };
        let device = piece.device;
        let operation = Operation { tag: u64::from(slot), device, extent: piece.extent(), action };
        match self.path.submit(operation) {
            Ok(()) => {
                self.flights[slot as usize] = Some(flight);
                self.per_device[usize::from(device.0)] += 1;
                if let Some(active) = self.transfers.get_mut(&flight.transfer) {
                    active.flying += 1;
                }
                Ok(())
            }
            Err(refused) => {
                self.free_flights.push(slot);
                self.chunks.extend(refused.operation.action.into_buffer());
                Err(refusal(refused.reason, piece))
            }
        }
    }

    /// Polls the path and lands what has completed.
    fn land(&mut self) {
        let mut completions = std::mem::take(&mut self.completions);
        self.path.poll(&mut completions);
        for completion in completions.drain(..) {
            self.land_one(completion);
        }
        self.completions = completions;
    }

    fn land_one(&mut self, completion: Completion) {
        let Completion { tag, buffer, result } = completion;
        let Some(flight) = self.flights.get_mut(tag as usize).and_then(Option::take) else {
            return;
        };
        self.free_flights.push(tag as u32);
        let id = flight.transfer;
        let Some(active) = self.transfers.get_mut(&id) else { return };
        active.flying -= 1;
        let piece = active.pieces[flight.piece];
        let device = usize::from(piece.device.0);
        self.per_device[device] -= 1;
        let kind = active.job.kind();
        self.counters[device].ended(kind, piece.extent().length.0, result.is_err());
        let found = match (&result, &buffer, &active.job) {
            (Ok(()), Some(chunk), Job::Read { destination: Some(_) }) => {
                active.mismatch(flight.piece, chunk)
            }
            _ => None,
        };
        match (result, found) {
            (Err(error), _) => {
                active.fail(TransferError::Device { tensor_offset: piece.tensor_offset, error });
            }
            (Ok(()), None) => active.landed(flight.piece, buffer.as_ref()),
            (Ok(()), Some(found)) => {
                self.counters[device].mismatched(flight.again);
                // A flip on the way to us does not repeat; one on the medium does.
                if let (false, Some(chunk)) = (flight.again, buffer) {
                    return self.read_again(flight, piece, chunk);
                }
                return self.damaged(id, piece, found);
            }
        }
        self.chunks.extend(buffer);
        self.settle(id);
    }

    fn read_again(&mut self, flight: Flight, piece: Piece, chunk: DmaBuffer) {
        let flight = Flight { again: true, ..flight };
        let failure = match self.launch(flight, piece, Action::Read(chunk)) {
            Ok(()) => return,
            Err(Some(failure)) => failure,
            // Its own slot was freed a moment ago, so the path cannot be full; never lose a piece.
            Err(None) => refusal(Refusal::Invalid("the queue is full"), piece)
                .unwrap_or(TransferError::Cancelled),
        };
        if let Some(active) = self.transfers.get_mut(&flight.transfer) {
            active.fail(failure);
        }
        self.settle(flight.transfer);
    }

    fn damaged(&mut self, id: u64, piece: Piece, found: u32) {
        if let (Some(active), Some(expected)) = (self.transfers.get_mut(&id), piece.checksum) {
            active.fail(TransferError::Checksum {
                device: piece.device,
                offset: piece.offset,
                length: ByteCount(u64::from(piece.length)),
                tensor_offset: piece.tensor_offset,
                expected,
                found,
            });
        }
        self.settle(id);
    }

    /// Takes a transfer off its queue when it has begun everything, and ends it when all is back.
    fn settle(&mut self, id: u64) {
        let Some(active) = self.transfers.get_mut(&id) else { return };
        if active.has_more() {
            return;
        }
        if std::mem::take(&mut active.queued) {
            let queue = match active.urgency {
                Urgency::Urgent => &mut self.urgent,
                Urgency::Ahead => &mut self.ahead,
            };
            remove(queue, id);
        }
        if active.is_over()
            && let Some(active) = self.transfers.remove(&id)
        {
            active.conclude();
        }
    }

    /// Ends the thread: what is left ends as stopped, and devices get the path's grace to let go.
    fn stop(mut self) -> usize {
        self.fail_all("it was closed, and time ran out");
        let mut completions = std::mem::take(&mut self.completions);
        let left = self.path.drain(Instant::now(), &mut completions);
        for completion in completions.drain(..) {
            self.land_one(completion);
        }
        left
    }

    /// Ends the thread because the kernel refuses the path as a whole.
    fn die(mut self, error: &std::io::Error) -> usize {
        let reason = format!("its data path died: {error}");
        self.mailbox.0.close(&reason);
        self.fail_all(&reason);
        self.path.in_flight()
    }

    fn fail_all(&mut self, reason: &str) {
        let ids: Vec<u64> = self.transfers.keys().copied().collect();
        for id in ids {
            if let Some(active) = self.transfers.get_mut(&id) {
                active.fail(TransferError::Stopped { reason: reason.into() });
                self.settle(id);
            }
        }
    }
}

/// Takes `id` out of a queue; nearly always it is the first.
fn remove(queue: &mut VecDeque<u64>, id: u64) {
    if queue.front() == Some(&id) {
        queue.pop_front();
    } else {
        queue.retain(|&waiting| waiting != id);
    }
}

/// Why a path refused a piece, as its transfer tells it; `None` if it was only full.
fn refusal(reason: Refusal, piece: Piece) -> Option<TransferError> {
    let Piece { device, offset, tensor_offset, .. } = piece;
    match reason {
        Refusal::Full => None,
        Refusal::Invalid(reason) => Some(TransferError::Refused { device, offset, reason }),
        Refusal::Latched(cause) => {
            Some(TransferError::Latched { device, offset, tensor_offset, cause })
        }
    }
}
