//! Capture of SPDK's log. It prints by itself, and says in an answer only that something failed; so
//! its lines are kept for the error that they explain. What nobody listens to is printed, errors
//! only.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ffi::{CStr, c_char};
use std::io::Write;

use tidelog_spdk_sys as sys;

/// The last lines of an attempt, from the reason to what followed from it.
const LINES_MAX: usize = 8;

/// The last lines of something that SPDK was asked to do.
#[derive(Debug, Default)]
pub(super) struct Said(VecDeque<String>);

thread_local! {
    /// Log that captures lines on this thread.
    static LISTENER: RefCell<Option<Said>> = const { RefCell::new(None) };
}

/// Redirects SPDK's log to this module. Once, before the environment is started.
pub(super) fn listen() {
    // SAFETY: the listener lives as long as the process, and does not unwind.
    unsafe { sys::tidelog_spdk_listen(Some(heard as unsafe extern "C" fn(_, _))) };
}

impl Said {
    /// Does something, and keeps what SPDK says on this thread meanwhile, which is not printed
    /// then.
    pub(super) fn capture<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let before = LISTENER.replace(Some(std::mem::take(self)));
        let done = work();
        *self = LISTENER.replace(before).unwrap_or_default();
        done
    }

    fn keep(&mut self, line: &str) {
        // Most begin with what they are about, which the error says.
        let mut line = line;
        while let Some((_, rest)) = line.strip_prefix('[').and_then(|it| it.split_once("] ")) {
            line = rest;
        }
        let line = line.to_owned();
        if self.0.contains(&line) {
            return;
        }
        if self.0.len() == LINES_MAX {
            self.0.pop_front();
        }
        self.0.push_back(line);
    }

    /// Returns the captured lines, for the end of an error: nothing, or a colon and the lines.
    pub(super) fn reason(&self) -> String {
        let lines: Vec<&str> = self.0.iter().map(String::as_str).collect();
        if lines.is_empty() { String::new() } else { format!(": {}", lines.join("; ")) }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Does something of which failing says nothing new, such as leaving what is gone.
pub(super) fn without_capture<T>(work: impl FnOnce() -> T) -> T {
    Said::default().capture(work)
}

/// SPDK calls this for each line.
unsafe extern "C" fn heard(level: i32, line: *const c_char) {
    if level > sys::SPDK_LOG_ERROR {
        return;
    }
    // SAFETY: the line ends, and stays for the call.
    let line = unsafe { CStr::from_ptr(line) }.to_string_lossy().trim().to_owned();
    let without_capture = LISTENER.try_with(|listener| match listener.try_borrow_mut() {
        Ok(mut listener) => match listener.as_mut() {
            Some(said) => {
                said.keep(&line);
                None
            }
            None => Some(line),
        },
        Err(_) => Some(line),
    });
    if let Ok(Some(line)) = without_capture {
        // Where even that cannot be printed nothing is to be done.
        let _ = writeln!(std::io::stderr(), "SPDK: {line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn say(level: i32, line: &CStr) {
        // SAFETY: the line ends.
        unsafe { heard(level, line.as_ptr()) };
    }

    #[test]
    fn the_last_errors_of_this_thread_are_kept() {
        let (mut said, mut inner) = (Said::default(), Said::default());
        assert_eq!(said.reason(), "");
        said.capture(|| {
            for line in
                [c"0", c"1", c"1\n", c"2", c"[nqn.a,nqn.b] [A] 2", c"3", c"4", c"5", c"6", c"7"]
            {
                say(sys::SPDK_LOG_ERROR, line);
            }
            say(sys::SPDK_LOG_DEBUG, c"details");
            inner.capture(|| say(sys::SPDK_LOG_ERROR, c"within"));
            std::thread::spawn(|| say(sys::SPDK_LOG_ERROR, c"a line of another thread"))
                .join()
                .unwrap();
        });
        assert_eq!(said.reason(), ": 0; 1; 2; 3; 4; 5; 6; 7");
        assert_eq!(inner.reason(), ": within");
        said.capture(|| say(sys::SPDK_LOG_ERROR, c"8"));
        assert_eq!(said.reason(), ": 1; 2; 3; 4; 5; 6; 7; 8", "it goes on");
    }
}
