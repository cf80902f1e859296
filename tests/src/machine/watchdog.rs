use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use std::io::Write;

/// Ends the process if a test takes longer than it may: nothing may hang, whatever the devices do.
#[derive(Debug)]
pub struct Watchdog(#[allow(dead_code, reason = "dropping it ends the wait")] Sender<()>);

impl Watchdog {
    /// Watches from now on, until it is dropped.
    pub fn watch(test: &'static str, limit: Duration) -> Self {
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            if receiver.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                let _ = writeln!(std::io::stderr(), "{test} HANGS: not done after {limit:?}");
                std::process::abort();
            }
        });
        Self(sender)
    }
}
