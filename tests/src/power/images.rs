//! The images that a cut could have left: everything that a flush covered, and any part of what
//! came after it.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::log::{Entry, WriteLog};
use crate::sim::Random;

/// Size that a device writes whole or not at all.
const SECTOR: usize = 512;

/// Layout of the recorded disk.
#[derive(Clone, Debug)]
pub struct Layout {
    /// The devices of the pool.
    pub devices: Vec<Range<u64>>,
    /// Range of the notes of commits, each once it has returned: its number, at the start of a
    /// block.
    pub notes: Range<u64>,
}

/// Makes images of ever later moments.
#[derive(Debug)]
pub struct Rebuilder<'a> {
    log: &'a WriteLog,
    layout: &'a Layout,
    /// Treats flushes as if the disk had not known them, which must be found out.
    blind: bool,
    /// The pool's devices with all that is on the medium for certain.
    certain: Vec<Vec<u8>>,
    /// The entries that `certain` has.
    applied: usize,
}

impl<'a> Rebuilder<'a> {
    /// Begins before the first entry.
    pub fn new(log: &'a WriteLog, layout: &'a Layout, blind: bool) -> Self {
        let certain =
            layout.devices.iter().map(|device| vec![0; (device.end - device.start) as usize]);
        Self { log, layout, blind, certain: certain.collect(), applied: 0 }
    }

    /// The numbers of the commits that had returned, by the entry that noted them.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn notes(&self) -> io::Result<Vec<(usize, u64)>> {
        let is_note = |entry: &Entry| {
            self.layout.notes.contains(&entry.offset) && entry.length > 0 && !entry.discard
        };
        let notes = self.log.entries.iter().enumerate().filter(|(_, entry)| is_note(entry));
        let number = |(index, entry): (usize, &Entry)| {
            let data = self.log.data(entry)?;
            let number = data.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
            Ok((index, number))
        };
        notes.map(number).collect()
    }

    /// The devices as a cut before entry `cut` could have left them, as files in `folder`. Cuts
    /// must not go back.
    ///
    /// # Errors
    /// A file cannot be written, or the log not read.
    pub fn cut(
        &mut self,
        cut: usize,
        random: &mut Random,
        folder: &Path,
    ) -> io::Result<Vec<PathBuf>> {
        let covered = self.log.entries[..cut].iter().rposition(|entry| entry.flush && !self.blind);
        let covered = covered.unwrap_or(0).max(self.applied);
        for index in self.applied..covered {
            let entry = &self.log.entries[index];
            let data = self.log.data(entry)?;
            for (range, image) in self.layout.devices.iter().zip(&mut self.certain) {
                place(range, entry.offset, &data, image);
            }
        }
        self.applied = covered;
        let mut images = self.certain.clone();
        for entry in &self.log.entries[covered..cut] {
            let choice = if entry.fua && !self.blind { 0 } else { random.below(4) };
            if choice == 3 {
                continue; // lost
            }
            let data = self.log.data(entry)?;
            for (range, image) in self.layout.devices.iter().zip(&mut images) {
                if choice < 2 {
                    place(range, entry.offset, &data, image);
                    continue;
                }
                for (sector, bytes) in data.chunks(SECTOR).enumerate() {
                    if random.chance(2) {
                        place(range, entry.offset + (sector * SECTOR) as u64, bytes, image);
                    }
                }
            }
        }
        let paths = (0..images.len()).map(|index| folder.join(format!("device{index}")));
        paths
            .zip(images)
            .map(|(path, image)| {
                let file = File::create(&path)?;
                file.write_all_at(&image, 0)?;
                Ok(path)
            })
            .collect()
    }
}

/// Puts what lies in `range` of the disk into the image of it.
fn place(range: &Range<u64>, offset: u64, data: &[u8], image: &mut [u8]) {
    let begin = offset.max(range.start);
    let end = (offset + data.len() as u64).min(range.end);
    if begin < end {
        let part = &data[(begin - offset) as usize..(end - offset) as usize];
        image[(begin - range.start) as usize..(end - range.start) as usize].copy_from_slice(part);
    }
}
