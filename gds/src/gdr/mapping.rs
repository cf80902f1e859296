//! GPU memory that is pinned and mapped: allocated here, so that nobody frees it under the mapping.

use std::ffi::c_void;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use tidelog_engine::memory::peer::PeerMemory;
use tidelog_engine::units::ByteCount;

use super::GdrError;
use super::library::{GdrHandle, GdrLibrary, Info, Pinned};
use crate::cuda::{DeviceMemory, DevicePointer, Gpu};

/// Memory of a GPU with an address in this process, for devices that read and write it.
pub struct MappedMemory {
    library: Arc<GdrLibrary>,
    session: GdrHandle,
    pinned: Option<Pinned>,
    /// Mapping and its size.
    mapped: Option<(NonNull<c_void>, usize)>,
    /// The memory's first byte in the mapping.
    start: NonNull<u8>,
    base: DevicePointer,
    length: usize,
    /// Freed when it is neither mapped nor pinned any more.
    memory: DeviceMemory,
}

// SAFETY: the library's functions may be called from any thread, and only `drop` calls them. Nobody
// reads or writes through the mapping here.
unsafe impl Send for MappedMemory {}
// SAFETY: as above.
unsafe impl Sync for MappedMemory {}

impl MappedMemory {
    /// Allocates `length` bytes, a multiple of 4 KiB, and has them mapped.
    ///
    /// # Errors
    /// Which step was refused, and what to do.
    pub fn new(library: &Arc<GdrLibrary>, gpu: &Arc<Gpu>, length: usize) -> Result<Self, GdrError> {
        let functions = &library.functions;
        let (open, pin, map, info) = (
            functions.open.clone()?,
            functions.pin.clone()?,
            functions.map.clone()?,
            functions.info.clone()?,
        );
        // What could not be taken back is not begun.
        functions.close.clone()?;
        functions.unpin.clone()?;
        functions.unmap.clone()?;
        // What is pinned begins and ends on pages.
        let memory = DeviceMemory::in_pages(gpu, length)?;
        memory.synchronize_copies()?;
        let (base, whole) = (memory.base(), memory.len());
        // SAFETY: takes nothing, and returns null where it fails.
        let session = unsafe { open() };
        if session.is_null() {
            return Err(GdrError::NoDriver);
        }
        let mut this = Self {
            library: Arc::clone(library),
            session,
            pinned: None,
            mapped: None,
            start: NonNull::dangling(),
            base,
            length,
            memory,
        };
        let size = ByteCount(whole as u64);
        let mut pinned = Pinned::default();
        // SAFETY: the range lies within the allocation, which is freed after it was unpinned.
        // Tokens are not used any more.
        let answer = unsafe { pin(session, base.0, whole, 0, 0, &raw mut pinned) };
        check(answer, || format!("pin {size} of GPU memory (its BAR may be too small, or full)"))?;
        this.pinned = Some(pinned);
        let mut at = std::ptr::null_mut();
        // SAFETY: the memory was just pinned; the call writes one address.
        let answer = unsafe { map(session, pinned, &raw mut at, whole) };
        check(answer, || format!("map {size} of GPU memory"))?;
        let at = NonNull::new(at).ok_or(GdrError::NoDriver)?;
        this.mapped = Some((at, whole));
        let mut told = Info::default();
        // SAFETY: the structure has room for what any version writes.
        let answer = unsafe { info(session, pinned, &raw mut told) };
        check(answer, || "tell what it has mapped".into())?;
        let (first, mapped) = (told.first, told.mapped);
        if first != base.0 || mapped < whole as u64 {
            let (address, length) = (base.0, whole as u64);
            return Err(GdrError::Elsewhere { first, mapped, address, length });
        }
        this.start = at.cast();
        Ok(this)
    }

    /// Returns the start address for the GPU.
    pub fn base(&self) -> DevicePointer {
        self.base
    }
}

fn check(answer: i32, what: impl FnOnce() -> String) -> Result<(), GdrError> {
    // It returns error numbers, some versions' negative.
    let errno = answer.abs();
    if errno == 0 { Ok(()) } else { Err(GdrError::Call { what: what(), errno }) }
}

// SAFETY: the mapping was made for this value alone, is as long as it says, and goes when this is
// dropped. The allocation is this value's too.
unsafe impl PeerMemory for MappedMemory {
    fn span(&self) -> (NonNull<u8>, usize) {
        (self.start, self.length)
    }

    fn bus_address(&self) -> Option<u64> {
        // The driver tells it to kernel modules only.
        None
    }

    fn describe(&self) -> String {
        let version = self.library.version();
        let version =
            version.map_or_else(String::new, |(major, minor)| format!(" {major}.{minor}"));
        let (size, gpu) = (ByteCount(self.length as u64), self.memory.gpu());
        format!("{size} of {gpu}, mapped by gdrcopy{version},")
    }
}

impl Drop for MappedMemory {
    fn drop(&mut self) {
        let functions = &self.library.functions;
        let (Ok(close), Ok(unpin), Ok(unmap)) =
            (&functions.close, &functions.unpin, &functions.unmap)
        else {
            return;
        };
        // SAFETY: each was made in `new` and goes once, in the order that the library asks for.
        unsafe {
            if let (Some(pinned), Some((at, length))) = (self.pinned, self.mapped) {
                unmap(self.session, pinned, at.as_ptr(), length);
            }
            if let Some(pinned) = self.pinned {
                unpin(self.session, pinned);
            }
            close(self.session);
        }
    }
}

impl fmt::Debug for MappedMemory {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "MappedMemory({})", self.describe())
    }
}
