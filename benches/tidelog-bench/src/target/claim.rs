//! Locks on what is written raw, so that no other run, and no pool, takes it for blank meanwhile.

use std::fmt;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, Flock, FlockArg, fcntl};
use tidelog_engine::path::{Device, DeviceKind};

use crate::exit::BenchError;

/// A device or file that is this run's as long as this lives.
///
/// Two locks, since each does what the other cannot: one of whole files, whose owner the kernel names to everybody,
/// and one of byte ranges, which pools also take. Both are lost with the process, however it ends.
#[derive(Debug)]
pub(super) struct Claim {
    _whole: Flock<File>,
}

impl Claim {
    /// Takes an open device for this process.
    ///
    /// # Errors
    /// Another process has it.
    pub(super) fn take(device: &Device) -> Result<Self, BenchError> {
        let path = device.path();
        let failed = |source: std::io::Error| BenchError::System {
            what: format!("{}: cannot lock it", path.display()),
            source,
        };
        let held = || BenchError::Held {
            path: path.to_path_buf(),
            holder: device.file().metadata().ok().and_then(|it| Holder::of(&it)),
        };
        let file = device.file().try_clone().map_err(failed)?;
        let whole = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(whole) => whole,
            Err((_, Errno::EAGAIN)) => return Err(held()),
            Err((_, error)) => return Err(failed(error.into())),
        };
        if device.kind() == DeviceKind::File {
            match fcntl(device.file(), FcntlArg::F_OFD_SETLK(&all_bytes())) {
                Ok(_) => {}
                Err(Errno::EAGAIN | Errno::EACCES) => return Err(held()),
                Err(error) => return Err(failed(error.into())),
            }
        }
        Ok(Self { _whole: whole })
    }
}

/// A write lock of a file from its first byte on.
fn all_bytes() -> nix::libc::flock {
    nix::libc::flock {
        l_type: nix::libc::F_WRLCK as nix::libc::c_short,
        l_whence: nix::libc::SEEK_SET as nix::libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    }
}

/// The process that has something locked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    process: u32,
    command: String,
}

impl Holder {
    /// Who holds the file at a path, where the kernel tells.
    pub(super) fn at(path: &Path) -> Option<Self> {
        fs::metadata(path).ok().and_then(|it| Self::of(&it))
    }

    fn of(metadata: &fs::Metadata) -> Option<Self> {
        let process =
            owner(&fs::read_to_string("/proc/locks").ok()?, metadata.dev(), metadata.ino())?;
        let command =
            fs::read_to_string(PathBuf::from(format!("/proc/{process}/comm"))).unwrap_or_default();
        Some(Self { process, command: command.trim_end().to_owned() })
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "process {} ({})", self.process, self.command)
    }
}

/// The owner of a lock of a whole file, of the kernel's list: `1: FLOCK ADVISORY WRITE 1234 fe:00:99 0 EOF`.
fn owner(locks: &str, device: u64, inode: u64) -> Option<u32> {
    let (major, minor) = (nix::sys::stat::major(device), nix::sys::stat::minor(device));
    let place = format!("{major:02x}:{minor:02x}:{inode}");
    locks.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [_, "FLOCK", _, "WRITE", process, at, ..] if at == place => process.parse().ok(),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_list_names_the_owner() {
        let locks = "1: POSIX  ADVISORY  WRITE 11 fe:00:99 0 EOF\n2: FLOCK  ADVISORY  WRITE 12 fe:00:98 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 14 fe:00:99 0 EOF\n3: FLOCK  ADVISORY  WRITE 13 fe:00:99 0 EOF\n";
        let device = nix::sys::stat::makedev(0xfe, 0);
        assert_eq!(
            owner(locks, device, 99),
            Some(13),
            "not a lock of bytes, not another file, not who waits"
        );
        assert_eq!(owner(locks, device, 97), None);
        assert_eq!(owner("", device, 99), None);
    }
}
