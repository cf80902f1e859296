//! When the kernel lets a thread run that has time.

use std::io;
use std::thread;

use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;

/// From here on the calling thread runs only where a processor has nothing else to do
/// (`SCHED_IDLE` of sched(7)).
///
/// # Errors
/// A control group allows the process less time than its processors have: there the thread would
/// use what others lack, also where processors are idle. Or the kernel refuses.
pub fn run_where_idle() -> io::Result<()> {
    let processors = processors().map_err(io::Error::from)?;
    if thread::available_parallelism()?.get() < processors {
        return Err(io::Error::other("the control group's processor time is limited"));
    }
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the kernel reads the parameters, which live until it returns; 0 is this thread.
    let answer = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// How many processors the calling thread may run on.
fn processors() -> nix::Result<usize> {
    let allowed = sched_getaffinity(Pid::from_raw(0))?;
    Ok((0..CpuSet::count()).filter(|&each| allowed.is_set(each).unwrap_or(false)).count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_runs_where_a_processor_is_idle_alone_and_others_as_before() {
        let of_this_thread = || {
            // SAFETY: nothing but a number goes in and out.
            unsafe { libc::sched_getscheduler(0) }
        };
        let before = of_this_thread();
        let other = thread::spawn(move || (run_where_idle(), of_this_thread()));
        match other.join().unwrap() {
            (Ok(()), policy) => assert_eq!(policy, libc::SCHED_IDLE),
            // In a container with a quota.
            (Err(why), policy) => assert_eq!(policy, before, "{why}"),
        }
        assert_eq!(of_this_thread(), before);
    }
}
