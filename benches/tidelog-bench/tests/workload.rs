//! Plans that are replayed: their puts and gets, their deadlines, and what is refused.

mod common;

use std::fs;

use common::{bench, temporary};
use serde_json::Value;
use tidelog_planner::plan::Plan;
use tidelog_planner::trace::Trace;
use tidelog_tests::machine::{Directory, Ran};

/// Three ops of 20 ms. The first changes the weight, which is away during the others.
const TRACE: &str = r#"{"format": "tidelog-trace", "version": 1, "name": "one weight", "storages": [
  {"identity": {"name": "weight"}, "size": 1000000, "kind": "parameter", "movable": true}],
 "ops": [
  {"name": "one", "duration_ns": 20000000, "fingerprint": "01", "uses": [{"storage": 0, "access": "update"}]},
  {"name": "two", "duration_ns": 20000000, "fingerprint": "02", "uses": []},
  {"name": "three", "duration_ns": 20000000, "fingerprint": "03", "uses": []}]}"#;

const JSON: &str = "--output-format=json";

const MACHINE: &str =
    r#"{"budget": 1, "staging": 0, "verify": 1, "ssd": {"read": 1, "write": 1, "latency_ns": 0}}"#;

const ROWS: &str = r#"[
  {"start": 1, "deadline": 2, "action": "evict", "target": "ssd", "storage": {"name": "weight"}},
  {"start": 2, "deadline": 0, "action": "prefetch", "target": "ssd", "storage": {"name": "weight"}}]"#;

/// Replays that plan, with ops of other lengths if wanted; the files lie in a directory.
fn replay(directory: &Directory, ops: &str, more: &[&str]) -> Ran {
    let text = TRACE.replace("20000000", ops);
    let trace = Trace::from_json(&text).unwrap();
    let machine = serde_json::from_str(MACHINE).unwrap();
    let nothing = Plan::new("test", &trace, &machine, Vec::new(), <_>::default());
    let mut plan = nothing.named(&trace);
    plan.rows = serde_json::from_str(ROWS).unwrap();
    let [plan_path, trace_path] = ["plan.json", "trace.json"].map(|name| directory.at(name));
    fs::write(&plan_path, plan.to_json()).unwrap();
    fs::write(&trace_path, text).unwrap();
    let workload = [format!("--workload={plan_path}"), format!("--trace={trace_path}")];
    let pool = format!("--filename={}", directory.at("pool"));
    let job = ["--name=replay", "--level=log", "--ioengine=tidelog-uring"];
    bench(&[&job[..], &[&workload[0], &workload[1], &pool], more].concat())
}

fn figures(ran: Ran) -> Value {
    ran.expect(0).json()["jobs"][0].clone()
}

#[test]
fn a_plan_is_replayed_at_the_pace_of_its_ops_and_its_deadlines_are_watched() {
    let directory = temporary("workload");
    let job = figures(replay(&directory, "20000000", &["--loops=3", JSON]));
    let moved = |way: &str| job[way]["io_bytes"].as_u64().unwrap();
    assert_eq!((moved("read"), moved("write")), (3_000_000, 3_000_000));
    let workload = &job["tidelog"]["workload"];
    assert_eq!(workload["iterations"], 3);
    let nanos = |name: &str| workload[name].as_u64().unwrap();
    let (time, stall) = (nanos("iteration_ns"), nanos("stall_ns"));
    // Waking up late does not add up: an iteration is its ops and what they waited, and nothing
    // else.
    assert!(time.abs_diff(60_000_000 + stall) < 10, "{workload}");
    // The last get's op is never reached.
    assert_eq!(workload["transfers"], 5);
}

#[test]
fn ops_wait_for_what_is_late_and_the_waiting_is_told() {
    let directory = temporary("late");
    // Ops of a nanosecond leave no time for a million bytes.
    let job = figures(replay(&directory, "1", &["--loops=5", JSON]));
    let workload = &job["tidelog"]["workload"];
    let number = |name: &str| workload[name].as_u64().unwrap();
    assert_eq!(
        (number("transfers"), number("missed_deadlines"), number("stalled_ops")),
        (9, 9, 9),
        "{workload}"
    );
    let late = workload["lateness_ns"]["max"].as_u64().unwrap();
    assert!(late > 1000 && number("stall_ns") * 5 >= late, "{workload}");
    let normal = replay(&directory, "1", &[]).expect(0).out;
    assert!(normal.contains("1 iterations of ") && normal.contains("missed, "), "{normal}");
}

#[test]
fn what_a_plan_decides_is_refused_beside_it() {
    let directory = temporary("decided");
    replay(&directory, "1", &["--iodepth=4"]).expect(64).says("iodepth: the plan decides this");
    replay(&directory, "1", &["--level=raw"]).expect(64).says("give level=log");
    let plan = format!("--workload={}", directory.at("plan.json"));
    let trace = format!("--trace={}", directory.at("trace.json"));
    let file = format!("--filename={}", directory.at("pool"));
    let job = ["--name=replay", "--level=log", "--ioengine=tidelog-uring", &file];
    bench(&[&job[..], &[&plan]].concat()).expect(64).says("give workload and trace");
    let other = TRACE.replace("\"03\"", "\"04\"");
    fs::write(directory.at("trace.json"), other).unwrap();
    bench(&[&job[..], &[&plan, &trace]].concat()).expect(64).says("plan again");
}
