//! Logs over time, in fio's format: a line for each entry, "milliseconds, value, direction, bytes,
//! priority", with the offset before the last where that is asked for.

use std::fmt::Write;
use std::path::PathBuf;

use tidelog_engine::path::{IoPriority, PriorityClass};

use crate::option::{JobOptions, LogKind, LogOptions};
use crate::stats::{JobTimeline, TimelineEntry};

/// The log files of the jobs of a run, in their order; each clone of a job has its own.
pub fn log_files(jobs: &[JobOptions]) -> Vec<Vec<(LogKind, PathBuf)>> {
    let clones = jobs.iter().flat_map(|job| std::iter::repeat_n(job, job.numjobs as usize));
    let files = clones.enumerate().map(|(index, job)| job.logs.files(&job.name, index + 1));
    files.collect()
}

/// The lines of one log.
pub fn log_lines(kind: LogKind, timeline: &JobTimeline, logs: &LogOptions) -> String {
    let value = |entry: &TimelineEntry| match kind {
        LogKind::Bandwidth => entry.bandwidth,
        LogKind::SubmissionLatency => entry.slat,
        LogKind::CompletionLatency => entry.clat,
        LogKind::TotalLatency => entry.lat,
        LogKind::Iops => entry.iops,
    };
    let mut text = String::new();
    for entry in timeline.entries() {
        let TimelineEntry { at_ms, direction, bytes, offset, priority, .. } = entry;
        let _ = write!(text, "{at_ms}, {}, {}, {bytes}, ", value(entry), *direction as u8);
        if logs.offsets {
            let _ = write!(text, "{offset}, ");
        }
        let _ = if logs.priorities {
            writeln!(text, "{priority:#06x}")
        } else {
            writeln!(text, "{}", u8::from(is_real_time(*priority)))
        };
    }
    text
}

fn is_real_time(priority: u16) -> bool {
    let first = IoPriority::new(PriorityClass::RealTime, 0).map_or(0, IoPriority::number);
    priority & !u16::from(IoPriority::LEVEL_MAX) == first
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::direction::DataDirection;
    use crate::stats::Operated;

    #[test]
    fn the_last_field_is_the_priority_as_fio_writes_it() {
        let now = Instant::now();
        let mut timeline = JobTimeline::new(Duration::ZERO, now);
        for priority in [0x2003, 0x6000] {
            let operated =
                Operated { direction: DataDirection::Read, offset: 8, bytes: 4096, priority };
            timeline.completed(operated, 1, 2, now);
        }
        let lines = |logs: &LogOptions| log_lines(LogKind::CompletionLatency, &timeline, logs);
        assert_eq!(lines(&LogOptions::default()), "0, 2, 0, 4096, 1\n0, 2, 0, 4096, 0\n");
        let logs = LogOptions { offsets: true, priorities: true, ..LogOptions::default() };
        assert_eq!(lines(&logs), "0, 2, 0, 4096, 8, 0x2003\n0, 2, 0, 4096, 8, 0x6000\n");
    }
}
