//! Opening a session: the pool's devices, formatted where they are fresh, and the share.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Deref;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tidelog_engine::memory::GpuMemory;
use tidelog_engine::memory::process::PerProcess;
use tidelog_engine::path::DeviceSpec;
use tidelog_engine::pool::{FormatOptions, OpenOptions, Pool, PoolDescription};
use tidelog_engine::schedule::CompletionQueue;
use tidelog_engine::units::ByteCount;
use tidelog_gds::cuda::CudaUnavailable;
use tidelog_gds::{Gpu, HostTier, Region, StagedGpu};
use tidelog_planner::residency::{Config, Residency};
use tidelog_planner::units::Bytes;

use super::data_path::DataPath;
use super::events::BYTES_MAX;
use super::figures::Figures;
use super::history::History;
use super::links::Links;
use super::planned::Policy;
use super::planning::Planning;
use super::profile::Profile;
use super::transfers::InFlight;
use super::{CurrentOp, Session, State};
use crate::abi::{Failure, Place, Status};

/// Of the free space of its file system, the most that a pool that Tidelog makes may take: one part in this many.
const FREE_SPACE_PARTS: u64 = 2;
/// Ops ahead whose storages are brought back and get their room, whatever the plan's moves do: enough for a
/// transfer of some MiB to be through in time, few enough that what comes back early takes little room.
pub(super) const LOOKAHEAD_OPS: u32 = 32;
/// The size of a pool that Tidelog makes, where the caller does not say.
const POOL_SIZE_DEFAULT: ByteCount = ByteCount::gib(8);

/// How to open a session.
pub(crate) struct SessionConfig<'a> {
    pub(crate) devices: &'a str,
    pub(crate) data_path: &'a str,
    pub(crate) budget: u64,
    pub(crate) staging: u64,
    pub(crate) host_memory: u64,
    pub(crate) pool_size: u64,
    pub(crate) share: u32,
    pub(crate) buffered: bool,
    pub(crate) must_exist: bool,
    pub(crate) reactive: bool,
    pub(crate) policy: Policy,
    pub(crate) place: Place,
    pub(crate) arena: Option<Region>,
}

impl Session {
    pub(crate) fn open(config: &SessionConfig<'_>) -> Result<Self, Failure> {
        if config.staging >= config.budget {
            return Err(Failure::new(
                Status::BudgetExceeded,
                format!(
                    "staging of {} leaves nothing of a budget of {}",
                    ByteCount(config.staging),
                    ByteCount(config.budget)
                ),
            ));
        }
        // Before the pool: where there is not as much memory, no devices are formatted.
        let tier = open_tier(config)?;
        let pool = Lease::take(config)?;
        // Behind the pool, which may have made its devices.
        Ok(Self::on(pool, tier, Links::of(config), config))
    }

    /// A session on a pool that is open already, and closed with the session.
    pub(crate) fn on_pool(pool: Pool, config: &SessionConfig<'_>) -> Self {
        Self::on(Lease { key: None, pool, made: None }, None, Links::default(), config)
    }

    fn on(pool: Lease, tier: Option<HostTier>, links: Links, config: &SessionConfig<'_>) -> Self {
        let (budget, staging) = (Bytes(config.budget.min(BYTES_MAX)), Bytes(config.staging));
        let machine = Residency::new(Config {
            lookahead: LOOKAHEAD_OPS,
            host_memory: Bytes(config.host_memory),
            ..Config::new(budget, staging)
        });
        Self {
            pool,
            tier,
            completions: CompletionQueue::new(),
            place: config.place,
            state: Mutex::new(State::new(machine, links, config)),
        }
    }

    pub(crate) fn attention_address(&self) -> *const u32 {
        self.completions.attention_address()
    }

    /// Stops what is in flight and waits until no device or copy touches the caller's memory.
    pub(crate) fn close(&self) -> Result<(), Failure> {
        let state = self.lock();
        for in_flight in state.in_flight.values() {
            in_flight.stop();
        }
        for carrier in state.in_flight.values().filter_map(InFlight::carrier) {
            carrier.wait();
        }
        if let Some(tier) = &self.tier {
            tier.close();
        }
        drop(state);
        self.pool.give_back()
    }
}

/// A pool that the sessions of a process share: a block that follows another on the same devices finds
/// what the first left there, and the share is given back when the last session ends.
pub(super) struct Lease {
    /// By what other sessions find it; `None`: no other does.
    key: Option<(String, u32)>,
    pool: Pool,
    /// What to tell of a pool that was made for this session.
    pub(super) made: Option<String>,
}

struct Shared {
    pool: Pool,
    place: Place,
    sessions: u32,
}

impl Shared {
    /// One GPU, or none, is whose memory a pool moves.
    fn check_place(&self, wanted: Place) -> Result<(), Failure> {
        if wanted == self.place {
            return Ok(());
        }
        let (wanted, serves) = (describe(wanted), describe(self.place));
        Err(Failure::new(
            Status::PoolFailed,
            format!(
                "this process has the pool open already, for {serves}: close that session before one for {wanted}"
            ),
        ))
    }

    /// A path that was asked for by name is the one that serves, or an error.
    fn check_path(&self, wanted: &str) -> Result<(), Failure> {
        let wanted = DataPath::named(wanted)?;
        let stats = self.pool.stats();
        let stats = stats.map_err(|error| Failure::new(Status::PoolFailed, error.to_string()))?;
        let serves = stats.reactor.capabilities.kind;
        if wanted.is(serves) {
            return Ok(());
        }
        Err(Failure::new(
            Status::PoolFailed,
            format!(
                "this process has the pool open already, by the data path {serves}: ask for \
                 that one or for auto, or close the other session first"
            ),
        ))
    }
}

/// Locked while a pool is opened or closed, which takes a while: a child of fork has a table of its own.
static SHARED: PerProcess<Mutex<HashMap<(String, u32), Shared>>> = PerProcess::new(Mutex::default);

impl Lease {
    fn take(config: &SessionConfig<'_>) -> Result<Self, Failure> {
        let key = (config.devices.to_owned(), config.share);
        let mut shared = SHARED.get().lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = shared.get_mut(&key) {
            open.check_path(config.data_path)?;
            open.check_place(config.place)?;
            open.sessions += 1;
            return Ok(Self { key: Some(key), pool: open.pool.clone(), made: None });
        }
        let OpenedPool { pool, made } = open_pool(config)?;
        let open = Shared { pool: pool.clone(), place: config.place, sessions: 1 };
        shared.insert(key.clone(), open);
        Ok(Self { key: Some(key), pool, made })
    }

    fn give_back(&self) -> Result<(), Failure> {
        let mut shared = SHARED.get().lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(key) = &self.key {
            let Some(open) = shared.get_mut(key) else { return Ok(()) };
            open.sessions -= 1;
            if open.sessions > 0 {
                return Ok(());
            }
            shared.remove(key);
        }
        self.pool.close().map_err(|error| Failure::new(Status::PoolFailed, error.to_string()))
    }
}

impl Deref for Lease {
    type Target = Pool;

    fn deref(&self) -> &Pool {
        &self.pool
    }
}

/// A pool, and what to tell of it if it was made.
pub(crate) struct OpenedPool {
    pub(crate) pool: Pool,
    pub(crate) made: Option<String>,
}

/// Opens the share, after formatting the pool where every device is a fresh directory, unless it must exist.
pub(crate) fn open_pool(config: &SessionConfig<'_>) -> Result<OpenedPool, Failure> {
    let failed =
        |error: &dyn std::fmt::Display| Failure::new(Status::PoolFailed, error.to_string());
    for (name, bytes) in [("staging", config.staging), ("pool_size", config.pool_size)] {
        if bytes > BYTES_MAX {
            return Err(Failure::invalid(format!(
                "{name} is {bytes} bytes: nothing is that large"
            )));
        }
    }
    let devices = DeviceSpec::parse_list(config.devices).map_err(|error| failed(&error))?;
    let (path, backend) = DataPath::named(config.data_path)?.open(
        config.place,
        ByteCount(config.staging),
        config.arena,
    )?;
    let mut made = None;
    if !config.must_exist && devices.iter().all(|device| !device.exists()) {
        let device_size =
            device_size(&devices, config.pool_size).map_err(|error| failed(&error))?;
        let options = FormatOptions {
            device_size: Some(device_size),
            buffered: config.buffered,
            ..FormatOptions::default()
        };
        let new = Pool::format(&devices, &options).map_err(|error| failed(&error))?;
        made = Some(describe_made(&new, &devices));
    }
    let options = OpenOptions {
        path,
        backend,
        buffered: config.buffered,
        share: config.share,
        staging: ByteCount(config.staging),
        gpu: gpu_of(config.place).map_err(|error| failed(&error))?,
        ..OpenOptions::default()
    };
    let pool = Pool::open(&devices, &options).map_err(|error| failed(&error))?;
    Ok(OpenedPool { pool, made })
}

/// Says where a new pool lies, and on which file systems: a directory that nothing is mounted on is on another disk than
/// its name says.
fn describe_made(new: &PoolDescription, devices: &[DeviceSpec]) -> String {
    let place = |device: &DeviceSpec| {
        let path = device.target();
        let mount =
            mount_point(&path).map(|at| format!(" (on the file system at {})", at.display()));
        format!("{}{}", path.display(), mount.unwrap_or_default())
    };
    let places: Vec<String> = devices.iter().map(place).collect();
    format!("there was no pool: made a new one of {} in {}", new.capacity, places.join(" and "))
}

/// Where the file system of a file is mounted.
fn mount_point(path: &Path) -> Option<PathBuf> {
    let path = path.canonicalize().ok()?;
    let file_system = |path: &Path| path.metadata().map(|it| it.dev()).ok();
    let own = file_system(&path)?;
    let within = path.ancestors().take_while(|above| file_system(above) == Some(own));
    within.last().map(Path::to_path_buf)
}

/// Page-locks the host memory that was asked for.
fn open_tier(config: &SessionConfig<'_>) -> Result<Option<HostTier>, Failure> {
    let wanted = ByteCount(config.host_memory);
    if wanted.0 == 0 {
        return Ok(None);
    }
    let Place::Gpu(number) = config.place else {
        return Err(Failure::invalid(format!(
            "host_memory of {wanted} is for the tensors of a GPU; the tensors of this session are in host memory already: \
             leave host_memory out, and raise the budget"
        )));
    };
    let gpu = Gpu::open(number.into())
        .map_err(|error| Failure::new(Status::PoolFailed, error.to_string()))?;
    let tier = HostTier::open(&gpu, wanted).map_err(|error| {
        Failure::invalid(format!(
            "host_memory of {wanted} cannot be had as page-locked memory: {error}; ask for less"
        ))
    })?;
    Ok(Some(tier))
}

/// What moves the memory of that place, where it is a GPU's.
fn gpu_of(place: Place) -> Result<Option<Arc<dyn GpuMemory>>, CudaUnavailable> {
    let Place::Gpu(number) = place else { return Ok(None) };
    Ok(Some(Arc::new(StagedGpu(Gpu::open(number.into())?))))
}

fn describe(place: Place) -> String {
    match place {
        Place::Host => "host memory".into(),
        Place::Gpu(number) => format!("GPU {number}"),
    }
}

/// Each device's part of the pool: as told, or a default that leaves room on the file system.
fn device_size(devices: &[DeviceSpec], pool_size: u64) -> std::io::Result<ByteCount> {
    const GRAIN: ByteCount = ByteCount::mib(1);
    let count = devices.len() as u64;
    if pool_size > 0 {
        return Ok(ByteCount(pool_size.div_ceil(count)).round_up(GRAIN));
    }
    let mut size = POOL_SIZE_DEFAULT.0 / count;
    for device in devices {
        // Devices may share a file system, so each takes its part of what is free.
        size = size.min(free_space(device)? / FREE_SPACE_PARTS / count);
    }
    Ok(ByteCount(size & !(GRAIN.0 - 1)))
}

impl State {
    pub(super) fn new(machine: Residency, links: Links, config: &SessionConfig<'_>) -> Self {
        Self {
            machine,
            staging: Bytes(config.staging),
            links,
            known: HashMap::new(),
            in_flight: HashMap::new(),
            requests: VecDeque::new(),
            next_sequence: 0,
            declined: Vec::new(),
            log_prefix: unique_prefix(),
            held: None,
            refused_by_pool: HashSet::new(),
            figures: Figures::default(),
            history: History::default(),
            moving: 0,
            profile: Profile::new(!config.reactive),
            planned: None,
            last_followed: false,
            planning: Planning::default(),
            policy: config.policy,
            op: CurrentOp::default(),
            waiting: None,
            handing_out: None,
            actions: Vec::new(),
            uses: Vec::new(),
            notices: Vec::new(),
        }
    }
}

/// Tells sessions of one process on one pool apart; scratch tensors never outlive the process.
fn unique_prefix() -> u64 {
    static SESSIONS: AtomicU64 = AtomicU64::new(1);
    SESSIONS.fetch_add(1, Ordering::Relaxed)
}

/// Bytes that a file system can still give to a file that is to be made there.
fn free_space(device: &DeviceSpec) -> std::io::Result<u64> {
    let path = device.path();
    let folder = if path.is_dir() { path } else { path.parent().unwrap_or(path) };
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let figures = rustix::fs::statvfs(folder)?;
    Ok(figures.f_bavail * figures.f_frsize)
}
