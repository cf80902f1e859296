use super::super::agenda::WRITE_PENALTIES;
use super::*;
use crate::bound::{Effort, with_toll};
use crate::cost::HostLink;
use crate::plan::{Expectation, Plan};
use crate::simulate::{Policy, Simulation, simulate};
use crate::testing::{Builder, machine, training};
use crate::trace::Access;
use crate::units::Nanos;

fn guess(trace: &Trace) -> Guess {
    Guess { durations: trace.ops.iter().map(|op| op.duration.0).collect() }
}

/// The plans rounded from a trace's prices, for ops that never wait.
fn rounded(trace: &Trace, machine: &Machine, queues_percent: u64) -> Vec<Migration> {
    let lifetimes = Lifetimes::of(trace);
    let case = RoundingCase { trace, machine, lifetimes: &lifetimes };
    let effort = Effort { instants: 75, steps: 150 };
    #[allow(clippy::cast_precision_loss, reason = "as the search does")]
    let write_penalty = WRITE_PENALTIES[0] * 1e9 / machine.ssd.write.0 as f64;
    let bound = with_toll(trace, machine, effort, write_penalty).unwrap();
    Rounding::new(case, &bound).rows(case, &guess(trace), queues_percent)
}

fn carried_out(trace: &Trace, machine: &Machine, rows: Vec<Migration>) -> Simulation {
    let plan = Plan::new("rounded", trace, machine, rows, Expectation::default());
    simulate(trace, machine, Policy::Planned(&plan)).unwrap()
}

/// Two storages wait as long; one of them is modified in each iteration, the other never.
#[test]
fn what_needs_no_write_goes_first() {
    let mut b = Builder::default();
    let modified = b.global("modified", 1_000);
    let constant = b.global("constant", 1_000);
    b.ops(40, 1_000);
    b.uses(0, modified, Access::Update);
    b.uses(0, constant, Access::Read);
    let large = b.birth(20, 2_000);
    b.death(20, large, false);
    let trace = b.finish();
    let machine = machine(3_500);
    let rows = rounded(&trace, &machine, 100);
    let names: Vec<_> = rows.iter().map(|row| row.storage).collect();
    assert_eq!(names, vec![constant; 2], "{rows:?}");
}

/// Checks that a storage that nothing uses again before it dies leaves for good, rather than what
/// would have to come back twice.
#[test]
fn what_is_never_used_again_leaves_and_does_not_come_back() {
    let mut b = Builder::default();
    b.ops(60, 1_000);
    let kept = b.birth(0, 1_000);
    b.death(59, kept, false);
    for peak in [20, 40] {
        let used = b.birth(peak - 15, 1_000);
        b.uses(peak + 5, used, Access::Read);
        b.death(peak + 5, used, false);
        let large = b.birth(peak, 2_000);
        b.death(peak, large, false);
    }
    let trace = b.finish();
    let machine = machine(3_500);
    let rows = rounded(&trace, &machine, 100);
    let moves: Vec<_> = rows.iter().map(|row| (row.direction, row.storage)).collect();
    assert_eq!(moves, vec![(MigrationDirection::Out, kept)]);
    let found = carried_out(&trace, &machine, rows);
    assert_eq!((found.bytes.ssd_written, found.bytes.ssd_read), (Bytes(1_000), Bytes(0)));
}

#[test]
fn the_chosen_periods_make_everything_fit() {
    let trace = training(12, 40_000, 100_000, 100_000);
    let lifetimes = Lifetimes::of(&trace);
    let machine = machine(lifetimes.peak().0 / 2);
    let rows = rounded(&trace, &machine, 100);
    let found = carried_out(&trace, &machine, rows);
    let lru = simulate(&trace, &machine, Policy::Lru).unwrap();
    assert!(found.time < lru.time, "{:?}, lru {:?}", found.time, lru.time);
    assert!(
        found.bytes.ssd_written < lru.bytes.ssd_written,
        "{:?}, lru {:?}",
        found.bytes,
        lru.bytes
    );
}

/// Checks that without queues a storage that cannot leave in time is chosen as if it could: ops
/// wait for it instead of something else being written.
#[test]
fn what_may_wait_for_the_links_needs_fewer_bytes() {
    let trace = training(24, 40_000, 100_000, 30_000);
    let lifetimes = Lifetimes::of(&trace);
    let machine = machine(lifetimes.peak().0 / 2);
    let [counted, not_counted] = [100, 0].map(|queues_percent| {
        let rows = rounded(&trace, &machine, queues_percent);
        carried_out(&trace, &machine, rows).bytes.ssd_written
    });
    assert!(not_counted < counted, "{not_counted} for {counted}");
}

/// Checks that a storage that is away for long waits on the SSDs, and one that is away for a short
/// time in host memory: its room is worth most where it serves one storage after the other.
#[test]
fn host_memory_takes_what_comes_and_goes_and_never_more_than_it_has() {
    let trace = training(24, 40_000, 100_000, 30_000);
    let mut machine = machine(Lifetimes::of(&trace).peak().0 / 2);
    let without = carried_out(&trace, &machine, rounded(&trace, &machine, 100));
    let rate = Bandwidth(3_000_000_000);
    let memory = Bytes(400_000);
    machine.host = Some(HostLink { read: rate, write: rate, latency: Nanos(0), memory });
    let rows = rounded(&trace, &machine, 100);
    let found = carried_out(&trace, &machine, rows);
    let taken = found.bytes.host_written;
    assert!(taken > memory, "{taken} take turns in {memory}");
    assert!(found.time < without.time, "{} after {}", found.time.0, without.time.0);
    assert!(found.bytes.ssd_written < without.bytes.ssd_written);
}
