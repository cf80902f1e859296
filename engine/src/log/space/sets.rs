//! Choice of the set of devices over which a new segment is striped.
//!
//! Where devices differ in rate, some segments are striped over the faster ones alone. The slices
//! of such a segment on the others are unused until it is free again, so that is done only while
//! there is plenty of space: reclamation, and puts into a share that has filled up, take segments
//! over all devices.

use super::{AllocationReach, Lane, Space};
use crate::layout::{Copies, DeviceTable};

/// Segments are shared out by rate while more than one of this number is free.
const ROOMY_PARTS: usize = 4;

/// A set over which new segments are striped.
#[derive(Clone, Copy, Debug)]
struct WeightedSet {
    number: u8,
    devices: usize,
    /// Part of all segments.
    part: i64,
    /// Segments that are due to it, in units of all parts together.
    credit: i64,
}

/// The sets over which new segments are striped, in turns that keep to their parts.
#[derive(Clone, Debug, Default)]
pub(super) struct SetTurns(Vec<WeightedSet>);

impl SetTurns {
    /// Makes the turns of a table's sets.
    fn of(table: &DeviceTable) -> Self {
        let sets = table.weighted_sets().into_iter().map(|(number, part)| {
            let devices = table.set(number).len();
            WeightedSet { number, devices, part: part.into(), credit: 0 }
        });
        Self(sets.collect())
    }

    /// Returns whether segments are striped over one set alone.
    fn is_one(&self) -> bool {
        self.0.len() < 2
    }

    /// Returns the set whose turn it is among those that have enough devices for these copies and
    /// that `fits`.
    fn next(&mut self, copies: Copies, fits: impl Fn(u8) -> bool) -> Option<u8> {
        let has_turn = |it: &WeightedSet| it.devices >= copies.count() as usize && fits(it.number);
        let mut all = 0;
        for set in self.0.iter_mut().filter(|it| has_turn(it)) {
            set.credit += set.part;
            all += set.part;
        }
        let due = self.0.iter_mut().filter(|it| has_turn(it)).max_by_key(|it| it.credit)?;
        due.credit -= all;
        Some(due.number)
    }
}

impl Space {
    /// Shares new segments out among the sets of devices as the table's rates ask for.
    #[must_use]
    pub fn shared_out_by(self, table: &DeviceTable) -> Self {
        Self { turns: SetTurns::of(table), ..self }
    }

    /// Returns the set over which the next segment of a lane is striped, of an allocation that
    /// lacks `missing` blocks.
    pub(super) fn next_set(&mut self, lane: Lane, reach: AllocationReach, missing: u64) -> u8 {
        let is_roomy = ROOMY_PARTS * self.free.len() > self.segments.len();
        if self.turns.is_one()
            || !is_roomy
            || reach == AllocationReach::Reserve
            || self.gaps.is_some()
        {
            return self.current;
        }
        let (blocks, current) = (self.set_blocks, self.current);
        let others = self.free_within(reach).saturating_sub(1) as u64;
        let rest = others * u64::from(self.usable(lane.copies));
        let fits = |set: u8| u64::from(blocks[usize::from(set)]) + rest >= missing;
        self.turns.next(lane.copies, fits).unwrap_or(current)
    }
}
