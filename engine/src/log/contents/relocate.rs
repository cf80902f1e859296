//! Moving what lives in a segment somewhere else, while it is read, replaced and deleted.
//!
//! Only the runs in the victim move; a tensor's other runs stay. A tensor may be much larger than a
//! segment, so moving it whole to free one segment would copy many, and need room for all of them.
//! What moves is read and verified by its old checksums and gets new ones, for the pieces that
//! stripe unit borders cut it into at its new place.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use super::seals::CountedVersion;
use super::{Contents, Moving};
use crate::layout::{BLOCK_BYTES, Checksums, Runs, TensorEntry};
use crate::log::space::{AllocationReach, Durability, Lane, Victim, Wanted};
use crate::log::stripe::StripeMap;
use crate::log::version::Version;

/// A segment that is being reclaimed, and what must leave it. Ends in [`Contents::end_reclaim`],
/// after each relocation has ended.
#[derive(Debug)]
pub struct Reclamation {
    /// The segment.
    pub victim: Victim,
    /// One for each tensor in it, in the order in which they lie there.
    pub relocations: Vec<Relocation>,
}

/// A tensor's runs in the victim on their way to a new place. Counts as a read of the tensor. Ends
/// in exactly one of [`Contents::relocate`], [`Contents::abandon_relocation`] and
/// [`Contents::leave_relocation_in_doubt`].
#[derive(Debug)]
pub struct Relocation {
    key: u64,
    /// The version that is moved.
    pub version: Arc<Version>,
    /// The lane that it moves to.
    pub lane: Lane,
    /// Groups of runs that move, in the tensor's order.
    pub stretches: Vec<RunGroup>,
}

/// Consecutive runs of a tensor that move together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunGroup {
    /// Range of the tensor's runs.
    pub runs: Range<usize>,
    /// Range of the tensor's bytes.
    pub bytes: Range<u64>,
    /// Destination of the runs.
    pub to: Runs,
}

impl Relocation {
    /// The tensor as it is once it has moved. `checksums` are those of each stretch's new pieces.
    pub fn entry(&self, stripes: &StripeMap, checksums: &[Vec<u32>]) -> TensorEntry {
        let old = &self.version.entry;
        let mut sums = Checksums::new();
        let (mut run, mut piece) = (0, 0);
        let mut keep = |until: usize, sums: &mut Checksums| {
            let pieces = stripes.count(&old.runs[run..until]);
            sums.extend_from_slice(&old.checksums[piece..piece + pieces]);
            (run, piece) = (until, piece + pieces);
        };
        for (stretch, new) in self.stretches.iter().zip(checksums) {
            keep(stretch.runs.start, &mut sums);
            sums.extend_from_slice(new);
            // What moved is passed over.
            keep(stretch.runs.end, &mut Checksums::new());
        }
        keep(old.runs.len(), &mut sums);
        let (runs, class) = (self.runs(), old.class.longer());
        TensorEntry { runs, checksums: sums, class, ..old.clone() }
    }

    /// Returns the tensor's runs after the move.
    pub(super) fn runs(&self) -> Runs {
        let old = &self.version.entry.runs;
        let (mut runs, mut next) = (Runs::new(), 0);
        for stretch in &self.stretches {
            runs.extend_from_slice(&old[next..stretch.runs.start]);
            runs.extend_from_slice(&stretch.to);
            next = stretch.runs.end;
        }
        runs.extend_from_slice(&old[next..]);
        runs
    }

    fn old_runs(&self) -> Runs {
        let runs = self.stretches.iter().flat_map(|stretch| stretch.runs.clone());
        runs.map(|run| self.version.entry.runs[run]).collect()
    }
}

impl Contents {
    /// Chooses a segment and reserves room for all that lives in it.
    pub fn begin_reclaim(&mut self, wanted: Wanted) -> Option<Reclamation> {
        let victim = self.space.victim(wanted)?;
        Some(self.begin_moving(victim))
    }

    /// Chooses a segment of those that are striped over a set of devices that `is_meant`, and
    /// reserves room elsewhere for all that lives in it.
    pub fn begin_emptying(&mut self, is_meant: impl Fn(u8) -> bool) -> Option<Reclamation> {
        let victim = self.space.victim_of_set(is_meant)?;
        Some(self.begin_moving(victim))
    }

    /// Returns the bytes of tensors, in all copies, that are striped over a set that `is_meant`.
    pub fn striped_over(&self, is_meant: impl Fn(u8) -> bool) -> u64 {
        self.space.live_of_set(is_meant) * BLOCK_BYTES
    }

    /// Returns the number of segments that tensors may have while one is kept for moving them.
    pub fn movable_segments(&self) -> u64 {
        self.space.segments_for_tensors()
    }

    fn begin_moving(&mut self, victim: Victim) -> Reclamation {
        self.space.begin_reclaim(victim.segment);
        let relocations = self
            .residents(victim.segment)
            .into_iter()
            .filter_map(|version| self.begin_relocation(version, victim))
            .collect();
        Reclamation { victim, relocations }
    }

    /// Ends a reclamation. If something in the segment could not be read, it is not chosen again.
    pub fn end_reclaim(&mut self, victim: &Victim, unreadable: bool) {
        self.space.end_reclaim();
        if unreadable {
            self.space.mark_unmovable(victim.segment);
        }
    }

    /// Installs a move: the tensor can be read at its new place from now on; its old place is given
    /// back when nobody reads there. Where nothing knows the version any more, because it was
    /// replaced, deleted or its seal dropped, the new place is given back instead. For what is
    /// durable the commit of the new place is on media.
    pub fn relocate(&mut self, relocation: &Relocation, entry: TensorEntry) -> bool {
        let (stands, held) = (self.is_current(relocation), self.number_held(relocation));
        if !stands && held.is_none() {
            self.abandon_relocation(relocation);
            return false;
        }
        let Some(moving) = self.moving.remove(&relocation.key) else {
            return false;
        };
        let Moving { runs, durability, index_bytes } = moving;
        self.room.end(index_bytes);
        let old = &relocation.version;
        let version = Arc::new(Version::new(entry, durability, old.serial));
        self.occupy(version.entry.id, &runs);
        if stands && durability == Durability::Durable {
            self.room.remove(&old.entry);
            self.room.insert(&version.entry);
        }
        if let Some(number) = held {
            self.move_held(number, &old.entry, &version);
        }
        if stands {
            self.current.insert(version);
        }
        self.release_blocks(old, &relocation.old_runs());
        self.unpin(Arc::clone(old));
        true
    }

    /// A version that seals hold lies elsewhere from now on.
    fn move_held(&mut self, number: u64, before: &TensorEntry, version: &Arc<Version>) {
        if self.seals.held(number).is_some_and(CountedVersion::is_recorded) {
            self.room.remove(before);
            self.room.insert(&version.entry);
        } else {
            let longer = self.room.growth(before, &version.entry.runs);
            self.reserve_for_coming(number, longer);
        }
        self.seals.moved(number, version);
    }

    /// The move was given up: the tensor stays where it is.
    pub fn abandon_relocation(&mut self, relocation: &Relocation) {
        if let Some(moving) = self.moving.remove(&relocation.key) {
            self.room.end(moving.index_bytes);
            self.space.abandon(&moving.runs);
            self.unpin(Arc::clone(&relocation.version));
        }
    }

    /// The commit of a move failed half way: neither place may be used until the pool is opened
    /// again.
    pub fn leave_relocation_in_doubt(&mut self, relocation: &Relocation) {
        self.unpin(Arc::clone(&relocation.version));
    }

    /// Returns whether the version that is being moved is still the one that can be found.
    pub fn is_current(&self, relocation: &Relocation) -> bool {
        let current = self.current(relocation.version.entry.id);
        current.is_some_and(|current| Arc::ptr_eq(current, &relocation.version))
    }

    /// The number of the version that is being moved, if a seal holds it.
    pub fn number_held(&self, relocation: &Relocation) -> Option<u64> {
        self.seals.number_of(&relocation.version)
    }

    /// Returns the most that reclamation could free, in bytes.
    pub fn reclaimable(&self) -> u64 {
        self.space.reclaimable().0
    }

    /// Returns whether so few free segments are left for puts that reclamation should begin: enough
    /// that it ends before they do, few enough that what is about to die does so first.
    pub fn space_is_scarce(&self) -> bool {
        let low_water = (self.space.segment_count() / 64).clamp(1, 16);
        self.space.spare_segments() < low_water
    }

    /// Free segments that puts may take.
    pub fn spare_segments(&self) -> u32 {
        self.space.spare_segments()
    }

    /// See [`crate::log::Space::begin_discard`].
    pub fn begin_discard(&mut self) -> Option<u32> {
        self.space.begin_discard()
    }

    /// See [`crate::log::Space::end_discard`].
    pub fn end_discard(&mut self, segment: u32) {
        self.space.end_discard(segment);
    }

    /// The versions in a segment, in the order in which their tensors lie there.
    fn residents(&self, segment: u32) -> Vec<Arc<Version>> {
        let mut seen = HashSet::new();
        let ids = self.reverse_map.of_segment(segment).filter(|id| seen.insert(*id));
        let versions = ids.flat_map(|id| {
            let held = self.seals.versions_of(id).map(|(_, version)| version);
            let held = held.filter(|version| !self.is_standing(version));
            self.current(id).into_iter().chain(held)
        });
        let lies_here =
            |version: &&Arc<Version>| version.entry.runs.iter().any(|run| run.segment == segment);
        versions.filter(lies_here).cloned().collect()
    }

    fn begin_relocation(&mut self, version: Arc<Version>, victim: Victim) -> Option<Relocation> {
        let Victim { segment, lane: Lane { copies, .. }, .. } = victim;
        let version = self.pin_version(version);
        let Version { durability, entry, .. } = &*version;
        let lane = Lane { durability: *durability, class: entry.class.longer(), copies };
        let mut stretches = stretches_in(&version.entry, segment);
        let mut runs = Runs::new();
        for stretch in &mut stretches {
            let (first, bytes) = (runs.len(), stretch.bytes.end - stretch.bytes.start);
            // The victim was chosen so that all of it fits.
            if self.space.allocate(lane, bytes, AllocationReach::Reserve, &mut runs).is_err() {
                debug_assert!(false, "a victim that does not fit");
                self.space.abandon(&runs);
                self.unpin(version);
                return None;
            }
            stretch.to = runs[first..].into();
        }
        let (key, durability) = (self.next_serial(), version.durability);
        let relocation = Relocation { key, version, lane, stretches };
        // Once for the tensor, once for what seals hold.
        let stands = durability == Durability::Durable && self.is_standing(&relocation.version);
        let entries = u64::from(stands) + u64::from(self.number_held(&relocation).is_some());
        let growth = self.room.growth(&relocation.version.entry, &relocation.runs());
        let index_bytes = entries * growth;
        self.room.begin(index_bytes);
        self.moving.insert(key, Moving { runs, durability, index_bytes });
        Some(relocation)
    }
}

/// The stretches of a tensor that lie in a segment.
fn stretches_in(entry: &TensorEntry, segment: u32) -> Vec<RunGroup> {
    let mut stretches: Vec<RunGroup> = Vec::new();
    let mut start = 0;
    for (index, run) in entry.runs.iter().enumerate() {
        let end = (start + run.tensor_blocks() * BLOCK_BYTES).min(entry.length);
        if run.segment == segment {
            match stretches.last_mut() {
                Some(last) if last.runs.end == index => {
                    (last.runs.end, last.bytes.end) = (index + 1, end);
                }
                _ => stretches.push(RunGroup {
                    runs: index..index + 1,
                    bytes: start..end,
                    to: Runs::new(),
                }),
            }
        }
        start = end;
    }
    stretches
}
