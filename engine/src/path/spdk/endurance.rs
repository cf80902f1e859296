//! What a controller says of its own wear (SMART) and of its reclaim units (FDP).

use std::io;

use tidelog_spdk_sys as sys;

use super::controller::Controller;
use crate::path::{Endurance, FdpStatistics, ReclaimUnitHandle};
use crate::units::ByteCount;

/// SMART counts written data in thousands of blocks of 512 bytes.
const DATA_UNIT: u128 = 512_000;
const SMART: u8 = sys::SPDK_NVME_LOG_HEALTH_INFORMATION as u8;
const FDP_STATISTICS: u8 = sys::SPDK_NVME_LOG_FDP_STATISTICS as u8;

impl Controller {
    /// Asks the controller what was written to it and how worn it is.
    ///
    /// # Errors
    /// It does not say, or not now.
    pub fn endurance(&self) -> io::Result<Endurance> {
        let smart = self.log_page::<512>(SMART, 0)?;
        let fdp = (self.placement_handles() > 0).then(|| self.fdp_statistics()).transpose()?;
        Ok(endurance(&smart, fdp))
    }

    /// How many placement handles the namespace has.
    pub(super) fn placement_handles(&self) -> u16 {
        self.facts().placement.len() as u16
    }

    fn fdp_statistics(&self) -> io::Result<FdpStatistics> {
        let page = self.log_page::<64>(FDP_STATISTICS, self.facts().endurance_group)?;
        let block = u64::from(self.facts().limits.block);
        let handles = handles(&self.reclaim_unit_handles()?, block);
        let bytes = |at| ByteCount(number(&page, at) as u64);
        Ok(FdpStatistics {
            host_written: bytes(0),
            media_written: bytes(16),
            media_erased: bytes(32),
            handles,
        })
    }
}

/// The 128-bit number at a place.
fn number(page: &[u8], at: usize) -> u128 {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&page[at..at + 16]);
    u128::from_le_bytes(bytes)
}

/// Reads the SMART / health information log (NVMe base specification, 5.1.12.1.3).
fn endurance(page: &[u8; 512], fdp: Option<FdpStatistics>) -> Endurance {
    let written = number(page, 48).saturating_mul(DATA_UNIT);
    Endurance {
        spare_percent: page[3],
        used_percent: page[5],
        written: ByteCount(written.try_into().unwrap_or(u64::MAX)),
        media_errors: number(page, 160).try_into().unwrap_or(u64::MAX),
        fdp,
    }
}

/// Reads the reclaim unit handle status: a head of 16 bytes with their number, then 32 bytes for each.
pub(super) fn handles(bytes: &[u8], block: u64) -> Vec<ReclaimUnitHandle> {
    const HEAD: usize = 16;
    const EACH: usize = 32;
    let count = bytes.get(14..16).map_or(0, |it| u16::from_le_bytes([it[0], it[1]]));
    let each = bytes.get(HEAD..).unwrap_or_default().chunks_exact(EACH).take(count.into());
    each.map(|it| {
        let mut remaining = [0; 8];
        remaining.copy_from_slice(&it[8..16]);
        ReclaimUnitHandle {
            placement: u16::from_le_bytes([it[0], it[1]]),
            remaining: ByteCount(u64::from_le_bytes(remaining).saturating_mul(block)),
        }
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smart_log_is_read_in_bytes() {
        let mut page = [0; 512];
        (page[3], page[5], page[48], page[160]) = (97, 4, 3, 1);
        let found = endurance(&page, None);
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
