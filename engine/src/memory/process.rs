//! Which process this is, without a system call each time somebody asks.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use memmap2::{MmapMut, MmapOptions};

/// The id of this process; another one in a child of fork. Every operation asks several times, to notice a fork.
pub(crate) fn id() -> u32 {
    static KNOWN: OnceLock<Option<&'static AtomicU32>> = OnceLock::new();
    let Some(known) = *KNOWN.get_or_init(wiped_on_fork) else { return std::process::id() };
    match known.load(Ordering::Relaxed) {
        // Nobody has asked yet, or this is a child in which the kernel has wiped the page.
        0 => {
            let id = std::process::id();
            known.store(id, Ordering::Relaxed);
            id
        }
        id => id,
    }
}

/// A number that is 0 at first and again in every child of fork; `None` where the kernel makes none.
fn wiped_on_fork() -> Option<&'static AtomicU32> {
    if cfg!(miri) {
        return None;
    }
    let page: &'static mut MmapMut =
        Box::leak(Box::new(MmapOptions::new().len(super::ALIGNMENT).map_anon().ok()?));
    let address = page.as_mut_ptr();
    // SAFETY: the advice is about whole pages of a mapping that is ours, and changes nothing in this process.
    if unsafe { libc::madvise(address.cast(), super::ALIGNMENT, libc::MADV_WIPEONFORK) } != 0 {
        return None;
    }
    // SAFETY: the page is mapped for ever (it is leaked), begins aligned, and nothing else refers to it from here on.
    Some(unsafe { AtomicU32::from_ptr(address.cast()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_of_fork_is_another_process() {
        assert_eq!(id(), std::process::id());
        // SAFETY: the child takes no lock, and leaves by `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let right = id() == std::process::id() && id() == std::process::id();
            // SAFETY: ends the process without running anything of the parent's.
            unsafe { libc::_exit(i32::from(!right)) };
        }
        let mut status = 0;
        // SAFETY: waits for our own child and writes one integer.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child took itself for its parent");
        assert_eq!(id(), std::process::id());
    }
}
