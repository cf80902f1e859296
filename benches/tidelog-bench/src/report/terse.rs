//! fio's terse output, version 3: one line of numbers for each report.

use super::VERSION;
use super::group::GroupReport;
use super::json::latencies;
use crate::stats::{DirectionStats, Moments};

/// Percentiles that a line has room for; what is not asked for is `0%=0`.
const PERCENTILES: usize = 20;

/// A line for each report.
pub fn lines(reports: &[GroupReport]) -> String {
    reports.iter().map(|report| line(report) + "\n").collect()
}

fn line(report: &GroupReport) -> String {
    let mut fields = vec![
        "3".to_owned(),
        VERSION.to_owned(),
        report.options.name.replace(';', ","),
        report.group.to_string(),
        i32::from(!report.is_clean()).to_string(),
    ];
    report.stats[..2].iter().for_each(|stats| direction(&mut fields, report, stats));
    let usage = &report.usage;
    for part in [usage.user, usage.system] {
        fields.push(format!("{:.6}%", report.cpu_percent(part)));
    }
    for count in [usage.switches, usage.major_faults, usage.minor_faults] {
        fields.push(count.to_string());
    }
    fields.extend(report.depth.percentages().map(|percent| format!("{percent:.1}%")));
    let [_, micros, millis] = latencies(report);
    let order = ["2", "4", "10", "20", "50", "100", "250", "500", "750", "1000", "2000", ">=2000"];
    for (buckets, count) in [(micros, 10), (millis, 12)] {
        let percent = |name: &&str| buckets[*name].as_f64().unwrap_or(0.0);
        fields.extend(order[..count].iter().map(|name| format!("{:.2}%", percent(name))));
    }
    fields.join(";")
}

fn direction(fields: &mut Vec<String>, report: &GroupReport, stats: &DirectionStats) {
    let runtime = if stats.ios > 0 { report.runtime.as_millis() } else { 0 };
    fields.extend([
        (stats.bytes >> 10).to_string(),
        format!("{:.0}", report.per_second(stats.bytes) / 1024.0),
        format!("{:.0}", report.per_second(stats.ios)),
        runtime.to_string(),
    ]);
    moments(fields, &stats.slat);
    moments(fields, &stats.clat);
    let wanted = &report.options.percentiles;
    let histogram = &stats.clat_histogram;
    fields.extend((0..PERCENTILES).map(|index| match wanted.get(index) {
        Some(percentile) if report.options.clat_percentiles => {
            format!("{percentile:.6}%={}", histogram.value_at_percentile(*percentile) / 1000)
        }
        _ => "0%=0".to_owned(),
    }));
    moments(fields, &stats.lat);
    let bandwidth = &stats.bandwidth;
    let part = if bandwidth.count > 0 { 100.0 } else { 0.0 };
    fields.extend([
        bandwidth.min.to_string(),
        bandwidth.max.to_string(),
        format!("{part:.6}%"),
        format!("{:.6}", bandwidth.mean()),
        format!("{:.6}", bandwidth.deviation()),
    ]);
}

/// Appends moments in microseconds.
fn moments(fields: &mut Vec<String>, of: &Moments) {
    fields.extend([
        (of.min / 1000).to_string(),
        (of.max / 1000).to_string(),
        format!("{:.6}", of.mean() / 1000.0),
        format!("{:.6}", of.deviation() / 1000.0),
    ]);
}
