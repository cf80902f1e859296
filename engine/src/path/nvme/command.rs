//! A command as the kernel takes it, for its ioctl and for `io_uring` alike.

use bytemuck::{Pod, Zeroable};

use super::steps::CommandStep;
use crate::path::Status;

/// Commands for input and output (NVM command set).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(in crate::path) enum Opcode {
    Flush = 0x00,
    Write = 0x01,
    Read = 0x02,
    WriteZeroes = 0x08,
    DatasetManagement = 0x09,
}

/// `struct nvme_uring_cmd` of `<linux/nvme_ioctl.h>`. `struct nvme_passthru_cmd`, for ioctls,
/// differs in nothing but that the kernel leaves the command's result in the last field.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub(in crate::path) struct NvmeCommand {
    opcode: u8,
    flags: u8,
    reserved: u16,
    namespace: u32,
    reserved_words: [u32; 2],
    metadata: u64,
    /// Address of the data.
    address: u64,
    metadata_length: u32,
    /// Bytes of data.
    length: u32,
    /// The command's own double words, 10 to 15.
    words: [u32; 6],
    /// 0 is the kernel's own time-out.
    timeout_ms: u32,
    result: u32,
}

const _: () = assert!(size_of::<NvmeCommand>() == 72);

/// Write: the data is on the medium, past any cache, when the command completes.
const FORCE_UNIT_ACCESS: u32 = 1 << 30;
/// Write: the directive that names a placement handle.
const DATA_PLACEMENT: u32 = 2 << 20;
/// Dataset management: nobody needs the ranges any more.
const DEALLOCATE: u32 = 1 << 2;

/// A range of a dataset management command.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub(in crate::path) struct Range {
    attributes: u32,
    blocks: u32,
    lba: u64,
}

impl From<CommandStep> for Range {
    fn from(step: CommandStep) -> Self {
        Self { attributes: 0, blocks: step.blocks, lba: step.lba }
    }
}

impl NvmeCommand {
    /// A command of this number, with its own double words; the kernel ends it after `timeout_ms`,
    /// unless that is 0.
    pub(super) fn numbered(opcode: u8, namespace: u32, words: [u32; 6], timeout_ms: u32) -> Self {
        Self { opcode, namespace, words, timeout_ms, ..Self::default() }
    }

    /// A command without data or extent.
    pub(in crate::path) fn plain(opcode: Opcode, namespace: u32) -> Self {
        Self { opcode: opcode as u8, namespace, ..Self::default() }
    }

    /// A read, write or write zeroes of a step's blocks.
    pub(in crate::path) fn of_blocks(opcode: Opcode, namespace: u32, step: CommandStep) -> Self {
        let (low, high) = (step.lba as u32, (step.lba >> 32) as u32);
        // The number of blocks counts from 0.
        let words = [low, high, step.blocks.wrapping_sub(1), 0, 0, 0];
        Self { words, ..Self::plain(opcode, namespace) }
    }

    /// Deallocates the range that lies there.
    pub(in crate::path) fn deallocate(namespace: u32, range: *const Range) -> Self {
        // The number of ranges counts from 0, too.
        let words = [0, DEALLOCATE, 0, 0, 0, 0];
        Self { words, ..Self::plain(Opcode::DatasetManagement, namespace) }
            .with_data(range as u64, size_of::<Range>() as u32)
    }

    /// Adds data of `length` bytes at `address`.
    pub(in crate::path) fn with_data(self, address: u64, length: u32) -> Self {
        Self { address, length, ..self }
    }

    /// Adds a placement identifier.
    pub(in crate::path) fn placed(mut self, identifier: Option<u16>) -> Self {
        if let Some(identifier) = identifier {
            self.words[2] |= DATA_PLACEMENT;
            self.words[3] = u32::from(identifier) << 16;
        }
        self
    }

    /// Forces a write through any volatile cache.
    pub(in crate::path) fn forced(mut self, fua: bool) -> Self {
        if fua {
            self.words[2] |= FORCE_UNIT_ACCESS;
        }
        self
    }
}

/// Returns the retry delay of a status (CRD): 0, or which of the controller's delays to wait.
pub(in crate::path) fn retry_delay(answer: i32) -> usize {
    u32::try_from(answer).map_or(0, |field| (field >> 11 & 3) as usize)
}

/// Converts the kernel's result of a command: 0, the status field of its completion without the
/// phase, or an error number.
pub(in crate::path) fn outcome(answer: i32) -> Result<(), Status> {
    match u32::try_from(answer) {
        Ok(0) => Ok(()),
        Ok(field) => Err(Status::Nvme {
            code_type: (field >> 8 & 7) as u8,
            code: field as u8,
            do_not_retry: field >> 14 & 1 != 0,
        }),
        Err(_) => Err(Status::Errno(answer.wrapping_neg())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: CommandStep = CommandStep { lba: 0x1_2345_6789, blocks: 8, skipped: 0 };

    #[test]
    fn a_forced_write_has_its_blocks_data_and_flag_where_the_specification_wants_them() {
        let command =
            NvmeCommand::of_blocks(Opcode::Write, 3, STEP).with_data(0xABC0, 4096).forced(true);
        let bytes = bytemuck::bytes_of(&command);
        assert_eq!((bytes[0], bytes[1]), (0x01, 0));
        assert_eq!(bytes[4..8], 3_u32.to_le_bytes());
        assert_eq!(bytes[24..32], 0xABC0_u64.to_le_bytes());
        assert_eq!(bytes[36..40], 4096_u32.to_le_bytes());
        assert_eq!(bytes[40..48], 0x1_2345_6789_u64.to_le_bytes());
        assert_eq!(bytes[48..52], (7_u32 | 1 << 30).to_le_bytes());
    }

    #[test]
    fn a_placed_write_names_the_directive_and_its_identifier() {
        let command = NvmeCommand::of_blocks(Opcode::Write, 3, STEP);
        assert_eq!(command.placed(None), command);
        let bytes = [command.forced(true).placed(Some(0x0105))];
        let bytes: &[u8] = bytemuck::cast_slice(&bytes);
        assert_eq!(bytes[48..52], (7_u32 | 2 << 20 | 1 << 30).to_le_bytes());
        assert_eq!(bytes[52..56], [0, 0, 5, 1]);
    }

    #[test]
    fn a_range_to_deallocate_is_the_commands_data() {
        let range = Range::from(STEP);
        assert_eq!(bytemuck::bytes_of(&range)[4..8], 8_u32.to_le_bytes());
        assert_eq!(bytemuck::bytes_of(&range)[8..], 0x1_2345_6789_u64.to_le_bytes());
        let command = NvmeCommand::deallocate(1, &raw const range);
        assert_eq!((command.opcode, command.words[0], command.words[1]), (0x09, 0, 4));
        assert_eq!((command.address, command.length), (&raw const range as u64, 16));
    }

    #[test]
    fn a_status_keeps_its_type_its_code_and_whether_to_try_again() {
        assert_eq!(outcome(0), Ok(()));
        let unrecovered = Status::Nvme { code_type: 2, code: 0x81, do_not_retry: false };
        assert_eq!(outcome(0x281), Err(unrecovered));
        let opcode = Status::Nvme { code_type: 0, code: 1, do_not_retry: true };
        assert_eq!(outcome(0x4001), Err(opcode));
        // Nor is the delay that the controller asks for.
        assert_eq!(outcome(0x1281), Err(unrecovered));
        assert_eq!([0x281, 0xA81, 0x1281, 0x1A81, -5].map(retry_delay), [0, 1, 2, 3, 0]);
        // More information in a log page is no part of the code.
        assert_eq!(outcome(0x2281), Err(unrecovered));
        assert_eq!(outcome(-libc::ENODEV), Err(Status::Errno(libc::ENODEV)));
    }
}
