//! The log of a disk's writes and flushes, in the order in which they completed. So that what
//! stands before a flush is what was complete when the disk began it, the machine gives it flushes
//! one at a time (a single queue) and does them at once (`cache.no-flush`): nothing completes while
//! one is under way. The format is that of Linux's dm-log-writes
//! (Documentation/admin-guide/device-mapper/log-writes.rst), which QEMU writes, too.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

const MAGIC: u64 = 0x006a_7366_7773_6872;
const FLUSH: u64 = 1;
const FUA: u64 = 1 << 1;
const DISCARD: u64 = 1 << 2;

/// One completed request.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Offset in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// True if all earlier entries are on the medium.
    pub flush: bool,
    /// True if the entry itself is on the medium.
    pub fua: bool,
    /// The bytes are of no use to anybody any more.
    pub discard: bool,
    /// Offset of the data in the log.
    data: u64,
}

/// An open log.
#[derive(Debug)]
pub struct WriteLog {
    file: File,
    /// Entries of the log.
    pub entries: Vec<Entry>,
}

impl WriteLog {
    /// Reads the entries.
    ///
    /// # Errors
    /// The file is none, or cannot be read.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let of_none = |error| {
            let why = "the disk recorded nothing, or the machine did not come to its end";
            io::Error::other(format!("{}: no log: {error}; {why}", path.display()))
        };
        let [magic, _version, count, sector] = words(&file, 0).map_err(of_none)?;
        if magic != MAGIC {
            return Err(io::Error::other(format!("{} is no log of writes", path.display())));
        }
        let sector = sector & u64::from(u32::MAX);
        let mut at = sector;
        let mut entries = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let [first, sectors, flags, _data_length] = words(&file, at)?;
            let discard = flags & DISCARD != 0;
            let (offset, length, data) = (first * sector, sectors * sector, at + sector);
            let (flush, fua) = (flags & FLUSH != 0, flags & FUA != 0);
            entries.push(Entry { offset, length, flush, fua, discard, data });
            at = data + if discard { 0 } else { length };
        }
        Ok(Self { file, entries })
    }

    /// Returns the data of an entry; zeroes for what it discarded.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn data(&self, entry: &Entry) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; entry.length as usize];
        if !entry.discard {
            self.file.read_exact_at(&mut bytes, entry.data)?;
        }
        Ok(bytes)
    }
}

/// Four little-endian words.
fn words(file: &File, offset: u64) -> io::Result<[u64; 4]> {
    let mut bytes = [0; 32];
    file.read_exact_at(&mut bytes, offset)?;
    let (words, _) = bytes.as_chunks::<8>();
    Ok(std::array::from_fn(|index| u64::from_le_bytes(words[index])))
}
