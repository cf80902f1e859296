//! Small memory for tensors that the thread which frees it uses again.
//!
//! The C library is slow with aligned memory: under a lock it looks for a larger block, splits it
//! three ways, and joins the parts again when they are freed. Programs of many small ops spend a
//! tenth of their time there. They ask for the same sizes again and again, so each thread keeps
//! what it frees by size. What is kept is the C library's, and any of it may go back at any time.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::null_mut;

use super::arena::ALLOCATION_MIN;

/// Sizes are multiples of it, and so are addresses: what torch's allocator asks for.
const STEP: usize = 64;
/// Number of size classes below the arena's allocations.
const CLASSES: usize = ALLOCATION_MIN / STEP;
/// Bytes that a thread keeps at most.
const KEPT_MAX: usize = 8 << 20;

/// Free lists of a thread: for each size the block that was freed last, which holds the address of
/// the one before.
struct Lists {
    keeps: Cell<bool>,
    kept: Cell<usize>,
    last: [Cell<*mut c_void>; CLASSES],
}

thread_local! {
    static LISTS: Lists = const {
        Lists {
            keeps: Cell::new(false),
            kept: Cell::new(0),
            last: [const { Cell::new(null_mut()) }; CLASSES],
        }
    };
}

/// Sets whether this thread keeps what it frees; if not, releases what it has.
pub(crate) fn keep(keeps: bool) {
    let _ = LISTS.try_with(|lists| {
        lists.keeps.set(keeps);
        if !keeps {
            lists.release();
        }
    });
}

/// Releases what this thread keeps; returns how many bytes.
pub(crate) fn release() -> usize {
    LISTS.try_with(Lists::release).unwrap_or(0)
}

/// Bytes that this thread keeps.
pub(crate) fn kept() -> usize {
    LISTS.try_with(|lists| lists.kept.get()).unwrap_or(0)
}

/// The size that is to be asked of the C library for a block of `size`, so that it is exactly of a
/// size that is kept; `None`: none of this size is.
pub(crate) fn rounded(size: usize, alignment: usize) -> Option<usize> {
    let fits = (1..=ALLOCATION_MIN - STEP).contains(&size) && alignment <= STEP;
    fits.then(|| size.next_multiple_of(STEP))
}

/// A block of a rounded size that this thread has freed.
pub(crate) fn take(size: usize) -> Option<*mut c_void> {
    LISTS.try_with(|lists| lists.take(size)).ok()?
}

/// Keeps a block of the C library's that is freed. Returns whether it does.
///
/// # Safety
/// The block was allocated by the C library, and nobody uses it any more.
pub(crate) unsafe fn give(block: *mut c_void) -> bool {
    // SAFETY: by this function's contract.
    LISTS.try_with(|lists| unsafe { lists.give(block) }).unwrap_or(false)
}

impl Lists {
    fn take(&self, size: usize) -> Option<*mut c_void> {
        let last = &self.last[size / STEP];
        let block = last.get();
        if block.is_null() {
            return None;
        }
        // SAFETY: the block is free, is this thread's, and holds what `give` has written.
        last.set(unsafe { block.cast::<*mut c_void>().read() });
        self.kept.set(self.kept.get() - size);
        Some(block)
    }

    unsafe fn give(&self, block: *mut c_void) -> bool {
        if !self.keeps.get() || block.is_null() || !block.addr().is_multiple_of(STEP) {
            return false;
        }
        // SAFETY: by the caller's contract it is a block of the C library's.
        let class = unsafe { libc::malloc_usable_size(block) } / STEP;
        let kept = self.kept.get() + class * STEP;
        if class == 0 || class >= CLASSES || kept > KEPT_MAX {
            return false;
        }
        let last = &self.last[class];
        // SAFETY: the block is free, aligned to 64 bytes and at least as long.
        unsafe { block.cast::<*mut c_void>().write(last.get()) };
        last.set(block);
        self.kept.set(kept);
        true
    }

    fn release(&self) -> usize {
        let kept = self.kept.get();
        for size in (STEP..ALLOCATION_MIN).step_by(STEP) {
            while let Some(block) = self.take(size) {
                // SAFETY: the C library allocated it, and nobody has it.
                unsafe { libc::free(block) };
            }
        }
        kept
    }
}

impl Drop for Lists {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use tidelog_random::Random;

    use super::*;

    fn allocate(size: usize) -> *mut c_void {
        let size = rounded(size, STEP).unwrap();
        take(size).unwrap_or_else(|| {
            let mut block = null_mut();
            // SAFETY: the place for the address is ours.
            assert_eq!(unsafe { libc::posix_memalign(&raw mut block, STEP, size) }, 0);
            block
        })
    }

    fn free(block: *mut c_void) -> bool {
        // SAFETY: it is a block of the C library's that no test uses any more.
        let keeps = unsafe { give(block) };
        if !keeps {
            // SAFETY: as above.
            unsafe { libc::free(block) };
        }
        keeps
    }

    #[test]
    fn what_was_freed_last_serves_the_next_of_its_size() {
        keep(true);
        let [first, second] = [0; 2].map(|_| allocate(1000));
        let other = allocate(5000);
        assert!(free(first) && free(second) && free(other));
        assert_eq!(kept(), 2 * 1024 + 5056);
        assert_eq!([allocate(961), allocate(1024), allocate(5000)], [second, first, other]);
        assert_eq!(kept(), 0);
        assert!(free(first));
        assert!(take(960).is_none() && take(1088).is_none());
        assert_eq!(release(), 1024);
        assert!(take(1024).is_none());
        assert!(free(second) && free(other));
        keep(false);
        assert_eq!(kept(), 0);
        assert!(!free(allocate(64)));
    }

    #[test]
    fn what_is_large_or_strange_or_too_much_is_not_kept() {
        keep(true);
        assert!(rounded(0, 64).is_none() && rounded(64, 128).is_none());
        assert!(rounded(ALLOCATION_MIN, 64).is_none() && rounded(usize::MAX, 64).is_none());
        assert_eq!(rounded(ALLOCATION_MIN - STEP, 8), Some(ALLOCATION_MIN - STEP));
        // SAFETY: null is no block, and nobody uses it.
        assert!(!unsafe { give(null_mut()) });
        let large = {
            let mut block = null_mut();
            // SAFETY: the place for the address is ours.
            assert_eq!(unsafe { libc::posix_memalign(&raw mut block, STEP, ALLOCATION_MIN) }, 0);
            block
        };
        assert!(!free(large));
        let size = ALLOCATION_MIN - STEP;
        let blocks: Vec<_> = (0..KEPT_MAX / size + 2).map(|_| allocate(size)).collect();
        let kept_blocks = blocks.into_iter().filter(|block| free(*block)).count();
        assert_eq!(kept_blocks, KEPT_MAX / size);
        assert_eq!(kept(), kept_blocks * size);
        keep(false);
    }

    #[test]
    fn threads_keep_their_own() {
        keep(true);
        let block = allocate(256).expose_provenance();
        let elsewhere = std::thread::spawn(move || {
            let block = std::ptr::with_exposed_provenance_mut(block);
            keep(true);
            (free(block), kept())
        });
        assert_eq!(elsewhere.join().unwrap(), (true, 256));
        assert_eq!(kept(), 0);
        keep(false);
    }

    #[test]
    fn no_block_has_bytes_of_another() {
        keep(true);
        let mut random = Random::new(20_261_126);
        let mut blocks: HashMap<usize, (*mut c_void, usize, u8)> = HashMap::new();
        for _ in 0..20_000 {
            let slot = random.below(200) as usize;
            if let Some((block, size, byte)) = blocks.remove(&slot) {
                // SAFETY: so many bytes were written there, and the block is this test's.
                let bytes = unsafe { std::slice::from_raw_parts(block.cast::<u8>(), size) };
                assert!(bytes.iter().all(|each| *each == byte));
                free(block);
            } else {
                let size = 1 + random.below(4000) as usize;
                let byte = u8::try_from(random.below(256)).unwrap();
                let block = allocate(size);
                assert!(block.addr().is_multiple_of(STEP));
                // SAFETY: as many bytes were allocated.
                unsafe { block.cast::<u8>().write_bytes(byte, size) };
                blocks.insert(slot, (block, size, byte));
            }
        }
        for (block, ..) in blocks.into_values() {
            free(block);
        }
        keep(false);
        assert_eq!(kept(), 0);
    }
}
