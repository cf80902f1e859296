//! Faults of a whole disk: it stalls, is replaced by an older copy, or loses blocks.

use super::disk::{SimDisk, Ticks};
use super::media::DiskMedia;

/// A disk that does not respond for a while.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum DiskStall {
    /// The disk responds.
    #[default]
    Over,
    /// The disk is silent for this time, from the next poll of its path.
    For(Ticks),
    /// The disk is silent until this time.
    Until(Ticks),
}

impl DiskStall {
    /// Returns the state at a time.
    pub(super) fn at(self, now: Ticks) -> Self {
        match self {
            Self::For(ticks) => Self::Until(now.saturating_add(ticks)),
            Self::Until(end) if end <= now => Self::Over,
            other => other,
        }
    }

    /// Returns the time at which an operation that is due then completes.
    pub(super) fn put_off(self, due: Ticks) -> Ticks {
        if let Self::Until(end) = self { due.max(end) } else { due }
    }
}

/// Snapshot of a disk's content, as a copy of it that was made then would.
pub struct SimSnapshot(pub(super) DiskMedia);

impl SimDisk {
    /// Stalls for `ticks` ticks of virtual time, then goes on as if nothing had been.
    pub fn stall(&self, ticks: u64) {
        self.state().stall = DiskStall::For(ticks);
    }

    /// Returns whether a [`stall`](SimDisk::stall) is not over.
    pub fn is_stalled(&self) -> bool {
        self.state().stall != DiskStall::Over
    }

    /// Has every read of the 4 KiB block at `offset` fail with `EIO`, until it is written and that
    /// is on the medium.
    pub fn make_unreadable(&self, offset: u64) {
        self.state().media.make_unreadable(offset);
    }

    /// Returns the offsets of the blocks that cannot be read.
    pub fn unreadable(&self) -> Vec<u64> {
        self.state().media.unreadable()
    }

    /// Takes back, for one block, what [`rot`](SimDisk::rot) and
    /// [`make_unreadable`](SimDisk::make_unreadable) did.
    pub fn restore(&self, offset: u64) {
        self.state().media.restore(offset);
    }

    /// Returns whether reads of these bytes succeed.
    pub fn is_readable(&self, offset: u64, length: u64) -> bool {
        self.state().media.is_readable(offset, length)
    }

    /// A copy of what reads would bring now.
    pub fn snapshot(&self) -> SimSnapshot {
        SimSnapshot(self.state().media.copy())
    }

    /// Puts what a copy holds in the place of what the disk does, which the copy then is. Nobody
    /// has the disk open.
    pub fn swap(&self, copy: &mut SimSnapshot) {
        std::mem::swap(&mut self.state().media, &mut copy.0);
    }
}
