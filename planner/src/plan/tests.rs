use super::*;
use crate::algorithm1::{Algorithm1Options, algorithm1};
use crate::migration::MigrationDirection;
use crate::testing::{Builder, machine, training};

fn plan() -> PlanFile {
    let trace = training(12, 40, 100, 60);
    algorithm1(&trace, &machine(900), Algorithm1Options::default()).named(&trace)
}

#[test]
fn a_plan_survives_its_file() {
    let plan = plan();
    assert!(plan.rows.len() > 4);
    let text = plan.to_json();
    let read = PlanFile::from_json(&text).unwrap();
    assert_eq!(read, plan);
    assert_eq!(read.to_json(), text);
    let trace = training(12, 40, 100, 60);
    assert_eq!(read.numbered(&trace).unwrap().named(&trace), plan);
}

/// Numbers count in the order of the trace; a file's rows stand in the order of names.
#[test]
fn rows_that_begin_together_stand_by_name() {
    let mut b = Builder::default();
    let storages = ["b", "a"].map(|name| b.global(name, 10));
    b.ops(4, 10);
    let trace = b.finish();
    let way = (MigrationDirection::Out, Target::Ssd);
    let rows = storages.map(|storage| Migration::unrolled(storage, way, (1, 2), 4)).to_vec();
    let plan = Plan::new("made", &trace, &machine(900), rows, Expectation::default());
    let names: Vec<_> = plan.named(&trace).rows.iter().map(|row| row.storage.to_string()).collect();
    assert_eq!(names, ["a", "b"]);
}

#[test]
fn rows_stand_one_per_line_in_the_order_they_begin() {
    let plan = plan();
    let lines = plan.to_json().lines().filter(|line| line.contains("\"deadline\"")).count();
    assert_eq!(lines, plan.rows.len());
    assert!(plan.rows.is_sorted_by_key(|row| row.start));
}

#[test]
fn other_formats_and_versions_are_refused() {
    let text = plan().to_json();
    let newer = text.replacen("\"version\": 1", "\"version\": 7", 1);
    let error = PlanFile::from_json(&newer).unwrap_err();
    assert!(matches!(error, PlanError::Version { found: 7 }));
    assert!(error.to_string().contains("plan again"));
    let other = text.replacen(FORMAT, "tidelog-trace", 1);
    assert!(matches!(PlanFile::from_json(&other), Err(PlanError::NotAPlan { .. })));
    assert!(matches!(PlanFile::from_json("x"), Err(PlanError::Json(_))));
}

#[test]
fn a_row_outside_the_iteration_is_refused() {
    let mut plan = plan();
    plan.rows[1].deadline = OpIndex(plan.ops);
    let error = PlanFile::from_json(&plan.to_json()).unwrap_err();
    assert!(matches!(error, PlanError::OpOutOfRange { row: 1, .. }));
}

#[test]
fn a_plan_is_refused_for_another_iteration() {
    let plan = plan();
    assert!(plan.check_trace(&training(12, 40, 100, 999)).is_ok(), "times may differ");
    let error = plan.check_trace(&training(13, 40, 100, 60)).unwrap_err();
    assert!(matches!(error, PlanError::OtherTrace { .. }));
}
