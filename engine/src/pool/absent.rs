//! The stand-in for a device that is missing: it has the device's place, and nothing on it can be
//! read or written.

use std::io;

use crate::path::{DeviceOpenError, Endurance, MemberDevice, PathProvider, PathRequest};
use crate::units::ByteCount;

/// A device that is missing.
pub(super) struct AbsentMember {
    /// Name by its place in the pool, and by what somebody called it.
    pub(super) name: String,
    /// The size that the pool uses.
    pub(super) size: ByteCount,
}

impl AbsentMember {
    /// Makes the stand-in for the device of this place, which somebody may have named.
    pub(super) fn new(place: u32, given: Option<&str>, size: ByteCount) -> Self {
        let name = match given {
            Some(given) => format!("{given} (device {place}, missing)"),
            None => format!("device {place} (missing)"),
        };
        Self { name, size }
    }

    /// Makes the stand-in for a device that was removed from the pool.
    pub(super) fn removed(place: u32, size: ByteCount) -> Self {
        Self { name: format!("device {place} (removed)"), size }
    }
}

fn gone() -> io::Error {
    io::Error::from_raw_os_error(libc::ENODEV)
}

impl MemberDevice for AbsentMember {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn size(&self) -> ByteCount {
        self.size
    }

    fn is_absent(&self) -> bool {
        true
    }

    fn endurance(&self) -> Result<Endurance, String> {
        Err("it is missing".into())
    }

    fn is_block_device(&self) -> bool {
        false
    }

    fn is_private(&self) -> bool {
        true
    }

    fn allows_several_paths(&self) -> bool {
        true
    }

    fn read(&self, _offset: u64, _length: usize) -> io::Result<Vec<u8>> {
        Err(gone())
    }

    fn write(&self, _offset: u64, _bytes: &[u8]) -> io::Result<()> {
        Err(gone())
    }

    fn provider(
        &self,
        _members: &[&dyn MemberDevice],
        _request: &PathRequest<'_>,
    ) -> Result<Box<dyn PathProvider>, DeviceOpenError> {
        Err(DeviceOpenError::Open { path: self.name.clone().into(), source: gone() })
    }
}
