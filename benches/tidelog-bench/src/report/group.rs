//! Results, job by job or merged by group.

use std::time::Duration;

use crate::option::JobOptions;
use crate::run::{JobEnd, JobResult, Usage};
use crate::stats::{Depths, DirectionStats, Moments};

/// Report of a group.
#[derive(Debug)]
pub struct GroupReport {
    /// The (first) job's options.
    pub options: JobOptions,
    /// The group.
    pub group: usize,
    /// Number of jobs in the group.
    pub jobs: usize,
    /// Reads, writes and trims.
    pub stats: [DirectionStats; 3],
    /// Operations in flight.
    pub depth: Depths,
    /// Operations handed over together.
    pub submitted: Depths,
    /// Completions seen together.
    pub completed: Depths,
    /// Latencies of commits.
    pub syncs: Moments,
    /// The time in which it all happened.
    pub runtime: Duration,
    /// End of the jobs.
    pub ended: JobEnd,
    /// Processor time of the jobs.
    pub usage: Usage,
    /// Time that the group ran.
    pub elapsed: Duration,
    /// Data paths of the jobs.
    pub path: Vec<String>,
}

impl GroupReport {
    /// Percent of the time of one processor that `part` is, for each job.
    pub fn cpu_percent(&self, part: Duration) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a percentage")]
        let jobs = self.jobs as f64;
        100.0 * part.as_secs_f64() / self.elapsed.as_secs_f64().max(1e-9) / jobs
    }

    /// Returns the number of processors that the group kept busy, in user space and in the kernel.
    pub fn cores(&self) -> f64 {
        self.core_seconds() / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// Returns the bytes that were moved in a second of one processor; 0 where none was counted.
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    pub fn bytes_per_core_second(&self) -> f64 {
        let bytes: u64 = self.stats.iter().map(|stats| stats.bytes).sum();
        let seconds = self.core_seconds();
        if seconds > 0.0 { bytes as f64 / seconds } else { 0.0 }
    }

    fn core_seconds(&self) -> f64 {
        (self.usage.user + self.usage.system).as_secs_f64()
    }

    /// Returns a count per second of the counted time.
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    pub fn per_second(&self, count: u64) -> f64 {
        let seconds = self.runtime.as_secs_f64();
        if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
    }

    /// Returns whether nothing went wrong.
    pub fn is_clean(&self) -> bool {
        self.ended.failure.is_none() && self.ended.bad == 0
    }

    fn of(result: JobResult) -> Self {
        let runtime = result.recorder.runtime();
        let crate::stats::Recorder { stats, depth, submitted, completed, syncs, .. } =
            result.recorder;
        let JobResult { options, group, ended, usage, elapsed, path, .. } = result;
        let jobs = 1;
        Self {
            options,
            group,
            jobs,
            stats,
            depth,
            submitted,
            completed,
            syncs,
            runtime,
            ended,
            usage,
            elapsed,
            path,
        }
    }

    fn merge(&mut self, other: &Self) {
        self.jobs += other.jobs;
        self.stats.iter_mut().zip(&other.stats).for_each(|(ours, theirs)| ours.merge(theirs));
        self.depth.merge(&other.depth);
        self.submitted.merge(&other.submitted);
        self.completed.merge(&other.completed);
        self.syncs.merge(&other.syncs);
        self.runtime = self.runtime.max(other.runtime);
        self.ended.merge(&other.ended);
        self.usage.add(&other.usage);
        self.elapsed = self.elapsed.max(other.elapsed);
    }
}

/// One report for each job, or for each group of jobs that asks for that.
pub fn reports(results: Vec<JobResult>) -> Vec<GroupReport> {
    let mut reports: Vec<GroupReport> = Vec::new();
    for result in results {
        let report = GroupReport::of(result);
        match reports.last_mut() {
            Some(last) if last.group == report.group && report.options.group_reporting => {
                last.merge(&report);
            }
            _ => reports.push(report),
        }
    }
    reports
}
