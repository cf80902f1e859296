use super::*;

const GPT_8: &str = include_str!("../../traces/gpt-8.json");

fn step(gigabytes: u64) -> (Trace, HostStep) {
    let trace = Trace::from_json(GPT_8).unwrap();
    let rate = |gigabytes: u64| Bandwidth(gigabytes * 1_000_000_000);
    let processor = HostProcessor { memory: rate(gigabytes), out: rate(50), back: rate(40) };
    let step = on_host(&trace, processor).unwrap();
    (trace, step)
}

fn bytes_of(trace: &Trace, kind: StorageKind) -> u64 {
    let of_kind = trace.storages.iter().filter(|storage| storage.kind == kind);
    of_kind.map(|storage| storage.size.0).sum()
}

fn copied(trace: &Trace, name: &str) -> Vec<PlanStorage> {
    let copies = trace.ops.iter().filter(|op| op.name == name);
    copies.map(|op| op.uses[0].storage).collect()
}

#[test]
fn state_is_no_more_and_each_gradient_leaves_once() {
    let (own, HostStep { trace, .. }) = step(100);
    assert!(bytes_of(&own, StorageKind::OptimizerState) > 0);
    assert_eq!(bytes_of(&trace, StorageKind::OptimizerState), 0);
    let (left, came) = (copied(&trace, "to host"), copied(&trace, "from host"));
    let size =
        |list: &[PlanStorage]| list.iter().map(|one| trace.storage(*one).size.0).sum::<u64>();
    assert_eq!(size(&left), size(&came));
    assert_eq!(size(&came), bytes_of(&trace, StorageKind::Parameter));
}

#[test]
fn a_parameter_comes_back_before_anything_uses_it() {
    let (_, HostStep { trace, .. }) = step(100);
    for parameter in copied(&trace, "from host") {
        let uses = |op: &&Op| op.uses.iter().any(|used| used.storage == parameter);
        let first = trace.ops.iter().find(uses).unwrap();
        assert_eq!((first.name.as_str(), first.uses[0].access), ("from host", Access::Write));
        assert_eq!(trace.ops.iter().filter(uses).filter(|op| op.name == "from host").count(), 1);
    }
}

#[test]
fn what_is_not_an_update_runs_in_the_programs_order_and_takes_as_long() {
    let (own, HostStep { trace, .. }) = step(100);
    let base = split::by_parameter(&own);
    let is_update = updates::of(&base);
    let stays = base.ops.iter().zip(&is_update).filter(|(_, is_update)| !**is_update);
    let stays: Vec<_> = stays.map(|(op, _)| (&op.name, op.duration)).collect();
    let is_copy = |op: &&Op| ["to host", "from host"].contains(&op.name.as_str());
    let left = trace.ops.iter().filter(|op| !is_copy(op));
    assert_eq!(left.map(|op| (&op.name, op.duration)).collect::<Vec<_>>(), stays);
}

#[test]
fn host_memory_holds_copies_state_and_an_eighth_of_the_gradients() {
    let (own, HostStep { trace, kept, traffic, .. }) = step(100);
    let parameters = bytes_of(&trace, StorageKind::Parameter);
    let state = bytes_of(&own, StorageKind::OptimizerState);
    assert_eq!(kept.0, parameters + state + parameters / WAITING_PARTS);
    assert_eq!(traffic.0, 3 * parameters + 2 * state, "a gradient is as large as its parameter");
}

/// Checks a host that is fast enough, one that a step waits for, and that the wait is no longer
/// than the host takes.
#[test]
fn a_step_waits_for_a_slow_host_alone() {
    let [fast, slow] = [2000, 5].map(|rate| step(rate).1);
    assert_eq!(fast.waits, Nanos(0));
    assert!(slow.waits > Nanos(0) && slow.waits <= slow.busy, "{:?}", slow.waits);
    let of = |step: &HostStep, name| -> u64 {
        let copies = step.trace.ops.iter().filter(|op| op.name == name);
        copies.map(|op| op.duration.0).sum()
    };
    // Gradients find no room where seven in eight of them are not used up.
    assert!(of(&slow, "to host") - of(&fast, "to host") > slow.busy.0 / 2);
    assert_eq!(slow.trace.duration().0 - fast.trace.duration().0, slow.waits.0);
}

#[test]
fn a_step_without_an_optimizer_is_refused() {
    let (_, HostStep { trace, .. }) = step(100);
    let rate = Bandwidth(1_000_000_000);
    let again = on_host(&trace, HostProcessor { memory: rate, out: rate, back: rate });
    assert!(matches!(again, Err(OrderError::NoOptimizer)));
}
