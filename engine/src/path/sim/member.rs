//! Simulated disks as members of a pool. They are in this process's memory: nothing is locked.

use std::io;
use std::ops::Range;

use super::{SimDisk, SimDisks};
use crate::path::choose::PathProvider;
use crate::path::device::{DeviceOpenError, OpenMode};
use crate::path::endurance::Endurance;
use crate::path::member::{
    MemberDevice, MemberError, MemberSource, PathRequest, mixed, of_one_kind,
};
use crate::units::ByteCount;

struct SimMember {
    name: String,
    disk: SimDisk,
}

impl MemberSource for SimDisk {
    fn name(&self, place: usize) -> String {
        format!("sim{place}")
    }

    fn open_member(
        &self,
        place: usize,
        _shares: Range<u32>,
        _mode: OpenMode,
    ) -> Result<Box<dyn MemberDevice>, MemberError> {
        Ok(Box::new(SimMember { name: self.name(place), disk: self.clone() }))
    }
}

impl MemberDevice for SimMember {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn size(&self) -> ByteCount {
        self.disk.size()
    }

    fn endurance(&self) -> Result<Endurance, String> {
        Err("a simulated disk does not wear".into())
    }

    fn is_block_device(&self) -> bool {
        false
    }

    fn is_private(&self) -> bool {
        true
    }

    fn read(&self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let is_readable = self.disk.is_readable(offset, length as u64);
        let lost = || io::Error::from_raw_os_error(libc::EIO);
        is_readable.then(|| self.disk.peek(offset, length)).ok_or_else(lost)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.disk.overwrite(offset, bytes);
        Ok(())
    }

    fn provider(
        &self,
        members: &[&dyn MemberDevice],
        _request: &PathRequest<'_>,
    ) -> Result<Box<dyn PathProvider>, DeviceOpenError> {
        let members: Vec<&Self> = of_one_kind(members).map_err(|other| mixed(other.name()))?;
        Ok(Box::new(SimDisks(members.iter().map(|member| member.disk.clone()).collect())))
    }
}
