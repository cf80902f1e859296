//! The pools of a group's jobs.

use std::num::NonZero;

use tidelog_engine::memory::ALIGNMENT;
use tidelog_engine::path::sim::SimDisk;
use tidelog_engine::path::{ControllerName, DeviceIdentity, DeviceSpec, PathChoice, PathKind};
use tidelog_engine::pool::{FormatOptions, OpenError, OpenOptions, Pool};
use tidelog_engine::schedule::StartError;
use tidelog_engine::units::ByteCount;

use crate::exit::BenchError;
use crate::option::{JobOptions, Level};
use crate::target::device_size;

/// Open pools, each by the options that decide what it is.
pub(crate) struct Pools(Vec<(Key, Pool)>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Key {
    engine: PathKind,
    devices: Vec<String>,
    direct: bool,
    checksums: bool,
    staging: ByteCount,
    reactors: Option<NonZero<usize>>,
}

/// Memory for all operations in flight of these jobs, which is registered.
fn buffers(jobs: &[&JobOptions]) -> ByteCount {
    let of = |job: &&JobOptions| {
        let each = ByteCount(job.sizes.most()).round_up(ByteCount(ALIGNMENT as u64));
        let count = u64::from(job.iodepth) * u64::from(job.numjobs);
        if job.fixedbufs { each.0.saturating_mul(count) } else { 0 }
    };
    ByteCount(jobs.iter().map(of).fold(0, u64::saturating_add))
}

impl Key {
    fn of(job: &JobOptions, engine: PathKind) -> Self {
        let JobOptions { filename, direct, checksums, staging, reactors, .. } = job;
        Self {
            engine,
            devices: filename.clone(),
            direct: *direct,
            checksums: *checksums,
            staging: *staging,
            reactors: *reactors,
        }
    }
}

impl Pools {
    /// Opens what these jobs need.
    pub(crate) fn open(jobs: &[JobOptions]) -> Result<Self, BenchError> {
        let mut pools = Self(Vec::new());
        let jobs = jobs.iter().filter(|job| job.level == Level::Log);
        let mut by_key: Vec<(Key, Vec<&JobOptions>)> = Vec::new();
        for job in jobs {
            let key = Key::of(job, job.engine()?);
            match by_key.iter_mut().find(|(known, _)| *known == key) {
                Some((_, sharers)) => sharers.push(job),
                None => by_key.push((key, vec![job])),
            }
        }
        for (key, sharers) in by_key {
            let pool = open_pool(sharers[0], key.engine, buffers(&sharers))?;
            pools.0.push((key, pool));
        }
        Ok(pools)
    }

    /// The pool of a job.
    pub(crate) fn of(&self, job: &JobOptions) -> Option<Pool> {
        let key = Key::of(job, job.engine?);
        self.0.iter().find(|(known, _)| *known == key).map(|(_, pool)| pool.clone())
    }

    /// Closes all pools.
    pub(crate) fn close(self) -> Result<(), BenchError> {
        for (key, pool) in self.0 {
            pool.close().map_err(|error| failed("cannot close", &key.devices, &error))?;
        }
        Ok(())
    }
}

/// Makes a pool of a job's devices, which hold nothing, or were named twice.
///
/// # Errors
/// It cannot be made.
pub fn make_pool(job: &JobOptions, named_twice: &[DeviceIdentity]) -> Result<(), BenchError> {
    let specs: Vec<DeviceSpec> = job.filename.iter().map(DeviceSpec::new).collect();
    let options = FormatOptions {
        device_size: device_size(job),
        // Never for all: the engine looks again under its own claim. And never by name: a name may
        // have come to stand for something else.
        overwrite_devices: named_twice.to_vec(),
        overwrite_controllers: controllers(&job.overwrite),
        buffered: !job.direct,
        stripe_unit: job.stripe_unit,
        ..FormatOptions::default()
    };
    let made = Pool::format(&specs, &options);
    made.map(drop).map_err(|error| failed("cannot make a pool of", &job.filename, &error))
}

fn controllers(names: &[String]) -> Vec<ControllerName> {
    names.iter().filter_map(|name| DeviceSpec::new(name).controller()).collect()
}

fn open_pool(job: &JobOptions, engine: PathKind, buffers: ByteCount) -> Result<Pool, BenchError> {
    let options = OpenOptions {
        path: PathChoice::of(engine).unwrap_or_default(),
        buffered: !job.direct,
        staging: job.staging,
        reactors: job.reactors,
        buffers,
        verify_reads: job.checksums,
        ..OpenOptions::default()
    };
    let opened = if engine == PathKind::Sim {
        let size = device_size(job).unwrap_or_default();
        let disks: Vec<SimDisk> = job.filename.iter().map(|_| SimDisk::new(size)).collect();
        let format = FormatOptions { stripe_unit: job.stripe_unit, ..FormatOptions::default() };
        Pool::format(&disks, &format)
            .map_err(|error| failed("cannot make a pool of", &job.filename, &error))?;
        Pool::open(&disks, &options)
    } else {
        let specs: Vec<DeviceSpec> = job.filename.iter().map(DeviceSpec::new).collect();
        Pool::open(&specs, &options)
    };
    opened.map_err(|error| match error {
        OpenError::Start(StartError::Path(error)) => BenchError::Path(error),
        error => failed("cannot open the pool on", &job.filename, &error),
    })
}

fn failed(what: &str, devices: &[String], why: &dyn std::error::Error) -> BenchError {
    BenchError::Pool { what: format!("{what} {}", devices.join(", ")), why: why.to_string() }
}
