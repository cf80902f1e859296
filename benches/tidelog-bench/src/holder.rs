//! Holder of a file's lock, by the kernel's list.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The process that has something locked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockHolder {
    process: u32,
    command: String,
}

impl LockHolder {
    /// Returns the holder of the file at a path, where the kernel tells.
    pub fn at(path: &Path) -> Option<Self> {
        fs::metadata(path).ok().and_then(|it| Self::of(&it))
    }

    /// Returns the holder of the file that this describes.
    pub fn of(metadata: &fs::Metadata) -> Option<Self> {
        let process =
            owner(&fs::read_to_string("/proc/locks").ok()?, metadata.dev(), metadata.ino())?;
        let command =
            fs::read_to_string(PathBuf::from(format!("/proc/{process}/comm"))).unwrap_or_default();
        Some(Self { process, command: command.trim_end().to_owned() })
    }
}

impl fmt::Display for LockHolder {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "process {} ({})", self.process, self.command)
    }
}

/// The owner of a lock of a whole file, of the kernel's list: `1: FLOCK ADVISORY WRITE 1234
/// fe:00:99 0 EOF`.
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
