//! The way to a reactor's thread, without the thread: whoever holds one may submit and keeps
//! nothing alive.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::active::{Job, Order};
use super::completion::Notify;
use super::finish::Finish;
use super::mailbox::Mailbox;
use super::options::SubmitError;
use super::subject::Subject;
use super::ticket::{Promise, Ticket, TicketShared};
use super::transfer::{Piece, Urgency};
use crate::memory::Source;
use crate::path::Capabilities;
use crate::units::{ByteCount, DeviceIndex};

/// Submits to a reactor, also from the reactor's own thread (a [`Finish`] that goes on with the
/// next step of something). Once the reactor is closed it refuses everything.
#[derive(Clone)]
pub(crate) struct Submitter {
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) capabilities: Arc<Capabilities>,
    pub(super) chunk: ByteCount,
    next_id: Arc<AtomicU64>,
}

impl Submitter {
    pub(super) fn new(
        mailbox: Arc<Mailbox>,
        capabilities: Arc<Capabilities>,
        chunk: ByteCount,
    ) -> Self {
        Self { mailbox, capabilities, chunk, next_id: Arc::default() }
    }

    /// Returns the capabilities of the data path.
    pub(crate) fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// Writes the same metadata at `offset` of each device, all at once; with `fua` until it is on
    /// the medium.
    pub(crate) fn write_meta(
        &self,
        devices: &[DeviceIndex],
        offset: ByteCount,
        bytes: Vec<u8>,
        fua: bool,
        finish: Finish,
    ) -> Result<Ticket, SubmitError> {
        let chunk = self.chunk.0 as usize;
        let length = bytes.len();
        let piece = |start: usize, device: DeviceIndex| {
            let at = ByteCount(offset.0.saturating_add(start as u64));
            Piece::new(device, at, start as u64, (length - start).min(chunk) as u32)
        };
        let starts = (0..length).step_by(chunk);
        let pieces: Vec<Piece> =
            starts.flat_map(|start| devices.iter().map(move |&to| piece(start, to))).collect();
        self.check(&pieces, length, true, false)?;
        let job = Job::Write { source: Some(Source::Owned(bytes)), fua };
        self.send(job, Subject::default(), pieces, Urgency::Urgent, None, finish)
    }

    /// Puts every write that has ended by now on the media of these devices.
    pub(crate) fn flush(
        &self,
        devices: &[DeviceIndex],
        finish: Finish,
    ) -> Result<Ticket, SubmitError> {
        let pieces = devices.iter().map(|&device| Piece::new(device, ByteCount::ZERO, 0, 0));
        let (pieces, subject) = (pieces.collect(), Subject::default());
        self.send(Job::Flush, subject, pieces, Urgency::Urgent, None, finish)
    }

    /// Returns the reason why no transfer would be taken now, if that is so.
    pub(crate) fn refusal(&self) -> Option<SubmitError> {
        self.mailbox.refusal()
    }

    /// A ticket that follows no transfer, and what ends it.
    pub(crate) fn promise(&self) -> (Ticket, Promise) {
        let shared = Arc::new(TicketShared::new(self.next_id()));
        (Ticket::new(Arc::clone(&shared), Arc::clone(&self.mailbox)), Promise::new(shared))
    }

    pub(super) fn send(
        &self,
        job: Job,
        subject: Subject,
        pieces: Vec<Piece>,
        urgency: Urgency,
        notify: Option<Notify>,
        finish: Finish,
    ) -> Result<Ticket, SubmitError> {
        let ticket = self.enqueue(Order { job, subject, urgency, finish, notify }, pieces)?;
        self.mailbox.wake();
        Ok(ticket)
    }

    /// Enqueues, as [`Self::send`] does, but a reactor that sleeps sees the order only once it is
    /// woken.
    pub(super) fn enqueue(&self, order: Order, pieces: Vec<Piece>) -> Result<Ticket, SubmitError> {
        if self.mailbox.is_forked() {
            return Err(SubmitError::Forked);
        }
        let mut active = self.mailbox.spare();
        let shared = active.begin(self.next_id(), order, pieces);
        self.mailbox.begin(active)?;
        Ok(Ticket::new(shared, Arc::clone(&self.mailbox)))
    }

    /// Checks that every piece lies within its device and within `memory` bytes.
    pub(super) fn check(
        &self,
        pieces: &[Piece],
        memory: usize,
        on_device: bool,
        windows: bool,
    ) -> Result<(), SubmitError> {
        for (index, piece) in pieces.iter().enumerate() {
            let reason = self.fault(piece, memory as u64, on_device, windows);
            if let Some(reason) = reason {
                return Err(SubmitError::Invalid { piece: index, reason });
            }
        }
        Ok(())
    }

    fn fault(
        &self,
        piece: &Piece,
        memory: u64,
        on_device: bool,
        windows: bool,
    ) -> Option<&'static str> {
        let wanted = piece.wanted();
        let inside = wanted.skip.checked_add(wanted.take).is_some_and(|end| end <= piece.length);
        let end = piece.tensor_offset.checked_add(u64::from(wanted.take));
        if piece.length == 0 || u64::from(piece.length) > self.chunk.0 {
            return Some("it is empty or longer than a chunk");
        }
        if !inside || (piece.window.is_some() && !windows) {
            return Some("its window ends beyond it, or is not one of a read");
        }
        if end.is_none_or(|end| end > memory) {
            return Some("it ends beyond its memory");
        }
        if !on_device {
            return piece.checksum.is_none().then_some("there is no checksum to verify it by");
        }
        let misplaced = |piece: Piece| {
            let Some(device) = self.capabilities.devices.get(usize::from(piece.device.0)) else {
                return Some("there is no such device");
            };
            let fits = piece.extent().fits(device.size);
            (!fits).then_some("it is unaligned or ends beyond its device")
        };
        misplaced(*piece).or_else(|| piece.mirror.and_then(|mirror| misplaced(piece.on(mirror))))
    }

    fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }
}
