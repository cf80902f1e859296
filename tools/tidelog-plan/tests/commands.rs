//! The commands on the smallest trace that has to move something.

mod common;

use common::{MACHINE, TRACE, file, run};

#[test]
fn a_plan_is_made_simulated_and_drawn() {
    let trace = file("trace.json", TRACE);
    let machine = file("machine.json", MACHINE);
    let inputs = [trace.as_str(), machine.as_str()];
    let made = run(&["plan", inputs[0], inputs[1]]);
    assert!(made.status.success(), "{made:?}");
    let plan = file("plan.json", std::str::from_utf8(&made.stdout).unwrap());
    let with_plan = ["--plan", plan.as_str()];
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
    let found = run(&["compare", &trace, &machine]);
    let text = String::from_utf8(found.stdout).unwrap();
    for policy in ["lower bound", "lru", "algorithm1, as printed", "tidelog"] {
        assert!(text.lines().any(|line| line.starts_with(policy)), "{text}");
    }
}

#[test]
fn what_is_wrong_is_said_with_the_file() {
    let trace = file("wrong-trace.json", TRACE);
    let machine = file("wrong-machine.json", "{}");
    let refused = run(&["compare", &trace, &machine]);
    assert_eq!(refused.status.code(), Some(1));
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains("wrong-machine.json is not a machine"), "{said}");
    assert_eq!(run(&["plan"]).status.code(), Some(64));
}
