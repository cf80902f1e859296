//! A word on standard error while a command takes long: whoever waits shall know that it goes on.

use std::thread;
use std::time::{Duration, Instant};

use tidelog_command_line::complain;

/// Time that a command works before it says so, and the interval of further messages.
const EVERY: Duration = Duration::from_secs(10);

/// Says every so often how long the command has been working, until the process ends.
pub(crate) fn tell_what_takes_long() {
    let begun = Instant::now();
    let tell = move || {
        loop {
            thread::sleep(EVERY);
            let seconds = begun.elapsed().as_secs();
            complain(&format!(
                "tidelog-plan: still at work after {seconds} s (long traces take long; Ctrl-C ends it)"
            ));
        }
    };
    // Without the thread the answer is the same.
    let _ = thread::Builder::new().name("progress".to_owned()).spawn(tell);
}
