//! One transfer on its way through the reactor.

use std::sync::Arc;

use super::completion::Notify;
use super::subject::Subject;
use super::ticket::TicketShared;
use super::transfer::{Done, Finish, Piece, TransferDone, TransferError, TransferResult, Urgency};
use crate::memory::{Destination, DmaBuffer, Source};
use crate::path::OperationKind;
use crate::units::ByteCount;

/// Copying and checksumming alternate in blocks of this size, so that the checksum finds the bytes
/// in the nearest cache.
const BLOCK: usize = 16 << 10;

/// What is to be done with each piece. The memory is `None` once it was released.
pub(super) enum Job {
    Write { source: Option<Source>, fua: bool },
    Read { destination: Option<Destination> },
    Verify { source: Option<Source> },
    WriteZeroes,
    Flush,
    Deallocate,
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
}

/// A transfer, from submission to its end. If it is dropped before its end it ends as stopped.
pub(super) struct Active {
    pub(super) job: Job,
    pub(super) pieces: Vec<Piece>,
    pub(super) urgency: Urgency,
    /// The first piece that was not begun.
    pub(super) next: usize,
    /// Whether it stands in a queue of the reactor.
    pub(super) queued: bool,
    /// Pieces on a device.
    pub(super) flying: usize,
    checksums: Vec<u32>,
    bytes: u64,
    matched: bool,
    failure: Option<TransferError>,
    /// For errors to name it.
    pub(super) subject: Subject,
    shared: Arc<TicketShared>,
    finish: Option<Finish>,
    notify: Option<Notify>,
    /// Whether everybody knows how it ended.
    told: bool,
}

impl Active {
    pub(super) fn new(
        job: Job,
        subject: Subject,
        pieces: Vec<Piece>,
        urgency: Urgency,
        shared: Arc<TicketShared>,
        finish: Finish,
        notify: Option<Notify>,
    ) -> Self {
        let sums = if matches!(job, Job::Write { .. }) { pieces.len() } else { 0 };
        Self {
            job,
            pieces,
            urgency,
            next: 0,
            queued: false,
            flying: 0,
            checksums: vec![0; sums],
            bytes: 0,
            matched: true,
            failure: None,
            subject,
            shared,
            finish: Some(finish),
            notify,
            told: false,
        }
    }

    pub(super) fn id(&self) -> u64 {
        self.shared.id
    }

    /// Whether pieces remain to be begun.
    pub(super) fn has_more(&self) -> bool {
        self.next < self.pieces.len()
    }

    /// Whether it is a read that somebody still waits for.
    pub(super) fn wants_bytes(&self) -> bool {
        matches!(self.job, Job::Read { destination: Some(_) })
    }

    /// Whether everything was begun and has come back.
    pub(super) fn is_over(&self) -> bool {
        !self.has_more() && self.flying == 0
    }

    /// Copies the next piece into `chunk`, takes its checksum, and fills up with zeroes. The source
    /// is read exactly once, and the checksum is that of the copy: whatever goes to the device has it.
    pub(super) fn stage(&mut self, chunk: &mut DmaBuffer) {
        let Job::Write { source: Some(source), .. } = &self.job else { return };
        let piece = self.pieces[self.next];
        let (start, length) = (piece.tensor_offset as usize, piece.length as usize);
        let bytes = &source.bytes()[start..start + length];
        let mut sum = 0;
        for (from, to) in bytes.chunks(BLOCK).zip(chunk.chunks_mut(BLOCK)) {
            let to = &mut to[..from.len()];
            to.copy_from_slice(from);
            sum = crc32c::crc32c_append(sum, to);
        }
        chunk[length..piece.extent().length.0 as usize].fill(0);
        self.checksums[self.next] = sum;
    }

    /// The next piece was begun. After the last piece of a write its source is nobody's concern.
    pub(super) fn advance(&mut self) {
        self.next += 1;
        if !self.has_more() && matches!(self.job, Job::Write { .. } | Job::Verify { .. }) {
            self.release();
        }
    }

    /// Checks the next piece's memory against its checksum, and goes on to the one after. A mismatch
    /// ends the verification.
    pub(super) fn verify_next(&mut self) {
        let piece = self.pieces[self.next];
        let Job::Verify { source: Some(source) } = &self.job else { return };
        let start = piece.tensor_offset as usize;
        let bytes = &source.bytes()[start..start + piece.length as usize];
        let found = crc32c::crc32c(bytes);
        self.bytes += u64::from(piece.length);
        if Some(found) != piece.checksum {
            self.matched = false;
            self.next = self.pieces.len() - 1;
        }
        self.advance();
    }

    /// What is wrong with a piece just read into `chunk`, if its checksum is not the expected one.
    pub(super) fn mismatch(&self, piece: usize, chunk: &DmaBuffer) -> Option<TransferError> {
        let Job::Read { destination: Some(_) } = &self.job else { return None };
        let Piece { device, offset, tensor_offset, length, .. } = self.pieces[piece];
        let expected = self.pieces[piece].checksum?;
        let found = crc32c::crc32c(&chunk[..length as usize]);
        (found != expected).then_some(TransferError::Checksum {
            device,
            offset,
            length: ByteCount(u64::from(length)),
            tensor_offset,
            expected,
            found,
            about: Box::default(),
        })
    }

    /// A piece came back well; a read's bytes are in `chunk`.
    pub(super) fn landed(&mut self, piece: usize, chunk: Option<&DmaBuffer>) {
        let piece = self.pieces[piece];
        let wanted = piece.wanted();
        match (&mut self.job, chunk) {
            (Job::Read { destination: Some(destination) }, Some(chunk)) => {
                let (skip, take) = (wanted.skip as usize, wanted.take as usize);
                destination.write(piece.tensor_offset as usize, &chunk[skip..skip + take]);
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
        self.next = self.pieces.len();
        self.release();
    }

    /// Cancels what can be: a write or verification that has pieces left, a read that has not landed.
    pub(super) fn cancel(&mut self) {
        if self.has_more() || matches!(self.job, Job::Read { destination: Some(_) }) {
            self.fail(TransferError::Cancelled);
        }
    }

    /// From here on nothing of ours touches the memory: devices only ever see staging buffers.
    /// A read keeps an owned destination, which the ticket gives out.
    fn release(&mut self) {
        match &mut self.job {
            Job::Write { source, .. } | Job::Verify { source } => *source = None,
            Job::Read { destination } => *destination = None,
            Job::WriteZeroes | Job::Flush | Job::Deallocate => {}
        }
        self.shared.release();
    }

    /// Tells everybody how it ended.
    pub(super) fn conclude(mut self) {
        self.tell();
    }

    /// Gives the memory back without telling anybody: the submission itself is being refused.
    pub(super) fn disown(mut self) {
        self.told = true;
        self.release();
    }

    fn tell(&mut self) {
        let owned = match &mut self.job {
            Job::Read { destination } => match destination.take() {
                Some(Destination::Owned(bytes)) => Some(bytes),
                Some(Destination::Foreign(_)) | None => None,
            },
            _ => None,
        };
        self.release();
        let (bytes, matched) = (self.bytes, self.matched);
        let outcome = match &self.failure {
            Some(failure) => Err(failure.clone()),
            None => Ok(Done { bytes, matched }),
        };
        let checksums = std::mem::take(&mut self.checksums);
        let result = match self.failure.take() {
            Some(failure) => Err(failure),
            None => Ok(TransferDone { checksums, matched }),
        };
        // During a panic on the reactor thread a second one would end the process.
        if let Some(finish) = self.finish.take()
            && !std::thread::panicking()
        {
            finish(TransferResult { outcome: result, bytes });
        }
        self.told = true;
        self.shared.finish(outcome.clone(), owned);
        if let Some((queue, tag)) = self.notify.take() {
            queue.push(tag, outcome);
        }
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        if !self.told {
            self.fail(TransferError::Stopped { reason: "its thread ended".into() });
            self.tell();
        }
    }
}
