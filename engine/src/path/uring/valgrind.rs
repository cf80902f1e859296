//! True if this process runs under valgrind.

/// The request `RUNNING_ON_VALGRIND` of `<valgrind/valgrind.h>`, and its arguments, of which it has
/// none.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
const RUNNING_ON_VALGRIND: [u64; 6] = [0x1001, 0, 0, 0, 0, 0];

/// Returns whether valgrind runs this process, under which a thread that waits in `io_uring_enter`
/// keeps all others waiting, so that nobody ends its wait.
#[cfg(target_arch = "x86_64")]
pub(super) fn is_there() -> bool {
    let mut answer = 0_u64;
    // SAFETY: a processor turns the register once around, twice, and exchanges another with itself;
    // valgrind knows the sequence, reads the request, which outlives it, and writes the answer.
    unsafe {
        std::arch::asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            in("rax") RUNNING_ON_VALGRIND.as_ptr(),
            inout("rdx") answer,
            options(nostack),
        );
    }
    answer != 0
}

/// Returns whether the process runs under valgrind.
#[cfg(target_arch = "aarch64")]
pub(super) fn is_there() -> bool {
    let mut answer = 0_u64;
    // SAFETY: as above.
    unsafe {
        std::arch::asm!(
            "ror x12, x12, #3",
            "ror x12, x12, #13",
            "ror x12, x12, #51",
            "ror x12, x12, #61",
            "orr x10, x10, x10",
            in("x4") RUNNING_ON_VALGRIND.as_ptr(),
            inout("x3") answer,
            options(nostack),
        );
    }
    answer != 0
}

/// Returns false, as valgrind cannot be detected on this processor.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(super) fn is_there() -> bool {
    false
}
