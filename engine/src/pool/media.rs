//! The change log's view of devices: blocking reads, writes and flushes through the reactor.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use super::error::OpenError;
use super::members::{Member, Members, MembersReactor};
use crate::log::LogMedia;
use crate::path::{OpenMode, Status};
use crate::schedule::{
    ControlError, DrainError, Reactor, ReactorOptions, StartError, TransferError,
};
use crate::units::{ByteCount, DeviceIndex, DeviceSet};

/// Returns the options of a reactor that moves metadata alone. The structures are small: more
/// staging memory would be cleared and pinned for nothing.
pub(super) fn metadata_only() -> ReactorOptions {
    ReactorOptions {
        chunk: ByteCount::kib(256),
        staging: ByteCount::mib(2),
        huge_pages: false,
        ..ReactorOptions::default()
    }
}

/// Reads and writes metadata of devices that nobody else has, and ends the data path again.
pub(super) fn with_media<T, E>(
    members: &Members,
    buffered: bool,
    act: impl FnOnce(&MetadataIo<'_>) -> Result<T, E>,
) -> Result<T, E>
where
    E: From<OpenError> + From<StartError> + From<DrainError>,
{
    let mode = OpenMode { buffered, ..OpenMode::default() };
    let provider = members.best_provider(mode).map_err(OpenError::from)?;
    let reactor = MembersReactor::new(members, Reactor::start(provider, metadata_only())?);
    let (written, missing) = (&AtomicU64::new(0), members.absent());
    let done = act(&MetadataIo { reactor: &reactor, written, missing })?;
    reactor.close()?;
    Ok(done)
}

/// Metadata I/O through a reactor.
pub(super) struct MetadataIo<'a> {
    pub(super) reactor: &'a Reactor,
    /// Counts the metadata bytes written.
    pub(super) written: &'a AtomicU64,
    /// Devices that get nothing: whatever they should have is made anew on their replacements.
    pub(super) missing: DeviceSet,
}

impl LogMedia for MetadataIo<'_> {
    type Error = ControlError;

    fn is_of_block(error: &ControlError) -> bool {
        match error {
            ControlError::Transfer(TransferError::Device { error, .. }) => {
                !error.status.is_removal()
            }
            _ => false,
        }
    }

    fn read(&self, device: u8, offset: u64, length: u64) -> Result<Vec<u8>, ControlError> {
        self.reactor.read_meta(DeviceIndex(device), ByteCount(offset), length as usize)
    }

    fn write(&self, device: u8, offset: u64, bytes: Vec<u8>) -> Result<(), ControlError> {
        if self.missing.contains(DeviceIndex(device)) {
            return Ok(());
        }
        self.written.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        // Not forced one by one: the flush that follows covers the whole write at once.
        self.reactor.write_meta(DeviceIndex(device), ByteCount(offset), bytes, false)
    }

    fn flush(&self, device: u8) -> Result<(), ControlError> {
        if self.missing.contains(DeviceIndex(device)) {
            return Ok(());
        }
        self.reactor.flush(&[DeviceIndex(device)])
    }
}

/// Devices that are open for reading; some may be missing.
pub(super) struct MemberMedia<'a>(pub(super) &'a [Option<&'a Member>]);

impl LogMedia for MemberMedia<'_> {
    type Error = io::Error;

    fn is_of_block(error: &io::Error) -> bool {
        error.raw_os_error().is_some_and(|errno| !Status::Errno(errno).is_removal())
    }

    fn read(&self, device: u8, offset: u64, length: u64) -> io::Result<Vec<u8>> {
        let Some(Some(member)) = self.0.get(usize::from(device)) else {
            return Err(io::Error::other(format!("device {device} is not at hand")));
        };
        member.read(offset, length as usize)
    }

    fn write(&self, _: u8, _: u64, _: Vec<u8>) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn flush(&self, _: u8) -> io::Result<()> {
        Ok(())
    }
}
