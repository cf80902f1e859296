//! The loop of a session that has callbacks: it performs what the session asks for, and waits,
//! until the session is ready.
//!
//! The session is looked up anew for each step of the loop, and no lock is held while a callback
//! runs: a callback may close the session, or fork.

use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

use super::boundary;
use super::callbacks::Callbacks;
use super::session::SESSIONS;
use crate::error::{Failure, FailureKind};
use crate::executor::{Readiness, Session};

/// A session that C has open.
pub(super) struct OpenSession {
    session: Session,
    driver: Mutex<Driver>,
}

/// Driver of a session's requests.
#[derive(Default)]
struct Driver {
    /// `None`: the caller, between its calls.
    callbacks: Option<Callbacks>,
    /// The thread whose loops run.
    thread: Option<ThreadId>,
    /// Number of ops around each loop that runs, the outermost loop first.
    depths: Vec<usize>,
}

impl OpenSession {
    pub(super) fn new(session: Session) -> Self {
        Self { session, driver: Mutex::default() }
    }

    fn driver(&self) -> MutexGuard<'_, Driver> {
        self.driver.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Deref for OpenSession {
    type Target = Session;

    fn deref(&self) -> &Session {
        &self.session
    }
}

/// Replaces a session's callbacks.
pub(super) fn drive_with(
    handle: u64,
    callbacks: impl FnOnce() -> Result<Option<Callbacks>, Failure>,
) -> i32 {
    boundary(|| {
        let session = SESSIONS.get(handle)?;
        let callbacks = callbacks()?;
        session.driver().callbacks = callbacks;
        Ok(())
    })
}

/// Reports an event to a session. Where it has callbacks, it is ready afterwards.
pub(super) fn driven(
    handle: u64,
    event: impl FnOnce(&Session) -> Result<Readiness, Failure>,
) -> i32 {
    boundary(|| match Loop::begin(handle)? {
        Some(running) => running.until_ready(event(&*running.session()?)?),
        None => event(&*SESSIONS.get(handle)?),
    })
}

/// Waits at most so long for a completion, and for the rest as after an event.
pub(super) fn wait_driven(handle: u64, timeout: Duration) -> i32 {
    boundary(|| match Loop::begin(handle)? {
        Some(running) => running.until_ready(running.wait(timeout)?),
        None => SESSIONS.get(handle)?.wait(timeout),
    })
}

/// A loop that runs.
struct Loop {
    handle: u64,
    callbacks: Callbacks,
}

impl Loop {
    /// `None` where the session has no callbacks.
    fn begin(handle: u64) -> Result<Option<Self>, Failure> {
        let session = SESSIONS.get(handle)?;
        let mut driver = session.driver();
        let Some(callbacks) = driver.callbacks else { return Ok(None) };
        let (thread, depth) = (thread::current().id(), session.depth());
        if driver.thread.is_some_and(|other| other != thread) {
            return Err(Failure::new(
                FailureKind::Busy,
                "another thread is in the middle of a call of this session: one thread at a time \
                 has it move storages",
            ));
        }
        if driver.depths.last().is_some_and(|&around| depth <= around) {
            return Err(Failure::new(
                FailureKind::Busy,
                "a callback of this session has not returned: call tide_session_nest before what \
                 is inside it",
            ));
        }
        driver.thread = Some(thread);
        driver.depths.push(depth);
        drop(driver);
        Ok(Some(Self { handle, callbacks }))
    }

    fn session(&self) -> Result<Arc<OpenSession>, Failure> {
        SESSIONS.get(self.handle)
    }

    fn until_ready(&self, mut readiness: Readiness) -> Result<Readiness, Failure> {
        loop {
            readiness = match readiness {
                Readiness::Ready => return Ok(readiness),
                Readiness::Requests => {
                    self.perform()?;
                    self.session()?.resume()?
                }
                Readiness::Waiting => self.wait(Duration::MAX)?,
            };
        }
    }

    /// Performs the requests that there are, and those that they lead to.
    fn perform(&self) -> Result<(), Failure> {
        while let Some(request) = self.session()?.next_request() {
            match self.callbacks.perform(&request) {
                Ok(memory) => self.session()?.request_done(&memory)?,
                Err(failure) => {
                    // The callback may have closed the session.
                    if let Ok(session) = self.session() {
                        session.request_cut_short(request.sequence);
                    }
                    return Err(failure);
                }
            }
        }
        Ok(())
    }

    /// Waits for a completion, at most so long, and looks again.
    fn wait(&self, at_most: Duration) -> Result<Readiness, Failure> {
        let session = self.session()?;
        let slice = self.callbacks.wait_begins()?;
        // Whatever comes of the wait, the caller takes back what it has given up for it.
        let waited = catch_unwind(AssertUnwindSafe(|| match slice {
            Some(slice) => session.wait(slice.min(at_most)),
            None => session.wait_or_refuse(),
        }));
        let ended = self.callbacks.wait_ends();
        let waited = waited.unwrap_or_else(|panic| resume_unwind(panic));
        let Err(interruption) = ended else { return waited };
        // To who resumes, an op that was refused must not seem to be granted.
        if let Err(failure) = waited
            && let Ok(session) = self.session()
        {
            session.hold(failure);
        }
        Err(interruption)
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        // The session may be closed by now, or its parent's, whose locks are not to be waited for.
        if let Ok(session) = self.session() {
            let mut driver = session.driver();
            driver.depths.pop();
            if driver.depths.is_empty() {
                driver.thread = None;
            }
        }
    }
}
