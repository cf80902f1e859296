//! Options on logs over time: `write_bw_log`, `write_lat_log`, `write_iops_log`.

use std::path::PathBuf;
use std::time::Duration;

/// The logs of a job. Each is asked for by what its files' names begin with; with nothing, by the
/// job's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogOptions {
    /// Bytes per second.
    pub bandwidth: Option<String>,
    /// Latencies: submission, completion, and both together.
    pub latency: Option<String>,
    /// Operations per second.
    pub iops: Option<String>,
    /// Window that is summed up in one entry; with nothing, each operation has its own.
    pub window: Duration,
    /// True if each line says where its operation began.
    pub offsets: bool,
    /// True if each line has the priority of its operation.
    pub priorities: bool,
    /// True if each of `numjobs` has files of its own.
    pub per_job: bool,
}

impl Default for LogOptions {
    fn default() -> Self {
        let (bandwidth, latency, iops) = (None, None, None);
        Self {
            bandwidth,
            latency,
            iops,
            window: Duration::ZERO,
            offsets: false,
            priorities: false,
            per_job: true,
        }
    }
}

/// Kind of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogKind {
    /// KiB per second.
    Bandwidth,
    /// Nanoseconds.
    SubmissionLatency,
    /// Nanoseconds.
    CompletionLatency,
    /// Nanoseconds.
    TotalLatency,
    /// Operations per second.
    Iops,
}

impl LogOptions {
    /// Returns whether any is wanted.
    pub fn is_any(&self) -> bool {
        self.bandwidth.is_some() || self.latency.is_some() || self.iops.is_some()
    }

    /// The files of the `number`th job of a run, counted from 1, which is called `job`; named as
    /// fio names them.
    pub fn files(&self, job: &str, number: usize) -> Vec<(LogKind, PathBuf)> {
        let number = if self.per_job { format!(".{number}") } else { String::new() };
        let all = [
            (LogKind::Bandwidth, &self.bandwidth, "bw"),
            (LogKind::SubmissionLatency, &self.latency, "slat"),
            (LogKind::CompletionLatency, &self.latency, "clat"),
            (LogKind::TotalLatency, &self.latency, "lat"),
            (LogKind::Iops, &self.iops, "iops"),
        ];
        let named = all.into_iter().filter_map(|(kind, prefix, word)| {
            let prefix = prefix.as_deref()?;
            let prefix = if prefix.is_empty() { job } else { prefix };
            Some((kind, PathBuf::from(format!("{prefix}_{word}{number}.log"))))
        });
        named.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_named_as_fio_names_them() {
        let mut logs = LogOptions { bandwidth: Some("out/x".into()), ..LogOptions::default() };
        logs.iops = Some(String::new());
        let names = |logs: &LogOptions| {
            let files = logs.files("job", 2).into_iter();
            files.map(|(_, path)| path.display().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(names(&logs), ["out/x_bw.2.log", "job_iops.2.log"]);
        logs = LogOptions { latency: Some("y".into()), per_job: false, ..LogOptions::default() };
        assert_eq!(names(&logs), ["y_slat.log", "y_clat.log", "y_lat.log"]);
    }
}
