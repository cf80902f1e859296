//! Options to format, open and use a pool.

use std::num::NonZero;
use std::sync::Arc;

use super::rebuild::RebuildStats;
use super::scrub::ScrubReport;
use crate::layout::{Copies, DeviceRates, DeviceTable, Geometry, LifetimeClass};
use crate::log::{IndexUse, Lane, LostCommits, SealUse, SpaceUse};
use crate::memory::GpuMemory;
use crate::path::{Backend, ControllerName, DeviceIdentity, Feature, PathChoice, PlacementHandle};
use crate::schedule::{Notify, ReactorStats, Urgency};
use crate::units::{ByteCount, DeviceSet};

/// Options of formatting.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches")]
pub struct FormatOptions {
    /// Bytes to use of each device: the size of a file that is made, an upper bound for one that
    /// exists. Needed where a file is to be made.
    pub device_size: Option<ByteCount>,
    /// Contiguous bytes on one device before the next takes over: a power of two from 4 KiB to 16
    /// MiB.
    pub stripe_unit: ByteCount,
    /// Measure for some seconds which stripe unit the devices need, and take that one instead; and
    /// at which depth they are fast, which the pool remembers.
    pub calibrate: bool,
    /// One segment's slice of each device; by default 4 MiB, less in small pools.
    pub segment_size: Option<ByteCount>,
    /// Parts of the pool that one process each may own.
    pub share_count: u32,
    /// Make no files: a device that is not there is an error. A directory whose file system is not
    /// mounted is an empty one, and a pool would be made on the wrong disk.
    pub must_exist: bool,
    /// True if what the devices hold may be lost.
    pub overwrite: bool,
    /// Devices that may lose what they hold, whatever `overwrite` says of the others. Devices, not
    /// names: a name may stand for another device by the time that it is written.
    pub overwrite_devices: Vec<DeviceIdentity>,
    /// Controllers that may lose what they hold, and that the kernel does not drive; their names
    /// say where they are.
    pub overwrite_controllers: Vec<ControllerName>,
    /// Part of every device's capacity that is never written, in percent.
    pub over_provision_percent: u8,
    /// True if block devices are deallocated as a whole first.
    pub discard: bool,
    /// Go through the page cache, where the file system has no `O_DIRECT`.
    pub buffered: bool,
    /// Leave files as sparse as they are. Otherwise every byte is reserved on the file system, also
    /// in files that exist, so that no write runs out of space later.
    pub sparse: bool,
    /// The pool's identity; random if not given.
    pub pool_id: Option<u128>,
    /// Number of copies of durable tensors, each on a device of its own, unless their puts say
    /// another.
    pub copies: Copies,
    /// Rates of the devices, where they are known; `calibrate` measures them.
    pub rates: Option<DeviceRates>,
}

impl Default for FormatOptions {
    fn default() -> Self {
        Self {
            device_size: None,
            stripe_unit: ByteCount::kib(256),
            calibrate: false,
            segment_size: None,
            share_count: 1,
            must_exist: false,
            overwrite: false,
            overwrite_devices: Vec::new(),
            overwrite_controllers: Vec::new(),
            over_provision_percent: 0,
            discard: false,
            buffered: false,
            sparse: false,
            pool_id: None,
            copies: Copies::One,
            rates: None,
        }
    }
}

/// Description of a pool.
#[derive(Clone, Debug)]
pub struct PoolDescription {
    /// Table of the devices that the pool has, and what each is for.
    pub table: DeviceTable,
    /// The random 128 bits.
    pub pool: u128,
    /// Geometry of each device.
    pub geometry: Geometry,
    /// The devices' names, in stripe order.
    pub devices: Vec<String>,
    /// Bytes that tensors may take, over all devices and shares; those with two copies take twice
    /// as many as they have.
    pub capacity: ByteCount,
    /// Number of copies of durable tensors whose put does not say. With one, losing a device loses
    /// them.
    pub copies: Copies,
    /// Devices that are missing: the pool is degraded.
    pub missing: DeviceSet,
}

/// Assignment of tensors to lanes, which share segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lanes {
    /// Lanes by probable lifetime, for tensors that will probably die together.
    ByLifetime,
    /// One lane for all tensors, in the order of puts. Reclamation copies far more; this is there
    /// to measure how much.
    One,
}

/// Options of opening a pool.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches")]
pub struct OpenOptions {
    /// The data path.
    pub path: PathChoice,
    /// A data path that is no part of the engine, instead.
    pub backend: Option<Arc<dyn Backend>>,
    /// Go through the page cache, where the file system has no `O_DIRECT`.
    pub buffered: bool,
    /// The part of the pool that this process is to own.
    pub share: u32,
    /// Memory between the caller's and the devices; at least one stripe unit.
    pub staging: ByteCount,
    /// Memory beside it for [`Pool::buffer`], which devices read and write themselves.
    ///
    /// [`Pool::buffer`]: super::Pool::buffer
    pub buffers: ByteCount,
    /// The GPU whose memory puts and gets may name.
    pub gpu: Option<Arc<dyn GpuMemory>>,
    /// Operations in flight per device, at most; by default as many as calibration found, or 32.
    pub depth: Option<u32>,
    /// Number of reactors, at most: threads that move tensors, each with a data path of its own to
    /// all devices, with [`Self::depth`] operations in flight for each. By default one for each
    /// processor, and 4. There are no more than devices, and each has 8 stripe units of
    /// [`Self::staging`], or 2 for each device where that is more.
    pub reactors: Option<NonZero<usize>>,
    /// True to read durable tensors, and write nothing to the devices: no claim, no repair, no
    /// count of this opening. Several processes may have a share open like that at once; while one
    /// has, nobody can open it to write, and the other way round. What a process that was killed
    /// left unfinished stays so. Puts, deletions and batches are refused.
    pub read_only: bool,
    /// True if checksums are compared on every read.
    pub verify_reads: bool,
    /// True to try huge pages.
    pub huge_pages: bool,
    /// True if the reactor moves only while somebody waits for it; see [`ReactorOptions::stepped`].
    ///
    /// [`ReactorOptions::stepped`]: crate::schedule::ReactorOptions::stepped
    pub stepped: bool,
    /// Assignment of tensors to lanes.
    pub lanes: Lanes,
    /// Number of copies of durable tensors whose put does not say; by default what the pool was
    /// formatted with.
    pub copies: Option<Copies>,
    /// True if one device may be missing, of a pool that may have tensors with two copies: durable
    /// tensors with two are whole, those with one that have a part of it there are lost, and the
    /// pool goes on with the other devices. The device that was missing is stale from then on, and
    /// refused. In a pool of one share a replacement that was begun may be in its place: the
    /// housekeeper finishes it while the pool is used.
    pub degraded: bool,
    /// True if a device may be an older copy of itself. What was written since is lost, and what
    /// was not stays damaged or whole as its checksums say; from then on that copy counts.
    pub accept_older_copies: bool,
    /// The commits without which the share may be opened because they are lost, as
    /// [`inspect::lost_commits`](super::inspect::lost_commits) tells them. Where others are lost,
    /// or none, it is refused.
    pub accept_lost_commits: Option<LostCommits>,
    /// Housekeeping on a thread of its own. Pools on simulated disks have none, so that what
    /// happens on them is for the test to decide.
    pub housekeeping: Option<Housekeeping>,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            path: PathChoice::Auto,
            backend: None,
            buffered: false,
            share: 0,
            staging: ByteCount::mib(16),
            buffers: ByteCount::ZERO,
            gpu: None,
            depth: None,
            reactors: None,
            read_only: false,
            verify_reads: true,
            huge_pages: true,
            stepped: false,
            lanes: Lanes::ByLifetime,
            copies: None,
            degraded: false,
            accept_older_copies: false,
            accept_lost_commits: None,
            housekeeping: Some(Housekeeping::default()),
        }
    }
}

/// Background work of a pool besides reclaiming ahead of need and telling idle block devices which
/// segments are free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Housekeeping {
    /// Tensor bytes to scrub in a second, over and over; zero for none. `PoolStats` shows what was
    /// found.
    pub scrub_rate: ByteCount,
    /// Tensor bytes to make again in a second on a device that takes the place of a lost one; zero
    /// for as many as the devices move when nobody else wants them. `PoolStats` shows how far it
    /// is.
    pub rebuild_rate: ByteCount,
}

/// Options of a put.
#[derive(Clone, Debug)]
pub struct PutOptions {
    /// Lifetime class.
    pub lifetime: LifetimeClass,
    /// Urgency of the write.
    pub urgency: Urgency,
    /// Queue that is notified of the write's end.
    pub notify: Option<Notify>,
    /// Number of copies; by default one of a scratch tensor, and of a durable one what its batch or
    /// its pool says. In a pool that was formatted for one the first put with two waits until the
    /// superblocks say that there are such tensors.
    pub copies: Option<Copies>,
}

impl Default for PutOptions {
    fn default() -> Self {
        let (lifetime, urgency) = (LifetimeClass::Step, Urgency::Ahead);
        Self { lifetime, urgency, notify: None, copies: None }
    }
}

/// Tensor bytes written since the pool was opened, by lifetime class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WrittenBytes {
    /// Scratch tensors, in the order of [`LifetimeClass::ALL`].
    pub scratch: [ByteCount; LifetimeClass::ALL.len()],
    /// Durable tensors, in the same order.
    pub durable: [ByteCount; LifetimeClass::ALL.len()],
    /// Bytes that reclamation copied, to make whole segments free.
    pub moved: ByteCount,
    /// Superblocks, change log and checkpoints, both copies.
    pub metadata: ByteCount,
}

/// A lane of the log, with that of a second copy: what it holds has the same durability and dies at
/// about the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneStats {
    /// The lane.
    pub lane: Lane,
    /// The placement handle by which it writes on every device; `None` where there are none, or too
    /// few.
    pub placement: Option<PlacementHandle>,
    /// Tensor bytes put into it since the pool was opened.
    pub written: ByteCount,
}

/// Statistics of commits since the pool was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitStats {
    /// Commits that are durable, those of reclamation among them.
    pub commits: u64,
    /// Change records that carried them, each one commit or several.
    pub records: u64,
    /// Checkpoints that did, where the change log was full.
    pub checkpoints: u64,
    /// Times that data was flushed for them, on as many devices as were touched.
    pub flush_rounds: u64,
    /// The most commits that became durable together.
    pub group_max: u64,
    /// Forced writes of records, which are on the medium at once (FUA). If not, a flush follows
    /// each where a metadata device has a volatile cache.
    pub forced_records: Feature,
    /// The reason why no commit is taken any more, where one is in doubt: the change log failed
    /// half way. Until the pool is opened again this handle shows the state before.
    pub in_doubt: Option<String>,
}

impl Default for CommitStats {
    fn default() -> Self {
        Self {
            commits: 0,
            records: 0,
            checkpoints: 0,
            flush_rounds: 0,
            group_max: 0,
            forced_records: Feature::On,
            in_doubt: None,
        }
    }
}

/// Statistics of a pool.
#[derive(Clone, Debug)]
pub struct PoolStats {
    /// Description of the pool.
    pub description: PoolDescription,
    /// The share this process owns.
    pub share: u32,
    /// The data path, why it is not a better one, staging memory, and each device's counters.
    pub reactor: ReactorStats,
    /// Use of the share's space.
    pub space: SpaceUse,
    /// Use of the index's capacity for durable tensors.
    pub index: IndexUse,
    /// Tensors that can be read, and those that are lost.
    pub tensors: usize,
    /// Durable tensors, and versions that seals alone hold, of which a part was on a device that is
    /// missing and nowhere else. [`Pool::lost_tensors`](super::Pool::lost_tensors) names them.
    pub lost: usize,
    /// Use of space by seals.
    pub seals: SealUse,
    /// Bytes written by class.
    pub written: WrittenBytes,
    /// The lanes. Where devices place data by handles (FDP) each has its own.
    pub lanes: Vec<LaneStats>,
    /// Statistics of commits.
    pub commits: CommitStats,
    /// Findings of scrubs since the pool was opened, in the background and by those who asked.
    pub scrubbed: ScrubReport,
    /// Superblock copies that were damaged when the pool was opened and have been written again, as
    /// device and copy.
    pub repaired_superblocks: Vec<String>,
    /// State of a device that takes the place of a lost one.
    pub rebuild: Option<RebuildStats>,
}
