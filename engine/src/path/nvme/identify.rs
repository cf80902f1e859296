//! Properties of controllers and namespaces, as reported (NVMe base 2.0, Identify; NVM command set
//! 1.0).

/// Bytes of the data that Identify returns.
pub(in crate::path) const IDENTIFY_BYTES: usize = 4096;
/// Identifier (CNS) of the query for a controller's [`BlockCommandFacts`].
pub(in crate::path) const IDENTIFY_CONTROLLER_BLOCKS: u32 = 0x06;
/// A page of a controller's memory is at least this large; the largest transfer is given in pages.
const PAGE: u64 = 4096;

/// Properties of a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControllerFacts {
    /// The most bytes that a command may move, if there is a limit.
    pub transfer: Option<u64>,
    /// True if a write that completed may still be lost when the power goes.
    pub volatile_cache: bool,
    /// True if the controller facts knows how to deallocate.
    pub deallocate: bool,
    /// Namespaces that a format reaches.
    pub formats: Formats,
    /// Delays before a retry, in milliseconds: by what its status says (CRD 1 to 3).
    pub retry_delays_ms: [u32; 3],
}

/// Limits of a controller's commands for blocks (Identify, CNS 06h): the most that some of them
/// cover.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::path) struct BlockCommandFacts {
    /// Bytes that a Write Zeroes covers (WZSL).
    pub(in crate::path) zeroes: Option<u64>,
    /// Blocks of a range of Dataset Management (DMRSL).
    pub(in crate::path) range_blocks: Option<u32>,
    /// Blocks of all its ranges together (DMSL).
    pub(in crate::path) ranges_blocks: Option<u64>,
}

impl BlockCommandFacts {
    pub(in crate::path) fn read(data: &[u8; IDENTIFY_BYTES]) -> Self {
        let total = <[u8; 8]>::try_from(&data[8..16]).map_or(0, u64::from_le_bytes);
        let range = u32::from_le_bytes([data[4], data[5], data[6], data[7]]);
        Self {
            zeroes: pages(data[1]),
            range_blocks: (range > 0).then_some(range),
            ranges_blocks: (total > 0).then_some(total),
        }
    }
}

/// A number of pages by its exponent; 0 stands for no limit.
fn pages(exponent: u8) -> Option<u64> {
    (exponent > 0).then(|| PAGE.checked_shl(exponent.into()).unwrap_or(u64::MAX))
}

/// Namespaces that a controller formats when it is told to format one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Formats {
    /// None: the controller cannot format.
    Nothing,
    /// The named one.
    One,
    /// All namespaces of the controller.
    All,
}

/// Properties of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceFacts {
    /// The capacity in blocks.
    pub blocks: u64,
    /// The formats that it can have.
    pub formats: Vec<LbaFormat>,
    /// The one that it has.
    pub current: usize,
    /// The endurance group that it belongs to; 0 for none.
    pub endurance_group: u16,
}

/// One way to divide a namespace into blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LbaFormat {
    /// The number.
    pub index: u8,
    /// Bytes of data in a block.
    pub block: u32,
    /// Bytes of metadata with each block.
    pub metadata: u16,
    /// Relative performance among the formats: 0 is the best, 3 the worst.
    pub performance: u8,
}

impl NamespaceFacts {
    /// The format that it has.
    pub fn format(&self) -> LbaFormat {
        self.formats[self.current]
    }
}

impl ControllerFacts {
    pub(super) fn read(data: &[u8; IDENTIFY_BYTES]) -> Self {
        let admin = u16::from_le_bytes([data[256], data[257]]);
        let commands = u16::from_le_bytes([data[520], data[521]]);
        Self {
            transfer: pages(data[77]),
            volatile_cache: data[525] & 1 != 0,
            deallocate: commands & 1 << 2 != 0,
            formats: match (admin & 1 << 1 != 0, data[524] & 1 != 0) {
                (false, _) => Formats::Nothing,
                (true, false) => Formats::One,
                (true, true) => Formats::All,
            },
            retry_delays_ms: [128, 130, 132].map(|at| {
                // In tenths of a second.
                u32::from(u16::from_le_bytes([data[at], data[at + 1]])) * 100
            }),
        }
    }
}

impl NamespaceFacts {
    /// `None` where the format that it has is none of those that it lists.
    pub(super) fn read(data: &[u8; IDENTIFY_BYTES]) -> Option<Self> {
        const FORMATS: usize = 128;
        let count = usize::from(data[25]) + 1;
        let read = |index: usize| {
            let at = FORMATS + 4 * index;
            let exponent = u32::from(data[at + 2]);
            // 0 stands for a format that there is not.
            let block = (9..32).contains(&exponent).then(|| 1 << exponent)?;
            let metadata = u16::from_le_bytes([data[at], data[at + 1]]);
            Some(LbaFormat { index: index as u8, block, metadata, performance: data[at + 3] & 3 })
        };
        let formats: Vec<LbaFormat> = (0..count.min(64)).filter_map(read).collect();
        let chosen = (data[26] & 0xF) | (data[26] >> 1 & 0x30);
        let current = formats.iter().position(|format| format.index == chosen)?;
        let blocks = u64::from_le_bytes(data[..8].try_into().ok()?);
        let endurance_group = u16::from_le_bytes([data[102], data[103]]);
        Some(Self { blocks, formats, current, endurance_group })
    }
}

/// The command set of a namespace, in its list of descriptors; 0, blocks that are read and written
/// at will, where it does not say.
pub(super) fn command_set(data: &[u8; IDENTIFY_BYTES]) -> u8 {
    const COMMAND_SET: u8 = 4;
    let mut rest = &data[..];
    while let [kind, length, _, _, after @ ..] = rest {
        let length = usize::from(*length);
        if length == 0 || length > after.len() {
            break;
        }
        if *kind == COMMAND_SET {
            return after[0];
        }
        rest = &after[length..];
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_controllers_limits_and_abilities_are_read() {
        let mut data = [0; IDENTIFY_BYTES];
        assert_eq!(ControllerFacts::read(&data).transfer, None);
        (data[77], data[256], data[520], data[525]) = (5, 0b10, 0b100, 1);
        let found = ControllerFacts::read(&data);
        assert_eq!(found.transfer, Some(128 << 10));
        assert!(found.volatile_cache && found.deallocate);
        assert_eq!(found.formats, Formats::One);
        data[524] = 1;
        assert_eq!(ControllerFacts::read(&data).formats, Formats::All);
        data[77] = 200;
        assert_eq!(ControllerFacts::read(&data).transfer, Some(u64::MAX));
        (data[128], data[131]) = (5, 1);
        assert_eq!(ControllerFacts::read(&data).retry_delays_ms, [500, 25_600, 0]);
    }

    #[test]
    fn what_commands_for_blocks_cover_is_read_and_zero_is_no_limit() {
        let mut data = [0; IDENTIFY_BYTES];
        assert_eq!(BlockCommandFacts::read(&data), BlockCommandFacts::default());
        (data[0], data[1], data[3], data[5], data[9]) = (9, 3, 7, 1, 2);
        let found = BlockCommandFacts::read(&data);
        assert_eq!(found.zeroes, Some(32 << 10));
        assert_eq!((found.range_blocks, found.ranges_blocks), (Some(256), Some(512)));
    }

    #[test]
    fn a_namespaces_formats_are_read_and_what_is_no_format_is_left_out() {
        let mut data = [0; IDENTIFY_BYTES];
        data[..8].copy_from_slice(&1000_u64.to_le_bytes());
        data[25] = 3;
        data[26] = 2;
        data[102] = 1;
        data[128..132].copy_from_slice(&[0, 0, 9, 2]);
        data[136..140].copy_from_slice(&[8, 0, 12, 0]);
        data[140..144].copy_from_slice(&[0, 0, 12, 1]);
        let found = NamespaceFacts::read(&data).unwrap();
        assert_eq!((found.blocks, found.formats.len(), found.endurance_group), (1000, 3, 1));
        let current = LbaFormat { index: 2, block: 4096, metadata: 8, performance: 0 };
        assert_eq!(found.format(), current);
        data[26] = 1;
        assert_eq!(NamespaceFacts::read(&data), None, "it cannot have a format that there is not");
    }

    #[test]
    fn the_command_set_is_found_behind_other_descriptors() {
        let mut data = [0; IDENTIFY_BYTES];
        assert_eq!(command_set(&data), 0);
        data[..2].copy_from_slice(&[1, 8]);
        data[12..14].copy_from_slice(&[4, 1]);
        data[16] = 2;
        assert_eq!(command_set(&data), 2);
        // A descriptor that ends beyond the data says nothing.
        data[1] = 255;
        data[259..261].copy_from_slice(&[4, 255]);
        assert_eq!(command_set(&data), 0);
    }
}
