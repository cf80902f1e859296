//! Staging memory, shared so that no device takes all of it: one that does not answer keeps what it has.

use super::transfer::Urgency;
use crate::memory::DmaBuffer;
use crate::units::DeviceIndex;

/// The chunks of staging memory, and who has how many.
pub(super) struct Chunks {
    free: Vec<DmaBuffer>,
    /// Chunks that are here or out. A path leaks those that a device which does not answer may still write.
    living: usize,
    /// Chunks that are out, by the device that they go to or come from; in the last place those for none.
    held: Vec<usize>,
    /// What each device can always have, where there are enough.
    share: usize,
    /// What is kept for devices that have less than their share.
    owed: usize,
    /// Besides what is owed, only urgent pieces may take the last of them.
    reserve: usize,
}

impl Chunks {
    /// These, for so many devices.
    pub(super) fn new(free: Vec<DmaBuffer>, devices: usize) -> Self {
        let (living, held) = (free.len(), vec![0; devices + 1]);
        let mut chunks = Self { free, living, held, share: 0, owed: 0, reserve: 0 };
        chunks.divide();
        chunks
    }

    /// Whether devices that do not answer have kept all of them.
    pub(super) fn are_gone(&self) -> bool {
        self.living == 0
    }

    /// Whether a piece of this device may have one now.
    pub(super) fn may_take(&self, device: DeviceIndex, urgency: Urgency) -> bool {
        let device = self.place(device);
        let own = self.share_of(device).saturating_sub(self.held[device]);
        // What it is owed itself may go to any piece of it.
        let reserve = if own > 0 || urgency == Urgency::Urgent { 0 } else { self.reserve };
        self.free.len() > self.owed - own + reserve
    }

    /// One for a piece of this device, which may have it.
    pub(super) fn take(&mut self, device: DeviceIndex) -> Option<DmaBuffer> {
        let chunk = self.free.pop()?;
        let device = self.place(device);
        if self.held[device] < self.share_of(device) {
            self.owed -= 1;
        }
        self.held[device] += 1;
        Some(chunk)
    }

    /// One that a piece of this device had.
    pub(super) fn give_back(&mut self, device: DeviceIndex, chunk: DmaBuffer) {
        self.free.push(chunk);
        self.let_go(device);
    }

    /// One that a piece of this device had and that never comes back.
    pub(super) fn lose(&mut self, device: DeviceIndex) {
        self.living -= 1;
        self.let_go(device);
        self.divide();
    }

    fn let_go(&mut self, device: DeviceIndex) {
        let device = self.place(device);
        self.held[device] -= 1;
        if self.held[device] < self.share_of(device) {
            self.owed += 1;
        }
    }

    fn place(&self, device: DeviceIndex) -> usize {
        usize::from(device.0).min(self.held.len() - 1)
    }

    fn share_of(&self, device: usize) -> usize {
        if device + 1 < self.held.len() { self.share } else { 0 }
    }

    /// Half of them is divided among the devices, the rest is for whoever comes first. So one device alone works with
    /// more than half of them. Where half does not go round, each device has one as long as there are more.
    fn divide(&mut self) {
        let devices = self.held.len() - 1;
        // An urgent piece should find one without waiting for a device.
        self.reserve = if self.living >= 4 { (self.living / 8).max(1) } else { 0 };
        let one = usize::from(self.living > devices + self.reserve);
        self.share = self.living.checked_div(2 * devices).unwrap_or(0).max(one);
        let lacking = |held: &usize| self.share.saturating_sub(*held);
        self.owed = self.held[..devices].iter().map(lacking).sum();
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
        assert_eq!(ahead.len(), 64 - 3 * 8 - 8, "the others' shares and the reserve are left");
        let urgent = take_all(&mut chunks, 0, Urgent);
        assert_eq!(urgent.len(), 8, "the reserve is for what is urgent");
        for device in 1..4 {
            assert_eq!(take_all(&mut chunks, device, Ahead).len(), 8, "device {device}");
        }
        assert!(take_all(&mut chunks, 1, Urgent).is_empty());
        for chunk in ahead {
            chunks.give_back(DeviceIndex(0), chunk);
        }
        assert_eq!(take_all(&mut chunks, 4, Ahead).len(), 24, "the reserve is whole again");
    }

    #[test]
    fn each_of_many_devices_has_one_where_half_of_them_do_not_go_round() {
        let mut chunks = chunks(16, 9);
        let all = take_all(&mut chunks, 0, Urgent);
        assert_eq!(all.len(), 16 - 8);
        for device in 1..9 {
            assert_eq!(take_all(&mut chunks, device, Ahead).len(), 1, "device {device}");
        }
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
                        chunks.give_back(DeviceIndex(device), chunk);
                    }
                    assert_eq!(chunks.free.len(), count as usize);
                    assert_eq!(chunks.owed, chunks.share * devices);
                }
            }
        }
    }

    #[test]
    fn chunks_that_are_lost_make_every_share_smaller() {
        let mut chunks = chunks(16, 2);
        let taken = take_all(&mut chunks, 0, Urgent);
        assert_eq!((taken.len(), chunks.share), (12, 4));
        taken.into_iter().take(8).for_each(|chunk| {
            drop(chunk);
            chunks.lose(DeviceIndex(0));
        });
        assert_eq!((chunks.living, chunks.share, chunks.owed), (8, 2, 2));
        assert!(!chunks.are_gone());
    }
}
