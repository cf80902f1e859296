use super::*;
use crate::cost::HostLink;
use crate::testing::{Builder, machine, random_trace, training};
use crate::trace::{Access, PlanStorage};
use crate::units::{Bandwidth, Bytes, Nanos, OpIndex};
use tidelog_random::Random;

/// One activation of 10 bytes that is idle over a peak which needs its memory.
fn one_peak() -> Trace {
    let mut b = Builder::default();
    let ops: Vec<usize> = (0..6).map(|_| b.op(10)).collect();
    let idle = b.birth(ops[0], 10);
    let peak = b.birth(ops[2], 15);
    b.death(ops[3], peak, false);
    b.uses(ops[5], idle, Access::Read);
    b.death(ops[5], idle, false);
    b.finish()
}

#[test]
fn the_idle_storage_leaves_over_the_peak_and_comes_back_before_its_use() {
    let plan = algorithm1(&one_peak(), &machine(20), Algorithm1Options::default());
    let rows: Vec<_> = plan.rows.iter().map(|r| (r.direction, r.start.0, r.deadline.0)).collect();
    // Written during op 1, so that op 2 has the memory; read back during op 4.
    assert_eq!(rows, [(MigrationDirection::Out, 1, 2), (MigrationDirection::In, 4, 5)]);
    assert_eq!(plan.expects.ops_over_capacity, 0);
    assert_eq!(plan.expects.bytes.ssd_written, Bytes(10));
}

#[test]
fn what_fits_is_left_alone() {
    assert!(algorithm1(&one_peak(), &machine(25), Algorithm1Options::default()).rows.is_empty());
}

#[test]
fn an_eviction_frees_nothing_before_it_is_complete() {
    let mut slow = machine(20);
    slow.ssd.write = Bandwidth(500_000_000);
    let plan = algorithm1(&one_peak(), &slow, Algorithm1Options::default());
    // 10 bytes take 20 ns: complete when op 3 begins, so op 2 stays over capacity by 5 bytes.
    assert_eq!((plan.expects.ops_over_capacity, plan.expects.over_capacity), (1, Bytes(5)));
    let evict = plan.rows.iter().find(|row| row.direction == MigrationDirection::Out).unwrap();
    assert_eq!((evict.start, evict.deadline), (OpIndex(1), OpIndex(3)));
}

#[test]
fn a_period_too_short_for_both_transfers_is_not_chosen() {
    let mut slow = machine(20);
    slow.ssd.write = Bandwidth(250_000_000);
    slow.ssd.read = Bandwidth(1_000_000_000);
    let plan = algorithm1(&one_peak(), &slow, Algorithm1Options::default());
    assert!(plan.rows.is_empty());
    assert_eq!(plan.expects.ops_over_capacity, 2);
}

#[test]
fn host_memory_takes_what_the_ssds_cannot_up_to_its_cap() {
    let mut with_host = machine(20);
    with_host.ssd.write = Bandwidth(100_000_000);
    let rate = Bandwidth(1_000_000_000);
    let mut host = HostLink { read: rate, write: rate, latency: Nanos(0), memory: Bytes(10) };
    with_host.host = Some(host);
    let plan = algorithm1(&one_peak(), &with_host, Algorithm1Options::default());
    assert!(plan.rows.len() == 2 && plan.rows.iter().all(|row| row.target == Target::Host));
    assert_eq!(plan.expects.bytes.host_written, Bytes(10));
    host.memory = Bytes(9);
    with_host.host = Some(host);
    assert!(algorithm1(&one_peak(), &with_host, Algorithm1Options::default()).rows.is_empty());
}

#[test]
fn ssds_come_first_while_they_have_bandwidth() {
    let mut with_host = machine(20);
    let rate = Bandwidth(100_000_000_000);
    with_host.host =
        Some(HostLink { read: rate, write: rate, latency: Nanos(0), memory: Bytes(1000) });
    let plan = algorithm1(&one_peak(), &with_host, Algorithm1Options::default());
    assert!(plan.rows.iter().all(|row| row.target == Target::Ssd));
}

#[test]
fn a_clean_drop_is_not_charged_a_second_write() {
    // A weight is idle over two peaks and never modified between them.
    let mut b = Builder::default();
    let weight = b.global("weight", 10);
    for op in 0..12 {
        b.op(10);
        if op % 6 == 0 {
            b.uses(op, weight, Access::Read);
        }
        if op % 6 == 3 {
            let peak = b.birth(op, 15);
            b.death(op, peak, false);
        }
    }
    b.uses(11, weight, Access::Update);
    let trace = b.finish();
    let written = |clean_drop| {
        let options = Algorithm1Options { clean_drop, ..Algorithm1Options::default() };
        algorithm1(&trace, &machine(20), options).expects.bytes.ssd_written
    };
    assert_eq!((written(false), written(true)), (Bytes(20), Bytes(10)));
}

#[test]
fn nothing_is_evicted_for_good_unless_asked() {
    let mut b = Builder::default();
    let idle = b.global("unused", 10);
    for _ in 0..4 {
        b.op(10);
    }
    let peak = b.birth(2, 15);
    b.death(2, peak, false);
    let trace = b.finish();
    assert!(algorithm1(&trace, &machine(20), Algorithm1Options::default()).rows.is_empty());
    let unused =
        Algorithm1Options { unused: true, clean_drop: true, ..Algorithm1Options::default() };
    let plan = algorithm1(&trace, &machine(20), unused);
    assert_eq!(plan.rows.len(), 1);
    assert_eq!(plan.rows[0].storage, idle);
    assert_eq!(plan.expects.bytes.ssd_written, Bytes(0), "its copy serves every iteration");
}

/// Memory per op that a plan's rows leave, from the rows' own promises.
fn memory_under(trace: &Trace, plan: &Plan) -> Vec<i64> {
    let lifetimes = Lifetimes::of(trace);
    let ops = trace.ops.len();
    let mut memory: Vec<i64> = lifetimes.memory.iter().map(|m| signed(*m)).collect();
    for (index, storage) in trace.storages.iter().enumerate() {
        let number = PlanStorage(index as u32);
        let of = |direction| {
            plan.rows.iter().filter(move |r| r.storage == number && r.direction == direction)
        };
        let evictions: Vec<&Migration> = of(MigrationDirection::Out).collect();
        let mut fetches: Vec<&Migration> = of(MigrationDirection::In).collect();
        assert_eq!(evictions.len(), fetches.len());
        for evict in evictions {
            // The fetch that belongs to it is the next one around the ring.
            let distance = |f: &Migration| (f.start.0 + ops as u32 - evict.start.0) % ops as u32;
            let next = (0..fetches.len()).min_by_key(|i| distance(fetches[*i])).unwrap();
            let fetch = fetches.swap_remove(next);
            let mut op = evict.deadline.0 as usize;
            while op != fetch.start.0 as usize {
                memory[op] -= signed(storage.size);
                op = (op + 1) % ops;
            }
        }
    }
    memory
}

#[test]
fn rows_account_for_exactly_the_memory_that_the_plan_says_is_left() {
    let mut random = Random::new(3);
    let mut planned = 0;
    for case in 0..2000 {
        let trace = random_trace(&mut random, 14, 8);
        let peak = Lifetimes::of(&trace).peak().0;
        let budget = peak * (4 + random.below(6)) / 10;
        let score = [Score::PerTransferTime, Score::PerByte, Score::Benefit][case % 3];
        let plan = algorithm1(
            &trace,
            &machine(budget),
            Algorithm1Options { score, ..Algorithm1Options::default() },
        );
        let left = memory_under(&trace, &plan);
        let over = left.iter().filter(|m| **m > budget.cast_signed()).count();
        assert_eq!(over, plan.expects.ops_over_capacity as usize, "case {case}");
        let worst = left.iter().map(|m| m - budget.cast_signed()).max().unwrap().max(0);
        assert_eq!(worst, signed(plan.expects.over_capacity), "case {case}");
        planned += usize::from(!plan.rows.is_empty());
    }
    assert!(planned > 300, "only {planned} cases planned anything");
}

#[test]
fn the_same_input_gives_the_same_bytes() {
    let trace = training(12, 40, 100, 60);
    let machine = machine(900);
    let text = algorithm1(&trace, &machine, Algorithm1Options::default()).named(&trace).to_json();
    assert_eq!(
        algorithm1(&trace, &machine, Algorithm1Options::default()).named(&trace).to_json(),
        text
    );
    assert!(text.contains("evict"));
}
