//! The lock on a share: a byte range of every device file, held by an open file description.
//!
//! The operating system drops it with the last descriptor, however the process ends, so a lock is never
//! stale. Whole shares are what is locked: byte `SHARE_LOCKS_OFFSET + share`, far behind any device's end. A child of fork
//! has a copy of the descriptor, with which the lock would live on: so whoever took it also gives it back by name.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, FcntlArg, PosixFadviseAdvice, fallocate, fcntl, posix_fadvise};

use crate::layout::{BLOCK_BYTES, HOLDERS_OFFSET, Holder, SHARES_MAX};
use crate::memory::process;
use crate::path::DeviceIdentity;
use crate::path::device::blank::first_byte_set;
use crate::path::device::users::SHARE_LOCKS_OFFSET;

/// How long a refused opener waits for the holder to have written its name.
const NAME_WAIT: Duration = Duration::from_millis(200);

/// Which shares to lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shares {
    One(u32),
    /// All there can be: for formatting.
    All,
}

/// Whether a lock keeps out everybody or only those who write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sharing {
    Alone,
    WithReaders,
}

/// Why a lock was not given.
#[derive(Debug)]
pub(super) enum LockError {
    /// Another process (or another handle in this one) holds it.
    Held { path: PathBuf, holder: Option<Holder> },
    /// The file could not be opened or locked.
    System { path: PathBuf, source: io::Error },
}

/// A locked device file. Dropping it gives the lock back.
#[derive(Debug)]
pub(super) struct LockedFile {
    file: File,
    /// The process that took the lock.
    owner: u32,
}

impl LockedFile {
    /// Opens the device and locks the shares on it.
    pub(super) fn acquire(path: &Path, shares: Shares) -> Result<Self, LockError> {
        let system = |source| LockError::System { path: path.into(), source };
        let file = File::options().read(true).write(true).open(path).map_err(system)?;
        let this = Self::of(file);
        this.lock(path, shares, Sharing::Alone)?;
        Ok(this)
    }

    /// Opens the device for reading only, whoever writes it meanwhile.
    pub(super) fn open_to_read(path: &Path) -> Result<Self, LockError> {
        let file = File::open(path);
        file.map(Self::of).map_err(|source| LockError::System { path: path.into(), source })
    }

    /// Keeps writers out of a further share.
    pub(super) fn also_to_read(self, path: &Path, share: u32) -> Result<Self, LockError> {
        self.lock(path, Shares::One(share), Sharing::WithReaders)?;
        Ok(self)
    }

    fn of(file: File) -> Self {
        Self { file, owner: process::id() }
    }

    fn lock(&self, path: &Path, shares: Shares, sharing: Sharing) -> Result<(), LockError> {
        match fcntl(&self.file, FcntlArg::F_OFD_SETLK(&range(shares, sharing))) {
            Ok(_) => Ok(()),
            Err(Errno::EAGAIN | Errno::EACCES) => {
                Err(LockError::Held { path: path.into(), holder: find_holder(&self.file, shares) })
            }
            Err(errno) => Err(LockError::System { path: path.into(), source: errno.into() }),
        }
    }

    /// Gives back all that is locked by this descriptor and its copies.
    fn unlock(&self) -> nix::Result<()> {
        let all = range(Shares::All, Sharing::Alone);
        let unlocked = nix::libc::flock { l_type: nix::libc::F_UNLCK as i16, ..all };
        fcntl(&self.file, FcntlArg::F_OFD_SETLK(&unlocked)).map(drop)
    }

    /// Whether somebody else has this share open now, and the name on the door.
    pub(super) fn holder(&self, share: u32) -> (bool, Option<Holder>) {
        let mut found = range(Shares::One(share), Sharing::Alone);
        let asked = fcntl(&self.file, FcntlArg::F_OFD_GETLK(&mut found));
        let held = asked.is_ok() && found.l_type != nix::libc::F_UNLCK as i16;
        let mut block = [0; BLOCK_BYTES as usize];
        let read = self.file.read_exact_at(&mut block, holder_offset(share));
        (held, read.ok().and_then(|()| Holder::decode(&block, share)))
    }

    /// Whether somebody else has any share open now.
    pub(super) fn is_held(&self) -> bool {
        let mut found = range(Shares::All, Sharing::Alone);
        let asked = fcntl(&self.file, FcntlArg::F_OFD_GETLK(&mut found));
        asked.is_ok() && found.l_type != nix::libc::F_UNLCK as i16
    }

    /// Gives the locks back, then tries for all of them: whether nobody else has one. Of several that leave at once the
    /// last one finds itself alone.
    pub(super) fn is_last_user(&self) -> bool {
        let all = range(Shares::All, Sharing::Alone);
        self.unlock().is_ok() && fcntl(&self.file, FcntlArg::F_OFD_SETLK(&all)).is_ok()
    }

    /// What is locked.
    pub(super) fn identity(&self) -> io::Result<DeviceIdentity> {
        Ok(DeviceIdentity::of(&self.file.metadata()?))
    }

    /// Reads through the page cache; the lock's file is also how superblocks are probed before a data
    /// path is open.
    pub(super) fn read(&self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        self.forget(offset, length)?;
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }

    /// The first byte that is not zero, of those that tell whether a device of this size is blank.
    pub(super) fn first_byte_set(&self, size: u64) -> io::Result<Option<u64>> {
        self.forget(0, 0)?;
        first_byte_set(&self.file, size)
    }

    /// Drops what the page cache has of these bytes (of no length: of all): what NVMe commands wrote past the kernel's block layer (the data
    /// path uring-cmd) did not go by it.
    fn forget(&self, offset: u64, length: usize) -> io::Result<()> {
        let cannot = |_| io::Error::from(io::ErrorKind::InvalidInput);
        let (offset, length) =
            (i64::try_from(offset).map_err(cannot)?, i64::try_from(length).map_err(cannot)?);
        let advice = PosixFadviseAdvice::POSIX_FADV_DONTNEED;
        Ok(posix_fadvise(&self.file, offset, length, advice)?)
    }

    /// Writes through the page cache, and puts it on the medium.
    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)?;
        self.file.sync_data()
    }

    /// Tells the device that nobody needs these bytes any more; they read as zeroes afterwards.
    pub(super) fn deallocate(&self, offset: u64, length: u64) -> io::Result<()> {
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
        // The lock is one, whoever has a copy of the descriptor: a child would take it from its parent. Where this fails, the
        // lock goes with the last copy.
        if self.owner == process::id() {
            let _ = self.unlock();
        }
    }
}

/// The name on the door of a share, on a device that `read` reads.
#[cfg(feature = "spdk")]
pub(super) fn last_holder(
    share: u32,
    read: impl FnOnce(u64, usize) -> io::Result<Vec<u8>>,
) -> Option<Holder> {
    let block = read(holder_offset(share), BLOCK_BYTES as usize).ok()?;
    Holder::decode(&block, share)
}

fn range(shares: Shares, sharing: Sharing) -> nix::libc::flock {
    let (first, count) = match shares {
        Shares::One(share) => (share, 1),
        Shares::All => (0, SHARES_MAX),
    };
    let kind = match sharing {
        Sharing::Alone => nix::libc::F_WRLCK,
        Sharing::WithReaders => nix::libc::F_RDLCK,
    };
    nix::libc::flock {
        l_type: kind as i16,
        l_whence: nix::libc::SEEK_SET as i16,
        l_start: SHARE_LOCKS_OFFSET + i64::from(first),
        l_len: i64::from(count),
        l_pid: 0,
    }
}

/// Where the door of a share is.
pub(super) fn holder_offset(share: u32) -> u64 {
    HOLDERS_OFFSET + u64::from(share) * BLOCK_BYTES
}

/// The recorded holder, once a living process stands there: right after the lock was taken the record
/// may still be the last holder's, or none.
fn find_holder(file: &File, shares: Shares) -> Option<Holder> {
    let deadline = Instant::now() + NAME_WAIT;
    let candidates = match shares {
        Shares::One(share) => share..share + 1,
        Shares::All => 0..SHARES_MAX,
    };
    loop {
        let mut block = [0; BLOCK_BYTES as usize];
        for share in candidates.clone() {
            let read = file.read_exact_at(&mut block, holder_offset(share));
            let holder = read.ok().and_then(|()| Holder::decode(&block, share));
            if let Some(holder) = holder.filter(is_alive) {
                return Some(holder);
            }
        }
        if Instant::now() >= deadline {
            // A record of a dead process would only mislead: some child it forked may hold the lock.
            return None;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn is_alive(holder: &Holder) -> bool {
    Path::new(&format!("/proc/{}", holder.process)).exists()
}

/// This process's name for the door.
pub(super) fn this_process() -> Holder {
    let command = std::fs::read("/proc/self/cmdline").unwrap_or_default();
    let command = String::from_utf8_lossy(&command).replace('\0', " ");
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    Holder { process: std::process::id(), command: command.trim_end().to_owned(), since }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Events;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("tidelog-{}-{name}", std::process::id()));
            File::create(&path).unwrap().set_len(1 << 20).unwrap();
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    #[test]
    fn a_held_share_names_its_holder_and_other_shares_stay_open_to_others() {
        let device = Scratch::new("lock");
        let held = LockedFile::acquire(&device.0, Shares::One(1)).unwrap();
        held.write(holder_offset(1), &this_process().encode(1, 1, Events::NONE)).unwrap();
        let other = LockedFile::acquire(&device.0, Shares::One(2)).unwrap();
        for shares in [Shares::One(1), Shares::All] {
            match LockedFile::acquire(&device.0, shares) {
                Err(LockError::Held { holder: Some(holder), .. }) => {
                    assert_eq!(holder.process, std::process::id());
                    assert!(holder.command.contains("tidelog_engine"), "{}", holder.command);
                }
                other => panic!("{shares:?} was not refused with a name: {other:?}"),
            }
        }
        drop((held, other));
        LockedFile::acquire(&device.0, Shares::All).unwrap();
    }

    #[test]
    fn of_two_users_that_leave_the_last_one_is_alone() {
        let device = Scratch::new("last");
        let [first, last] =
            [0, 1].map(|it| LockedFile::acquire(&device.0, Shares::One(it)).unwrap());
        assert!(!first.is_last_user());
        assert!(last.is_last_user());
    }

    #[test]
    fn the_record_of_a_dead_process_names_nobody() {
        let device = Scratch::new("stale");
        let held = LockedFile::acquire(&device.0, Shares::One(0)).unwrap();
        let dead = Holder { process: u32::MAX, command: "gone".into(), since: 1 };
        held.file.write_all_at(&dead.encode(1, 0, Events::NONE), holder_offset(0)).unwrap();
        let refused = LockedFile::acquire(&device.0, Shares::One(0));
        assert!(matches!(refused, Err(LockError::Held { holder: None, .. })));
    }
}
