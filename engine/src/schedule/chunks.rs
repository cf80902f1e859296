//! Staging memory, shared so that no device takes all of it: one that does not answer keeps what it
//! has.

use super::transfer::Urgency;
use crate::memory::DmaBuffer;
use crate::path::backend::Shares;
use crate::units::DeviceIndex;

/// The chunks of staging memory, and who has how many. A path leaks those that a device which does
/// not answer may still write.
pub(super) struct Chunks {
    free: Vec<DmaBuffer>,
    shares: Shares,
}

impl Chunks {
    /// Makes the pool of these chunks, for so many devices, and for what checks bytes that are on
    /// none.
    pub(super) fn new(free: Vec<DmaBuffer>, devices: usize) -> Self {
        let shares = Shares::with_none(free.len(), devices);
        Self { free, shares }
    }

    /// The pages of those that are free go back to the kernel. No device may reach them.
    pub(super) fn decommit(&mut self) {
        self.free.iter_mut().for_each(DmaBuffer::decommit);
    }

    /// Returns whether devices that do not answer have kept all of them.
    pub(super) fn are_gone(&self) -> bool {
        self.shares.total() == 0
    }

    /// Returns whether a piece of this device may have one now.
    pub(super) fn may_take(&self, device: DeviceIndex, urgency: Urgency) -> bool {
        // What it is owed itself may go to any piece of it.
        let any = self.shares.own_of(device) > 0 || urgency == Urgency::Urgent;
        self.shares.left_for(device) > if any { 0 } else { self.reserve() }
    }

    /// Returns the number of chunks for urgent pieces alone, besides what is kept for devices: one
    /// should find a chunk without waiting for a device.
    fn reserve(&self) -> usize {
        let all = self.shares.total();
        if all >= 4 { (all / 8).max(1) } else { 0 }
    }

    /// One for a piece of this device, which may have it.
    pub(super) fn take(&mut self, device: DeviceIndex) -> Option<DmaBuffer> {
        let chunk = self.free.pop()?;
        self.shares.take(device);
        Some(chunk)
    }

    /// Releases a chunk that a piece of this device had.
    pub(super) fn release(&mut self, device: DeviceIndex, chunk: DmaBuffer) {
        self.free.push(chunk);
        self.shares.release(device);
    }

    /// A chunk goes on from one device to another, which may have it however many it has: a chunk
    /// that waited for its share would keep the first device's.
    pub(super) fn pass(&mut self, from: DeviceIndex, to: DeviceIndex) {
        self.shares.release(from);
        self.shares.take(to);
    }

    /// Removes a chunk that a piece of this device had and that never comes back.
    pub(super) fn lose(&mut self, device: DeviceIndex) {
        self.shares.lose(device);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::memory::DmaPool;
    use crate::units::ByteCount;
    use Urgency::{Ahead, Urgent};

    fn chunks(count: u64, devices: usize) -> Chunks {
        let pool = DmaPool::new(ByteCount(count * 4096), false).unwrap();
        Chunks::new(std::iter::from_fn(|| pool.take(4096)).collect(), devices)
    }

    fn take_all(chunks: &mut Chunks, device: u8, urgency: Urgency) -> Vec<DmaBuffer> {
        let device = DeviceIndex(device);
        let next = || chunks.may_take(device, urgency).then(|| chunks.take(device)).flatten();
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn a_device_that_gives_nothing_back_leaves_each_other_its_share() {
        let mut chunks = chunks(64, 4);
        let ahead = take_all(&mut chunks, 0, Ahead);
        assert_eq!(ahead.len(), 64 - 3 * 8 - 1 - 8, "the others' shares and the reserve are left");
        let urgent = take_all(&mut chunks, 0, Urgent);
        assert_eq!(urgent.len(), 8, "the reserve is for what is urgent");
        for device in 1..4 {
            assert_eq!(take_all(&mut chunks, device, Ahead).len(), 8, "device {device}");
        }
        assert!(take_all(&mut chunks, 1, Urgent).is_empty());
        let checked = take_all(&mut chunks, 4, Ahead);
        assert_eq!(checked.len(), 1, "what is on no device has one, too");
        for chunk in ahead {
            chunks.release(DeviceIndex(0), chunk);
        }
        assert_eq!(take_all(&mut chunks, 4, Ahead).len(), 23, "the reserve is whole again");
    }

    #[test]
    fn however_few_there_are_somebody_gets_one() {
        for devices in 1..6 {
            for count in 1..20 {
                for (device, urgency) in [(0, Ahead), (0, Urgent), (devices as u8, Ahead)] {
                    let mut chunks = chunks(count, devices);
                    let taken = take_all(&mut chunks, device, urgency);
                    assert!(!taken.is_empty(), "{count} chunks, {devices} devices");
                    for chunk in taken {
                        chunks.release(DeviceIndex(device), chunk);
                    }
                    assert_eq!(chunks.free.len(), count as usize);
                }
            }
        }
    }

    #[test]
    fn chunks_that_are_lost_make_every_share_smaller() {
        let mut chunks = chunks(16, 2);
        let taken = take_all(&mut chunks, 0, Urgent);
        assert_eq!(taken.len(), 11);
        for chunk in taken {
            drop(chunk);
            chunks.lose(DeviceIndex(0));
        }
        assert!(!chunks.are_gone());
        assert_eq!(take_all(&mut chunks, 1, Urgent).len(), 5 - 1 - 1);
    }
}
