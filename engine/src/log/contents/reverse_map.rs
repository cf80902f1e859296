//! Reverse map from places to tensors: the runs of all that can be read, by segment and first
//! block.
//!
//! A segment fills from front to back and what lies in it goes in whatever order, so each has a
//! sorted list, at whose end nearly all is added. A list whose last run went serves for another
//! segment: once there are enough of them nothing is allocated any more.

use rustc_hash::FxHashMap;

use crate::layout::{Run, TensorId};

/// Lists kept for other segments.
const SPARES_MAX: usize = 16;

#[derive(Debug, Default)]
pub(super) struct ReverseMap {
    segments: FxHashMap<u32, Residents>,
    spares: Vec<Vec<MappedRun>>,
}

/// Runs in a segment.
#[derive(Debug, Default)]
struct Residents {
    /// Runs in the order of blocks; with those that went, until they are half of it.
    runs: Vec<MappedRun>,
    standing: usize,
}

#[derive(Clone, Copy, Debug)]
struct MappedRun {
    id: TensorId,
    block: u32,
    gone: bool,
}

impl ReverseMap {
    /// A tensor can be read in this run from now on.
    pub(super) fn insert(&mut self, run: &Run, id: TensorId) {
        let spares = &mut self.spares;
        let fresh = || Residents { runs: spares.pop().unwrap_or_default(), standing: 0 };
        let residents = self.segments.entry(run.segment).or_insert_with(fresh);
        residents.insert(MappedRun { id, block: run.block, gone: false });
    }

    /// Removes a run that is found no more.
    pub(super) fn remove(&mut self, run: &Run) {
        let Some(residents) = self.segments.get_mut(&run.segment) else { return };
        residents.remove(run.block);
        if residents.standing == 0
            && let Some(Residents { mut runs, .. }) = self.segments.remove(&run.segment)
            && self.spares.len() < SPARES_MAX
        {
            runs.clear();
            self.spares.push(runs);
        }
    }

    /// Returns the tensor of a run.
    pub(super) fn get(&self, run: &Run) -> Option<TensorId> {
        let Residents { runs, .. } = self.segments.get(&run.segment)?;
        let at = runs.binary_search_by_key(&run.block, |run| run.block).ok()?;
        (!runs[at].gone).then_some(runs[at].id)
    }

    /// Returns the number of runs.
    pub(super) fn len(&self) -> usize {
        self.segments.values().map(|residents| residents.standing).sum()
    }

    /// The tensor of each run in a segment, in the order in which they lie there.
    pub(super) fn of_segment(&self, segment: u32) -> impl Iterator<Item = TensorId> {
        let runs = self.segments.get(&segment).into_iter().flat_map(|it| &it.runs);
        runs.filter(|run| !run.gone).map(|run| run.id)
    }
}

impl Residents {
    fn insert(&mut self, run: MappedRun) {
        if self.runs.len() == self.runs.capacity() && self.standing <= self.runs.len() / 2 {
            self.runs.retain(|run| !run.gone);
        }
        self.standing += 1;
        if self.runs.last().is_none_or(|last| last.block < run.block) {
            return self.runs.push(run);
        }
        match self.runs.binary_search_by_key(&run.block, |other| other.block) {
            Ok(at) => self.runs[at] = run,
            Err(at) => self.runs.insert(at, run),
        }
    }

    fn remove(&mut self, block: u32) {
        let Ok(at) = self.runs.binary_search_by_key(&block, |run| run.block) else { return };
        self.standing -= usize::from(!self.runs[at].gone);
        self.runs[at].gone = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(segment: u32, block: u32) -> Run {
        Run::single(segment, block, 1)
    }

    #[test]
    fn runs_are_found_in_the_order_in_which_they_lie_whatever_the_order_they_came_and_went_in() {
        let mut map = ReverseMap::default();
        for block in [3, 1, 2, 7, 0] {
            map.insert(&run(5, block), TensorId(block.into()));
        }
        map.insert(&run(6, 1), TensorId(9));
        assert_eq!(map.len(), 6);
        assert_eq!(map.of_segment(5).map(|id| id.0).collect::<Vec<_>>(), [0, 1, 2, 3, 7]);
        map.remove(&run(5, 2));
        map.remove(&run(5, 2));
        assert_eq!((map.len(), map.get(&run(5, 2))), (5, None));
        assert_eq!(map.get(&run(5, 3)), Some(TensorId(3)));
        map.insert(&run(5, 2), TensorId(4));
        assert_eq!(map.of_segment(5).map(|id| id.0).collect::<Vec<_>>(), [0, 1, 4, 3, 7]);
    }

    #[test]
    fn what_went_takes_no_room_and_an_empty_segments_list_serves_another() {
        let mut map = ReverseMap::default();
        for block in 0..10_000 {
            map.insert(&run(1, block), TensorId(0));
            map.insert(&run(2, block), TensorId(0));
            if block >= 8 {
                map.remove(&run(1, block - 8));
            }
        }
        assert!(map.segments[&1].runs.capacity() <= 64, "it grows with what stands");
        (0..10_000).for_each(|block| map.remove(&run(2, block)));
        assert_eq!((map.spares.len(), map.segments.len()), (1, 1));
        map.insert(&run(3, 0), TensorId(0));
        assert!(map.segments[&3].runs.capacity() >= 10_000 && map.spares.is_empty());
    }
}
