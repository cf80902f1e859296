//! `GreedySnake` (arXiv 2512.17570): all micro-batches pass a layer before the next, and the CPU
//! updates a layer's parameters while the GPU works on others: of one part of them in the backward
//! pass, of the rest in the next forward pass.
//!
//! What moves is on the same places as with ZeRO-Infinity: parameters and optimizer state on SSDs,
//! activations and gradients in host memory. Each pass is a pipeline over many layers, and as slow
//! as its slowest part; which part of the updates waits for the forward pass is what makes the step
//! shortest. What is assumed stands in `docs/plan.md`.

use super::common::DoesNotFit;
use super::zero::{CPU_RATE, ZeroError};
use crate::cost::{HostLink, Machine};
use crate::lifetime::Lifetimes;
use crate::order::{MicroBatches, OpOrder};
use crate::trace::{Access, Op, StorageKind, Trace, Use};
use crate::units::{Bytes, Nanos};

/// Number of steps in which parts of the updates that wait for the forward pass are tried.
const PARTS: u64 = 100;

/// A step as the system runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnakeStep {
    /// Duration of the step.
    pub time: Nanos,
    /// Part of the updates that waits for the next forward pass, in percent.
    pub delayed_percent: u64,
    /// The host memory that it takes, staging buffers left out.
    pub host_memory: Bytes,
}

/// `GreedySnake` on a step that is recorded with activation checkpointing.
///
/// # Errors
/// What it keeps on the GPU or the host is too much, or there is no host memory.
pub fn greedysnake(trace: &Trace, machine: &Machine) -> Result<SnakeStep, ZeroError> {
    let host = machine.host.ok_or(ZeroError::NoHost)?;
    let layer_wise = OpOrder { micro_batches: MicroBatches::LayerWise, ..OpOrder::OWN };
    // One micro-batch passes layer by layer as it is.
    let reordered = layer_wise.of(trace).map_or_else(|_| trace.clone(), |found| found.trace);
    let (op, needed) = Lifetimes::of(&reordered).largest_op();
    let capacity = machine.capacity();
    if needed > capacity {
        return Err(DoesNotFit { op, needed, capacity }.into());
    }
    let [forward, backward] = passes(&reordered);
    let updates = Updates::of(&reordered);
    let times = (0..=PARTS).map(|part| {
        let time = forward.time(machine, &host, &updates, part)
            + backward.time(machine, &host, &updates, PARTS - part);
        (time, part)
    });
    let (time, part) = times.min().unwrap_or_default();
    let host_memory = Bytes(backward.activations + updates.gradients);
    if host_memory > host.memory {
        return Err(ZeroError::Host { needed: host_memory, memory: host.memory });
    }
    let delayed_percent = 100 * part / PARTS;
    Ok(SnakeStep { time: Nanos(time), delayed_percent, host_memory })
}

/// Needs of one pass of each part of the machine, updates left out.
#[derive(Clone, Copy, Debug, Default)]
struct Pass {
    kernels: u64,
    parameters: u64,
    /// Layers' inputs: kept from the forward pass for the backward pass.
    activations: u64,
    gradients: u64,
    is_backward: bool,
}

impl Pass {
    /// Returns the duration of the pass with `part` of the updates in it.
    fn time(&self, machine: &Machine, host: &HostLink, updates: &Updates, part: u64) -> u64 {
        let of_part =
            |bytes: u64| (u128::from(bytes) * u128::from(part) / u128::from(PARTS)) as u64;
        let state = of_part(updates.state);
        let read = machine.ssd.read.time_for(Bytes(self.parameters + state)).0;
        let written = machine.ssd.write.time_for(Bytes(state)).0;
        let cpu = CPU_RATE.time_for(Bytes(2 * state + of_part(updates.gradients))).0;
        // A layer's inputs of all micro-batches go out and come in again for the next layer; on the
        // way back they come in, and the gradients of them go out and in.
        let returned = self.activations * (1 + u64::from(self.is_backward));
        let out = host.write.time_for(Bytes(self.activations + self.gradients)).0;
        let back = host.read.time_for(Bytes(self.parameters + returned)).0;
        self.kernels.max(read).max(written).max(cpu).max(out).max(back)
    }
}

/// Data that all updates together touch.
struct Updates {
    /// Parameters and optimizer state: read, and written back.
    state: u64,
    gradients: u64,
}

impl Updates {
    fn of(trace: &Trace) -> Self {
        let mut used = vec![false; trace.storages.len()];
        let updates = trace.ops.iter().filter(|op| is_update(trace, op));
        for one in updates.flat_map(|op| &op.uses) {
            used[one.storage.0 as usize] = true;
        }
        let sum = |wanted: fn(StorageKind) -> bool| {
            let all = trace.storages.iter().zip(&used);
            let counted = all.filter(|(storage, used)| **used && wanted(storage.kind));
            counted.map(|(storage, _)| storage.size.0).sum()
        };
        let is_state = |kind| matches!(kind, StorageKind::Parameter | StorageKind::OptimizerState);
        Self { state: sum(is_state), gradients: sum(|kind| kind == StorageKind::Gradient) }
    }
}

fn is_update(trace: &Trace, op: &Op) -> bool {
    let is_state = |used: &Use| trace.storage(used.storage).kind == StorageKind::OptimizerState;
    op.uses.iter().any(is_state)
}

/// The forward and the backward pass: the latter begins with the first gradient.
fn passes(trace: &Trace) -> [Pass; 2] {
    let kind = |storage| trace.storage(storage).kind;
    let begins = trace
        .ops
        .iter()
        .position(|op| op.births.iter().any(|birth| kind(birth.storage) == StorageKind::Gradient));
    let begins = begins.unwrap_or(trace.ops.len());
    let mut made_before = vec![false; trace.storages.len()];
    let mut passes = [Pass::default(), Pass { is_backward: true, ..Pass::default() }];
    let mut seen = [made_before.clone(), made_before.clone()];
    for (index, op) in trace.ops.iter().enumerate().filter(|(_, op)| !is_update(trace, op)) {
        let at = usize::from(index >= begins);
        passes[at].kernels += op.duration.0;
        for birth in op.births.iter().filter(|_| at == 0) {
            made_before[birth.storage.0 as usize] = true;
        }
        for Use { storage, access, .. } in &op.uses {
            let (size, slot) = (trace.storage(*storage).size.0, storage.0 as usize);
            if std::mem::replace(&mut seen[at][slot], true) {
                continue;
            }
            match kind(*storage) {
                StorageKind::Parameter if *access == Access::Read => passes[at].parameters += size,
                StorageKind::Activation if at == 1 && made_before[slot] => {
                    let [forward, backward] = &mut passes;
                    forward.activations += size;
                    backward.activations += size;
                }
                _ => {}
            }
        }
    }
    passes[1].gradients = Updates::of(trace).gradients;
    passes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::SsdLink;
    use crate::instances::LayeredStep;
    use crate::units::Bandwidth;

    fn machine(ssd: u64) -> Machine {
        let rate = |megabytes: u64| Bandwidth(megabytes * 1_000_000);
        let ssd = SsdLink { read: rate(ssd), write: rate(ssd), latency: Nanos(0) };
        let (memory, latency) = (Bytes(1 << 30), Nanos(0));
        let host = HostLink { read: rate(50_000), write: rate(50_000), latency, memory };
        let (budget, verify) = (Bytes(1_000_000), Bandwidth(1 << 50));
        Machine { budget, staging: Bytes(0), ssd, host: Some(host), verify }
    }

    /// Parameters come in once a pass however many micro-batches there are, and updates hide.
    #[test]
    fn micro_batches_cost_kernels_alone() {
        let of = |count| {
            let trace = LayeredStep { saved: 100, ..LayeredStep::of(6, count) }.trace();
            let slow = greedysnake(&trace, &machine(100)).unwrap();
            let fast = greedysnake(&trace, &machine(1_000_000)).unwrap();
            (slow.time, fast.time.0)
        };
        let (two, four) = (of(2), of(4));
        assert_eq!(two.0, four.0, "SSDs are the limit");
        assert!(2 * two.1 <= four.1 + 1_000_000, "kernels are: {} and {}", two.1, four.1);
        // 13 parameters in twice, and with state of twice as much once more.
        let bytes = 13 * 100_000 * (2 + 3);
        let at_best = Bandwidth(100_000_000).time_for(Bytes(bytes)).0;
        assert!((at_best..at_best + at_best / 50).contains(&two.0.0), "{} {at_best}", two.0.0);
    }

    #[test]
    fn what_does_not_fit_is_told() {
        let trace = LayeredStep::of(6, 2).trace();
        let mut small = machine(100);
        small.host.as_mut().unwrap().memory = Bytes(1_000);
        assert!(matches!(greedysnake(&trace, &small), Err(ZeroError::Host { .. })));
        small.host = None;
        assert_eq!(greedysnake(&trace, &small), Err(ZeroError::NoHost));
        small = machine(100);
        small.budget = Bytes(50_000);
        assert!(matches!(greedysnake(&trace, &small), Err(ZeroError::Gpu(_))));
    }
}
