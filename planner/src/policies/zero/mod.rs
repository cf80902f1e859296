//! ZeRO-Offload (USENIX ATC 2021) and ZeRO-Infinity (SC 2021): optimizer state never comes to the
//! GPU. Gradients leave over `PCIe` as the backward pass makes them, the CPU adds them up and runs
//! Adam, and what it made of the parameters goes back.
//!
//! Both change what the GPU does, so that each returns a trace of its own beside the plan: that of
//! a step recorded with activation checkpointing, which is how both run, less what moves to the
//! CPU. What is assumed of either stands in `docs/plan.md`.

mod on_host;

use super::common::{Away, DoesNotFit, fits, latest_reads, worst};
use crate::cost::{HostLink, Machine, Timeline};
use crate::lifetime::{Lifetimes, Period, PeriodEnd, sum_over_ops};
use crate::migration::{Migration, MigrationDirection, Target};
use crate::plan::{Expectation, Plan};
use crate::trace::{PlanStorage, StorageKind, Trace};
use crate::units::{Bandwidth, Bytes};
use on_host::OnHost;
use std::collections::HashSet;

/// Rate at which Adam on the CPU moves through host memory: half of what twelve channels of
/// DDR5-4800 carry, one socket for a GPU. Published figures of CPU Adam come to about that half on
/// older machines.
pub(super) const CPU_RATE: Bandwidth = Bandwidth(230_000_000_000);

/// Bytes of other parameters before which one that is needed again stays
/// (`stage3_max_reuse_distance`, a thousand million elements of four bytes).
const REUSE_BYTES: u64 = 4_000_000_000;

/// A parameter's read begins when the third parameter before it is needed.
const READ_AHEAD: usize = 3;

/// A step as the system runs it.
#[derive(Clone, Debug)]
pub struct ZeroStep {
    /// Trace of the GPU's part; where the CPU runs Adam, the GPU waits for it.
    pub trace: Trace,
    /// Plan of its moves.
    pub plan: Plan,
    /// The host memory that this takes, staging buffers left out.
    pub host_memory: Bytes,
}

/// The reason why a system cannot run a step.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ZeroError {
    /// The GPU cannot hold what it keeps there.
    #[error(transparent)]
    Gpu(#[from] DoesNotFit),
    /// The host cannot hold what it keeps there.
    #[error("it keeps {needed} in host memory, of which there are {memory}")]
    Host {
        /// Bytes that it needs.
        needed: Bytes,
        /// Capacity of host memory.
        memory: Bytes,
    },
    /// The machine has no host memory.
    #[error("the machine has no host memory, where it keeps gradients")]
    NoHost,
}

/// ZeRO-Offload: parameters and activations stay on the GPU, the rest is on the host.
pub fn zero_offload(trace: &Trace, machine: &Machine) -> Result<ZeroStep, ZeroError> {
    let host = machine.host.ok_or(ZeroError::NoHost)?;
    let step = OnHost::of(trace, &host, |touched| CPU_RATE.time_for(touched.all()));
    let mut moves = Moves::default();
    moves.gradients(&step);
    moves.updated_parameters(&step);
    let kept = |kind| Bytes(on_host::sizes_of(trace, kind));
    let state = kept(StorageKind::Parameter).0 + kept(StorageKind::OptimizerState).0;
    let host_memory = Bytes(state + step.gradient_bytes().0);
    moves.finish("zero-offload", step, machine, host, host_memory)
}

/// ZeRO-Infinity: parameters and optimizer state are on NVMe, gradients and activations on the
/// host.
pub fn zero_infinity(trace: &Trace, machine: &Machine) -> Result<ZeroStep, ZeroError> {
    let host = machine.host.ok_or(ZeroError::NoHost)?;
    // State is read, updated and written back in a pipeline, which is as fast as its slowest part.
    let step = OnHost::of(trace, &host, |touched| {
        let reading = machine.ssd.read.time_for(touched.state);
        let writing = machine.ssd.write.time_for(touched.state);
        CPU_RATE.time_for(touched.all()).max(reading).max(writing)
    });
    let lifetimes = Lifetimes::of(&step.trace);
    let mut moves = Moves::default();
    moves.gradients(&step);
    moves.parameters(&step, &lifetimes);
    let before = moves.away.len();
    moves.activations(&step, &lifetimes, &host);
    let activations = moves.away[before..].iter().copied();
    let parked = sum_over_ops(step.trace.ops.len() as u32, activations);
    let parked = parked.into_iter().max().unwrap_or_default();
    let host_memory = Bytes(step.gradient_bytes().0 + parked.0);
    moves.finish("zero-infinity", step, machine, host, host_memory)
}

/// The rows of a plan, and what memory they free.
#[derive(Default)]
struct Moves {
    rows: Vec<Migration>,
    away: Vec<Away>,
}

impl Moves {
    /// Moves a storage out in `from..back`, in again before `to`.
    fn round_trip(&mut self, trace: &Trace, period: &Period, target: Target, back: u32) {
        let Period { storage, from, to, size, .. } = *period;
        let ops = trace.ops.len() as u32;
        let row = |direction, when| Migration::unrolled(storage, (direction, target), when, ops);
        self.rows.extend([
            row(MigrationDirection::Out, (from, back)),
            row(MigrationDirection::In, (back, to)),
        ]);
        self.away.push((from + 1, back.max(from + 1), size));
    }

    /// Each leaves when it is made and does not come back.
    fn gradients(&mut self, step: &OnHost) {
        let ops = step.trace.ops.len() as u32;
        for &(storage, from) in &step.gradients {
            let (way, until) = ((MigrationDirection::Out, Target::Host), (from + 1).min(ops - 1));
            self.rows.push(Migration::unrolled(storage, way, (from, until), ops));
            self.away.push((from + 1, ops, step.trace.storage(storage).size));
        }
    }

    /// The GPU's copy of what the CPU has updated is replaced over `PCIe` while the next one is
    /// updated.
    fn updated_parameters(&mut self, step: &OnHost) {
        let lifetimes = Lifetimes::of(&step.trace);
        for period in needed_again(&step.trace, &lifetimes, StorageKind::Parameter) {
            let Some(update) = step.update_in(&period) else { continue };
            let replaced = Period { from: update, ..period };
            self.round_trip(&step.trace, &replaced, Target::Host, update + 1);
        }
    }

    /// Each is read before its use and dropped after it; the CPU's update writes it.
    fn parameters(&mut self, step: &OnHost, lifetimes: &Lifetimes) {
        let ops = step.trace.ops.len() as u32;
        let uses = parameter_uses(&step.trace);
        let mut periods: Vec<Period> = needed_again(&step.trace, lifetimes, StorageKind::Parameter)
            .filter(|period| {
                step.update_in(period).is_some() || others_between(&step.trace, &uses, period)
            })
            .collect();
        periods.sort_by_key(|period| (period.to, period.storage));
        for (index, period) in periods.iter().enumerate() {
            let third_before = match index.checked_sub(READ_AHEAD) {
                Some(before) => periods[before].to,
                // Those before the first are the last of the step before.
                None => periods[(periods.len() + index).saturating_sub(READ_AHEAD)]
                    .to
                    .saturating_sub(ops),
            };
            let updated = step.update_in(period).unwrap_or(period.from);
            let back = third_before.max(updated + 1).max(period.from + 1).min(period.to);
            self.round_trip(&step.trace, period, Target::Ssd, back);
        }
    }

    /// Moves activations to host memory whose wait is longer than their way there and back.
    fn activations(&mut self, step: &OnHost, lifetimes: &Lifetimes, host: &HostLink) {
        let timeline = Timeline::of(&step.trace);
        let mut periods: Vec<Period> =
            needed_again(&step.trace, lifetimes, StorageKind::Activation)
                .filter(|period| {
                    let wait = timeline.begin(period.to).0 - timeline.begin(period.from).0;
                    let there = host.write.time_for(period.size).0 + host.latency.0;
                    wait > there + host.read.time_for(period.size).0 + host.latency.0
                })
                .collect();
        let back = latest_reads(&mut periods, host.read, &timeline);
        for (period, back) in periods.iter().zip(back) {
            self.round_trip(&step.trace, period, Target::Host, back);
        }
    }

    fn finish(
        self,
        name: &str,
        step: OnHost,
        machine: &Machine,
        host: HostLink,
        host_memory: Bytes,
    ) -> Result<ZeroStep, ZeroError> {
        fits(worst(&Lifetimes::of(&step.trace), self.away.into_iter()), machine.capacity())?;
        if host_memory > host.memory {
            return Err(ZeroError::Host { needed: host_memory, memory: host.memory });
        }
        let trace = step.trace;
        let plan = Plan::new(name, &trace, machine, self.rows, Expectation::default());
        Ok(ZeroStep { trace, plan, host_memory })
    }
}

/// The waits of one kind of storage that end with a use.
fn needed_again(
    trace: &Trace,
    lifetimes: &Lifetimes,
    kind: StorageKind,
) -> impl Iterator<Item = Period> {
    let of_kind = lifetimes.periods.iter().copied().filter(move |period| {
        trace.storage(period.storage).kind == kind
            && period.end == PeriodEnd::Use
            && period.to > period.from + 1
    });
    of_kind.collect::<Vec<_>>().into_iter()
}

/// Every op's parameters over two iterations.
fn parameter_uses(trace: &Trace) -> Vec<Vec<PlanStorage>> {
    let of_op = |op: &crate::trace::Op| {
        let used = op.uses.iter().map(|used| used.storage);
        used.filter(|storage| trace.storage(*storage).kind == StorageKind::Parameter).collect()
    };
    trace.ops.iter().chain(&trace.ops).map(of_op).collect()
}

/// Returns whether so much of other parameters is used during a wait that the storage is not kept
/// for it.
fn others_between(trace: &Trace, uses: &[Vec<PlanStorage>], period: &Period) -> bool {
    let mut seen = HashSet::new();
    let mut bytes = 0;
    for storage in uses[period.from as usize..period.to as usize].iter().flatten() {
        if *storage != period.storage && seen.insert(*storage) {
            bytes += trace.storage(*storage).size.0;
            if bytes > REUSE_BYTES {
                return true;
            }
        }
    }
    false
}

#[cfg(test)]
mod tests;
