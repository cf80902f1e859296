//! fio's JSON, so that tools made for fio read it.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};

use super::VERSION;
use super::group::GroupReport;
use crate::disks::DiskUse;
use crate::option::JobOptions;
use crate::stats::{DirectionStats, Lateness, Moments, SteadyResult};

/// Names of the buckets of depths.
const DEPTH_LEVELS: [&str; 7] = ["1", "2", "4", "8", "16", "32", ">=64"];
/// Names of the buckets of batches; fio counts those of up to four together.
const BATCHES: [&str; 7] = ["0", "4", "8", "16", "32", "64", ">=64"];
/// Upper ends of the buckets of latencies, in each unit.
const LATENCIES: [u64; 10] = [2, 4, 10, 20, 50, 100, 250, 500, 750, 1000];

/// The document. `plus` adds every latency that occurred, as fio's json+ does.
pub fn document(
    reports: &[GroupReport],
    global: &JobOptions,
    disks: &[(DiskUse, f64)],
    plus: bool,
) -> Value {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut document = json!({
        "fio version": VERSION,
        "timestamp": now.as_secs(),
        "timestamp_ms": now.as_millis() as u64,
        "time": utc(now.as_secs()),
        "jobs": reports.iter().map(|report| job(report, plus)).collect::<Vec<_>>(),
        "disk_util": disks.iter().map(disk).collect::<Vec<_>>(),
    });
    if !global.given.is_empty() {
        document["global options"] = options(&global.given);
    }
    document
}

fn disk((used, percent): &(DiskUse, f64)) -> Value {
    json!({
        "name": used.name,
        "read_ios": used.ios[0],
        "write_ios": used.ios[1],
        "read_merges": used.merges[0],
        "write_merges": used.merges[1],
        "read_ticks": used.ticks[0],
        "write_ticks": used.ticks[1],
        "in_queue": used.in_queue,
        "util": percent,
    })
}

fn job(report: &GroupReport, plus: bool) -> Value {
    let [read, write, trim] = &report.stats;
    let usage = &report.usage;
    let runtime = report.runtime.as_millis() as u64;
    let mut job = json!({
        "jobname": report.options.name,
        "groupid": report.group,
        "error": i32::from(!report.is_clean()),
        "eta": 0,
        "elapsed": report.elapsed.as_secs() + 1,
        "job options": options(&report.options.given),
        "read": direction(report, read, plus),
        "write": direction(report, write, plus),
        "trim": direction(report, trim, plus),
        "sync": { "total_ios": report.syncs.count, "lat_ns": moments(&report.syncs) },
        "job_runtime": runtime,
        "usr_cpu": report.cpu_percent(usage.user),
        "sys_cpu": report.cpu_percent(usage.system),
        "ctx": usage.switches,
        "majf": usage.major_faults,
        "minf": usage.minor_faults,
        "iodepth_level": buckets(DEPTH_LEVELS, report.depth.percentages()),
        "iodepth_submit": buckets(BATCHES, batches(report.submitted.percentages())),
        "iodepth_complete": buckets(BATCHES, batches(report.completed.percentages())),
        "latency_depth": report.ended.depth.unwrap_or(report.options.iodepth as usize),
        "latency_target": report.options.latency_target.map_or(0, |it| it.as_nanos() as u64),
        "latency_percentile": report.options.latency_percentile,
        "latency_window": report.options.latency_window.as_micros() as u64,
        "tidelog": tidelog(report),
    });
    let latencies = latencies(report);
    for (unit, buckets) in ["latency_ns", "latency_us", "latency_ms"].into_iter().zip(latencies) {
        job[unit] = buckets;
    }
    if let Some(steady) = report.ended.steady.as_deref() {
        job["steadystate"] = steadystate(steady);
    }
    if !report.options.description.is_empty() {
        job["desc"] = Value::from(report.options.description.as_str());
    }
    job
}

/// Returns the values that fio has no word for.
fn tidelog(report: &GroupReport) -> Value {
    let ended = &report.ended;
    json!({
        "path": report.path,
        "jobs": report.jobs,
        "failure": ended.failure,
        "verified_blocks": ended.verified,
        "bad_blocks": ended.bad,
        "first_bad_block": ended.first_bad.as_ref().map(ToString::to_string),
        "workload": ended.lateness.as_deref().map(workload),
        "cores": report.cores(),
        "bytes_per_core_second": report.bytes_per_core_second(),
        "usr_cpu_seconds": report.usage.user.as_secs_f64(),
        "sys_cpu_seconds": report.usage.system.as_secs_f64(),
    })
}

fn steadystate(of: &SteadyResult) -> Value {
    let rates = |which: usize| of.samples.iter().map(|it| it[which]).collect::<Vec<_>>();
    let percent = if of.wanted.percent { "%" } else { "" };
    json!({
        "ss": of.wanted.name(),
        "duration": of.wanted.window.as_secs(),
        "attained": i32::from(of.is_attained),
        "criterion": format!("{:.6}{percent}", of.criterion),
        "max_deviation": of.deviation,
        "slope": of.slope,
        "data": {
            "bw_mean": of.mean(1),
            "iops_mean": of.mean(0),
            "iops": rates(0),
            "bw": rates(1),
        },
    })
}

fn workload(of: &Lateness) -> Value {
    let nanos = |time: Duration| time.as_nanos() as u64;
    json!({
        "iterations": of.iterations,
        "iteration_ns": nanos(of.time_each()),
        "stall_ns": nanos(of.stall_each()),
        "stalled_ops": of.stalled_ops,
        "expected_iteration_ns": nanos(of.expected_time),
        "expected_stall_ns": nanos(of.expected_stall),
        "transfers": of.transfers,
        "missed_deadlines": of.missed,
        "rows_without_io": of.left_out,
        "lateness_ns": {
            "mean": of.histogram.mean(),
            "max": of.histogram.max(),
            "percentile": percentiles(&of.histogram, &[50.0, 90.0, 99.0, 99.9]),
        },
    })
}

fn options(given: &[(String, String)]) -> Value {
    given.iter().map(|(name, value)| (name.clone(), Value::from(value.as_str()))).collect()
}

fn direction(report: &GroupReport, stats: &DirectionStats, plus: bool) -> Value {
    let JobOptions { clat_percentiles, lat_percentiles, percentiles, .. } = &report.options;
    let runtime = if stats.ios > 0 { report.runtime.as_millis() as u64 } else { 0 };
    let bandwidth = report.per_second(stats.bytes);
    let latency = |of: &Moments, histogram: Option<&Histogram<u64>>, wanted: bool| {
        let mut value = moments(of);
        if of.count > 0
            && wanted
            && let Some(histogram) = histogram
        {
            value["percentile"] = self::percentiles(histogram, percentiles);
            if plus {
                value["bins"] = bins(histogram);
            }
        }
        value
    };
    json!({
        "io_bytes": stats.bytes,
        "io_kbytes": stats.bytes >> 10,
        "bw_bytes": whole(bandwidth),
        "bw": whole(bandwidth / 1024.0),
        "iops": report.per_second(stats.ios),
        "runtime": runtime,
        "total_ios": stats.ios,
        "short_ios": 0,
        "drop_ios": 0,
        "slat_ns": moments(&stats.slat),
        "clat_ns": latency(&stats.clat, Some(&stats.clat_histogram), *clat_percentiles),
        "lat_ns": latency(&stats.lat, stats.lat_histogram.as_ref(), *lat_percentiles),
        "bw_min": stats.bandwidth.min,
        "bw_max": stats.bandwidth.max,
        "bw_agg": if stats.bandwidth.count > 0 { 100.0 } else { 0.0 },
        "bw_mean": stats.bandwidth.mean(),
        "bw_dev": stats.bandwidth.deviation(),
        "bw_samples": stats.bandwidth.count,
        "iops_min": stats.iops.min,
        "iops_max": stats.iops.max,
        "iops_mean": stats.iops.mean(),
        "iops_stddev": stats.iops.deviation(),
        "iops_samples": stats.iops.count,
    })
}

fn moments(of: &Moments) -> Value {
    json!({ "min": of.min, "max": of.max, "mean": of.mean(), "stddev": of.deviation(), "N": of.count })
}

fn percentiles(histogram: &Histogram<u64>, wanted: &[f64]) -> Value {
    let one = |percentile: &f64| {
        (format!("{percentile:.6}"), Value::from(histogram.value_at_percentile(*percentile)))
    };
    wanted.iter().map(one).collect()
}

fn bins(histogram: &Histogram<u64>) -> Value {
    let bin = |value: hdrhistogram::iterators::IterationValue<u64>| {
        (value.value_iterated_to().to_string(), Value::from(value.count_at_value()))
    };
    histogram.iter_recorded().map(bin).collect()
}

fn buckets(names: [&str; 7], percentages: [f64; 7]) -> Value {
    names.into_iter().map(str::to_owned).zip(percentages.map(Value::from)).collect()
}

/// Converts counts of 1 to 2, 3 to 4, 5 to 8, ...: fio puts 1 to 4 under "4", and nothing under
/// "0".
fn batches([one, two, four, eight, sixteen, thirty_two, more]: [f64; 7]) -> [f64; 7] {
    [0.0, one + two, four, eight, sixteen, thirty_two, more]
}

/// Percentages of completion latencies of all directions, by buckets of nano-, micro- and
/// milliseconds.
#[expect(clippy::cast_precision_loss, reason = "percentages")]
pub(super) fn latencies(report: &GroupReport) -> [Value; 3] {
    let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
    for histogram in report.stats.iter().map(|stats| &stats.clat_histogram) {
        for value in histogram.iter_recorded() {
            *counts.entry(value.value_iterated_to()).or_default() += value.count_at_value();
        }
    }
    let sum = counts.values().sum::<u64>().max(1) as f64;
    let percent = |from: u64, to: u64| {
        let count: u64 = counts.range(from..to).map(|(_, count)| count).sum();
        Value::from(100.0 * count as f64 / sum)
    };
    let mut from = 0;
    [1, 1_000, 1_000_000].map(|unit: u64| {
        let mut buckets: Map<String, Value> = Map::new();
        for end in LATENCIES {
            buckets.insert(end.to_string(), percent(from, end * unit));
            from = end * unit;
        }
        if unit == 1_000_000 {
            buckets.insert("2000".to_owned(), percent(from, 2000 * unit));
            buckets.insert(">=2000".to_owned(), percent(2000 * unit, u64::MAX));
        }
        Value::from(buckets)
    })
}

#[expect(clippy::cast_sign_loss, reason = "rates are positive")]
fn whole(rate: f64) -> u64 {
    rate as u64
}

/// The date and time of day, as `ctime` writes them, in UTC.
fn utc(seconds: u64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    // Days since 1 March of year 0, so that the leap day is a year's last.
    let since = days + 719_468;
    let (era, of_era) = (since / 146_097, since % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = (shifted + 2) % 12;
    let year = 400 * era + year_of_era + u64::from(month < 2);
    format!(
        "{} {} {day:2} {:02}:{:02}:{:02} {year}",
        DAYS[(days % 7) as usize],
        MONTHS[month as usize],
        of_day / 3600,
        of_day / 60 % 60,
        of_day % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_right() {
        assert_eq!(utc(0), "Thu Jan  1 00:00:00 1970");
        assert_eq!(utc(951_782_400), "Tue Feb 29 00:00:00 2000");
        assert_eq!(utc(1_795_303_986), "Sat Nov 21 23:33:06 2026");
    }
}
