use super::*;
use crate::testing::{Builder, random_trace, training};
use crate::trace::{Access, Use};
use tidelog_random::Random;

fn spans(lifetimes: &Lifetimes, storage: PlanStorage) -> Vec<(u32, u32, ContentVersion)> {
    let of = lifetimes.periods.iter().filter(|period| period.storage == storage);
    of.map(|period| (period.from, period.to, period.version)).collect()
}

#[test]
fn a_global_is_idle_around_the_end_of_the_iteration() {
    let mut b = Builder::default();
    let weight = b.global("weight", 8);
    b.ops(10, 1);
    for (op, access) in [(2, Access::Read), (6, Access::Update)] {
        b.uses(op, weight, access);
    }
    let lifetimes = Lifetimes::of(&b.finish());
    // What op 2 reads is what op 6 of the iteration before left.
    let wanted = [(3, 6, ContentVersion::After(1)), (7, 12, ContentVersion::After(1))];
    assert_eq!(spans(&lifetimes, weight), wanted);
    let carried: Vec<bool> = lifetimes.periods.iter().map(|period| period.carried).collect();
    assert_eq!(carried, [true, false]);
}

#[test]
fn a_global_that_is_only_read_keeps_one_copy_for_ever() {
    let mut b = Builder::default();
    let weight = b.global("weight", 8);
    b.ops(6, 1);
    b.uses(1, weight, Access::Read);
    b.uses(5, weight, Access::Read);
    let wanted = [(2, 5, ContentVersion::Constant), (0, 1, ContentVersion::Constant)];
    assert_eq!(spans(&Lifetimes::of(&b.finish()), weight), wanted);
}

#[test]
fn uses_without_a_pause_leave_no_period() {
    let mut b = Builder::default();
    b.ops(4, 1);
    let value = b.birth(0, 8);
    b.uses(1, value, Access::Read);
    b.uses(2, value, Access::Read);
    b.death(2, value, false);
    assert!(spans(&Lifetimes::of(&b.finish()), value).is_empty());
}

#[test]
fn what_lives_on_unused_has_a_period_without_a_return() {
    let mut b = Builder::default();
    b.ops(6, 1);
    let value = b.birth(1, 8);
    b.death(4, value, false);
    let lifetimes = Lifetimes::of(&b.finish());
    assert_eq!(lifetimes.periods[0].end, PeriodEnd::Unused);
    assert_eq!(spans(&lifetimes, value), [(2, 5, ContentVersion::After(1))]);
    assert_eq!(lifetimes.memory, [0, 8, 8, 8, 8, 0].map(Bytes));
}

#[test]
fn an_instance_from_the_iteration_before_counts_beside_the_new_one() {
    let mut b = Builder::default();
    b.ops(6, 1);
    let logits = b.birth(2, 8);
    b.trace.ops[1].uses.push(Use { storage: logits, access: Access::Read, previous: true });
    b.death(3, logits, true);
    let lifetimes = Lifetimes::of(&b.finish());
    assert_eq!(lifetimes.memory, [8, 8, 16, 16, 8, 8].map(Bytes));
    assert_eq!(lifetimes.lifetimes[0], Lifetime { birth: Some(2), death: Some(9) });
    // Idle from op 3 to op 1 of the next iteration; then unused, until op 2 makes the next one.
    assert_eq!(spans(&lifetimes, logits), [(3, 7, ContentVersion::After(1))]);
}

#[test]
fn only_storages_that_can_move_and_be_named_have_periods() {
    let mut trace = training(3, 10, 10, 5);
    let before = Lifetimes::of(&trace);
    trace.storages[0].movable = false;
    let after = Lifetimes::of(&trace);
    assert!(before.periods.iter().any(|period| period.storage == PlanStorage(0)));
    assert!(after.periods.iter().all(|period| period.storage != PlanStorage(0)));
    assert_eq!(before.memory, after.memory);
}

#[test]
fn memory_is_what_a_walk_over_two_iterations_counts() {
    let mut random = Random::new(5);
    for case in 0..500 {
        let trace = random_trace(&mut random, 16, 8);
        let lifetimes = Lifetimes::of(&trace);
        let globals = trace.storages.iter().filter(|s| matches!(s.identity, Identity::Name(_)));
        let mut alive: u64 = globals.map(|storage| storage.size.0).sum();
        // The second round sees what the first left behind.
        for round in 0..2 {
            for (index, op) in trace.ops.iter().enumerate() {
                alive += op.births.iter().map(|b| trace.storage(b.storage).size.0).sum::<u64>();
                if round == 1 {
                    assert_eq!(lifetimes.memory[index], Bytes(alive), "case {case} op {index}");
                }
                let dying = op.deaths.iter().filter(|death| round == 1 || !death.previous);
                alive -= dying.map(|death| trace.storage(death.storage).size.0).sum::<u64>();
            }
        }
        for (memory, active) in lifetimes.memory.iter().zip(&lifetimes.active) {
            assert!(active <= memory, "case {case}");
        }
    }
}

#[test]
fn periods_hold_no_use_and_end_at_one() {
    let mut random = Random::new(6);
    for case in 0..500 {
        let trace = random_trace(&mut random, 16, 8);
        let ops = trace.ops.len() as u32;
        let uses = |op: u32, storage| {
            let op = &trace.ops[(op % ops) as usize];
            op.uses.iter().any(|used| used.storage == storage)
        };
        for period in Lifetimes::of(&trace).periods {
            let idle = (period.from..period.to).all(|op| !uses(op, period.storage));
            assert!(idle && period.from < period.to && period.from < ops, "case {case} {period:?}");
            let returns = period.end == PeriodEnd::Use;
            assert!(!returns || uses(period.to, period.storage), "case {case} {period:?}");
        }
    }
}

/// Checks a storage that is used by the last op and dies in the next iteration: in this one it
/// waits from op 0 on, as the instance before.
#[test]
fn what_waits_from_the_last_op_on_waits_in_the_next_iteration() {
    let mut b = Builder::default();
    b.ops(5, 10);
    let late = b.birth(4, 8);
    b.death(2, late, true);
    let trace = b.finish();
    let periods = Lifetimes::of(&trace).periods;
    let found: Vec<_> = periods.iter().map(|one| (one.from, one.to, one.end)).collect();
    assert_eq!(found, [(0, 3, PeriodEnd::Unused)]);
}
