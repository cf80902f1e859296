//! Logs over time, in fio's format: a line for each entry, "milliseconds, value, direction, bytes, priority",
//! with the offset before the last where that is asked for.

use std::fmt::Write;
use std::path::PathBuf;

use crate::option::{JobOptions, LogKind};
use crate::stats::{Entry, Timeline};

/// The log files of the jobs of a run, in the order of [`entries`]; each clone of a job has its own.
pub fn log_files(jobs: &[JobOptions]) -> Vec<Vec<(LogKind, PathBuf)>> {
    let clones = jobs.iter().flat_map(|job| std::iter::repeat_n(job, job.numjobs as usize));
    let files = clones.enumerate().map(|(index, job)| job.logs.files(&job.name, index + 1));
    files.collect()
}

/// The lines of one log.
pub fn log_lines(kind: LogKind, timeline: &Timeline, offsets: bool) -> String {
    let value = |entry: &Entry| match kind {
        LogKind::Bandwidth => entry.bandwidth,
        LogKind::SubmissionLatency => entry.slat,
        LogKind::CompletionLatency => entry.clat,
        LogKind::TotalLatency => entry.lat,
        LogKind::Iops => entry.iops,
    };
    let mut text = String::new();
    for entry in timeline.entries() {
        let Entry { at_ms, direction, bytes, offset, .. } = entry;
        let _ = write!(text, "{at_ms}, {}, {}, {bytes}, ", value(entry), *direction as u8);
        let _ = if offsets { writeln!(text, "{offset}, 0") } else { writeln!(text, "0") };
    }
    text
}
