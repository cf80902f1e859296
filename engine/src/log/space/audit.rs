//! Counting the space of a share again from the ground up.

use super::{Durability, Space, SpaceUse, State};
use crate::layout::Run;

impl Space {
    /// Checks every rule this module promises, by counting again from the ground up.
    ///
    /// `live` and `reserved` are all runs that the index and the writes in flight hold, `index` the
    /// segments that its checkpoints go on in.
    ///
    /// # Errors
    /// The first rule that does not hold.
    pub fn audit<'a>(
        &self,
        live: impl Iterator<Item = (&'a Run, Durability)>,
        reserved: impl Iterator<Item = (&'a Run, Durability)>,
        index: impl Iterator<Item = u32>,
    ) -> Result<SpaceUse, String> {
        let widest = self.set_blocks.iter().copied().max().unwrap_or_default() as usize;
        let mut owners = vec![None; self.segments.len() * widest];
        let mut counts = vec![[0_u32; 2]; self.segments.len()];
        let held = live.map(|held| (0, held)).chain(reserved.map(|held| (1, held)));
        for (kind, (run, durability)) in held {
            let index =
                run.segment.checked_sub(self.first_segment).ok_or("a foreign share's run")?;
            let segment = self.segments.get(index as usize).ok_or("a run past the share")?;
            if run.end() > u64::from(segment.filled) {
                return Err(format!("{run:?} lies past what its segment handed out: {segment:?}"));
            }
            match segment.state {
                State::Free | State::Discarding => {
                    return Err(format!("{run:?} lies in a free segment"));
                }
                State::Index => return Err(format!("{run:?} lies in a segment of the index")),
                State::Open(lane) | State::Sealed(lane) if lane.durability != durability => {
                    return Err(format!("{durability:?} {run:?} lies in a segment of {lane:?}"));
                }
                State::Open(lane) | State::Sealed(lane) if lane.copies != run.copies => {
                    return Err(format!("{run:?} lies in a segment of {lane:?}"));
                }
                State::Open(_) | State::Sealed(_) => counts[index as usize][kind] += run.blocks,
            }
            if run.set != segment.set {
                return Err(format!("{run:?} lies in a segment of other devices: {segment:?}"));
            }
            let base = index as usize * widest;
            for block in run.block as usize..run.end() as usize {
                if owners[base + block].replace(run).is_some() {
                    return Err(format!("{run:?} overlaps another run"));
                }
            }
        }
        for (index, (segment, [live, reserved])) in self.segments.iter().zip(&counts).enumerate() {
            if segment.live != *live || segment.reserved != *reserved {
                return Err(format!("segment {index} holds {live}+{reserved} blocks: {segment:?}"));
            }
            let empty = *live == 0 && *reserved == 0;
            let holds_none = segment.is_unused() || segment.state == State::Index;
            if empty != holds_none || (empty && segment.filled != 0) {
                return Err(format!(
                    "segment {index} leaked, or is free while in use: {segment:?}"
                ));
            }
        }
        let free = self.segments.iter().filter(|segment| segment.state == State::Free).count();
        if free != self.free.len() {
            return Err(format!("{free} free segments, {} in the list", self.free.len()));
        }
        let found = self.segments.iter().filter(|segment| segment.state == State::Index).count();
        let mut held = 0;
        for segment in index {
            let place =
                segment.checked_sub(self.first_segment).ok_or("a foreign share's segment")?;
            if self.segments.get(place as usize).is_none_or(|it| it.state != State::Index) {
                return Err(format!("the index does not own its segment {segment}"));
            }
            held += 1;
        }
        if found != held || found != self.index_segments as usize {
            return Err(format!("the index owns {found} segments and knows {held}"));
        }
        let space = self.space_use();
        let held = [space.live, space.reserved, space.index];
        let others = [space.dead, space.free, space.missing];
        let sum: u64 = held.into_iter().chain(others).map(|part| part.0).sum();
        if sum != space.capacity.0 {
            return Err(format!("{space:?} sums to {sum}"));
        }
        Ok(space)
    }
}
