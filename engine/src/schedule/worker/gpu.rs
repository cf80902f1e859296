//! Pieces that lie on a GPU: copied to a chunk before their device gets it, or from one after the device filled it.
//!
//! The reactor begins copies and looks whether they are done; it never waits for one. A chunk stays taken until its copy
//! is done. So does a write's source; a read's destination is its caller's business from the event `landed` on.

use std::collections::VecDeque;
use std::time::Duration;

use super::{Begun, Flight, Worker, reserve_of};
use crate::memory::{Copies, DmaBuffer, DmaPool, Ended, GpuDirection, GpuError, GpuEvent};
use crate::path::{Action, Feature};
use crate::schedule::active::Job;
use crate::schedule::options::ReactorOptions;
use crate::schedule::stats::GpuStats;
use crate::schedule::transfer::{Piece, TransferError};

/// How long the reactor sleeps at most while copies are under way: they wake nobody. One of a chunk takes about this.
const NAP: Duration = Duration::from_micros(20);

/// The chunks that are on the GPU's side of a transfer.
pub(super) struct OnGpu {
    copies: Copies<Copied>,
    /// Copied from the GPU, for devices that had no room.
    ready: VecDeque<(Flight, DmaBuffer)>,
}

/// What a copy is of.
struct Copied {
    flight: Flight,
    /// Whether its transfer waits for it.
    awaited: bool,
}

impl OnGpu {
    /// What goes between staging memory and the reactor's GPU, if it has one.
    pub(super) fn open(
        options: &ReactorOptions,
        chunks: usize,
        staging: &DmaPool,
    ) -> Result<(Self, Option<GpuStats>), GpuError> {
        let Some(gpu) = options.gpu.as_deref() else {
            return Ok((Self { copies: Copies::none(), ready: VecDeque::new() }, None));
        };
        let (copies, why_unlocked) = Copies::open(gpu, chunks as u32, staging)?;
        let page_locked = why_unlocked.map_or(Feature::On, Feature::Off);
        let stats = GpuStats { name: gpu.name(), page_locked };
        Ok((Self { copies, ready: VecDeque::with_capacity(chunks) }, Some(stats)))
    }

    /// Whether copies are under way.
    pub(super) fn is_copying(&self) -> bool {
        self.copies.is_any()
    }

    /// Has a caller's event happen when every byte that is on its way to the GPU is there.
    pub(super) fn tell(&mut self, landed: GpuEvent) {
        self.copies.record(landed);
    }

    /// How long the reactor may sleep that would otherwise sleep for `left`.
    pub(super) fn nap(&self, left: Option<Duration>) -> Option<Duration> {
        if self.is_copying() { Some(left.unwrap_or(NAP).min(NAP)) } else { left }
    }
}

impl Worker {
    /// Begins to copy the next piece of a write, or of a verification, from the GPU.
    pub(super) fn begin_copy_out(&mut self, id: u64, spare: usize) -> Begun {
        let Some(active) = self.transfers.get_mut(&id) else { return Begun::Nothing };
        let (Some(memory), true) = (active.gpu, self.living > 0) else {
            active.fail(TransferError::without_staging());
            self.settle(id);
            return Begun::Light;
        };
        if self.chunks.len() <= spare {
            return Begun::Nothing;
        }
        let Some(chunk) = self.chunks.pop() else { return Begun::Nothing };
        let flight = Flight { transfer: id, piece: active.next, again: false };
        let Piece { tensor_offset, length, .. } = active.pieces[active.next];
        let (part, about) = (0..length as usize, Copied { flight, awaited: true });
        let copies = &mut self.on_gpu.copies;
        match copies.begin(GpuDirection::Out, memory, tensor_offset, chunk, part, about) {
            Ok(()) => {
                active.copying += 1;
                active.advance();
            }
            Err((error, chunk)) => {
                self.chunks.push(chunk);
                self.blame(id, TransferError::of_gpu(error, tensor_offset));
            }
        }
        self.settle(id);
        Begun::Light
    }

    /// Begins to copy a piece that a device has read to the GPU.
    pub(super) fn begin_copy_in(&mut self, flight: Flight, chunk: DmaBuffer) {
        let active = self.transfers.get_mut(&flight.transfer);
        let Some((active, memory)) = active.and_then(|active| active.gpu.map(|gpu| (active, gpu)))
        else {
            return self.chunks.push(chunk);
        };
        let piece = active.pieces[flight.piece];
        let (wanted, awaited) = (piece.wanted(), active.landed.is_none());
        let part = wanted.skip as usize..(wanted.skip + wanted.take) as usize;
        let (copies, about) = (&mut self.on_gpu.copies, Copied { flight, awaited });
        match copies.begin(GpuDirection::In, memory, piece.tensor_offset, chunk, part, about) {
            Ok(()) => active.copied_in(piece),
            Err((error, chunk)) => {
                self.chunks.push(chunk);
                self.blame(flight.transfer, TransferError::of_gpu(error, piece.tensor_offset));
            }
        }
    }

    /// Goes on with every chunk whose copy has ended; answers whether there was one.
    pub(super) fn land_copies(&mut self) -> bool {
        let mut some = self.launch_ready();
        while let Some(ended) = self.on_gpu.copies.next_ended() {
            some = true;
            let id = ended.0.flight.transfer;
            self.land_copy(ended);
            self.settle(id);
        }
        some
    }

    /// Waits for the copies under way, and lets go of what only waited for a device.
    pub(super) fn stop_copies(&mut self) {
        self.on_gpu.copies.wait();
        self.land_copies();
    }

    fn land_copy(&mut self, (Copied { flight, awaited }, chunk): Ended<Copied>) {
        let mut chunk = match chunk {
            Ok(chunk) => chunk,
            Err(error) => return self.lose_copy(flight, awaited, error),
        };
        let Some(active) = self.transfers.get_mut(&flight.transfer).filter(|_| awaited) else {
            return self.chunks.push(chunk);
        };
        match active.job {
            Job::Write { .. } if !active.is_failed() => {
                active.seal(flight.piece, &mut chunk);
                return self.write_copied(flight, chunk);
            }
            Job::Verify { .. } => active.compare(flight.piece, &chunk),
            _ => {}
        }
        active.uncopied();
        self.chunks.push(chunk);
    }

    /// The GPU failed, and kept the chunk.
    fn lose_copy(&mut self, flight: Flight, awaited: bool, error: GpuError) {
        self.living -= 1;
        self.reserve = reserve_of(self.living);
        let Some(active) = self.transfers.get_mut(&flight.transfer) else { return };
        if awaited {
            active.uncopied();
        }
        let tensor_offset = active.pieces[flight.piece].tensor_offset;
        self.blame(flight.transfer, TransferError::of_gpu(error, tensor_offset));
    }

    /// Gives a piece that was copied from the GPU to its device, or keeps it until there is room.
    fn write_copied(&mut self, flight: Flight, chunk: DmaBuffer) {
        let Some(active) = self.transfers.get_mut(&flight.transfer) else {
            return self.chunks.push(chunk);
        };
        let piece = active.pieces[flight.piece];
        let fua = matches!(active.job, Job::Write { fua: true, .. });
        if active.is_failed() {
            active.uncopied();
            self.chunks.push(chunk);
        } else if !self.flights.has_room(piece.device) {
            self.on_gpu.ready.push_back((flight, chunk));
        } else {
            match self.offer(flight, piece, Action::Write { buffer: chunk, fua }) {
                Ok(()) => self.end_copy(flight),
                Err((None, chunk)) => {
                    self.on_gpu.ready.extend(chunk.map(|chunk| (flight, chunk)));
                }
                Err((Some(failure), chunk)) => {
                    self.chunks.extend(chunk);
                    self.end_copy(flight);
                    self.blame(flight.transfer, failure);
                }
            }
        }
    }

    fn end_copy(&mut self, flight: Flight) {
        if let Some(active) = self.transfers.get_mut(&flight.transfer) {
            active.uncopied();
        }
    }

    /// Tries again what found no room; answers whether some did.
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
