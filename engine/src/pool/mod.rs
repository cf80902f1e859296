//! The public face: a share of a pool of devices, holding tensors.
//!
//! Scratch tensors are put, read and deleted one by one and cost no metadata. Durable tensors
//! appear and disappear in a [`Batch`], whole or not at all, and survive a crash once its commit
//! has returned. Commits may also be left in flight ([`Batch::start_commit`]), several at once.
//!
//! ```
//! use tidelog_engine::layout::TensorId;
//! use tidelog_engine::memory::{Destination, Source};
//! use tidelog_engine::path::sim::SimDisk;
//! use tidelog_engine::pool::{FormatOptions, OpenOptions, Pool, PutOptions};
//! use tidelog_engine::schedule::Urgency;
//! use tidelog_engine::units::ByteCount;
//!
//! let disks = [SimDisk::new(ByteCount::mib(16)), SimDisk::new(ByteCount::mib(16))];
//! Pool::format(&disks, &FormatOptions::default())?;
//! let pool = Pool::open(&disks, &OpenOptions::default())?;
//! let id = TensorId::from_name("layer.0.weight");
//! pool.put(id, Source::from(b"tides".to_vec()), PutOptions::default())?.wait()?;
//! let ticket = pool.get(id, 1..4, Destination::buffer(3), Urgency::Urgent, None)?;
//! ticket.wait()?;
//! assert_eq!(ticket.take_bytes().unwrap(), b"ide");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod absent;
mod announce;
mod arrangement;
mod batch;
mod calibrate;
mod commit;
mod device_order;
mod discard;
mod error;
mod events;
mod foreign;
mod format;
mod held;
mod holder;
mod housekeeper;
pub mod inspect;
mod lanes;
mod lba;
mod media;
mod members;
mod open;
mod options;
mod owner;
mod pieces;
mod put;
mod rebuild;
mod reclaim;
mod replace;
mod reshape;
mod scrub;
mod seal;
mod settle;
mod start;
mod stats;
mod superblock_copies;
mod superblocks;

#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

pub use batch::Batch;
pub use calibrate::{CalibrateError, CalibrateProgress, Calibration, DeviceRate, Measurement};
pub use commit::Commit;
pub use error::{
    CloseError, CommitError, DeleteError, DiscardError, FormatError, GetError, OpenError, PutError,
    ReclaimError, ScrubError, SealError, Unusable,
};
pub use events::OlderCopy;
pub use format::{FormatProgress, is_unmade};
pub use lba::{LbaError, set_lba_format};
pub use options::{
    CommitStats, FormatOptions, Housekeeping, LaneStats, Lanes, OpenOptions, PoolDescription,
    PoolStats, PutOptions, WrittenBytes,
};
pub use owner::{TakenOver, take_over};
pub use put::Put;
pub use rebuild::{Rebuild, RebuildStats, ReplaceProgress};
pub use reclaim::Reclaimed;
pub use replace::{ReplaceOptions, Replaced, begin_replacement, replace};
pub use reshape::{ReshapeError, ReshapeOptions, ReshapeProgress, Reshaped, add, evacuate, remove};
pub use scrub::{BadUnit, Scrub, ScrubReport, Scrubbed};
pub use seal::{SealDescription, SealedTensor};

pub use crate::layout::Copies;
use crate::layout::TensorId;
pub use crate::layout::TensorKey;
use crate::log::{Contents, RemoveError, SpaceUse, StripeMap, Version};
use crate::memory::{Destination, DmaBuffer, Source, process};
use crate::path::MemberSource;
use crate::schedule::{Finish, Notify, Piece, Reactor, Subject, Ticket, Transfer, Urgency};
use announce::Announced;
use arrangement::Completeness;
use commit::Commits;
use events::EventCount;
use held::Reading;
use housekeeper::{Housekeeper, Wakeup};
use lanes::Handles;
use members::Members;
use open::IndexRenewal;
use rebuild::Rebuilt;
use stats::WriteCounters;

/// A share of a pool, owned by this process. Clones are handles of the same share, usable from any
/// thread; the last one closes it.
#[derive(Clone)]
pub struct Pool(Arc<Inner>, #[allow(dead_code)] Option<Arc<LastHandle>>);

/// Closes the pool when the last handle goes. The housekeeper's own handle has none, so it never
/// keeps a pool open.
struct LastHandle(Arc<Inner>);

struct Inner {
    /// `None` once closed.
    reactor: RwLock<Option<Reactor>>,
    shared: Arc<Shared>,
    commits: Arc<Commits>,
    /// Held while a segment is reclaimed: one after the other, so that the reserve is enough.
    reclaiming: Mutex<()>,
    /// Keeps the locks. Behind the reactor, so that they go last.
    members: Mutex<Option<Members>>,
    stripes: StripeMap,
    handles: Handles,
    description: PoolDescription,
    share: u32,
    /// `None` where the pool is open for reading only.
    events: Mutex<Option<EventCount>>,
    read_only: bool,
    verify_reads: bool,
    repaired_superblocks: Vec<String>,
    /// Features that the superblocks announce.
    announced: Mutex<Announced>,
    /// A device that takes the place of a lost one.
    rebuilt: Mutex<Option<Rebuilt>>,
    /// Number of copies of durable tensors whose put does not say.
    copies: Copies,
    opener: AtomicU32,
    housekeeper: Mutex<Option<Housekeeper>>,
}

/// State that the reactor's thread needs as well. It holds no reactor, which could not end on its
/// own thread.
struct Shared {
    contents: Mutex<Contents>,
    written: WriteCounters,
    /// Wakes the housekeeper.
    wakeup: Arc<Wakeup>,
    /// Findings of scrubs, in the background and by those who asked.
    scrubbed: Mutex<ScrubReport>,
}

impl Shared {
    fn contents(&self) -> MutexGuard<'_, Contents> {
        // A panic within `Contents` is a bug that its own checks report; other threads' tensors
        // stay readable meanwhile.
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn scrubbed(&self) -> MutexGuard<'_, ScrubReport> {
        self.scrubbed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pool {
    /// Opens a share of the pool on these devices, named in any order.
    pub fn open<Source: MemberSource>(
        sources: &[Source],
        options: &OpenOptions,
    ) -> Result<Self, OpenError> {
        let completeness =
            if options.degraded { Completeness::Usable } else { Completeness::Whole };
        let opened = open::open(sources, options, (completeness, IndexRenewal::IfDue))?;
        let housekeeping =
            options.housekeeping.filter(|_| !options.read_only && !opened.members.are_private());
        let pool = Self::new(opened, options);
        if let Some(housekeeping) = housekeeping {
            pool.start_housekeeper(housekeeping).map_err(|source| OpenError::System {
                what: "cannot start the housekeeper's thread".into(),
                source,
            })?;
        }
        Ok(pool)
    }

    /// Opens a share and writes its index anew. `None` if there is no space for that.
    fn open_renewed<Source: MemberSource>(
        sources: &[Source],
        options: &OpenOptions,
        completeness: Completeness,
    ) -> Result<Option<Self>, OpenError> {
        let opened = open::open(sources, options, (completeness, IndexRenewal::Always))?;
        Ok(opened.has_new_index.then(|| Self::new(opened, options)))
    }

    fn new(opened: open::OpenShare, options: &OpenOptions) -> Self {
        let copies = options.copies.unwrap_or(opened.description.copies);
        let shared = Shared {
            contents: Mutex::new(opened.contents),
            written: WriteCounters::starting_with(opened.metadata_written),
            wakeup: Arc::default(),
            scrubbed: Mutex::default(),
        };
        let shared = Arc::new(shared);
        let submitter = opened.reactor.submitter().clone();
        let commits = Commits::new(submitter, Arc::clone(&shared), opened.stripes, opened.log);
        let inner = Arc::new(Inner {
            reactor: RwLock::new(Some(opened.reactor)),
            shared,
            commits,
            reclaiming: Mutex::new(()),
            members: Mutex::new(Some(opened.members)),
            stripes: opened.stripes,
            handles: opened.handles,
            description: opened.description,
            share: options.share,
            events: Mutex::new(opened.events),
            read_only: options.read_only,
            verify_reads: options.verify_reads,
            repaired_superblocks: opened.repaired_superblocks,
            announced: Mutex::new(opened.announced),
            rebuilt: Mutex::new(opened.rebuilt),
            copies,
            opener: AtomicU32::new(process::id()),
            housekeeper: Mutex::new(None),
        });
        Self(Arc::clone(&inner), Some(Arc::new(LastHandle(inner))))
    }

    fn start_housekeeper(&self, options: Housekeeping) -> std::io::Result<()> {
        let housekeeper = Housekeeper::start(Self(Arc::clone(&self.0), None), options)?;
        *self.0.housekeeper.lock().unwrap_or_else(PoisonError::into_inner) = Some(housekeeper);
        Ok(())
    }

    /// A buffer of `bytes` rounded up to 4 KiB, for a [`Source::Dma`] or [`Destination::Dma`]:
    /// between it and the devices nothing is copied. `None` while [`OpenOptions::buffers`] has no
    /// run that long left.
    pub fn buffer(&self, bytes: usize) -> Result<Option<DmaBuffer>, Unusable> {
        let reactor = self.reactor()?;
        Ok(reactor.as_ref().ok_or(Unusable::Closed)?.buffer(bytes))
    }

    /// Reads the bytes `range` of a tensor into memory of exactly that length. The version that
    /// stands there now is read, whatever happens to the tensor meanwhile.
    pub fn get(
        &self,
        key: impl Into<TensorKey>,
        range: Range<u64>,
        destination: Destination,
        urgency: Urgency,
        notify: Option<Notify>,
    ) -> Result<Ticket, GetError> {
        let start = |key: &TensorKey| {
            let reading = Reading::start(&self.0.shared, key.id);
            reading.ok_or_else(|| GetError::Unknown(key.clone()))
        };
        self.read(key.into(), start, range, (destination, urgency, notify))
    }

    /// Reads, as [`Self::get`] does, the version of the tensor that a seal holds.
    pub fn get_sealed(
        &self,
        seal: &str,
        key: impl Into<TensorKey>,
        range: Range<u64>,
        destination: Destination,
        urgency: Urgency,
        notify: Option<Notify>,
    ) -> Result<Ticket, GetError> {
        let start = |key: &TensorKey| Reading::start_sealed(&self.0.shared, seal, key);
        self.read(key.into(), start, range, (destination, urgency, notify))
    }

    fn read(
        &self,
        key: TensorKey,
        start: impl FnOnce(&TensorKey) -> Result<Reading, GetError>,
        range: Range<u64>,
        (destination, urgency, notify): (Destination, Urgency, Option<Notify>),
    ) -> Result<Ticket, GetError> {
        let reactor = self.reactor()?;
        let Some(reactor) = reactor.as_ref() else { return Err(Unusable::Closed.into()) };
        let reading = start(&key)?;
        let entry = &reading.version().entry;
        if range.start > range.end || range.end > entry.length {
            let Range { start, end } = range;
            return Err(GetError::Range {
                tensor: key.or(entry),
                start,
                end,
                length: entry.length,
            });
        }
        let (found, needed) = (destination.len() as u64, range.end - range.start);
        if found != needed {
            return Err(GetError::Memory { tensor: key.or(entry), found, needed });
        }
        let subject = reading.subject().from_byte(range.start);
        let of_range = pieces::of_range(&self.0.stripes, entry, range, self.0.verify_reads);
        let of_range = of_range.map(|piece| piece.healing(!self.0.read_only));
        let (reactor, pieces) = mover_and_list(reactor, of_range);
        let transfer = Transfer::Read { destination, pieces };
        let finish = Finish::new(move |_| drop(reading));
        Ok(reactor.submit_about(subject, transfer, urgency, notify, finish)?)
    }

    /// Compares memory with a tensor by the checksums in the index, without any I/O. The outcome
    /// says whether all of it `matched`.
    pub fn verify(
        &self,
        key: impl Into<TensorKey>,
        source: Source,
        notify: Option<Notify>,
    ) -> Result<Ticket, GetError> {
        let reactor = self.reactor()?;
        let Some(reactor) = reactor.as_ref() else { return Err(Unusable::Closed.into()) };
        let key = key.into();
        let Some(version) = self.current(key.id) else { return Err(GetError::Unknown(key)) };
        let entry = &version.entry;
        if source.len() as u64 != entry.length {
            let (found, needed) = (source.len() as u64, entry.length);
            return Err(GetError::Memory { tensor: key.or(entry), found, needed });
        }
        let of_range = pieces::of_range(&self.0.stripes, entry, 0..entry.length, true);
        let (reactor, pieces) = mover_and_list(reactor, of_range);
        let transfer = Transfer::Verify { source, pieces };
        let (subject, finish) = (Subject::named(version), Finish::nothing());
        Ok(reactor.submit_about(subject, transfer, Urgency::Ahead, notify, finish)?)
    }

    /// Removes a scratch tensor. Reads in flight end well, puts in flight do not bring it back.
    pub fn delete(&self, key: impl Into<TensorKey>) -> Result<(), DeleteError> {
        self.check_usable()?;
        let key = key.into();
        if self.is_read_only() {
            return Err(DeleteError::ReadOnly(key));
        }
        let mut contents = self.0.shared.contents();
        contents.remove_scratch(key.id).map_err(|error| match error {
            RemoveError::Unknown => DeleteError::Unknown(key),
            RemoveError::IsDurable => DeleteError::IsDurable(contents.called(key)),
        })
    }

    /// Gives the pages of staging memory back to the kernel until something is moved again.
    /// `false`: not all of them; something moves, a device or a GPU has them locked, or the pool is
    /// closed.
    pub fn release_staging(&self) -> bool {
        let reactor = self.reactor().ok();
        reactor.as_ref().and_then(|it| it.as_ref()).is_some_and(Reactor::release_staging)
    }

    /// Begins a batch of durable changes.
    pub fn batch(&self) -> Batch {
        Batch::new(self.clone())
    }

    /// Returns whether a tensor can be read under this id; `false` in a fork.
    pub fn contains(&self, id: TensorId) -> bool {
        self.current(id).is_some()
    }

    /// The length in bytes of the tensor that can be read under this id.
    pub fn length(&self, id: TensorId) -> Option<u64> {
        self.current(id).map(|version| version.entry.length)
    }

    /// Every durable tensor's id and name, in the order of ids. Where a commit is in doubt
    /// ([`CommitStats::in_doubt`]) these are the tensors before it, as for every other call of this
    /// handle; what the media hold shows when the pool is opened again.
    pub fn durable_tensors(&self) -> Result<Vec<(TensorId, Option<String>)>, Unusable> {
        self.check_usable()?;
        let contents = self.0.shared.contents();
        let mut tensors: Vec<_> = contents
            .durable()
            .map(|version| (version.entry.id, version.entry.name.as_deref().map(str::to_owned)))
            .collect();
        tensors.sort_unstable();
        Ok(tensors)
    }

    /// Returns whether the pool was opened for reading only.
    pub fn is_read_only(&self) -> bool {
        self.0.read_only
    }

    /// Returns the number of copies of durable tensors whose put does not say.
    pub fn copies(&self) -> Copies {
        self.0.copies
    }

    /// Returns the description of the pool.
    pub fn description(&self) -> &PoolDescription {
        &self.0.description
    }

    /// Lets a stepped pool's reactor go round `rounds` times at most; returns whether something
    /// still moved at the end. Any other pool's moves by itself.
    pub fn step(&self, rounds: u64) -> Result<bool, Unusable> {
        let reactor = self.reactor()?;
        Ok(reactor.as_ref().ok_or(Unusable::Closed)?.step(rounds))
    }

    /// Counts everything again from the ground up and compares it with the books, for tests and
    /// tools.
    ///
    /// # Errors
    /// The first rule of the log that does not hold.
    pub fn audit(&self) -> Result<SpaceUse, String> {
        self.check_usable().map_err(|unusable| unusable.to_string())?;
        self.0.shared.contents().audit()
    }

    /// Ends everything in flight, commits that were started among it, and gives the share back, for
    /// all handles. What is not committed is gone.
    ///
    /// # Errors
    /// See [`CloseError`]. With [`CloseError::InDoubt`] the pool is closed all the same.
    pub fn close(&self) -> Result<(), CloseError> {
        self.check_fork()?;
        self.0.close()
    }

    /// Closes, waiting no longer than this for devices: what is in flight then is stopped, commits
    /// that were started are in doubt, and it returns half a second later at most.
    ///
    /// # Errors
    /// As [`Self::close`].
    pub fn close_within(&self, timeout: Duration) -> Result<(), CloseError> {
        if let Some(end) = Instant::now().checked_add(timeout) {
            let reactor = self.reactor()?;
            reactor.as_ref().ok_or(Unusable::Closed)?.end_at(end);
        }
        self.close()
    }

    fn current(&self, id: TensorId) -> Option<Arc<Version>> {
        self.check_fork().ok()?;
        self.0.shared.contents().current(id).cloned()
    }

    fn check_fork(&self) -> Result<(), Unusable> {
        let opener = self.0.opener.load(Ordering::Relaxed);
        if process::id() == opener { Ok(()) } else { Err(Unusable::Forked { opener }) }
    }

    fn check_usable(&self) -> Result<(), Unusable> {
        self.reactor()?.as_ref().map(|_| ()).ok_or(Unusable::Closed)
    }

    /// The process is asked first: a fork may have inherited a lock in a locked state.
    fn reactor(&self) -> Result<RwLockReadGuard<'_, Option<Reactor>>, Unusable> {
        self.check_fork()?;
        Ok(self.0.reactor.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Returns the reactor that moves these pieces, and a piece list from its free list.
fn mover_and_list(
    reactor: &Reactor,
    pieces: impl Iterator<Item = Piece>,
) -> (&Reactor, Vec<Piece>) {
    let mut found: Option<(&Reactor, Vec<Piece>)> = None;
    // Many iterators in one another are far cheaper from within than asked for each.
    pieces.for_each(|piece| {
        let new = || {
            let mover = reactor.mover(piece.device);
            (mover, mover.pieces())
        };
        found.get_or_insert_with(new).1.push(piece);
    });
    found.unwrap_or_else(|| (reactor, reactor.pieces()))
}

impl Inner {
    fn close(&self) -> Result<(), CloseError> {
        let housekeeper = self.housekeeper.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(housekeeper) = housekeeper {
            housekeeper.stop();
        }
        self.commits.close();
        let reactor = self.reactor.write().unwrap_or_else(PoisonError::into_inner).take();
        let Some(reactor) = reactor else { return Err(Unusable::Closed.into()) };
        // So that a copy of a device that was made while the pool was open is told from the device.
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(events) = &mut *events {
            let _ = events.count(&reactor, self.commits.mark(), events::TIMEOUT);
        }
        let members = self.members.lock().unwrap_or_else(PoisonError::into_inner).take();
        let closed = reactor.close();
        if let Some(members) = &members {
            let _ = members.note(closed);
            if !self.read_only {
                owner::release(members, self.description.pool);
            }
        }
        closed?;
        self.commits.doubt().map_or(Ok(()), |reason| Err(CloseError::InDoubt(reason)))
    }
}

impl Drop for LastHandle {
    fn drop(&mut self) {
        // In a fork the threads and locks are the parent's. Elsewhere whoever wanted to know how
        // closing went has called `close`.
        if process::id() == self.0.opener.load(Ordering::Relaxed) {
            let _ = self.0.close();
        } else if let Ok(mut members) = self.0.members.try_lock() {
            // What holds the lock on the share is inherited; the child wants no part of it.
            members.take();
        }
    }
}
