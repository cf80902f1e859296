//! One transfer on its way through the reactor.

use std::sync::Arc;
use std::time::Duration;

use super::completion::Notify;
use super::finish::Finish;
use super::flights::{Leg, PieceInFlight};
use super::parts::BufferParts;
use super::queues::PieceNeeds;
use super::subject::Subject;
use super::ticket::{TicketMemory, TicketShared};
use super::transfer::{
    Done, Piece, TransferDone, TransferError, TransferResult, Urgency, WantedRange,
};
use crate::memory::{
    Destination, DmaBuffer, GpuEvent, GpuRange, Source, checksum, copy_with_checksum,
};
use crate::path::{Action, OperationKind};

/// Work on each piece. The memory is `None` once it was released, or is with devices in parts.
pub(super) enum Job {
    Write { source: Option<Source>, fua: bool },
    Read { destination: Option<Destination> },
    Verify { source: Option<Source> },
    WriteZeroes,
    Flush,
    Deallocate,
}

/// Action on the GPU at the end of a read.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadEnd {
    pub(super) event: GpuEvent,
    /// Event that precedes, also where the read ends without a copy.
    pub(super) after: Option<GpuEvent>,
}

impl Job {
    /// The operation that a piece of it becomes. A verification becomes none and counts as a read.
    pub(super) fn kind(&self) -> OperationKind {
        match self {
            Self::Write { .. } => OperationKind::Write,
            Self::Read { .. } | Self::Verify { .. } => OperationKind::Read,
            Self::WriteZeroes => OperationKind::WriteZeroes,
            Self::Flush => OperationKind::Flush,
            Self::Deallocate => OperationKind::Deallocate,
        }
    }

    /// The memory, where a GPU has it, and the event that says when a read's bytes are there.
    fn on_gpu(&self) -> (Option<GpuRange>, Option<ReadEnd>) {
        match self {
            Self::Write { source: Some(source), .. } | Self::Verify { source: Some(source) } => {
                (source.on_gpu(), None)
            }
            Self::Read { destination: Some(destination) } => {
                let memory = destination.on_gpu();
                let after = memory.and_then(|memory| memory.after);
                (memory, destination.landed().map(|event| ReadEnd { event, after }))
            }
            _ => (None, None),
        }
    }

    /// Cuts memory that devices read or write themselves into a part for each piece.
    fn cut(&mut self, pieces: &[Piece], parts: &mut BufferParts) {
        match self {
            Self::Write { source, .. } => {
                if let Some(Source::Dma { buffer, length }) = source.take_if(Source::is_dma)
                    && let Err(buffer) = parts.cut(buffer, pieces)
                {
                    *source = Some(Source::Dma { buffer, length });
                }
            }
            Self::Read { destination } => {
                if let Some(Destination::Dma { buffer, length }) =
                    destination.take_if(Destination::is_dma)
                    && let Err(buffer) = parts.cut(buffer, pieces)
                {
                    *destination = Some(Destination::Dma { buffer, length });
                }
            }
            Self::Verify { .. } | Self::WriteZeroes | Self::Flush | Self::Deallocate => {}
        }
    }
}

/// Properties of a transfer besides its pieces.
pub(super) struct Order {
    pub(super) job: Job,
    pub(super) subject: Subject,
    pub(super) urgency: Urgency,
    pub(super) finish: Finish,
    pub(super) notify: Option<Notify>,
}

/// A transfer, from submission to its end. If it is dropped before its end it ends as stopped.
/// Afterwards it serves for another one: it keeps its ticket, if nobody else has that any more, and
/// the memory of its lists.
pub(super) struct Active {
    pub(super) job: Job,
    pub(super) pieces: Vec<Piece>,
    pub(super) urgency: Urgency,
    /// Links from each piece to the one after it on the same device; for the reactor's queues.
    /// Empty where there is one piece.
    pub(super) links: Vec<u32>,
    /// Pieces that were begun, or never will be.
    begun: usize,
    /// True if the transfer is in queues of the reactor.
    pub(super) queued: bool,
    /// Pieces on a device.
    pub(super) in_flight: usize,
    /// Pieces that were read and not yet compared with their checksums, or are to be read once
    /// more.
    pub(super) unchecked: usize,
    /// Pieces that are being copied from or to the GPU, or wait for their device afterwards.
    pub(super) copying: usize,
    /// The memory, where a GPU has it and copies from or to it.
    pub(super) gpu: Option<GpuRange>,
    /// The memory, where a GPU has it and the data path reads or writes it itself.
    reached: Option<GpuRange>,
    /// Action at the end of a read, if the read does not wait for that.
    pub(super) landed: Option<ReadEnd>,
    /// The memory, where devices read or write it themselves.
    parts: BufferParts,
    /// A DMA buffer that was copied from or to, for the ticket to give back.
    copied: Option<DmaBuffer>,
    checksums: Vec<u32>,
    bytes: u64,
    matched: bool,
    healed: u32,
    /// Time for which it was held back because its bytes were not on the GPU yet.
    pub(super) waited: Duration,
    failure: Option<TransferError>,
    /// Subject for errors.
    pub(super) subject: Subject,
    shared: Arc<TicketShared>,
    finish: Option<Finish>,
    notify: Option<Notify>,
    /// True if everybody knows how it ended.
    told: bool,
}

impl Active {
    /// Makes an ended transfer, for a first transfer to begin in.
    pub(super) fn spare() -> Self {
        Self {
            job: Job::Flush,
            pieces: Vec::new(),
            urgency: Urgency::Ahead,
            links: Vec::new(),
            begun: 0,
            queued: false,
            in_flight: 0,
            unchecked: 0,
            copying: 0,
            gpu: None,
            reached: None,
            landed: None,
            parts: BufferParts::default(),
            copied: None,
            checksums: Vec::new(),
            bytes: 0,
            matched: true,
            healed: 0,
            waited: Duration::ZERO,
            failure: None,
            subject: Subject::default(),
            shared: Arc::new(TicketShared::new(0)),
            finish: None,
            notify: None,
            told: true,
        }
    }

    /// Begins another transfer, after the last one has ended. Returns what its ticket follows.
    pub(super) fn begin(&mut self, id: u64, order: Order, pieces: Vec<Piece>) -> Arc<TicketShared> {
        debug_assert!(self.told && self.in_flight == 0, "a transfer in the place of another");
        let Order { mut job, subject, urgency, finish, notify } = order;
        match Arc::get_mut(&mut self.shared) {
            Some(place) => place.begin_anew(id),
            // Somebody still follows the last one.
            None => self.shared = Arc::new(TicketShared::new(id)),
        }
        (self.gpu, self.landed) = job.on_gpu();
        self.reached = None;
        job.cut(&pieces, &mut self.parts);
        self.checksums.clear();
        if matches!(job, Job::Write { .. }) {
            self.checksums.resize(pieces.len(), 0);
        }
        (self.job, self.pieces, self.urgency, self.subject) = (job, pieces, urgency, subject);
        (self.begun, self.queued, self.bytes, self.matched) = (0, false, 0, true);
        (self.healed, self.waited) = (0, Duration::ZERO);
        (self.finish, self.notify, self.told) = (Some(finish), notify, false);
        Arc::clone(&self.shared)
    }

    /// The list of pieces, for another transfer, once this one has ended.
    pub(super) fn take_list(&mut self) -> Vec<Piece> {
        let mut list = std::mem::take(&mut self.pieces);
        list.clear();
        list
    }

    pub(super) fn id(&self) -> u64 {
        self.shared.id
    }

    /// Returns a piece as it lies where it is on its way to.
    pub(super) fn placed(&self, flight: PieceInFlight) -> Piece {
        let piece = self.pieces[flight.piece];
        match (flight.leg, piece.mirror) {
            (Leg::Second, Some(mirror)) => piece.on(mirror),
            _ => piece,
        }
    }

    /// The operation of a piece on its way.
    pub(super) fn kind_of(&self, flight: PieceInFlight) -> OperationKind {
        if flight.leg == Leg::Heal { OperationKind::Write } else { self.job.kind() }
    }

    /// Returns where a piece goes on that has come back, with a failure or without; `None` if it
    /// has ended.
    pub(super) fn next_leg(
        &self,
        flight: PieceInFlight,
        failure: Option<&TransferError>,
    ) -> Option<Leg> {
        let Piece { mirror, checksum, .. } = self.pieces[flight.piece];
        let mirror = mirror.filter(|_| self.is_wanted())?;
        match (&self.job, flight.leg, failure) {
            (Job::Write { .. }, Leg::First, None) => Some(Leg::Second),
            (Job::Read { .. }, Leg::First, Some(failure)) if failure.is_of_a_copy() => {
                Some(Leg::Second)
            }
            // What nothing was compared with must not take the place of anything.
            (Job::Read { .. }, Leg::Second, None)
                if mirror.heals && checksum.is_some() && !self.is_reached() =>
            {
                Some(Leg::Heal)
            }
            _ => None,
        }
    }

    /// Returns the action by which a piece goes on, with its memory; none if that never came back.
    pub(super) fn action(
        &self,
        flight: PieceInFlight,
        memory: Option<DmaBuffer>,
    ) -> Option<Action> {
        if self.is_reached() {
            return self.reach(self.placed(flight));
        }
        Some(match (&self.job, flight.leg) {
            (Job::Write { fua, .. }, _) => Action::write(memory?, *fua),
            (_, Leg::Heal) => Action::write(memory?, false),
            _ => Action::read(memory?),
        })
    }

    /// Returns whether a piece that has come back should still go on.
    pub(super) fn is_wanted(&self) -> bool {
        match self.job {
            Job::Read { .. } => self.wants_bytes(),
            _ => !self.is_failed(),
        }
    }

    /// A piece that was read from its second copy was written to the first.
    pub(super) fn was_healed(&mut self) {
        self.healed += 1;
    }

    /// Returns whether pieces remain to be begun.
    pub(super) fn has_more(&self) -> bool {
        self.begun < self.pieces.len()
    }

    /// Returns whether the transfer is a read that somebody still waits for.
    pub(super) fn wants_bytes(&self) -> bool {
        match &self.job {
            Job::Read { destination } => {
                destination.is_some() || (self.parts.are_there() && self.failure.is_none())
            }
            _ => false,
        }
    }

    /// The transfer's own memory, where devices read or write that.
    pub(super) fn parts(&mut self) -> Option<&mut BufferParts> {
        Some(&mut self.parts).filter(|parts| parts.are_there())
    }

    /// Returns whether everything was begun and has come back.
    pub(super) fn is_over(&self) -> bool {
        !self.has_more() && self.in_flight == 0 && self.unchecked == 0 && self.copying == 0
    }

    /// Returns whether the pieces have to be copied from a GPU before anything else.
    pub(super) fn reads_gpu(&self) -> bool {
        self.gpu.is_some() && !matches!(self.job, Job::Read { .. })
    }

    /// Returns the event that must precede on the GPU before its bytes there are what it is to
    /// read.
    pub(super) fn after(&self) -> Option<GpuEvent> {
        self.gpu.filter(|_| self.reads_gpu())?.after
    }

    /// Returns whether somebody still waits for its pieces on a GPU.
    pub(super) fn fills_gpu(&self) -> bool {
        self.gpu.is_some() && self.wants_bytes()
    }

    /// Has the data path read or write the memory itself, if a GPU has it and any device is to.
    pub(super) fn reach_gpu(&mut self) {
        if !matches!(self.job, Job::Verify { .. }) {
            self.reached = self.gpu.take();
        }
    }

    /// Returns whether the data path reads or writes a GPU's memory itself.
    pub(super) fn is_reached(&self) -> bool {
        self.reached.is_some()
    }

    /// Returns the action of a device on a piece of the GPU's memory.
    pub(super) fn reach(&self, piece: Piece) -> Option<Action> {
        let WantedRange { skip, take } = piece.wanted();
        let start = piece.tensor_offset as usize;
        let memory = self.reached?.slice(start, skip..skip + take, piece.length);
        match self.job {
            Job::Write { fua, .. } => Some(Action::write(memory, fua)),
            Job::Read { .. } => Some(Action::read(memory)),
            _ => None,
        }
    }

    /// Returns whether the transfer will not end well.
    pub(super) fn is_failed(&self) -> bool {
        self.failure.is_some()
    }

    /// Returns the resources that a piece needs before it can be begun.
    pub(super) fn needs(&self) -> PieceNeeds {
        let moves_bytes = matches!(self.job, Job::Write { .. } | Job::Read { .. });
        if self.reads_gpu() {
            return PieceNeeds { chunk: true, room: false };
        }
        let own = self.parts.are_there() || self.is_reached();
        PieceNeeds { chunk: moves_bytes && !own, room: self.is_on_devices() }
    }

    /// Returns whether the pieces go to devices.
    pub(super) fn is_on_devices(&self) -> bool {
        !matches!(self.job, Job::Verify { .. })
    }

    /// Makes `chunk` what a piece's device is to get: a copy in staging memory, or the transfer's
    /// own part as it is. Takes the checksum, and fills up with zeroes. A source that is copied is
    /// read exactly once, and the checksum is that of the copy; a part is nobody else's to write:
    /// whatever goes to the device has it.
    pub(super) fn stage(&mut self, index: usize, chunk: &mut DmaBuffer) {
        let piece = self.pieces[index];
        let (start, length) = (piece.tensor_offset as usize, piece.length as usize);
        match &self.job {
            Job::Write { source: Some(source), .. } => {
                let from = &source.bytes()[start..start + length];
                self.checksums[index] = copy_with_checksum(from, chunk);
                fill_up(chunk, piece);
            }
            _ => self.seal(index, chunk),
        }
    }

    /// Takes the checksum of a piece whose bytes are in `chunk`, and fills up with zeroes.
    pub(super) fn seal(&mut self, piece: usize, chunk: &mut DmaBuffer) {
        self.checksums[piece] = checksum(&chunk[..self.pieces[piece].length as usize]);
        fill_up(chunk, self.pieces[piece]);
    }

    /// A piece was begun. After the last piece of a write its source is nobody's concern.
    pub(super) fn advance(&mut self) {
        self.begun += 1;
        self.release_source();
    }

    /// A piece is no longer being copied from or to the GPU.
    pub(super) fn uncopied(&mut self) {
        self.copying -= 1;
        self.release_source();
    }

    fn release_source(&mut self) {
        if !self.has_more()
            && self.copying == 0
            && matches!(self.job, Job::Write { .. } | Job::Verify { .. })
        {
            self.release();
        }
    }

    /// A piece of a read is on its way to the GPU.
    pub(super) fn copied_in(&mut self, piece: Piece) {
        self.bytes += u64::from(piece.wanted().take);
        if self.landed.is_none() {
            self.copying += 1;
        }
    }

    /// Compares a piece that was copied from the GPU with its checksum. A mismatch ends the
    /// verification.
    pub(super) fn compare(&mut self, piece: usize, chunk: &DmaBuffer) {
        let length = self.pieces[piece].length as usize;
        self.compare_checksum(piece, checksum(&chunk[..length]));
    }

    /// Compares a checksum that the GPU took.
    pub(super) fn compare_checksum(&mut self, piece: usize, found: u32) {
        let Piece { length, checksum: expected, .. } = self.pieces[piece];
        self.bytes += u64::from(length);
        if Some(found) != expected {
            self.matched = false;
            self.begun = self.pieces.len();
        }
    }

    /// Checks a piece's memory against its checksum, which begins and ends it. A mismatch ends the
    /// verification.
    pub(super) fn verify(&mut self, piece: usize) {
        let piece = self.pieces[piece];
        let Job::Verify { source: Some(source) } = &self.job else { return };
        let start = piece.tensor_offset as usize;
        let bytes = &source.bytes()[start..start + piece.length as usize];
        let found = checksum(bytes);
        self.bytes += u64::from(piece.length);
        if Some(found) != piece.checksum {
            self.matched = false;
            self.begun = self.pieces.len() - 1;
        }
        self.advance();
    }

    /// Compares a piece just read into `chunk` with its checksum, and returns what is wrong with
    /// it. Where all of the piece goes to memory of the host, it is copied there at once: one pass
    /// over the bytes does both. What turns out to be wrong is copied over, or is the transfer's
    /// error.
    pub(super) fn check(
        &mut self,
        flight: PieceInFlight,
        chunk: &DmaBuffer,
    ) -> Option<Box<TransferError>> {
        if !self.wants_bytes() {
            return None;
        }
        let piece = self.placed(flight);
        piece.checksum?;
        let bytes = &chunk[..piece.length as usize];
        let is_on_host = self.gpu.is_none() && !self.is_reached() && !self.parts.are_there();
        let found = match &mut self.job {
            Job::Read { destination: Some(to) } if is_on_host && piece.is_wanted_whole() => {
                to.write_with_checksum(piece.tensor_offset as usize, bytes)
            }
            _ => checksum(bytes),
        };
        piece.unexpected(found)
    }

    /// Processes the checksum of a piece that the data path moved from or to a GPU's memory.
    /// Returns what is wrong with it.
    pub(super) fn summed(
        &mut self,
        flight: PieceInFlight,
        found: u32,
    ) -> Option<Box<TransferError>> {
        let piece = self.placed(flight);
        let sum = &mut self.checksums;
        match &self.job {
            // The GPU's memory is read once for each copy, and is its caller's to leave as it is.
            Job::Write { .. } if flight.leg == Leg::Second => {
                return piece.expecting(sum[flight.piece]).unexpected(found);
            }
            Job::Write { .. } => sum[flight.piece] = found,
            _ if self.wants_bytes() => return piece.unexpected(found),
            _ => {}
        }
        None
    }

    /// A piece came back well; a read's bytes are in `chunk`, which is where they belong if it is
    /// the transfer's own.
    pub(super) fn landed(&mut self, piece: usize, chunk: Option<&DmaBuffer>) {
        let piece = self.pieces[piece];
        let wanted = piece.wanted();
        if (self.parts.are_there() || self.is_reached()) && self.wants_bytes() {
            self.bytes += u64::from(wanted.take);
            return;
        }
        match (&mut self.job, chunk) {
            (Job::Read { destination: Some(destination) }, Some(chunk)) => {
                // The check has copied what it could.
                if piece.checksum.is_none() || !piece.is_wanted_whole() {
                    let (skip, take) = (wanted.skip as usize, wanted.take as usize);
                    destination.write(piece.tensor_offset as usize, &chunk[skip..skip + take]);
                }
                self.bytes += u64::from(wanted.take);
            }
            (Job::Write { .. }, _) => self.bytes += u64::from(piece.length),
            // A read that failed elsewhere has given its destination back already.
            _ => {}
        }
    }

    /// Begins no more pieces and gives the memory back; the first failure is the one that counts.
    pub(super) fn fail(&mut self, failure: TransferError) {
        self.failure.get_or_insert(failure);
        self.begun = self.pieces.len();
        self.release();
    }

    /// Cancels what can be: a write or verification that has pieces left, a read that has not
    /// landed.
    pub(super) fn cancel(&mut self) {
        if self.has_more() || self.wants_bytes() {
            self.fail(TransferError::Cancelled);
        }
    }

    /// Releases the memory, which nothing of ours touches afterwards: devices only ever see staging
    /// buffers, and memory that is in parts or that they reach on a GPU, which they may see until
    /// the end. Copies of a GPU are waited for, or followed by their event.
    fn release(&mut self) {
        let dma = match &mut self.job {
            Job::Write { source, .. } | Job::Verify { source } => {
                source.take().and_then(Source::into_dma)
            }
            Job::Read { destination } => destination.take().and_then(Destination::into_dma),
            Job::WriteZeroes | Job::Flush | Job::Deallocate => None,
        };
        self.copied = self.copied.take().or(dma);
        let with_devices = self.parts.are_there() || (self.is_reached() && self.in_flight > 0);
        if !with_devices && self.copying == 0 && self.landed.is_none() {
            self.shared.release();
        }
    }

    /// Gives the memory back without telling anybody: the submission itself is being refused.
    pub(super) fn disown(mut self) {
        self.told = true;
        drop(self.parts.join());
        self.landed = None;
        self.release();
    }

    /// Tells everybody how it ended.
    pub(super) fn conclude(&mut self) {
        let bytes = match &mut self.job {
            Job::Read { destination: Some(Destination::Owned(bytes)) } => {
                Some(TicketMemory::Bytes(std::mem::take(bytes)))
            }
            _ => None,
        };
        let whole = self.parts.join();
        (self.unchecked, self.copying, self.gpu, self.landed) = (0, 0, None, None);
        self.release();
        let memory = bytes.or_else(|| whole.or_else(|| self.copied.take()).map(TicketMemory::Dma));
        let (bytes, matched) = (self.bytes, self.matched);
        let (waited, healed) = (self.waited, self.healed);
        let outcome = match &self.failure {
            Some(failure) => Err(failure.clone()),
            None => Ok(Done { bytes, matched, waited, healed }),
        };
        let result = match self.failure.take() {
            Some(failure) => Err(failure),
            None => Ok(TransferDone { checksums: &self.checksums, matched }),
        };
        // What it names goes first, so that the caller may be the last to hold that.
        self.subject = Subject::default();
        // During a panic on the reactor thread a second one would end the process.
        if let Some(finish) = self.finish.take()
            && !std::thread::panicking()
        {
            finish.call(TransferResult { outcome: result, bytes });
        }
        self.told = true;
        self.shared.finish(outcome.clone(), memory);
        if let Some((queue, tag)) = self.notify.take() {
            queue.push(tag, outcome);
        }
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        if !self.told {
            self.fail(TransferError::Stopped { reason: "its thread ended".into() });
            self.conclude();
        }
    }
}

/// Zeroes the bytes behind a piece's, up to the end of its last block.
fn fill_up(chunk: &mut DmaBuffer, piece: Piece) {
    chunk[piece.length as usize..piece.extent().length.0 as usize].fill(0);
}
