use super::*;
use crate::testing::{Builder, random_trace, training};
use tidelog_random::Random;

#[test]
fn a_trace_survives_its_file() {
    let mut random = Random::new(1);
    for case in 0..200 {
        let trace = random_trace(&mut random, 20, 10);
        let text = trace.to_json();
        assert_eq!(Trace::from_json(&text).unwrap(), trace, "case {case}");
        assert_eq!(trace.to_json(), text, "case {case}");
    }
}

#[test]
fn a_file_has_one_op_per_line() {
    let trace = training(3, 10, 10, 5);
    let lines = trace.to_json().lines().filter(|line| line.contains("\"duration_ns\"")).count();
    assert_eq!(lines, trace.ops.len());
}

#[test]
fn other_formats_and_versions_are_refused() {
    let text = training(2, 1, 1, 1).to_json();
    let newer = text.replacen("\"version\": 1", "\"version\": 2", 1);
    assert!(matches!(Trace::from_json(&newer), Err(TraceError::Version { found: 2 })));
    let other = text.replacen(FORMAT, "tidelog-plan", 1);
    assert!(matches!(Trace::from_json(&other), Err(TraceError::NotATrace { .. })));
    assert!(matches!(Trace::from_json("{}"), Err(TraceError::NotATrace { .. })));
    assert!(matches!(Trace::from_json("[1, "), Err(TraceError::Json(_))));
    let misspelt = text.replacen("\"storages\"", "\"storage\"", 1);
    assert!(matches!(Trace::from_json(&misspelt), Err(TraceError::Json(_))));
}

/// Returns the error of a trace after `change`.
fn refusal(change: impl FnOnce(&mut Trace)) -> String {
    let mut trace = training(2, 10, 10, 5);
    change(&mut trace);
    trace.validate().expect_err("the change makes it invalid").to_string()
}

#[test]
fn a_contradiction_is_named_with_its_op_and_storage() {
    let activation = PlanStorage(4);
    let use_of = |storage, previous| Use { storage, access: Access::Read, previous };
    let cases = [
        (refusal(|t| t.ops.clear()), "no ops"),
        (
            refusal(|t| t.ops[1].uses.push(use_of(PlanStorage(99), false))),
            "op 1 (op1) refers to storage 99",
        ),
        (
            refusal(|t| t.ops[5].uses.push(use_of(activation, false))),
            "op 5 (op5): storage 4 (output 0 of op 0) is used after it died",
        ),
        (refusal(|t| t.ops[0].births.clear()), "is used before it is born"),
        (
            refusal(|t| {
                t.ops[3].births.clear();
                t.ops[4].uses.pop();
                t.ops[0].deaths.pop();
            }),
            "that op does not make it",
        ),
        (refusal(|t| t.ops[1].births[0].slot = 3), "under another identity"),
        (
            refusal(|t| t.ops[4].deaths.push(Death { storage: PlanStorage(0), previous: false })),
            "is global but dies",
        ),
        (
            refusal(|t| t.ops[5].deaths.push(Death { storage: activation, previous: false })),
            "dies twice",
        ),
        (refusal(|t| t.ops[2].uses.push(use_of(PlanStorage(1), false))), "listed twice"),
        (refusal(|t| t.ops[0].uses.push(use_of(PlanStorage(1), true))), "has no previous instance"),
        (refusal(|t| t.ops[1].uses.push(use_of(PlanStorage(6), true))), "used after it died"),
        (
            refusal(|t| t.storages[1].identity = t.storages[0].identity.clone()),
            "storages 0 and 1 are both layer0.weight",
        ),
        (refusal(|t| t.storages[1].size = Bytes(1 << 60)), "layer1.weight"),
        (refusal(|t| t.ops[2].duration = Nanos(u64::MAX)), "op 2"),
    ];
    for (said, wanted) in cases {
        assert!(said.contains(wanted), "{said:?} does not say {wanted:?}");
    }
}

#[test]
fn a_storage_used_one_iteration_late_must_die_there() {
    let mut b = Builder::default();
    let (first, second) = (b.op(1), b.op(1));
    let late = b.birth(second, 8);
    b.trace.ops[first].uses.push(Use { storage: late, access: Access::Read, previous: true });
    assert!(b.trace.validate().unwrap_err().to_string().contains("one iteration late"));
    b.death(first, late, true);
    b.finish();
}

#[test]
fn fingerprints_tell_iterations_apart_but_not_their_times() {
    let trace = training(3, 10, 10, 5);
    let mut slower = trace.clone();
    slower.ops[1].duration = Nanos(999);
    slower.name = "elsewhere".to_owned();
    assert_eq!(slower.fingerprint(), trace.fingerprint());
    let mut wider = trace.clone();
    wider.storages[2].size = Bytes(11);
    assert_ne!(wider.fingerprint(), trace.fingerprint());
    let mut other = trace.clone();
    other.ops[4].fingerprint += 1;
    assert_ne!(other.fingerprint(), trace.fingerprint());
}
