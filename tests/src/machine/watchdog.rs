use std::io::Write;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Ends the process if a test takes longer than it may: nothing may hang, whatever the devices do.
#[derive(Debug)]
pub struct Watchdog {
    /// Action in progress, for reports.
    doing: Arc<Mutex<Option<&'static str>>>,
    #[allow(dead_code, reason = "dropping it ends the wait")]
    over: Sender<()>,
}

impl Watchdog {
    /// Watches from now on, until it is dropped.
    pub fn watch(test: &'static str, limit: Duration) -> Self {
        let (over, receiver) = channel();
        let doing = Arc::new(Mutex::new(None));
        let last = Arc::clone(&doing);
        std::thread::spawn(move || {
            if receiver.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                let doing = *last.lock().unwrap_or_else(PoisonError::into_inner);
                let doing = doing.map_or_else(String::new, |doing| format!(", as {doing}"));
                let mut errors = std::io::stderr();
                let _ = writeln!(errors, "{test} HANGS: not done after {limit:?}{doing}");
                std::process::abort();
            }
        });
        Self { doing, over }
    }

    /// Notes the action in progress, for the report of a hang.
    pub fn note(&self, doing: &'static str) {
        *self.doing.lock().unwrap_or_else(PoisonError::into_inner) = Some(doing);
    }
}
