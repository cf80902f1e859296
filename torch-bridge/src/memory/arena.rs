//! Memory for tensors that is used again: pages of what was freed stay, until they are asked back.
//!
//! Freed pages that go back to the kernel cost a page fault each when they return, which is a third
//! of what moving tensors costs. The C library's heap keeps them, but where tensors come and go in
//! another order than they came it needs two to three times their bytes. Here an allocation goes
//! where pages are, and exactly as many are given up as the caller says.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};
use rustix::mm::{madvise, mmap_anonymous, mprotect};
use tidelog_engine::memory::process;

use super::extents::Extents;

/// Size below which allocations are left to the C library's heap.
pub(super) const ALLOCATION_MIN: usize = 64 << 10;
/// Addresses that are set aside. They cost nothing; a limit of them (`ulimit -v`) leaves fewer.
const RESERVED_MAX: usize = 1 << 40;
const RESERVED_MIN: usize = 16 << 30;
/// Addresses that become usable at once.
const GROWTH: usize = 64 << 20;
/// Bytes that are kept whatever others have: else each allocation would fault its pages in again.
const KEPT_MIN: usize = 4 << 20;
/// Bytes that are kept where others alone have more than the process may hold: to keep less would
/// cost page faults, and not help.
const KEPT_MIN_IN_EXCESS: usize = 24 << 20;
/// Bytes that are given back beyond the need, so that this is done seldom.
const RELEASED_MORE: usize = 2 << 20;

/// Memory of one process. A child of fork has a copy of its bytes, and leaves it as it is: another
/// thread may have held the lock.
pub(crate) struct Arena {
    begin: usize,
    reserved: usize,
    process: u32,
    /// Allocations come from here, and freed pages stay.
    keeps: AtomicBool,
    /// Limit of bytes with pages, kept ones included.
    pages_max: AtomicUsize,
    /// Bytes that are kept even so.
    kept_min: AtomicUsize,
    extents: Mutex<Extents>,
}

static ARENA: OnceLock<Option<Arena>> = OnceLock::new();

/// The arena, where it was ever switched on.
pub(crate) fn arena() -> Option<&'static Arena> {
    ARENA.get()?.as_ref()
}

/// The arena, set aside if it was not yet. `None`: there are no addresses for it, or it is another
/// process's.
pub(crate) fn arena_of_this_process() -> Option<&'static Arena> {
    ARENA.get_or_init(Arena::reserve).as_ref().filter(|arena| arena.is_ours())
}

impl Arena {
    fn reserve() -> Option<Self> {
        let mut reserved = RESERVED_MAX;
        while reserved >= RESERVED_MIN {
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            // SAFETY: a new mapping, where the kernel likes, of which nothing can be touched yet.
            let mapped = unsafe { mmap_anonymous(null_mut(), reserved, ProtFlags::empty(), flags) };
            if let Ok(begin) = mapped {
                let begin = begin.expose_provenance();
                return Some(Self {
                    begin,
                    reserved,
                    process: process::id(),
                    keeps: AtomicBool::new(false),
                    pages_max: AtomicUsize::new(usize::MAX),
                    kept_min: AtomicUsize::new(KEPT_MIN),
                    extents: Mutex::default(),
                });
            }
            reserved /= 4;
        }
        None
    }

    /// Sets whether allocations come from here and freed pages stay.
    pub(crate) fn keep(&self, keeps: bool) {
        self.keeps.store(keeps, Ordering::Relaxed);
        if !keeps {
            self.pages_max.store(usize::MAX, Ordering::Relaxed);
            self.release(usize::MAX);
        }
    }

    /// Holds the process at `most` bytes of anonymous memory: what is kept goes back as far as must
    /// be, now and from now on whenever an allocation has taken more. That counts what others in
    /// the process have as it is now. Returns by how much they and what is allocated are more.
    pub(crate) fn hold_process(&self, most: usize) -> usize {
        anonymous_bytes().map_or(0, |present| self.hold(present, most))
    }

    fn hold(&self, present: usize, most: usize) -> usize {
        if !self.is_ours() {
            return 0;
        }
        let mut extents = self.extents();
        let others = present.saturating_sub(extents.with_pages());
        let excess = (others + extents.taken()).saturating_sub(most);
        // It grows with the excess: a little more of others must not take all that is kept.
        let kept_min = (KEPT_MIN + excess).min(KEPT_MIN_IN_EXCESS);
        self.kept_min.store(kept_min, Ordering::Relaxed);
        self.pages_max.store(most.saturating_sub(others), Ordering::Relaxed);
        self.release_excess(&mut extents);
        excess
    }

    /// Memory of this size, on whole pages. `None`: another heap has to serve.
    pub(crate) fn allocate(&self, size: usize, alignment: usize) -> Option<*mut u8> {
        if size < ALLOCATION_MIN
            || alignment > page()
            || !self.keeps.load(Ordering::Relaxed)
            || !self.is_ours()
        {
            return None;
        }
        let length = size.checked_next_multiple_of(page())?;
        let mut extents = self.extents();
        let at = match extents.take(length) {
            Some(at) => at,
            None => self.grow(&mut extents, length).then(|| extents.take(length))??,
        };
        self.release_excess(&mut extents);
        Some(self.pointer(at))
    }

    /// Frees what [`Self::allocate`] gave. Returns whether the address is one of the arena's.
    pub(crate) fn free(&self, address: *mut u8) -> bool {
        let Some(at) = self.offset(address) else { return false };
        if self.is_ours() {
            let mut extents = self.extents();
            let keeps = self.keeps.load(Ordering::Relaxed);
            let Some(length) = extents.give(at, keeps) else {
                // As the C library does: whoever frees what is not allocated may do anything next.
                eprintln!("tidelog: {address:p} was freed, and is not allocated");
                std::process::abort();
            };
            if !keeps {
                self.drop_pages(at, length);
            }
        }
        true
    }

    /// Gives the pages of a part of an allocation back to the kernel: the part has no bytes until
    /// it is written. Pages that it shares with what is beside it stay.
    ///
    /// # Safety
    /// The range is of private memory that nobody else reads or writes meanwhile, and whose bytes
    /// nobody wants.
    pub(crate) unsafe fn decommit(address: *mut u8, length: usize) {
        let Some((begin, length)) = whole_pages(address, length) else { return };
        let arena = arena().filter(|arena| arena.is_ours());
        let within = arena.and_then(|arena| Some((arena, arena.offset(begin)?)));
        let mut extents = within.map(|(arena, at)| (arena.extents(), at));
        // SAFETY: by this function's contract.
        let dropped = unsafe { madvise(begin.cast(), length, Advice::LinuxDontNeed) }.is_ok();
        if let Some((extents, at)) = extents.as_mut().filter(|_| dropped) {
            extents.decommit(*at, length);
        }
    }

    /// The part is about to be written again: what is kept makes way for its pages.
    pub(crate) fn recommit(address: *mut u8, length: usize) {
        let Some((begin, _)) = whole_pages(address, length) else { return };
        let arena = arena().filter(|arena| arena.is_ours());
        let Some((arena, at)) = arena.and_then(|arena| Some((arena, arena.offset(begin)?))) else {
            return;
        };
        let mut extents = arena.extents();
        extents.recommit(at);
        arena.release_excess(&mut extents);
    }

    /// Gives at least as many bytes of kept pages back to the kernel, or all; returns how many.
    pub(crate) fn release(&self, wanted: usize) -> usize {
        if !self.is_ours() {
            return 0;
        }
        self.release_of(&mut self.extents(), wanted)
    }

    /// Bytes of freed memory that the process still has.
    pub(crate) fn kept(&self) -> usize {
        if self.is_ours() { self.extents().kept() } else { 0 }
    }

    fn is_ours(&self) -> bool {
        self.process == process::id()
    }

    fn extents(&self) -> MutexGuard<'_, Extents> {
        self.extents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives back what is more than may have pages, as far as it is kept.
    fn release_excess(&self, extents: &mut Extents) {
        let least = extents.taken() + self.kept_min.load(Ordering::Relaxed);
        let pages_max = self.pages_max.load(Ordering::Relaxed).max(least);
        let excess = extents.with_pages().saturating_sub(pages_max);
        if excess > 0 {
            self.release_of(extents, excess.saturating_add(RELEASED_MORE));
        }
    }

    fn release_of(&self, extents: &mut Extents, wanted: usize) -> usize {
        let wanted =
            wanted.checked_next_multiple_of(page()).unwrap_or(usize::MAX / page() * page());
        let mut released = 0;
        while released < wanted
            && let Some((at, length)) = extents.give_up(wanted - released)
        {
            self.drop_pages(at, length);
            released += length;
        }
        released
    }

    /// Makes more addresses usable.
    fn grow(&self, extents: &mut Extents, length: usize) -> bool {
        let Some(growth) = length.checked_next_multiple_of(GROWTH) else { return false };
        let end = extents.end();
        if growth > self.reserved - end {
            return false;
        }
        let access = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: the range is within the mapping that is ours, and nobody has a part of it yet.
        let usable = unsafe { mprotect(self.pointer(end).cast(), growth, access) }.is_ok();
        if usable {
            extents.grow(growth);
        }
        usable
    }

    /// The kernel gets pages back. Where it refuses (they are locked) they stay, which harms
    /// nobody.
    fn drop_pages(&self, at: usize, length: usize) {
        // SAFETY: the range is within the mapping that is ours; it is free, and under the lock, so
        // nobody reads or writes it.
        let _ = unsafe { madvise(self.pointer(at).cast(), length, Advice::LinuxDontNeed) };
    }

    fn offset(&self, address: *mut u8) -> Option<usize> {
        address.addr().checked_sub(self.begin).filter(|at| *at < self.reserved)
    }

    fn pointer(&self, at: usize) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.begin + at)
    }
}

/// Bytes of a page: 4 KiB, or 16 and 64 KiB on some kernels for aarch64.
fn page() -> usize {
    rustix::param::page_size()
}

/// The pages that lie in a range as a whole: where they begin, and their bytes.
fn whole_pages(address: *mut u8, length: usize) -> Option<(*mut u8, usize)> {
    let before = address.addr().next_multiple_of(page()) - address.addr();
    let length = length.checked_sub(before)? / page() * page();
    (length > 0).then(|| (address.wrapping_add(before), length))
}

/// Resident memory that is no file's (proc(5): resident less shared pages).
fn anonymous_bytes() -> Option<usize> {
    let figures = std::fs::read_to_string("/proc/self/statm").ok()?;
    let mut pages = figures.split(' ').skip(1).map_while(|pages| pages.parse::<usize>().ok());
    Some(pages.next()?.saturating_sub(pages.next()?) * page())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn arena() -> Arena {
        let arena = Arena::reserve().unwrap();
        arena.keep(true);
        arena
    }

    fn fill(address: *mut u8, size: usize, byte: u8) {
        // SAFETY: as many bytes were allocated there, and nobody else has them.
        unsafe { address.write_bytes(byte, size) };
    }

    #[test]
    fn freed_pages_serve_the_next_allocation_and_leave_when_they_are_asked_back() {
        let arena = arena();
        let first = arena.allocate(3 * MIB + 5, 64).unwrap();
        fill(first, 3 * MIB + 5, 1);
        assert!(arena.free(first));
        assert_eq!(arena.kept(), 3 * MIB + page());
        let second = arena.allocate(MIB, 64).unwrap();
        assert_eq!(second, first);
        assert_eq!(arena.release(MIB), MIB);
        assert_eq!(arena.kept(), MIB + page());
        arena.keep(false);
        assert_eq!(arena.kept(), 0);
        assert!(arena.allocate(MIB, 64).is_none());
        // SAFETY: it is allocated still.
        assert_eq!(unsafe { second.read() }, 1);
        assert!(arena.free(second));
        assert_eq!(arena.kept(), 0);
    }

    #[test]
    fn an_allocation_gives_back_what_is_more_than_the_process_may_have() {
        let arena = arena();
        let [first, second] = [0; 2].map(|_| arena.allocate(8 * MIB, 64).unwrap());
        assert!(arena.free(first));
        // Others have 100 MiB: of the arena's 16 so many may stay.
        assert_eq!(arena.hold(116 * MIB, 116 * MIB), 0);
        assert_eq!(arena.kept(), 8 * MIB);
        let third = arena.allocate(12 * MIB, 64).unwrap();
        let least = KEPT_MIN - RELEASED_MORE;
        assert_eq!(arena.kept(), least, "12 MiB more would have been 28");
        assert_eq!(arena.hold(120 * MIB, 116 * MIB), 2 * MIB, "by so much without what is kept");
        assert_eq!(arena.kept(), least, "no more is kept that could go");
        assert!(arena.free(third));
        assert_eq!(arena.hold(120 * MIB, 116 * MIB), 0);
        assert_eq!(arena.kept(), 12 * MIB + least - 4 * MIB - RELEASED_MORE);
        // Others alone have more than that: to give back what is kept would not help.
        let kept = arena.kept();
        assert_eq!(arena.hold(120 * MIB, 10 * MIB), 110 * MIB - kept);
        assert_eq!(arena.kept(), kept);
        assert!(arena.free(second));
        for _ in 0..3 {
            let [fourth, fifth] = [0; 2].map(|_| arena.allocate(20 * MIB, 64).unwrap());
            assert!(arena.free(fourth) && arena.free(fifth));
            arena.hold(120 * MIB, 10 * MIB);
        }
        // But it does not grow, either.
        assert_eq!(arena.kept(), KEPT_MIN_IN_EXCESS - RELEASED_MORE);
        // They leave again.
        assert_eq!(arena.hold(120 * MIB, 120 * MIB - arena.kept() + 5 * MIB), 0);
        assert!(arena.kept() <= 5 * MIB, "{}", arena.kept());
    }

    #[test]
    fn the_pages_of_a_part_go_and_the_rest_stays() {
        let whole = 8 * page();
        let mut memory = vec![1_u8; whole];
        let (from, length) = (page() + 5, 4 * page());
        // SAFETY: a part of ours, which nobody else has, and whose bytes are not wanted.
        unsafe { Arena::decommit(memory.as_mut_ptr().add(from), length) };
        Arena::recommit(memory.as_mut_ptr().wrapping_add(from), length);
        let zeros: Vec<usize> = (0..whole).filter(|&at| memory[at] == 0).collect();
        assert!(zeros.len() >= 3 * page() && zeros.len().is_multiple_of(page()), "{}", zeros.len());
        assert!(zeros.iter().all(|at| (from..from + length).contains(at)));
    }

    #[test]
    fn what_is_small_or_aligned_to_more_than_a_page_is_left_to_others() {
        let arena = arena();
        assert!(arena.allocate(ALLOCATION_MIN - 1, 64).is_none());
        assert!(arena.allocate(MIB, 2 * page()).is_none());
        assert!(arena.allocate(usize::MAX, 64).is_none());
        let mut other = 0;
        assert!(!arena.free(&raw mut other));
    }

    #[test]
    fn threads_do_not_get_each_others_memory() {
        let arena = arena();
        std::thread::scope(|scope| {
            for thread in 1..=4_u8 {
                let arena = &arena;
                scope.spawn(move || {
                    for round in 0..200 {
                        let size = ALLOCATION_MIN + round * 777;
                        let address = arena.allocate(size, 64).unwrap();
                        fill(address, size, thread);
                        if round % 16 == 0 {
                            arena.release(MIB);
                        }
                        // SAFETY: as many bytes were allocated and filled there.
                        let bytes = unsafe { std::slice::from_raw_parts(address, size) };
                        assert!(bytes.iter().all(|byte| *byte == thread));
                        arena.free(address);
                    }
                });
            }
        });
    }
}
