//! fio's output for people.

use std::fmt::Write;
use std::time::Duration;

use hdrhistogram::Histogram;

use super::group::GroupReport;
use crate::disks::DiskUse;
use crate::figures::{amount, decimal_amount, decimal_rate, rate, short_count};
use crate::option::{JobOptions, Sizes, engine_name};
use crate::stats::{DirectionStats, Lateness, Moments, SteadyResult};

/// The report of a run.
pub fn text(reports: &[GroupReport], disks: &[(DiskUse, f64)]) -> String {
    let mut text = String::new();
    for report in reports {
        text.push_str(&one(report));
    }
    let groups = reports.iter().map(|report| report.group).max().map_or(0, |last| last + 1);
    for group in 0..groups {
        text.push_str(&summary(group, reports));
    }
    if !disks.is_empty() {
        text.push_str("\nDisk stats (read/write):\n");
    }
    for (used, percent) in disks {
        let DiskUse { name, ios, merges, ticks, in_queue, .. } = used;
        let _ = writeln!(
            text,
            "  {name}: ios={}/{}, merge={}/{}, ticks={}/{}, in_queue={in_queue}, util={percent:.2}%",
            ios[0], ios[1], merges[0], merges[1], ticks[0], ticks[1],
        );
    }
    text
}

/// Returns the introduction of a job, before it runs.
pub fn introduction(job: &JobOptions, group: usize) -> String {
    let sizes = match &job.sizes {
        Sizes::Split(_) => "by weight".to_owned(),
        sizes => format!("{}B-{}B", sizes.least(), sizes.most()),
    };
    format!(
        "{}: (g={group}): rw={}, bs={sizes}, ioengine={}, iodepth={}, numjobs={}\n",
        job.name,
        job.load.name,
        job.engine.map_or_else(|| "none".to_owned(), engine_name),
        job.iodepth,
        job.numjobs,
    )
}

fn one(report: &GroupReport) -> String {
    let mut text = String::new();
    let errors = u32::from(!report.is_clean());
    let _ = writeln!(
        text,
        "\n{}: (groupid={}, jobs={}): err={errors:2}",
        report.options.name, report.group, report.jobs
    );
    if !report.options.description.is_empty() {
        let _ = writeln!(text, "  Description  : [{}]", report.options.description);
    }
    for (name, stats) in ["read", "write", "trim"].iter().zip(&report.stats) {
        if stats.ios > 0 {
            direction(&mut text, name, report, stats);
        }
    }
    let usage = &report.usage;
    let _ = writeln!(
        text,
        "  cpu          : usr={:.2}%, sys={:.2}%, ctx={}, majf={}, minf={}",
        report.cpu_percent(usage.user),
        report.cpu_percent(usage.system),
        usage.switches,
        usage.major_faults,
        usage.minor_faults
    );
    let _ = writeln!(
        text,
        "  cores        : {:.2} busy, {} for each",
        report.cores(),
        rate(report.bytes_per_core_second())
    );
    let names = ["1", "2", "4", "8", "16", "32", ">=64"];
    for (title, depths) in [
        ("  IO depths    :", &report.depth),
        ("     submit    :", &report.submitted),
        ("     complete  :", &report.completed),
    ] {
        let levels = names.iter().zip(depths.percentages());
        let levels: Vec<String> = levels.map(|(name, it)| format!("{name}={it:.1}%")).collect();
        let _ = writeln!(text, "{title} {}", levels.join(", "));
    }
    if let Some(target) = report.options.latency_target {
        let found = match report.ended.depth {
            Some(depth) => format!("depth={depth}"),
            None => "the job ended before a depth was found".to_owned(),
        };
        let _ = writeln!(
            text,
            "     latency   : target={}us, window={}us, percentile={:.2}%, {found}",
            target.as_micros(),
            report.options.latency_window.as_micros(),
            report.options.latency_percentile
        );
    }
    if let Some(steady) = report.ended.steady.as_deref() {
        steadystate(&mut text, steady);
    }
    let _ = writeln!(text, "  data path    : {}", report.path.join("; "));
    let ended = &report.ended;
    if ended.verified > 0 {
        let _ = writeln!(
            text,
            "  verify       : {} blocks compared, {} bad",
            ended.verified, ended.bad
        );
    }
    if let Some(lateness) = ended.lateness.as_deref() {
        workload(&mut text, lateness);
    }
    if let Some(bad) = &ended.first_bad {
        let _ = writeln!(text, "  {bad}");
    }
    if let Some(failure) = &ended.failure {
        let _ = writeln!(text, "  failed: {failure}");
    }
    text
}

#[expect(clippy::cast_precision_loss, reason = "a rate")]
fn steadystate(text: &mut String, steady: &SteadyResult) {
    let _ = writeln!(
        text,
        "  steadystate  : attained={}, bw={}, iops={}, {}, criterion={:.3}{}",
        if steady.is_attained { "yes" } else { "no" },
        rate(steady.mean(1) as f64),
        steady.mean(0),
        steady.wanted.name(),
        steady.criterion,
        if steady.wanted.percent { "%" } else { "" },
    );
}

fn workload(text: &mut String, of: &Lateness) {
    let millis = |time: Duration| time.as_secs_f64() * 1e3;
    let late =
        |percentile| millis(Duration::from_nanos(of.histogram.value_at_percentile(percentile)));
    let _ = writeln!(
        text,
        "  workload     : {} iterations of {:.3} msec, {:.3} of them waiting (the plan expects {:.3} and {:.3})",
        of.iterations,
        millis(of.time_each()),
        millis(of.stall_each()),
        millis(of.expected_time),
        millis(of.expected_stall),
    );
    let _ = writeln!(
        text,
        "     deadlines : {} of {} missed, {} ops waited; late (msec): 50.00th=[{:.3}], 99.00th=[{:.3}], max=[{:.3}]",
        of.missed,
        of.transfers,
        of.stalled_ops,
        late(50.0),
        late(99.0),
        late(100.0),
    );
}

#[expect(clippy::cast_precision_loss, reason = "a report")]
fn direction(text: &mut String, name: &str, report: &GroupReport, stats: &DirectionStats) {
    let bandwidth = report.per_second(stats.bytes);
    let _ = writeln!(
        text,
        "  {name}: IOPS={}, BW={} ({})({}/{}msec)",
        short_count(report.per_second(stats.ios)),
        rate(bandwidth),
        decimal_rate(bandwidth),
        amount(stats.bytes as f64),
        report.runtime.as_millis()
    );
    for (title, moments) in
        [("    slat", &stats.slat), ("    clat", &stats.clat), ("     lat", &stats.lat)]
    {
        let _ = writeln!(text, "{title} {}", latency(moments));
    }
    let options = &report.options;
    for (title, histogram, wanted) in [
        ("clat", Some(&stats.clat_histogram), options.clat_percentiles),
        ("lat", stats.lat_histogram.as_ref(), options.lat_percentiles),
    ] {
        if wanted && let Some(histogram) = histogram {
            percentiles(text, title, histogram, &options.percentiles);
        }
    }
    let samples = &stats.bandwidth;
    if samples.count > 0 {
        let _ = writeln!(
            text,
            "   bw (  KiB/s): min={}, max={}, avg={:.2}, stdev={:.2}, samples={}",
            samples.min,
            samples.max,
            samples.mean(),
            samples.deviation(),
            samples.count
        );
    }
}

fn latency(of: &Moments) -> String {
    let (unit, divisor) = unit(of.max);
    #[expect(clippy::cast_precision_loss, reason = "a divisor of at most a million")]
    let scale = divisor as f64;
    format!(
        "({unit}): min={}, max={}, avg={:.2}, stdev={:.2}",
        of.min / divisor,
        of.max / divisor,
        of.mean() / scale,
        of.deviation() / scale
    )
}

/// The unit in which nanoseconds up to this many are best read.
fn unit(most: u64) -> (&'static str, u64) {
    match most {
        0..10_000 => ("nsec", 1),
        10_000..10_000_000 => ("usec", 1_000),
        _ => ("msec", 1_000_000),
    }
}

fn percentiles(text: &mut String, title: &str, histogram: &Histogram<u64>, wanted: &[f64]) {
    let (unit, divisor) = unit(histogram.max());
    let _ = writeln!(text, "    {title} percentiles ({unit}):");
    for row in wanted.chunks(4) {
        let cell = |percentile: &f64| {
            let value = histogram.value_at_percentile(*percentile) / divisor;
            format!("{percentile:5.2}th=[{value:5}]")
        };
        let cells: Vec<String> = row.iter().map(cell).collect();
        let _ = writeln!(text, "     | {}", cells.join(", "));
    }
}

#[expect(clippy::cast_precision_loss, reason = "a report")]
fn summary(group: usize, reports: &[GroupReport]) -> String {
    let mut text = format!("\nRun status group {group} (all jobs):\n");
    for (index, name) in ["READ", "WRITE", "TRIM"].into_iter().enumerate() {
        let members = reports.iter().filter(|it| it.group == group && it.stats[index].ios > 0);
        let members: Vec<&GroupReport> = members.collect();
        let bytes: u64 = members.iter().map(|report| report.stats[index].bytes).sum();
        let Some(runtime) = members.iter().map(|report| report.runtime).max() else { continue };
        let bandwidth = bytes as f64 / runtime.as_secs_f64().max(1e-9);
        let _ = writeln!(
            text,
            "  {name:>5}: bw={} ({}), io={} ({}), run={}msec",
            rate(bandwidth),
            decimal_rate(bandwidth),
            amount(bytes as f64),
            decimal_amount(bytes as f64),
            runtime.as_millis()
        );
    }
    text
}
