//! A storage of the framework's.

use std::collections::{BTreeMap, BTreeSet};

use tidelog::abi::*;

use tidelog_gds::cuda::Event;

use super::compute_device::Room;

/// A storage: its memory while it has any, and what its bytes must be.
#[derive(Default)]
pub(super) struct FrameworkStorage {
    pub(super) size: usize,
    pub(super) seed: u64,
    pub(super) memory: Option<Room>,
    /// Event after which the memory may be touched, by a transfer or by the stream.
    pub(super) after: Option<Event>,
    /// Event behind the last kernel that is known to use it.
    pub(super) last_use: Option<Event>,
    /// A transfer may touch the memory.
    pub(super) in_flight: bool,
    /// Starts of the parts that are out, with their bytes.
    pub(super) out: BTreeMap<usize, usize>,
    /// Starts of the parts that a transfer may touch.
    pub(super) moving: BTreeSet<usize>,
    pub(super) pins: u32,
    /// An op that has ended uses it still.
    pub(super) async_use: bool,
}

impl FrameworkStorage {
    /// Returns whether a transfer may touch its memory.
    pub(super) fn moves(&self) -> bool {
        self.in_flight || !self.moving.is_empty()
    }

    /// Returns the bytes that are in memory.
    pub(super) fn held(&self) -> usize {
        let size = self.memory.as_ref().map_or(0, |_| self.size);
        size - self.out.values().sum::<usize>()
    }

    /// Does what is asked for of the part that begins there. What is out has other bytes than it
    /// should, so that nobody takes it for what it was.
    pub(super) fn perform_part(
        &mut self,
        action: &tide_action,
        begin: usize,
        refused: bool,
    ) -> u64 {
        let Self { size: whole, seed, memory, out, moving, .. } = self;
        let size = action.size as usize;
        let memory = memory.as_mut().expect("a storage in parts keeps its address");
        match action.kind {
            TIDE_EVICT_PART | TIDE_ALLOCATE_PART if refused && !moving.contains(&begin) => 0,
            TIDE_EVICT_PART => {
                assert!(!self.async_use && !out.contains_key(&begin));
                moving.insert(begin);
                memory.address() + begin as u64
            }
            TIDE_ALLOCATE_PART => {
                out.remove(&begin);
                moving.insert(begin);
                memory.address() + begin as u64
            }
            TIDE_RELEASE_PART => {
                assert!(!self.async_use);
                if moving.remove(&begin) {
                    memory.spoil(begin, size);
                    out.insert(begin, size);
                }
                0
            }
            TIDE_SETTLE_PART => {
                moving.remove(&begin);
                if action.size != TIDE_PARTS_AWAY {
                    assert!(out.is_empty(), "storage {} is not all there", action.storage);
                    memory.check(*seed, *whole, action.storage);
                }
                0
            }
            kind => panic!("request of unknown kind {kind}"),
        }
    }
}
