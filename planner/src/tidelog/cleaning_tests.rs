//! Steps in which links are idle while what leaves soon is in memory, and used once more.

use super::*;
use crate::lifetime::Lifetimes;
use crate::migration::{Ending, MigrationDirection};
use crate::simulate::{Policy, SimulatedTransfer, simulate};
use crate::testing::{Builder, machine};
use crate::trace::Access;

const LAYERS: usize = 8;

/// A step that ends with updates of weights, all of which are read once more, and begins with
/// layers that save as much as the weights are, in no time.
fn updated_and_read_again() -> Trace {
    let mut b = Builder::default();
    let weights: Vec<_> = (0..LAYERS).map(|one| b.global(&format!("weight{one}"), 100)).collect();
    let mut saved = Vec::new();
    for _ in &weights {
        let op = b.op(10);
        saved.push(b.birth(op, 100));
    }
    while let Some(activation) = saved.pop() {
        let op = b.op(100);
        b.uses(op, activation, Access::Read);
        b.death(op, activation, false);
    }
    for access in [Access::Update, Access::Read] {
        for weight in &weights {
            let op = b.op(if access == Access::Read { 1 } else { 150 });
            b.uses(op, *weight, access);
        }
    }
    b.finish()
}

fn best(without: Option<Idea>) -> (Plan, Simulation, Trace) {
    let trace = updated_and_read_again();
    let machine = machine(900);
    assert!(Lifetimes::of(&trace).peak() > Bytes(1500));
    let options = TidelogOptions { goal: Goal::Time, without, ..TidelogOptions::default() };
    let (plan, simulation) = tidelog(&trace, &machine, options).unwrap();
    (plan, simulation, trace)
}

#[test]
fn an_idle_link_writes_what_stays() {
    let (plan, with, trace) = best(None);
    let (other, without, _) = best(Some(Idea::Cleaning));
    assert!(plan.rows.iter().any(|row| row.stays) && other.rows.iter().all(|row| !row.stays));
    let ideal = trace.duration().0;
    let (with, without) = (with.time.0 - ideal, without.time.0 - ideal);
    assert!(2 * with < without, "ops wait {with} ns, {without} ns without");
}

/// A plan is worth what the machine makes of it: rows that clean are carried out, and each write
/// counts once.
#[test]
fn what_was_cleaned_leaves_without_a_write() {
    let (plan, found, trace) = best(None);
    let cleaned: Vec<_> = found.transfers.iter().filter(|one| one.stays).collect();
    assert!(!cleaned.is_empty());
    for one in cleaned {
        let of_it = || found.transfers.iter().filter(|other| other.storage == one.storage);
        let is_write = |it: &&SimulatedTransfer| {
            (it.direction, it.ending) == (MigrationDirection::Out, Ending::Moved)
        };
        let written = of_it().filter(is_write);
        assert_eq!(written.count(), 1, "{:?}", of_it().collect::<Vec<_>>());
    }
    let weights = Bytes(100 * LAYERS as u64);
    assert!(found.bytes.ssd_written <= Bytes(2 * weights.0));
    let again = simulate(&trace, &machine(900), Policy::Planned(&plan)).unwrap();
    assert_eq!(again.time, found.time);
}
