//! The lock on shares of a pool: a byte range of every device file, held by an open file
//! description.
//!
//! The operating system drops it with the last descriptor, however the process ends, so a lock is
//! never stale. Whole shares are what is locked: byte `SHARE_LOCKS_OFFSET + share`, far behind any
//! device's end. A child of fork has a copy of the descriptor, with which the lock would live on:
//! so whoever took it also gives it back by name.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, FcntlArg, PosixFadviseAdvice, fallocate, fcntl, posix_fadvise};

use super::DeviceIdentity;
use super::blank::{Leftover, first_byte_set};
use super::users::SHARE_LOCKS_OFFSET;
use crate::memory::process;
use crate::path::member::MemberError;

/// Sharing of a lock: none, or with other readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sharing {
    Alone,
    WithReaders,
}

/// A locked device file. Dropping it gives the lock back.
#[derive(Debug)]
pub(in crate::path) struct LockedFile {
    file: File,
    /// The process that took the lock.
    owner: u32,
}

impl LockedFile {
    /// Opens the device and locks the shares on it.
    pub(in crate::path) fn acquire(path: &Path, shares: Range<u32>) -> Result<Self, MemberError> {
        let system = |source| MemberError::Lock { path: path.into(), source };
        let file = File::options().read(true).write(true).open(path).map_err(system)?;
        let this = Self::of(file);
        this.lock(path, shares, Sharing::Alone)?;
        Ok(this)
    }

    /// Opens the device for reading only, whoever writes it meanwhile.
    pub(in crate::path) fn open_to_read(path: &Path) -> Result<Self, MemberError> {
        let file = File::open(path);
        file.map(Self::of).map_err(|source| MemberError::Lock { path: path.into(), source })
    }

    /// Keeps writers out of a further share.
    pub(in crate::path) fn also_to_read(
        self,
        path: &Path,
        share: u32,
    ) -> Result<Self, MemberError> {
        self.lock(path, share..share + 1, Sharing::WithReaders)?;
        Ok(self)
    }

    fn of(file: File) -> Self {
        Self { file, owner: process::id() }
    }

    fn lock(&self, path: &Path, shares: Range<u32>, sharing: Sharing) -> Result<(), MemberError> {
        let path = path.to_path_buf();
        match fcntl(&self.file, FcntlArg::F_OFD_SETLK(&range(&shares, sharing))) {
            Ok(_) => Ok(()),
            Err(Errno::EAGAIN | Errno::EACCES) => Err(MemberError::Locked { path, shares }),
            Err(errno) => Err(MemberError::Lock { path, source: errno.into() }),
        }
    }

    /// Gives back all that is locked by this descriptor and its copies.
    fn unlock(&self) -> nix::Result<()> {
        let all = lock_of_bytes(nix::libc::F_UNLCK, SHARE_LOCKS_OFFSET, 0);
        fcntl(&self.file, FcntlArg::F_OFD_SETLK(&all)).map(drop)
    }

    /// Returns whether somebody else has one of these shares locked now.
    pub(in crate::path) fn is_locked_elsewhere(&self, shares: &Range<u32>) -> bool {
        let mut found = range(shares, Sharing::Alone);
        let asked = fcntl(&self.file, FcntlArg::F_OFD_GETLK(&mut found));
        asked.is_ok() && found.l_type != nix::libc::F_UNLCK as i16
    }

    /// Gives the locks back, then tries for all of these: whether nobody else has one. Of several
    /// that leave at once the last one finds itself alone.
    pub(in crate::path) fn is_last_user(&self, shares: &Range<u32>) -> bool {
        let all = range(shares, Sharing::Alone);
        self.unlock().is_ok() && fcntl(&self.file, FcntlArg::F_OFD_SETLK(&all)).is_ok()
    }

    /// Returns the identity of the locked device.
    pub(in crate::path) fn identity(&self) -> io::Result<DeviceIdentity> {
        Ok(DeviceIdentity::of(&self.file.metadata()?))
    }

    /// Reads through the page cache; the lock's file is also how superblocks are probed before a
    /// data path is open.
    pub(in crate::path) fn read(&self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        self.forget(offset, length)?;
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }

    /// The first byte that is not zero, of those that tell whether a device of this size is blank.
    pub(in crate::path) fn first_byte_set(
        &self,
        size: u64,
        left: Leftover<'_>,
    ) -> io::Result<Option<u64>> {
        self.forget(0, 0)?;
        first_byte_set(&self.file, size, left)
    }

    /// Drops what the page cache has of these bytes (of no length: of all): what NVMe commands
    /// wrote past the kernel's block layer (the data path uring-cmd) did not go by it.
    fn forget(&self, offset: u64, length: usize) -> io::Result<()> {
        let cannot = |_| io::Error::from(io::ErrorKind::InvalidInput);
        let (offset, length) =
            (i64::try_from(offset).map_err(cannot)?, i64::try_from(length).map_err(cannot)?);
        let advice = PosixFadviseAdvice::POSIX_FADV_DONTNEED;
        Ok(posix_fadvise(&self.file, offset, length, advice)?)
    }

    /// Writes through the page cache, and puts it on the medium.
    pub(in crate::path) fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)?;
        self.file.sync_data()
    }

    /// Tells the device that nobody needs these bytes any more; they read as zeroes afterwards.
    pub(in crate::path) fn deallocate(&self, offset: u64, length: u64) -> io::Result<()> {
        let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        let (offset, length) = (i64::try_from(offset), i64::try_from(length));
        let (Ok(offset), Ok(length)) = (offset, length) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        Ok(fallocate(&self.file, flags, offset, length)?)
    }
}

impl Drop for LockedFile {
    fn drop(&mut self) {
        // The lock is one, whoever has a copy of the descriptor: a child would take it from its
        // parent. Where this fails, the lock goes with the last copy.
        if self.owner == process::id() {
            let _ = self.unlock();
        }
    }
}

fn range(shares: &Range<u32>, sharing: Sharing) -> nix::libc::flock {
    let kind = match sharing {
        Sharing::Alone => nix::libc::F_WRLCK,
        Sharing::WithReaders => nix::libc::F_RDLCK,
    };
    let start = SHARE_LOCKS_OFFSET + i64::from(shares.start);
    lock_of_bytes(kind, start, i64::from(shares.end - shares.start))
}

/// Returns the argument of `fcntl` for a lock (`F_RDLCK`, `F_WRLCK`, `F_UNLCK`) on `length` bytes
/// of a file. No length reaches as far as there are bytes.
pub fn lock_of_bytes(kind: nix::libc::c_int, start: i64, length: i64) -> nix::libc::flock {
    nix::libc::flock {
        l_type: kind as i16,
        l_whence: nix::libc::SEEK_SET as i16,
        l_start: start,
        l_len: length,
        l_pid: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn of_two_users_that_leave_the_last_one_is_alone() {
        let name = format!("tidelog-{}-last", std::process::id());
        let path: PathBuf = std::env::temp_dir().join(name);
        File::create(&path).unwrap().set_len(1 << 20).unwrap();
        let [first, last] = [0, 1].map(|it| LockedFile::acquire(&path, it..it + 1).unwrap());
        assert!(!first.is_last_user(&(0..2)));
        assert!(last.is_last_user(&(0..2)));
        std::fs::remove_file(&path).unwrap();
    }
}
