//! From names to devices: what may be written is decided here, before anything runs.

use std::path::PathBuf;

use tidelog_engine::memory::ALIGNMENT;
use tidelog_engine::path::{Device, DeviceOpenError, DeviceSpec, OpenMode};
use tidelog_engine::units::ByteCount;
use tidelog_format::device::{
    Reason, Refusal, System, Target, TargetKind, program_directories, refusals, same_or_overlapping,
};

use crate::exit::BenchError;
use crate::load::Window;
use crate::option::value::Amount;
use crate::option::{Engine, JobOptions};

/// What the jobs of a run may use.
#[derive(Debug, Default)]
pub struct Targets {
    system: System,
    /// What may be written: it was looked at, or made, by this run.
    admitted: Vec<PathBuf>,
    /// What was made a pool by this run.
    pooled: Vec<PathBuf>,
    /// Block devices that are written are claimed as long as the run lasts.
    claims: Vec<Device>,
}

/// What a set of names was found to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Every device may be written, and none holds anything of value.
    Free,
    /// Every device belongs to a Tidelog pool.
    Pool,
}

impl Targets {
    /// Makes sure that a raw job may do to its devices what it is going to; makes files that do not exist.
    ///
    /// # Errors
    /// Why not. Nothing was written then.
    pub fn admit_raw(&mut self, job: &JobOptions) -> Result<(), BenchError> {
        if job.engine()? == Engine::Sim {
            return Ok(());
        }
        let targets = self.resolve(job)?;
        if job.load.writes {
            let found = self.speaks_against(job, &targets)?;
            if !found.is_empty() {
                return Err(BenchError::Refused(found));
            }
        }
        for target in &targets {
            self.prepare(job, target)?;
        }
        Ok(())
    }

    /// Makes sure that a pool may be opened on, or made of, a job's devices.
    ///
    /// # Errors
    /// Why not.
    pub fn admit_log(&mut self, job: &JobOptions) -> Result<Found, BenchError> {
        let targets = self.resolve(job)?;
        if targets.iter().all(|target| self.pooled.contains(&target.path)) {
            return Ok(Found::Pool);
        }
        let found = self.speaks_against(job, &targets)?;
        if found.is_empty() {
            self.pooled.extend(targets.into_iter().map(|target| target.path));
            return Ok(Found::Free);
        }
        // A pool's block devices also carry a protective MBR, which counts as content.
        let has_pool = |target: &Target| {
            let is_it = |it: &&Refusal| it.device == target.given;
            found.iter().filter(is_it).any(|it| matches!(it.reason, Reason::Pool { .. }))
        };
        let unused = found.iter().all(|it| it.reason.may_be_overridden());
        let is_pool = unused && targets.iter().all(has_pool);
        if is_pool { Ok(Found::Pool) } else { Err(BenchError::Refused(found)) }
    }

    fn resolve(&self, job: &JobOptions) -> Result<Vec<Target>, BenchError> {
        let resolve = |name: &String| {
            Target::resolve(name, &self.system)
                .map_err(|source| BenchError::System { what: name.clone(), source })
        };
        let targets: Vec<Target> = job.filename.iter().map(resolve).collect::<Result<_, _>>()?;
        let twins = same_or_overlapping(&targets);
        if twins.is_empty() { Ok(targets) } else { Err(BenchError::Refused(twins)) }
    }

    fn speaks_against(
        &self,
        job: &JobOptions,
        targets: &[Target],
    ) -> Result<Vec<Refusal>, BenchError> {
        let mut found = Vec::new();
        for target in targets.iter().filter(|target| !self.admitted.contains(&target.path)) {
            let reasons = refusals(target, &self.system, &program_directories());
            let reasons = reasons.map_err(|source| {
                let what = format!("{}: cannot find out what it holds", target.given);
                BenchError::System { what, source }
            })?;
            let named_twice = job.overwrite.contains(&target.given);
            let stands = |it: &Refusal| !(named_twice && it.reason.may_be_overridden());
            found.extend(reasons.into_iter().filter(stands));
        }
        Ok(found)
    }

    /// Claims a device that will be written; makes, grows or fills a file.
    fn prepare(&mut self, job: &JobOptions, target: &Target) -> Result<(), BenchError> {
        if self.admitted.contains(&target.path) {
            return Ok(());
        }
        let needed = file_size(job, target)?;
        let mode = OpenMode { buffered: !job.direct, ..OpenMode::default() };
        match target.kind {
            TargetKind::NewFile => {
                Device::create(&target.spec(), needed, false, mode)?;
                if !job.load.writes {
                    fill(target, needed)?;
                }
                self.admitted.push(target.path.clone());
            }
            TargetKind::File if job.load.writes => {
                Device::open(&target.spec(), mode)?.grow(needed, false)?;
                self.admitted.push(target.path.clone());
            }
            TargetKind::Block(_) if job.load.writes => {
                let exclusive = OpenMode { exclusive: true, ..mode };
                self.claims.push(Device::open(&target.spec(), exclusive)?);
                self.admitted.push(target.path.clone());
            }
            TargetKind::File | TargetKind::Block(_) if needed <= target.size => {}
            TargetKind::File | TargetKind::Block(_) => {
                let what = format!(
                    "{}: {} are to be read of {}; write them first, or give a smaller size",
                    target.given, needed, target.size
                );
                return Err(BenchError::usage(what).within(&job.name));
            }
            TargetKind::Other(found) => {
                let path = target.path.clone();
                return Err(DeviceOpenError::Kind { path, found }.into());
            }
        }
        Ok(())
    }
}

/// How long a file must be for a job.
fn file_size(job: &JobOptions, target: &Target) -> Result<ByteCount, BenchError> {
    match job.size {
        Some(Amount::Bytes(size)) => {
            let clones = job.offset_increment.0 * u64::from(job.numjobs - 1);
            let bytes = size / job.filename.len() as u64 + job.offset.of(target.size.0) + clones;
            Ok(ByteCount(bytes).round_up(ByteCount(ALIGNMENT as u64)))
        }
        _ if target.size > ByteCount::ZERO => Ok(target.size),
        _ => {
            let what = format!("{} does not exist or is empty: give its size", target.given);
            Err(BenchError::usage(what).within(&job.name))
        }
    }
}

/// Gives a file that is to be read bytes to read: of what is reserved and was never written, no device
/// would be asked.
fn fill(target: &Target, size: ByteCount) -> Result<(), BenchError> {
    use std::io::Write;
    eprintln!("{}: laying out a file of {size} to read", target.given);
    let write = || {
        let mut file = std::fs::File::options().write(true).open(&target.path)?;
        let mut chunk = vec![0; 1 << 20];
        fastrand::Rng::with_seed(size.0).fill(&mut chunk);
        let mut left = size.0;
        while left > 0 {
            let length = left.min(chunk.len() as u64);
            file.write_all(&chunk[..length as usize])?;
            left -= length;
        }
        file.sync_all()
    };
    write().map_err(|source| BenchError::System {
        what: format!("{}: cannot lay it out", target.given),
        source,
    })
}

/// Opens a job's devices, in the order of their names.
///
/// # Errors
/// One cannot be opened.
pub fn open(job: &JobOptions) -> Result<Vec<Device>, BenchError> {
    let mode = OpenMode { buffered: !job.direct, exclusive: false, read_only: !job.load.writes };
    let open = |name: &String| Ok(Device::open(&DeviceSpec::new(name), mode)?);
    job.filename.iter().map(open).collect()
}

/// The part of each file, of these sizes, that the `clone`th of a job's `numjobs` works on.
///
/// # Errors
/// A part has no room for one operation.
pub fn windows(
    job: &JobOptions,
    sizes: &[ByteCount],
    clone: u32,
) -> Result<Vec<Window>, BenchError> {
    let unit = ALIGNMENT as u64;
    let down = |bytes: u64| bytes / unit * unit;
    let window = |(name, whole): (&String, &ByteCount)| {
        let skipped = job.offset_increment.0 * u64::from(clone);
        let start = down(job.offset.of(whole.0) + skipped);
        let rest = down(whole.0.saturating_sub(start));
        let wanted = match job.size {
            None => rest,
            Some(Amount::Bytes(bytes)) => down(bytes / sizes.len() as u64),
            Some(percent @ Amount::Percent(_)) => down(percent.of(whole.0)).min(rest),
        };
        if wanted > rest || wanted < job.sizes.most() {
            let what = format!(
                "{name}: from byte {start} on there are {}, and {} are to be worked on in blocks of up to {}",
                ByteCount(rest),
                ByteCount(wanted),
                ByteCount(job.sizes.most()),
            );
            return Err(BenchError::usage(what).within(&job.name));
        }
        Ok(Window { start, length: wanted })
    };
    job.filename.iter().zip(sizes).map(window).collect()
}
