//! Faults of registers whose controller was unplugged. SPDK's handler of `SIGBUS` mends them, and
//! swallows all others, so it is taken away when the library is loaded (`tidelog-spdk-sys`). While
//! a controller on the bus is attached, a handler of ours gives it the faults in registers, and all
//! others to whoever was asked before.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use tidelog_spdk_sys as sys;

/// Limit of controllers that one process has on the bus.
const REGISTERS_MAX: usize = 256;
const NOBODY: i32 = 0;

/// The registers of a controller that is attached: faults in them are SPDK's.
#[derive(Debug)]
pub(super) struct Registers(Option<usize>);

/// Guard by which faults of this thread count as SPDK's: it attaches a controller, whose registers
/// nobody knows yet.
pub(super) struct Attaching(());

/// Start and end of a range of registers; both 0 for none.
struct RegisterRange(AtomicUsize, AtomicUsize);

static RANGES: [RegisterRange; REGISTERS_MAX] =
    [const { RegisterRange(AtomicUsize::new(0), AtomicUsize::new(0)) }; REGISTERS_MAX];
/// The thread that attaches a controller.
static ATTACHES: AtomicI32 = AtomicI32::new(NOBODY);
/// The last fault: one that comes again was not mended.
static LAST: AtomicUsize = AtomicUsize::new(0);
/// Number of users of the handler, and whether it is installed.
static NEEDED: Mutex<(usize, bool)> = Mutex::new((0, false));
static BEFORE: Before = Before(UnsafeCell::new(MaybeUninit::zeroed()));

/// Previous action of the signal. Written only while the handler is not installed.
struct Before(UnsafeCell<MaybeUninit<libc::sigaction>>);

// SAFETY: it is written under the lock and before anybody reads it, and a structure of zeroes is a
// valid one.
unsafe impl Sync for Before {}

impl Registers {
    /// Makes the range of the registers at `start`, of `bytes` bytes.
    pub(super) fn new(start: usize, bytes: usize) -> Self {
        let is_free = |range: &RegisterRange| {
            range.0.compare_exchange(0, start, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        let range = RANGES.iter().position(is_free);
        if let Some(range) = range {
            RANGES[range].1.store(start.saturating_add(bytes), Ordering::Release);
            need();
        }
        Self(range)
    }
}

impl Drop for Registers {
    fn drop(&mut self) {
        if let Some(range) = self.0 {
            RANGES[range].1.store(0, Ordering::Relaxed);
            RANGES[range].0.store(0, Ordering::Release);
            need_no_more();
        }
    }
}

impl Attaching {
    pub(super) fn new() -> Self {
        LAST.store(0, Ordering::Relaxed);
        ATTACHES.store(this_thread(), Ordering::Relaxed);
        need();
        Self(())
    }
}

impl Drop for Attaching {
    fn drop(&mut self) {
        ATTACHES.store(NOBODY, Ordering::Relaxed);
        need_no_more();
    }
}

/// Installs the handler if nobody has needed it.
fn need() {
    let mut needed = NEEDED.lock().unwrap_or_else(PoisonError::into_inner);
    needed.0 += 1;
    if needed.1 {
        return;
    }
    // SAFETY: the handler is not installed, so nobody reads what was before it; the structures
    // outlive the calls.
    unsafe {
        let before = BEFORE.0.get().cast::<libc::sigaction>();
        if libc::sigaction(libc::SIGBUS, ptr::null(), before) != 0 {
            return;
        }
        let mut ours = *before;
        ours.sa_sigaction = handler();
        ours.sa_flags = libc::SA_SIGINFO
            | libc::SA_ONSTACK
            | ((*before).sa_flags & (libc::SA_RESTART | libc::SA_NODEFER));
        needed.1 = libc::sigaction(libc::SIGBUS, &raw const ours, ptr::null_mut()) == 0;
    }
}

/// Takes the handler away if nobody needs it, unless somebody has put another on top of it: that
/// one gives us what it does not want, and we go on giving it to the one before.
fn need_no_more() {
    let mut needed = NEEDED.lock().unwrap_or_else(PoisonError::into_inner);
    needed.0 -= 1;
    if needed.0 > 0 || !needed.1 {
        return;
    }
    // SAFETY: the structures outlive the calls; what was before is not written here.
    unsafe {
        let mut now = MaybeUninit::<libc::sigaction>::zeroed();
        if libc::sigaction(libc::SIGBUS, ptr::null(), now.as_mut_ptr()) == 0
            && now.assume_init().sa_sigaction == handler()
        {
            let before = BEFORE.0.get().cast::<libc::sigaction>();
            needed.1 = libc::sigaction(libc::SIGBUS, before, ptr::null_mut()) != 0;
        }
    }
}

fn handler() -> libc::sighandler_t {
    let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut c_void) = on_fault;
    handler as libc::sighandler_t
}

/// Handler that the kernel calls. Only what may be done in a signal's handler is done here: atomics
/// and system calls.
extern "C" fn on_fault(signal: i32, information: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel's description of the signal; this thread's error number; SPDK's handler is
    // given what it asked for.
    unsafe {
        let error = *libc::__errno_location();
        let is_fault = (*information).si_code > 0;
        if is_fault && is_of_registers((*information).si_addr() as usize) {
            sys::tidelog_spdk_fault(signal, information.cast(), context);
        } else {
            pass_on(is_fault, signal, information, context);
        }
        *libc::__errno_location() = error;
    }
}

fn is_of_registers(address: usize) -> bool {
    let is_in = |range: &RegisterRange| {
        let end = range.1.load(Ordering::Acquire);
        (range.0.load(Ordering::Relaxed)..end).contains(&address)
    };
    if RANGES.iter().any(is_in) {
        return true;
    }
    ATTACHES.load(Ordering::Relaxed) == this_thread()
        && LAST.swap(address, Ordering::Relaxed) != address
}

/// Does what would have been done without us.
///
/// # Safety
/// Called by the handler, with what it was called with.
unsafe fn pass_on(
    is_fault: bool,
    signal: i32,
    information: *mut libc::siginfo_t,
    context: *mut c_void,
) {
    // SAFETY: by the contract. It was written before the handler was installed, and what is in it
    // was a handler of the kind that its flags say.
    unsafe {
        let before = &*BEFORE.0.get().cast::<libc::sigaction>();
        match before.sa_sigaction {
            // Nobody can ignore a fault: the kernel ends the process.
            libc::SIG_IGN if !is_fault => {}
            libc::SIG_DFL | libc::SIG_IGN => {
                let mut default = MaybeUninit::<libc::sigaction>::zeroed();
                (*default.as_mut_ptr()).sa_sigaction = libc::SIG_DFL;
                libc::sigaction(signal, default.as_ptr(), ptr::null_mut());
                // A fault happens again when this returns.
                if !is_fault {
                    libc::raise(signal);
                }
            }
            handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
                let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut c_void) =
                    std::mem::transmute(handler);
                handler(signal, information, context);
            }
            handler => {
                let handler: extern "C" fn(i32) = std::mem::transmute(handler);
                handler(signal);
            }
        }
    }
}

fn this_thread() -> i32 {
    // SAFETY: it has no conditions.
    unsafe { libc::gettid() }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;

    use super::*;

    const PAGE: usize = 4096;
    /// Exit status of a handler that was called.
    const SEEN: i32 = 7;

    extern "C" fn end(_: i32) {
        // SAFETY: it ends the process, and may be called by a handler.
        unsafe { libc::_exit(SEEN) };
    }

    /// A page behind the end of its file: whoever reads it is sent the signal.
    fn hole() -> usize {
        let path = std::env::temp_dir().join(format!("tidelog-sigbus-{}", std::process::id()));
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path);
        let file = file.unwrap();
        std::fs::remove_file(path).unwrap();
        // SAFETY: a new mapping, which stays.
        let at = unsafe {
            libc::mmap(
                ptr::null_mut(),
                PAGE,
                libc::PROT_READ,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        assert_ne!(at, libc::MAP_FAILED);
        at as usize
    }

    /// Returns the exit status, as `wait` reports it, of a child that prepares, and then reads the
    /// hole.
    fn end_of(prepare: impl FnOnce(usize)) -> i32 {
        let at = hole();
        // SAFETY: the child takes no locks that another thread may hold: it calls the system, and
        // `_exit`.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::alarm(20);
                libc::signal(libc::SIGBUS, libc::SIG_DFL);
                prepare(at);
                (at as *const u8).read_volatile();
                libc::_exit(0);
            }
            let mut status = 0;
            libc::waitpid(child, &raw mut status, 0);
            status
        }
    }

    fn signal_of(status: i32) -> Option<i32> {
        libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status))
    }

    #[test]
    fn a_library_that_is_loaded_does_not_change_what_a_fault_does() {
        // SAFETY: SPDK's handler is linked into this program, and was installed when it was loaded.
        let swallowed = end_of(|_| {});
        assert_eq!(signal_of(swallowed), Some(libc::SIGBUS));
        let mut now = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: the structure outlives the call.
        unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), now.as_mut_ptr()) };
        // SAFETY: it was filled in. SPDK's handler has no other flag; the runtime of Rust wants its
        // own stack, too.
        let flags = unsafe { now.assume_init() }.sa_flags;
        assert_ne!(flags & !0x0400_0000, libc::SA_SIGINFO, "SPDK's handler is there");
    }

    #[test]
    fn a_fault_elsewhere_goes_to_whoever_was_asked_before() {
        let elsewhere = |at: usize| std::mem::forget(Registers::new(at + 16 * PAGE, PAGE));
        assert_eq!(signal_of(end_of(elsewhere)), Some(libc::SIGBUS));
        let handled = end_of(|at| {
            // SAFETY: the handler ends the process.
            unsafe { libc::signal(libc::SIGBUS, end as *const () as libc::sighandler_t) };
            elsewhere(at);
        });
        assert!(libc::WIFEXITED(handled) && libc::WEXITSTATUS(handled) == SEEN, "{handled}");
        let sent = end_of(|at| {
            elsewhere(at);
            // SAFETY: it is sent to this process, without a fault.
            unsafe { libc::raise(libc::SIGBUS) };
        });
        assert_eq!(signal_of(sent), Some(libc::SIGBUS));
    }

    #[test]
    fn a_fault_in_registers_is_spdks() {
        // SPDK's handler knows of no controller and does nothing, so the fault comes again until
        // the alarm.
        let swallowed = end_of(|at| {
            std::mem::forget(Registers::new(at, PAGE));
            // SAFETY: it ends the process soon.
            unsafe { libc::alarm(1) };
        });
        assert_eq!(signal_of(swallowed), Some(libc::SIGALRM));
    }

    #[test]
    fn who_attaches_a_controller_is_not_hung_by_a_fault_that_stays() {
        assert_eq!(signal_of(end_of(|_| std::mem::forget(Attaching::new()))), Some(libc::SIGBUS));
    }

    #[test]
    fn with_the_last_controller_the_handler_goes() {
        let status = end_of(|at| {
            let (one, other) = (Registers::new(at, PAGE), Registers::new(at + PAGE, PAGE));
            drop(one);
            drop(other);
        });
        assert_eq!(signal_of(status), Some(libc::SIGBUS));
    }
}
