//! Speed of a search for plans beside the program.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Processor time of a search before it makes room for others: the plan that steps wait for is
/// found in it, and most of what a search gains.
pub(super) const AT_ONCE: Duration = Duration::from_secs(1);

/// Processor time of a search before it checks what it has found, if no step of it takes longer.
pub(super) const TURN: Duration = Duration::from_millis(2);

/// Length of a rest, in turns, where others want its processor: the ops of the training run beside
/// it.
const RESTS: u32 = 9;

/// Part of a turn, 1 / this, beyond which a wait for a processor shows that another thread wants
/// it.
const ALONE_PARTS: u32 = 20;

/// Speed of the calling thread, which searches.
pub(super) struct SearchPace {
    turn: Instant,
    waited: Option<Duration>,
}

impl SearchPace {
    pub(super) fn new() -> Self {
        Self { turn: Instant::now(), waited: waited() }
    }

    /// Rests between two steps of the search. Rests where it is time to.
    pub(super) fn step(&mut self) {
        let took = self.turn.elapsed();
        if took < TURN || used() < AT_ONCE {
            return;
        }
        if !was_alone(self.waited, waited(), took) {
            // Whoever drops the search ends the rest.
            thread::park_timeout(took * RESTS);
        }
        *self = Self::new();
    }
}

/// Returns whether nobody else wanted the thread's processor in a turn that took so long: it has
/// hardly waited for one. Where the kernel does not say, somebody did.
fn was_alone(before: Option<Duration>, after: Option<Duration>, took: Duration) -> bool {
    let waited = before.zip(after).map(|(before, after)| after.saturating_sub(before));
    waited.is_some_and(|waited| waited <= took / ALONE_PARTS)
}

/// Returns the time that the calling thread has waited for a processor while it could run
/// (schedstat of proc(5)). So it does, too, where a control group has used up its time.
fn waited() -> Option<Duration> {
    let figures = fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    Some(Duration::from_nanos(figures.split(' ').nth(1)?.parse().ok()?))
}

/// Returns the processor time of the calling thread.
fn used() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_waited_or_cannot_know_is_not_alone() {
        let at = |milliseconds| Some(Duration::from_millis(milliseconds));
        let took = Duration::from_millis(40);
        assert!(was_alone(at(100), at(100), took) && was_alone(at(100), at(102), took));
        assert!(!was_alone(at(100), at(103), took));
        assert!(!was_alone(None, at(100), took) && !was_alone(at(100), None, took));
    }

    #[test]
    fn a_thread_that_shares_its_processor_has_waited() {
        let count = 2 * thread::available_parallelism().unwrap().get();
        let spins = || {
            let (began, before) = (Instant::now(), waited());
            while began.elapsed() < Duration::from_millis(300) {}
            before.zip(waited()).map(|(before, after)| after.saturating_sub(before))
        };
        let spinning: Vec<_> = (0..count).map(|_| thread::spawn(spins)).collect();
        let waits: Option<Duration> = spinning.into_iter().map(|each| each.join().unwrap()).sum();
        // A kernel without the file says nothing.
        assert!(waits.is_none_or(|waits| waits > Duration::from_millis(150)), "{waits:?}");
    }
}
