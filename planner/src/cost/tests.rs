use super::*;
use crate::testing::training;
use tidelog_random::Random;

fn ledger(period: u64) -> Ledger {
    Ledger::new(Nanos(period), Bandwidth(1_000_000_000), Nanos(0))
}

#[test]
fn an_idle_link_serves_at_once() {
    let ledger = ledger(100);
    assert_eq!(ledger.earliest_completion(Nanos(10), Nanos(50), Bytes(20)), Some(Nanos(30)));
    assert_eq!(ledger.latest_start(Nanos(10), Nanos(50), Bytes(20)), Some(Nanos(30)));
    assert_eq!(ledger.earliest_completion(Nanos(10), Nanos(29), Bytes(20)), None);
    assert_eq!(ledger.latest_start(Nanos(31), Nanos(50), Bytes(20)), None);
}

#[test]
fn promised_time_is_passed_over_also_around_the_ring() {
    let mut ledger = ledger(100);
    ledger.promise_from(Nanos(90), Bytes(20));
    assert_eq!(ledger.promised(), Nanos(20));
    assert_eq!(ledger.earliest_completion(Nanos(0), Nanos(50), Bytes(5)), Some(Nanos(15)));
    assert_eq!(ledger.latest_start(Nanos(50), Nanos(105), Bytes(5)), Some(Nanos(85)));
    ledger.promise_until(Nanos(105), Bytes(5));
    assert_eq!(ledger.latest_start(Nanos(50), Nanos(105), Bytes(5)), Some(Nanos(80)));
}

#[test]
fn latency_is_added_on_both_sides() {
    let ledger = Ledger::new(Nanos(100), Bandwidth(1_000_000_000), Nanos(7));
    assert_eq!(ledger.earliest_completion(Nanos(10), Nanos(90), Bytes(20)), Some(Nanos(37)));
    assert_eq!(ledger.latest_start(Nanos(10), Nanos(90), Bytes(20)), Some(Nanos(63)));
    assert_eq!(ledger.unloaded(Bytes(20)), Nanos(27));
}

#[test]
fn a_full_link_has_no_answer() {
    let mut ledger = ledger(100);
    ledger.promise_from(Nanos(30), Bytes(100));
    assert_eq!(ledger.promised(), Nanos(100));
    assert_eq!(ledger.earliest_completion(Nanos(0), Nanos(100), Bytes(1)), None);
    assert_eq!(ledger.latest_start(Nanos(0), Nanos(100), Bytes(1)), None);
}

/// Nanosecond by nanosecond, what the ledger computes in O(log n).
#[test]
fn answers_agree_with_a_walk_over_every_nanosecond() {
    let mut random = Random::new(11);
    for case in 0..300 {
        let period = 20 + random.below(60);
        let mut ledger = ledger(period);
        let mut busy = vec![false; period as usize];
        for step in 0..12 {
            let from = random.below(period);
            let to = from + 1 + random.below(period);
            let need = 1 + random.below(12);
            let is_free = |time: u64| !busy[(time % period) as usize];
            let ahead: Vec<u64> = (from..to.min(from + period)).filter(|t| is_free(*t)).collect();
            let completion = ahead.get(need as usize - 1).map(|last| Nanos(last + 1));
            let context = format!("case {case} step {step}");
            assert_eq!(
                ledger.earliest_completion(Nanos(from), Nanos(to), Bytes(need)),
                completion,
                "{context}"
            );
            let start = ahead.len().checked_sub(need as usize).map(|first| Nanos(ahead[first]));
            assert_eq!(
                ledger.latest_start(Nanos(from), Nanos(to), Bytes(need)),
                start,
                "{context}"
            );
            let taken: Vec<u64> = match (random.chance(2), completion) {
                (_, None) => continue,
                (true, _) => {
                    ledger.promise_from(Nanos(from), Bytes(need));
                    ahead[..need as usize].to_vec()
                }
                (false, _) => {
                    ledger.promise_until(Nanos(to.min(from + period)), Bytes(need));
                    ahead[ahead.len() - need as usize..].to_vec()
                }
            };
            for time in taken {
                busy[(time % period) as usize] = true;
            }
            let promised = busy.iter().filter(|slot| **slot).count() as u64;
            assert_eq!(ledger.promised(), Nanos(promised), "{context}");
        }
    }
}

#[test]
fn coarse_slots_keep_the_sums_exact() {
    // Ten seconds: slots are wider than a nanosecond.
    let mut ledger = ledger(10_000_000_000);
    ledger.promise_from(Nanos(1_234_567_891), Bytes(3_000_000_007));
    ledger.promise_until(Nanos(9_999_999_999), Bytes(1_000_000_009));
    assert_eq!(ledger.promised(), Nanos(4_000_000_016));
    let completion =
        ledger.earliest_completion(Nanos(0), Nanos(9_000_000_000), Bytes(1_234_567_891));
    assert!(completion.unwrap() <= Nanos(1_234_567_891 + 40_000));
}

#[test]
fn a_timeline_unrolls_two_iterations() {
    let timeline = Timeline::of(&training(1, 1, 1, 10));
    // 10, 20 and 6 nanoseconds.
    assert_eq!((timeline.ops(), timeline.period()), (3, Nanos(36)));
    assert_eq!(timeline.begin(4), Nanos(46));
    assert_eq!(timeline.first_beginning_at(Nanos(11), 0, 3), 2);
    assert_eq!(timeline.last_beginning_by(Nanos(29), 0, 3), 1);
    assert_eq!(timeline.last_beginning_by(Nanos(30), 0, 3), 2);
}

#[test]
fn a_figure_that_cannot_be_is_refused_by_its_name() {
    use crate::testing::machine;
    let refused = |change: fn(&mut Machine)| {
        let mut machine = machine(100);
        machine.host = Some(HostLink {
            read: Bandwidth(5),
            write: Bandwidth(5),
            latency: Nanos(0),
            memory: Bytes(10),
        });
        assert_eq!(machine.check(), Ok(()));
        change(&mut machine);
        machine.check().unwrap_err().to_string()
    };
    let host = |machine: &mut Machine| machine.host.as_mut().unwrap().read = Bandwidth(0);
    for (said, change) in [
        ("ssd.read is 0 bytes per second", (|it| it.ssd.read.0 = 0) as fn(&mut Machine)),
        ("ssd.write is 0 bytes per second", |it| it.ssd.write.0 = 0),
        ("verify is 0 bytes per second", |it| it.verify.0 = 0),
        ("host.read is 0 bytes per second", host),
        ("budget is 0 bytes", |it| it.budget.0 = 0),
        ("staging (100 B) takes the whole budget (100 B)", |it| it.staging.0 = 100),
        ("ssd.read is 18446744073709551615 bytes per second: more than", |it| {
            it.ssd.read.0 = u64::MAX;
        }),
        ("ssd.latency_ns is 18446744073709551615 nanoseconds: more than", |it| {
            it.ssd.latency.0 = u64::MAX;
        }),
    ] {
        let found = refused(change);
        assert!(found.starts_with(said), "{found}");
    }
}

#[test]
fn a_machine_on_which_a_step_would_not_end_is_refused_wherever_it_is_used() {
    use crate::algorithm1::{Algorithm1Options, algorithm1};
    use crate::bound::{Effort, lower_bound};
    use crate::simulate::{Policy, SimulateError, simulate};
    use crate::tidelog::{self, tidelog};
    // Ten gigabytes and more that have to move.
    let trace = training(4, 1 << 30, 1 << 30, 1_000_000);
    for rates in [[0, 9, 9], [9, 0, 9], [9, 9, 0], [1, 9, 9], [9, 9, 1]] {
        let [read, write, verify] =
            rates.map(|rate| Bandwidth(if rate == 9 { 1 << 30 } else { rate }));
        let machine = Machine { verify, ..crate::testing::machine(6 << 30) };
        let machine = Machine { ssd: SsdLink { read, write, latency: Nanos(0) }, ..machine };
        let is_refused = |found: Result<(), SimulateError>| {
            assert!(matches!(found, Err(SimulateError::Machine(_))), "{rates:?}: {found:?}");
        };
        is_refused(tidelog(&trace, &machine, tidelog::TidelogOptions::default()).map(drop));
        is_refused(simulate(&trace, &machine, Policy::Lru).map(drop));
        assert!(lower_bound(&trace, &machine, Effort::default()).is_err(), "{rates:?}");
        assert!(
            algorithm1(&trace, &machine, Algorithm1Options::default()).rows.is_empty(),
            "{rates:?}"
        );
    }
}
