//! Registrations with cuFile: files and GPU memory, each given back on drop.

use std::ffi::c_void;
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use tidelog_engine::path::Status;

use super::driver::Driver;
use super::error::{CuFileError, transfer_result};
use super::sys;
use crate::cuda::{DeviceMemory, DevicePointer};

/// A file or block device that cuFile knows, deregistered on drop.
pub(crate) struct RegisteredFile {
    driver: Arc<Driver>,
    handle: sys::FileHandle,
}

impl RegisteredFile {
    /// Registers an open file. It must stay open for as long as this lives.
    pub(crate) fn new(driver: &Arc<Driver>, file: &File, name: &str) -> Result<Self, CuFileError> {
        let register = driver.library().functions.handle_register.clone()?;
        driver.library().functions.handle_deregister.clone()?;
        let mut description = sys::FileDescription {
            kind: sys::OPAQUE_DESCRIPTOR,
            descriptor: sys::Descriptor { handle: std::ptr::null_mut() },
            operations: std::ptr::null(),
        };
        description.descriptor.file = file.as_raw_fd();
        let mut handle = std::ptr::null_mut();
        // SAFETY: reads one description and writes one handle, both ours.
        let answer = unsafe { register(&raw mut handle, &raw mut description) };
        CuFileError::check(answer, format!("take {name}"))?;
        Ok(Self { driver: Arc::clone(driver), handle })
    }

    pub(super) fn handle(&self) -> sys::FileHandle {
        self.handle
    }

    /// Reads at once, to see whether it works.
    pub(crate) fn probe(&self, memory: &RegisteredMemory, length: usize) -> Result<(), Status> {
        let read = self.driver.library().functions.read.as_ref().map_err(CuFileError::status)?;
        let to = memory.base.0 as *mut c_void;
        // SAFETY: the memory is registered and at least as long (the caller's ring); the call
        // returns when it is done.
        let answer = unsafe { read(self.handle, to, length, 0, 0) };
        match transfer_result(answer)? {
            moved if moved as usize == length => Ok(()),
            moved => Err(Status::Short { moved }),
        }
    }
}

impl Drop for RegisteredFile {
    fn drop(&mut self) {
        if let (true, Ok(deregister)) =
            (self.driver.is_ours(), &self.driver.library().functions.handle_deregister)
        {
            // SAFETY: registered in `new`, deregistered once.
            unsafe { deregister(self.handle) };
        }
    }
}

/// GPU memory that cuFile has mapped for the SSDs, deregistered on drop.
pub(crate) struct RegisteredMemory {
    driver: Arc<Driver>,
    base: DevicePointer,
    length: usize,
}

impl RegisteredMemory {
    /// Registers a whole allocation.
    pub(crate) fn of(driver: &Arc<Driver>, memory: &DeviceMemory) -> Result<Self, CuFileError> {
        // SAFETY: the caller's allocation; the ring and the regions of a queue keep it for longer
        // than this.
        unsafe { Self::new(driver, memory.base(), memory.len()) }
    }

    /// Registers a range of GPU memory.
    ///
    /// # Safety
    /// The range stays allocated for as long as this lives.
    pub(crate) unsafe fn new(
        driver: &Arc<Driver>,
        base: DevicePointer,
        length: usize,
    ) -> Result<Self, CuFileError> {
        let register = driver.library().functions.buffer_register.clone()?;
        driver.library().functions.buffer_deregister.clone()?;
        // SAFETY: passed on to the caller. No flags.
        let answer = unsafe { register(base.0 as *const c_void, length, 0) };
        CuFileError::check(answer, format!("register {length} bytes of GPU memory"))?;
        Ok(Self { driver: Arc::clone(driver), base, length })
    }

    pub(crate) fn base(&self) -> DevicePointer {
        self.base
    }

    /// The addresses that it takes.
    pub(crate) fn span(&self) -> Range<u64> {
        self.base.0..self.base.0 + self.length as u64
    }
}

impl Drop for RegisteredMemory {
    fn drop(&mut self) {
        if let (true, Ok(deregister)) =
            (self.driver.is_ours(), &self.driver.library().functions.buffer_deregister)
        {
            // SAFETY: registered in `new`, deregistered once.
            unsafe { deregister(self.base.0 as *const c_void) };
        }
    }
}
