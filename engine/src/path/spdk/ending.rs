//! The end of the process: DPDK's destructor unmaps the queue pairs that threads poll, and the
//! memory that they copy and compare. So whoever polls is halted before.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::environment::Environment;
use crate::path::Waker;

/// Longer than a thread stays away from its path.
const TIMEOUT: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(1);

static ENDING: AtomicBool = AtomicBool::new(false);
/// The paths whose threads have not halted.
static POLLED: Mutex<BTreeMap<u64, Waker>> = Mutex::new(BTreeMap::new());

/// A path, as long as a thread may poll it.
pub(super) struct Polled(u64);

impl Polled {
    /// The path of this waker.
    pub(super) fn new(waker: &Waker) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        polled().insert(number, waker.clone());
        Self(number)
    }

    /// Called by its thread, again and again. Does not return once the process ends.
    pub(super) fn go_on(&self) {
        if ENDING.load(Ordering::Relaxed) {
            self.halt();
        }
    }

    #[cold]
    fn halt(&self) -> ! {
        polled().remove(&self.0);
        loop {
            std::thread::park();
        }
    }
}

impl Drop for Polled {
    fn drop(&mut self) {
        polled().remove(&self.0);
    }
}

fn polled() -> MutexGuard<'static, BTreeMap<u64, Waker>> {
    POLLED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Destructors without a priority run before DPDK's, which has one, and after all that a program
/// has asked for at its exit: a pool can still be closed there.
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

extern "C" fn end() {
    // A forked child has none of the threads.
    let Some(environment) = Environment::of_this_process() else { return };
    ENDING.store(true, Ordering::Relaxed);
    let until = Instant::now() + TIMEOUT;
    while halt_some() && Instant::now() < until {
        std::thread::sleep(PAUSE);
    }
    // The admin thread cannot have ended; if it has, it polls nothing.
    let _ = environment.ask(|admin_thread, left| {
        admin_thread.leave();
        let _ = left.send(());
    });
}

/// Wakes whoever has not halted. Returns whether there is anybody.
fn halt_some() -> bool {
    let polled = polled();
    polled.values().for_each(Waker::wake);
    !polled.is_empty()
}
