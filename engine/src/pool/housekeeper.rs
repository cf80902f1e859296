//! Background work of a pool: it reclaims ahead of need, makes again what a device had that was
//! replaced, scrubs at a rate, and tells idle block devices which segments are free.
//!
//! One thread does all of it, asleep while there is nothing to do. Each chore is a call of its own,
//! so that a simulation does them when it says; pools on simulated disks have no such thread.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::error::{ReclaimError, Unusable};
use super::options::Housekeeping;
use super::rebuild::Rebuild;
use super::reclaim::Reclaimed;
use super::reshape::ReshapeError;
use super::scrub::Pass;
use super::{Pool, discard};
use crate::log::Wanted;
use crate::schedule::Reactor;
use crate::units::ByteCount;

/// A pool that has moved nothing for this long is idle.
const IDLE: Duration = Duration::from_secs(1);

/// Pause between two passes over a pool, and between two looks at whether it is idle.
const PAUSE: Duration = Duration::from_secs(1);

/// Wakeup of the thread.
#[derive(Default)]
pub(super) struct Wakeup {
    state: Mutex<BellState>,
    changed: Condvar,
    /// Free segments when it was rung last: it is not rung again until that changes.
    spare: AtomicU32,
}

#[derive(Default)]
struct BellState {
    rung: bool,
    stop: bool,
}

impl Wakeup {
    /// Free segments are getting scarce.
    pub(super) fn ring(&self, spare: u32) {
        if self.spare.swap(spare + 1, Ordering::Relaxed) != spare + 1 {
            self.state().rung = true;
            self.changed.notify_all();
        }
    }

    fn stop(&self) {
        self.state().stop = true;
        self.changed.notify_all();
    }

    /// Sleeps until it is rung, or for this long; `false` if the thread is to end.
    fn wait(&self, pause: Option<Duration>) -> bool {
        let state = self.state();
        let asleep = |state: &mut BellState| !state.rung && !state.stop;
        let mut state = match pause {
            None => self.changed.wait_while(state, asleep).unwrap_or_else(PoisonError::into_inner),
            Some(pause) => {
                let woken = self.changed.wait_timeout_while(state, pause, asleep);
                woken.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        state.rung = false;
        !state.stop
    }

    fn stopped(&self) -> bool {
        self.state().stop
    }

    fn state(&self) -> MutexGuard<'_, BellState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread.
pub(super) struct Housekeeper {
    wakeup: Arc<Wakeup>,
    thread: JoinHandle<()>,
}

impl Housekeeper {
    /// Starts the housekeeper. `pool` must not be a handle that keeps the pool open.
    pub(super) fn start(pool: Pool, options: Housekeeping) -> std::io::Result<Self> {
        let wakeup = Arc::clone(&pool.0.shared.wakeup);
        let thread = std::thread::Builder::new()
            .name("tidelog-housekeeper".into())
            .spawn(move || Keeping::new(pool, options).run())?;
        Ok(Self { wakeup, thread })
    }

    /// Stops the housekeeper, after what it is at.
    pub(super) fn stop(self) {
        self.wakeup.stop();
        // If it panicked, everything it held was given back on its way out.
        let _ = self.thread.join();
    }
}

impl Pool {
    /// Reclaims one segment if free segments are getting scarce and one is worth it before it is
    /// needed.
    pub fn reclaim_ahead(&self) -> Result<Option<Reclaimed>, ReclaimError> {
        let reactor = self.reactor()?;
        let reactor = reactor.as_ref().ok_or(Unusable::Closed)?;
        let turn = self.reclaim_turn();
        if self.is_read_only() || !self.0.shared.contents().space_is_scarce() {
            return Ok(None);
        }
        turn.reclaim(reactor, Wanted::WORTHWHILE)
    }
}

/// State of the thread between two passes.
struct Keeping {
    pool: Pool,
    options: Housekeeping,
    /// Operations that the pool had done, and when that last changed.
    operations: u64,
    active: Instant,
    pass: Pass,
    next_scrub: Instant,
    rebuilding: Rebuilding,
}

/// State of a device that is made again.
enum Rebuilding {
    Unknown,
    Copying(Rebuild),
    /// End of the copying: the superblocks are to say that the pool is whole.
    Copied(Rebuild),
    Ended,
}

impl Keeping {
    fn new(pool: Pool, options: Housekeeping) -> Self {
        let now = Instant::now();
        let (pass, rebuilding) = (Pass::default(), Rebuilding::Unknown);
        Self { pool, options, operations: 0, active: now, pass, next_scrub: now, rebuilding }
    }

    fn run(mut self) {
        let wakeup = Arc::clone(&self.pool.0.shared.wakeup);
        loop {
            let pause = self.look(&wakeup);
            if !wakeup.wait(pause) {
                break;
            }
        }
    }

    /// Does what is to be done; returns when to look again, if not only when it is woken.
    fn look(&mut self, wakeup: &Wakeup) -> Option<Duration> {
        while !wakeup.stopped() {
            match self.pool.reclaim_ahead() {
                // That segment is not chosen again.
                Ok(Some(_)) | Err(ReclaimError::Unreadable { .. }) => (),
                // Whoever needs the space is told.
                Ok(None) | Err(_) => break,
            }
        }
        let chores = [self.rebuild(wakeup), self.scrub(wakeup), self.discard(wakeup)];
        chores.into_iter().flatten().min()
    }

    /// Goes on with a device that is made again, for a turn; returns when more of it is due.
    fn rebuild(&mut self, wakeup: &Wakeup) -> Option<Duration> {
        /// Time after which others have their turn.
        const TURN: Duration = Duration::from_millis(50);
        let turn = Instant::now();
        while !wakeup.stopped() {
            let rebuilding = std::mem::replace(&mut self.rebuilding, Rebuilding::Ended);
            let next = match rebuilding {
                Rebuilding::Ended => return None,
                Rebuilding::Unknown => {
                    let begun = self.pool.rebuild(self.options.rebuild_rate);
                    begun.map(|it| it.map_or(Rebuilding::Ended, Rebuilding::Copying))
                }
                Rebuilding::Copying(rebuild)
                    if turn.elapsed() > TURN || !rebuild.due().is_zero() =>
                {
                    let due = rebuild.due();
                    self.rebuilding = Rebuilding::Copying(rebuild);
                    return Some(due);
                }
                Rebuilding::Copying(mut rebuild) => match rebuild.step() {
                    Ok(Some(_)) => Ok(Rebuilding::Copying(rebuild)),
                    Ok(None) => Ok(Rebuilding::Copied(rebuild)),
                    Err(error) => Err(error),
                },
                Rebuilding::Copied(rebuild) => match rebuild.finish() {
                    // They may be dropped.
                    Err(error @ ReshapeError::Lost(_)) => {
                        self.pool.note_rebuild_error(&error);
                        self.rebuilding = Rebuilding::Copied(rebuild);
                        return Some(PAUSE);
                    }
                    ended => ended.map(|()| Rebuilding::Ended),
                },
            };
            match next {
                Ok(next) => self.rebuilding = next,
                // The next opening begins again.
                Err(error) => self.pool.note_rebuild_error(&error),
            }
        }
        None
    }

    /// Scrubs as much as the rate allows; returns when more is due, if scrubbing is on.
    fn scrub(&mut self, wakeup: &Wakeup) -> Option<Duration> {
        let rate = self.options.scrub_rate;
        if rate == ByteCount::ZERO {
            return None;
        }
        while !wakeup.stopped() && Instant::now() >= self.next_scrub {
            let start = Instant::now();
            let mut cost = PAUSE;
            if let Ok(Some(scrubbed)) = self.pool.scrub_next(&mut self.pass) {
                cost = scrubbed.length.time_at(rate);
            } else {
                self.pass = self.pool.scrub_pass();
            }
            self.next_scrub = self.next_scrub.max(start) + cost;
        }
        Some(self.next_scrub.saturating_duration_since(Instant::now()))
    }

    /// Discards free segments while the pool is idle; returns when to look again, if any can be
    /// told.
    fn discard(&mut self, wakeup: &Wakeup) -> Option<Duration> {
        if !discard::is_possible(self.pool.reactor().ok()?.as_ref()?) {
            return None;
        }
        while !wakeup.stopped() && self.is_idle() {
            // Advice: where it fails, nothing is lost.
            if !matches!(self.pool.discard_once(), Ok(Some(_))) {
                break;
            }
        }
        Some(PAUSE)
    }

    fn is_idle(&mut self) -> bool {
        let Ok(reactor) = self.pool.reactor() else { return false };
        let Some(stats) = reactor.as_ref().map(Reactor::stats) else { return false };
        let operations = stats.devices.iter().map(|device| device.reads + device.writes).sum();
        if operations != self.operations {
            (self.operations, self.active) = (operations, Instant::now());
        }
        self.active.elapsed() >= IDLE
    }
}
