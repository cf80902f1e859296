//! The commands on the smallest trace that has to move something.

mod common;

use common::{MACHINE, TRACE, file, json, run, text};

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
    assert!(said.contains("wrong-machine.json: not a machine: "), "{said}");
    assert_eq!(run(&["plan"]).status.code(), Some(64));
}

#[test]
fn a_machine_on_which_nothing_ends_is_refused_by_every_command_and_by_name() {
    let trace = file("endless-trace.json", TRACE);
    for (field, change) in [
        ("verify", MACHINE.replace("\"verify\": 1000000000000", "\"verify\": 0")),
        ("ssd.read", MACHINE.replace("\"read\": 1000000000", "\"read\": 0")),
        ("ssd.write", MACHINE.replace("\"write\": 1000000000", "\"write\": 0")),
        ("budget", MACHINE.replace("\"budget\": 1000000", "\"budget\": 0")),
        ("ssd.latency_ns", MACHINE.replace("\"latency_ns\": 0", "\"latency_ns\": 9e18")),
    ] {
        let machine = file("endless-machine.json", &change);
        for command in ["plan", "simulate", "compare", "explain", "endurance", "export", "report"] {
            let refused = run(&[command, &trace, &machine]);
            let said = String::from_utf8(refused.stderr).unwrap();
            assert_eq!(refused.status.code(), Some(1), "{command} {field}: {said}");
            assert!(said.contains("endless-machine.json: "), "{command}: {said}");
            assert!(said.contains(field), "{command}: {said}");
        }
    }
    // Neither zero nor absurd, but not for this trace.
    let slow = MACHINE.replace("\"read\": 1000000000", "\"read\": 1");
    let huge = TRACE.replace("1000000", "1000000000");
    let (slow, huge) = (file("slow-machine.json", &slow), file("huge-trace.json", &huge));
    let refused = run(&["compare", &huge, &slow]);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("ssd.read is 1 bytes per second: a step of this trace"), "{said}");
}

#[test]
fn compare_and_report_tell_one_bound() {
    let trace = file("bound-trace.json", TRACE);
    let machine = file("bound-machine.json", MACHINE);
    let rows = json(&run(&["compare", &trace, &machine, "--output", "json"]));
    let bound = rows[0]["time_ns"].as_u64().unwrap();
    let page = text(&run(&["report", &trace, &machine]));
    let told = tidelog_planner::report::text::time(tidelog_planner::units::Nanos(bound));
    assert!(page.contains(&told), "{told}");
}

#[test]
fn what_does_not_fit_and_what_belongs_elsewhere_is_told_in_the_user_s_words() {
    let (trace, machine) = (file("told-trace.json", TRACE), file("told-machine.json", MACHINE));
    let both = "\"uses\": [{\"storage\": 1, \"access\": \"read\"}, ";
    let both = file("told-both.json", &TRACE.replacen("\"uses\": [", both, 1));
    let refused = run(&["simulate", &both, &machine]);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(
        said.contains("largest: a (976.5 KiB), b (976.5 KiB);") && !said.contains("storage "),
        "{said}"
    );
    assert!(said.contains("2000000 bytes (1.9 MiB)"), "{said}");
    let plan = text(&run(&["plan", &trace, &machine]));
    let plan = file("told-plan.json", &plan);
    let other =
        file("told-other.json", &TRACE.replace("two weights", "three").replace("\"02\"", "\"03\""));
    let refused = run(&["simulate", &other, &machine, "--plan", &plan]);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(
        said.contains("told-plan.json: the plan was made for the step \"two weights\""),
        "{said}"
    );
    assert!(said.contains("plan again"), "{said}");
}
