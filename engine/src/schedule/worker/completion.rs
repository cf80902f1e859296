//! Completions of the path: processed, compared with its checksum, or read once more.

use super::{Leg, PieceInFlight, Worker};
use crate::memory::{DmaBuffer, Memory};
use crate::path::{Action, Completion, OperationKind};
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
        let Some(active) = self.transfers.get_mut(flight.transfer) else {
            return self.keep(flight, buffer);
        };
        active.in_flight -= 1;
        let (piece, kind) = (active.placed(flight), active.kind_of(flight));
        let counters = &self.counters[usize::from(piece.device.0)];
        counters.ended(kind, piece.extent().length.0, result.is_err());
        if !self.options.stepped {
            let well = result.is_ok().then_some(kind);
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
            (Ok(()), Some(chunk))
                if piece.checksum.is_some()
                    && active.wants_bytes()
                    && kind == OperationKind::Read =>
            {
                active.unchecked += 1;
                self.unchecked.push_back((flight, chunk));
            }
            (Ok(()), buffer) => self.accept(flight, None, buffer),
            (Err(error), buffer) => {
                let (tensor_offset, about) = (piece.tensor_offset, Box::default());
                let failure = TransferError::Device { tensor_offset, error, about };
                self.accept(flight, Some(failure.into()), buffer);
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
        let Some(active) = self.transfers.get_mut(flight.transfer) else {
            return self.keep(flight, Some(chunk));
        };
        active.unchecked -= 1;
        let failure = active.check(flight, &chunk);
        self.accept(flight, failure, Some(chunk));
    }

    /// A piece has come back, checked where that is to be, or has failed.
    pub(super) fn accept(
        &mut self,
        flight: PieceInFlight,
        mut failure: Option<Box<TransferError>>,
        buffer: Option<DmaBuffer>,
    ) {
        let Some(active) = self.transfers.get_mut(flight.transfer) else {
            return self.keep(flight, buffer);
        };
        let counters = &self.counters[usize::from(flight.device.0)];
        if flight.leg == Leg::Heal && failure.take().is_none() {
            active.was_healed();
            counters.was_healed();
        }
        let mismatch = matches!(failure.as_deref(), Some(TransferError::Checksum { .. }));
        let again = |failure: &TransferError| {
            !flight.again && active.wants_bytes() && may_read_again(failure)
        };
        match (failure, buffer) {
            // A flip on the way to us does not repeat, nor does every error; rot on the medium
            // does.
            (Some(failure), Some(chunk)) if again(&failure) => {
                if mismatch {
                    counters.mismatched(false);
                }
                self.launch_later(PieceInFlight { again: true, ..flight }, Action::read(chunk));
            }
            (failure, buffer) => {
                if mismatch {
                    counters.mismatched(true);
                }
                if flight.leg == Leg::Second && failure.is_none() && active.wants_bytes() {
                    let first = active.pieces[flight.piece].device;
                    self.counters[usize::from(first.0)].was_read_elsewhere();
                }
                match active.next_leg(flight, failure.as_deref()) {
                    Some(leg) => self.go_on(PieceInFlight { leg, ..flight }, failure, buffer),
                    None => self.end_piece(flight, failure, buffer),
                }
            }
        }
        self.settle(flight.transfer);
    }

    /// A piece goes on to its other copy. `failure` is what counts if its memory never came back.
    fn go_on(
        &mut self,
        flight: PieceInFlight,
        failure: Option<Box<TransferError>>,
        buffer: Option<DmaBuffer>,
    ) {
        let Some(active) = self.transfers.get_mut(flight.transfer) else {
            return self.keep(flight, buffer);
        };
        let device = active.placed(flight).device;
        let has_chunk = buffer.is_some() && active.parts().is_none();
        let on = PieceInFlight { device, again: false, ..flight };
        match active.action(on, buffer) {
            Some(action) => {
                if has_chunk {
                    self.chunks.pass(flight.device, device);
                }
                self.launch_later(on, action);
            }
            None => self.end_piece(flight, failure, None),
        }
    }

    /// A piece goes nowhere any more.
    fn end_piece(
        &mut self,
        flight: PieceInFlight,
        failure: Option<Box<TransferError>>,
        buffer: Option<DmaBuffer>,
    ) {
        let Some(active) = self.transfers.get_mut(flight.transfer) else {
            return self.keep(flight, buffer);
        };
        match (failure, buffer) {
            (None, Some(chunk)) if active.fills_gpu() => self.begin_copy_in(flight, chunk),
            (failure, buffer) => {
                match failure {
                    None => active.landed(flight.piece, buffer.as_ref()),
                    Some(failure) => self.report_failure(flight.transfer, *failure),
                }
                self.take_back(flight, buffer);
            }
        }
    }

    /// Processes a buffer that no device has any more: a part of its transfer's memory, or a chunk.
    pub(super) fn take_back(&mut self, flight: PieceInFlight, buffer: Option<DmaBuffer>) {
        let Some(buffer) = buffer else { return };
        match self.transfers.get_mut(flight.transfer).and_then(|active| active.parts()) {
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

    /// Has a piece read once more, or go on, as soon as its device has room, which others may have
    /// taken meanwhile.
    pub(super) fn launch_later(&mut self, flight: PieceInFlight, action: Action) {
        if let Some(active) = self.transfers.get_mut(flight.transfer) {
            active.unchecked += 1;
        }
        self.again.push_back((flight, action));
    }

    /// Launches what waits for its device, before anything else is begun; returns whether anything
    /// moved.
    pub(super) fn launch_again(&mut self) -> bool {
        let waiting = self.again.len();
        for _ in 0..waiting {
            let Some((flight, action)) = self.again.pop_front() else { break };
            self.launch_one_again(flight, action);
        }
        self.again.len() < waiting
    }

    fn launch_one_again(&mut self, flight: PieceInFlight, action: Action) {
        let Some(active) = self.transfers.get_mut(flight.transfer) else {
            return self.keep(flight, action.into_buffer());
        };
        let piece = active.placed(flight);
        let wanted = active.is_wanted();
        if wanted && !self.flights.has_room(piece.device) {
            return self.again.push_back((flight, action));
        }
        active.unchecked -= 1;
        if !wanted {
            self.take_back(flight, action.into_buffer());
        } else if let Err((refused, buffer)) = self.offer(flight, action) {
            // The table has room, so the path has.
            let full = || TransferError::Refused {
                device: piece.device,
                offset: piece.offset,
                tensor_offset: piece.tensor_offset,
                reason: "the queue has no room to go on with it",
                about: Box::default(),
            };
            self.accept(flight, Some(refused.unwrap_or_else(|| full().into())), buffer);
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
