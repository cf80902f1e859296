//! Free parts of a range of addresses, and those that have pages.

use std::collections::{BTreeMap, HashMap};

/// Free and taken parts, by their offset in bytes. All are whole pages.
#[derive(Default)]
pub(super) struct Extents {
    free: BTreeMap<usize, Free>,
    taken: HashMap<usize, usize>,
    taken_bytes: usize,
    /// Ranges of what is taken that have no pages, with their lengths.
    decommitted: BTreeMap<usize, usize>,
    decommitted_bytes: usize,
    kept: usize,
    end: usize,
    /// Number of frees.
    frees: u64,
}

/// A free part. Neighbours differ: what is alike is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Free {
    length: usize,
    /// The last user has left pages there, which the next need not wait for.
    resident: bool,
    /// The number of the free that made it, the last of them where it was joined.
    freed: u64,
}

/// Fit of an allocation.
#[derive(Clone, Copy)]
struct Fit {
    at: usize,
    resident: usize,
    run: usize,
}

impl Extents {
    /// Bytes that are free and have pages.
    pub(super) fn kept(&self) -> usize {
        self.kept
    }

    /// Bytes that are taken and may have pages.
    pub(super) fn taken(&self) -> usize {
        self.taken_bytes - self.decommitted_bytes
    }

    /// Bytes that are taken, or kept: so many have pages at most.
    pub(super) fn with_pages(&self) -> usize {
        self.taken() + self.kept
    }

    /// Part of what is taken has no pages from here on. Idempotent.
    pub(super) fn decommit(&mut self, at: usize, length: usize) {
        let before = self.decommitted.insert(at, length);
        self.decommitted_bytes = self.decommitted_bytes + length - before.unwrap_or(0);
    }

    /// Allows pages again at `at`.
    pub(super) fn recommit(&mut self, at: usize) {
        self.decommitted_bytes -= self.decommitted.remove(&at).unwrap_or(0);
    }

    /// Bytes that are taken or free.
    pub(super) fn end(&self) -> usize {
        self.end
    }

    /// Grows the range by `length` free bytes at the end, without pages.
    pub(super) fn grow(&mut self, length: usize) {
        let at = self.end;
        self.end += length;
        self.insert(at, Free { length, resident: false, freed: 0 });
    }

    /// Takes a part, where most of it has pages: among such places, from the smallest gap.
    pub(super) fn take(&mut self, length: usize) -> Option<usize> {
        let at = self.best_fit(length)?.at;
        self.carve(at, length);
        self.taken.insert(at, length);
        self.taken_bytes += length;
        Some(at)
    }

    /// Frees the allocation at `at`; returns its length. `None`: nothing taken begins there.
    pub(super) fn give(&mut self, at: usize, resident: bool) -> Option<usize> {
        let length = self.taken.remove(&at)?;
        self.taken_bytes -= length;
        while let Some((&part, _)) = self.decommitted.range(at..at + length).next() {
            self.recommit(part);
        }
        self.frees += 1;
        self.insert(at, Free { length, resident, freed: self.frees });
        Some(length)
    }

    /// Picks a part of at most that many bytes whose pages are to be given up: where most bytes
    /// have been free for longest. What is small, or was in use a moment ago, is wanted again soon.
    pub(super) fn give_up(&mut self, most: usize) -> Option<(usize, usize)> {
        let age = |free: &Free| u128::from(self.frees - free.freed + 1);
        let resident = self.free.iter().filter(|(_, free)| free.resident);
        let (&at, &free) = resident.max_by_key(|(_, free)| free.length as u128 * age(free))?;
        let length = free.length.min(most);
        let last = at + free.length - length;
        self.carve(last, length);
        self.insert(last, Free { length, resident: false, freed: 0 });
        Some((last, length))
    }

    fn best_fit(&self, length: usize) -> Option<Fit> {
        let (mut best, mut run) = (None::<Fit>, Vec::<(usize, Free)>::new());
        for (&at, &free) in &self.free {
            if run.last().is_some_and(|(before, last)| before + last.length != at) {
                consider(&mut best, &run, length);
                run.clear();
            }
            run.push((at, free));
        }
        consider(&mut best, &run, length);
        best
    }

    /// Takes out of what is free.
    fn carve(&mut self, at: usize, length: usize) {
        let end = at + length;
        let mut next = at;
        while next < end {
            let (&begin, &free) = self.free.range(..=next).next_back().expect("it is free");
            self.remove(begin);
            let stop = begin + free.length;
            for (from, to) in [(begin, next), (stop.min(end), stop)] {
                if from < to {
                    self.add(from, Free { length: to - from, ..free });
                }
            }
            next = stop;
        }
    }

    /// Adds to what is free, and joins it with neighbours that are like it.
    fn insert(&mut self, at: usize, free: Free) {
        let (mut at, mut free) = (at, free);
        if let Some((&before, &left)) = self.free.range(..at).next_back()
            && before + left.length == at
            && left.resident == free.resident
        {
            self.remove(before);
            at = before;
            free = joined(left, free);
        }
        let after = at + free.length;
        if let Some(&right) = self.free.get(&after)
            && right.resident == free.resident
        {
            self.remove(after);
            free = joined(free, right);
        }
        self.add(at, free);
    }

    fn add(&mut self, at: usize, free: Free) {
        self.kept += if free.resident { free.length } else { 0 };
        self.free.insert(at, free);
    }

    fn remove(&mut self, at: usize) {
        let free = self.free.remove(&at).expect("it is free");
        self.kept -= if free.resident { free.length } else { 0 };
    }
}

fn joined(left: Free, right: Free) -> Free {
    Free { length: left.length + right.length, freed: left.freed.max(right.freed), ..left }
}

/// Looks at the places that begin or end where a part of a gap does. A gap is made of neighbouring
/// free parts.
fn consider(best: &mut Option<Fit>, gap: &[(usize, Free)], length: usize) {
    let run = gap.iter().map(|(_, free)| free.length).sum();
    let mut before = 0;
    for (index, &(begin, free)) in gap.iter().enumerate() {
        let after = before + free.length;
        if run - before >= length {
            let resident = resident_in(gap[index..].iter(), length);
            take_better(best, Fit { at: begin, resident, run });
        }
        if after >= length {
            let resident = resident_in(gap[..=index].iter().rev(), length);
            take_better(best, Fit { at: begin + free.length - length, resident, run });
        }
        before = after;
    }
}

fn take_better(best: &mut Option<Fit>, fit: Fit) {
    if best.is_none_or(|best| (fit.resident, best.run) > (best.resident, fit.run)) {
        *best = Some(fit);
    }
}

/// Returns the number of the first bytes that have pages.
fn resident_in<'a>(parts: impl Iterator<Item = &'a (usize, Free)>, length: usize) -> usize {
    let (mut left, mut resident) = (length, 0);
    for (_, free) in parts {
        let used = free.length.min(left);
        resident += if free.resident { used } else { 0 };
        left -= used;
        if left == 0 {
            break;
        }
    }
    resident
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use tidelog_random::Random;

    use super::*;

    /// Model of the range, page by page.
    #[derive(Default)]
    struct Model {
        taken: HashMap<usize, usize>,
        resident: HashSet<usize>,
    }

    impl Model {
        fn check(&self, extents: &Extents) {
            let taken: HashSet<_> =
                self.taken.iter().flat_map(|(&at, &length)| at..at + length).collect();
            let kept = self.resident.difference(&taken).count();
            assert_eq!((extents.kept(), extents.with_pages()), (kept, kept + taken.len()));
            let mut next = 0;
            for (&at, free) in &extents.free {
                (next..at).for_each(|page| assert!(taken.contains(&page), "{page} is lost"));
                for page in at..at + free.length {
                    assert!(!taken.contains(&page), "{page} is free and taken");
                    assert_eq!(free.resident, self.resident.contains(&page), "{page}");
                }
                next = at + free.length;
            }
            (next..extents.end()).for_each(|page| assert!(taken.contains(&page), "{page} is lost"));
        }
    }

    #[test]
    fn what_is_free_and_has_pages_is_as_a_model_says() {
        for seed in 0..20 {
            let mut random = Random::new(seed);
            let (mut extents, mut model) = (Extents::default(), Model::default());
            for _ in 0..400 {
                let length = 1 + random.below(12) as usize;
                match random.below(5) {
                    0 | 1 => {
                        if extents.best_fit(length).is_none() {
                            extents.grow(length.max(64));
                        }
                        let at = extents.take(length).unwrap();
                        assert!(model.taken.insert(at, length).is_none());
                    }
                    2 | 3 => {
                        let Some(&at) = model.taken.keys().min_by_key(|at| **at ^ length) else {
                            continue;
                        };
                        let resident = random.below(4) > 0;
                        let length = model.taken.remove(&at).unwrap();
                        assert_eq!(extents.give(at, resident), Some(length));
                        for page in at..at + length {
                            model.resident.remove(&page);
                            if resident {
                                model.resident.insert(page);
                            }
                        }
                        assert_eq!(extents.give(at, resident), None, "twice");
                    }
                    _ => {
                        if let Some((at, given)) = extents.give_up(length) {
                            assert!(given <= length);
                            (at..at + given).for_each(|page| {
                                assert!(model.resident.remove(&page), "{page} had none");
                            });
                        }
                    }
                }
                // What is taken counts as neither.
                for (&at, &length) in &model.taken {
                    (at..at + length).for_each(|page| {
                        model.resident.remove(&page);
                    });
                }
                model.check(&extents);
            }
        }
    }

    #[test]
    fn what_is_taken_and_has_no_pages_counts_as_little_until_it_has_some_or_is_free() {
        let mut extents = Extents::default();
        extents.grow(100);
        let at = extents.take(40).unwrap();
        extents.decommit(at + 10, 20);
        extents.decommit(at + 10, 20); // told twice
        assert_eq!((extents.taken(), extents.with_pages()), (20, 20));
        extents.recommit(at + 10);
        extents.recommit(at + 10);
        assert_eq!(extents.taken(), 40);
        extents.decommit(at, 5);
        extents.give(at, true);
        assert_eq!((extents.taken(), extents.kept()), (0, 40));
    }

    #[test]
    fn memory_that_has_pages_is_taken_first() {
        let mut extents = Extents::default();
        extents.grow(100);
        let places: Vec<_> = (0..5).map(|_| extents.take(10).unwrap()).collect();
        extents.give(places[1], true);
        extents.give(places[3], false);
        assert_eq!(extents.take(10), Some(places[1]));
        extents.give(places[2], true);
        // Ten with pages and ten without lie side by side: all ten are used.
        assert_eq!(extents.take(12), Some(places[2]));
        assert_eq!(extents.kept(), 0);
    }

    #[test]
    fn pages_within_a_gap_are_found_and_what_is_large_or_old_gives_its_pages_up_first() {
        let mut extents = Extents::default();
        extents.grow(100);
        let places: Vec<_> = (0..5).map(|_| extents.take(20).unwrap()).collect();
        for (&place, resident) in places.iter().zip([false, true, false, false, true]) {
            extents.give(place, resident);
        }
        // One gap: a place at either end of it would find no more pages than this one.
        assert_eq!(extents.take(22), Some(places[1]));
        assert_eq!((extents.kept(), extents.taken()), (20, 22));
        extents.give(places[1], true);
        // 20 pages that were freed by the last but one, and 22 by the last.
        assert_eq!(extents.give_up(3), Some((places[4] + 17, 3)));
        for _ in 0..10 {
            let at = extents.take(5).unwrap();
            extents.give(at, true);
        }
        assert_eq!(extents.give_up(100), Some((places[4], 17)));
        assert_eq!(extents.give_up(100), Some((places[1], 22)));
        assert_eq!((extents.kept(), extents.give_up(100)), (0, None));
    }
}
