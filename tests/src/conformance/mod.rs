//! Conformance of the engine on every data path and device: the same rows whatever they are, on
//! devices that the caller passes and that lose what they hold.

mod discards;
mod fault;
mod placement;
mod rows;

use std::process::ExitCode;
use std::sync::Arc;

use tidelog_engine::memory::GpuMemory;
use tidelog_engine::path::{Backend, DeviceSpec, PathChoice, PathKind};
use tidelog_engine::pool::{FormatOptions, OpenOptions, Pool};
use tidelog_engine::units::ByteCount;

pub use discards::WHERE_DISCARDS_FAIL;
pub use fault::{Fault, InjectedStatus, Noticed};
pub use placement::PLACEMENT_ROWS;
pub use rows::{ROWS, find};

pub use crate::victim::Failure;

/// One thing that must be so: its name, and what shows it. Returns a fact worth printing.
pub type Row = (&'static str, fn(&Stage) -> Result<String, Failure>);

/// Prefix of the result of a row that has nothing to do.
pub const NOTHING_TO_DO: &str = "nothing to do: ";

/// The line that says how a row ended, as `tests/nvme-vm/run.sh` counts them.
pub fn line(name: &str, result: &Result<String, Failure>) -> String {
    match result {
        Ok(fact) => match fact.strip_prefix(NOTHING_TO_DO) {
            Some(why) => format!("SKIPPED 1 row, {name}: {why}"),
            None => format!("ok      {name}: {fact}"),
        },
        Err(why) => format!("FAILED  {name}: {why}"),
    }
}

/// Prints that line; returns whether the row is as it must be.
pub fn told(name: &str, result: &Result<String, Failure>) -> bool {
    println!("{}", line(name, result));
    result.is_ok()
}

/// Returns the exit code of a program whose rows were all as they must be, or not, or could not be
/// run.
pub fn exit_code(program: &str, all_well: Result<bool, Failure>) -> ExitCode {
    match all_well {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{program}: {error}");
            ExitCode::from(2)
        }
    }
}

/// The devices, and the data path to reach them by.
#[derive(Clone, Debug)]
pub struct Stage {
    /// The devices of the pool.
    pub specs: Vec<DeviceSpec>,
    /// The data path, which must be the one that runs.
    pub path: PathKind,
    /// Backend that opens it, where it is none of the engine's.
    pub backend: Option<Arc<dyn Backend>>,
    /// Names of the devices as another path knows them: for spdk, whose names the kernel does not
    /// know.
    pub elsewhere: Option<Vec<DeviceSpec>>,
}

/// Contiguous bytes on one device.
const STRIPE_UNIT: ByteCount = ByteCount::kib(64);

impl Stage {
    /// Makes an empty pool. What the devices held is lost.
    ///
    /// # Errors
    /// The devices cannot be formatted.
    pub fn format(&self) -> Result<(), Failure> {
        let options = FormatOptions {
            stripe_unit: STRIPE_UNIT,
            segment_size: Some(ByteCount::mib(1)),
            overwrite: true,
            ..FormatOptions::default()
        };
        Pool::format(&self.specs, &options)?;
        Ok(())
    }

    /// Opens the pool by the path.
    ///
    /// # Errors
    /// It cannot be opened, or another path runs.
    pub fn open(&self) -> Result<Pool, Failure> {
        self.open_by(&self.specs, self.path, OpenOptions::default())
    }

    /// Opens the pool for tensors of a GPU, and nothing but the test writes.
    ///
    /// # Errors
    /// It cannot be opened, or another path runs.
    pub fn open_for(&self, gpu: Arc<dyn GpuMemory>) -> Result<Pool, Failure> {
        let options = OpenOptions { housekeeping: None, gpu: Some(gpu), ..OpenOptions::default() };
        self.open_by(&self.specs, self.path, options)
    }

    /// Opens the pool while nothing but the test writes.
    fn open_alone(&self) -> Result<Pool, Failure> {
        let alone = OpenOptions { housekeeping: None, ..OpenOptions::default() };
        self.open_by(&self.specs, self.path, alone)
    }

    /// Opens the pool by another path that reaches the same devices; `None` if there is none.
    fn open_by_another(&self) -> Result<Option<Pool>, Failure> {
        let specs = match (&self.elsewhere, self.path) {
            (Some(specs), _) => specs,
            (None, PathKind::Spdk) => return Ok(None),
            (None, _) => &self.specs,
        };
        let other = if self.path == PathKind::Uring { PathKind::Posix } else { PathKind::Uring };
        self.open_by(specs, other, OpenOptions::default()).map(Some)
    }

    fn open_by(
        &self,
        specs: &[DeviceSpec],
        path: PathKind,
        options: OpenOptions,
    ) -> Result<Pool, Failure> {
        let choice = match path {
            PathKind::Uring => PathChoice::Uring,
            PathKind::UringCmd => PathChoice::UringCmd,
            PathKind::Posix => PathChoice::Posix,
            PathKind::Spdk => PathChoice::Spdk,
            PathKind::Gds if self.backend.is_some() => PathChoice::Auto,
            PathKind::Gds => return Err("nothing was given that opens it".into()),
            PathKind::Sim => return Err("simulated disks have tests of their own".into()),
        };
        let options = OpenOptions {
            path: choice,
            backend: self.backend.clone().filter(|_| path == PathKind::Gds),
            staging: ByteCount::mib(4),
            huge_pages: false,
            ..options
        };
        let pool = Pool::open(specs, &options)?;
        let kind = pool.stats()?.reactor.capabilities.kind;
        if kind == path { Ok(pool) } else { Err(format!("{kind} runs, not {path}").into()) }
    }
}
