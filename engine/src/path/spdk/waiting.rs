//! Operations that wait for room in their queue pair: on each device the oldest is served first,
//! and what comes later waits behind it.

use std::collections::VecDeque;

/// Slots of waiting operations, for each device.
pub(super) struct WaitingSlots(Vec<VecDeque<u32>>);

impl WaitingSlots {
    /// Room for all slots on every device: nothing is allocated later.
    pub(super) fn new(devices: usize, slots: u32) -> Self {
        Self((0..devices).map(|_| VecDeque::with_capacity(slots as usize)).collect())
    }

    pub(super) fn is_empty(&self, device: usize) -> bool {
        self.0[device].is_empty()
    }

    pub(super) fn join(&mut self, device: usize, slot: u32) {
        self.0[device].push_back(slot);
    }

    /// The one that has waited for longest.
    pub(super) fn first(&self, device: usize) -> Option<u32> {
        self.0[device].front().copied()
    }

    pub(super) fn leave_first(&mut self, device: usize) {
        self.0[device].pop_front();
    }

    pub(super) fn leave(&mut self, device: usize, slot: u32) {
        self.0[device].retain(|&other| other != slot);
    }

    pub(super) fn leave_all(&mut self, device: usize) -> VecDeque<u32> {
        std::mem::take(&mut self.0[device])
    }
}
