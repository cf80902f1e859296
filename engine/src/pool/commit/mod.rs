//! Commits: from batches and moves whose bytes are written to an index on the media that says so.
//!
//! ```text
//! started ─> waiting ─────> flushing ──────> flushed ─────────> recording ────> durable, applied
//!            for its        of the devices   gathers while the  of one record:
//!            writes         it touched       one before records on the medium
//! ```
//!
//! Commits move through this in the order in which they were started, as many together as have
//! arrived: one round of flushes and one record for all of them (group commit). While one group's
//! record is on its way the next one's data is flushed and a third gathers. Records go one after
//! the other, because recovery takes a record behind a gap for damage, and each completes its group
//! only once it is on the medium: so what a crash leaves is always the commits up to some one, each
//! whole.
//!
//! Nothing here has a thread. What ends on a device takes the pipeline a step on, on the reactor's
//! thread; whoever starts a commit does so on his own.

mod flight;
mod pipeline;
mod work;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::Duration;

use super::Shared;
use super::error::{CommitError, Unusable};
use super::options::CommitStats;
use crate::layout::{LogMark, TensorId};
use crate::log::{ChangeLog, StripeMap};
use crate::memory::process;
use crate::schedule::{ControlError, Promise, Submitter, Ticket, TransferError, TransferOutcome};
use crate::units::DeviceSet;
pub(super) use flight::told;
use pipeline::Pipeline;
pub(super) use work::{SealChange, StagedPut, Work, WrittenPut};

/// Time for which closing waits for the commits that were started.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(30);

/// A commit in flight. It may be polled, waited for, or dropped at any time: dropping it detaches,
/// the commit goes on. Clones follow the same commit.
///
/// Commits become durable in the order in which they were started: when one has ended well, so has
/// every one before it that can. Closing the pool waits for all of them.
#[derive(Clone)]
pub struct Commit {
    opener: u32,
    ticket: Ticket,
    outcome: Arc<OnceLock<Result<usize, CommitError>>>,
}

impl Commit {
    /// Returns the result of the commit, or `None` while it has not ended. `Ok` means that its
    /// changes survive any crash, and that they can be seen.
    pub fn poll(&self) -> Option<Result<(), CommitError>> {
        match self.forked() {
            Some(forked) => Some(Err(forked)),
            None => self.outcome.get().map(|outcome| outcome.clone().map(drop)),
        }
    }

    /// Waits for the end.
    pub fn wait(&self) -> Result<(), CommitError> {
        self.tensors().map(drop)
    }

    /// Waits for the end, at most `timeout`.
    pub fn wait_timeout(&self, timeout: Duration) -> Option<Result<(), CommitError>> {
        self.poll().or_else(|| {
            let ended = self.ticket.wait_timeout(timeout)?;
            Some(self.outcome_after(ended).map(drop))
        })
    }

    /// Ends with the commit, for [`Ticket::wait_any`] and [`Ticket::listen`]. How the commit ended
    /// is not for it to tell.
    pub fn ticket(&self) -> &Ticket {
        &self.ticket
    }

    /// Waits for the end; returns how many tensors it changed.
    pub(super) fn tensors(&self) -> Result<usize, CommitError> {
        if let Some(forked) = self.forked() {
            return Err(forked);
        }
        if let Some(outcome) = self.outcome.get() {
            return outcome.clone();
        }
        self.outcome_after(self.ticket.wait())
    }

    /// Returns the result of the commit, once its ticket has ended.
    fn outcome_after(&self, ended: TransferOutcome) -> Result<usize, CommitError> {
        // Only a commit whose pool was torn down around it, or that nothing moves, has no outcome
        // now.
        let stopped = || TransferError::Stopped { reason: "its pool is gone".into() };
        let lost = || ControlError::Transfer(ended.err().unwrap_or_else(stopped));
        self.outcome.get().cloned().unwrap_or_else(|| Err(CommitError::InDoubt(lost())))
    }

    fn forked(&self) -> Option<CommitError> {
        let opener = self.opener;
        let forked = process::id() != opener;
        forked.then_some(CommitError::Unusable(Unusable::Forked { opener }))
    }
}

impl fmt::Debug for Commit {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Commit({:?})", self.poll())
    }
}

/// A commit as the pipeline holds it. Dropped without being ended, it is in doubt.
struct Pending {
    work: Work,
    /// Devices that hold its bytes; known once they are written.
    touched: DeviceSet,
    commit: Commit,
    promise: Promise,
}

impl Pending {
    /// Tells everybody how it ended. What it held and did not use is given back first.
    fn end(self, outcome: Result<usize, CommitError>) {
        let Self { work, commit, promise, .. } = self;
        drop(work);
        // Ended once, by value.
        let _ = commit.outcome.set(outcome);
        promise.keep();
    }
}

/// All commits of an open share.
pub(super) struct Commits {
    opener: u32,
    submitter: Submitter,
    shared: Arc<Shared>,
    stripes: StripeMap,
    pipeline: Mutex<Pipeline>,
    /// True if something has ended that the pipeline has not looked at.
    news: AtomicBool,
}

impl Commits {
    pub(super) fn new(
        submitter: Submitter,
        shared: Arc<Shared>,
        stripes: StripeMap,
        log: ChangeLog,
    ) -> Arc<Self> {
        let pipeline = Mutex::new(Pipeline::new(log, submitter.capabilities()));
        let (opener, news) = (process::id(), AtomicBool::new(false));
        Arc::new(Self { opener, submitter, shared, stripes, pipeline, news })
    }

    /// Starts a commit behind those that were started before.
    pub(super) fn start(self: &Arc<Self>, work: Work) -> Commit {
        let (ticket, promise) = self.submitter.promise();
        let commit = Commit { opener: self.opener, ticket, outcome: Arc::default() };
        let pending =
            Pending { work, touched: DeviceSet::default(), commit: commit.clone(), promise };
        self.pipeline().admit(pending);
        self.advance();
        commit
    }

    /// Returns whether the last commit in flight that names this tensor leaves one; `None` if none
    /// names it.
    pub(super) fn outcome(self: &Arc<Self>, id: TensorId) -> Option<bool> {
        let outcome = self.pipeline().outcome(id);
        self.catch_up();
        outcome
    }

    /// Returns whether the last commit in flight that names this seal leaves one; `None` if none
    /// names it.
    pub(super) fn seal_outcome(self: &Arc<Self>, name: &str) -> Option<bool> {
        let outcome = self.pipeline().seal_outcome(name);
        self.catch_up();
        outcome
    }

    pub(super) fn stats(self: &Arc<Self>) -> CommitStats {
        let stats = self.pipeline().stats();
        self.catch_up();
        stats
    }

    /// Takes no more commits, and waits for those that were started.
    pub(super) fn close(self: &Arc<Self>) {
        loop {
            let last = self.pipeline().close();
            self.catch_up();
            let Some(last) = last else { return };
            last.ticket.wait_timeout(CLOSE_TIMEOUT);
            if last.outcome.get().is_none() {
                // It does not end well when the reactor stops.
                return;
            }
        }
    }

    /// Returns the reason why only opening the pool again shows what is on the media, if that is
    /// so.
    pub(super) fn doubt(self: &Arc<Self>) -> Option<String> {
        self.catch_up();
        self.pipeline().doubt()
    }

    /// Returns the mark of the change log's end.
    pub(super) fn mark(self: &Arc<Self>) -> LogMark {
        self.catch_up();
        self.pipeline().mark()
    }

    fn touched(&self, work: &Work) -> DeviceSet {
        work.devices(&self.stripes)
    }

    /// Advances the pipeline as far as it goes now. Never waits, so that it may be called anywhere,
    /// also by what is dropped while the pipeline is locked: whoever has the lock looks again once
    /// it let go.
    fn advance(self: &Arc<Self>) {
        self.news.store(true, Ordering::SeqCst);
        self.catch_up();
    }

    fn catch_up(self: &Arc<Self>) {
        loop {
            // Between the news and the lock on one side, the lock and the news on the other: one of
            // two threads sees what the other did.
            fence(Ordering::SeqCst);
            if !self.news.load(Ordering::SeqCst) {
                return;
            }
            let mut pipeline = match self.pipeline.try_lock() {
                Ok(pipeline) => pipeline,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return,
            };
            self.news.store(false, Ordering::SeqCst);
            pipeline.run(self);
        }
    }

    /// Callers look for news once they have let go of it.
    fn pipeline(&self) -> MutexGuard<'_, Pipeline> {
        // A panic within it leaves what was being committed in doubt, as a failure does.
        self.pipeline.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
