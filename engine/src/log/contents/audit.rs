//! Comparing index and space, by counting again from the ground up.

use super::Contents;
use crate::log::space::SpaceUse;

impl Contents {
    /// Checks every rule of index and space by counting again from the ground up; see [`Space::audit`].
    ///
    /// # Errors
    /// The first rule that does not hold.
    pub fn audit(&self) -> Result<SpaceUse, String> {
        if let Some((id, _)) = self.slots.iter().find(|(_, slot)| slot.is_unused()) {
            return Err(format!("{id} has a slot and no use for it"));
        }
        let versions = self.slots.values().filter_map(|slot| slot.current.as_ref());
        let live = versions.flat_map(|version| {
            version.entry.runs.iter().map(move |run| (run, version.durability))
        });
        let pending = self.pending.values().flat_map(|pending| {
            pending.runs.iter().map(move |run| (run, pending.request.lane.durability))
        });
        let retired = self.retired.values().flatten();
        let retired =
            retired.flat_map(|place| place.runs.iter().map(|run| (run, place.durability)));
        let moving = self.moving.values();
        let moving = moving.flat_map(|to| to.runs.iter().map(|run| (run, to.durability)));
        self.audit_places()?;
        self.space.audit(live, pending.chain(retired).chain(moving))
    }

    /// Every run of every tensor stands in `places`, and nothing else does.
    fn audit_places(&self) -> Result<(), String> {
        let versions = self.slots.values().filter_map(|slot| slot.current.as_ref());
        let mut runs = 0;
        for version in versions {
            for run in &version.entry.runs {
                let stands = self.places.get(&(run.segment, run.block));
                if stands != Some(&version.entry.id) {
                    return Err(format!("{run:?} of {} belongs to {stands:?}", version.entry.id));
                }
                runs += 1;
            }
        }
        if runs == self.places.len() {
            Ok(())
        } else {
            Err(format!("{runs} runs of tensors, {} places", self.places.len()))
        }
    }
}
