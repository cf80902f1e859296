//! Counters of a pool.

use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Pool;
use super::error::Unusable;
use super::options::{PoolStats, WrittenBytes};
use crate::layout::{LifetimeClass, TensorKey};
use crate::log::{Durability, Lane};
use crate::path::Endurance;
use crate::schedule::DeviceStats;
use crate::units::ByteCount;

const CLASSES: usize = LifetimeClass::ALL.len();

/// Counters of bytes written; anybody adds, anybody reads.
pub(super) struct WriteCounters {
    /// Tensor bytes: scratch classes, then durable ones.
    puts: [AtomicU64; 2 * CLASSES],
    /// Tensor bytes that reclamation copied.
    moved: AtomicU64,
    /// Metadata bytes, counted where they are written.
    pub(super) metadata: AtomicU64,
}

impl WriteCounters {
    /// Makes counters of nothing but metadata.
    pub(super) fn starting_with(metadata: u64) -> Self {
        let (puts, moved) = (Default::default(), AtomicU64::new(0));
        Self { puts, moved, metadata: AtomicU64::new(metadata) }
    }

    /// A put wrote these bytes, whatever became of it.
    pub(super) fn put(&self, lane: Lane, bytes: u64) {
        let base = match lane.durability {
            Durability::Scratch => 0,
            Durability::Durable => CLASSES,
        };
        self.puts[base + lane.class as usize].fetch_add(bytes, Ordering::Relaxed);
    }

    /// Reclamation wrote these bytes, whatever became of it.
    pub(super) fn moved(&self, bytes: u64) {
        self.moved.fetch_add(bytes, Ordering::Relaxed);
    }

    fn snapshot(&self) -> WrittenBytes {
        let read = |counter: &AtomicU64| ByteCount(counter.load(Ordering::Relaxed));
        WrittenBytes {
            scratch: std::array::from_fn(|class| read(&self.puts[class])),
            durable: std::array::from_fn(|class| read(&self.puts[CLASSES + class])),
            moved: read(&self.moved),
            metadata: read(&self.metadata),
        }
    }
}

impl Pool {
    /// Returns the statistics of the pool.
    pub fn stats(&self) -> Result<PoolStats, Unusable> {
        let reactor = self.reactor()?;
        let reactor = reactor.as_ref().ok_or(Unusable::Closed)?.stats();
        let contents = self.0.shared.contents();
        let (space, index) = (contents.space_use(), contents.index_use());
        let (tensors, seals) = (contents.ids().count(), contents.seal_use());
        let lost = contents.lost(&self.0.stripes).count();
        drop(contents);
        let written = self.0.shared.written.snapshot();
        Ok(PoolStats {
            description: self.0.description.clone(),
            share: self.0.share,
            reactor,
            space,
            index,
            tensors,
            lost,
            seals,
            written,
            lanes: self.0.handles.table(&written),
            commits: self.0.commits.stats(),
            scrubbed: self.0.shared.scrubbed().clone(),
            repaired_superblocks: self.0.repaired_superblocks.clone(),
            rebuild: self.rebuilt().as_ref().map(|it| it.stats().clone()),
        })
    }

    /// Returns the bytes to and from each device since the pool was opened, in the order of
    /// [`PoolDescription::devices`](super::PoolDescription).
    ///
    /// # Errors
    /// The pool is closed, or this is a forked child.
    pub fn device_stats(&self) -> Result<Vec<DeviceStats>, Unusable> {
        Ok(self.reactor()?.as_ref().ok_or(Unusable::Closed)?.stats().devices)
    }

    /// Returns the durable tensors, and the versions that seals alone hold, of which a part was on
    /// a device that is missing and nowhere else, in the order of ids. They stay, and cannot be
    /// read.
    ///
    /// # Errors
    /// The pool is closed, or this is a forked child.
    pub fn lost_tensors(&self) -> Result<Vec<TensorKey>, Unusable> {
        self.check_usable()?;
        let contents = self.0.shared.contents();
        let mut lost: Vec<_> = contents.lost(&self.0.stripes).map(|it| it.entry.key()).collect();
        lost.sort_unstable_by_key(|key| key.id);
        Ok(lost)
    }

    /// The segments in which checkpoints of the index go on, counted over the pool.
    ///
    /// # Errors
    /// The pool is closed, or this is a forked child.
    pub fn index_segments(&self) -> Result<Vec<u32>, Unusable> {
        self.check_usable()?;
        Ok(self.0.shared.contents().index_segments())
    }

    /// Returns the wear that each device reports, in the order of
    /// [`PoolDescription::devices`](super::PoolDescription); the reason where it does not. It asks
    /// them, so it is not for every step.
    ///
    /// # Errors
    /// The pool is closed, or this is a forked child.
    pub fn endurance(&self) -> Result<Vec<Result<Endurance, String>>, Unusable> {
        // Not while it is being closed: then its controllers are given back.
        let reactor = self.reactor()?;
        let _open = reactor.as_ref().ok_or(Unusable::Closed)?;
        let members = self.0.members.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(members.as_ref().ok_or(Unusable::Closed)?.endurance())
    }
}

impl PoolStats {
    /// Host bytes written (tensors, padding, metadata, what reclamation copied) for each byte that
    /// was put; `None` before the first. Drives wear by host bytes, times what they amplify
    /// themselves.
    #[allow(clippy::cast_precision_loss)] // A ratio to be shown; 53 bits are plenty.
    pub fn write_amplification(&self) -> Option<f64> {
        let host: u64 = self.reactor.devices.iter().map(|device| device.bytes_written).sum();
        let puts = self.written.scratch.iter().chain(&self.written.durable);
        let user: u64 = puts.map(|bytes| bytes.0).sum();
        (user > 0).then(|| host as f64 / user as f64)
    }
}
