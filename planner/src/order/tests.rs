use super::*;
use crate::bound::{Effort, lower_bound};
use crate::instances::LayeredStep;
use crate::lifetime::Lifetimes;
use crate::testing::machine;
use crate::tidelog::{TidelogOptions, tidelog};
use crate::trace::{Access, StorageKind, Use};

const EARLY: OpOrder = OpOrder { micro_batches: MicroBatches::Own, updates: Updates::Early };
const LAZY: OpOrder = OpOrder { micro_batches: MicroBatches::Own, updates: Updates::Lazy };
const LAYER_WISE: OpOrder =
    OpOrder { micro_batches: MicroBatches::LayerWise, updates: Updates::Own };

fn is_update(trace: &Trace, position: usize) -> bool {
    trace.ops[position].name.contains("adam")
}

/// The positions of the ops that use the storage of this name.
fn users(trace: &Trace, name: &str) -> Vec<usize> {
    let named = |used: &Use| trace.label(used.storage) == name;
    let uses = |position: &usize| trace.ops[*position].uses.iter().any(named);
    (0..trace.ops.len()).filter(uses).collect()
}

#[test]
fn the_programs_own_order_is_the_trace_as_it_is() {
    let trace = LayeredStep::of(3, 2).trace();
    assert_eq!(OpOrder::OWN.of(&trace).unwrap().trace, trace);
}

#[test]
fn early_updates_follow_the_last_op_of_their_gradient() {
    let trace = LayeredStep::of(3, 2).trace();
    let early = EARLY.of(&trace).unwrap().trace;
    for update in (0..early.ops.len()).filter(|at| is_update(&early, *at)) {
        let gradient = early.ops[update].uses[1].storage;
        assert_eq!(early.storage(gradient).kind, StorageKind::Gradient);
        let before = &early.ops[update - 1];
        let touches = before.uses.iter().any(|used| used.storage == gradient);
        assert!(touches, "op {update}: {before:?}");
        assert!(early.ops[update].deaths.iter().any(|death| death.storage == gradient));
    }
    // One parameter's gradient at a time: the others are sums already, or updated.
    assert!(Lifetimes::of(&early).peak() <= Lifetimes::of(&trace).peak());
}

#[test]
fn lazy_updates_precede_the_first_use_of_their_parameter() {
    let trace = LayeredStep::of(3, 2).trace();
    let reordered = LAZY.of(&trace).unwrap();
    let lazy = &reordered.trace;
    for name in ["layers.0.up", "layers.2.down", "head.weight"] {
        let users = users(lazy, name);
        assert!(is_update(lazy, users[0]), "{name}: {users:?}");
        assert_eq!(users[0] + 1, users[1], "{name}");
        let update = &lazy.ops[users[0]];
        assert!(update.uses[1].previous, "the gradient is from the iteration before");
        assert!(update.deaths.iter().all(|death| death.previous));
        assert!(reordered.schedule[users[0]].late);
    }
    assert!(!is_update(lazy, lazy.ops.len() - 1));
}

#[test]
fn a_block_sees_all_micro_batches_before_the_next_block() {
    let (layers, count) = (3, 4);
    let trace = LayeredStep::of(layers, count).trace();
    let found = LAYER_WISE.of(&trace).unwrap().trace;
    for layer in 0..layers {
        let of_layer = users(&found, &format!("layers.{layer}.up"));
        let after = users(&found, &format!("layers.{}.up", (layer + 1) % layers));
        let forward = &of_layer[..count];
        // All of them, with nothing of another layer between.
        let between = |at: &usize| (forward[0]..forward[count - 1]).contains(at);
        assert!(!after.iter().any(between), "layer {layer}: {of_layer:?}, {after:?}");
    }
    // A block has two parts, forward and backward; the head has one.
    let parts = |name: &str| {
        let mut users = users(&found, name);
        users.retain(|at| !is_update(&found, *at));
        users.chunk_by(|one, next| next - one < 20).count()
    };
    assert_eq!([parts("layers.0.up"), parts("head.weight")], [2, 1]);
    assert_eq!(found.ops.len(), trace.ops.len());
    assert_eq!(found.duration(), trace.duration());
}

/// A program that keeps gradients until the next step may look at them, unless updates move.
#[test]
fn gradients_live_as_long_as_in_the_program_unless_updates_move() {
    let trace = LayeredStep { kept: true, ..LayeredStep::of(2, 2) }.trace();
    let deaths_at_the_beginning = |order: OpOrder| {
        let found = order.of(&trace).unwrap().trace;
        let deaths = &found.ops[0].deaths;
        deaths.iter().filter(|death| death.previous).count()
    };
    assert_eq!([OpOrder::OWN, LAYER_WISE].map(deaths_at_the_beginning), [5, 5]);
    assert_eq!(deaths_at_the_beginning(EARLY), 0);
}

/// Checks that only updates that need all gradients stay behind them.
#[test]
fn updates_wait_for_a_norm_over_all_gradients() {
    let trace = LayeredStep { clipped: true, ..LayeredStep::of(3, 2) }.trace();
    let early = EARLY.of(&trace).unwrap().trace;
    let norm = early.ops.iter().position(|op| op.uses.len() == 7).unwrap();
    let first = (0..early.ops.len()).find(|at| is_update(&early, *at)).unwrap();
    assert!(first > norm);
}

#[test]
fn an_update_of_all_parameters_is_one_for_each() {
    let each = LayeredStep::of(3, 2);
    let fused = LayeredStep { fused: true, ..each }.trace();
    let (apart, together) = (EARLY.of(&each.trace()).unwrap(), EARLY.of(&fused).unwrap());
    assert_eq!(together.trace.ops.len(), fused.ops.len() + 6);
    let uses = |trace: &Trace| trace.ops.iter().map(|op| op.uses.clone()).collect::<Vec<_>>();
    assert_eq!(uses(&together.trace), uses(&apart.trace));
    assert_eq!(together.trace.duration(), fused.duration());
}

#[test]
fn what_has_no_such_order_says_why() {
    let one = LayeredStep::of(3, 1).trace();
    assert!(matches!(LAYER_WISE.of(&one), Err(OrderError::NoMicroBatches)));
    let mut inference = LayeredStep::of(3, 2).trace();
    for storage in &mut inference.storages {
        storage.kind = StorageKind::Activation;
    }
    assert!(matches!(LAZY.of(&inference), Err(OrderError::NoOptimizer)));
    assert!(matches!(LAYER_WISE.of(&inference), Err(OrderError::NoMicroBatches)));
}

/// A planted mistake: two ops in the wrong order.
#[test]
fn an_order_that_reads_something_else_is_found() {
    let trace = LayeredStep::of(2, 2).trace();
    let sound = OpOrder::OWN.of(&trace).unwrap();
    check(&sound).unwrap();
    let mut wrong = sound.clone();
    let update = (0..trace.ops.len()).find(|at| is_update(&trace, *at)).unwrap();
    let reader = users(&trace, "layers.0.up")[0];
    wrong.trace.ops.swap(update, reader);
    wrong.schedule.swap(update, reader);
    let broken = check(&wrong).unwrap_err();
    assert!(broken.to_string().contains("would read other bytes of"), "{broken}");
    assert_eq!(trace.ops[reader].uses[0].access, Access::Read);
}

#[test]
fn a_fingerprint_tells_the_order() {
    let trace = LayeredStep::of(3, 2).trace();
    for order in OpOrder::ALL {
        let reordered = order.of(&trace).unwrap().trace;
        let found = OpOrder::with_fingerprint(&trace, reordered.fingerprint());
        assert_eq!(found, Some((order, reordered)));
    }
    assert_eq!(OpOrder::with_fingerprint(&trace, 7), None);
}

/// Checks a case of short memory, where parameters come in once a pass instead of once a
/// micro-batch, and gradients stay.
#[test]
fn the_best_order_is_far_faster_where_the_link_is_the_limit() {
    let trace = LayeredStep::of(12, 4).trace();
    let machine = machine(900_000);
    let time = |order: OpOrder| {
        let trace = order.of(&trace).unwrap().trace;
        tidelog(&trace, &machine, TidelogOptions::default()).unwrap().1.time.0
    };
    let own = time(OpOrder::OWN);
    let best = OpOrder::ALL.into_iter().map(time).min().unwrap();
    assert!(4 * best <= 3 * own, "{best} of {own}");
    // Nor could any plan in the program's own order.
    let bound = lower_bound(&trace, &machine, Effort { instants: 200, steps: 300 }).unwrap().time.0;
    assert!(4 * best <= 3 * bound && bound <= own, "{best}, at least {bound} of {own}");
}
