//! Pieces on their devices: a fixed table, and a bound for each device.

use super::in_progress::TransferKey;
use crate::path::backend::Shares;
use crate::units::DeviceIndex;

/// A piece on its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PieceInFlight {
    pub(super) transfer: TransferKey,
    /// Index of the transfer's piece.
    pub(super) piece: usize,
    /// Part of its way.
    pub(super) leg: Leg,
    /// The device that it is on; beyond all of them, if it goes to none.
    pub(super) device: DeviceIndex,
    /// Time of its start, in the reactor's nanoseconds.
    pub(super) began: u64,
    /// A read that is done again because its checksum did not match.
    pub(super) again: bool,
}

/// Part of a piece's way. One without a second copy has only the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leg {
    /// The first copy is written or read.
    First,
    /// The second copy is written, behind the first, or read in its stead.
    Second,
    /// The first copy is written again, with what was read from the second.
    Heal,
}

/// The table. A slot's number is the operation's tag.
pub(super) struct PiecesInFlight {
    held: Vec<Option<PieceInFlight>>,
    free: Vec<u32>,
    /// Shares of the table, where it is too small for all devices at their bound.
    shares: Shares,
    /// Operations in flight, by device.
    per_device: Vec<u32>,
    per_device_max: u32,
}

impl PiecesInFlight {
    pub(super) fn new(slots: u32, devices: usize, per_device_max: u32) -> Self {
        let (held, free) = (vec![None; slots as usize], (0..slots).rev().collect());
        let shares = Shares::new(slots as usize, devices);
        Self { held, free, shares, per_device: vec![0; devices], per_device_max }
    }

    /// Returns whether one more operation may go to `device`.
    pub(super) fn has_room(&self, device: DeviceIndex) -> bool {
        let in_flight = self.per_device[usize::from(device.0)];
        in_flight < self.per_device_max && self.shares.left_for(device) > 0
    }

    /// Returns the number of operations on `device`.
    pub(super) fn on_device(&self, device: DeviceIndex) -> u32 {
        self.per_device[usize::from(device.0)]
    }

    /// Enters a flight; returns its tag, or `None` if the table is full.
    pub(super) fn begin(&mut self, flight: PieceInFlight) -> Option<u64> {
        let slot = self.free.pop()?;
        self.held[slot as usize] = Some(flight);
        self.shares.take(flight.device);
        self.per_device[usize::from(flight.device.0)] += 1;
        Some(slot.into())
    }

    /// Strikes a flight off; `None` if there is no such tag.
    pub(super) fn complete(&mut self, tag: u64) -> Option<PieceInFlight> {
        let flight = self.held.get_mut(usize::try_from(tag).ok()?)?.take()?;
        self.free.push(tag as u32);
        self.shares.release(flight.device);
        self.per_device[usize::from(flight.device.0)] -= 1;
        Some(flight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_at_its_bound_leaves_room_for_the_others() {
        let (first, second) = (DeviceIndex(0), DeviceIndex(1));
        let mut flights = PiecesInFlight::new(4, 2, 2);
        let flight = |piece| PieceInFlight {
            transfer: TransferKey::of_slot(9),
            piece,
            leg: Leg::First,
            device: first,
            began: 0,
            again: false,
        };
        let tags: Vec<u64> = (0..2).map(|piece| flights.begin(flight(piece)).unwrap()).collect();
        assert!(!flights.has_room(first) && flights.has_room(second));
        assert_eq!(flights.complete(tags[1]), Some(flight(1)));
        assert_eq!(flights.complete(tags[1]), None, "a tag lands once");
        assert_eq!(flights.complete(u64::MAX), None);
        assert!(flights.has_room(first));
    }

    /// A path may take less than all devices at their bound: a controller with short queues, a ring
    /// at its limit.
    #[test]
    fn a_table_that_is_too_small_for_all_is_not_filled_by_one_device() {
        let mut flights = PiecesInFlight::new(6, 3, 32);
        let flight = |device| PieceInFlight {
            transfer: TransferKey::of_slot(9),
            piece: 0,
            leg: Leg::First,
            device,
            began: 0,
            again: false,
        };
        let devices = [0, 1, 2].map(DeviceIndex);
        while flights.has_room(devices[0]) {
            flights.begin(flight(devices[0])).unwrap();
        }
        assert!(devices[1..].iter().all(|&device| flights.has_room(device)));
    }
}
