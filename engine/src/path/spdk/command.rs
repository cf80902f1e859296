//! Commands as the controller sees them, for what SPDK's own calls do not say: bus addresses,
//! placement handles (26.05 takes one in `spdk_nvme_ns_cmd_write_ext` and then sends 0), and limits
//! of the commands for blocks.

use tidelog_spdk_sys as sys;

use crate::path::nvme::steps::CommandStep;

/// The directive type of a write that names a placement handle.
const DATA_PLACEMENT: u32 = 2;

/// The admin command that asks what something is (NVMe base specification, 5.17).
const IDENTIFY: u32 = 0x06;

/// A read or write (NVM command set, 3.2), or an Identify, without its number and, where SPDK
/// translates, its addresses: SPDK adds them.
#[repr(C, align(8))]
pub(super) struct SpdkCommand([u32; 16]);

impl SpdkCommand {
    pub(super) fn new(
        opcode: u32,
        namespace: u32,
        CommandStep { lba, blocks, .. }: CommandStep,
        fua: bool,
    ) -> Self {
        let mut words = [0; 16];
        words[0] = opcode;
        words[1] = namespace;
        words[10..12].copy_from_slice(&halves(lba));
        // Blocks count from 0.
        words[12] = (blocks - 1) | u32::from(fua) << 30;
        Self(words)
    }

    /// An Identify that asks a controller for this (CNS).
    pub(super) fn identify(what: u32) -> Self {
        let mut words = [0; 16];
        (words[0], words[10]) = (IDENTIFY, what);
        Self(words)
    }

    /// Adds a placement identifier.
    pub(super) fn placed(mut self, identifier: u16) -> Self {
        self.0[12] |= DATA_PLACEMENT << 20;
        self.0[13] = u32::from(identifier) << 16;
        self
    }

    /// Adds the two fields that say which pages of memory it moves.
    pub(super) fn pages(mut self, (first, second): (u64, u64)) -> Self {
        self.0[6..8].copy_from_slice(&halves(first));
        self.0[8..10].copy_from_slice(&halves(second));
        self
    }

    pub(super) fn as_mut_ptr(&mut self) -> *mut sys::spdk_nvme_cmd {
        self.0.as_mut_ptr().cast()
    }
}

fn halves(it: u64) -> [u32; 2] {
    [it as u32, (it >> 32) as u32]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_has_its_fields_where_the_specification_has_them() {
        let step = CommandStep { lba: 0x1_0000_0002, blocks: 8, skipped: 0 };
        let SpdkCommand(words) =
            SpdkCommand::new(1, 3, step, true).pages((0x1111_2222_3333, 0x4444));
        assert_eq!(words[..2], [1, 3]);
        assert_eq!(words[6..14], [0x2222_3333, 0x1111, 0x4444, 0, 2, 1, 7 | 1 << 30, 0]);
        let SpdkCommand(words) = SpdkCommand::new(1, 3, step, false).placed(5);
        assert_eq!(words[6..14], [0, 0, 0, 0, 2, 1, 7 | 2 << 20, 5 << 16]);
    }
}
