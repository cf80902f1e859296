//! Which tensor lies where: the runs of all that can be read, by segment and first block.
//!
//! A segment fills from front to back and what lies in it goes in whatever order, so each has a
//! sorted list, at whose end nearly all is added. A list whose last run went serves for another
//! segment: once there are enough of them nothing is allocated any more.

use rustc_hash::FxHashMap;

use crate::layout::{Run, TensorId};

/// Lists kept for other segments.
const SPARES_MAX: usize = 16;

#[derive(Debug, Default)]
pub(super) struct Places {
    segments: FxHashMap<u32, Residents>,
    spares: Vec<Vec<Place>>,
}

/// What lies in a segment.
#[derive(Debug, Default)]
struct Residents {
    /// In the order of blocks; with those that went, until they are half of it.
    places: Vec<Place>,
    standing: usize,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    id: TensorId,
    block: u32,
    gone: bool,
}

impl Places {
    /// A tensor can be read in this run from now on.
    pub(super) fn insert(&mut self, run: &Run, id: TensorId) {
        let spares = &mut self.spares;
        let fresh = || Residents { places: spares.pop().unwrap_or_default(), standing: 0 };
        let residents = self.segments.entry(run.segment).or_insert_with(fresh);
        residents.insert(Place { id, block: run.block, gone: false });
    }

    /// This run is found no more.
    pub(super) fn remove(&mut self, run: &Run) {
        let Some(residents) = self.segments.get_mut(&run.segment) else { return };
        residents.remove(run.block);
        if residents.standing == 0
            && let Some(Residents { mut places, .. }) = self.segments.remove(&run.segment)
            && self.spares.len() < SPARES_MAX
        {
            places.clear();
            self.spares.push(places);
        }
    }

    /// Whose run it is.
    pub(super) fn get(&self, run: &Run) -> Option<TensorId> {
        let Residents { places, .. } = self.segments.get(&run.segment)?;
        let at = places.binary_search_by_key(&run.block, |place| place.block).ok()?;
        (!places[at].gone).then_some(places[at].id)
    }

    /// How many runs there are.
    pub(super) fn len(&self) -> usize {
        self.segments.values().map(|residents| residents.standing).sum()
    }

    /// The tensor of each run in a segment, in the order in which they lie there.
    pub(super) fn of_segment(&self, segment: u32) -> impl Iterator<Item = TensorId> {
        let places = self.segments.get(&segment).into_iter().flat_map(|it| &it.places);
        places.filter(|place| !place.gone).map(|place| place.id)
    }
}

impl Residents {
    fn insert(&mut self, place: Place) {
        if self.places.len() == self.places.capacity() && self.standing <= self.places.len() / 2 {
            self.places.retain(|place| !place.gone);
        }
        self.standing += 1;
        if self.places.last().is_none_or(|last| last.block < place.block) {
            return self.places.push(place);
        }
        match self.places.binary_search_by_key(&place.block, |other| other.block) {
            Ok(at) => self.places[at] = place,
            Err(at) => self.places.insert(at, place),
        }
    }

    fn remove(&mut self, block: u32) {
        let Ok(at) = self.places.binary_search_by_key(&block, |place| place.block) else { return };
        self.standing -= usize::from(!self.places[at].gone);
        self.places[at].gone = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(segment: u32, block: u32) -> Run {
        Run { segment, block, blocks: 1 }
    }

    #[test]
    fn runs_are_found_in_the_order_in_which_they_lie_whatever_the_order_they_came_and_went_in() {
        let mut places = Places::default();
        for block in [3, 1, 2, 7, 0] {
            places.insert(&run(5, block), TensorId(block.into()));
        }
        places.insert(&run(6, 1), TensorId(9));
        assert_eq!(places.len(), 6);
        assert_eq!(places.of_segment(5).map(|id| id.0).collect::<Vec<_>>(), [0, 1, 2, 3, 7]);
        places.remove(&run(5, 2));
        places.remove(&run(5, 2));
        assert_eq!((places.len(), places.get(&run(5, 2))), (5, None));
        assert_eq!(places.get(&run(5, 3)), Some(TensorId(3)));
        places.insert(&run(5, 2), TensorId(4));
        assert_eq!(places.of_segment(5).map(|id| id.0).collect::<Vec<_>>(), [0, 1, 4, 3, 7]);
    }

    #[test]
    fn what_went_takes_no_room_and_an_empty_segments_list_serves_another() {
        let mut places = Places::default();
        for block in 0..10_000 {
            places.insert(&run(1, block), TensorId(0));
            places.insert(&run(2, block), TensorId(0));
            if block >= 8 {
                places.remove(&run(1, block - 8));
            }
        }
        assert!(places.segments[&1].places.capacity() <= 64, "it grows with what stands");
        (0..10_000).for_each(|block| places.remove(&run(2, block)));
        assert_eq!((places.spares.len(), places.segments.len()), (1, 1));
        places.insert(&run(3, 0), TensorId(0));
        assert!(places.segments[&3].places.capacity() >= 10_000 && places.spares.is_empty());
    }
}
