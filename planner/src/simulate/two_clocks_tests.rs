use super::*;
use crate::algorithm1::{Algorithm1Options, algorithm1};
use crate::arena::GRANULE;
use crate::cost::{HostLink, SsdLink};
use crate::lifetime::Lifetimes;
use crate::testing::{machine, random_trace, training};
use crate::units::Bandwidth;
use tidelog_random::Random;

/// A bridge whose host waits for every transfer.
fn waiting() -> GpuRuntime {
    let behaviour = GpuBehaviour::HOST_WAITS;
    GpuRuntime { lookahead: 8, behaviour, costs: costs() }
}

/// Makes a runtime whose streams wait for events.
fn ordered() -> GpuRuntime {
    let behaviour = GpuBehaviour::EVENT_ORDERED;
    let costs = GpuCosts { dispatch: Nanos(3), request: Nanos(3), ..costs() };
    GpuRuntime { behaviour, costs, ..waiting() }
}

/// Makes a runtime whose host waits for fetches alone.
fn writes_ordered() -> GpuRuntime {
    GpuRuntime { behaviour: GpuBehaviour::WRITES_ORDERED, ..waiting() }
}

/// Makes a runtime whose host waits for fetches alone, in an arena.
fn writes_in_arena() -> GpuRuntime {
    GpuRuntime { behaviour: GpuBehaviour::WRITES_ORDERED_IN_ARENA, ..waiting() }
}

/// Makes costs in the proportions of a real GPU's, where a byte takes a nanosecond and a kernel a
/// hundred.
fn costs() -> GpuCosts {
    let rate = Bandwidth(900_000_000);
    GpuCosts {
        dispatch: Nanos(25),
        launch: Nanos(2),
        launches_ahead: 8,
        request: Nanos(10),
        wake_up: Nanos(20),
        copy: Nanos(2),
        both_ways: Some(CopyRates { out: rate, back: rate }),
        checksum: Bandwidth(20_000_000_000),
        allocation: Nanos(30),
        release: Nanos(30),
        remap: Nanos(1),
        slack: Bytes(1 << 20),
    }
}

/// Makes a step that has a granule for each byte, and is as fast: an arena has whole ones.
fn in_granules(trace: &Trace, machine: &Machine) -> (Trace, Machine, Plan) {
    let bytes = |count: &mut Bytes| count.0 *= GRANULE.0;
    let rate = |rate: &mut Bandwidth| rate.0 = (rate.0 * GRANULE.0).min(1 << 52);
    let (mut trace, mut machine) = (trace.clone(), *machine);
    trace.storages.iter_mut().for_each(|storage| bytes(&mut storage.size));
    bytes(&mut machine.budget);
    [&mut machine.ssd.read, &mut machine.ssd.write, &mut machine.verify].into_iter().for_each(rate);
    if let Some(host) = &mut machine.host {
        [&mut host.read, &mut host.write].into_iter().for_each(rate);
        bytes(&mut host.memory);
    }
    let plan = algorithm1(&trace, &machine, Algorithm1Options::default());
    (trace, machine, plan)
}

/// Makes a runtime for steps [`in_granules`].
fn of_granules(runtime: GpuRuntime) -> GpuRuntime {
    let rate = |rate: Bandwidth| Bandwidth(rate.0 * GRANULE.0);
    let both_ways = runtime.costs.both_ways;
    let both_ways =
        both_ways.map(|CopyRates { out, back }| CopyRates { out: rate(out), back: rate(back) });
    let checksum = rate(runtime.costs.checksum);
    GpuRuntime {
        costs: GpuCosts { both_ways, checksum, slack: Bytes(0), ..runtime.costs },
        ..runtime
    }
}

fn with_host(budget: u64) -> Machine {
    let machine = machine(budget);
    let SsdLink { read, write, latency } = machine.ssd;
    Machine { host: Some(HostLink { read, write, latency, memory: Bytes(1 << 30) }), ..machine }
}

/// Random steps, each with a budget that forces moves, and a plan.
fn steps(seed: u64, count: usize) -> Vec<(Trace, Machine, Plan)> {
    let mut random = Random::new(seed);
    let step = |case: usize| {
        let trace = random_trace(&mut random, 14, 9);
        let lifetimes = Lifetimes::of(&trace);
        let largest = trace.storages.iter().map(|storage| storage.size.0).max().unwrap();
        let least = lifetimes.largest_op().1.0.max(largest);
        let budget = least + random.below(lifetimes.peak().0 - least + 1);
        let mut machine = if case.is_multiple_of(2) { with_host(budget) } else { machine(budget) };
        machine.ssd.read = Bandwidth(200_000_000 << random.below(4));
        machine.ssd.latency = Nanos(random.below(5));
        let plan = algorithm1(&trace, &machine, Algorithm1Options::default());
        (trace, machine, plan)
    };
    (0..count).map(step).collect()
}

#[test]
fn two_clocks_in_step_without_costs_show_what_one_clock_shows() {
    for (case, (trace, machine, plan)) in steps(31, 1000).iter().enumerate() {
        for policy in [Policy::Lru, Policy::Planned(plan)] {
            let runtime = Runtime { lookahead: case as u32 % 5, ..Runtime::default() };
            let one = simulate_under(runtime, trace, machine, policy).unwrap();
            let on_gpu = GpuRuntime::in_step(runtime);
            let two = simulate_on_gpu(on_gpu, trace, machine, policy).unwrap();
            let context = format!("case {case}, {}", policy.name());
            assert_eq!(two.time, one.time, "{context}");
            assert_eq!(two.begins, one.begins, "{context}");
            assert_eq!(two.stalls, one.stalls, "{context}");
            assert_eq!((two.bytes, two.peak), (one.bytes, one.peak), "{context}");
            assert_eq!(two.stats, one.stats, "{context}");
            assert_eq!(two.gpu.unwrap().of(TimeCause::Kernels), trace.duration(), "{context}");
        }
    }
}

#[test]
fn every_nanosecond_of_a_step_has_one_cause() {
    let mut by_cause = [0_u32; TimeCause::ALL.len()];
    let mut remapped = 0;
    for (case, (trace, machine, _)) in steps(32, 600).iter().enumerate() {
        let (trace, machine, plan) = in_granules(trace, machine);
        for runtime in [waiting(), writes_ordered(), writes_in_arena(), ordered()] {
            let policy = Policy::Planned(&plan);
            let step = simulate_on_gpu(of_granules(runtime), &trace, &machine, policy).unwrap();
            let gpu = step.gpu.unwrap();
            if runtime.behaviour.memory == GpuAllocator::Arena {
                assert_eq!(gpu.counts.misfits, 0, "case {case}: what is free is in pieces");
                remapped += gpu.counts.remapped;
            }
            let sum: u64 = gpu.causes.iter().map(|cause| cause.0).sum();
            assert_eq!(sum, step.time.0, "case {case}: {gpu:?}");
            assert_eq!(gpu.of(TimeCause::Kernels), trace.duration(), "case {case}");
            assert!(step.peak <= machine.capacity(), "case {case}");
            for (count, cause) in by_cause.iter_mut().zip(&gpu.causes) {
                *count += u32::from(cause.0 > 0);
            }
        }
    }
    for (cause, count) in TimeCause::ALL.iter().zip(by_cause) {
        assert!(count > 0, "{cause:?} never took any time");
    }
    assert!(remapped > 0, "no arena was ever in pieces");
}

#[test]
fn a_thread_that_launches_ahead_hides_what_calls_take() {
    let trace = training(4, 100, 100, 50);
    let plenty = machine(1 << 30);
    let time = |launches_ahead, dispatch| {
        let costs = GpuCosts { dispatch, launches_ahead, ..GpuCosts::free() };
        let runtime = GpuRuntime { costs, ..GpuRuntime::in_step(Runtime::default()) };
        simulate_on_gpu(runtime, &trace, &plenty, Policy::Ideal).unwrap().time
    };
    let ops = trace.ops.len() as u64;
    assert_eq!(time(0, Nanos(7)), Nanos(trace.duration().0 + 7 * ops), "it waits for each");
    assert_eq!(time(1 << 10, Nanos(200)), Nanos(200 * ops), "the GPU waits for it");
    let hidden = time(2, Nanos(7));
    assert!(hidden < time(0, Nanos(7)), "{hidden:?}");
}

#[test]
fn more_bandwidth_is_never_slower_on_a_training_step() {
    let trace = training(10, 60, 120, 80);
    // Where a host sees ends, a transfer that ends sooner may just miss the op that looks for it.
    for (runtime, missed_parts) in [(waiting(), 100), (ordered(), u64::MAX)] {
        let mut before = u64::MAX / 2;
        let machine = with_host(Lifetimes::of(&trace).peak().0 / 2);
        let plan = algorithm1(&trace, &machine, Algorithm1Options::default());
        for gigabytes in [1, 2, 4, 8, 16] {
            let rate = Bandwidth(gigabytes * 1_000_000_000);
            let mut machine = machine;
            let host = machine.host.as_mut().unwrap();
            (host.read, host.write) = (rate, rate);
            let both_ways = Some(CopyRates { out: rate, back: rate });
            let costs = GpuCosts { both_ways, ..runtime.costs };
            let runtime = GpuRuntime { costs, ..runtime };
            let policy = Policy::Planned(&plan);
            let time = simulate_on_gpu(runtime, &trace, &machine, policy).unwrap().time.0;
            let allowed = before + before / missed_parts;
            assert!(time <= allowed, "{gigabytes} GB/s takes {time}, less bandwidth {before}");
            before = time;
        }
    }
}

#[test]
fn what_costs_more_is_never_faster_on_a_training_step() {
    let trace = training(10, 60, 120, 80);
    let machine = with_host(Lifetimes::of(&trace).peak().0 / 2);
    let plan = algorithm1(&trace, &machine, Algorithm1Options::default());
    let dearer: [fn(&mut GpuCosts); 5] = [
        |costs| costs.dispatch.0 *= 4,
        |costs| costs.request.0 *= 4,
        |costs| costs.wake_up.0 *= 4,
        |costs| costs.checksum.0 /= 4,
        |costs| {
            let slow = Bandwidth(250_000_000);
            costs.both_ways = Some(CopyRates { out: slow, back: slow });
        },
    ];
    for (runtime, shown) in [(waiting(), 3), (ordered(), 1)] {
        let time = |costs| {
            let runtime = GpuRuntime { costs, ..runtime };
            simulate_on_gpu(runtime, &trace, &machine, Policy::Planned(&plan)).unwrap().time
        };
        let mut slower = 0;
        for (index, raise) in dearer.iter().enumerate() {
            let mut costs = runtime.costs;
            raise(&mut costs);
            assert!(time(costs) >= time(runtime.costs), "cost {index}");
            slower += u32::from(time(costs) > time(runtime.costs));
        }
        assert!(slower >= shown, "only {slower} costs show");
    }
}

#[test]
fn streams_that_wait_for_events_are_faster_than_a_host_that_waits() {
    let trace = training(10, 60, 120, 80);
    let machine = with_host(Lifetimes::of(&trace).peak().0 / 2);
    let (trace, machine, plan) = in_granules(&trace, &machine);
    let step = |runtime| {
        let runtime = of_granules(runtime);
        simulate_on_gpu(runtime, &trace, &machine, Policy::Planned(&plan)).unwrap()
    };
    let (waiting, ordered) = (step(waiting()), step(ordered()));
    assert!(ordered.time < waiting.time, "{:?} and {:?}", ordered.time, waiting.time);
    let counts = |step: Simulation| step.gpu.unwrap().counts;
    let (waiting, ordered) = (counts(waiting), counts(ordered));
    assert!(ordered.host_waits < waiting.host_waits / 4, "only for what is mapped elsewhere");
    assert_eq!(ordered.drains, 1, "only for the loss");
}
