//! Reclamation: what lives in a mixed segment is copied forward, so that the segment is free.
//!
//! A segment is moved whole or not at all. Its tensors are read where they lie, verified, and
//! written to reserved space; only then do they move, scratch ones in the index, durable ones by
//! one commit. Until that commit is on media the old places hold what the index on the media says,
//! and nobody writes there: a crash at any point finds every durable tensor at its old place or at
//! its new one.

mod copy;

use std::sync::{Arc, MutexGuard, PoisonError};

use super::commit::Work;
use super::error::{PutError, ReclaimError, Unusable};
use super::{Pool, Shared};
use crate::layout::{Run, TensorEntry, TensorKey};
use crate::log::{
    BeginError, Contents, Durability, PutRequest, Reclamation, Relocation, Reservation, Victim,
    Wanted,
};
use crate::schedule::Reactor;
use crate::units::ByteCount;

/// A segment that was reclaimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reclaimed {
    /// The segment, counted over the pool. It is free when the last reader of its old bytes has
    /// ended.
    pub segment: u32,
    /// Durability of the tensors in the segment.
    pub durability: Durability,
    /// Tensors that moved. Those that were replaced or deleted meanwhile did not have to.
    pub tensors: usize,
    /// Tensor bytes that were copied.
    pub copied: ByteCount,
    /// Dead bytes that came back.
    pub freed: ByteCount,
}

impl Pool {
    /// Copies what lives in one mixed segment forward and gives the segment back. `None` if no
    /// segment is worth it: nothing is dead in those that are full, it cannot be moved now, or
    /// the pool is open for reading only.
    ///
    /// A put that finds too little space does this by itself, and so does the housekeeper.
    pub fn reclaim_once(&self) -> Result<Option<Reclaimed>, ReclaimError> {
        let reactor = self.reactor()?;
        let reactor = reactor.as_ref().ok_or(Unusable::Closed)?;
        if self.is_read_only() {
            return Ok(None);
        }
        self.reclaim_turn().reclaim(reactor, Wanted::ANY)
    }

    /// Reserves space for a put and tells `place` where; reclaims where there is too little, until
    /// there is enough or nothing more to be had.
    pub(super) fn begin_put<Placed>(
        &self,
        reactor: &Reactor,
        request: &PutRequest,
        place: impl FnOnce(&[Run]) -> Placed,
    ) -> Result<(Reservation, Placed), PutError> {
        let mut contents = self.0.shared.contents();
        let mut begun = contents.begin_apart(request.clone());
        if matches!(begun, Err(BeginError::Full(_))) {
            drop(contents);
            // This takes its time; what was enqueued before need not wait for it.
            reactor.wake_all();
            begun = self.reclaim_turn().begin_put(reactor, request);
            contents = self.0.shared.contents();
        }
        if contents.space_is_scarce() {
            self.0.shared.wakeup.ring(contents.spare_segments());
        }
        let reservation = begun.map_err(|error| {
            let key = TensorKey { id: request.id, name: request.name.clone() };
            PutError::from_begin(contents.called(key), error)
        })?;
        let placed = place(contents.runs(&reservation));
        Ok((reservation, placed))
    }

    /// Waits until nobody else reclaims.
    pub(super) fn reclaim_turn(&self) -> ReclaimTurn<'_> {
        // What a panic left behind was given back on its way out.
        let turn = self.0.reclaiming.lock().unwrap_or_else(PoisonError::into_inner);
        ReclaimTurn { pool: self, _turn: turn }
    }
}

/// The right to reclaim.
pub(super) struct ReclaimTurn<'a> {
    pool: &'a Pool,
    _turn: MutexGuard<'a, ()>,
}

impl ReclaimTurn<'_> {
    /// Reclaims what is worth it; then mixes lifetimes; then reclaims whatever gives anything back.
    fn begin_put(
        &self,
        reactor: &Reactor,
        request: &PutRequest,
    ) -> Result<Reservation, BeginError> {
        let apart = self.begin_with(reactor, request, Wanted::WORTHWHILE, Contents::begin_apart);
        match apart {
            Err(BeginError::Full(_)) => {
                self.begin_with(reactor, request, Wanted::ANY, Contents::begin)
            }
            begun => begun,
        }
    }

    /// Reclaims until `begin` finds enough, or nothing more is to be had.
    fn begin_with(
        &self,
        reactor: &Reactor,
        request: &PutRequest,
        mut wanted: Wanted,
        begin: impl Fn(&mut Contents, PutRequest) -> Result<Reservation, BeginError>,
    ) -> Result<Reservation, BeginError> {
        loop {
            // Somebody else may have made room meanwhile.
            let mut contents = self.pool.0.shared.contents();
            let answer = begin(&mut contents, request.clone());
            let Err(BeginError::Full(full)) = &answer else { return answer };
            // Not worth trying where it cannot be enough.
            if full.needed.0 > full.available.0.saturating_add(contents.reclaimable()) {
                return answer;
            }
            drop(contents);
            match self.reclaim(reactor, wanted) {
                // That segment is not chosen again.
                Ok(Some(_)) | Err(ReclaimError::Unreadable { .. }) => (),
                Err(ReclaimError::Commit(_)) if wanted.durability.is_none() => {
                    wanted.durability = Some(Durability::Scratch);
                }
                // Writes in flight may have ended meanwhile, and given room.
                Ok(None) | Err(_) => {
                    return begin(&mut self.pool.0.shared.contents(), request.clone());
                }
            }
        }
    }

    /// Reclaims one segment.
    pub(super) fn reclaim(
        &self,
        reactor: &Reactor,
        wanted: Wanted,
    ) -> Result<Option<Reclaimed>, ReclaimError> {
        let begun = self.pool.0.shared.contents().begin_reclaim(wanted);
        begun.map(|begun| self.move_out(reactor, begun)).transpose()
    }

    /// Empties one segment of those that are striped over a set of devices that `is_meant`, however
    /// full it is. `None` if nothing fits elsewhere, or nothing is left.
    pub(super) fn empty(
        &self,
        reactor: &Reactor,
        is_meant: impl Fn(u8) -> bool,
    ) -> Result<Option<Reclaimed>, ReclaimError> {
        let begun = self.pool.0.shared.contents().begin_emptying(is_meant);
        begun.map(|begun| self.move_out(reactor, begun)).transpose()
    }

    /// Copies what lives in a segment to where room was reserved for it.
    fn move_out(&self, reactor: &Reactor, begun: Reclamation) -> Result<Reclaimed, ReclaimError> {
        let Reclamation { victim, relocations } = begun;
        let shared = Arc::clone(&self.pool.0.shared);
        let mut moves = ReclamationMoves { shared, victim, relocations, unreadable: false };
        let entries = match copy::copy_all(self.pool, reactor, &moves.relocations) {
            Ok(entries) => entries,
            Err(error) => {
                moves.unreadable = matches!(error, ReclaimError::Unreadable { .. });
                return Err(error);
            }
        };
        let copied = moves.relocations.iter().flat_map(|moving| &moving.stretches);
        let copied = copied.map(|stretch| stretch.bytes.end - stretch.bytes.start).sum();
        let tensors = if moves.need_no_commit() {
            moves.install_scratch(entries)
        } else {
            // By one commit; the old places are free only once it is on media.
            let commit = self.pool.0.commits.start(Work::Moves { moves, entries });
            commit.tensors().map_err(ReclaimError::Commit)?
        };
        Ok(Reclaimed {
            segment: victim.segment,
            durability: victim.lane.durability,
            tensors,
            copied: ByteCount(copied),
            freed: victim.dead,
        })
    }
}

/// Moves of a reclamation. Dropped without being installed, everything stays where it was.
pub(super) struct ReclamationMoves {
    shared: Arc<Shared>,
    victim: Victim,
    relocations: Vec<Relocation>,
    unreadable: bool,
}

impl ReclamationMoves {
    /// Iterates over the destinations.
    pub(super) fn runs(&self) -> impl Iterator<Item = &[Run]> {
        let stretches = self.relocations.iter().flat_map(|moving| &moving.stretches);
        stretches.map(|stretch| &*stretch.to)
    }

    /// Each with what its tensor will be.
    pub(super) fn with<'a>(
        &'a self,
        entries: &'a [TensorEntry],
    ) -> impl Iterator<Item = (&'a Relocation, &'a TensorEntry)> {
        self.relocations.iter().zip(entries)
    }

    /// Returns whether the media know nothing of what moves: scratch tensors that no seal holds.
    fn need_no_commit(&self) -> bool {
        let contents = self.shared.contents();
        self.victim.lane.durability == Durability::Scratch
            && self.relocations.iter().all(|moving| contents.number_held(moving).is_none())
    }

    /// Installs the moves, as [`Self::install`] does, where nothing was committed. What a seal has
    /// begun to hold meanwhile stays where the seal's commit says that it is.
    fn install_scratch(&mut self, entries: Vec<TensorEntry>) -> usize {
        let mut contents = self.shared.contents();
        let moves = self.relocations.drain(..).zip(entries);
        let install = |(moving, entry): &(Relocation, TensorEntry)| {
            let free = contents.number_held(moving).is_none();
            if !free {
                contents.abandon_relocation(moving);
            }
            free && contents.relocate(moving, entry.clone())
        };
        moves.filter(install).count()
    }

    /// Installs the moves: every tensor can be read at its new place; returns how many tensors
    /// there were still to move.
    pub(super) fn install(&mut self, entries: Vec<TensorEntry>) -> usize {
        let mut contents = self.shared.contents();
        let moves = self.relocations.drain(..).zip(entries);
        moves.filter(|(moving, entry)| contents.relocate(moving, entry.clone())).count()
    }

    /// Leaves the moves in doubt: neither the old places nor the new ones may be used until the
    /// pool is opened again.
    pub(super) fn leave_in_doubt(&mut self) {
        let mut contents = self.shared.contents();
        self.relocations.drain(..).for_each(|moving| contents.leave_relocation_in_doubt(&moving));
    }
}

impl Drop for ReclamationMoves {
    fn drop(&mut self) {
        let mut contents = self.shared.contents();
        self.relocations.drain(..).for_each(|moving| contents.abandon_relocation(&moving));
        contents.end_reclaim(&self.victim, self.unreadable);
    }
}
