//! Memory that is a file, mapped: what a device's memory is where there is no device, for
//! controllers that are simulated.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr::NonNull;

use tidelog_engine::memory::peer::PeerMemory;

/// A file, mapped as long as this lives.
#[derive(Debug)]
pub struct FileMemory {
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping is not tied to a thread, and this does not look at it.
unsafe impl Send for FileMemory {}
// SAFETY: as above.
unsafe impl Sync for FileMemory {}

impl FileMemory {
    /// All of a file, which is whole pages.
    ///
    /// # Errors
    /// It cannot be opened or mapped.
    pub fn map(path: &Path) -> io::Result<Self> {
        let file = File::options().read(true).write(true).open(path)?;
        let length = file.metadata()?.len() as usize;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, wherever there is room.
        let base = unsafe {
            libc::mmap(std::ptr::null_mut(), length, access, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, length })
    }
}

// SAFETY: mapped in `map`, as long as the file, until this is dropped; nobody else has the mapping.
// There is no bus address.
unsafe impl PeerMemory for FileMemory {
    fn span(&self) -> (NonNull<u8>, usize) {
        (self.base, self.length)
    }

    fn bus_address(&self) -> Option<u64> {
        None
    }

    fn describe(&self) -> String {
        "a file".into()
    }
}

impl Drop for FileMemory {
    fn drop(&mut self) {
        // SAFETY: mapped in `map`, unmapped once.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.length) };
    }
}
