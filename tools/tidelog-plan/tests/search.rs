//! One search behind every command: none knows a better plan than another.

mod common;

use common::{file, json, run, text};
use tidelog_planner::instances::{CheckpointedStep, LayeredStep, deep_network};
use tidelog_planner::trace::Trace;
use tidelog_planner::units::Bytes;

/// A network of which about half fits.
fn inputs(name: &str) -> (String, String) {
    let trace = file(&format!("{name}-trace.json"), &deep_network(14).to_json());
    let machine = r#"{"budget": 20000000, "staging": 0, "verify": 1000000000000,
        "ssd": {"read": 12000000000, "write": 9000000000, "latency_ns": 1000}}"#;
    (trace, file(&format!("{name}-machine.json"), machine))
}

#[test]
fn no_command_knows_a_better_plan_than_plan_gives() {
    let (trace, machine) = inputs("best");
    let plan = json(&run(&["plan", &trace, &machine]));
    let time = plan["expects"]["time_ns"].as_u64().unwrap();
    let json_of = |command: &str| json(&run(&[command, &trace, &machine, "--output", "json"]));
    assert_eq!(json_of("simulate")[0]["time_ns"].as_u64(), Some(time));
    let explained = json_of("explain");
    assert_eq!(explained["time_ns"].as_u64(), Some(time));
    let prices = explained["prices"].as_array().unwrap();
    let chosen: Vec<_> = prices.iter().filter(|price| price["chosen"] == true).collect();
    assert_eq!(chosen.len(), 1, "{prices:?}");
    assert_eq!(chosen[0]["time_ns"].as_u64(), Some(time));
    let shortest = prices[0]["time_ns"].as_u64().unwrap();
    assert!(time <= shortest + shortest / 100);
    assert!(prices.len() > 1, "{prices:?}");
    let said = text(&run(&["explain", &trace, &machine]));
    assert!(said.contains("The price of other plans") && said.contains("this plan"), "{said}");
    let page = text(&run(&["report", &trace, &machine, "--quick"]));
    assert!(page.contains("What other plans would cost"));
    let compared = json_of("compare");
    let ours = compared.as_array().unwrap().iter().find(|row| row["policy"] == "tidelog").unwrap();
    assert_eq!(ours["time_ns"].as_u64(), Some(time));
    let drives = ["--drive", "990 PRO 2TB", "--count", "2"];
    let worn = [&["endurance", &trace, &machine, "--output", "json"][..], &drives].concat();
    let worn = json(&run(&worn));
    assert_eq!(worn["wear"]["step_ns"].as_u64(), Some(time));
    for point in worn["curve"].as_array().unwrap() {
        let (step, pause) = (&point["budget"]["step_ns"], &point["budget"]["pause_ns"]);
        let runs = step.as_u64().unwrap() - pause.as_u64().unwrap();
        assert!(runs * 101 >= time * 100, "{runs} under a budget, {time} without");
    }
}

#[test]
fn a_plan_is_there_however_little_time_there_is_and_gets_no_worse_with_more() {
    let (trace, machine) = inputs("soon");
    let time = |within: &[&str]| {
        let plan = json(&run(&[&["plan", &trace, &machine][..], within].concat()));
        plan["expects"]["time_ns"].as_u64().unwrap()
    };
    let (soon, late) = (time(&["--within", "0ms"]), time(&["--within", "2m"]));
    assert!(late < soon, "{late} in the end, {soon} at once");
    assert_eq!(late, time(&[]), "the end comes before two minutes are over");
    let said = run(&["plan", &trace, &machine, "--within", "30"]);
    assert_eq!(said.status.code(), Some(64));
    assert!(String::from_utf8_lossy(&said.stderr).contains("write 300ms, 30s or 2m"));
    assert_eq!(text(&run(&["plan", &trace, &machine])), text(&run(&["plan", &trace, &machine])));
}

/// Two micro-batches over layers of which a part fits.
#[test]
fn every_order_is_planned_and_a_plan_finds_its_own() {
    let trace = file("order-trace.json", &LayeredStep::of(2, 2).trace().to_json());
    let machine = r#"{"budget": 500000, "staging": 0, "verify": 1000000000000,
        "ssd": {"read": 1000000000, "write": 1000000000, "latency_ns": 0}}"#;
    let machine = file("order-machine.json", machine);
    let plan = |order: &str| json(&run(&["plan", &trace, &machine, "--order", order]));
    let time = |plan: &serde_json::Value| plan["expects"]["time_ns"].as_u64().unwrap();
    let orders = ["own", "lazy", "early", "layer-wise", "layer-wise-lazy", "layer-wise-early"];
    let times: Vec<u64> = orders.iter().map(|order| time(&plan(order))).collect();
    let own = times[0];
    let best = plan("best");
    assert_eq!(Some(time(&best)), times.iter().copied().min());
    assert!(time(&best) < own);
    assert!(best["trace"].as_str().unwrap().contains(", order "), "{}", best["trace"]);
    // Nobody has to say again which order it is.
    let kept = file("order-plan.json", &best.to_string());
    let with_plan = ["simulate", &trace, &machine, "--plan", &kept, "--output", "json"];
    assert_eq!(json(&run(&with_plan))[0]["time_ns"].as_u64(), Some(time(&best)));
    let said = text(&run(&["explain", &trace, &machine, "--within", "100ms"]));
    let line = |order: &str| said.lines().any(|line| line.trim_start().starts_with(order));
    assert!(orders.into_iter().all(line), "{said}");
    let bounded = json(&run(&["compare", &trace, &machine, "--order", "lazy", "--output", "json"]));
    assert!(bounded[0]["time_ns"].as_u64().unwrap() <= times[1]);
    let refused = run(&["compare", &trace, &machine, "--order", "best"]);
    assert_eq!(refused.status.code(), Some(64));
}

#[test]
fn a_step_without_such_an_order_says_why() {
    let (trace, machine) = inputs("no-order");
    let refused = run(&["plan", &trace, &machine, "--order", "layer-wise"]);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("has no micro-batches one after the other"), "{said}");
}

/// Layers that are checkpointed, with memory for some of what they make.
#[test]
fn what_is_computed_again_is_chosen_and_a_plan_finds_its_own() {
    let step = CheckpointedStep::of(8, 1);
    let trace = file("recompute-trace.json", &step.checkpointed().to_json());
    let machine = r#"{"budget": 1250000, "staging": 0, "verify": 1000000000000,
        "ssd": {"read": 100000000, "write": 100000000, "latency_ns": 0}}"#;
    let machine = file("recompute-machine.json", machine);
    let plan = |what: &str| json(&run(&["plan", &trace, &machine, "--recompute", what]));
    let time = |plan: &serde_json::Value| plan["expects"]["time_ns"].as_u64().unwrap();
    let [own, none, best] = ["own", "none", "best"].map(plan);
    assert!(time(&best) < time(&own).min(time(&none)), "{own} {none} {best}");
    assert_eq!(own["left_out"], serde_json::Value::Null);
    assert_eq!(none["left_out"].as_array().unwrap().len(), 8);
    let left_out = best["left_out"].as_array().unwrap().len();
    assert!(best["trace"].as_str().unwrap().ends_with(&format!("without {left_out} of 8 reruns")));
    // What is left without any is the step that was never checkpointed.
    let uncheckpointed = file("recompute-plain.json", &step.plain().to_json());
    assert_eq!(time(&json(&run(&["plan", &uncheckpointed, &machine]))), time(&none));
    // Nobody has to say again what is left out.
    let kept = file("recompute-plan.json", &best.to_string());
    let with_plan = ["simulate", &trace, &machine, "--plan", &kept, "--output", "json"];
    assert_eq!(json(&run(&with_plan))[0]["time_ns"].as_u64(), Some(time(&best)));
    let said = text(&run(&["explain", &trace, &machine]));
    let line = |what: &str| said.lines().any(|line| line.trim_start().starts_with(what));
    for what in ["own  (8 of 8 reruns", "none (0 of 8 reruns", "best ("] {
        assert!(line(what), "{what}: {said}");
    }
    let compare = ["compare", &trace, &machine, "--recompute", "best", "--output", "json"];
    let bound = json(&run(&compare))[0]["time_ns"].as_u64().unwrap();
    assert!((time(&best) * 8 / 10..=time(&best)).contains(&bound), "{bound} {best}");
    let early = ["--order", "early", "--recompute", "best"];
    assert!(run(&[&["plan", &trace, &machine][..], &early].concat()).status.code() == Some(1));
    let refused = run(&[&["compare", &trace, &machine][..], &early].concat());
    assert_eq!(refused.status.code(), Some(64), "{refused:?}");
    let refused = run(&["plan", &uncheckpointed, &machine, "--recompute", "best"]);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("recorded without activation checkpointing"), "{said}");
}

/// Storages of tens of MiB, and a little less memory than all of them take.
#[test]
fn parts_move_where_that_is_better_and_a_plan_finds_its_own() {
    let mut large: Trace = deep_network(8);
    large.storages.iter_mut().for_each(|storage| storage.size = Bytes(32 * storage.size.0));
    let trace = file("parts-trace.json", &large.to_json());
    let machine = r#"{"budget": 600000000, "staging": 0, "verify": 1000000000000,
        "ssd": {"read": 300000000000, "write": 250000000000, "latency_ns": 1000}}"#;
    let machine = file("parts-machine.json", machine);
    let plan = |parts: &str| json(&run(&["plan", &trace, &machine, "--parts", parts]));
    let [whole, best] = ["whole", "best"].map(plan);
    let figures = |plan: &serde_json::Value| {
        let of = |what: &serde_json::Value| what.as_u64().unwrap();
        (of(&plan["expects"]["bytes"]["ssd_written"]), of(&plan["expects"]["time_ns"]))
    };
    assert_eq!(whole, json(&run(&["plan", &trace, &machine])));
    assert!(figures(&best) < figures(&whole), "{best} {whole}");
    assert_eq!(best["fingerprint"], whole["fingerprint"], "it is for the same step");
    let of_parts = |plan: &serde_json::Value| {
        plan["rows"].as_array().unwrap().iter().filter(|row| row["bytes"].is_object()).count()
    };
    assert!(of_parts(&best) > 0 && of_parts(&whole) == 0, "{best}");
    // Nobody has to say again that it is in parts.
    let kept = file("parts-plan.json", &best.to_string());
    let with_plan = ["simulate", &trace, &machine, "--plan", &kept, "--output", "json"];
    let simulated = json(&run(&with_plan));
    assert_eq!(simulated[0]["time_ns"].as_u64(), Some(figures(&best).1));
    assert_eq!(simulated[0]["ssd_written"].as_u64(), Some(figures(&best).0));
    let said = text(&run(&["explain", &trace, &machine]));
    for what in ["whole (storages move whole): ", "best  (", "(--parts)"] {
        assert!(said.contains(what), "{what}: {said}");
    }
    let explained = json(&run(&["explain", &trace, &machine, "--plan", &kept, "--output", "json"]));
    assert_eq!(explained["parts"][1]["time_ns"].as_u64(), Some(figures(&best).1));
    let count = |what: &str| explained["parts"][1][what].as_u64();
    assert!(count("parts_of_storages") > count("storages_in_parts"), "{}", explained["parts"]);
    let names = explained["storages"].as_array().unwrap();
    assert!(names.iter().any(|one| one["name"].as_str().unwrap().ends_with(" MiB")), "{names:?}");
    let compare = ["compare", &trace, &machine, "--parts", "best", "--output", "json"];
    let compared = json(&run(&compare));
    let row = |name: &str| {
        let found = compared.as_array().unwrap().iter().find(|row| row["policy"] == name);
        found.unwrap_or_else(|| panic!("{name}: {compared}"))["time_ns"].as_u64()
    };
    assert_eq!(row("tidelog, in parts"), Some(figures(&best).1));
    assert!(row("lower bound") <= row("tidelog, in parts"));
    let refused = run(&["plan", &trace, &machine, "--parts", "best", "--policy", "algorithm1"]);
    assert_eq!(refused.status.code(), Some(64), "{refused:?}");
    let mut wrong = best.clone();
    for row in wrong["rows"].as_array_mut().unwrap() {
        if let Some(begin) = row.pointer_mut("/bytes/begin") {
            *begin = (begin.as_u64().unwrap() + 4096).into();
        }
    }
    let wrong = file("parts-wrong.json", &wrong.to_string());
    let refused = run(&["simulate", &trace, &machine, "--plan", &wrong]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains("parts-wrong.json: row ") && said.contains("multiple"), "{said}");
}
