//! The space of a regular file: reserved on its file system, so that no write runs out of it later.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

use super::{DeviceIdentity, DeviceOpenError};
use crate::memory::ALIGNMENT;
use crate::units::ByteCount;

/// Zeroes in one write.
const CHUNK_BYTES: u64 = 1 << 20;

/// Callback for zeroes that are being stored: how many bytes are done.
pub type FillProgress<'a> = &'a mut dyn FnMut(ByteCount);

/// Extends a file to `size` bytes, each of which has a place on its file system unless it is to be
/// sparse. A file system that cannot reserve (ext3, vfat, many that are mounted by FUSE or over a
/// network) is given zeroes to store, of which `progress` is told. Where it fails the file has its
/// old length.
pub(super) fn reserve(
    file: &File,
    path: &Path,
    size: ByteCount,
    sparse: bool,
    progress: FillProgress<'_>,
) -> Result<(), DeviceOpenError> {
    let done = if sparse {
        file.set_len(size.0)
    } else {
        match allocate(file, size) {
            Err(error) if is_unsupported(&error) => return fill(file, path, size, progress),
            answer => answer,
        }
    };
    done.map_err(|source| DeviceOpenError::Reserve { path: path.into(), size, source })
}

fn allocate(file: &File, size: ByteCount) -> io::Result<()> {
    let length = libc::off_t::try_from(size.0).map_err(|_| io::ErrorKind::FileTooLarge)?;
    loop {
        // SAFETY: no memory arguments; the descriptor is open for the call.
        if unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, length) } == 0 {
            return Ok(());
        }
        match io::Error::last_os_error() {
            // Reserving a large file takes a while, in which a signal may come.
            error if error.kind() == io::ErrorKind::Interrupted => {}
            error => return Err(error),
        }
    }
}

fn is_unsupported(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS))
}

/// Has a file system that cannot reserve space store zeroes wherever nothing else is.
fn fill(
    file: &File,
    path: &Path,
    size: ByteCount,
    progress: FillProgress<'_>,
) -> Result<(), DeviceOpenError> {
    let failed = |source| DeviceOpenError::Reserve { path: path.into(), size, source };
    let before = file.metadata().map_err(failed)?;
    // Once more, by way of the page cache: the length of a file need not be one of whole blocks.
    let opened = File::options().read(true).write(true).open(path).map_err(failed)?;
    let after = opened.metadata().map_err(failed)?;
    if DeviceIdentity::of(&after) != DeviceIdentity::of(&before) {
        return Err(DeviceOpenError::Changed { path: path.into() });
    }
    fill_up_to(&opened, size.0, progress).map_err(|source| {
        if before.len() < size.0 {
            // The first failure is told; what is too long then holds nothing.
            let _ = opened.set_len(before.len());
        }
        failed(source)
    })
}

fn fill_up_to(file: &File, size: u64, progress: FillProgress<'_>) -> io::Result<()> {
    // Its whole length first: what is left where this is interrupted is as large as was asked for.
    if file.metadata()?.len() < size {
        file.set_len(size)?;
    }
    let mut chunk = vec![0; CHUNK_BYTES as usize];
    for start in (0..size).step_by(CHUNK_BYTES as usize) {
        let chunk = &mut chunk[..CHUNK_BYTES.min(size - start) as usize];
        file.read_exact_at(chunk, start)?;
        fill_chunk(file, start, chunk)?;
        progress(ByteCount(start + chunk.len() as u64));
    }
    // Only now do all file systems say whether they had room.
    file.sync_data()?;
    // Nobody reads them soon.
    let _ = posix_fadvise(file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
    Ok(())
}

/// Writes the zeroes that were read once more: there may be nothing behind them. A block that holds
/// anything has a place.
fn fill_chunk(file: &File, start: u64, chunk: &[u8]) -> io::Result<()> {
    let is_zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    if is_zero(chunk) {
        return file.write_all_at(chunk, start);
    }
    let blocks = (start..).step_by(ALIGNMENT).zip(chunk.chunks(ALIGNMENT));
    blocks
        .filter(|(_, block)| is_zero(block))
        .try_for_each(|(at, block)| file.write_all_at(block, at))
}

/// Returns advice for an error of reservation; begins with a separator where there is anything.
pub(super) fn help(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => {
            "; take less, free some, or make the pool of sparse files, in which a write fails when the \
             file system is full"
        }
        Some(libc::EFBIG) => {
            "; the file system, or a limit of this process (ulimit -f), has no file that is so long: \
             take less of each device"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use crate::path::tests::Directory;

    #[test]
    fn zeroes_take_the_place_of_holes_and_of_nothing_else() {
        let directory = Directory::new();
        let path = directory.path().join("file");
        let data = vec![7; 5000];
        std::fs::write(&path, &data).unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        // Neither the end of the data nor that of the file lies on a block.
        let size = 3 * CHUNK_BYTES + 100;
        let mut told = Vec::new();
        fill(&file, &path, ByteCount(size), &mut |done| told.push(done.0)).unwrap();
        assert_eq!(
            told,
            [1, 2, 3].map(|it| it * CHUNK_BYTES).into_iter().chain([size]).collect::<Vec<_>>()
        );
        let stored = file.metadata().unwrap();
        assert_eq!(stored.len(), size);
        assert!(stored.blocks() * 512 >= size, "{} blocks", stored.blocks());
        let found = std::fs::read(&path).unwrap();
        assert!(found.starts_with(&data) && found[data.len()..].iter().all(|byte| *byte == 0));
        // What is longer stays so.
        fill(&file, &path, ByteCount(CHUNK_BYTES), &mut |_| ()).unwrap();
        assert_eq!(file.metadata().unwrap().len(), size);
    }

    #[test]
    fn only_a_lack_of_the_call_is_made_good_by_zeroes() {
        let of = io::Error::from_raw_os_error;
        assert!(is_unsupported(&of(libc::EOPNOTSUPP)) && is_unsupported(&of(libc::ENOSYS)));
        for errno in [libc::ENOSPC, libc::EDQUOT, libc::EIO, libc::EFBIG, libc::EPERM, libc::EINVAL]
        {
            assert!(!is_unsupported(&of(errno)), "{errno}");
        }
    }
}
