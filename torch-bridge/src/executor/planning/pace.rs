//! How fast a search for plans goes on beside the program.

use std::thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use tidelog_engine::memory::run_where_idle;

/// So much of a processor a search has before it makes room for others: the plan that steps wait
/// for is found in it, and most of what a search gains.
pub(super) const AT_ONCE: Duration = Duration::from_secs(1);

/// How long a search goes on before it looks at what it has found, if no step of it takes longer.
pub(super) const TURN: Duration = Duration::from_millis(2);

/// So many times as long it rests then where the kernel cannot keep it to idle processors, since
/// the ops of the training run beside it.
const RESTS: u32 = 9;

/// That of the calling thread, which searches.
pub(super) struct SearchPace {
    goes: Goes,
    turn: Instant,
}

#[derive(Clone, Copy)]
enum Goes {
    AtOnce,
    WhereIdle,
    ByTurns,
}

impl SearchPace {
    pub(super) fn new() -> Self {
        Self { goes: Goes::AtOnce, turn: Instant::now() }
    }

    /// Between two steps of the search. Rests where it is time to.
    pub(super) fn step(&mut self) {
        match self.goes {
            Goes::AtOnce if used() >= AT_ONCE => {
                self.goes = if run_where_idle().is_ok() { Goes::WhereIdle } else { Goes::ByTurns };
                self.turn = Instant::now();
            }
            Goes::ByTurns if self.turn.elapsed() >= TURN => {
                // Whoever drops the search ends the rest.
                thread::park_timeout(self.turn.elapsed() * RESTS);
                self.turn = Instant::now();
            }
            Goes::AtOnce | Goes::WhereIdle | Goes::ByTurns => {}
        }
    }
}

/// How much of a processor the calling thread has had.
fn used() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}
