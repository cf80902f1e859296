//! True if a device is blank, as far as a few thousand reads can tell.
//!
//! Nobody reads a whole SSD before it is formatted. What counts is where something stands if
//! anything does: both ends; where partitioners put what they make first, since a file system
//! outlives the table that named it; where file systems keep spare copies of their superblocks,
//! since those outlive a cleared front; and samples between. Samples are not at equal distances:
//! file systems and partitions are, and would lie between all of them.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::unistd::{Whence, lseek};
use tidelog_random::Random;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Size of the front that is read whole.
const FRONT_BYTES: u64 = 16 * MIB;
/// Size of the end that is read whole: spare partition tables, RAID superblocks.
const BACK_BYTES: u64 = MIB;
/// Number of sampled blocks between them.
const SAMPLES: u64 = 1024;
/// The bytes of one sample.
const SAMPLE_BYTES: u64 = 4 * KIB;
/// Size of the part of a partition that has the superblocks of all file systems, volume managers
/// and RAIDs.
pub const START_BYTES: u64 = 72 * KIB;
/// One read.
const READ_BYTES: u64 = MIB;

/// Start of the first partition under DOS: behind the first track.
const FIRST_TRACK: u64 = 63 * 512;
/// Usual sizes in MiB of the partitions that come first: for firmware, boot loaders, kernels,
/// recovery.
const USUAL_MIB: [u64; 16] =
    [0, 15, 99, 100, 116, 199, 200, 260, 276, 300, 499, 500, 550, 600, 1075, 1624];
/// ext2, 3 and 4 keep spare superblocks in groups 1 and the powers of 3, 5 and 7, of 128 MiB each.
const SPARE_GROUPS: [u64; 9] = [1, 3, 5, 7, 9, 25, 27, 49, 81];

/// Returns probable starts of first partitions, as far as a device of this size reaches. They begin
/// at 1 MiB, at a power of two, and behind partitions of usual sizes.
pub fn partition_starts(size: u64) -> Vec<u64> {
    let powers = (1..64).map(|power| 1_u64 << power).filter(|start| *start >= MIB);
    let behind = |bytes: u64| bytes.checked_add(MIB);
    let usual = USUAL_MIB.into_iter().map(|mib| mib * MIB).chain(powers.clone());
    let mut starts: Vec<u64> =
        [FIRST_TRACK].into_iter().chain(powers).chain(usual.filter_map(behind)).collect();
    starts.retain(|start| *start < size);
    starts.sort_unstable();
    starts.dedup();
    starts
}

/// Iterates over the places of spare superblocks of file systems of the whole device, or of a first
/// partition.
fn spare_superblocks() -> impl Iterator<Item = u64> {
    let ext = SPARE_GROUPS.into_iter().map(|group| group * 128 * MIB);
    let btrfs = [64 * MIB, 256 * KIB * MIB];
    ext.chain(btrfs).flat_map(|spare| [spare, spare + MIB])
}

/// True if a block is of no use to anybody, though it be not all zeroes.
pub type Leftover<'a> = &'a dyn Fn(&[u8]) -> bool;

/// The first byte that is not zero, of those that are looked at, in a block that is no leftover. Of
/// a regular file that is all that its file system has stored.
///
/// # Errors
/// It cannot be read.
pub fn first_byte_set(file: &File, size: u64, left: Leftover<'_>) -> io::Result<Option<u64>> {
    let read = |start, length| read_bytes(file, start, length);
    if file.metadata()?.is_file() {
        return first_byte_stored(file, size, left);
    }
    first_byte_set_by(read, size, left)
}

/// Returns the place of the first non-zero byte of a device that `read` reads: `length` bytes, at
/// most a MiB, from `start` on.
///
/// # Errors
/// It cannot be read.
pub fn first_byte_set_by(
    read: impl FnMut(u64, u64) -> io::Result<Vec<u8>>,
    size: u64,
    left: Leftover<'_>,
) -> io::Result<Option<u64>> {
    let front = [(0, FRONT_BYTES)];
    let back = [(size.saturating_sub(BACK_BYTES), BACK_BYTES)];
    // Whole blocks, for devices that read nothing else.
    let block = |place: u64| place / SAMPLE_BYTES * SAMPLE_BYTES;
    let starts = partition_starts(size).into_iter().map(|start| (block(start), START_BYTES));
    let spares = spare_superblocks().map(|spare| (spare, SAMPLE_BYTES));
    let samples = samples(size).map(|sample| (sample, SAMPLE_BYTES));
    let beyond_front =
        starts.chain(spares).chain(samples).filter(|(start, _)| *start >= FRONT_BYTES);
    let places = front.into_iter().chain(back).chain(beyond_front);
    byte_set_in_any(read, places.flat_map(|(start, length)| reads(start, length, size)), left)
}

/// One place in each of as many equal parts, somewhere in its part. Always the same ones, so that
/// what is refused once is refused again.
fn samples(size: u64) -> impl Iterator<Item = u64> {
    let blocks = size / SAMPLE_BYTES;
    let step = (blocks / SAMPLES).max(1);
    let mut random = Random::new(0);
    (0..blocks.div_ceil(step)).map(move |part| (part * step + random.below(step)) * SAMPLE_BYTES)
}

/// The reads of `length` bytes from `start` on, as far as the device reaches.
fn reads(start: u64, length: u64, size: u64) -> impl Iterator<Item = (u64, u64)> {
    let end = start.saturating_add(length).min(size);
    let chunks = (start..end).step_by(READ_BYTES as usize);
    chunks.map(move |at| (at, READ_BYTES.min(end - at)))
}

/// The first byte of a regular file that is not zero. The file system knows where something was
/// written; that is not much of a file that is blank, however large.
fn first_byte_stored(file: &File, size: u64, left: Leftover<'_>) -> io::Result<Option<u64>> {
    let mut start = 0;
    while start < size {
        let from = i64::try_from(start).map_err(io::Error::other)?;
        start = match lseek(file, from, Whence::SeekData) {
            // Blocks of the file system may be smaller.
            Ok(data) => data.cast_unsigned() / SAMPLE_BYTES * SAMPLE_BYTES,
            Err(Errno::ENXIO) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let length = READ_BYTES.min(size.saturating_sub(start));
        let read = |start, length| read_bytes(file, start, length);
        if let found @ Some(_) = byte_set_in_any(read, [(start, length)], left)? {
            return Ok(found);
        }
        start += length;
    }
    Ok(None)
}

fn read_bytes(file: &File, start: u64, length: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; length as usize];
    file.read_exact_at(&mut bytes, start).map(|()| bytes)
}

fn byte_set_in_any(
    mut read: impl FnMut(u64, u64) -> io::Result<Vec<u8>>,
    places: impl IntoIterator<Item = (u64, u64)>,
    left: Leftover<'_>,
) -> io::Result<Option<u64>> {
    for (start, length) in places {
        let bytes = read(start, length)?;
        let blocks =
            (start..).step_by(SAMPLE_BYTES as usize).zip(bytes.chunks(SAMPLE_BYTES as usize));
        for (start, block) in blocks {
            if let Some(at) = block.iter().position(|byte| *byte != 0)
                && !left(block)
            {
                return Ok(Some(start + at as u64));
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIB: u64 = 1 << 40;

    /// A device that is zero but for what `is_set` says.
    fn found(size: u64, is_set: impl Fn(u64) -> bool) -> Option<u64> {
        let read = |start: u64, length: u64| {
            assert!(start + length <= size && length <= READ_BYTES, "{start} {length}");
            let mut bytes = vec![0; length as usize];
            for (sector, at) in bytes.chunks_mut(512).zip((start..).step_by(512)) {
                if is_set(at) {
                    sector.fill(1);
                }
            }
            Ok(bytes)
        };
        first_byte_set_by(read, size, &|_| false).unwrap()
    }

    #[test]
    fn what_stands_where_partitions_begin_is_found_on_devices_of_any_size() {
        for size in [64 * MIB, 4 << 30, 16 * TIB] {
            assert_eq!(found(size, |_| false), None);
            for start in partition_starts(size) {
                // Where ext4 and btrfs have their superblocks.
                for superblock in [1024, 64 * KIB].map(|within| start + within) {
                    if superblock < size {
                        let at = found(size, |byte| byte == superblock / 512 * 512);
                        assert_eq!(at.map(|at| at / 512), Some(superblock / 512), "{start}");
                    }
                }
            }
        }
    }

    #[test]
    fn usual_layouts_are_among_the_starts() {
        let starts = partition_starts(TIB);
        // A first partition; behind 512 MiB for firmware; behind 1 GiB; behind Windows' 100 and 16
        // MiB.
        for start in [MIB, 513 * MIB, 1025 * MIB, 101 * MIB, 2049 * MIB] {
            assert!(starts.contains(&start), "{start}");
        }
        assert!(starts.contains(&FIRST_TRACK));
    }

    #[test]
    fn structures_at_equal_distances_do_not_lie_between_all_samples() {
        for size in [4 << 30, 100 << 30, TIB] {
            for period in [4 * MIB, 128 * MIB, 1 << 30] {
                // A sixteenth of everything, always in the same place of its period.
                let periodic = |byte: u64| byte > 40 * MIB && byte % period / (period / 16) == 5;
                assert!(found(size, periodic).is_some(), "{period} of {size}");
            }
        }
    }

    #[test]
    fn small_devices_are_read_whole() {
        let size = 4 * MIB;
        for at in (0..size).step_by(100 << 9) {
            assert_eq!(found(size, |byte| byte == at), Some(at));
        }
    }
}
