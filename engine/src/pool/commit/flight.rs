//! A step of the pipeline on its way to devices.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};

use super::Commits;
use crate::schedule::{ControlError, Finish, SubmitError, Ticket, TransferError};

/// Sends what a transfer came to, then takes the pipeline on; the latter also where it is dropped
/// without having been sent anything, because the reactor ended in a panic.
pub(in crate::pool) struct ResultSender<T> {
    // Dropped in this order: whoever is woken finds the channel as it stays.
    send: SyncSender<T>,
    _wake: Wake,
}

struct Wake(Arc<Commits>);

impl Drop for Wake {
    fn drop(&mut self) {
        self.0.advance();
    }
}

impl<T> ResultSender<T> {
    pub(in crate::pool) fn tell(self, what: T) {
        // Who does not listen any more need not be told.
        let _ = self.send.send(what);
    }
}

/// Makes both ends of a channel for a result.
pub(in crate::pool) fn told<T>(commits: &Arc<Commits>) -> (ResultSender<T>, Receiver<T>) {
    let (send, told) = sync_channel(1);
    (ResultSender { send, _wake: Wake(Arc::clone(commits)) }, told)
}

/// Returns the result, if it was sent: the reactor never goes without an answer, except into a
/// panic.
pub(super) fn answer<T>(
    told: &Receiver<Result<T, TransferError>>,
) -> Option<Result<T, TransferError>> {
    match told.try_recv() {
        Ok(outcome) => Some(outcome),
        Err(TryRecvError::Empty) => None,
        Err(TryRecvError::Disconnected) => {
            Some(Err(TransferError::Stopped { reason: "its thread ended".into() }))
        }
    }
}

/// A write or flush in flight. One that was refused has done nothing.
pub(super) enum CommitIo {
    Refused(SubmitError),
    Begun(Receiver<Result<(), TransferError>>),
}

impl CommitIo {
    /// Has `submit` begin it.
    pub(super) fn begin(
        commits: &Arc<Commits>,
        submit: impl FnOnce(Finish) -> Result<Ticket, SubmitError>,
    ) -> Self {
        let (tell, told) = told(commits);
        let finish = Finish::new(move |result| tell.tell(result.outcome.map(drop)));
        match submit(finish) {
            Ok(_) => Self::Begun(told),
            Err(refused) => Self::Refused(refused),
        }
    }

    /// Returns the result, if it has ended. Answered once.
    pub(super) fn end(&self) -> Option<Result<(), ControlError>> {
        match self {
            Self::Refused(refused) => Some(Err(refused.clone().into())),
            Self::Begun(told) => Some(answer(told)?.map_err(ControlError::from)),
        }
    }
}
