//! Room on file systems: asked for before any file is made or grown, since reserving it fills the
//! disk to the last byte.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::sys::statvfs::statvfs;
use tidelog_device_safety::{NamedDevice, TargetKind};
use tidelog_engine::units::ByteCount;

use crate::exit::BenchError;
use crate::option::JobOptions;
use crate::option::value::Amount;

/// Room on each device besides tensors: superblocks, change log, checkpoints.
const METADATA_ROOM: ByteCount = ByteCount::mib(64);

/// Returns the size of a file for a job's tensors, each twice: one that is put again exists twice
/// meanwhile.
pub fn device_size(job: &JobOptions) -> Option<ByteCount> {
    let Some(Amount::Bytes(size)) = job.size else { return None };
    let wanted = size.saturating_mul(2).saturating_mul(u64::from(job.numjobs));
    // What is beyond all devices is refused when it is reserved.
    let each = wanted.div_ceil(job.filename.len() as u64).min(u64::MAX / 2);
    // A fraction of each device goes to the index, and another is kept for reclamation.
    Some(ByteCount(each + each / 8 + METADATA_ROOM.0).round_up(ByteCount::mib(1)))
}

/// Space of the files of a run, by file.
#[derive(Debug, Default)]
pub(super) struct FileSpace(BTreeMap<PathBuf, ByteCount>);

impl FileSpace {
    /// Notes that a file is to have this many bytes. What is no file takes no room.
    pub(super) fn note(&mut self, target: &NamedDevice, size: ByteCount) {
        if matches!(target.kind, TargetKind::NewFile | TargetKind::File) {
            let noted = self.0.entry(target.path.clone()).or_default();
            *noted = (*noted).max(size);
        }
    }

    /// Checks that there is room for all of them together.
    ///
    /// # Errors
    /// A file system has less, and how much.
    pub(super) fn check(&self) -> Result<(), BenchError> {
        let mut wanted: BTreeMap<u64, (ByteCount, Vec<&Path>)> = BTreeMap::new();
        for (path, size) in &self.0 {
            let standing = std::fs::metadata(path).ok();
            let has = standing.as_ref().map_or(0, |it| it.blocks() * 512);
            let Some(device) =
                standing.or_else(|| directory(path).metadata().ok()).map(|it| it.dev())
            else {
                continue;
            };
            let (bytes, paths) = wanted.entry(device).or_default();
            bytes.0 = bytes.0.saturating_add(size.0.saturating_sub(has));
            paths.push(path);
        }
        for (bytes, paths) in wanted.into_values() {
            let Some(free) = free(directory(paths[0])) else { continue };
            if bytes > free {
                return Err(BenchError::NoRoom {
                    path: paths[0].to_path_buf(),
                    wanted: bytes,
                    free,
                });
            }
        }
        Ok(())
    }
}

/// The directory of a file.
fn directory(path: &Path) -> &Path {
    path.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Returns the free space of the file system of a directory, besides what it keeps for its
/// administrator.
fn free(directory: &Path) -> Option<ByteCount> {
    let found = statvfs(directory).ok()?;
    Some(ByteCount(found.blocks_available().saturating_mul(found.fragment_size())))
}
