//! The superblock: what makes a device a pool's device. It stands twice on every device.

use bytemuck::{Pod, Zeroable};
use thiserror::Error;

use super::blocks::BlockFormat;
use super::device_table::{DEVICE_SETS_MAX, DeviceRates, DeviceTable};
use super::endian::{U16, U32, U64, U128};
use super::geometry::{Geometry, GeometryError};
use super::{BLOCK_BYTES, Copies, DEVICES_MAX, SHARES_MAX, checksum_of, is_zero};
use crate::units::DeviceSet;

/// The first eight bytes of a superblock.
pub const MAGIC: [u8; 8] = *b"TIDELOG\0";

/// The version of the format this code writes, and the only one it reads.
pub const FORMAT_VERSION: u32 = 1;

/// Calibration stores no larger depth. What is beyond is taken for none: a hint is no reason to
/// refuse a pool.
const DEPTH_MAX: u32 = 1024;

/// Index checkpoints may go on in segments of the log.
const INDEX_IN_SEGMENTS: u64 = 1 << 2;

/// The index may have seals.
const SEALS: u64 = 1 << 3;

/// Blocks of checkpoints and change records have checksums of their own.
const BLOCK_CHECKSUMS: u64 = 1 << 4;

/// Tensors may have two copies.
const COPIES: u64 = 1 << 5;

/// The pool has gone on without a device, which must not be used as it was.
const DEGRADED: u64 = 1 << 6;

/// The pool has got devices, or has given some up, since it was formatted.
const DEVICE_TABLE: u64 = 1 << 7;

/// Feature bits that a reader must know, by bit and name.
const FEATURES: &[(u64, &str)] = &[
    (INDEX_IN_SEGMENTS, "index-in-segments"),
    (SEALS, "seals"),
    (BLOCK_CHECKSUMS, "block-checksums"),
    (COPIES, "copies"),
    (DEGRADED, "degraded"),
    (DEVICE_TABLE, "device-table"),
];

/// Names for features that later versions may set, so that a refusal says more than a number.
const FEATURES_FORESEEN: &[(u64, &str)] = &[(1 << 0, "copy-forward"), (1 << 1, "data-placement")];

/// One share as the superblock's table records it.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct ShareOnMedia {
    pub(super) metadata_offset: U64,
    pub(super) metadata_bytes: U64,
    pub(super) first_segment: U32,
    pub(super) segments: U32,
    pub(super) reserved: [u8; 40],
}

/// The superblock's block as it stands on the media.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct SuperblockOnMedia {
    pub(super) magic: [u8; 8],
    pub(super) version: U32,
    /// CRC32C over the block with this field as zero.
    pub(super) checksum: U32,
    pub(super) generation: U64,
    pub(super) features: U64,
    pub(super) pool: U128,
    pub(super) device: U32,
    pub(super) devices: U32,
    pub(super) device_bytes: U64,
    pub(super) stripe_unit: U64,
    pub(super) segment_bytes: U64,
    pub(super) data_offset: U64,
    pub(super) slot_bytes: U64,
    pub(super) segments: U32,
    pub(super) shares: U32,
    pub(super) formatted_at: U64,
    pub(super) depth: U32,
    pub(super) copies: U32,
    pub(super) missing: U64,
    pub(super) reserved: [u8; 128],
    pub(super) share_table: [ShareOnMedia; SHARES_MAX as usize],
    pub(super) sets: [U64; DEVICE_SETS_MAX],
    pub(super) current_set: U32,
    pub(super) unused: U32,
    pub(super) metadata: U64,
    pub(super) removed: U64,
    pub(super) rates: [U16; DEVICES_MAX],
    pub(super) tail: [u8; 1576],
}

const _: () = assert!(size_of::<ShareOnMedia>() == 64);
const _: () = assert!(size_of::<SuperblockOnMedia>() == BLOCK_BYTES as usize);

/// Content of a superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Counts the times this pool's superblocks were written; the highest valid one holds.
    pub generation: u64,
    /// The pool's own random 128 bits.
    pub pool: u128,
    /// Index of this device in the pool.
    pub device: u32,
    /// Geometry of the devices.
    pub geometry: Geometry,
    /// Time at which the pool was formatted, in seconds since 1970.
    pub formatted_at: u64,
    /// Operations in flight on each device at which calibration found them fast, if the pool was
    /// calibrated.
    pub depth: Option<u32>,
    /// True if index checkpoints may go on in segments of the log (feature bit 2). Older software
    /// does not know that and refuses the pool.
    pub index_in_segments: bool,
    /// True if the index may have seals (feature bit 3). Older software does not know them and
    /// refuses the pool.
    pub seals: bool,
    /// True if blocks of checkpoints and change records have checksums of their own (feature bit
    /// 4), from the pool's first on. Older software does not know them and refuses the pool.
    pub block_checksums: bool,
    /// Number of copies of durable tensors whose put does not say, if tensors may have two (feature
    /// bit 5). Older software does not know them and refuses the pool.
    pub copies: Option<Copies>,
    /// The devices without which the pool has gone on (feature bit 6). One of them that says so of
    /// itself is a replacement that is not complete yet. Older software refuses the pool.
    pub missing: DeviceSet,
    /// The devices of the pool, where they are not those of its format (feature bit 7). Older
    /// software refuses the pool.
    pub table: Option<DeviceTable>,
}

/// The reason why a block is not a superblock that this version can use.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum SuperblockError {
    /// The block does not start as a superblock does.
    #[error("no Tidelog superblock stands here")]
    Absent,
    /// The mark of a format stands in the place of the first one, and nothing whole in that of the
    /// second.
    #[error("a format of it was interrupted; format it again")]
    Unfinished,
    /// The block starts like a superblock, but its checksum does not match.
    #[error("the superblock is damaged: checksum {found:#010x}, expected {expected:#010x}")]
    Checksum {
        /// The checksum it carries.
        expected: u32,
        /// The checksum of what is there.
        found: u32,
    },
    /// The superblock has another version of the format.
    #[error("the pool has format version {0}; this version reads {FORMAT_VERSION}")]
    Version(u32),
    /// Features that this version does not know: using the pool could damage it.
    #[error("the pool uses features this version does not know: {0}")]
    Features(String),
    /// The superblock copies are whole, of different devices, and nothing else says which is right.
    #[error(
        "its two superblocks are whole and contradict each other: A is {first}, B is {second}; nothing tells \
         which is right"
    )]
    Disagree {
        /// Pool and device of the first copy.
        first: String,
        /// Pool and device of the second copy.
        second: String,
    },
    /// Numbers that contradict each other.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// The device says that it stands outside its own pool.
    #[error("the superblock says device {device} of {devices}")]
    Place {
        /// The place.
        device: u32,
        /// Devices in its pool.
        devices: u32,
    },
}

/// Returns whether a sector behind the first one of a superblock may have this: rows of shares, and
/// in one sector the table of devices behind them.
pub(super) fn is_part_of_tables(sector: &[u8]) -> bool {
    const BEFORE: usize = std::mem::offset_of!(SuperblockOnMedia, sets) % 512;
    const TABLE: usize = std::mem::offset_of!(SuperblockOnMedia, tail)
        - std::mem::offset_of!(SuperblockOnMedia, sets);
    if is_part_of_share_table(sector) {
        return true;
    }
    let (rows, rest) = sector.split_at(BEFORE);
    let (found, rest) = rest.split_at(TABLE);
    let mut block = SuperblockOnMedia::zeroed();
    block.features = DEVICE_TABLE.into();
    block.devices = 64.into();
    let at = std::mem::offset_of!(SuperblockOnMedia, sets);
    bytemuck::bytes_of_mut(&mut block)[at..at + TABLE].copy_from_slice(found);
    is_part_of_share_table(rows) && is_zero(rest) && decode_table(&block).is_ok()
}

/// Returns whether these are rows of shares, each of which begins where the one before ends, and
/// zeroes behind them.
fn is_part_of_share_table(sector: &[u8]) -> bool {
    let is_blank = |row: &ShareOnMedia| is_zero(bytemuck::bytes_of(row));
    let rows = sector.chunks_exact(size_of::<ShareOnMedia>()).map(bytemuck::pod_read_unaligned);
    let rows: Vec<ShareOnMedia> = rows.collect();
    let (rows, rest) = rows.split_at(rows.iter().position(is_blank).unwrap_or(rows.len()));
    let follows = |pair: &[ShareOnMedia]| {
        let [one, next] = [pair[0], pair[1]];
        let end = one.metadata_offset.get().wrapping_add(one.metadata_bytes.get());
        let segment = one.first_segment.get().wrapping_add(one.segments.get());
        (next.metadata_offset.get(), next.first_segment.get()) == (end, segment)
    };
    rest.iter().all(is_blank)
        && rows.iter().all(|row| is_zero(&row.reserved))
        && rows.windows(2).all(follows)
}

impl SuperblockError {
    /// Returns whether the block is whole, and only software that knows more may use it.
    pub fn is_of_another_version(&self) -> bool {
        matches!(self, Self::Version(_) | Self::Features(_))
    }
}

impl Superblock {
    /// Returns whether both superblocks are of one device of the same pool, of whatever generation.
    pub fn is_of_the_same_device(&self, other: &Self) -> bool {
        self.is_of_the_same_pool(other) && self.device == other.device
    }

    /// Returns the number of copies of durable tensors whose put does not say.
    pub fn default_copies(&self) -> Copies {
        self.copies.unwrap_or(Copies::One)
    }

    /// Returns whether both superblocks are of one pool, which may have got devices meanwhile.
    pub fn is_of_the_same_pool(&self, other: &Self) -> bool {
        let apart = |it: &Self| (it.pool, Geometry { devices: 0, ..it.geometry });
        apart(self) == apart(other)
    }

    /// Returns the devices of the pool.
    pub fn device_table(&self) -> DeviceTable {
        self.table.unwrap_or_else(|| DeviceTable::of_all(self.geometry.devices))
    }

    /// Returns this superblock with the devices that another one says the pool has.
    #[must_use]
    pub fn with_devices_of(&self, other: &Self) -> Self {
        let geometry = Geometry { devices: other.geometry.devices, ..self.geometry };
        Self { geometry, table: other.table, ..*self }
    }

    /// Returns pool and device, for messages.
    pub fn whose(&self) -> String {
        format!("device {}'s of pool {:032x}", self.device, self.pool)
    }

    /// Returns the offset of the second copy if these bytes are those of a first one, which may be
    /// damaged.
    pub fn claimed_second_offset(bytes: &[u8]) -> Option<u64> {
        let block: SuperblockOnMedia = bytemuck::try_pod_read_unaligned(bytes).ok()?;
        let end = Some(block.device_bytes.get()).filter(|_| block.magic == MAGIC)?;
        end.checked_sub(BLOCK_BYTES)
    }

    /// Returns whether a block begins as a superblock does, though it be damaged.
    pub fn is_marked(block: &[u8]) -> bool {
        super::is_marked(block, MAGIC)
    }

    /// Returns the format of checkpoints and change records in blocks.
    pub fn block_format(&self) -> BlockFormat {
        if self.block_checksums { BlockFormat::Checked } else { BlockFormat::Plain }
    }

    /// The block that stands on the media.
    pub fn encode(&self) -> Vec<u8> {
        let mut block = SuperblockOnMedia::zeroed();
        let geometry = &self.geometry;
        block.magic = MAGIC;
        block.version = FORMAT_VERSION.into();
        block.generation = self.generation.into();
        block.pool = self.pool.into();
        block.device = self.device.into();
        block.devices = geometry.devices.into();
        block.device_bytes = geometry.device_bytes.into();
        block.stripe_unit = geometry.stripe_unit.into();
        block.segment_bytes = geometry.segment_bytes.into();
        block.data_offset = geometry.data_offset.into();
        block.slot_bytes = geometry.slot_bytes.into();
        block.segments = geometry.segments.into();
        block.shares = geometry.shares.into();
        block.formatted_at = self.formatted_at.into();
        block.depth = self.depth.unwrap_or(0).into();
        let bit = |is_set: bool, bit: u64| if is_set { bit } else { 0 };
        let features = bit(self.index_in_segments, INDEX_IN_SEGMENTS)
            | bit(self.seals, SEALS)
            | bit(self.block_checksums, BLOCK_CHECKSUMS)
            | bit(self.copies.is_some(), COPIES)
            | bit(!self.missing.is_empty(), DEGRADED)
            | bit(self.table.is_some(), DEVICE_TABLE);
        block.features = features.into();
        // One is zero, as where older software has reserved bytes.
        block.copies = (self.default_copies().count() - 1).into();
        block.missing = self.missing.bits().into();
        if let Some(DeviceTable { sets, current, metadata, removed, rates }) = &self.table {
            block.sets = sets.map(|set| set.bits().into());
            block.rates = rates.0.map(Into::into);
            block.current_set = u32::from(*current).into();
            (block.metadata, block.removed) = (metadata.bits().into(), removed.bits().into());
        }
        for (place, share) in block.share_table.iter_mut().zip(share_table(geometry)) {
            *place = share;
        }
        block.checksum = checksum_of(&[bytemuck::bytes_of(&block)]).into();
        bytemuck::bytes_of(&block).to_vec()
    }

    /// Reads a block.
    ///
    /// # Errors
    /// It is no superblock, damaged, or of a kind this version must not touch.
    pub fn decode(bytes: &[u8]) -> Result<Self, SuperblockError> {
        let Ok(mut block) = bytemuck::try_pod_read_unaligned::<SuperblockOnMedia>(bytes) else {
            return Err(SuperblockError::Absent);
        };
        if block.magic != MAGIC {
            return Err(SuperblockError::Absent);
        }
        let expected = block.checksum.get();
        block.checksum = 0.into();
        let found = checksum_of(&[bytemuck::bytes_of(&block)]);
        if expected != found {
            return Err(SuperblockError::Checksum { expected, found });
        }
        if block.version.get() != FORMAT_VERSION {
            return Err(SuperblockError::Version(block.version.get()));
        }
        refuse_unknown_features(block.features.get())?;
        let geometry = Geometry {
            devices: block.devices.get(),
            device_bytes: block.device_bytes.get(),
            stripe_unit: block.stripe_unit.get(),
            segment_bytes: block.segment_bytes.get(),
            segments: block.segments.get(),
            data_offset: block.data_offset.get(),
            shares: block.shares.get(),
            slot_bytes: block.slot_bytes.get(),
        };
        geometry.check()?;
        let device = block.device.get();
        if device >= geometry.devices {
            return Err(SuperblockError::Place { device, devices: geometry.devices });
        }
        // The table is derived from the geometry; a table that says otherwise was not written by
        // us.
        let agrees = share_table(&geometry)
            .zip(&block.share_table)
            .all(|(ours, theirs)| bytemuck::bytes_of(&ours) == bytemuck::bytes_of(theirs));
        if !agrees {
            return Err(GeometryError::Contradiction("the share table does not fit").into());
        }
        let copies = match (block.features.get() & COPIES != 0, block.copies.get()) {
            (false, _) => None,
            (true, 0) => Some(Copies::One),
            (true, 1) => Some(Copies::Two),
            (true, _) => return Err(GeometryError::Contradiction("more copies than two").into()),
        };
        geometry.check_copies(copies.unwrap_or(Copies::One))?;
        let missing = match (block.features.get() & DEGRADED != 0, block.missing.get()) {
            (false, _) => DeviceSet::default(),
            (true, bits) if bits != 0 && bits.checked_shr(geometry.devices).unwrap_or(0) == 0 => {
                DeviceSet::from_bits(bits)
            }
            (true, _) => {
                return Err(
                    GeometryError::Contradiction("missing devices that it cannot have").into()
                );
            }
        };
        let table = decode_table(&block)?;
        Ok(Self {
            generation: block.generation.get(),
            pool: block.pool.get(),
            device,
            geometry,
            formatted_at: block.formatted_at.get(),
            depth: Some(block.depth.get()).filter(|depth| (1..=DEPTH_MAX).contains(depth)),
            index_in_segments: block.features.get() & INDEX_IN_SEGMENTS != 0,
            seals: block.features.get() & SEALS != 0,
            block_checksums: block.features.get() & BLOCK_CHECKSUMS != 0,
            copies,
            missing,
            table,
        })
    }

    /// Returns the superblock that another device of the pool has.
    #[must_use]
    pub fn of_device(&self, device: u32) -> Self {
        Self { device, ..*self }
    }
}

/// The table of devices, if the pool has one.
fn decode_table(block: &SuperblockOnMedia) -> Result<Option<DeviceTable>, GeometryError> {
    if block.features.get() & DEVICE_TABLE == 0 {
        return Ok(None);
    }
    let current = u8::try_from(block.current_set.get());
    let current = current.map_err(|_| GeometryError::Contradiction("a set that cannot be"))?;
    let [metadata, removed] = [block.metadata, block.removed].map(U64::get);
    let table = DeviceTable {
        sets: block.sets.map(|set| DeviceSet::from_bits(set.get())),
        current,
        metadata: DeviceSet::from_bits(metadata),
        removed: DeviceSet::from_bits(removed),
        rates: DeviceRates(block.rates.map(U16::get)),
    };
    table.check(block.devices.get())?;
    Ok(Some(table))
}

/// The table of shares that belongs to a geometry.
fn share_table(geometry: &Geometry) -> impl Iterator<Item = ShareOnMedia> {
    (0..geometry.shares).filter_map(|share| geometry.share(share)).map(|area| ShareOnMedia {
        metadata_offset: area.slots[0].checkpoint_offset.into(),
        metadata_bytes: (2 * geometry.slot_bytes).into(),
        first_segment: area.first_segment.into(),
        segments: area.segments.into(),
        reserved: [0; 40],
    })
}

fn refuse_unknown_features(features: u64) -> Result<(), SuperblockError> {
    let known = FEATURES.iter().fold(0, |bits, (bit, _)| bits | bit);
    let unknown = features & !known;
    if unknown == 0 {
        return Ok(());
    }
    let names: Vec<String> = (0..64)
        .map(|bit| 1_u64 << bit)
        .filter(|bit| unknown & bit != 0)
        .map(|bit| {
            FEATURES_FORESEEN
                .iter()
                .find(|(foreseen, _)| *foreseen == bit)
                .map_or_else(|| format!("bit {}", bit.ilog2()), |(_, name)| (*name).to_owned())
        })
        .collect();
    Err(SuperblockError::Features(names.join(", ")))
}

/// Block 0 of a whole device: a partition table with one entry of type `0xEE` over everything, so
/// that installers and partitioning tools do not take the disk for a blank one.
pub fn protective_mbr(device_bytes: u64) -> Vec<u8> {
    const ENTRY: usize = 446;
    let mut block = vec![0; BLOCK_BYTES as usize];
    // A drive without a medium, or a loop device without a file, has no sector at all.
    let sectors = u32::try_from((device_bytes / 512).saturating_sub(1)).unwrap_or(u32::MAX);
    // Not bootable; first sector 1 in both notations; type "protective"; last cylinder "too large".
    block[ENTRY..ENTRY + 8].copy_from_slice(&[0, 0, 2, 0, 0xEE, 0xFF, 0xFF, 0xFF]);
    block[ENTRY + 8..ENTRY + 12].copy_from_slice(&1_u32.to_le_bytes());
    block[ENTRY + 12..ENTRY + 16].copy_from_slice(&sectors.to_le_bytes());
    block[510..512].copy_from_slice(&[0x55, 0xAA]);
    block
}

/// Returns whether block 0 is such a partition table, of a device of any size: an image may have
/// been moved to another one.
pub fn is_protective_mbr(block: &[u8]) -> bool {
    const SECTORS: std::ops::Range<usize> = 458..462;
    let expected = protective_mbr(512);
    block.len() == expected.len()
        && block[..SECTORS.start] == expected[..SECTORS.start]
        && block[SECTORS.end..] == expected[SECTORS.end..]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::GeometryRequest;
    use crate::units::ByteCount;

    fn superblock() -> Superblock {
        let geometry = Geometry::plan(&GeometryRequest {
            devices: 2,
            device_bytes: ByteCount::mib(64),
            stripe_unit: ByteCount::kib(32),
            segment_bytes: None,
            shares: 3,
            copies: Copies::Two,
        })
        .unwrap();
        Superblock {
            generation: 5,
            pool: 0xABCD,
            device: 1,
            geometry,
            formatted_at: 1_700_000_000,
            depth: None,
            index_in_segments: false,
            seals: false,
            block_checksums: false,
            copies: None,
            missing: DeviceSet::default(),
            table: None,
        }
    }

    /// Changes the bytes and makes the checksum right again.
    fn resealed(change: impl FnOnce(&mut SuperblockOnMedia)) -> Vec<u8> {
        let mut block: SuperblockOnMedia = bytemuck::pod_read_unaligned(&superblock().encode());
        change(&mut block);
        block.checksum = 0.into();
        block.checksum = checksum_of(&[bytemuck::bytes_of(&block)]).into();
        bytemuck::bytes_of(&block).to_vec()
    }

    #[test]
    fn what_is_written_is_read_back() {
        assert_eq!(Superblock::decode(&superblock().encode()), Ok(superblock()));
    }

    #[test]
    fn an_index_in_segments_is_a_feature_that_older_software_does_not_know() {
        assert_eq!(superblock().encode()[24..32], [0; 8]);
        let grown = Superblock { index_in_segments: true, ..superblock() };
        assert_eq!(grown.encode()[24..32], 4_u64.to_le_bytes());
        assert_eq!(Superblock::decode(&grown.encode()), Ok(grown));
        let sealed = Superblock { seals: true, ..grown };
        assert_eq!(sealed.encode()[24..32], 12_u64.to_le_bytes());
        assert_eq!(Superblock::decode(&sealed.encode()), Ok(sealed));
    }

    #[test]
    fn copies_are_a_feature_that_older_software_does_not_know() {
        let able = Superblock { copies: Some(Copies::One), ..superblock() };
        assert_eq!(able.encode()[24..32], 32_u64.to_le_bytes());
        assert_eq!(able.encode()[116..120], [0; 4]);
        let two = Superblock { copies: Some(Copies::Two), ..able };
        assert_eq!(two.encode()[116..120], 1_u32.to_le_bytes());
        assert_eq!(Superblock::decode(&two.encode()), Ok(two));
        let reserved = resealed(|block| block.copies = 1.into());
        assert_eq!(Superblock::decode(&reserved), Ok(superblock()), "no feature, no copies");
        let bad = resealed(|block| (block.features, block.copies) = (COPIES.into(), 2.into()));
        assert!(matches!(Superblock::decode(&bad), Err(SuperblockError::Geometry(_))));
    }

    #[test]
    fn devices_that_are_missing_are_a_feature_that_older_software_does_not_know() {
        let missing = DeviceSet::from_bits(0b10);
        let degraded = Superblock { missing, ..superblock() };
        assert_eq!(degraded.encode()[24..32], 64_u64.to_le_bytes());
        assert_eq!(degraded.encode()[120..128], 2_u64.to_le_bytes());
        assert_eq!(Superblock::decode(&degraded.encode()), Ok(degraded));
        let reserved = resealed(|block| block.missing = 2.into());
        assert_eq!(Superblock::decode(&reserved), Ok(superblock()), "no feature, none missing");
        for bits in [0, 0b100, u64::MAX] {
            let bad = resealed(|block| {
                (block.features, block.missing) = (DEGRADED.into(), bits.into());
            });
            assert!(matches!(Superblock::decode(&bad), Err(SuperblockError::Geometry(_))));
        }
    }

    #[test]
    fn a_depth_stands_where_older_software_sees_reserved_bytes() {
        let calibrated = Superblock { depth: Some(16), ..superblock() };
        let block = calibrated.encode();
        assert_eq!(block[112..116], 16_u32.to_le_bytes());
        assert_eq!(Superblock::decode(&block), Ok(calibrated));
        let absurd = resealed(|block| block.depth = (DEPTH_MAX + 1).into());
        assert_eq!(Superblock::decode(&absurd), Ok(superblock()), "no calibration, no refusal");
    }

    #[test]
    fn any_flipped_bit_is_noticed() {
        let good = superblock().encode();
        for byte in 0..good.len() {
            let mut bad = good.clone();
            bad[byte] ^= 1 << (byte % 8);
            assert!(Superblock::decode(&bad).is_err(), "byte {byte}");
        }
    }

    #[test]
    fn a_mark_of_which_a_byte_has_rotted_is_still_one() {
        let good = superblock().encode();
        for byte in 0..8 {
            let mut bad = good.clone();
            bad[byte] ^= 0xFF;
            assert!(Superblock::is_marked(&bad), "byte {byte}");
        }
        for other in [&[0; 8], b"EFI PART", b"LABELONE"] {
            assert!(!Superblock::is_marked(other), "{other:?}");
        }
    }

    #[test]
    fn unknown_features_are_refused_by_name() {
        let block = resealed(|block| block.features = (1 << 1 | 1 << 40).into());
        let Err(SuperblockError::Features(names)) = Superblock::decode(&block) else {
            panic!("unknown features must be refused");
        };
        assert_eq!(names, "data-placement, bit 40");
    }

    #[test]
    fn other_versions_and_contradictions_are_refused() {
        let version = resealed(|block| block.version = 2.into());
        assert_eq!(Superblock::decode(&version), Err(SuperblockError::Version(2)));
        let place = resealed(|block| block.device = 2.into());
        assert_eq!(
            Superblock::decode(&place),
            Err(SuperblockError::Place { device: 2, devices: 2 })
        );
        let table = resealed(|block| block.share_table[1].segments = 1.into());
        assert!(matches!(Superblock::decode(&table), Err(SuperblockError::Geometry(_))));
        assert_eq!(Superblock::decode(&[0; 4096]), Err(SuperblockError::Absent));
        assert_eq!(Superblock::decode(&[]), Err(SuperblockError::Absent));
    }

    #[test]
    fn the_protective_mbr_covers_the_disk() {
        let block = protective_mbr(1 << 20);
        assert_eq!(&block[510..512], &[0x55, 0xAA]);
        assert_eq!(block[450], 0xEE);
        assert_eq!(block[458..462], 2047_u32.to_le_bytes());
        assert_eq!(protective_mbr(1 << 50)[458..462], u32::MAX.to_le_bytes());
        assert_eq!(protective_mbr(0)[458..462], [0; 4]);
        assert!(is_protective_mbr(&block) && is_protective_mbr(&protective_mbr(1 << 50)));
        for byte in [0, 450, 512] {
            let mut other = block.clone();
            other[byte] ^= 1;
            assert!(!is_protective_mbr(&other), "byte {byte}");
        }
    }
}
