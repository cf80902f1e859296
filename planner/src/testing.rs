//! Small traces for this crate's tests.

pub(crate) use crate::instances::{Builder, every_plan, random_trace};

use crate::cost::{Machine, SsdLink};
use crate::trace::{Access, PlanStorage, Trace};
use crate::units::{Bandwidth, Bytes, Nanos};

impl Builder {
    /// The next `count` ops, all alike.
    pub(crate) fn ops(&mut self, count: usize, duration: u64) {
        for _ in 0..count {
            self.op(duration);
        }
    }
}

/// One byte per nanosecond each way, no latency, no host memory.
pub(crate) fn machine(budget: u64) -> Machine {
    let rate = Bandwidth(1_000_000_000);
    Machine {
        budget: Bytes(budget),
        staging: Bytes(0),
        ssd: SsdLink { read: rate, write: rate, latency: Nanos(0) },
        host: None,
        verify: Bandwidth(1_000_000_000_000),
    }
}

/// A forward and backward pass over `layers` with an optimizer step: weights and momenta are
/// global, activations are saved, gradients die in the next iteration.
pub(crate) fn training(layers: u64, weight: u64, activation: u64, op_time: u64) -> Trace {
    let mut b = Builder::default();
    let layer_weights: Vec<_> =
        (0..layers).map(|l| b.global(&format!("layer{l}.weight"), weight)).collect();
    let momenta: Vec<_> =
        (0..layers).map(|l| b.global(&format!("layer{l}.momentum"), weight)).collect();
    let mut saved: Vec<PlanStorage> = Vec::new();
    for layer in &layer_weights {
        let op = b.op(op_time);
        b.uses(op, *layer, Access::Read);
        if let Some(input) = saved.last() {
            b.uses(op, *input, Access::Read);
        }
        saved.push(b.birth(op, activation));
    }
    let mut gradients = Vec::new();
    for layer in layer_weights.iter().rev() {
        let op = b.op(2 * op_time);
        b.uses(op, *layer, Access::Read);
        let activation = saved.pop().expect("one per layer");
        b.uses(op, activation, Access::Read);
        b.death(op, activation, false);
        gradients.push(b.birth(op, weight));
    }
    gradients.reverse();
    for ((layer, momentum), gradient) in layer_weights.iter().zip(&momenta).zip(&gradients) {
        let op = b.op(op_time / 2 + 1);
        b.uses(op, *layer, Access::Update);
        b.uses(op, *momentum, Access::Update);
        b.uses(op, *gradient, Access::Read);
        b.death(0, *gradient, true);
    }
    b.finish()
}
