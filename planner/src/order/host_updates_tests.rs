use super::*;
use crate::bound::{Effort, with_skips};
use crate::cost::{HostLink, Machine};
use crate::instances::{LayeredStep, random_machine};
use crate::order::on_host;
use crate::simulate::{Policy, run_many};
use crate::tidelog::{TidelogOptions, tidelog};
use crate::trace::Trace;
use crate::units::{Bandwidth, Bytes, Nanos};
use tidelog_random::Random;

/// A byte per nanosecond both ways, ten for the host's memory.
const PROCESSOR: HostProcessor = HostProcessor {
    memory: Bandwidth(10_000_000_000),
    out: Bandwidth(1_000_000_000),
    back: Bandwidth(1_000_000_000),
};

fn of(trace: &Trace) -> HostUpdates {
    HostUpdates::of(trace, OpOrder::OWN).unwrap()
}

fn choices(count: u32) -> impl Iterator<Item = Vec<u32>> {
    (0..1u32 << count).map(move |bits| (0..count).filter(|at| bits & (1 << at) != 0).collect())
}

fn bytes_of(trace: &Trace, kind: StorageKind) -> u64 {
    let of_kind = trace.storages.iter().filter(|storage| storage.kind == kind);
    of_kind.map(|storage| storage.size.0).sum()
}

#[test]
fn each_parameter_has_a_choice_of_its_own_also_where_one_op_updates_all() {
    for fused in [false, true] {
        let updates = of(&LayeredStep { fused, ..LayeredStep::of(3, 1) }.trace());
        assert_eq!(updates.choosable().len(), 7, "two of each layer and the head");
    }
    let gpt = Trace::from_json(include_str!("../../traces/gpt-8.json")).unwrap();
    let parameters = of(&gpt);
    let parameters: Vec<PlanStorage> =
        parameters.all.iter().flat_map(|update| update.parameters.clone()).collect();
    let of_trace = gpt.storages.iter().filter(|one| one.kind == StorageKind::Parameter).count();
    assert_eq!(parameters.len(), of_trace);
}

#[test]
fn all_on_the_host_are_the_step_that_has_all_there() {
    for step in [LayeredStep::of(3, 2), LayeredStep { kept: true, ..LayeredStep::of(2, 1) }] {
        let trace = step.trace();
        let updates = of(&trace);
        let all = updates.on_host(&updates.choosable(), PROCESSOR).unwrap().unwrap();
        let plain = on_host(&trace, PROCESSOR).unwrap();
        assert_eq!((all.trace, all.kept, all.waits), (plain.trace, plain.kept, plain.waits));
        assert!(updates.on_host(&[], PROCESSOR).unwrap().is_none());
    }
}

#[test]
fn what_is_not_chosen_keeps_its_state_and_its_update() {
    let trace = LayeredStep { fused: true, ..LayeredStep::of(2, 1) }.trace();
    for order in [OpOrder::OWN, OpOrder { updates: Updates::Early, ..OpOrder::OWN }] {
        keeps_the_rest(&trace, &HostUpdates::of(&trace, order).unwrap());
    }
    let late = HostUpdates::of(&trace, OpOrder { updates: Updates::Lazy, ..OpOrder::OWN });
    assert!(matches!(late, Err(OrderError::LateOnHost)));
}

fn keeps_the_rest(trace: &Trace, updates: &HostUpdates) {
    let count = updates.choosable().len() as u32;
    let state = bytes_of(trace, StorageKind::OptimizerState);
    for chosen in choices(count).filter(|chosen| !chosen.is_empty()) {
        let step = updates.on_host(&chosen, PROCESSOR).unwrap().unwrap();
        let stay = u64::from(count) - chosen.len() as u64;
        let left = bytes_of(&step.trace, StorageKind::OptimizerState);
        assert_eq!(left, state / u64::from(count) * stay, "{chosen:?}");
        let named = |name: &str| step.trace.ops.iter().filter(|op| op.name == name).count() as u64;
        assert_eq!(named("aten._fused_adam_.default"), stay, "{chosen:?}");
        assert_eq!([named("to host"), named("from host")], [chosen.len() as u64; 2], "{chosen:?}");
    }
}

#[test]
fn those_that_are_needed_last_are_chosen_first() {
    let updates = of(&LayeredStep::of(3, 1).trace());
    let ranking = updates.by_slack();
    let first = updates.all[ranking[0] as usize].parameters[0];
    let last = updates.all[ranking[6] as usize].parameters[0];
    assert_eq!(updates.base.label(first), "head.weight");
    assert_eq!(updates.base.label(last), "layers.0.up");
}

/// Plans enough to tell choices apart.
fn few() -> TidelogOptions {
    TidelogOptions {
        rounds: 2,
        planned: 2_000,
        published: 0,
        trials: 0,
        ..TidelogOptions::default()
    }
}

fn small(random: &mut Random) -> (Trace, Machine) {
    let step = LayeredStep {
        fused: random.below(2) == 0,
        kept: random.below(2) == 0,
        ..LayeredStep::of(1 + usize::from(random.chance(5)), 1 + random.below(2) as usize)
    };
    let trace = step.trace();
    let mut machine = random_machine(random, &trace);
    if random.below(2) == 0 {
        let rate = Bandwidth(2 * machine.ssd.read.0);
        let memory = Bytes(random.below(2_000_000));
        machine.host = Some(HostLink { read: rate, write: rate, latency: Nanos(0), memory });
    }
    (trace, machine)
}

/// Checks that no choice in any iteration is shorter than the bound, and that the bound is more
/// than the kernels' time often enough to say something.
#[test]
fn no_choice_beats_the_bound() {
    const ITERATIONS: u64 = 40;
    let mut random = Random::new(17);
    let (mut telling, mut runs) = (0, 0);
    for case in 0..30 {
        let (trace, machine) = small(&mut random);
        let updates = of(&trace);
        let effort = Effort { instants: 1 << 20, steps: 60 };
        let groups = updates.skippable(PROCESSOR);
        let bound = with_skips(updates.base(), &machine, effort, &groups).unwrap().time;
        let bytes = trace.storages.iter().map(|storage| 2 * storage.size.0).sum();
        let owed =
            machine.ssd.read.time_for(Bytes(bytes)).0 + machine.ssd.write.time_for(Bytes(bytes)).0;
        let mut shortest = u64::MAX;
        for chosen in choices(updates.choosable().len() as u32) {
            let step = updates.on_host(&chosen, PROCESSOR).unwrap();
            let trace = step.as_ref().map_or(updates.base(), |step| &step.trace);
            shortest = shortest.min(trace.duration().0);
            let Ok((plan, _)) = tidelog(trace, &machine, few()) else { continue };
            for policy in [Policy::Lru, Policy::Planned(&plan)] {
                let Ok((Nanos(time), _)) = run_many(trace, &machine, policy, ITERATIONS as u32)
                else {
                    continue;
                };
                runs += 1;
                assert!(
                    time + owed >= ITERATIONS * bound.0,
                    "case {case}, {chosen:?} on the host: {time} for {ITERATIONS} iterations, the \
                     bound is {bound:?}"
                );
            }
        }
        telling += u32::from(bound.0 > shortest);
    }
    assert!(telling > 10 && runs > 300, "{telling} bounds say something, {runs} runs");
}

/// Checks the result of the search against every choice there is, and that it is never worse than
/// all on the host, or none.
#[test]
fn the_best_choice_is_seldom_far_from_the_best_of_all() {
    let mut random = Random::new(18);
    let (mut cases, mut best_found, mut mixed, mut worst) = (0, 0, 0, 1000);
    for _ in 0..40 {
        let (trace, machine) = small(&mut random);
        let updates = of(&trace);
        let cost = |trace: &Trace, _: Option<&HostStep>| {
            Ok::<_, OrderError>(tidelog(trace, &machine, few()).ok().map(|found| found.1.time))
        };
        let cost_of = |chosen: &[u32]| {
            let step = updates.on_host(chosen, PROCESSOR).unwrap();
            cost(step.as_ref().map_or(updates.base(), |step| &step.trace), step.as_ref()).unwrap()
        };
        let count = updates.choosable().len();
        let Some(best) = choices(count as u32).filter_map(|chosen| cost_of(&chosen)).min() else {
            continue;
        };
        let found = updates.choose(PROCESSOR, cost).unwrap();
        let HostChoice { on_host, cost } = &found[0];
        for end in [cost_of(&[]), cost_of(&updates.choosable())].into_iter().flatten() {
            assert!(*cost <= end, "{on_host:?}: {cost:?} is worse than {end:?}");
        }
        cases += 1;
        best_found += u32::from(*cost == best);
        mixed += u32::from(!on_host.is_empty() && on_host.len() < count);
        worst = worst.max(cost.0 * 1000 / best.0.max(1));
    }
    println!("{best_found} of {cases} are the best, {mixed} are mixed, worst {worst} per mille");
    assert!(cases > 20 && worst <= 1_200, "{cases} cases, worst {worst} per mille");
    assert!(mixed > 5, "{mixed} of {cases} are neither all nor none");
}
