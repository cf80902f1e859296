//! Completions of the path: processed, compared with its checksum, or read once more.

use super::{PieceInFlight, Worker};
use crate::memory::{DmaBuffer, Memory};
use crate::path::{Action, Completion};
use crate::schedule::active::Job;
use crate::schedule::transfer::TransferError;

impl Worker {
    /// Polls the path and processes what has completed; returns whether anything had.
    pub(super) fn complete(&mut self) -> bool {
        let mut completions = std::mem::take(&mut self.completions);
        self.path.poll(&mut completions);
        let some = !completions.is_empty();
        for completion in completions.drain(..) {
            self.complete_one(completion);
        }
        self.completions = completions;
        some
    }

    pub(super) fn complete_one(&mut self, completion: Completion) {
        let Completion { tag, memory, checksum, result } = completion;
        let buffer = memory.and_then(Memory::into_host);
        let Some(flight) = self.flights.complete(tag) else { return };
        let Some(active) = self.transfers.get_mut(&flight.transfer) else {
            return self.keep(flight, buffer);
        };
        active.in_flight -= 1;
        let piece = active.pieces[flight.piece];
        let counters = &self.counters[usize::from(piece.device.0)];
        counters.ended(active.job.kind(), piece.extent().length.0, result.is_err());
        if !self.options.stepped {
            let well = result.is_ok().then(|| active.job.kind());
            counters.answered(flight.began, self.now, well);
        }
        if active.is_reached() {
            return self.complete_reached(flight, piece, checksum, result);
        }
        let moves_bytes = matches!(active.job, Job::Write { .. } | Job::Read { .. });
        if buffer.is_none() && moves_bytes && active.parts().is_none() {
            self.chunks.lose(flight.device);
        }
        match (result, buffer) {
            (Ok(()), Some(chunk)) if piece.checksum.is_some() && active.wants_bytes() => {
                active.unchecked += 1;
                self.unchecked.push_back((flight, chunk));
            }
            (Ok(()), buffer) => self.accept(flight, None, buffer),
            (Err(error), buffer) => {
                let (tensor_offset, about) = (piece.tensor_offset, Box::default());
                let failure = TransferError::Device { tensor_offset, error, about };
                self.accept(flight, Some(failure), buffer);
            }
        }
    }

    /// Compares what was read with its checksums, some of it, so that devices are given new work in
    /// between; returns whether there was any.
    pub(super) fn check_some(&mut self) -> bool {
        /// A piece that is longer than all of this is checked whole.
        const BYTES: usize = 256 << 10;
        let mut left = BYTES;
        let some = !self.unchecked.is_empty();
        while left > 0
            && let Some((flight, chunk)) = self.unchecked.pop_front()
        {
            left = left.saturating_sub(chunk.len());
            self.check(flight, chunk);
        }
        some
    }

    fn check(&mut self, flight: PieceInFlight, chunk: DmaBuffer) {
        let Some(active) = self.transfers.get_mut(&flight.transfer) else {
            return self.keep(flight, Some(chunk));
        };
        active.unchecked -= 1;
        let failure = active.mismatch(flight.piece, &chunk);
        self.accept(flight, failure, Some(chunk));
    }

    /// A piece has come back, checked where that is to be, or has failed.
    pub(super) fn accept(
        &mut self,
        flight: PieceInFlight,
        failure: Option<TransferError>,
        buffer: Option<DmaBuffer>,
    ) {
        let Some(active) = self.transfers.get_mut(&flight.transfer) else {
            return self.keep(flight, buffer);
        };
        let piece = active.pieces[flight.piece];
        let counters = &self.counters[usize::from(piece.device.0)];
        match (failure, buffer) {
            // A flip on the way to us does not repeat, nor does every error; rot on the medium
            // does.
            (Some(failure), Some(chunk))
                if !flight.again && active.wants_bytes() && may_read_again(&failure) =>
            {
                if matches!(failure, TransferError::Checksum { .. }) {
                    counters.mismatched(false);
                }
                self.read_again(flight, Action::read(chunk));
            }
            (None, Some(chunk)) if active.fills_gpu() => self.begin_copy_in(flight, chunk),
            (failure, buffer) => {
                match failure {
                    None => active.landed(flight.piece, buffer.as_ref()),
                    Some(failure) => {
                        if matches!(failure, TransferError::Checksum { .. }) {
                            counters.mismatched(true);
                        }
                        self.report_failure(flight.transfer, failure);
                    }
                }
                self.take_back(flight, buffer);
            }
        }
        self.settle(flight.transfer);
    }

    /// Processes a buffer that no device has any more: a part of its transfer's memory, or a chunk.
    pub(super) fn take_back(&mut self, flight: PieceInFlight, buffer: Option<DmaBuffer>) {
        let Some(buffer) = buffer else { return };
        match self.transfers.get_mut(&flight.transfer).and_then(|active| active.parts()) {
            Some(parts) => parts.put_back(flight.piece, buffer),
            None => self.keep(flight, Some(buffer)),
        }
    }

    /// Keeps a chunk that a piece had.
    pub(super) fn keep(&mut self, flight: PieceInFlight, chunk: Option<DmaBuffer>) {
        if let Some(chunk) = chunk {
            self.chunks.release(flight.device, chunk);
        }
    }

    /// Has a piece read once more as soon as its device has room, which others may have taken
    /// meanwhile.
    pub(super) fn read_again(&mut self, flight: PieceInFlight, read: Action) {
        if let Some(active) = self.transfers.get_mut(&flight.transfer) {
            active.unchecked += 1;
        }
        self.again.push_back((PieceInFlight { again: true, ..flight }, read));
    }

    /// Reads once more what waits for it, before anything else is begun; returns whether anything
    /// moved.
    pub(super) fn launch_again(&mut self) -> bool {
        let waiting = self.again.len();
        for _ in 0..waiting {
            let Some((flight, read)) = self.again.pop_front() else { break };
            self.launch_one_again(flight, read);
        }
        self.again.len() < waiting
    }

    fn launch_one_again(&mut self, flight: PieceInFlight, read: Action) {
        let Some(active) = self.transfers.get_mut(&flight.transfer) else {
            return self.keep(flight, read.into_buffer());
        };
        let piece = active.pieces[flight.piece];
        let wanted = active.wants_bytes();
        if wanted && !self.flights.has_room(piece.device) {
            return self.again.push_back((flight, read));
        }
        active.unchecked -= 1;
        if !wanted {
            self.take_back(flight, read.into_buffer());
        } else if let Err(refused) = self.launch(flight, read) {
            // The table has room, so the path has.
            let full = || TransferError::Refused {
                device: piece.device,
                offset: piece.offset,
                tensor_offset: piece.tensor_offset,
                reason: "the queue has no room to read it again",
                about: Box::default(),
            };
            self.report_failure(flight.transfer, refused.unwrap_or_else(full));
        }
        self.settle(flight.transfer);
    }
}

/// Returns whether reading once more may help.
pub(super) fn may_read_again(failure: &TransferError) -> bool {
    match failure {
        TransferError::Checksum { .. } => true,
        TransferError::Device { error, .. } => error.status.is_transient(),
        _ => false,
    }
}
