//! The commands on the smallest trace that has to move something.

use std::path::PathBuf;
use std::process::{Command, Output};

const TRACE: &str = r#"{"format": "tidelog-trace", "version": 1, "name": "two weights", "storages": [
  {"identity": {"name": "a"}, "size": 1000000, "kind": "parameter", "movable": true},
  {"identity": {"name": "b"}, "size": 1000000, "kind": "parameter", "movable": true}],
 "ops": [
  {"name": "one", "duration_ns": 1000, "fingerprint": "01", "uses": [{"storage": 0, "access": "read"}]},
  {"name": "two", "duration_ns": 1000, "fingerprint": "02", "uses": [{"storage": 1, "access": "read"}]}]}"#;

const MACHINE: &str = r#"{"budget": 1000000, "staging": 0, "verify": 1000000000000,
 "ssd": {"read": 1000000000, "write": 1000000000, "latency_ns": 0}}"#;

fn file(name: &str, text: &str) -> PathBuf {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("commands");
    std::fs::create_dir_all(&directory).unwrap();
    let path = directory.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tidelog-plan")).args(arguments).output().unwrap()
}

#[test]
fn a_plan_is_made_simulated_and_drawn() {
    let trace = file("trace.json", TRACE);
    let machine = file("machine.json", MACHINE);
    let inputs = [trace.to_str().unwrap(), machine.to_str().unwrap()];
    let made = run(&["plan", inputs[0], inputs[1]]);
    assert!(made.status.success(), "{made:?}");
    let plan = file("plan.json", std::str::from_utf8(&made.stdout).unwrap());
    let with_plan = ["--plan", plan.to_str().unwrap()];
    let simulated =
        run(&["simulate", inputs[0], inputs[1], with_plan[0], with_plan[1], "--output", "json"]);
    let text = String::from_utf8(simulated.stdout).unwrap();
    assert!(text.contains("\"ssd_read\": 2000000"), "{text}");
    let page = run(&["report", inputs[0], inputs[1], with_plan[0], with_plan[1]]);
    assert!(String::from_utf8(page.stdout).unwrap().contains("<html"));
}

#[test]
fn the_bound_stands_beside_every_policy() {
    let trace = file("compared-trace.json", TRACE);
    let machine = file("compared-machine.json", MACHINE);
    let found = run(&["compare", trace.to_str().unwrap(), machine.to_str().unwrap()]);
    let text = String::from_utf8(found.stdout).unwrap();
    for policy in ["lower bound", "lru", "algorithm1, as printed", "tidelog"] {
        assert!(text.lines().any(|line| line.starts_with(policy)), "{text}");
    }
}

#[test]
fn what_is_wrong_is_said_with_the_file() {
    let trace = file("wrong-trace.json", TRACE);
    let machine = file("wrong-machine.json", "{}");
    let refused = run(&["compare", trace.to_str().unwrap(), machine.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(1));
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains("wrong-machine.json is not a machine"), "{said}");
    assert_eq!(run(&["plan"]).status.code(), Some(64));
}
