//! Targets by name: what may be written is decided here, before anything runs.

mod claim;
mod controllers;
mod device;
mod space;
mod window;

use std::path::PathBuf;

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

use tidelog_engine::path::sim::{SimDisk, SimDisks};
use tidelog_engine::path::{
    Device, DeviceIdentity, DeviceOpenError, DeviceSpec, KernelDevices, OpenMode, PathChoice,
    PathKind, PathProvider,
};
use tidelog_engine::units::ByteCount;

use claim::TargetClaim;
use controllers::Controllers;
use device::{fill, has_zones, identity, open_unchanged};
use space::FileSpace;
pub use space::device_size;
use window::file_size;

use tidelog_device_safety::{
    DeviceRefusal, NamedDevice, Reason, System, TargetKind, program_directories, refusals,
    same_or_overlapping,
};
pub use window::windows;

use crate::exit::BenchError;
use crate::holder::LockHolder;
use crate::option::{JobOptions, Level};

/// Targets that the jobs of a run may use.
#[derive(Debug, Default)]
pub struct Targets {
    system: System,
    /// Targets that may be written, as this run looked at them, or made them.
    admitted: Vec<Admitted>,
    /// Controllers that raw jobs use without the kernel.
    controllers: Controllers,
    /// Paths of pools that this run made.
    pooled: Vec<PathBuf>,
}

/// Target that may be written. It stays open and locked as long as the run lasts, so that no other
/// file can come to have its identity, and no other run takes it for blank.
#[derive(Debug)]
struct Admitted {
    identity: DeviceIdentity,
    _device: Device,
    _claim: TargetClaim,
}

/// Kind of targets that a set of names was found to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FoundTarget {
    /// Every device may be written. None holds anything of value but these, which were named twice.
    Free {
        /// The devices that may lose what they hold.
        named_twice: Vec<DeviceIdentity>,
    },
    /// Every device belongs to a Tidelog pool.
    Pool,
}

impl Targets {
    /// Looks at the devices of all jobs, so that a run of which a part is refused begins with none
    /// of it.
    ///
    /// # Errors
    /// Everything that speaks against any of them. Nothing was made or changed then.
    pub fn look_at(&self, jobs: &[JobOptions]) -> Result<(), BenchError> {
        let mut against: Vec<DeviceRefusal> = Vec::new();
        let mut space = FileSpace::default();
        for job in jobs {
            let looked = match (job.level, job.engine()?) {
                (_, PathKind::Sim) => continue,
                (Level::Raw, _) => self.may_be_raw(job).and_then(|targets| {
                    targets.iter().try_for_each(|it| {
                        space.note(it, file_size(job, it)?);
                        Ok(())
                    })
                }),
                (Level::Log, _) => self.may_be_pool(job).map(|(targets, found)| {
                    let made = matches!(found, FoundTarget::Free { .. })
                        .then(|| device_size(job))
                        .flatten();
                    targets
                        .iter()
                        .zip(made.into_iter().cycle())
                        .for_each(|(it, size)| space.note(it, size));
                }),
            };
            match looked {
                Err(BenchError::Refused(found)) => {
                    against.extend(
                        found.into_iter().filter(|it| !against.contains(it)).collect::<Vec<_>>(),
                    );
                }
                other => other?,
            }
        }
        if against.is_empty() { space.check() } else { Err(BenchError::Refused(against)) }
    }

    /// Makes sure that a raw job may do to its devices what it is going to; makes files that do not
    /// exist.
    ///
    /// # Errors
    /// Why not. Nothing was written then.
    pub fn admit_raw(&mut self, job: &JobOptions) -> Result<(), BenchError> {
        match job.engine()? {
            PathKind::Sim => return Ok(()),
            PathKind::Spdk => return self.admit_controllers(job),
            _ => {}
        }
        for target in &self.may_be_raw(job)? {
            self.prepare(job, target)?;
        }
        Ok(())
    }

    /// Returns the provider of the data path of a raw job, whose devices are open; nothing at the
    /// log level.
    ///
    /// # Errors
    /// A device cannot be opened.
    pub fn provider(&self, job: &JobOptions) -> Result<Option<Box<dyn PathProvider>>, BenchError> {
        let engine = job.engine()?;
        Ok(match (job.level, PathChoice::of(engine)) {
            (Level::Log, _) => None,
            (Level::Raw, None) => Some(Box::new(simulated(job))),
            (Level::Raw, Some(_)) if engine == PathKind::Spdk => {
                Some(self.controllers.provider(job)?)
            }
            (Level::Raw, Some(choice)) => {
                let devices = KernelDevices::new(self.open(job)?, choice);
                Some(Box::new(KernelDevices { submission: job.kernel.submission, ..devices }))
            }
        })
    }

    /// Opens a raw job's devices, in the order of their names. A name that has come to stand for
    /// something else since it was looked at is refused: that was never asked for.
    fn open(&self, job: &JobOptions) -> Result<Vec<Device>, BenchError> {
        let mode =
            OpenMode { buffered: !job.direct, exclusive: false, read_only: !job.load.changes() };
        let open = |name: &String| {
            let device = Device::open(&DeviceSpec::new(name), mode)?;
            if job.load.changes() && !self.is_admitted(identity(&device)?) {
                let path = device.path().to_path_buf();
                return Err(DeviceOpenError::Changed { path }.into());
            }
            if !job.direct && job.invalidate {
                // What is dirty, or in use, stays: no error, as in fio.
                let all = PosixFadviseAdvice::POSIX_FADV_DONTNEED;
                let _ = posix_fadvise(device.file(), 0, 0, all);
            }
            Ok(device)
        };
        job.filename.iter().map(open).collect()
    }

    /// Makes sure that a pool may be opened on, or made of, a job's devices.
    ///
    /// # Errors
    /// Why not.
    pub fn admit_log(&mut self, job: &JobOptions) -> Result<FoundTarget, BenchError> {
        let (targets, found) = self.may_be_pool(job)?;
        if matches!(found, FoundTarget::Free { .. }) {
            self.pooled.extend(targets.into_iter().map(|target| target.path));
        }
        Ok(found)
    }

    /// A raw job's devices, which it may use.
    fn may_be_raw(&self, job: &JobOptions) -> Result<Vec<NamedDevice>, BenchError> {
        let targets = self.resolve(job)?;
        let found =
            if job.load.changes() { self.speaks_against(job, &targets)? } else { Vec::new() };
        if found.is_empty() { Ok(targets) } else { Err(BenchError::Refused(found)) }
    }

    /// A log job's devices, which are a pool or may become one.
    fn may_be_pool(&self, job: &JobOptions) -> Result<(Vec<NamedDevice>, FoundTarget), BenchError> {
        let targets = self.resolve(job)?;
        if targets.iter().all(|target| self.pooled.contains(&target.path)) {
            return Ok((targets, FoundTarget::Pool));
        }
        let found = self.speaks_against(job, &targets)?;
        if found.is_empty() {
            let twice = targets.iter().filter(|target| job.overwrite.contains(&target.given));
            let named_twice = twice.filter_map(|target| target.identity).collect();
            return Ok((targets, FoundTarget::Free { named_twice }));
        }
        // A pool's block devices also carry a protective MBR, which counts as content.
        let has_pool = |target: &NamedDevice| {
            let is_it = |it: &&DeviceRefusal| it.device == target.given;
            found.iter().filter(is_it).any(|it| matches!(it.reason, Reason::Pool { .. }))
        };
        let unused = found.iter().all(|it| it.reason.may_be_overridden());
        let is_pool = unused && targets.iter().all(has_pool);
        if is_pool { Ok((targets, FoundTarget::Pool)) } else { Err(BenchError::Refused(found)) }
    }

    fn is_admitted(&self, identity: DeviceIdentity) -> bool {
        self.admitted.iter().any(|admitted| admitted.identity == identity)
    }

    fn admit(&mut self, device: Device, claim: TargetClaim) -> Result<(), BenchError> {
        let identity = identity(&device)?;
        self.admitted.push(Admitted { identity, _device: device, _claim: claim });
        Ok(())
    }

    fn resolve(&self, job: &JobOptions) -> Result<Vec<NamedDevice>, BenchError> {
        let resolve = |name: &String| {
            let held = self.controllers.target(name).map(Ok);
            held.unwrap_or_else(|| NamedDevice::resolve(name, &self.system))
                .map_err(|source| BenchError::System { what: name.clone(), source })
        };
        let targets: Vec<NamedDevice> =
            job.filename.iter().map(resolve).collect::<Result<_, _>>()?;
        let twins = same_or_overlapping(&targets);
        if twins.is_empty() { Ok(targets) } else { Err(BenchError::Refused(twins)) }
    }

    fn speaks_against(
        &self,
        job: &JobOptions,
        targets: &[NamedDevice],
    ) -> Result<Vec<DeviceRefusal>, BenchError> {
        let mut found = Vec::new();
        let admitted = |target: &NamedDevice| {
            target.identity.is_some_and(|it| self.is_admitted(it))
                || self.controllers.is_admitted(&target.given)
        };
        for target in targets.iter().filter(|target| !admitted(target)) {
            let against = self.one_speaks_against(job, target)?;
            let is_claimed = against.iter().any(|it| is_of_a_program(&it.reason));
            if is_claimed && let holder @ Some(_) = LockHolder::at(&target.path) {
                return Err(BenchError::Held { path: target.path.clone(), holder });
            }
            found.extend(against);
        }
        Ok(found)
    }

    fn one_speaks_against(
        &self,
        job: &JobOptions,
        target: &NamedDevice,
    ) -> Result<Vec<DeviceRefusal>, BenchError> {
        let refusal = |reason| DeviceRefusal { device: target.given.clone(), reason };
        let reasons = match self.controllers.holds(&target.given) {
            Some(held) => held.map(|reason| reason.into_iter().map(refusal).collect()),
            None => refusals(target, &self.system, &program_directories(), &[]),
        };
        let mut reasons: Vec<DeviceRefusal> = reasons.map_err(|source| {
            let what = format!("{}: cannot find out what it holds", target.given);
            BenchError::System { what, source }
        })?;
        let named_twice = job.overwrite.contains(&target.given);
        reasons.retain(|it| !(named_twice && it.reason.may_be_overridden()));
        Ok(reasons)
    }

    /// Takes what stands already for this process alone. Another run may have had it, and written
    /// it, since it was looked at, so it is looked at again.
    fn claim(
        &self,
        job: &JobOptions,
        target: &NamedDevice,
        mode: OpenMode,
    ) -> Result<(Device, TargetClaim), BenchError> {
        // Block devices are claimed from the kernel, too, so that nothing is mounted on them.
        let exclusive = matches!(target.kind, TargetKind::Block(_));
        let device =
            open_unchanged(target, OpenMode { exclusive, ..mode }).map_err(
                |error| match error {
                    BenchError::Device(DeviceOpenError::InUse { path }) => {
                        match LockHolder::at(&path) {
                            None => DeviceOpenError::InUse { path }.into(),
                            holder => BenchError::Held { path, holder },
                        }
                    }
                    error => error,
                },
            )?;
        let claim = TargetClaim::take(&device)?;
        let mut found = self.one_speaks_against(job, target)?;
        // That is us.
        found.retain(|it| !is_of_a_program(&it.reason));
        if found.is_empty() { Ok((device, claim)) } else { Err(BenchError::Refused(found)) }
    }

    /// Attaches a job's controllers for the rest of the run, and looks at what will be written
    /// then: until it was attached, another process could have it.
    fn admit_controllers(&mut self, job: &JobOptions) -> Result<(), BenchError> {
        let targets = self.resolve(job)?;
        for target in &targets {
            let held = self.controllers.hold(target);
            held.map_err(|source| BenchError::System { what: target.given.clone(), source })?;
        }
        if job.load.changes() {
            let found = self.speaks_against(job, &targets)?;
            if !found.is_empty() {
                return Err(BenchError::Refused(found));
            }
            for target in &targets {
                self.controllers.admit(&target.given);
            }
        }
        Ok(())
    }

    /// Claims a device that will be written; makes, grows or fills a file.
    fn prepare(&mut self, job: &JobOptions, target: &NamedDevice) -> Result<(), BenchError> {
        if target.identity.is_some_and(|identity| self.is_admitted(identity)) {
            return Ok(());
        }
        let needed = file_size(job, target)?;
        let mode = OpenMode { buffered: !job.direct, ..OpenMode::default() };
        match target.kind {
            TargetKind::NewFile if !job.allow_file_create => {
                let what = format!("{} does not exist, and allow_file_create is 0", target.given);
                return Err(BenchError::usage(what).within(&job.name));
            }
            TargetKind::NewFile => {
                let device = Device::create(&target.spec(), needed, false, mode)?;
                let claim = TargetClaim::take(&device)?;
                if !job.load.changes() {
                    fill(target, &device, needed)?;
                }
                self.admit(device, claim)?;
            }
            TargetKind::File | TargetKind::Block(_) if job.load.changes() => {
                let (mut device, claim) = self.claim(job, target, mode)?;
                if job.zbd && has_zones(&device) {
                    let what = format!(
                        "{}: it is a zoned device, which no data path here supports",
                        target.given
                    );
                    return Err(BenchError::usage(what).within(&job.name));
                }
                device.grow(needed, false)?;
                self.admit(device, claim)?;
            }
            TargetKind::File | TargetKind::Block(_) if needed <= target.size => {}
            TargetKind::File | TargetKind::Block(_) => {
                let what = format!(
                    "{}: the job reads {}, and there are {}; write the rest first, or give a smaller size",
                    target.given, needed, target.size
                );
                return Err(BenchError::usage(what).within(&job.name));
            }
            // These have no files.
            TargetKind::Controller(_) => {}
            TargetKind::Other(found) => {
                let path = target.path.clone();
                return Err(DeviceOpenError::Kind { path, found }.into());
            }
        }
        Ok(())
    }
}

/// Returns whether another program speaks against it, or this one.
fn is_of_a_program(reason: &Reason) -> bool {
    matches!(reason, Reason::Claimed | Reason::Used { .. })
}

/// Disks in memory, as large as the job.
fn simulated(job: &JobOptions) -> SimDisks {
    let files = job.filename.len() as u64;
    let each = job.size.map_or(0, |size| size.of(0)) / files;
    let each = job.filesizes.iter().copied().max().unwrap_or(each);
    let size = ByteCount(each + job.offset.of(0));
    SimDisks(job.filename.iter().map(|_| SimDisk::new(size)).collect())
}
