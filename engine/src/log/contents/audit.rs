//! Comparing index and space, by counting again from the ground up.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Contents, Pending};
use crate::layout::TensorId;
use crate::log::space::{Durability, SpaceUse};
use crate::log::version::{ReservationKey, Version};

impl Contents {
    /// Checks every rule of index and space by counting again from the ground up; see
    /// `Space::audit`.
    ///
    /// # Errors
    /// The first rule that does not hold.
    pub fn audit(&self) -> Result<SpaceUse, String> {
        self.audit_writers()?;
        let puts = self.pending.iter();
        let held =
            puts.filter_map(|(serial, pending)| Some((ReservationKey(*serial), pending.held?)));
        self.seals.audit(&held.collect())?;
        let live = self.readable().flat_map(|version| {
            version.entry.runs.iter().map(move |run| (run, version.durability))
        });
        let pending = self.pending.values().flat_map(|Pending { version, .. }| {
            version.entry.runs.iter().map(move |run| (run, version.durability))
        });
        let retired = self.retired.values().flatten();
        let retired =
            retired.flat_map(|place| place.runs.iter().map(|run| (run, place.durability)));
        let moving = self.moving.values();
        let moving = moving.flat_map(|to| to.runs.iter().map(|run| (run, to.durability)));
        self.audit_reverse_map()?;
        self.audit_room()?;
        let index = self.room.all_segments();
        let space = self.space.audit(live, pending.chain(retired).chain(moving), index)?;
        Ok(SpaceUse { sealed: self.bytes_held_alone(), ..space })
    }

    /// Every version that can be read: those that stand, and those that seals alone hold.
    fn readable(&self) -> impl Iterator<Item = &Arc<Version>> {
        let held = self.seals.all_held().map(|(_, held)| &held.version);
        self.current.iter().chain(held.filter(|version| !self.is_standing(version)))
    }

    /// Checks that the reservation in the index equals what tensors take there and will take.
    fn audit_room(&self) -> Result<(), String> {
        let tensors = self.durable().map(|version| self.room.bytes_of(&version.entry));
        let held = self.seals.all_held().filter(|(_, held)| held.is_recorded());
        let held = held.map(|(_, held)| self.room.bytes_of(&held.version.entry));
        let seals = self.seals().map(|seal| seal.encoded_bytes() as u64);
        let live: u64 = tensors.chain(held).chain(seals).sum();
        let pending = self.pending.values().map(|pending| pending.index_bytes);
        let moving = self.moving.values().map(|moving| moving.index_bytes);
        let sealing = self.seals.coming.values().map(|coming| coming.index_bytes);
        let coming = pending.chain(moving).chain(sealing).sum();
        let usage = self.room.usage();
        if (usage.live.0, usage.coming.0) == (live, coming) {
            Ok(())
        } else {
            Err(format!("the index takes {live}+{coming} bytes, not {usage:?}"))
        }
    }

    /// Every write that is pending is counted at its tensor, and no other.
    fn audit_writers(&self) -> Result<(), String> {
        let mut counted: BTreeMap<TensorId, (u32, u32)> = BTreeMap::new();
        for Pending { version, .. } in self.pending.values() {
            let (scratch, durable) = counted.entry(version.entry.id).or_default();
            match version.durability {
                Durability::Scratch => *scratch += 1,
                Durability::Durable => *durable += 1,
            }
        }
        for (id, pending) in &counted {
            let found = self.writers.get(id).map(|writers| (writers.scratch, writers.durable));
            if found != Some(*pending) {
                return Err(format!(
                    "{id} has {pending:?} scratch and durable writes, not {found:?}"
                ));
            }
        }
        if counted.len() == self.writers.len() {
            Ok(())
        } else {
            Err(format!("{} tensors are written, not {}", counted.len(), self.writers.len()))
        }
    }

    /// Every run of every tensor stands in the reverse map, and nothing else does.
    fn audit_reverse_map(&self) -> Result<(), String> {
        let mut runs = 0;
        for version in self.readable() {
            for run in &version.entry.runs {
                let stands = self.reverse_map.get(run);
                if stands != Some(version.entry.id) {
                    return Err(format!("{run:?} of {} belongs to {stands:?}", version.entry.id));
                }
                runs += 1;
            }
        }
        if runs == self.reverse_map.len() {
            Ok(())
        } else {
            Err(format!("{runs} runs of tensors, {} in the reverse map", self.reverse_map.len()))
        }
    }
}
