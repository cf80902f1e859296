//! A namespace that the kernel drives, asked through its admin ioctl.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;

use super::Command;
use super::command::outcome;
use super::identify::{ControllerFacts, IDENTIFY_BYTES, NamespaceFacts, command_set};
use crate::path::Status;
use crate::path::device::shown;

/// `_IO('N', 0x40)` of `<linux/nvme_ioctl.h>`.
const NVME_IOCTL_ID: libc::c_ulong = 0x4E40;
/// `_IOWR('N', 0x41, struct nvme_admin_cmd)`.
const NVME_IOCTL_ADMIN_CMD: libc::c_ulong = 0xC048_4E41;

const IDENTIFY: u8 = 0x06;
const IDENTIFY_NAMESPACE: u32 = 0x00;
const IDENTIFY_CONTROLLER: u32 = 0x01;
const IDENTIFY_DESCRIPTORS: u32 = 0x03;
const FORMAT_NVM: u8 = 0x80;
/// A drive may take minutes to format itself.
const FORMAT_TIMEOUT_MS: u32 = 600_000;

/// A namespace could not be asked, or would not do as it was told.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// It is none.
    #[error("it is no NVMe namespace that the kernel drives ({0})")]
    NotNvme(io::Error),
    /// A command failed.
    #[error("{command} failed: {status}")]
    Command {
        /// Which.
        command: &'static str,
        /// What was answered.
        status: Status,
    },
    /// What it says of itself cannot be.
    #[error("its answer to Identify makes no sense")]
    Nonsense,
}

/// Why Tidelog does not use a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// Another command set.
    #[error("it is zoned: its blocks are written in order, and only whole zones are written again")]
    Zoned,
    /// Yet another one.
    #[error("its command set, number {0}, is not the one of blocks")]
    CommandSet(u8),
    /// The kernel, or nobody, moves this along with the data.
    #[error("its format has {0} bytes of metadata with each block")]
    Metadata(u16),
}

/// An open namespace: its block device, or its generic character device.
#[derive(Debug)]
pub struct Namespace<'a> {
    file: &'a File,
    number: u32,
}

impl<'a> Namespace<'a> {
    /// The namespace that `file` is.
    ///
    /// # Errors
    /// It is none. A partition is not.
    pub fn of(file: &'a File) -> Result<Self, AdminError> {
        // SAFETY: the request has no argument.
        let number = unsafe { libc::ioctl(file.as_raw_fd(), NVME_IOCTL_ID as _) };
        match u32::try_from(number) {
            Ok(number) if number > 0 => Ok(Self { file, number }),
            Ok(_) => Err(AdminError::Nonsense),
            Err(_) => Err(AdminError::NotNvme(io::Error::last_os_error())),
        }
    }

    /// Its number on its controller.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// What its controller says of itself.
    ///
    /// # Errors
    /// It does not say.
    pub fn controller(&self) -> Result<ControllerFacts, AdminError> {
        Ok(ControllerFacts::read(&self.identify(IDENTIFY_CONTROLLER)?))
    }

    /// What it says of itself.
    ///
    /// # Errors
    /// It does not say.
    pub fn facts(&self) -> Result<NamespaceFacts, AdminError> {
        NamespaceFacts::read(&self.identify(IDENTIFY_NAMESPACE)?).ok_or(AdminError::Nonsense)
    }

    /// Why Tidelog does not use it, if it does not.
    ///
    /// # Errors
    /// It does not say what it is.
    pub fn unusable(&self) -> Result<Option<Unusable>, AdminError> {
        const ZONED: u8 = 2;
        // Controllers older than the list of descriptors know one command set only.
        Ok(match self.identify(IDENTIFY_DESCRIPTORS).map_or(0, |data| command_set(&data)) {
            0 => {
                let metadata = self.facts()?.format().metadata;
                (metadata > 0).then_some(Unusable::Metadata(metadata))
            }
            ZONED => Some(Unusable::Zoned),
            set => Some(Unusable::CommandSet(set)),
        })
    }

    /// Gives it another format. EVERYTHING IT HOLDS IS LOST.
    ///
    /// # Errors
    /// The device refused, or failed half-way.
    pub fn format(&self, format: u8) -> Result<(), AdminError> {
        let chosen = u32::from(format & 0xF) | u32::from(format >> 4 & 3) << 12;
        let words = [chosen, 0, 0, 0, 0, 0];
        let mut command = Command::admin(FORMAT_NVM, self.number, words, FORMAT_TIMEOUT_MS);
        self.admin("Format NVM", &mut command)
    }

    /// Has the kernel look at its controller's namespaces again.
    ///
    /// # Errors
    /// The kernel would not.
    pub fn rescan(&self) -> io::Result<()> {
        let shown = shown(self.file)?;
        let mut rescan = shown.ancestors().map(|above| above.join("rescan_controller"));
        fs::write(rescan.find(|it| it.exists()).ok_or(io::ErrorKind::NotFound)?, "1")
    }

    fn identify(&self, what: u32) -> Result<[u8; IDENTIFY_BYTES], AdminError> {
        let mut data = [0; IDENTIFY_BYTES];
        let namespace = if what == IDENTIFY_CONTROLLER { 0 } else { self.number };
        let words = [what, 0, 0, 0, 0, 0];
        let mut command = Command::admin(IDENTIFY, namespace, words, 0)
            .with_data(data.as_mut_ptr() as u64, IDENTIFY_BYTES as u32);
        self.admin("Identify", &mut command)?;
        Ok(data)
    }

    fn admin(&self, name: &'static str, command: &mut Command) -> Result<(), AdminError> {
        // SAFETY: the kernel reads and writes one structure of exactly this type. The memory that it names, if any, is a
        // buffer of the caller's that outlives the call and is as long as the command says.
        let answer = unsafe {
            libc::ioctl(self.file.as_raw_fd(), NVME_IOCTL_ADMIN_CMD as _, &raw mut *command)
        };
        let answer = match answer {
            -1 => -io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO),
            answer => answer,
        };
        outcome(answer).map_err(|status| AdminError::Command { command: name, status })
    }
}
