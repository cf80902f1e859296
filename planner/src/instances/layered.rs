//! A training step of which everything is chosen.

use super::Builder;
use crate::trace::{Access, PlanStorage, StorageKind, Trace};

/// A training step over a chain of layers, with gradients summed over micro-batches and Adam.
#[derive(Clone, Copy, Debug)]
pub struct LayeredStep {
    /// Number of layers, of two parameters each; a head comes after them.
    pub layers: usize,
    /// Number of micro-batches.
    pub micro_batches: usize,
    /// Size of a parameter.
    pub weight: u64,
    /// Bytes that a layer saves for its backward pass.
    pub saved: u64,
    /// Duration of an op.
    pub op_time: u64,
    /// One op updates all parameters, instead of one each.
    pub fused: bool,
    /// Gradients are scaled by their norm over all parameters first.
    pub clipped: bool,
    /// Gradients are kept until the next step begins.
    pub kept: bool,
}

impl LayeredStep {
    /// One op per layer and pass, one update for each parameter.
    pub const fn of(layers: usize, micro_batches: usize) -> Self {
        let (weight, saved, op_time) = (100_000, 30_000, 20_000);
        let (fused, clipped, kept) = (false, false, false);
        Self { layers, micro_batches, weight, saved, op_time, fused, clipped, kept }
    }

    /// The trace of the step.
    pub fn trace(self) -> Trace {
        let mut b = Builder::default();
        let mut names: Vec<String> = (0..self.layers)
            .flat_map(|n| [format!("layers.{n}.up"), format!("layers.{n}.down")])
            .collect();
        names.push("head.weight".to_owned());
        let weights: Vec<_> = names.iter().map(|name| b.global(name, self.weight)).collect();
        let state = |b: &mut Builder, ending: &str| -> Vec<PlanStorage> {
            let made = names.iter().map(|name| b.global(&format!("{name}.{ending}"), self.weight));
            made.collect()
        };
        let states = [state(&mut b, "exp_avg"), state(&mut b, "exp_avg_sq")];
        for one in states.iter().flatten() {
            b.trace.storages[one.0 as usize].kind = StorageKind::OptimizerState;
        }
        let mut gradients = vec![None; weights.len()];
        for _ in 0..self.micro_batches {
            self.pass(&mut b, &weights, &mut gradients);
        }
        let gradients: Vec<PlanStorage> = gradients.into_iter().flatten().collect();
        if self.clipped {
            self.clip(&mut b, &gradients);
        }
        self.update(&mut b, &[&weights, &gradients, &states[0], &states[1]]);
        for gradient in gradients {
            let last = b.trace.ops.len() - 1;
            b.death(if self.kept { 0 } else { last }, gradient, self.kept);
        }
        b.finish()
    }

    /// A micro-batch forward and backward.
    fn pass(self, b: &mut Builder, weights: &[PlanStorage], sums: &mut [Option<PlanStorage>]) {
        let load = b.op(self.op_time / 10);
        let mut saved = vec![b.birth(load, self.saved)];
        for weight in weights {
            let op = b.op(self.op_time);
            b.uses(op, *weight, Access::Read);
            b.uses(op, saved[saved.len() - 1], Access::Read);
            saved.push(b.birth(op, self.saved));
        }
        let mut from_above = saved.pop().expect("the head makes one");
        for (index, weight) in weights.iter().enumerate().rev() {
            let op = b.op(2 * self.op_time);
            let input = saved.pop().expect("one for each");
            for storage in [*weight, input, from_above] {
                b.uses(op, storage, Access::Read);
            }
            let gradient = b.birth(op, self.weight);
            b.trace.storages[gradient.0 as usize].kind = StorageKind::Gradient;
            let passed_on = b.birth(op, self.saved);
            b.death(op, input, false);
            b.death(op, from_above, false);
            from_above = passed_on;
            match sums[index] {
                None => sums[index] = Some(gradient),
                Some(sum) => {
                    let add = b.op(self.op_time / 10);
                    b.uses(add, sum, Access::Update);
                    b.uses(add, gradient, Access::Read);
                    b.death(add, gradient, false);
                }
            }
        }
        let last = b.trace.ops.len() - 1;
        b.death(last, from_above, false);
    }

    fn clip(self, b: &mut Builder, gradients: &[PlanStorage]) {
        let norm = b.op(self.op_time / 10);
        for gradient in gradients {
            b.uses(norm, *gradient, Access::Read);
        }
        let factor = b.birth(norm, 4);
        for gradient in gradients {
            let scale = b.op(self.op_time / 10);
            b.uses(scale, *gradient, Access::Update);
            b.uses(scale, factor, Access::Read);
        }
        let last = b.trace.ops.len() - 1;
        b.death(last, factor, false);
    }

    fn update(self, b: &mut Builder, lists: &[&[PlanStorage]]) {
        let access = |list: usize| if list == 1 { Access::Read } else { Access::Update };
        let count = lists[0].len();
        let each = if self.fused { count } else { 1 };
        for first in (0..count).step_by(each) {
            let op = b.op(self.op_time / 10 * each as u64);
            "aten._fused_adam_.default".clone_into(&mut b.trace.ops[op].name);
            for (list, storages) in lists.iter().enumerate() {
                for storage in &storages[first..first + each] {
                    b.uses(op, *storage, access(list));
                }
            }
        }
    }
}
