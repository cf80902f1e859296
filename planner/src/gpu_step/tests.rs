use super::*;
use crate::simulate::{StepCounts, TimeCause};
use std::time::Duration;

const GPT_8: &str = include_str!("../../traces/gpt-8.json");

fn step(end: RangeEnd, percent: u32) -> LimitedStep {
    let trace = Trace::from_json(GPT_8).unwrap();
    LimitedStep::new(&trace, Constants::at(end), percent)
}

fn seconds(time: Nanos) -> f64 {
    Duration::from_nanos(time.0).as_secs_f64()
}

/// Measured: a peak of 10.17 GiB, and 0.219 s where nothing moves.
#[test]
fn the_trace_is_the_step_that_was_measured() {
    let step = step(RangeEnd::Value, 100);
    let peak = f64::from(u32::try_from(step.budget().0 >> 20).unwrap()) / 1024.0;
    assert!((peak / 10.17 - 1.0).abs() < 0.02, "a peak of {peak} GiB");
    let plain = step.plain().unwrap();
    assert!((seconds(plain.time) / 0.219 - 1.0).abs() < 0.01, "{:?}", plain.time);
    assert_eq!(plain.step.of(TimeCause::Kernels), step.kernels());
}

/// Checks that the measured steps lie between the model's ends, and the likeliest figures are below
/// it, by no more than is said (`docs/plan.md`). Nothing is fitted to the measured steps.
#[test]
fn the_model_is_as_far_from_the_measured_steps_as_it_is_said_to_be() {
    for (measured, off_at_most) in MEASURED.iter().zip([0.25, 0.20]) {
        let plan = step(RangeEnd::Value, measured.percent).plan(Bridge::Measured).unwrap();
        let time = |end| {
            let step = step(end, measured.percent);
            seconds(step.simulate(Bridge::Measured, &plan).unwrap().time)
        };
        let [fast, value, slow] = [RangeEnd::Fast, RangeEnd::Value, RangeEnd::Slow].map(time);
        let took = seconds(measured.time);
        assert!(fast < value && value < took && took < slow, "{measured:?}: {fast} {value} {slow}");
        assert!(value / took > 1.0 - off_at_most, "{measured:?}: {value}");
    }
}

#[test]
fn a_steps_time_is_the_sum_of_its_causes_and_no_less_than_its_kernels() {
    let step = step(RangeEnd::Value, 50);
    let plan = step.plan(Bridge::Measured).unwrap();
    for bridge in Bridge::ALL {
        let StepFigures { time, step: parts, .. } = step.simulate(bridge, &plan).unwrap();
        let sum: u64 = parts.causes.iter().map(|cause| cause.0).sum();
        assert_eq!(sum, time.0, "{}", bridge.name());
        assert_eq!(parts.of(TimeCause::Kernels), step.kernels(), "{}", bridge.name());
    }
}

#[test]
fn a_bridge_whose_streams_wait_is_faster_with_each_ones_plan() {
    let step = step(RangeEnd::Value, 50);
    let figures = |bridge| step.simulate(bridge, &step.plan(bridge).unwrap()).unwrap();
    let bridges =
        [Bridge::Measured, Bridge::Native, Bridge::Ordered, Bridge::Arena, Bridge::EventOrdered];
    let [first, native, ordered, in_arena, last] = bridges.map(figures);
    let faster = [(&first, &native), (&native, &ordered), (&ordered, &in_arena), (&ordered, &last)];
    for (slower, faster) in faster {
        assert!(faster.time < slower.time, "{:?} and {:?}", faster.time, slower.time);
    }
    for in_arena in [&in_arena, &last] {
        let StepCounts { drains, allocations, releases, misfits, .. } = in_arena.step.counts;
        assert_eq!([drains, allocations, releases, misfits], [1, 0, 0, 0], "one for the loss");
    }
    assert!(first.step.counts.host_waits > 10);
    let waits = last.step.counts.host_waits;
    assert!(waits < 20, "{waits} waits: only for memory that is mapped elsewhere");
}
