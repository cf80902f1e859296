use super::*;
use crate::algorithm1::{Algorithm1Options, algorithm1};
use crate::migration::MigrationDirection;
use crate::parts::{Cuts, PART_UNIT, PartedStep};
use crate::testing::{Builder, machine, training};
use crate::trace::Identity;

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

#[test]
fn a_row_says_that_its_eviction_is_awaited() {
    let mut plan = plan();
    assert!(!plan.to_json().contains("awaited"), "only where it is");
    plan.rows[1].awaited = true;
    let text = plan.to_json();
    assert_eq!(text.matches("\"awaited\":").count(), 1, "{text}");
    let read = PlanFile::from_json(&text).unwrap();
    assert_eq!(read, plan);
    let trace = training(12, 40, 100, 60);
    assert_eq!(read.numbered(&trace).unwrap().named(&trace), plan);
}

#[test]
fn a_plan_that_cleans_is_of_the_second_version() {
    let mut plan = plan();
    assert!(plan.to_json().contains("\"version\": 1,"), "older builds read it");
    let at = plan.rows.iter().position(|row| row.direction == MigrationDirection::Out).unwrap();
    plan.rows[at].stays = true;
    let text = plan.to_json();
    assert_eq!(text.matches("\"action\": \"clean\"").count(), 1, "{text}");
    assert!(text.contains("\"version\": 2,"), "{text}");
    let read = PlanFile::from_json(&text).unwrap();
    assert_eq!(read, plan);
    let trace = training(12, 40, 100, 60);
    assert_eq!(read.numbered(&trace).unwrap().named(&trace), plan);
    let later = text.replace("\"version\": 2,", "\"version\": 3,");
    let refused = PlanFile::from_json(&later).unwrap_err().to_string();
    assert!(refused.contains("version 3 is not known"), "{refused}");
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

const MIB: u64 = 1 << 20;

/// A step with storages of 10 MiB and one of 9, in parts of 4 MiB, and a plan that moves the second
/// part of each.
fn in_parts() -> (Trace, PartedStep, Plan) {
    let mut b = Builder::default();
    let sizes = [10 * MIB, 9 * MIB, MIB];
    for (index, size) in sizes.into_iter().enumerate() {
        b.global(&format!("weight{index}"), size);
    }
    b.ops(4, 10);
    b.birth(1, 10 * MIB);
    let trace = b.finish();
    let step = PartedStep::of(&trace, &Cuts::into_parts_of(&trace, Bytes(4 * MIB)));
    let second = |part: &&u32| {
        let part = step.trace.storages[**part as usize].part;
        part.is_some_and(|part| part.begin == Bytes(4 * MIB) || part.begin == Bytes(6 * MIB))
    };
    let all: Vec<u32> = (0..step.trace.storages.len() as u32).collect();
    let parts = all.iter().filter(second).map(|part| PlanStorage(*part));
    let way = (MigrationDirection::Out, Target::Ssd);
    let rows = parts.map(|part| Migration::unrolled(part, way, (2, 3), 4)).collect();
    let plan = Plan::new("made", &step.trace, &machine(900), rows, Expectation::default());
    (trace, step, plan)
}

#[test]
fn rows_of_parts_name_the_storage_and_its_bytes() {
    let (trace, step, plan) = in_parts();
    let file = plan.named_in_parts(&step);
    assert!(file.rows_of_parts >= 3 && file.rows_of_parts == file.rows.len());
    assert!(file.check_trace(&trace).is_ok(), "it is for the step with whole storages");
    let text = file.to_json();
    assert!(text.contains(r#""bytes": {"begin": 4194304, "length""#), "{text}");
    let read = PlanFile::from_json(&text).unwrap();
    assert_eq!((read.to_json(), &read), (text, &file));
    let (again, of_parts) = read.clone().in_parts(&trace).unwrap();
    let moved: Vec<_> = of_parts.rows.iter().map(|row| again.trace.label(row.storage)).collect();
    let wanted: Vec<_> = plan.rows.iter().map(|row| step.trace.label(row.storage)).collect();
    assert_eq!(moved, wanted);
    assert!(moved.contains(&"weight0, 4 to 8 MiB".to_owned()), "{moved:?}");
    // Who moves storages whole cannot follow it, and says so.
    let refused = read.numbered(&trace).unwrap_err().to_string();
    assert!(refused.contains("is a part, and storages are whole here"), "{refused}");
    let refused = compile(&of_parts, &trace).unwrap_err().to_string();
    assert!(refused.contains("training moves storages whole"), "{refused}");
    // A plan of whole storages is none of parts.
    let whole = self::plan();
    let trace = training(12, 40, 100, 60);
    let (step, numbered) = whole.clone().in_parts(&trace).unwrap();
    assert_eq!((step.trace, numbered.named(&trace)), (trace, whole));
}

#[test]
fn bytes_that_are_no_part_are_refused() {
    let (trace, step, plan) = in_parts();
    let file = plan.named_in_parts(&step);
    // What is said where the second of two rows of a storage moves these bytes.
    let told = |begin: u64, length: Option<u64>| {
        let mut file = file.clone();
        let of = |bytes| NamedBytes { storage: Identity::Name("weight1".to_owned()), bytes };
        let range = |begin, length| ByteRange { begin: Bytes(begin), length: Bytes(length) };
        file.rows.truncate(2);
        file.rows[0].storage = of(Some(range(4 * MIB, 2 * MIB)));
        file.rows[1].storage = of(length.map(|length| range(begin, length)));
        let read = PlanFile::from_json(&file.to_json());
        let made = read.and_then(|read| read.in_parts(&trace));
        made.map(|_| ()).map_err(|error| error.to_string())
    };
    assert_eq!(told(4 * MIB, Some(2 * MIB)), Ok(()), "the same part twice");
    assert_eq!(told(0, Some(4 * MIB)), Ok(()));
    assert_eq!(told(6 * MIB, Some(3 * MIB)), Ok(()), "the last ends where the storage does");
    for (begin, length, why) in [
        (MIB, Some(MIB), "begins at a multiple of 2097152 bytes"),
        (0, Some(0), "but a part has bytes"),
        (0, Some(MIB), "all parts but the last are multiples of 2097152 bytes"),
        (0, Some(6 * MIB), "which row 0 moves, too"),
        (4 * MIB, Some(4 * MIB), "which row 0 moves, too"),
        (6 * MIB, Some(4 * MIB), "which has 9437184"),
        (10 * MIB, Some(PART_UNIT), "which has 9437184"),
        (6 * MIB, Some(u64::MAX), "which has 9437184"),
        (0, None, "and row 1 moves all of it"),
    ] {
        let error = told(begin, length).unwrap_err();
        assert!(error.contains(why) && error.contains("weight1"), "{why}: {error}");
    }
}
