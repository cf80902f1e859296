//! Placement handles of the lanes, where the devices have such handles (FDP).
//!
//! What lies in a lane's segments dies together, which is what a device wants to know: it then
//! frees reclaim units whole and moves nothing by itself. Metadata names no handle, so devices put
//! it where handle 0 writes; lanes have handles of their own behind that one, if there are enough.
//! With fewer handles than that, lanes are one for each durability. Lanes that differ in copies
//! alone share a handle: a pool has tensors of one kind, or is on its way to.

use super::options::{LaneStats, Lanes, WrittenBytes};
use crate::layout::{Copies, LifetimeClass};
use crate::log::{Durability, Lane};
use crate::path::{Capabilities, PlacementHandle};

/// Lanes that differ in durability alone.
const DURABILITIES: u16 = 2;

/// Lanes that differ in durability or lifetime.
const LIFETIMES: u16 = DURABILITIES * LifetimeClass::ALL.len() as u16;

/// Assignment of placement handles to lanes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Handles {
    /// Handles that every device has; 0 where there is no choice between any.
    handles: u16,
    /// True if tensors are kept apart by lifetime.
    by_lifetime: bool,
}

impl Handles {
    /// Assigns the handles of these devices to the lanes that a caller wants.
    pub(super) fn of(capabilities: &Capabilities, lanes: Lanes) -> Self {
        let fewest = capabilities.devices.iter().map(|it| it.placement_handles).min();
        let handles = fewest.filter(|&handles| handles >= DURABILITIES).unwrap_or(0);
        let enough = handles == 0 || handles >= LIFETIMES;
        Self { handles, by_lifetime: enough && lanes == Lanes::ByLifetime }
    }

    /// Returns whether there is a lane for each lifetime, and not just for each durability.
    pub(super) fn by_lifetime(self) -> bool {
        self.by_lifetime
    }

    /// The handle by which a lane writes.
    pub(super) fn of_lane(self, lane: Lane) -> Option<PlacementHandle> {
        let (place, lanes) = match (self.by_lifetime, lane.durability) {
            (true, _) => (Lane { copies: Copies::One, ..lane }.index() as u16, LIFETIMES),
            (false, Durability::Scratch) => (0, DURABILITIES),
            (false, Durability::Durable) => (1, DURABILITIES),
        };
        let behind_metadata = u16::from(self.handles > lanes);
        (self.handles >= lanes).then_some(PlacementHandle(place + behind_metadata))
    }

    /// The table of lanes.
    pub(super) fn table(self, written: &WrittenBytes) -> Vec<LaneStats> {
        let durabilities =
            [(Durability::Scratch, &written.scratch), (Durability::Durable, &written.durable)];
        let rows = durabilities.into_iter().flat_map(|(durability, written)| {
            LifetimeClass::ALL.into_iter().zip(written).map(move |(class, &written)| {
                let lane = Lane { durability, class, copies: Copies::One };
                LaneStats { lane, placement: self.of_lane(lane), written }
            })
        });
        rows.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::PathProvider;
    use crate::path::sim::{SimDisk, SimDisks};
    use crate::units::ByteCount;

    fn handles(of_devices: [u16; 2], lanes: Lanes) -> (bool, Vec<Option<u16>>) {
        let disks = [ByteCount::mib(1); 2].map(SimDisk::new).to_vec();
        let path = Box::new(SimDisks(disks)).open(1).unwrap().path;
        let mut capabilities = path.capabilities().clone();
        for (device, handles) in capabilities.devices.iter_mut().zip(of_devices) {
            device.placement_handles = handles;
        }
        let found = Handles::of(&capabilities, lanes);
        let table = found.table(&WrittenBytes::default());
        let of = |row: &LaneStats| row.placement.map(|handle| handle.0);
        (found.by_lifetime(), table.iter().map(of).collect())
    }

    #[test]
    fn every_lane_has_a_handle_of_its_own_behind_that_of_the_metadata() {
        let own = (1..=6).map(Some).collect();
        assert_eq!(handles([8, 16], Lanes::ByLifetime), (true, own));
        let shared_with_metadata = (0..6).map(Some).collect();
        assert_eq!(handles([8, 6], Lanes::ByLifetime), (true, shared_with_metadata));
    }

    #[test]
    fn the_device_with_the_fewest_handles_says_how_many_lanes_there_are() {
        let two =
            |first: u16| [[first; 3], [first + 1; 3]].concat().into_iter().map(Some).collect();
        assert_eq!(handles([5, 8], Lanes::ByLifetime), (false, two(1)));
        assert_eq!(handles([8, 2], Lanes::ByLifetime), (false, two(0)));
        assert_eq!(handles([8, 8], Lanes::One), (false, two(1)));
        for fewest in [0, 1] {
            assert_eq!(handles([8, fewest], Lanes::ByLifetime), (true, vec![None; 6]));
        }
    }
}
