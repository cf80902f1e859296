use std::collections::BTreeMap;

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

/// Does something, or starts a process, where no ring can be made, as in a container whose profile
/// forbids `io_uring`.
pub fn without_io_uring<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
    let rules: BTreeMap<i64, _> = [(libc::SYS_io_uring_setup, Vec::new())].into();
    let refuse = SeccompAction::Errno(libc::EPERM.cast_unsigned());
    let architecture = std::env::consts::ARCH.try_into().expect("seccomp knows the machine");
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, architecture);
    let program: BpfProgram = filter.expect("one rule").try_into().expect("a short program");
    // The filter holds for the thread and for the processes that it starts.
    let thread = std::thread::spawn(move || {
        seccompiler::apply_filter(&program).expect("the kernel has seccomp");
        act()
    });
    thread.join().unwrap_or_else(|panicked| std::panic::resume_unwind(panicked))
}
