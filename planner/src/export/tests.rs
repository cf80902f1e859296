//! The rules are those of the "Trace Event Format" document that both viewers go by.

use super::*;
use crate::cost::{HostLink, Machine};
use crate::report::simulated;
use crate::simulate::{Policy, simulate};
use crate::testing::{machine, training};
use crate::units::{Bandwidth, Bytes};
use std::collections::{BTreeMap, BTreeSet};

/// Checks a file by the format's rules; `Err` with the first broken one.
fn validate(text: &str) -> Result<Vec<Value>, String> {
    let file: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let events = file["traceEvents"].as_array().ok_or("traceEvents is no array")?;
    if !["ms", "ns"].contains(&file["displayTimeUnit"].as_str().unwrap_or_default()) {
        return Err("displayTimeUnit is neither ms nor ns".to_owned());
    }
    let mut rows: BTreeMap<u64, Vec<(i64, i64)>> = BTreeMap::new();
    let mut titles = BTreeSet::new();
    let mut clock = 0.0;
    for event in events {
        let fail = |why: &str| Err(format!("{why}: {event}"));
        if !event["name"].is_string() || !event["pid"].is_u64() {
            return fail("every event has a name and a process");
        }
        if event["ph"] != "M" {
            let Some(at) = event["ts"].as_f64().filter(|at| *at >= clock) else {
                return fail("times are numbers, and the file is in their order");
            };
            clock = at;
        }
        let ns = |field: &str| (event[field].as_f64().unwrap_or(-1.0) * 1000.0).round() as i64;
        match event["ph"].as_str() {
            Some("X") => {
                let Some(row) = event["tid"].as_u64() else { return fail("a slice has a row") };
                if ns("dur") < 0 || !event["cat"].is_string() {
                    return fail("a slice has a duration and a category");
                }
                rows.entry(row).or_default().push((ns("ts"), ns("ts") + ns("dur")));
            }
            Some("C") => {
                let series = event["args"].as_object();
                if !series.is_some_and(|s| !s.is_empty() && s.values().all(Value::is_number)) {
                    return fail("a counter has series of numbers");
                }
            }
            Some("M") => match event["name"].as_str() {
                Some("process_name" | "thread_name") if event["args"]["name"].is_string() => {
                    titles.extend(event["tid"].as_u64());
                }
                Some("thread_sort_index") if event["args"]["sort_index"].is_u64() => {}
                _ => return fail("this metadata is unknown"),
            },
            _ => return fail("this phase is unknown"),
        }
    }
    for (row, slices) in &rows {
        if !titles.contains(row) {
            return Err(format!("row {row} has no name"));
        }
        let overlaps = slices.windows(2).find(|pair| pair[1].0 < pair[0].1);
        if let Some(pair) = overlaps {
            return Err(format!("slices of row {row} overlap: {pair:?}"));
        }
    }
    Ok(events.clone())
}

fn with_host() -> Machine {
    let rate = Bandwidth(2_000_000_000);
    let host = HostLink { read: rate, write: rate, latency: Nanos(3), memory: Bytes(120) };
    Machine { host: Some(host), ..machine(350) }
}

#[test]
fn every_step_is_a_valid_file_with_every_kernel_stall_and_transfer() {
    let trace = training(6, 50, 40, 30);
    for machine in [machine(300), machine(400), machine(4000), with_host()] {
        let simulation = simulate(&trace, &machine, Policy::Lru).unwrap();
        let text = chrome_trace(&simulated(&trace, &machine, &simulation));
        let events = validate(&text).unwrap();
        let count = |category: &str| events.iter().filter(|e| e["cat"] == category).count();
        assert_eq!(count("kernel"), trace.ops.len());
        assert_eq!(count("stall"), simulation.stalls.len());
        let moved = simulation.transfers.iter().filter(|t| t.ending == Ending::Moved);
        assert_eq!(count("transfer"), moved.count());
        let memory = events.iter().filter(|e| e["ph"] == "C" && e["name"] == "memory, bytes");
        let most = memory.map(|e| {
            e["args"]["resident"].as_u64().unwrap() + e["args"]["moving"].as_u64().unwrap()
        });
        assert!(most.max().unwrap() <= simulation.peak.0);
    }
}

#[test]
fn a_measured_step_may_have_any_number_of_transfers_side_by_side() {
    let transfer = |index: u64| TransferSpan {
        name: format!("w{index} \"quoted\"\n"),
        kind: crate::trace::StorageKind::Parameter,
        bytes: Bytes(10),
        direction: MigrationDirection::In,
        target: Target::Ssd,
        begin: Nanos(index),
        moved: Nanos(index + 1),
        end: Nanos(1000 + index),
        in_step: Bytes(10),
        urgent: false,
        ending: Ending::Moved,
    };
    let report = Report {
        duration: Nanos(2000),
        transfers: (0..60).map(transfer).collect(),
        ..Report::default()
    };
    let events = validate(&chrome_trace(&report)).unwrap();
    let names = events.iter().filter(|e| e["name"] == "thread_name").count();
    assert_eq!(names, 2 + 60, "kernels, waits, and sixty rows of reads");
}

#[test]
fn the_rules_are_checked() {
    let file = |events: &str| format!("{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[{events}]}}");
    let named = r#"{"name":"thread_name","ph":"M","pid":1,"tid":1,"args":{"name":"k"}}"#;
    let slice = |ts: &str, dur: &str| {
        format!(r#"{{"name":"a","ph":"X","cat":"kernel","pid":1,"tid":1,"ts":{ts},"dur":{dur}}}"#)
    };
    assert!(validate(&file(&format!("{named},{},{}", slice("0", "2"), slice("2", "1.5")))).is_ok());
    for wrong in [
        slice("0", "1"),
        format!("{named},{},{}", slice("0", "2"), slice("1.5", "1")),
        format!("{named},{},{}", slice("5", "1"), slice("1", "1")),
        format!("{named},{}", slice("\"0\"", "1")),
        r#"{"name":"c","ph":"C","pid":1,"ts":0,"args":{"a":"many"}}"#.to_owned(),
        r#"{"name":"q","ph":"Q","pid":1,"ts":0}"#.to_owned(),
    ] {
        assert!(validate(&file(&wrong)).is_err(), "{wrong}");
    }
}
