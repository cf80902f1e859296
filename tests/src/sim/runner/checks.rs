//! Checks that hold at any time, and after every recovery.

use std::collections::BTreeMap;

use super::{Check, DURABLE, Runner, text};
use crate::sim::commits::Started;
use crate::sim::model::Content;

impl Runner<'_> {
    pub(in crate::sim) fn found(&self) -> Result<BTreeMap<u16, u64>, String> {
        let pool = self.pool()?;
        let tensors = pool.durable_tensors().map_err(text)?;
        tensors
            .into_iter()
            .map(|(id, _)| {
                let length = pool.length(id).ok_or("a tensor that is listed is not there")?;
                Ok(((id.0 - DURABLE) as u16, length))
            })
            .collect()
    }

    /// The books: nothing leaked, nothing overlaps, and what lives is what the model says.
    pub(super) fn reconcile(&mut self) -> Check {
        let space = self.pool()?.audit()?;
        let parts = [space.live, space.dead, space.free, space.reserved, space.index];
        if parts.iter().map(|part| part.0).sum::<u64>() != space.capacity.0 {
            return Err(format!("the parts do not sum to the whole: {space:?}"));
        }
        self.process_completions()?;
        let blocks = |durable: bool, content: &Content| {
            let copies = u64::from(self.script.copies(durable, *content).count());
            u64::from(content.length).div_ceil(4096) * 4096 * copies
        };
        let scratch = self.model.scratch.values().map(|content| blocks(false, content));
        let durable = self.model.durable.values().map(|content| blocks(true, content));
        let standing: u64 = scratch.chain(durable).sum();
        let coming = self.commits.iter().flat_map(Started::holds);
        let held = self.model.held_alone(coming);
        let sealed: u64 = held.iter().map(|(_, durable, content)| blocks(*durable, content)).sum();
        let live = standing + sealed;
        if (space.live.0, space.sealed.0) != (live, sealed) {
            let (found, alone) = (space.live, space.sealed);
            return Err(format!(
                "{found} lives, {alone} of it by seals, where the model has {live} and {sealed} bytes"
            ));
        }
        self.staged.retain(|ticket| ticket.poll().is_none());
        let quiet = self.writes.is_empty()
            && self.reads.is_empty()
            && self.staged.is_empty()
            && self.commits.is_empty();
        // A reclamation's commit in doubt holds space until the pool is opened again.
        if quiet
            && self.model.in_doubt.is_none()
            && !self.allowed_errors.writes
            && space.reserved.0 != 0
        {
            return Err(format!("{} is reserved and nothing is in flight", space.reserved));
        }
        Ok(())
    }

    /// Every durable tensor is there with its bytes, and no other.
    pub(super) fn check_everything(&mut self) -> Check {
        let expected = self.model.durable.iter();
        let expected: BTreeMap<u16, u64> =
            expected.map(|(id, content)| (*id, content.length.into())).collect();
        let found = self.found()?;
        if found != expected {
            return Err(format!("durable tensors (id and length) are {found:?}, not {expected:?}"));
        }
        for (id, content) in self.model.durable.clone() {
            let ticket = self.start(id, true, (0, content.length.into()))?;
            let outcome = ticket.wait();
            let bytes = content.bytes();
            self.compare(&format!("durable {id}"), Some(id), content, &outcome, &ticket, &bytes)?;
        }
        self.check_seals()?;
        let (lost, damaged) = (self.count_lost(), self.allowed_errors.damaged);
        if lost > damaged {
            return Err(format!("{lost} tensors are lost where {damaged} could be damaged"));
        }
        Ok(())
    }

    /// Returns the number of durable tensors that were found damaged and not written again since,
    /// and of versions that only seals hold.
    pub(super) fn count_lost(&self) -> u64 {
        let is_there =
            |(id, content): &(&u16, &Content)| self.model.durable.get(id) == Some(content);
        let held = self.model.held_alone(std::iter::empty());
        let held = self.lost_sealed.intersection(&held).count();
        (self.lost.iter().filter(is_there).count() + held) as u64
    }
}
