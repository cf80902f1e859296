//! Ctrl-C: the first ends the jobs, which are reported as far as they came; the second ends the
//! process.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use nix::sys::signal::{SigSet, Signal};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Takes SIGINT and SIGTERM. The threads that the calling one starts afterwards leave them alone,
/// too.
///
/// # Errors
/// No thread could be started to wait for them.
pub fn take_signals() -> std::io::Result<()> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGINT);
    signals.add(Signal::SIGTERM);
    signals.thread_block()?;
    let wait = move || {
        while let Ok(signal) = signals.wait() {
            if INTERRUPTED.swap(true, Ordering::Relaxed) {
                std::process::exit(128 + signal as i32);
            }
        }
    };
    thread::Builder::new().name("signals".into()).spawn(wait).map(drop)
}

/// Returns whether nothing more shall be begun.
pub fn is_interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}
