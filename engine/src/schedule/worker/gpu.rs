//! Pieces that lie on a GPU: copied to a chunk before their device gets it, or from one after the
//! device filled it.
//!
//! The reactor begins copies and looks whether they are done; it never waits for one. A chunk stays
//! taken until its copy is done. So does a write's source; a read's destination is its caller's
//! business from the event `landed` on.
//!
//! Where the data path reaches the GPU's memory, pieces go to their devices and come back as they
//! are, without a chunk and without the host; their checksums come with the completions.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use nix::sys::prctl::set_timerslack;

use super::completion::may_read_again;
use super::{BeginResult, PieceInFlight, QueuePlace, Worker};
use crate::memory::{
    CopyResult, DmaBuffer, DmaPool, GpuDirection, GpuError, GpuEvent, PendingCopies, WindowSize,
};
use crate::path::{Action, DataPath, DeviceError, Feature};
use crate::schedule::active::{Job, ReadEnd};
use crate::schedule::in_progress::TransferKey;
use crate::schedule::options::{ReactorOptions, StartError};
use crate::schedule::stats::GpuStats;
use crate::schedule::transfer::{Piece, TransferError};

/// Limit of the reactor's sleep while copies are under way: they wake nobody. One of a chunk takes
/// about this.
const NAP: Duration = Duration::from_micros(20);

/// Number of held transfers that are checked in a round: a look costs about a microsecond.
const LOOKS_MAX: usize = 16;

/// The chunks that are on the GPU's side of a transfer.
pub(super) struct OnGpu {
    copies: PendingCopies<Copied>,
    /// True if the data path reads and writes the GPU's memory itself.
    reached: bool,
    /// Copied from the GPU, for devices that had no room.
    ready: VecDeque<(PieceInFlight, DmaBuffer)>,
    /// Transfers whose bytes on the GPU are not there yet, in the order in which they came. They
    /// take nothing meanwhile: chunks, and places in the GPU's streams, are for those that can go.
    held_back: VecDeque<HeldBack>,
}

/// A transfer that waits for what the GPU does before it.
struct HeldBack {
    transfer: TransferKey,
    after: GpuEvent,
    since: Instant,
}

/// Subject of a copy.
struct Copied {
    flight: PieceInFlight,
    /// True if the transfer waits for it.
    awaited: bool,
}

impl OnGpu {
    /// Opens the copy engine between staging memory and the reactor's GPU, if it has one.
    pub(super) fn open(
        options: &ReactorOptions,
        chunks: usize,
        staging: &DmaPool,
        path: &mut dyn DataPath,
    ) -> Result<(Self, Option<GpuStats>), StartError> {
        let Some(gpu) = options.gpu.as_deref() else {
            let (copies, ready) = (PendingCopies::none(), VecDeque::new());
            let held_back = VecDeque::new();
            return Ok((Self { copies, reached: false, ready, held_back }, None));
        };
        let opened = gpu.open(chunks as u32, staging)?;
        // By default the kernel ends a sleep up to 50 us later than it was asked to, which is
        // longer than the time-out of a poll. Where it refuses, looks are rarer, and nothing else.
        let _ = set_timerslack(1);
        let unless = |why: Option<String>| why.map_or(Feature::On, Feature::Off);
        // Pieces are no longer than a chunk of staging memory, so each fits into one of the window.
        let window = WindowSize::new(options.staging.0, options.chunk.0 as u32);
        let stats = GpuStats {
            name: gpu.name(),
            page_locked: unless(opened.why_unlocked.clone()),
            checksums: unless(opened.why_no_checksums.clone()),
            reached: path.reach_gpu(gpu, window)?,
        };
        let (copies, reached) =
            (PendingCopies::of(opened, chunks as u32), stats.reached == Feature::On);
        let (ready, held_back) = (VecDeque::with_capacity(chunks), VecDeque::new());
        Ok((Self { copies, reached, ready, held_back }, Some(stats)))
    }

    /// Returns whether the data path reads and writes the GPU's memory itself.
    pub(super) fn is_reached(&self) -> bool {
        self.reached
    }

    /// Returns whether copies are under way, or transfers wait for the GPU.
    pub(super) fn is_copying(&self) -> bool {
        self.copies.is_any() || !self.held_back.is_empty()
    }

    /// Keeps a transfer until an event has happened. False: it has.
    pub(super) fn hold_back(&mut self, transfer: TransferKey, after: GpuEvent) -> bool {
        // Events of one stream happen in order, so what comes after another waits at least as long.
        if self.copies.has_happened(after) {
            return false;
        }
        self.held_back.push_back(HeldBack { transfer, after, since: Instant::now() });
        true
    }

    /// Has a caller's event happen when every byte that is on its way to the GPU is there.
    pub(super) fn tell(&mut self, ReadEnd { event, after }: ReadEnd) {
        self.copies.record(event, after);
    }

    /// Returns the time for a sleep that would otherwise take `left`.
    pub(super) fn poll_timeout(&self, left: Option<Duration>) -> Option<Duration> {
        if self.is_copying() { Some(left.unwrap_or(NAP).min(NAP)) } else { left }
    }
}

impl Worker {
    /// Begins the transfers whose bytes are on the GPU by now.
    pub(super) fn enter_held_back(&mut self) {
        for _ in 0..self.on_gpu.held_back.len().min(LOOKS_MAX) {
            let Some(held) = self.on_gpu.held_back.pop_front() else { return };
            // What was cancelled meanwhile has ended, and its event may be gone.
            let Some(active) = self.transfers.get_mut(held.transfer) else { continue };
            if !self.on_gpu.copies.has_happened(held.after) {
                self.on_gpu.held_back.push_back(held);
                continue;
            }
            active.waited = held.since.elapsed();
            self.enter(held.transfer);
        }
    }

    /// Gives the next piece to its device, which reads or writes the GPU's memory itself.
    pub(super) fn begin_reached(
        &mut self,
        key: TransferKey,
        place: QueuePlace,
        piece: usize,
    ) -> BeginResult {
        let Some(active) = self.transfers.get_mut(key) else { return BeginResult::Nothing };
        let Some(action) = active.reach(active.pieces[piece]) else { return BeginResult::Nothing };
        self.launch_next(key, place, piece, (action, 0))
    }

    /// A device is done with a piece of the GPU's memory.
    pub(super) fn complete_reached(
        &mut self,
        flight: PieceInFlight,
        piece: Piece,
        checksum: Option<u32>,
        result: Result<(), DeviceError>,
    ) {
        let Some(active) = self.transfers.get_mut(flight.transfer) else { return };
        let tensor_offset = piece.tensor_offset;
        let failure = match (result, checksum) {
            (Ok(()), Some(found)) => active.summed(flight, found),
            (Ok(()), None) => {
                let why = "the data path took no checksum of it".into();
                Some(TransferError::of_gpu(GpuError(why), tensor_offset).into())
            }
            (Err(error), _) => {
                Some(TransferError::Device { tensor_offset, error, about: Box::default() }.into())
            }
        };
        let is_again = flight.again || !active.wants_bytes();
        let read = failure.as_deref().filter(|it| !is_again && may_read_again(it));
        let Some(read) = read.and_then(|_| active.reach(piece)) else {
            return self.accept(flight, failure, None);
        };
        if matches!(failure.as_deref(), Some(TransferError::Checksum { .. })) {
            self.counters[usize::from(piece.device.0)].mismatched(false);
        }
        self.launch_later(PieceInFlight { again: true, ..flight }, read);
    }

    /// Begins to copy the next piece of a write, or of a verification, from the GPU.
    pub(super) fn begin_copy_out(
        &mut self,
        key: TransferKey,
        place: QueuePlace,
        piece: usize,
    ) -> BeginResult {
        let flight = self.flight(key, piece, place.device());
        let Some(active) = self.transfers.get_mut(key) else { return BeginResult::Nothing };
        let Some(memory) = active.gpu else { return BeginResult::Nothing };
        let Some(chunk) = self.chunks.take(place.device()) else { return BeginResult::Nothing };
        let Piece { tensor_offset, length, .. } = active.pieces[piece];
        let (part, about) = (0..length as usize, Copied { flight, awaited: true });
        let copies = &mut self.on_gpu.copies;
        let begun = match active.job {
            Job::Verify { .. } if copies.take_checksums() => {
                copies.begin_check(memory, tensor_offset, chunk, length, about)
            }
            _ => copies.begin(GpuDirection::Fill, memory, tensor_offset, chunk, part, about),
        };
        match begun {
            Ok(()) => {
                active.copying += 1;
                self.queues.advance(place, &active.links);
                active.advance();
            }
            Err((error, chunk)) => {
                self.keep(flight, Some(chunk));
                self.report_failure(key, TransferError::of_gpu(error, tensor_offset));
            }
        }
        self.settle(key);
        BeginResult::Begun { copied: 0 }
    }

    /// Begins to copy a piece that a device has read to the GPU.
    pub(super) fn begin_copy_in(&mut self, flight: PieceInFlight, chunk: DmaBuffer) {
        let active = self.transfers.get_mut(flight.transfer);
        let Some((active, memory)) = active.and_then(|active| active.gpu.map(|gpu| (active, gpu)))
        else {
            return self.keep(flight, Some(chunk));
        };
        let piece = active.pieces[flight.piece];
        let (wanted, awaited) = (piece.wanted(), active.landed.is_none());
        let part = wanted.skip as usize..(wanted.skip + wanted.take) as usize;
        let (copies, about) = (&mut self.on_gpu.copies, Copied { flight, awaited });
        match copies.begin(GpuDirection::Drain, memory, piece.tensor_offset, chunk, part, about) {
            Ok(()) => active.copied_in(piece),
            Err((error, chunk)) => {
                self.keep(flight, Some(chunk));
                self.report_failure(
                    flight.transfer,
                    TransferError::of_gpu(error, piece.tensor_offset),
                );
            }
        }
    }

    /// Goes on with every chunk whose copy has ended; returns whether there was one.
    pub(super) fn complete_copies(&mut self) -> bool {
        let mut some = self.launch_ready();
        while let Some(ended) = self.on_gpu.copies.next_ended() {
            some = true;
            let key = ended.0.flight.transfer;
            self.complete_copy(ended);
            self.settle(key);
        }
        some
    }

    /// Waits for the copies under way, and lets go of what only waited for a device.
    pub(super) fn stop_copies(&mut self) {
        self.on_gpu.copies.wait();
        self.complete_copies();
    }

    fn complete_copy(&mut self, (Copied { flight, awaited }, result): CopyResult<Copied>) {
        let (mut chunk, checksum) = match result {
            Ok(ended) => ended,
            Err(error) => return self.lose_copy(flight, awaited, error),
        };
        let Some(active) = self.transfers.get_mut(flight.transfer).filter(|_| awaited) else {
            return self.keep(flight, Some(chunk));
        };
        match active.job {
            Job::Write { .. } if !active.is_failed() => {
                active.seal(flight.piece, &mut chunk);
                return self.write_copied(flight, chunk);
            }
            Job::Verify { .. } if self.on_gpu.copies.take_checksums() => {
                active.compare_checksum(flight.piece, checksum);
            }
            Job::Verify { .. } => active.compare(flight.piece, &chunk),
            _ => {}
        }
        active.uncopied();
        self.keep(flight, Some(chunk));
    }

    /// The GPU failed, and kept the chunk.
    fn lose_copy(&mut self, flight: PieceInFlight, awaited: bool, error: GpuError) {
        self.chunks.lose(flight.device);
        let Some(active) = self.transfers.get_mut(flight.transfer) else { return };
        if awaited {
            active.uncopied();
        }
        let tensor_offset = active.pieces[flight.piece].tensor_offset;
        self.report_failure(flight.transfer, TransferError::of_gpu(error, tensor_offset));
    }

    /// Gives a piece that was copied from the GPU to its device, or keeps it until there is room.
    fn write_copied(&mut self, flight: PieceInFlight, chunk: DmaBuffer) {
        let Some(active) = self.transfers.get_mut(flight.transfer) else {
            return self.keep(flight, Some(chunk));
        };
        let fua = matches!(active.job, Job::Write { fua: true, .. });
        if active.is_failed() {
            active.uncopied();
            self.keep(flight, Some(chunk));
        } else if !self.flights.has_room(flight.device) {
            self.on_gpu.ready.push_back((flight, chunk));
        } else {
            match self.offer(flight, Action::write(chunk, fua)) {
                Ok(()) => self.end_copy(flight),
                Err((None, chunk)) => {
                    self.on_gpu.ready.extend(chunk.map(|chunk| (flight, chunk)));
                }
                Err((Some(failure), chunk)) => {
                    self.keep(flight, chunk);
                    self.end_copy(flight);
                    self.report_failure(flight.transfer, *failure);
                }
            }
        }
    }

    fn end_copy(&mut self, flight: PieceInFlight) {
        if let Some(active) = self.transfers.get_mut(flight.transfer) {
            active.uncopied();
        }
    }

    /// Retries what found no room; returns whether some did.
    fn launch_ready(&mut self) -> bool {
        let waiting = self.on_gpu.ready.len();
        for _ in 0..waiting {
            let Some((flight, chunk)) = self.on_gpu.ready.pop_front() else { break };
            self.write_copied(flight, chunk);
            self.settle(flight.transfer);
        }
        self.on_gpu.ready.len() < waiting
    }
}
