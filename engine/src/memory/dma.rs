//! The DMA pool: one anonymous mapping, carved into aligned buffers that return on drop.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use memmap2::{Advice, MmapMut, MmapOptions, UncheckedAdvice};

use super::runs::FreeRuns;
use super::{ALIGNMENT, process};
use crate::units::ByteCount;

/// One huge page: 2 MiB, the size every supported CPU has.
const HUGE_PAGE: usize = 2 << 20;
/// `log2(HUGE_PAGE)`, as `mmap` wants it.
const HUGE_PAGE_BITS: u8 = 21;
const _: () = assert!(HUGE_PAGE == 1 << HUGE_PAGE_BITS && HUGE_PAGE.is_multiple_of(ALIGNMENT));

/// Kind of pages below a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// 2 MiB pages reserved by the administrator (`vm.nr_hugepages`).
    HugeTlb,
    /// Ordinary memory that the kernel was asked to back with 2 MiB pages.
    TransparentHuge,
    /// 4 KiB pages.
    Plain,
}

impl fmt::Display for Backing {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::HugeTlb => "huge pages (2 MiB)",
            Self::TransparentHuge => "transparent huge pages",
            Self::Plain => "4 KiB pages",
        })
    }
}

/// A pool could not be made.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// A pool of no bytes has no buffers to give.
    #[error("a DMA pool of 0 bytes was asked for; give it at least {ALIGNMENT} bytes")]
    Empty,
    /// The kernel has no such memory.
    #[error("cannot map {bytes} for the DMA pool: {source}; ask for less staging memory")]
    Map {
        /// Requested size.
        bytes: ByteCount,
        /// The kernel's answer.
        source: std::io::Error,
    },
}

/// Memory that devices read and write, handed out as [`DmaBuffer`]s.
///
/// Cloning makes another handle of the same pool. The mapping goes when the last handle and the
/// last buffer are gone, so a buffer that is leaked because a device may still write it keeps the
/// memory.
#[derive(Clone)]
pub struct DmaPool {
    region: Arc<Region>,
}

impl DmaPool {
    /// Maps `bytes` (rounded up to whole pages) and keeps them out of forked children.
    ///
    /// With `want_hugepages` the pool takes reserved huge pages if there are enough, else
    /// transparent ones, else plain pages; [`DmaPool::backing`] and [`DmaPool::why`] say what it
    /// became.
    pub fn new(bytes: ByteCount, want_hugepages: bool) -> Result<Self, MemoryError> {
        if bytes.0 == 0 {
            return Err(MemoryError::Empty);
        }
        let (mut mapping, backing, why) = map(bytes, want_hugepages)?;
        // A child of fork that inherits pages under DMA would take copy-on-write faults on them,
        // and the device would then write into the wrong process's copy.
        mapping.advise(Advice::DontFork).map_err(|source| MemoryError::Map { bytes, source })?;
        let length = mapping.len();
        let base = NonNull::new(mapping.as_mut_ptr()).expect("mmap never answers null");
        Ok(Self {
            region: Arc::new(Region {
                base,
                length,
                owner: process::id(),
                mapping: Some(Mapping::Ours(mapping)),
                backing,
                why,
                free: FreeRuns::new(length),
            }),
        })
    }

    /// A pool over memory that somebody else has mapped: a data path whose devices reach only its
    /// own.
    ///
    /// # Safety
    /// The `length` bytes from `base` on, a multiple of 4 KiB, are initialised, and nobody else's
    /// until `release` is called with `base`.
    #[cfg(any(test, feature = "spdk"))]
    pub(crate) unsafe fn borrowed(
        base: NonNull<u8>,
        length: usize,
        backing: Backing,
        why: String,
        release: fn(NonNull<u8>),
    ) -> Self {
        assert!(length > 0 && length.is_multiple_of(ALIGNMENT), "whole blocks are lent");
        Self {
            region: Arc::new(Region {
                base,
                length,
                owner: process::id(),
                mapping: Some(Mapping::Lent(base, release)),
                backing,
                why,
                free: FreeRuns::new(length),
            }),
        }
    }

    /// Takes a buffer of `bytes` rounded up to 4 KiB, or `None` when no free run is that long.
    pub fn take(&self, bytes: usize) -> Option<DmaBuffer> {
        let (start, length) = self.region.free.take(bytes)?;
        Some(DmaBuffer { region: Arc::clone(&self.region), start, length })
    }

    /// The bytes mapped.
    pub fn size(&self) -> ByteCount {
        ByteCount(self.region.length as u64)
    }

    /// The pages that the pool lies on.
    pub fn backing(&self) -> Backing {
        self.region.backing
    }

    /// Returns the reason why the pages are not better ones; empty when they are the best there
    /// are.
    pub fn why(&self) -> &str {
        &self.region.why
    }

    /// Returns the bytes of the pool that have pages.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn resident_bytes(&self) -> u64 {
        let (base, length) = self.span();
        let mut pages = vec![0_u8; length / ALIGNMENT];
        // SAFETY: the mapping is alive, and there is a byte for each of its pages.
        let code = unsafe { libc::mincore(base.cast(), length, pages.as_mut_ptr()) };
        assert_eq!(code, 0, "{}", std::io::Error::last_os_error());
        pages.iter().filter(|&&page| page & 1 != 0).count() as u64 * ALIGNMENT as u64
    }

    /// The address and length of the mapping, for a data path that registers it.
    pub fn span(&self) -> (*mut u8, usize) {
        (self.region.base.as_ptr(), self.region.length)
    }
}

impl fmt::Debug for DmaPool {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "DmaPool({} on {})", self.size(), self.backing())
    }
}

/// Maps on the best pages there are; returns also why not on better ones.
fn map(bytes: ByteCount, want_huge: bool) -> Result<(MmapMut, Backing, String), MemoryError> {
    let failed = |source| MemoryError::Map { bytes, source };
    let plain = |length: usize| MmapOptions::new().len(length).map_anon().map_err(failed);
    let wanted = bytes.0 as usize;
    let small = wanted.checked_next_multiple_of(ALIGNMENT);
    let small = small.ok_or_else(|| failed(std::io::ErrorKind::OutOfMemory.into()))?;
    if !want_huge {
        return Ok((plain(small)?, Backing::Plain, "huge pages were not asked for".into()));
    }
    if wanted < HUGE_PAGE {
        return Ok((plain(small)?, Backing::Plain, "smaller than one huge page".into()));
    }
    let large = wanted.checked_next_multiple_of(HUGE_PAGE);
    let large = large.ok_or_else(|| failed(std::io::ErrorKind::OutOfMemory.into()))?;
    let reserved = MmapOptions::new().len(large).huge(Some(HUGE_PAGE_BITS)).map_anon();
    let mut why = match reserved {
        Ok(mapping) => return Ok((mapping, Backing::HugeTlb, String::new())),
        Err(error) => format!(
            "no {} reserved huge pages are free ({error}); vm.nr_hugepages reserves them",
            large / HUGE_PAGE
        ),
    };
    let mapping = plain(small)?;
    // With "never" the advice is accepted and ignored: the setting, not the call, tells.
    let setting = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    if setting.is_ok_and(|text| text.contains("[never]")) {
        why.push_str("; transparent huge pages are switched off");
        return Ok((mapping, Backing::Plain, why));
    }
    match mapping.advise(Advice::HugePage) {
        Ok(()) => Ok((mapping, Backing::TransparentHuge, why)),
        Err(error) => {
            let why = format!("{why}; transparent huge pages were refused ({error})");
            Ok((mapping, Backing::Plain, why))
        }
    }
}

/// Origin of a region's memory, and with it how the memory is freed.
enum Mapping {
    /// Unmapped when it is dropped.
    Ours(MmapMut),
    #[cfg(any(test, feature = "spdk"))]
    Lent(NonNull<u8>, fn(NonNull<u8>)),
}

impl Drop for Mapping {
    fn drop(&mut self) {
        match self {
            Self::Ours(_) => {}
            #[cfg(any(test, feature = "spdk"))]
            Self::Lent(base, release) => release(*base),
        }
    }
}

struct Region {
    base: NonNull<u8>,
    length: usize,
    /// The process that mapped it; see `drop`.
    owner: u32,
    mapping: Option<Mapping>,
    backing: Backing,
    why: String,
    free: FreeRuns,
}

// SAFETY: `base` points into `mapping`, which the region owns and which is not tied to a thread.
// The bytes behind it are reached only through DmaBuffers, whose ranges never overlap (see `take`).
unsafe impl Send for Region {}
// SAFETY: as above; everything else behind a shared reference is immutable or behind the mutex.
unsafe impl Sync for Region {}

impl Drop for Region {
    fn drop(&mut self) {
        // A forked child never had these pages (DontFork); the addresses may be somebody else's
        // now.
        if process::id() != self.owner {
            std::mem::forget(self.mapping.take());
        }
    }
}

/// Aligned memory out of a [`DmaPool`], exclusively owned, given back on drop.
pub struct DmaBuffer {
    region: Arc<Region>,
    start: usize,
    length: usize,
}

impl DmaBuffer {
    /// Keeps the bytes before `at`, a multiple of 4 KiB within the buffer, and returns those from
    /// there on as a buffer of their own.
    pub(crate) fn split_off(&mut self, at: usize) -> Self {
        assert!(at.is_multiple_of(ALIGNMENT) && 0 < at && at < self.length, "no cut within");
        let rest = Self {
            region: Arc::clone(&self.region),
            start: self.start + at,
            length: self.length - at,
        };
        self.length = at;
        rest
    }

    /// Takes the buffer that was split off right behind this one back in.
    pub(crate) fn join(&mut self, mut next: Self) {
        let adjacent = self.start + self.length == next.start;
        assert!(Arc::ptr_eq(&self.region, &next.region) && adjacent, "not split off here");
        // Nothing is left for `next` to give back when it is dropped.
        self.length += std::mem::take(&mut next.length);
    }

    /// Gives the buffer's pages back to the kernel, where that takes them (of reserved huge pages
    /// whole ones alone). The bytes are lost.
    pub(crate) fn decommit(&mut self) {
        if let Some(Mapping::Ours(mapping)) = &self.region.mapping {
            // SAFETY: the range is this buffer's alone, which nobody has a view of; pages of a
            // private anonymous mapping read as zeroes when they are touched again.
            let _ = unsafe {
                mapping.unchecked_advise_range(UncheckedAdvice::DontNeed, self.start, self.length)
            };
        }
    }

    /// Returns the address of the buffer, for the submission queue entry of a data path.
    pub fn address(&mut self) -> *mut u8 {
        // SAFETY: `start` lies within the mapping.
        unsafe { self.region.base.as_ptr().add(self.start) }
    }
}

impl Deref for DmaBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `start + length` lies within the mapping, which the Arc keeps alive; the range
        // was taken off the free list, so no other buffer overlaps it; pages of an anonymous
        // mapping are initialised. A device cannot write it: a data path owns the buffer while one
        // could.
        unsafe {
            std::slice::from_raw_parts(self.region.base.as_ptr().add(self.start), self.length)
        }
    }
}

impl DerefMut for DmaBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `&mut self` makes this the only reference to the range.
        unsafe {
            std::slice::from_raw_parts_mut(self.region.base.as_ptr().add(self.start), self.length)
        }
    }
}

impl Drop for DmaBuffer {
    fn drop(&mut self) {
        if self.length > 0 {
            self.region.free.release(self.start, self.length);
        }
    }
}

impl fmt::Debug for DmaBuffer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "DmaBuffer({} bytes at {} of its pool)", self.length, self.start)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;

    #[test]
    fn buffers_are_aligned_disjoint_and_return_on_drop() {
        let pool = DmaPool::new(ByteCount::kib(64), false).unwrap();
        let mut held: Vec<DmaBuffer> = (0..16).map(|_| pool.take(100).unwrap()).collect();
        assert!(pool.take(1).is_none(), "the pool is all out");
        for (index, buffer) in held.iter_mut().enumerate() {
            assert_eq!(buffer.address() as usize % ALIGNMENT, 0);
            assert_eq!(buffer.len(), ALIGNMENT);
            buffer.fill(index as u8);
        }
        for (index, buffer) in held.iter().enumerate() {
            assert!(buffer.iter().all(|&byte| byte == index as u8));
        }
        // Returned in an order that makes every kind of merge happen.
        for index in [3, 1, 1, 0, 5, 4, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0] {
            drop(held.remove(index));
        }
        assert_eq!(pool.take(64 << 10).unwrap().len(), 64 << 10, "the runs merged again");
    }

    #[test]
    fn a_buffer_keeps_its_memory_after_the_pool_is_gone() {
        let pool = DmaPool::new(ByteCount::kib(8), false).unwrap();
        let mut buffer = pool.take(4096).unwrap();
        drop(pool);
        buffer.fill(7);
        assert_eq!(buffer[4095], 7);
    }

    #[test]
    fn lent_memory_goes_back_with_the_last_buffer() {
        static GIVEN_BACK: AtomicUsize = AtomicUsize::new(0);
        let block: &'static mut [u8] = Box::leak(vec![0; 3 * ALIGNMENT].into_boxed_slice());
        let base = NonNull::new(block.as_mut_ptr()).unwrap();
        let release = |base: NonNull<u8>| GIVEN_BACK.store(base.as_ptr() as usize, Relaxed);
        // SAFETY: the memory was leaked for this test alone.
        let pool = unsafe {
            DmaPool::borrowed(base, 3 * ALIGNMENT, Backing::Plain, "lent".into(), release)
        };
        let buffer = pool.take(2 * ALIGNMENT).unwrap();
        assert!(pool.take(2 * ALIGNMENT).is_none());
        drop(pool);
        assert_eq!(GIVEN_BACK.load(Relaxed), 0, "a buffer is out");
        drop(buffer);
        assert_eq!(GIVEN_BACK.load(Relaxed), base.as_ptr() as usize);
    }

    #[test]
    fn anything_less_than_reserved_huge_pages_is_explained() {
        let pool = DmaPool::new(ByteCount::mib(4), true).unwrap();
        assert_eq!(pool.backing() == Backing::HugeTlb, pool.why().is_empty(), "{}", pool.why());
        let small = DmaPool::new(ByteCount::kib(4), true).unwrap();
        assert_eq!((small.backing(), small.why()), (Backing::Plain, "smaller than one huge page"));
    }

    #[test]
    fn a_pool_of_nothing_or_of_too_much_is_refused() {
        assert!(matches!(DmaPool::new(ByteCount::ZERO, false), Err(MemoryError::Empty)));
        let absurd = DmaPool::new(ByteCount(u64::MAX), true);
        assert!(matches!(absurd, Err(MemoryError::Map { .. })));
    }

    #[test]
    fn a_child_of_fork_does_not_inherit_the_pages() {
        let pool = DmaPool::new(ByteCount::kib(64), false).unwrap();
        let (base, length) = pool.span();
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let heading = format!("{:x}-", base as usize);
        let entry = maps.split_once(&heading).expect("the mapping is listed").1;
        let flags = entry.lines().find(|line| line.starts_with("VmFlags")).unwrap();
        assert!(flags.contains(" dc"), "{length} bytes are marked do-not-copy: {flags}");
    }
}
