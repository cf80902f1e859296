//! The handle of a transfer in flight.

use std::fmt;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::first_end::EndListener;
use super::mailbox::{Mailbox, ReactorMessage};
use super::transfer::{Done, TransferError, TransferOutcome};
use crate::memory::{DmaBuffer, process};
use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use crate::sync::{Condvar, Mutex, MutexGuard};

/// Longer than any process lives, yet within what the clock can say.
pub(super) const FOREVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Follows one transfer. It may be polled, waited on, or dropped at any time: dropping it detaches,
/// the transfer goes on, and its memory stays in use until the reactor is done with it. Clones
/// follow the same transfer.
pub struct Ticket {
    shared: Arc<TicketShared>,
    mailbox: Arc<Mailbox>,
}

/// State that the reactor and the holder of a ticket share.
pub(super) struct TicketShared {
    pub(super) id: u64,
    /// The process that submitted.
    owner: u32,
    ready: AtomicBool,
    /// [`RELEASED`] and [`AWAITED`].
    memory: AtomicU32,
    end: Mutex<TicketEnd>,
    ended: Condvar,
}

/// The memory is the caller's again.
const RELEASED: u32 = 1;
/// State while a thread sleeps, or is about to, until that is so. Where nobody does, waking them
/// would still cost a system call.
const AWAITED: u32 = 2;

struct TicketEnd {
    outcome: Option<TransferOutcome>,
    memory: Option<TicketMemory>,
    /// Tickets that could still take the memory. The last one to go gives it up, and does not leave
    /// that to whoever keeps this for another transfer.
    tickets: u32,
    /// Threads that sleep until the end. Where there is none, waking them would still cost a system
    /// call.
    sleepers: u32,
    /// Listeners that are notified of the end. Those that are gone need not be.
    listeners: Vec<Weak<dyn EndListener>>,
}

/// Memory that a transfer owned and its ticket gives out.
#[derive(Debug)]
pub(super) enum TicketMemory {
    Bytes(Vec<u8>),
    Dma(DmaBuffer),
}

impl Ticket {
    /// The first ticket; others are clones of it.
    pub(super) fn new(shared: Arc<TicketShared>, mailbox: Arc<Mailbox>) -> Self {
        Self { shared, mailbox }
    }

    /// Returns the result of the transfer, or `None` while it has not ended.
    pub fn poll(&self) -> Option<TransferOutcome> {
        // A child of fork may have inherited the lock in a locked state: the process is asked
        // first.
        if self.shared.is_forked() {
            return Some(Err(TransferError::Forked));
        }
        if self.shared.is_ready() { self.shared.end().outcome.clone() } else { None }
    }

    /// Waits for the end.
    pub fn wait(&self) -> TransferOutcome {
        loop {
            if let Some(outcome) = self.wait_timeout(FOREVER) {
                return outcome;
            }
        }
    }

    /// Waits for the end, at most `timeout`.
    pub fn wait_timeout(&self, timeout: Duration) -> Option<TransferOutcome> {
        if self.shared.is_forked() {
            return Some(Err(TransferError::Forked));
        }
        if let Some(step_token) = self.mailbox.step_token() {
            step_token.grant(u64::MAX, Some(Arc::clone(&self.shared)));
            // Where nothing moves any more, waiting longer would not help.
            return Some(self.poll().unwrap_or_else(|| {
                Err(TransferError::Stopped { reason: "nothing moves in the simulation".into() })
            }));
        }
        let deadline = Instant::now() + timeout.min(FOREVER);
        let mut end = self.shared.end();
        while end.outcome.is_none() {
            let left = deadline.duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            end.sleepers += 1;
            let woken = self.shared.ended.wait_timeout(end, left);
            end = woken.unwrap_or_else(PoisonError::into_inner).0;
            end.sleepers -= 1;
        }
        end.outcome.clone()
    }

    /// Waits for the end and takes what the transfer's `finish` sent. The reactor never goes
    /// without an answer, except into a panic, and then the ticket has it.
    pub(crate) fn wait_for<T>(&self, sent: &Receiver<T>) -> Result<T, TransferError> {
        let ended = self.wait();
        sent.try_recv().map_err(|_| {
            let stopped = TransferError::Stopped { reason: "its thread ended".into() };
            ended.err().unwrap_or(stopped)
        })
    }

    /// Has `listener` told of the end, at once if it has come. A listener that nobody else keeps is
    /// forgotten. In a child of fork nothing is told.
    pub fn listen(&self, listener: &Arc<impl EndListener + 'static>) {
        if self.shared.is_forked() {
            return;
        }
        let mut end = self.shared.end();
        if end.outcome.is_some() {
            drop(end);
            return listener.ended();
        }
        end.listeners.retain(|other| other.strong_count() > 0);
        let listener: Weak<_> = Arc::downgrade(listener);
        end.listeners.push(listener);
    }

    /// Returns whether the transfer is over; the parent's is, for a child of fork.
    pub(super) fn has_ended(&self) -> bool {
        self.shared.is_forked() || self.shared.is_ready()
    }

    /// Returns whether the reactor takes turns with its callers.
    pub(super) fn is_stepped(&self) -> bool {
        self.mailbox.step_token().is_some()
    }

    /// Lets a stepped reactor move; returns whether it could.
    pub(super) fn step(&self) -> bool {
        // One round alone would not say whether another one would move anything.
        self.mailbox.step_token().is_some_and(|step_token| step_token.grant(2, None))
    }

    /// Asks that the transfer stops at its next piece. It then ends as cancelled, once nothing
    /// touches its memory any more; if it had no piece left to begin, it ends as if nothing had
    /// been asked.
    pub fn cancel(&self) {
        self.mailbox.send(ReactorMessage::Cancel(self.shared.id));
    }

    /// Makes the transfer urgent from its next piece on.
    pub fn expedite(&self) {
        self.mailbox.send(ReactorMessage::Expedite(self.shared.id));
    }

    /// Returns whether the transfer's memory is the caller's again. This may come before the end: a
    /// write is done with its source when the last byte is in staging memory.
    pub fn released(&self) -> bool {
        self.shared.is_released()
    }

    /// Waits until the transfer's memory is the caller's again.
    ///
    /// # Errors
    /// It is not, and will not be: the transfer has ended, and a device that does not answer may
    /// still touch the memory. Or this is a child of fork, whose parent's the transfer is.
    pub fn wait_released(&self) -> Result<(), TransferError> {
        if self.shared.is_forked() {
            return Err(TransferError::Forked);
        }
        if self.mailbox.step_token().is_some() {
            // In a simulation whatever moves does so for those who wait for an end.
            let _ = self.wait();
        }
        let mut end = self.shared.await_release();
        while !self.released() && end.outcome.is_none() {
            end.sleepers += 1;
            end = self.shared.ended.wait(end).unwrap_or_else(PoisonError::into_inner);
            end.sleepers -= 1;
        }
        if self.released() {
            return Ok(());
        }
        let kept =
            || TransferError::Stopped { reason: "a device may still touch its memory".into() };
        Err(end.outcome.clone().and_then(Result::err).unwrap_or_else(kept))
    }

    /// The bytes of an owned destination, once, after a read has ended well.
    pub fn take_bytes(&self) -> Option<Vec<u8>> {
        if self.shared.is_forked() {
            return None;
        }
        let mut end = self.shared.end();
        match end.memory.take()? {
            TicketMemory::Bytes(bytes) => Some(bytes),
            memory @ TicketMemory::Dma(_) => {
                end.memory = Some(memory);
                None
            }
        }
    }

    /// The DMA buffer of a source or destination, once, after the end, whatever that was.
    pub fn take_buffer(&self) -> Option<DmaBuffer> {
        if self.shared.is_forked() {
            return None;
        }
        let mut end = self.shared.end();
        match end.memory.take()? {
            TicketMemory::Dma(buffer) => Some(buffer),
            memory @ TicketMemory::Bytes(_) => {
                end.memory = Some(memory);
                None
            }
        }
    }
}

impl Clone for Ticket {
    fn clone(&self) -> Self {
        if !self.shared.is_forked() {
            self.shared.end().tickets += 1;
        }
        Self { shared: Arc::clone(&self.shared), mailbox: Arc::clone(&self.mailbox) }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.shared.is_forked() {
            return;
        }
        let mut end = self.shared.end();
        end.tickets -= 1;
        let unclaimed = if end.tickets == 0 { end.memory.take() } else { None };
        drop(end);
        drop(unclaimed);
    }
}

/// Ends a ticket that follows no transfer. Dropped without being kept, it ends as stopped.
pub(crate) struct Promise(Arc<TicketShared>);

impl Promise {
    pub(super) fn new(shared: Arc<TicketShared>) -> Self {
        Self(shared)
    }

    /// Marks the promise as kept.
    pub(crate) fn keep(self) {
        self.0.release();
        self.0
            .finish(Ok(Done { bytes: 0, matched: true, waited: Duration::ZERO, healed: 0 }), None);
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        if !self.0.is_ready() {
            self.0.release();
            let reason = "nobody is left to do it".into();
            self.0.finish(Err(TransferError::Stopped { reason }), None);
        }
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Ticket({}, {:?})", self.shared.id, self.poll())
    }
}

impl TicketShared {
    pub(super) fn new(id: u64) -> Self {
        Self {
            id,
            owner: process::id(),
            ready: AtomicBool::new(false),
            memory: AtomicU32::new(0),
            end: Mutex::new(TicketEnd {
                outcome: None,
                memory: None,
                tickets: 1,
                sleepers: 0,
                listeners: Vec::new(),
            }),
            ended: Condvar::new(),
        }
    }

    /// Begins the state anew for another transfer, once nobody follows the last one.
    pub(super) fn begin_anew(&mut self, id: u64) {
        (self.id, self.owner) = (id, process::id());
        // Nobody else has it: the order is that in which it is given away.
        self.ready.store(false, Ordering::Relaxed);
        self.memory.store(0, Ordering::Relaxed);
        let end = self.end.get_mut().unwrap_or_else(PoisonError::into_inner);
        (end.outcome, end.memory) = (None, None);
        (end.tickets, end.sleepers) = (1, 0);
        end.listeners.clear();
    }

    /// Returns whether the transfer is over.
    pub(super) fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    fn is_released(&self) -> bool {
        self.memory.load(Ordering::Acquire) & RELEASED != 0
    }

    /// The memory is the caller's again.
    pub(super) fn release(&self) {
        if self.memory.fetch_or(RELEASED, Ordering::AcqRel) == AWAITED {
            // Whoever had looked before sleeps by now, or looks once more.
            drop(self.end());
            self.ended.notify_all();
        }
    }

    /// Has the release wake whoever sleeps; the lock keeps it from doing so before that.
    fn await_release(&self) -> MutexGuard<'_, TicketEnd> {
        self.memory.fetch_or(AWAITED, Ordering::AcqRel);
        self.end()
    }

    /// The transfer is over; the memory must have been released, unless a device that does not
    /// answer has it for good.
    pub(super) fn finish(&self, outcome: TransferOutcome, memory: Option<TicketMemory>) {
        let mut end = self.end();
        let (memory, unclaimed) = if end.tickets > 0 { (memory, None) } else { (None, memory) };
        (end.outcome, end.memory) = (Some(outcome), memory);
        self.ready.store(true, Ordering::Release);
        let (sleepers, listeners) = (end.sleepers, std::mem::take(&mut end.listeners));
        drop(end);
        drop(unclaimed);
        if sleepers > 0 {
            self.ended.notify_all();
        }
        listeners.iter().filter_map(Weak::upgrade).for_each(|listener| listener.ended());
    }

    fn is_forked(&self) -> bool {
        process::id() != self.owner
    }

    fn end(&self) -> MutexGuard<'_, TicketEnd> {
        // Nothing in between its assignments panics, so none leaves it half done.
        self.end.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
