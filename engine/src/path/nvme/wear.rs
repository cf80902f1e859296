//! Wear of a controller (SMART), and of its reclaim units (FDP).

use crate::path::{Endurance, FdpStatistics, ReclaimUnitHandle};
use crate::units::ByteCount;

/// Log pages by their numbers.
pub(in crate::path) const SMART: u8 = 0x02;
pub(in crate::path) const FDP_STATISTICS: u8 = 0x22;
/// Bytes of them that say what is wanted.
pub(in crate::path) const SMART_BYTES: usize = 512;
pub(in crate::path) const FDP_STATISTICS_BYTES: usize = 64;
/// SMART is the controller's, not a namespace's.
pub(in crate::path) const ALL_NAMESPACES: u32 = u32::MAX;

/// Operation of I/O management receive: the status of a namespace's reclaim unit handles.
pub(in crate::path) const RECLAIM_UNIT_HANDLE_STATUS: u8 = 1;
/// Room for its answer: a head and the descriptors of 127 handles.
pub(in crate::path) const HANDLES_BYTES: usize = 4096;

/// SMART counts written data in thousands of blocks of 512 bytes.
const DATA_UNIT: u128 = 512_000;

/// Reads the SMART / health information log (NVMe base specification, 5.1.12.1.3).
pub(in crate::path) fn endurance(
    page: &[u8; SMART_BYTES],
    fdp: Option<FdpStatistics>,
) -> Endurance {
    let written = number(page, 48).saturating_mul(DATA_UNIT);
    Endurance {
        spare_percent: page[3],
        used_percent: page[5],
        written: ByteCount(written.try_into().unwrap_or(u64::MAX)),
        media_errors: number(page, 160).try_into().unwrap_or(u64::MAX),
        power_on_hours: number(page, 128).try_into().unwrap_or(u64::MAX),
        is_critical: page[0] != 0,
        fdp,
    }
}

/// Reads the FDP statistics log of an endurance group.
pub(in crate::path) fn fdp_statistics(
    page: &[u8; FDP_STATISTICS_BYTES],
    handles: Vec<ReclaimUnitHandle>,
) -> FdpStatistics {
    let bytes = |at| ByteCount(number(page, at) as u64);
    FdpStatistics {
        host_written: bytes(0),
        media_written: bytes(16),
        media_erased: bytes(32),
        handles,
    }
}

/// Reads the reclaim unit handle status: a head of 16 bytes with their number, then 32 bytes for
/// each.
pub(in crate::path) fn handles(bytes: &[u8], block: u32) -> Vec<ReclaimUnitHandle> {
    const HEAD: usize = 16;
    const EACH: usize = 32;
    let count = bytes.get(14..16).map_or(0, |it| u16::from_le_bytes([it[0], it[1]]));
    let each = bytes.get(HEAD..).unwrap_or_default().chunks_exact(EACH).take(count.into());
    each.map(|it| {
        let mut remaining = [0; 8];
        remaining.copy_from_slice(&it[8..16]);
        ReclaimUnitHandle {
            placement: u16::from_le_bytes([it[0], it[1]]),
            remaining: ByteCount(u64::from_le_bytes(remaining).saturating_mul(block.into())),
        }
    })
    .collect()
}

/// The 128-bit number at a place.
fn number(page: &[u8], at: usize) -> u128 {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&page[at..at + 16]);
    u128::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smart_log_is_read_in_bytes() {
        let mut page = [0; 512];
        (page[3], page[5], page[48], page[160]) = (97, 4, 3, 1);
        (page[0], page[128], page[129]) = (1, 2, 1);
        let found = endurance(&page, None);
        assert_eq!((found.power_on_hours, found.is_critical), (258, true));
        assert_eq!((found.spare_percent, found.used_percent), (97, 4));
        assert_eq!((found.written, found.media_errors), (ByteCount(1_536_000), 1));
        page[48..64].fill(0xFF);
        assert_eq!(endurance(&page, None).written, ByteCount(u64::MAX), "more than fits");
    }

    #[test]
    fn handles_are_as_many_as_the_head_says_and_as_there_are_bytes_for() {
        let mut bytes = vec![0; 16 + 2 * 32];
        bytes[14] = 2;
        (bytes[16], bytes[24], bytes[48], bytes[57]) = (5, 3, 6, 1);
        let found = handles(&bytes, 4096);
        let handle = |placement, blocks: u64| ReclaimUnitHandle {
            placement,
            remaining: ByteCount(blocks * 4096),
        };
        assert_eq!(found, [handle(5, 3), handle(6, 256)]);
        bytes[14] = 9;
        assert_eq!(handles(&bytes, 4096).len(), 2);
        assert_eq!(handles(&bytes[..10], 4096), []);
    }
}
