//! Every data path from the host's memory and each GPU's to every scratch area and pool, with a
//! verdict: proven, or exactly why not, and what to type then.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use tidelog_engine::path::DeviceSpec;
use tidelog_engine::pool::{FormatOptions, Pool};
use tidelog_engine::units::ByteCount;

use crate::cli::CheckArgs;
use crate::next::Advice;
use crate::trial::{Measured, TrialError, round_trip};
use crate::ways::{By, GPU, HOST, HOST_TO_FILES, NoGpu, gpus, of_gpu, of_host, without_gpu};

/// Verdict on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// A round trip came back whole.
    Works,
    /// The path does not open here.
    Absent,
    /// The path opened, and an operation failed.
    Failed,
    /// The path opened, and other bytes came back.
    WrongBytes,
}

/// Owner of the memory of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemoryOwner {
    /// The host's.
    Host,
    /// A GPU's.
    Gpu,
}

/// A path on a scratch area.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The data path.
    pub path: By,
    /// Owner of the tensor's memory.
    pub memory: MemoryOwner,
    /// The GPU in whose memory, if there is one.
    pub gpu: Option<i32>,
    /// Directory of the trial.
    pub scratch: PathBuf,
    /// Verdict on the path.
    pub verdict: Verdict,
    /// The reason why it does not work, or what the path says of itself.
    pub why: String,
    /// Command to type for it to work, if any.
    pub next: String,
    /// Bytes written in a second.
    pub write_bytes_per_second: Option<u64>,
    /// Bytes read in a second.
    pub read_bytes_per_second: Option<u64>,
    /// The median of reads of 4 KiB, one at a time, in nanoseconds.
    pub read_latency_nanoseconds: Option<u64>,
}

impl Row {
    /// Returns whether the row works, for a tensor in this memory.
    pub fn is_proven_from(&self, memory: MemoryOwner) -> bool {
        self.memory == memory && self.verdict == Verdict::Works
    }

    /// Returns the owner's name, in a word or two.
    pub fn name(&self) -> String {
        match (self.memory, self.gpu) {
            (MemoryOwner::Host, _) => self.path.to_string(),
            (MemoryOwner::Gpu, Some(gpu)) => format!("{} GPU {gpu}", self.path),
            (MemoryOwner::Gpu, None) => format!("{} GPU", self.path),
        }
    }
}

/// Tries every path on every scratch area.
///
/// # Errors
/// A scratch area in which no file can be made: nothing was tried there.
pub fn try_all(arguments: &CheckArgs, advice: &Advice) -> io::Result<Vec<Row>> {
    let gpus = gpus();
    let mut rows = Vec::new();
    for directory in &arguments.scratch {
        let scratch = Scratch::new(directory)?;
        let devices = scratch.format(arguments.size);
        let area = Area { name: directory, devices, arguments, advice };
        rows.extend(area.try_all(&HOST_TO_FILES, &gpus));
    }
    for pool in &arguments.pool {
        let devices = DeviceSpec::parse_list(pool).map_err(TrialError::unavailable);
        let area = Area { name: Path::new(pool), devices, arguments, advice };
        rows.extend(area.try_all(&HOST, &gpus));
    }
    Ok(rows)
}

/// Area for a trial's tensor.
struct Area<'a> {
    name: &'a Path,
    /// A pool's, or why there is none.
    devices: Result<Vec<DeviceSpec>, TrialError>,
    arguments: &'a CheckArgs,
    advice: &'a Advice<'a>,
}

impl Area<'_> {
    /// Tries each of these paths from the host's memory, then from each GPU's; where there is none
    /// each of those says so.
    fn try_all(&self, host: &[By], gpus: &Result<i32, NoGpu>) -> Vec<Row> {
        let mut rows: Vec<Row> = host.iter().map(|by| self.try_host(*by)).collect();
        match gpus {
            Ok(count) => {
                let pairs = (0..*count).flat_map(|gpu| GPU.map(|by| (by, gpu)));
                rows.extend(pairs.map(|(by, gpu)| self.try_gpu(by, gpu)));
            }
            Err(why) => rows.extend(GPU.map(|by| {
                let next = self.advice.for_no_gpu(why);
                let told = without_gpu(by, why, self.arguments);
                self.row(by, MemoryOwner::Gpu, None, Err(told), |_| next)
            })),
        }
        rows
    }

    fn try_host(&self, by: By) -> Row {
        let size = self.arguments.size;
        let devices = self.devices.clone();
        let result = devices.and_then(|devices| round_trip(&devices, &of_host(by), size));
        self.row(by, MemoryOwner::Host, None, result, |_| self.advice.for_host(by, self.name))
    }

    fn try_gpu(&self, by: By, gpu: i32) -> Row {
        let result = self.devices.clone().and_then(|devices| {
            let way = of_gpu(by, gpu, &devices, self.arguments)?;
            round_trip(&devices, &way, self.arguments.size)
        });
        self.row(by, MemoryOwner::Gpu, Some(gpu), result, |_| {
            self.advice.for_gpu(by, gpu, self.name, self.arguments)
        })
    }

    fn row(
        &self,
        path: By,
        memory: MemoryOwner,
        gpu: Option<i32>,
        result: Result<Measured, TrialError>,
        absent: impl FnOnce(&TrialError) -> String,
    ) -> Row {
        let (verdict, why, next) = match &result {
            Ok(measured) => (Verdict::Works, measured.notes.join("; "), String::new()),
            Err(error) => {
                let why = error.to_string();
                match error {
                    TrialError::Unavailable(_) => (Verdict::Absent, why, absent(error)),
                    TrialError::Failed(_) => (Verdict::Failed, why, Advice::for_failure()),
                    TrialError::WrongBytes(_) => (Verdict::WrongBytes, why, Advice::for_failure()),
                }
            }
        };
        let measured = result.ok();
        let measured = measured.as_ref();
        Row {
            path,
            memory,
            gpu,
            scratch: self.name.to_path_buf(),
            verdict,
            why,
            next,
            write_bytes_per_second: measured.map(|it| it.write.0),
            read_bytes_per_second: measured.map(|it| it.read.0),
            read_latency_nanoseconds: measured.map(|it| it.latency.as_nanos() as u64),
        }
    }
}

/// A file of our own in a directory that was given, removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(directory: &Path) -> io::Result<Self> {
        let named = |error: io::Error| {
            io::Error::new(
                error.kind(),
                format!("cannot make a scratch file in {}: {error}", directory.display()),
            )
        };
        if !fs::metadata(directory).map_err(named)?.is_dir() {
            let what = format!(
                "{} is no directory; a device that holds data is never a scratch area",
                directory.display()
            );
            return Err(io::Error::new(io::ErrorKind::NotADirectory, what));
        }
        let file = directory.join(format!(".tidelog-doctor-{}", std::process::id()));
        // Fails where something of that name is there: nothing that exists is written.
        fs::OpenOptions::new().write(true).create_new(true).open(&file).map_err(named)?;
        Ok(Self(file))
    }

    /// Makes a pool of it in which a tensor of this size has room.
    fn format(&self, size: ByteCount) -> Result<Vec<DeviceSpec>, TrialError> {
        /// Space that the log needs besides.
        const ROOM: u64 = 64 << 20;
        let devices = vec![DeviceSpec::new(&self.0)];
        let device_size = Some(ByteCount(size.0.saturating_mul(2).saturating_add(ROOM)));
        let sparse = FormatOptions { device_size, sparse: true, ..FormatOptions::default() };
        Pool::format(&devices, &sparse).map_err(TrialError::unavailable)?;
        Ok(devices)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}
