//! Users of a file or a block device besides this process, as the kernel reports them: names in its
//! tables may be of files that were renamed or unlinked, or of another mount namespace.

use std::fmt;
use std::fs::{DirEntry, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, Flock, FlockArg, fcntl};

use super::DeviceIdentity;
use super::lock::lock_of_bytes;

/// Offset of the locks on shares; no device reaches there, and others lock bytes before them.
pub const SHARE_LOCKS_OFFSET: i64 = 1 << 62;

/// Least time for which a use must persist. A process that is being started has its parent's
/// descriptors for a moment.
const TIMEOUT: Duration = Duration::from_millis(200);
/// Least time for which a block device must be locked by `flock`: udev does that while it looks at
/// one.
const TIMEOUT_OF_UDEV: Duration = Duration::from_secs(1);

/// Least time for which a file must be open for writing. What a process had open in a ring of the
/// kernel's is closed some time after it has ended.
const TIMEOUT_OF_RINGS: Duration = Duration::from_secs(2);

/// Use of a file or a block device by another program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceUse {
    /// The file is locked, as virtual machines have on their disks' images.
    Locked,
    /// The file is open for writing: a loop device of any mount namespace, a virtual machine, an
    /// export.
    OpenForWriting,
}

impl fmt::Display for DeviceUse {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "{}",
            match self {
                Self::Locked => "locked by another program",
                Self::OpenForWriting => "open for writing in another program, or behind a device",
            }
        )
    }
}

/// Returns the use of the file or block device at `path` by others, besides having a share of a
/// pool on it. Only what is sure is told: a file system may know no leases, and other users' files
/// have none to give.
///
/// # Errors
/// It cannot be opened.
pub fn other_use(path: &Path) -> io::Result<Option<DeviceUse>> {
    other_use_unless(path, || false)
}

/// Returns the use by others, unless who uses it `is_known` at some time meanwhile.
///
/// # Errors
/// It cannot be opened.
pub(crate) fn other_use_unless(
    path: &Path,
    is_known: impl Fn() -> bool,
) -> io::Result<Option<DeviceUse>> {
    lasting(|| {
        if is_known() {
            return Ok(None);
        }
        let locked = lock_on(File::open(path)?)?;
        if locked.is_some() {
            return Ok(locked);
        }
        let file = File::open(path)?;
        let is_open = file.metadata()?.is_file()
            && is_open_for_writing(&file)
            && !is_open_for_writing_here(&file)?;
        Ok(is_open.then_some((DeviceUse::OpenForWriting, TIMEOUT_OF_RINGS)))
    })
}

/// Returns the use of the file or block device at `path` by a lock of another program, besides a
/// share of a pool on it.
///
/// # Errors
/// It cannot be opened.
pub(crate) fn lock_of_others(path: &Path) -> io::Result<Option<DeviceUse>> {
    lasting(|| lock_on(File::open(path)?))
}

/// A use, and how long it must last to be one.
type Found = Option<(DeviceUse, Duration)>;

/// Returns a finding that persists for as long as it must.
fn lasting(look: impl Fn() -> io::Result<Found>) -> io::Result<Option<DeviceUse>> {
    let begun = Instant::now();
    loop {
        match look()? {
            None => return Ok(None),
            Some((found, timeout)) if begun.elapsed() >= timeout => return Ok(Some(found)),
            Some(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

fn lock_on(file: File) -> io::Result<Found> {
    let timeout = if file.metadata()?.is_file() { TIMEOUT } else { TIMEOUT_OF_UDEV };
    if is_range_locked(&file) {
        return Ok(Some((DeviceUse::Locked, TIMEOUT)));
    }
    Ok(is_locked_whole(file).then_some((DeviceUse::Locked, timeout)))
}

/// Returns whether somebody has a lock on bytes of it (POSIX's, or an open file description's).
fn is_range_locked(file: &File) -> bool {
    let mut found = lock_of_bytes(libc::F_WRLCK, 0, SHARE_LOCKS_OFFSET);
    let asked = fcntl(file, FcntlArg::F_OFD_GETLK(&mut found));
    asked.is_ok() && found.l_type != libc::F_UNLCK as i16
}

/// Returns whether somebody has it locked by `flock`, alone or with others.
fn is_locked_whole(file: File) -> bool {
    matches!(Flock::lock(file, FlockArg::LockExclusiveNonblock), Err((_, Errno::EAGAIN)))
}

/// Returns whether a regular file is open for writing, by a process or by the kernel itself. Such a
/// file has no read lease to give; who opens it for writing in the moment that we have one waits
/// for us.
fn is_open_for_writing(file: &File) -> bool {
    /// `F_SETSIG` of `<asm-generic/fcntl.h>`.
    const F_SETSIG: libc::c_int = 10;
    // A lease that is broken is told by a signal. One that ends no process takes the place of
    // SIGIO.
    // SAFETY: no memory arguments; the descriptor is open for the calls.
    let (leased, error) = unsafe {
        libc::fcntl(file.as_raw_fd(), F_SETSIG, libc::SIGURG);
        let leased = libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_RDLCK);
        let error = io::Error::last_os_error();
        libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK);
        (leased, error)
    };
    leased == -1 && error.kind() == io::ErrorKind::WouldBlock
}

/// Returns whether this process is one that can write the file: then nothing is known of others.
fn is_open_for_writing_here(file: &File) -> io::Result<bool> {
    let identity = DeviceIdentity::of(&file.metadata()?);
    let is_it = |entry: &DirEntry| {
        // Another thread may have closed it meanwhile.
        let found = std::fs::metadata(entry.path()).ok()?;
        let number = entry.file_name().to_str()?.parse().ok()?;
        // SAFETY: no memory arguments; a descriptor that is not open is an error.
        let flags = unsafe { libc::fcntl(number, libc::F_GETFL) };
        let writes = flags != -1 && flags & libc::O_ACCMODE != libc::O_RDONLY;
        Some(DeviceIdentity::of(&found) == identity && writes)
    };
    let mut open = std::fs::read_dir("/proc/self/fd")?.flatten();
    Ok(open.any(|entry| is_it(&entry).unwrap_or(false)))
}

/// File or device behind a loop device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoopBacking {
    /// The file or block device.
    pub identity: DeviceIdentity,
    /// Offset at which the loop device begins.
    pub offset: u64,
}

/// Returns the file or device behind an open loop device.
///
/// # Errors
/// It is no loop device, or has nothing behind it.
pub fn loop_backing(device: &File) -> io::Result<LoopBacking> {
    /// `LOOP_GET_STATUS64` of `<linux/loop.h>`.
    const LOOP_GET_STATUS64: libc::c_ulong = 0x4C05;
    /// `struct loop_info64`: device, inode, the device's number if it is one, offset, and what is
    /// of no interest here.
    type Status = [u64; 29];
    let mut status: Status = [0; 29];
    // SAFETY: the request writes one `struct loop_info64`, of 232 bytes, to a live local of that
    // size.
    let answer =
        unsafe { libc::ioctl(device.as_raw_fd(), LOOP_GET_STATUS64 as _, status.as_mut_ptr()) };
    if answer == -1 {
        return Err(io::Error::last_os_error());
    }
    let [file_system, inode, number, offset, ..] = status;
    Ok(LoopBacking { identity: DeviceIdentity::numbered(number, file_system, inode), offset })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// A file that goes when the test ends.
    struct Scratch(std::path::PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("tidelog-{}-{name}", std::process::id()));
            File::create(&path).unwrap().set_len(1 << 20).unwrap();
            Self(path)
        }

        fn writable(&self) -> File {
            File::options().read(true).write(true).open(&self.0).unwrap()
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    #[test]
    fn who_reads_a_file_does_not_use_it_and_who_may_write_it_does() {
        let scratch = Scratch::new("users-open");
        let reading = File::open(&scratch.0).unwrap();
        assert_eq!(other_use(&scratch.0).unwrap(), None);
        let ours = scratch.writable();
        assert_eq!(other_use(&scratch.0).unwrap(), None, "this process has it");
        let mut other = Command::new("sleep").arg("1000").stdout(ours).spawn().unwrap();
        let found = other_use(&scratch.0).unwrap();
        other.kill().unwrap();
        other.wait().unwrap();
        // File systems without leases cannot tell.
        assert!(matches!(found, Some(DeviceUse::OpenForWriting) | None), "{found:?}");
        drop(reading);
        assert_eq!(other_use(&scratch.0).unwrap(), None);
    }

    #[test]
    fn locks_of_both_kinds_are_seen_but_not_those_on_shares() {
        let scratch = Scratch::new("users-locks");
        let reading = File::open(&scratch.0).unwrap();
        let range = |start, length| lock_of_bytes(libc::F_RDLCK, start, length);
        fcntl(&reading, FcntlArg::F_OFD_SETLK(&range(SHARE_LOCKS_OFFSET, 4))).unwrap();
        assert_eq!(other_use(&scratch.0).unwrap(), None);
        // As QEMU locks the image of a disk: single bytes from 100 on.
        fcntl(&reading, FcntlArg::F_OFD_SETLK(&range(103, 1))).unwrap();
        assert_eq!(other_use(&scratch.0).unwrap(), Some(DeviceUse::Locked));
        drop(reading);
        let whole = File::open(&scratch.0).unwrap();
        let whole = Flock::lock(whole, FlockArg::LockSharedNonblock).unwrap();
        assert_eq!(other_use(&scratch.0).unwrap(), Some(DeviceUse::Locked));
        drop(whole);
        assert_eq!(other_use(&scratch.0).unwrap(), None);
    }

    #[test]
    fn a_lock_is_told_of_whoever_may_write_the_file() {
        let scratch = Scratch::new("users-open-lock");
        let writing = scratch.writable();
        assert_eq!(lock_of_others(&scratch.0).unwrap(), None);
        let locked = Flock::lock(writing, FlockArg::LockSharedNonblock).unwrap();
        assert_eq!(lock_of_others(&scratch.0).unwrap(), Some(DeviceUse::Locked));
        drop(locked);
        assert_eq!(lock_of_others(&scratch.0).unwrap(), None);
    }

    #[test]
    fn what_is_no_loop_device_has_nothing_behind_it() {
        let scratch = Scratch::new("users-loop");
        assert!(loop_backing(&scratch.writable()).is_err());
    }
}
