//! A namespace that the kernel drives, asked through its ioctls.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;

use super::NvmeCommand;
use super::command::outcome;
use super::identify::{
    BlockCommandFacts, ControllerFacts, IDENTIFY_BYTES, IDENTIFY_CONTROLLER_BLOCKS, NamespaceFacts,
    command_set,
};
use super::wear;
use crate::path::device::{controllers_of, shown};
use crate::path::{Endurance, FdpStatistics, ReclaimUnitHandle, Status};

/// `_IO('N', 0x40)` of `<linux/nvme_ioctl.h>`.
const NVME_IOCTL_ID: libc::c_ulong = 0x4E40;
/// `_IOWR('N', 0x41, struct nvme_admin_cmd)`.
const NVME_IOCTL_ADMIN_CMD: libc::c_ulong = 0xC048_4E41;
/// `_IOWR('N', 0x43, struct nvme_passthru_cmd)`.
const NVME_IOCTL_IO_CMD: libc::c_ulong = 0xC048_4E43;

const IDENTIFY: u8 = 0x06;
const IDENTIFY_NAMESPACE: u32 = 0x00;
const IDENTIFY_CONTROLLER: u32 = 0x01;
const IDENTIFY_DESCRIPTORS: u32 = 0x03;
const FORMAT_NVM: u8 = 0x80;
const GET_LOG_PAGE: u8 = 0x02;
/// One of input and output.
const IO_MANAGEMENT_RECEIVE: u8 = 0x12;
/// A drive may take minutes to format itself.
const FORMAT_TIMEOUT_MS: u32 = 600_000;

/// A namespace could not be asked, or would not do as it was told.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// The device is not an NVMe namespace.
    #[error("it is no NVMe namespace that the kernel drives ({0})")]
    NotNvme(io::Error),
    /// A command failed.
    #[error("{command} failed: {status}")]
    Command {
        /// Name of the command.
        command: &'static str,
        /// Status of the command.
        status: Status,
    },
    /// The device reports impossible values.
    #[error("its answer to Identify makes no sense")]
    Nonsense,
}

/// The reason why Tidelog does not use a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnusableNamespace {
    /// The namespace has another command set.
    #[error("it is zoned: its blocks are written in order, and only whole zones are written again")]
    Zoned,
    /// The namespace has another command set of another kind.
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

    /// Returns the namespace's number on its controller.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Returns the properties of the controller.
    ///
    /// # Errors
    /// It does not say.
    pub fn controller(&self) -> Result<ControllerFacts, AdminError> {
        Ok(ControllerFacts::read(&self.identify(IDENTIFY_CONTROLLER)?))
    }

    /// Returns the controller's limits of the commands for blocks; no limits where it is too old to
    /// be asked.
    pub(in crate::path) fn block_commands(&self) -> BlockCommandFacts {
        let data = self.identify(IDENTIFY_CONTROLLER_BLOCKS);
        data.map_or_else(|_| BlockCommandFacts::default(), |data| BlockCommandFacts::read(&data))
    }

    /// Returns the properties of the namespace.
    ///
    /// # Errors
    /// It does not say.
    pub fn facts(&self) -> Result<NamespaceFacts, AdminError> {
        NamespaceFacts::read(&self.identify(IDENTIFY_NAMESPACE)?).ok_or(AdminError::Nonsense)
    }

    /// Returns the reason why Tidelog does not use it, if it does not.
    ///
    /// # Errors
    /// It does not say what it is.
    pub fn unusable(&self) -> Result<Option<UnusableNamespace>, AdminError> {
        const ZONED: u8 = 2;
        // Controllers older than the list of descriptors know one command set only.
        Ok(match self.identify(IDENTIFY_DESCRIPTORS).map_or(0, |data| command_set(&data)) {
            0 => {
                let metadata = self.facts()?.format().metadata;
                (metadata > 0).then_some(UnusableNamespace::Metadata(metadata))
            }
            ZONED => Some(UnusableNamespace::Zoned),
            set => Some(UnusableNamespace::CommandSet(set)),
        })
    }

    /// Returns the controller's counters of writes and wear, and of reclaim units where it has any.
    ///
    /// # Errors
    /// It does not say.
    pub fn endurance(&self) -> Result<Endurance, AdminError> {
        let smart = self.log_page(wear::SMART, 0)?;
        let fdp = self.fdp_statistics(&self.facts()?)?;
        Ok(wear::endurance(&smart, fdp))
    }

    /// Returns the placement handles (FDP), and what each may still write to its reclaim unit;
    /// empty where it has none.
    ///
    /// # Errors
    /// It does not say.
    pub fn placement_handles(
        &self,
        facts: &NamespaceFacts,
    ) -> Result<Vec<ReclaimUnitHandle>, AdminError> {
        // Data placement belongs to an endurance group, of which some place nothing.
        if facts.endurance_group == 0 {
            return Ok(Vec::new());
        }
        let mut data = [0; wear::HANDLES_BYTES];
        let words = [wear::RECLAIM_UNIT_HANDLE_STATUS.into(), words_of(data.len()), 0, 0, 0, 0];
        let mut command = NvmeCommand::numbered(IO_MANAGEMENT_RECEIVE, self.number, words, 0)
            .with_data(data.as_mut_ptr() as u64, data.len() as u32);
        match self.ask(NVME_IOCTL_IO_CMD, "I/O management receive", &mut command) {
            Ok(()) => Ok(wear::handles(&data, facts.format().block)),
            Err(AdminError::Command { status: Status::Nvme { .. }, .. }) => Ok(Vec::new()),
            Err(other) => Err(other),
        }
    }

    fn fdp_statistics(&self, facts: &NamespaceFacts) -> Result<Option<FdpStatistics>, AdminError> {
        let handles = self.placement_handles(facts)?;
        if handles.is_empty() {
            return Ok(None);
        }
        let page = self.log_page(wear::FDP_STATISTICS, facts.endurance_group)?;
        Ok(Some(wear::fdp_statistics(&page, handles)))
    }

    /// Formats the namespace with another format. EVERYTHING IT HOLDS IS LOST.
    ///
    /// # Errors
    /// The device refused, or failed half-way.
    pub fn format(&self, format: u8) -> Result<(), AdminError> {
        let chosen = u32::from(format & 0xF) | u32::from(format >> 4 & 3) << 12;
        let words = [chosen, 0, 0, 0, 0, 0];
        let mut command = NvmeCommand::numbered(FORMAT_NVM, self.number, words, FORMAT_TIMEOUT_MS);
        self.admin("Format NVM", &mut command)
    }

    /// Has the kernel look at its controllers' namespaces again.
    ///
    /// # Errors
    /// The kernel would not.
    pub fn rescan(&self) -> io::Result<()> {
        let controllers = controllers_of(&shown(self.file)?);
        if controllers.is_empty() {
            return Err(io::ErrorKind::NotFound.into());
        }
        controllers.iter().try_for_each(|it| fs::write(it.join("rescan_controller"), "1"))
    }

    fn identify(&self, what: u32) -> Result<[u8; IDENTIFY_BYTES], AdminError> {
        let mut data = [0; IDENTIFY_BYTES];
        let of_controller = [IDENTIFY_CONTROLLER, IDENTIFY_CONTROLLER_BLOCKS].contains(&what);
        let namespace = if of_controller { 0 } else { self.number };
        let words = [what, 0, 0, 0, 0, 0];
        let mut command = NvmeCommand::numbered(IDENTIFY, namespace, words, 0)
            .with_data(data.as_mut_ptr() as u64, IDENTIFY_BYTES as u32);
        self.admin("Identify", &mut command)?;
        Ok(data)
    }

    /// The first `N` bytes of a log page. `specific` goes with its number, for pages of an
    /// endurance group.
    fn log_page<const N: usize>(&self, number: u8, specific: u16) -> Result<[u8; N], AdminError> {
        let mut page = [0; N];
        let which = u32::from(number) | words_of(N) << 16;
        let words = [which, u32::from(specific) << 16, 0, 0, 0, 0];
        let mut command = NvmeCommand::numbered(GET_LOG_PAGE, wear::ALL_NAMESPACES, words, 0)
            .with_data(page.as_mut_ptr() as u64, N as u32);
        self.admin("Get log page", &mut command)?;
        Ok(page)
    }

    fn admin(&self, name: &'static str, command: &mut NvmeCommand) -> Result<(), AdminError> {
        self.ask(NVME_IOCTL_ADMIN_CMD, name, command)
    }

    fn ask(
        &self,
        request: libc::c_ulong,
        name: &'static str,
        command: &mut NvmeCommand,
    ) -> Result<(), AdminError> {
        // SAFETY: the kernel reads and writes one structure of exactly this type. The memory that
        // it names, if any, is a buffer of the caller's that outlives the call and is as long as
        // the command says.
        let answer = unsafe { libc::ioctl(self.file.as_raw_fd(), request as _, &raw mut *command) };
        let answer = match answer {
            -1 => -io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO),
            answer => answer,
        };
        outcome(answer).map_err(|status| AdminError::Command { command: name, status })
    }
}

/// Returns the length of a command's result in double words, counted from 0.
fn words_of(bytes: usize) -> u32 {
    bytes as u32 / 4 - 1
}
