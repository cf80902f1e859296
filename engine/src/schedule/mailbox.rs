//! Mailbox by which other threads reach the reactor's.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use super::active::Active;
use super::options::SubmitError;
use super::pace::StepToken;
use super::transfer::Piece;
use crate::memory::process;
use crate::path::Waker;
use crate::sync::{Mutex, MutexGuard};

/// The reason why a mailbox is closed whose thread has ended without having been asked to.
const ENDED: &str = "its thread ended";

/// Transfers and lists that are kept for later ones: so many at first, and at most so many after a
/// rush.
const SPARES: usize = 64;
const SPARES_MAX: usize = 1024;
/// Pieces that a list has room for at first; it keeps what it grows to.
const LIST: usize = 4;

/// Message to the reactor thread.
pub(super) enum ReactorMessage {
    Begin(Box<Active>),
    Cancel(u64),
    Expedite(u64),
    /// The pages of staging memory are to go back to the kernel. Answered: whether they have.
    ReleaseStaging(SyncSender<bool>),
}

/// Mailbox for commands of other threads.
pub(super) struct Mailbox {
    owner: u32,
    inbox: Mutex<Inbox>,
    waker: Waker,
    /// Token by which the reactor takes turns with its callers.
    step_token: Option<StepToken>,
}

struct Inbox {
    commands: VecDeque<ReactorMessage>,
    closed: Option<String>,
    /// Time at which the reactor ends, whatever is in flight then.
    ends_at: Option<Instant>,
    /// The reactor thread is gone: nobody will empty this any more.
    abandoned: bool,
    /// Transfers that have ended, the oldest first: its ticket is the least likely to be still
    /// held.
    spares: VecDeque<Box<Active>>,
    lists: Vec<Vec<Piece>>,
}

impl Default for Inbox {
    fn default() -> Self {
        // With loom a ticket is a thing of one run, and one that is used again hides what came of
        // the first.
        let spares = if cfg!(loom) { 0 } else { SPARES };
        Self {
            commands: VecDeque::with_capacity(spares),
            closed: None,
            ends_at: None,
            abandoned: false,
            spares: (0..spares).map(|_| Box::new(Active::spare())).collect(),
            lists: (0..spares).map(|_| Vec::with_capacity(LIST)).collect(),
        }
    }
}

/// Progress of a reactor towards its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Closing {
    /// No transfer is taken any more.
    pub(super) closed: bool,
    /// Time of the end, whatever is in flight.
    pub(super) ends_at: Option<Instant>,
}

impl Mailbox {
    pub(super) fn new(waker: Waker, stepped: bool) -> Self {
        let step_token = stepped.then(StepToken::default);
        Self { owner: process::id(), inbox: Mutex::new(Inbox::default()), waker, step_token }
    }

    pub(super) fn step_token(&self) -> Option<&StepToken> {
        self.step_token.as_ref()
    }

    /// A list for the pieces of a transfer.
    pub(super) fn list(&self) -> Vec<Piece> {
        self.inbox().lists.pop().unwrap_or_default()
    }

    /// A transfer that has ended, for another one.
    pub(super) fn spare(&self) -> Box<Active> {
        let spare = self.inbox().spares.pop_front();
        spare.unwrap_or_else(|| Box::new(Active::spare()))
    }

    /// Processes a transfer, for a reactor that is awake or will be woken.
    pub(super) fn begin(&self, active: Box<Active>) -> Result<(), SubmitError> {
        let mut inbox = self.inbox();
        if let Some(reason) = inbox.closed.clone() {
            // The caller learns it from the error; nobody else may learn of a transfer that never
            // was.
            drop(inbox);
            active.disown();
            return Err(SubmitError::Stopped(reason));
        }
        inbox.commands.push_back(ReactorMessage::Begin(active));
        Ok(())
    }

    /// Wakes the reactor thread if it sleeps.
    pub(super) fn wake(&self) {
        self.waker.wake();
    }

    /// Wakes the reactor thread if it sleeps although there is something for it.
    pub(super) fn wake_for_news(&self) {
        if !self.is_forked() && !self.inbox().commands.is_empty() {
            self.waker.wake();
        }
    }

    /// Returns the reason why no transfer would be taken now, if that is so.
    pub(super) fn refusal(&self) -> Option<SubmitError> {
        if self.is_forked() {
            return Some(SubmitError::Forked);
        }
        self.inbox().closed.clone().map(SubmitError::Stopped)
    }

    pub(super) fn send(&self, command: ReactorMessage) {
        if self.is_forked() {
            return;
        }
        let mut inbox = self.inbox();
        if !inbox.abandoned {
            inbox.commands.push_back(command);
        }
        drop(inbox);
        self.waker.wake();
    }

    /// Takes no transfers from now on.
    pub(super) fn close(&self, reason: &str) {
        self.refuse(reason);
        self.waker.wake();
        self.step_token().inspect(|step_token| step_token.release());
    }

    /// Has the reactor end at this time, or before. It goes on as usual until then.
    pub(super) fn end_at(&self, time: Instant) {
        let mut inbox = self.inbox();
        inbox.ends_at = Some(inbox.ends_at.map_or(time, |other| other.min(time)));
        drop(inbox);
        self.waker.wake();
    }

    fn refuse(&self, reason: &str) {
        self.inbox().closed.get_or_insert_with(|| reason.into());
    }

    /// Closes for good, when the reactor thread ends in whatever way. Transfers that it never saw
    /// end as stopped.
    fn abandon(&self) {
        let mut inbox = self.inbox();
        inbox.closed.get_or_insert_with(|| ENDED.into());
        inbox.abandoned = true;
        let left = std::mem::take(&mut inbox.commands);
        drop(inbox);
        drop(left);
        self.step_token().inspect(|step_token| step_token.release());
    }

    /// Moves the commands to `target` (empty), and processes transfers that have ended.
    pub(super) fn empty_into(
        &self,
        target: &mut VecDeque<ReactorMessage>,
        ended: &mut VecDeque<Box<Active>>,
    ) -> Closing {
        let mut inbox = self.inbox();
        std::mem::swap(&mut inbox.commands, target);
        let room = SPARES_MAX.saturating_sub(inbox.spares.len());
        for mut active in ended.drain(..).take(room) {
            let list = active.take_list();
            // Some transfers come with lists of their own.
            if inbox.lists.len() < SPARES_MAX {
                inbox.lists.push(list);
            }
            inbox.spares.push_back(active);
        }
        inbox.closing()
    }

    /// Returns whether the reactor has reason not to sleep.
    pub(super) fn has_news(&self, known: Closing) -> bool {
        let inbox = self.inbox();
        !inbox.commands.is_empty() || inbox.closing() != known
    }

    pub(super) fn is_forked(&self) -> bool {
        process::id() != self.owner
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        // Whole between any two statements, so a panic elsewhere cannot spoil it.
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inbox {
    fn closing(&self) -> Closing {
        Closing { closed: self.closed.is_some(), ends_at: self.ends_at }
    }
}

/// Has the mailbox refuse transfers from the moment in which the thread ends, in whatever way:
/// whoever hears of a transfer that ended with the thread finds that there are no others.
pub(super) struct Refuse(Arc<Mailbox>);

impl Refuse {
    pub(super) fn new(mailbox: &Arc<Mailbox>) -> Self {
        Self(Arc::clone(mailbox))
    }
}

impl Drop for Refuse {
    fn drop(&mut self) {
        self.0.refuse(ENDED);
    }
}

/// The reactor thread's handle: closes the mailbox when the thread ends, in whatever way.
pub(super) struct Abandon(Arc<Mailbox>);

impl Abandon {
    pub(super) fn new(mailbox: &Arc<Mailbox>) -> Self {
        Self(Arc::clone(mailbox))
    }
}

impl Deref for Abandon {
    type Target = Mailbox;

    fn deref(&self) -> &Mailbox {
        &self.0
    }
}

impl Drop for Abandon {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn lists_that_transfers_bring_do_not_pile_up() {
        let mailbox = Mailbox::new(Waker::new().unwrap(), false);
        for _ in 0..3 * SPARES_MAX {
            let mut ended = VecDeque::from([mailbox.spare()]);
            mailbox.empty_into(&mut VecDeque::new(), &mut ended);
        }
        let inbox = mailbox.inbox();
        assert!(inbox.lists.len() <= SPARES_MAX && inbox.spares.len() <= SPARES_MAX);
    }
}
