//! Bad blocks as files: `verify_dump=`.

use std::fs;
use std::io;
use std::path::Path;

use crate::load::{BlockRange, Origin, stamp};

/// Fills a block with the bytes that this pass of a job writes there, whoever asks.
pub(super) fn fill(block: &mut [u8], place: BlockRange, origin: Origin) {
    let Origin { run, writer, pass } = origin;
    let mix = |sum: u64, value: u64| fastrand::Rng::with_seed(sum ^ value).u64(..);
    let seed = [run, writer, pass, place.file as u64, place.offset].into_iter().fold(0, mix);
    fastrand::Rng::with_seed(seed).fill(block);
}

/// Writes a bad block, and what it should be, to files called as fio calls them, in a directory.
pub(super) fn dump(
    directory: &Path,
    found: &[u8],
    file: &str,
    place: BlockRange,
    origin: Origin,
) -> io::Result<()> {
    let mut expected = vec![0; found.len()];
    fill(&mut expected, place, origin);
    stamp(&mut expected, place.offset, origin);
    let name = Path::new(file).file_name().unwrap_or_default().to_string_lossy();
    let at = |kind: &str| directory.join(format!("{name}.{}.{kind}", place.offset));
    fs::write(at("received"), found)?;
    fs::write(at("expected"), expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_block_is_written_beside_what_was_written() {
        let directory = std::env::temp_dir().join(format!("tidelog-dump-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let (place, origin) = (
            BlockRange { file: 1, offset: 8192, length: 4096 },
            Origin { run: 3, writer: 1, pass: 2 },
        );
        let mut block = vec![0; 4096];
        fill(&mut block, place, origin);
        stamp(&mut block, place.offset, origin);
        let written = block.clone();
        block[99] ^= 1;
        dump(&directory, &block, "/dev/some/disk", place, origin).unwrap();
        assert!(fs::read(directory.join("disk.8192.received")).unwrap() == block);
        assert!(fs::read(directory.join("disk.8192.expected")).unwrap() == written);
        let (mut one, mut other) = (written.clone(), written);
        fill(&mut one, place, origin);
        fill(&mut other, place, Origin { pass: 3, ..origin });
        assert!(one != other, "each pass has bytes of its own");
        fs::remove_dir_all(&directory).unwrap();
    }
}
