//! Trace files and plan files, and what is made of those that are accepted.

use tidelog_planner::algorithm1::{Algorithm1Options, algorithm1};
use tidelog_planner::bound::{Effort, lower_bound};
use tidelog_planner::cost::{Machine, SsdLink};
use tidelog_planner::hardware::{MachineFile, Mix};
use tidelog_planner::instances::magnified;
use tidelog_planner::migration::{Migration, MigrationDirection, Target};
use tidelog_planner::parts::{Cuts, PART_UNIT, PartedStep};
use tidelog_planner::plan::{Expectation, Plan, PlanFile, compile};
use tidelog_planner::simulate::{Policy, SimulateError, simulate};
use tidelog_planner::tidelog::{self, tidelog};
use tidelog_planner::trace::{
    Access, Birth, Death, Identity, Op, PlanStorage, Storage, StorageKind, Trace, Use,
};
use tidelog_planner::units::{Bandwidth, Bytes, Nanos, OpIndex};

/// Longer iterations are only read: planning them takes its time and shows nothing new.
const LENGTH_MAX: usize = 64;

/// Factor by which the trace's storages have three parts and a bit.
const LARGE: u64 = 1 << 16;

/// A trace file's text.
pub(super) fn run_trace(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let trace = match Trace::from_json(text) {
        Ok(trace) => trace,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let again = Trace::from_json(&trace.to_json()).expect("what we write we read");
    assert_eq!(again, trace);
    if trace.ops.len().max(trace.storages.len()) > LENGTH_MAX {
        return;
    }
    let total: u64 = trace.storages.iter().map(|storage| storage.size.0).sum();
    for budget in [total / 2, total / 8 + 1] {
        let machine = machine(budget);
        let plan = algorithm1(
            &trace,
            &machine,
            Algorithm1Options { unused: true, ..Algorithm1Options::default() },
        );
        compile(&plan, &trace).expect("our own plan is one that we follow");
        let read = PlanFile::from_json(&plan.named(&trace).to_json());
        let read = read.expect("what we write we read").numbered(&trace);
        assert_eq!(read.expect("it is of this trace"), plan);
        for policy in [Policy::Lru, Policy::Planned(&plan)] {
            refuse_bugs(simulate(&trace, &machine, policy).map(drop));
        }
    }
}

/// A plan file's text. It is followed as if it were for the one trace here, whatever trace it
/// names.
pub(super) fn run_plan(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let mut file = match PlanFile::from_json(text) {
        Ok(file) => file,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    assert_eq!(PlanFile::from_json(&file.to_json()).expect("what we write we read"), file);
    let trace = trace();
    if let Err(error) = file.clone().numbered(&trace) {
        assert!(!error.to_string().is_empty());
    }
    (file.fingerprint, file.ops) = (trace.fingerprint(), trace.ops.len() as u32);
    run_plan_in_parts(file.clone());
    let plan = match file.numbered(&trace) {
        Ok(plan) => plan,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    if let Err(error) = compile(&plan, &trace) {
        return assert!(!error.to_string().is_empty());
    }
    if plan.rows.len() <= LENGTH_MAX {
        for machine in [machine(350), plan.machine] {
            refuse_bugs(simulate(&trace, &machine, Policy::Planned(&plan)).map(drop));
        }
    }
}

/// Runs plans for a trace whose storages are large enough to have parts.
fn run_plan_in_parts(mut file: PlanFile) {
    let (trace, machine) = magnified(&trace(), &machine(350), LARGE);
    file.fingerprint = trace.fingerprint();
    let (step, plan) = match file.in_parts(&trace) {
        Ok(made) => made,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let again = PlanFile::from_json(&plan.named_in_parts(&step).to_json());
    let (_, again) = again.expect("what we write we read").in_parts(&trace).expect("and follow");
    assert_eq!(again.rows.len(), plan.rows.len());
    assert_eq!(compile(&plan, &trace).is_ok(), plan.rows_of_parts == 0, "training has no parts");
    if plan.rows.len() <= LENGTH_MAX {
        refuse_bugs(simulate(&step.trace, &machine, Policy::Planned(&plan)).map(drop));
    }
}

/// A machine file's text, and everything that is made for what it describes.
pub(super) fn run_machine(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let file = match MachineFile::from_json(text) {
        Ok(file) => file,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let trace = trace();
    let effort = Effort { instants: 4, steps: 4 };
    let mixes = [0, 500, 1000].map(|part| Mix {
        read_met_per_mille: part,
        write_met_per_mille: part,
        read_share_per_mille: 1000 - part,
    });
    let settled = mixes.iter().filter_map(|mix| file.hardware.as_ref()?.machine(*mix).ok());
    for machine in settled.chain([file.machine]) {
        let known = machine.check_for(&trace);
        assert_eq!(lower_bound(&trace, &machine, effort).is_ok(), known.is_ok());
        refuse_bugs(simulate(&trace, &machine, Policy::Lru).map(drop));
        let few =
            tidelog::TidelogOptions { trials: 0, planned: 0, ..tidelog::TidelogOptions::default() };
        refuse_bugs(tidelog(&trace, &machine, few).map(drop));
        let plan = algorithm1(&trace, &machine, Algorithm1Options::default());
        refuse_bugs(simulate(&trace, &machine, Policy::Planned(&plan)).map(drop));
    }
}

/// Machine files to begin with: of either kind, with everything that each may say.
pub(super) fn machines() -> [(&'static str, &'static str); 2] {
    [
        (
            "machine",
            r#"{"budget": 350, "staging": 10, "verify": 1000000000,
 "ssd": {"read": 1000000000, "write": 500000000, "latency_ns": 5},
 "host": {"read": 900000000, "write": 900000000, "latency_ns": 3, "memory": 200}}"#,
        ),
        (
            "rack",
            r#"{"name": "two", "gpus": 2, "memory": 350, "staging": 10, "verify": 1000000000,
 "drives": {"model": "990 PRO 2TB", "count": 8, "shared": true, "read": 500000000, "write": 400000000,
  "latency_ns": 7, "capacity": 1000000, "mixed": [{"read": 300000000, "write": 200000000}], "tbw": 600.5},
 "pcie": {"read": 5000000000, "write": 5000000000},
 "host": {"read": 900000000, "write": 900000000, "latency_ns": 3, "memory": 200}}"#,
        ),
    ]
}

/// A budget may be too small, and a plan for something else. What the machine calls a bug is one.
fn refuse_bugs(simulated: Result<(), SimulateError>) {
    if let Err(error @ (SimulateError::Stuck { .. } | SimulateError::Failed { .. })) = simulated {
        panic!("{error}");
    }
}

/// A machine that moves a byte in a nanosecond.
fn machine(budget: u64) -> Machine {
    let rate = Bandwidth(1_000_000_000);
    Machine {
        budget: Bytes(budget),
        staging: Bytes(0),
        ssd: SsdLink { read: rate, write: rate, latency: Nanos(5) },
        host: None,
        verify: rate,
    }
}

/// Two layers there and back: four ops, what each kind of storage is, and a death one iteration
/// late.
pub(super) fn trace() -> Trace {
    let (size, part, movable) = (Bytes(100), None, true);
    let storage = |identity, kind| Storage { identity, size, part, kind, movable };
    let made = |op| Identity::Output { op: OpIndex(op), slot: 0 };
    let uses = |storages: &[u32], access| {
        let of = |&storage| Use { storage: PlanStorage(storage), access, previous: false };
        storages.iter().map(of).collect::<Vec<_>>()
    };
    let op = |index: u64, uses| Op {
        name: format!("op{index}"),
        duration: Nanos(100),
        fingerprint: index,
        uses,
        births: Vec::new(),
        deaths: Vec::new(),
    };
    let mut ops = vec![
        op(0, uses(&[0], Access::Read)),
        op(1, uses(&[1, 2], Access::Read)),
        op(2, uses(&[1, 3], Access::Update)),
        op(3, uses(&[0, 2], Access::Update)),
    ];
    for (at, storage) in [(0, 2), (1, 3), (2, 4)] {
        ops[at].births.push(Birth { storage: PlanStorage(storage), slot: 0 });
    }
    ops[2].deaths.push(Death { storage: PlanStorage(3), previous: false });
    ops[3].deaths.push(Death { storage: PlanStorage(2), previous: false });
    ops[0].deaths.push(Death { storage: PlanStorage(4), previous: true });
    let storages = vec![
        storage(Identity::Name("w0".into()), StorageKind::Parameter),
        storage(Identity::Name("w1".into()), StorageKind::Parameter),
        storage(made(0), StorageKind::Activation),
        storage(made(1), StorageKind::Activation),
        storage(made(2), StorageKind::Gradient),
        storage(Identity::Arrival, StorageKind::Other),
    ];
    Trace { name: "two layers".into(), storages, ops }
}

/// A plan for it, as large as it must be for parts, that moves a part of everything that can move.
pub(super) fn plan_in_parts() -> PlanFile {
    let (trace, machine) = magnified(&trace(), &machine(350), LARGE);
    let step = PartedStep::of(&trace, &Cuts::into_parts_of(&trace, Bytes(PART_UNIT)));
    let movable = (0..trace.storages.len() as u32).map(PlanStorage).filter(|storage| {
        let storage = trace.storage(*storage);
        storage.movable && storage.identity != Identity::Arrival
    });
    let ways = [(MigrationDirection::Out, 1), (MigrationDirection::In, 2)];
    let rows = movable.flat_map(|whole| {
        let storage = step.parts(whole).last().expect("a storage has a part");
        ways.map(|(direction, op)| {
            let (start, deadline, target) = (OpIndex(op), OpIndex(op + 1), Target::Ssd);
            let awaited = direction == MigrationDirection::Out;
            let stays = awaited && storage.0 % 2 == 1;
            Migration { start, deadline, direction, target, storage, awaited, stays }
        })
    });
    let rows = rows.collect();
    let plan = Plan::new("made", &step.trace, &machine, rows, Expectation::default());
    plan.named_in_parts(&step)
}

/// A plan for it.
pub(super) fn plan() -> Plan {
    algorithm1(
        &trace(),
        &machine(350),
        Algorithm1Options { unused: true, ..Algorithm1Options::default() },
    )
}
