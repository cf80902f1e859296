//! Devices as an operating system knows them: regular files, files in a directory, block devices.

pub mod blank;
mod claim;
mod controller;
pub(super) mod fence;
pub(super) mod lock;
mod reserve;
mod spec;
#[cfg(test)]
mod tests;
pub mod users;

pub use controller::ControllerName;
pub use fence::{Fence, FenceKey};
pub use lock::lock_of_bytes;
pub use spec::{DEVICES_MAX, DeviceIdentity, DeviceSpec, FILE_IN_DIRECTORY, SpecError};

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::claim::Claim;
pub use self::reserve::FillProgress;
use self::reserve::reserve;
use super::DeviceCapabilities;
use super::error::help_with_open_files;
use super::latch::Latch;
use super::operation::{Action, Status};
use crate::memory::ALIGNMENT;
use crate::units::ByteCount;

/// Mode in which a device is opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenMode {
    /// Go through the page cache. Without this a file system that lacks `O_DIRECT` is refused.
    pub buffered: bool,
    /// Claim a block device, which refuses one that is mounted or claimed. Files are not affected.
    /// Processes that share a pool's devices must not ask for this.
    pub exclusive: bool,
    /// Open for reading only, to inspect; writes then fail.
    pub read_only: bool,
}

/// A device could not be opened or made. Every variant names it.
#[derive(Debug, thiserror::Error)]
pub enum DeviceOpenError {
    /// The device does not exist.
    #[error("{path} does not exist; mount its file system, or format the pool first")]
    Missing {
        /// Path of the device.
        path: PathBuf,
    },
    /// The file that was to be made is there already.
    #[error("{path} exists already")]
    Exists {
        /// Path of the device.
        path: PathBuf,
    },
    /// The name stands for another device than a moment ago.
    #[error("{path} became another device while it was opened; look at it again")]
    Changed {
        /// Path of the device.
        path: PathBuf,
    },
    /// The kernel would not open it.
    #[error("cannot open {path}: {source}{}", help_with_open_files(source))]
    Open {
        /// Path of the device.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The block device is mounted or otherwise claimed.
    #[error("{path} is in use (mounted, or claimed by another program); unmount it first")]
    InUse {
        /// Path of the device.
        path: PathBuf,
    },
    /// The file is locked or open for writing in another program.
    #[error("{path} is in use, {how}; end that program first (fuser -v shows it)")]
    Used {
        /// Path of the device.
        path: PathBuf,
        /// Kind of the use.
        how: users::DeviceUse,
    },
    /// The file system cannot bypass the page cache.
    #[error(
        "the file system of {path} has no O_DIRECT; ask for buffered access or use another one"
    )]
    NoDirect {
        /// Path of the device.
        path: PathBuf,
    },
    /// A socket, a character device, a pipe.
    #[error("{path} is {found}; a device is a regular file, a directory or a block device")]
    Kind {
        /// Path of the device.
        path: PathBuf,
        /// Kind of the file that was found.
        found: &'static str,
    },
    /// The device's blocks are larger than Tidelog's smallest transfer.
    #[error("{path} has {block} byte blocks; at most {ALIGNMENT} are supported")]
    Block {
        /// Path of the device.
        path: PathBuf,
        /// Bytes in a block.
        block: u32,
    },
    /// The space could not be reserved, mostly as there is too little.
    #[error("cannot reserve {size} in {path}: {source}{}", reserve::help(source))]
    Reserve {
        /// Path of the device.
        path: PathBuf,
        /// Size of the device.
        size: ByteCount,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The name is a controller's, and the controller is not available.
    #[error("cannot open {name}: {why}")]
    Controller {
        /// Name as given.
        name: String,
        /// The reason why not, and what would help.
        why: String,
    },
    /// The size of the device could not be read.
    #[error("cannot read the size of {path}: {source}")]
    Size {
        /// Path of the device.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl DeviceOpenError {
    /// Returns whether the name stands for nothing now, or for a device that is gone.
    pub fn is_of_absence(&self) -> bool {
        let errno = |source: &io::Error| source.raw_os_error();
        match self {
            Self::Missing { .. } => true,
            Self::Open { source, .. } | Self::Size { source, .. } => {
                source.kind() == io::ErrorKind::NotFound
                    || errno(source).is_some_and(|it| {
                        let gone = Status::Errno(it).is_removal();
                        gone || it == libc::EIO
                    })
            }
            _ => false,
        }
    }
}

/// Kind of a device for the operating system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// A regular file.
    File,
    /// A whole block device or a partition.
    Block,
}

/// An open device.
#[derive(Debug)]
pub struct Device {
    file: File,
    path: PathBuf,
    kind: DeviceKind,
    size: ByteCount,
    logical_block: u32,
    direct: bool,
    claim: Option<Arc<Claim>>,
    latch: Latch,
}

impl Device {
    /// Opens a device that exists.
    pub fn open(spec: &DeviceSpec, mode: OpenMode) -> Result<Self, DeviceOpenError> {
        let path = spec.target();
        let metadata = std::fs::metadata(&path).map_err(|source| open_error(&path, source))?;
        let kind = kind_of(&path, metadata.file_type())?;
        let mut flags = libc::O_CLOEXEC;
        if !mode.buffered {
            flags |= libc::O_DIRECT;
        }
        let is_claimed = mode.exclusive && kind == DeviceKind::Block;
        let claim = is_claimed.then(|| Claim::take(&path)).transpose();
        let claim = claim.map_err(|source| open_error(&path, source))?;
        let file = OpenOptions::new()
            .read(true)
            .write(!mode.read_only)
            .custom_flags(flags)
            .open(&path)
            .map_err(|source| open_error(&path, source))?;
        let device = Self::describe(file, path, kind, !mode.buffered)?;
        match claim {
            Some(claim) => device.with_claim(claim),
            None => Ok(device),
        }
    }

    /// Adds the claim on the device: its name may stand for another device than a moment ago.
    fn with_claim(self, claim: Claim) -> Result<Self, DeviceOpenError> {
        let metadata = self.file.metadata().map_err(|source| open_error(&self.path, source))?;
        if DeviceIdentity::of(&metadata) != claim.device() {
            return Err(DeviceOpenError::Changed { path: self.path });
        }
        Ok(Self { claim: Some(Arc::new(claim)), ..self })
    }

    /// Makes a file of `size` bytes with every byte reserved on its file system, so that a write
    /// can not run out of space later; with zeroes, where it cannot reserve. `sparse` leaves that
    /// out. A file that exists is refused, and so is a name among the devices: it is of one that is
    /// not there, or mistyped.
    pub fn create(
        spec: &DeviceSpec,
        size: ByteCount,
        sparse: bool,
        mode: OpenMode,
    ) -> Result<Self, DeviceOpenError> {
        Self::create_with(spec, size, sparse, mode, &mut |_| ())
    }

    /// Creates the device, and reports the number of zeroes that are stored, where it needs zeroes.
    pub fn create_with(
        spec: &DeviceSpec,
        size: ByteCount,
        sparse: bool,
        mode: OpenMode,
        progress: FillProgress<'_>,
    ) -> Result<Self, DeviceOpenError> {
        let path = spec.target();
        if is_among_devices(&path) {
            return Err(DeviceOpenError::Missing { path });
        }
        let fresh = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        let file = fresh.map_err(|source| match source.kind() {
            io::ErrorKind::AlreadyExists => DeviceOpenError::Exists { path: path.clone() },
            _ => DeviceOpenError::Open { path: path.clone(), source },
        })?;
        let reserved = reserve(&file, &path, size, sparse, progress);
        let opened = reserved.and_then(|()| Self::open(spec, mode));
        if opened.is_err() {
            // The file is ours and holds nothing; leaving it would block the next attempt.
            let _ = std::fs::remove_file(&path);
        }
        opened
    }

    /// Makes a regular file at least `size` bytes long, with every one of these bytes reserved;
    /// `sparse` leaves that out. Block devices have the size they have: the request is ignored.
    pub fn grow(&mut self, size: ByteCount, sparse: bool) -> Result<(), DeviceOpenError> {
        self.grow_with(size, sparse, &mut |_| ())
    }

    /// Grows the device, and reports the number of zeroes that are stored, where it needs zeroes.
    pub fn grow_with(
        &mut self,
        size: ByteCount,
        sparse: bool,
        progress: FillProgress<'_>,
    ) -> Result<(), DeviceOpenError> {
        if self.kind == DeviceKind::File && (self.size < size || !sparse) {
            reserve(&self.file, &self.path, size, sparse, progress)?;
            self.size = self.size.max(size);
        }
        Ok(())
    }

    fn describe(
        file: File,
        path: PathBuf,
        kind: DeviceKind,
        direct: bool,
    ) -> Result<Self, DeviceOpenError> {
        let size_error = |source| DeviceOpenError::Size { path: path.clone(), source };
        let (size, logical_block) = match kind {
            DeviceKind::File => (file.metadata().map_err(size_error)?.len(), ALIGNMENT as u32),
            DeviceKind::Block => block_geometry(&file).map_err(size_error)?,
        };
        if logical_block as usize > ALIGNMENT {
            return Err(DeviceOpenError::Block { path, block: logical_block });
        }
        let (size, claim, latch) = (ByteCount(size), None, Latch::default());
        Ok(Self { file, path, kind, size, logical_block, direct, claim, latch })
    }

    /// Opens the device once more, for a second data path, which knows of failures on the first.
    pub fn try_clone(&self) -> io::Result<Self> {
        let (file, path) = (self.file.try_clone()?, self.path.clone());
        let (claim, latch) = (self.claim.clone(), self.latch.clone());
        Ok(Self { file, path, claim, latch, ..*self })
    }

    /// The failure that all data paths to it know of.
    pub(super) fn latch(&self) -> &Latch {
        &self.latch
    }

    /// The open file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the kind.
    pub fn kind(&self) -> DeviceKind {
        self.kind
    }

    /// Returns the capacity in bytes.
    pub fn size(&self) -> ByteCount {
        self.size
    }

    /// The smallest unit it reads and writes, in bytes.
    pub fn logical_block(&self) -> u32 {
        self.logical_block
    }

    /// Returns whether the page cache is bypassed.
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// Returns whether a completed write may still be lost when the power goes. That is so through
    /// the page cache, and for every regular file, whatever its disk: the file system has its own
    /// record to write before what was written into reserved space can be read back.
    pub fn has_volatile_cache(&self) -> bool {
        match self.kind {
            DeviceKind::Block if self.direct => has_write_cache(&self.file),
            DeviceKind::Block | DeviceKind::File => true,
        }
    }

    /// Returns the number of write streams (Linux 6.16) that a write past the page cache may name:
    /// the placement handles of a namespace with Flexible Data Placement. Partitions have none.
    pub(in crate::path) fn write_streams(&self) -> u8 {
        match self.kind {
            DeviceKind::Block if self.direct => {
                shown(&self.file).map_or(0, |shown| write_streams_of(&shown))
            }
            DeviceKind::Block | DeviceKind::File => 0,
        }
    }

    /// Returns whether the device is a namespace that other machines can reach, too: the kernel has
    /// it over a fabric.
    pub fn is_remote(&self) -> bool {
        self.kind == DeviceKind::Block
            && shown(&self.file).is_ok_and(|shown| is_over_a_fabric(&shown))
    }
}

impl DeviceCapabilities {
    /// Returns the identity of `device`.
    pub fn of(device: &Device) -> Self {
        Self {
            name: device.path.display().to_string(),
            size: device.size,
            logical_block: device.logical_block,
            direct: device.direct,
            volatile_cache: device.has_volatile_cache(),
            // The blocks of a file are its reservation: giving them back would let writes run out
            // of space later.
            deallocate: device.kind == DeviceKind::Block,
            placement_handles: 0,
        }
    }
}

/// The mode of `fallocate` that does `action`. On block devices it becomes the device's own
/// command.
pub(super) fn fallocate_mode(kind: DeviceKind, action: &Action) -> i32 {
    let punch = kind == DeviceKind::Block && matches!(action, Action::Deallocate);
    let what = if punch { libc::FALLOC_FL_PUNCH_HOLE } else { libc::FALLOC_FL_ZERO_RANGE };
    what | libc::FALLOC_FL_KEEP_SIZE
}

fn open_error(path: &Path, source: io::Error) -> DeviceOpenError {
    let path = path.to_path_buf();
    match source.raw_os_error() {
        Some(libc::ENOENT) => DeviceOpenError::Missing { path },
        Some(libc::EBUSY) => DeviceOpenError::InUse { path },
        // The only flag that a file system may reject as invalid is O_DIRECT.
        Some(libc::EINVAL) => DeviceOpenError::NoDirect { path },
        _ => DeviceOpenError::Open { path, source },
    }
}

fn kind_of(path: &Path, found: std::fs::FileType) -> Result<DeviceKind, DeviceOpenError> {
    let found = match found {
        it if it.is_file() => return Ok(DeviceKind::File),
        it if it.is_block_device() => return Ok(DeviceKind::Block),
        it if it.is_char_device() => "a character device",
        it if it.is_fifo() => "a pipe",
        it if it.is_socket() => "a socket",
        _ => "a directory",
    };
    Err(DeviceOpenError::Kind { path: path.into(), found })
}

/// Returns whether a file of this name would lie beside the nodes of devices, in memory of the
/// kernel: in `/dev`, but not in what is mounted below it, as `/dev/shm` is.
fn is_among_devices(path: &Path) -> bool {
    let file_system = |path: &Path| path.metadata().map(|it| it.dev()).ok();
    let folder = path.parent().and_then(|folder| folder.canonicalize().ok());
    folder.is_some_and(|folder| {
        folder.starts_with("/dev") && file_system(&folder) == file_system(Path::new("/dev"))
    })
}

/// Returns whether a block device that the kernel shows here has a controller that is reached over
/// a fabric.
fn is_over_a_fabric(shown: &Path) -> bool {
    let transport = |controller: &PathBuf| std::fs::read_to_string(controller.join("transport"));
    controllers_of(shown).iter().filter_map(|it| transport(it).ok()).any(|it| it.trim() != "pcie")
}

/// Returns the sysfs directories of the NVMe controllers of a block device, given the device's own:
/// several lead to a namespace that they share.
pub fn controllers_of(shown: &Path) -> Vec<PathBuf> {
    let is_controller = |it: &PathBuf| it.join("transport").exists();
    let among = |above: &Path| -> Vec<PathBuf> {
        // Controllers have a `subsysnqn`, too.
        if is_controller(&above.into()) {
            return vec![above.into()];
        }
        // Namespaces that several controllers may have are shown beneath their subsystem, which
        // links to these.
        if !above.join("subsysnqn").exists() {
            return Vec::new();
        }
        let entries = std::fs::read_dir(above).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).filter(is_controller).collect()
    };
    let found = shown.ancestors().skip(1).take(3).map(among).find(|found| !found.is_empty());
    found.unwrap_or_default()
}

/// Returns the sysfs directory of an open block device.
pub(super) fn shown(file: &File) -> io::Result<PathBuf> {
    let number = file.metadata()?.rdev();
    let link = format!("/sys/dev/block/{}:{}", libc::major(number), libc::minor(number));
    std::fs::canonicalize(link)
}

/// Returns whether the block device says that it has a volatile write cache. So it counts where it
/// does not say.
fn has_write_cache(file: &File) -> bool {
    !shown(file).is_ok_and(|shown| says_write_through(&shown))
}

/// Returns whether what the kernel shows of a block device in this directory says that it has no
/// volatile cache.
fn says_write_through(shown: &Path) -> bool {
    // A partition has no queue of its own; its disk is the directory above.
    let queues = ["queue/write_cache", "../queue/write_cache"];
    let said = queues.iter().find_map(|queue| std::fs::read_to_string(shown.join(queue)).ok());
    said.is_some_and(|said| said.trim() == "write through")
}

/// Returns the number of write streams of the block device that the kernel shows in this directory.
fn write_streams_of(shown: &Path) -> u8 {
    let said = std::fs::read_to_string(shown.join("queue/max_write_streams"));
    let streams = said.ok().and_then(|said| said.trim().parse::<u64>().ok()).unwrap_or(0);
    // A submission names a stream in 8 bits.
    streams.min(u8::MAX.into()) as u8
}

/// The size in bytes and the logical block size of a block device.
fn block_geometry(file: &File) -> io::Result<(u64, u32)> {
    /// `BLKGETSIZE64` of `<linux/fs.h>`: `_IOR(0x12, 114, size_t)`.
    const BLKGETSIZE64: libc::c_ulong = 0x8008_1272;
    /// `BLKSSZGET` of `<linux/fs.h>`: `_IO(0x12, 104)`.
    const BLKSSZGET: libc::c_ulong = 0x1268;
    let (mut size, mut block) = (0_u64, 0_i32);
    // SAFETY: both requests write one integer of exactly this type to a live local.
    let returned = unsafe {
        [
            libc::ioctl(file.as_raw_fd(), BLKGETSIZE64 as _, &raw mut size),
            libc::ioctl(file.as_raw_fd(), BLKSSZGET as _, &raw mut block),
        ]
    };
    if returned.contains(&-1) {
        return Err(io::Error::last_os_error());
    }
    let block = u32::try_from(block).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
    Ok((size, block))
}
