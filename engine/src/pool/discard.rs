//! Telling devices which segments are free, so that they need not keep those bytes alive.

use super::Pool;
use super::error::{DiscardError, Unusable};
use crate::path::Extent;
use crate::schedule::Reactor;
use crate::units::DeviceIndex;

/// The longest extent that is deallocated at once.
const DISCARD_BYTES: u64 = 1 << 30;

impl Pool {
    /// Tells the devices that nobody needs the bytes of one free segment; returns which, or `None`
    /// when they know of all. Only block devices are told: a file keeps the place that was reserved
    /// for it.
    pub fn discard_once(&self) -> Result<Option<u32>, DiscardError> {
        let reactor = self.reactor()?;
        let reactor = reactor.as_ref().ok_or(Unusable::Closed)?;
        // A put that finds no space waits here, and then takes what comes back.
        let _turn = self.reclaim_turn();
        if self.is_read_only() || !is_possible(reactor) {
            return Ok(None);
        }
        let Some(segment) = self.0.shared.contents().begin_discard() else { return Ok(None) };
        let _discarding = Discarding { pool: self, segment };
        reactor.deallocate(&self.extents(reactor, segment))?.wait()?;
        Ok(Some(segment))
    }

    /// Returns the extents of a segment on the devices that can be told.
    fn extents(&self, reactor: &Reactor, segment: u32) -> Vec<(DeviceIndex, Extent)> {
        let (start, length) = self.0.stripes.slice(segment);
        let devices = reactor.capabilities().devices.iter();
        let told = (0_u8..).zip(devices).filter(|(_, device)| device.deallocate);
        let cut = |device: u8| {
            (0..length).step_by(DISCARD_BYTES as usize).map(move |skip| {
                let extent = Extent::new(start + skip, DISCARD_BYTES.min(length - skip));
                (DeviceIndex(device), extent)
            })
        };
        told.flat_map(|(device, _)| cut(device)).collect()
    }
}

/// Returns whether any device can be told.
pub(super) fn is_possible(reactor: &Reactor) -> bool {
    reactor.capabilities().devices.iter().any(|device| device.deallocate)
}

/// A segment that nobody takes meanwhile.
struct Discarding<'a> {
    pool: &'a Pool,
    segment: u32,
}

impl Drop for Discarding<'_> {
    fn drop(&mut self) {
        self.pool.0.shared.contents().end_discard(self.segment);
    }
}
