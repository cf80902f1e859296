//! Counters of the kernel for the disks under a run's devices and files.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::Instant;

use nix::sys::stat::{major, minor};
use tidelog_engine::path::PathKind;

use crate::option::JobOptions;

/// Counters of one disk, or how far they went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskUse {
    /// The name: `nvme0n1`.
    pub name: String,
    /// Operations, of reads and writes.
    pub ios: [u64; 2],
    /// Operations that were made one with others.
    pub merges: [u64; 2],
    /// Milliseconds that they took, one after the other.
    pub ticks: [u64; 2],
    /// Milliseconds in which there was one.
    pub busy: u64,
    /// Milliseconds that they waited, one after the other.
    pub in_queue: u64,
}

/// The disks under a run, as they were when it began.
#[derive(Debug)]
pub struct Disks {
    numbers: BTreeSet<(u64, u64)>,
    before: Vec<DiskUse>,
    begun: Instant,
}

impl Disks {
    /// The disks under these jobs. Files that are made later have that of their directory.
    pub fn under(jobs: &[JobOptions]) -> Self {
        let is_kernels =
            |job: &&JobOptions| !matches!(job.engine, Some(PathKind::Sim | PathKind::Spdk));
        let real = jobs.iter().filter(is_kernels);
        let numbers: BTreeSet<(u64, u64)> =
            real.flat_map(|job| &job.filename).filter_map(|name| number(Path::new(name))).collect();
        let before = counters(&table(), &numbers);
        Self { numbers, before, begun: Instant::now() }
    }

    /// Returns the use of the disks since, each with the part of the time in which it did anything,
    /// in percent.
    pub fn since(&self) -> Vec<(DiskUse, f64)> {
        let millis = self.begun.elapsed().as_secs_f64() * 1e3;
        let now = counters(&table(), &self.numbers);
        let since = now.into_iter().filter_map(|now| {
            let before = self.before.iter().find(|before| before.name == now.name)?;
            let used = now.since(before);
            #[expect(clippy::cast_precision_loss, reason = "a percentage")]
            let percent = (100.0 * used.busy as f64 / millis.max(1.0)).min(100.0);
            Some((used, percent))
        });
        since.collect()
    }
}

impl DiskUse {
    fn since(&self, before: &Self) -> Self {
        let both =
            |now: [u64; 2], then: [u64; 2]| [0, 1].map(|way| now[way].saturating_sub(then[way]));
        Self {
            name: self.name.clone(),
            ios: both(self.ios, before.ios),
            merges: both(self.merges, before.merges),
            ticks: both(self.ticks, before.ticks),
            busy: self.busy.saturating_sub(before.busy),
            in_queue: self.in_queue.saturating_sub(before.in_queue),
        }
    }
}

/// The number of the block device that a name stands for, or lies on.
fn number(name: &Path) -> Option<(u64, u64)> {
    let directory =
        || name.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let found = fs::metadata(name).or_else(|_| fs::metadata(directory())).ok()?;
    let device = if found.file_type().is_block_device() { found.rdev() } else { found.dev() };
    Some((major(device), minor(device)))
}

fn table() -> String {
    fs::read_to_string("/proc/diskstats").unwrap_or_default()
}

/// The lines of `/proc/diskstats` for these devices.
fn counters(table: &str, numbers: &BTreeSet<(u64, u64)>) -> Vec<DiskUse> {
    let line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let field = |index: usize| words.get(index).and_then(|it| it.parse::<u64>().ok());
        if !numbers.contains(&(field(0)?, field(1)?)) {
            return None;
        }
        // After number and name: reads, merged, sectors, milliseconds; the same of writes; in
        // flight, busy, queued.
        Some(DiskUse {
            name: (*words.get(2)?).to_owned(),
            ios: [field(3)?, field(7)?],
            merges: [field(4)?, field(8)?],
            ticks: [field(6)?, field(10)?],
            busy: field(12)?,
            in_queue: field(13)?,
        })
    };
    table.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_table_is_read_by_number() {
        let table = " 254 0 vda 10 2 300 40 50 6 700 80 0 90 120 0 0 0 0 0 0\n 7 0 loop0 1 0 8 0 0 0 0 0 0 0 0\n";
        let found = counters(table, &[(254, 0), (8, 0)].into());
        let expected = DiskUse {
            name: "vda".to_owned(),
            ios: [10, 50],
            merges: [2, 6],
            ticks: [40, 80],
            busy: 90,
            in_queue: 120,
        };
        assert_eq!(found, std::slice::from_ref(&expected));
        let later = DiskUse { ios: [15, 50], busy: 190, ..expected.clone() };
        let used = later.since(&expected);
        assert_eq!((used.ios, used.busy, used.in_queue), ([5, 0], 100, 0));
    }
}
