//! A step whose updates run on the host's processor, beside the GPU, where optimizer state lies.
//!
//! All updates run there, or some (`host_updates` chooses which). Each is left out, and its state
//! with it. A gradient is copied to the host where the first
//! update would read it; a parameter comes back just before the first op of the next iteration that
//! uses it. Both copies are ops here, in the stream of kernels, as the bridge launches them. The
//! host updates one parameter after the other, as fast as its memory is. A gradient for which host
//! memory has no room has its copy wait until those before it are used up; a parameter that is not
//! ready has its own wait. Waits are reckoned for a step without any other: one that waits for
//! transfers, too, gives the host more time.

use super::{OrderError, split, updates};
use crate::trace::{
    Access, Birth, Death, Identity, Op, PlanStorage, Storage, StorageKind, Trace, Use,
};
use crate::units::{Bandwidth, Bytes, Nanos, OpIndex};
use std::collections::VecDeque;

/// Gradients that wait on the host have this part of what parameters have, at least the largest
/// (`_WAITING_PARTS` of the bridge).
const WAITING_PARTS: u64 = 8;

/// Processor on which updates run, and its link to the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostProcessor {
    /// Bytes per second of its memory that an update reads and writes.
    pub memory: Bandwidth,
    /// Bytes per second from the GPU.
    pub out: Bandwidth,
    /// Bytes per second to the GPU.
    pub back: Bandwidth,
}

/// A step whose updates run on the host.
#[derive(Clone, Debug)]
pub struct HostStep {
    /// Trace of what is left for the GPU.
    pub trace: Trace,
    /// Host memory that copies of parameters, state and waiting gradients take.
    pub kept: Bytes,
    /// Bytes of its memory that the host reads and writes.
    pub traffic: Bytes,
    /// Time that the host's processor takes.
    pub busy: Nanos,
    /// Time that copies wait for it.
    pub waits: Nanos,
}

/// Returns the step with all of its updates on a host.
///
/// # Errors
/// Where the trace has no optimizer, or one that updates no parameter of its own.
pub fn on_host(trace: &Trace, processor: HostProcessor) -> Result<HostStep, OrderError> {
    let base = split::by_parameter(trace);
    some_on_host(&base, &updates::of(&base), processor)
}

/// Returns the step with the updates of `is_moved` on a host, of a trace whose updates are one op
/// or more for each parameter.
pub(super) fn some_on_host(
    base: &Trace,
    is_moved: &[bool],
    processor: HostProcessor,
) -> Result<HostStep, OrderError> {
    let moved = Moved::of(base, is_moved);
    if moved.parameters.is_empty() {
        return Err(OrderError::NoOptimizer);
    }
    let mut step = Emitted::new(base, processor);
    let mut returned = vec![false; base.storages.len()];
    let mut left = vec![false; base.storages.len()];
    for (op, is_update) in base.ops.iter().zip(is_moved) {
        for used in &op.uses {
            let storage = used.storage.0 as usize;
            if *is_update && moved.gradients.contains(&used.storage) && !left[storage] {
                left[storage] = true;
                step.leaves(*used);
            }
            if !is_update && moved.is_updated[storage] && !returned[storage] {
                returned[storage] = true;
                step.returns(used.storage);
            }
        }
        if *is_update { step.lets_go(op, &moved) } else { step.runs(op) }
    }
    let traffic = moved.traffic(base);
    let size = |storage: &PlanStorage| base.storage(*storage).size.0;
    let waiting = moved.gradients.iter().map(size).max().unwrap_or(0);
    let gradients: u64 = moved.gradients.iter().map(size).sum();
    let kept = moved.parameters.iter().chain(&moved.state).map(size).sum::<u64>();
    let room = waiting.max(gradients / WAITING_PARTS);
    let waits = step.wait_for_host(&moved, traffic, room);
    let mut trace = step.trace;
    trace.name = format!("{}, updates on the host", trace.name);
    let trace = without_unused(trace, &moved);
    trace.validate()?;
    Ok(HostStep {
        trace,
        kept: Bytes(kept + room),
        traffic: Bytes(traffic),
        busy: time_of(traffic, processor.memory),
        waits,
    })
}

/// Storages of updates that have left the GPU.
struct Moved {
    parameters: Vec<PlanStorage>, // in the order of their updates
    is_updated: Vec<bool>,
    gradients: Vec<PlanStorage>,
    state: Vec<PlanStorage>,
    /// Storages that only updates use, or make: they are no more.
    is_gone: Vec<bool>,
}

impl Moved {
    fn of(base: &Trace, is_update: &[bool]) -> Self {
        let count = base.storages.len();
        let mut moved = Self {
            parameters: Vec::new(),
            is_updated: vec![false; count],
            gradients: Vec::new(),
            state: Vec::new(),
            is_gone: vec![true; count],
        };
        let mut seen = vec![false; count];
        for (op, is_update) in base.ops.iter().zip(is_update) {
            for birth in op.births.iter().filter(|_| !is_update) {
                moved.is_gone[birth.storage.0 as usize] = false;
            }
            for used in &op.uses {
                let at = used.storage.0 as usize;
                moved.is_gone[at] &= *is_update;
                if !is_update || std::mem::replace(&mut seen[at], true) {
                    continue;
                }
                match base.storage(used.storage).kind {
                    StorageKind::Parameter => moved.parameters.push(used.storage),
                    StorageKind::Gradient => moved.gradients.push(used.storage),
                    StorageKind::OptimizerState => moved.state.push(used.storage),
                    _ => {}
                }
            }
        }
        for parameter in &moved.parameters {
            moved.is_updated[parameter.0 as usize] = true;
            moved.is_gone[parameter.0 as usize] = false;
        }
        for gradient in &moved.gradients {
            moved.is_gone[gradient.0 as usize] = false;
        }
        moved
    }

    /// Bytes that updates read and write: parameters and state both, gradients are read.
    fn traffic(&self, base: &Trace) -> u64 {
        let size = |storages: &[PlanStorage]| -> u64 {
            storages.iter().map(|storage| base.storage(*storage).size.0).sum()
        };
        2 * size(&self.parameters) + 2 * size(&self.state) + size(&self.gradients)
    }
}

/// Step that is being made.
struct Emitted {
    trace: Trace,
    processor: HostProcessor,
    now: u64,
    leaving: Vec<HostCopy>,   // gradients
    returning: Vec<HostCopy>, // parameters
}

/// A copy between the GPU and the host.
struct HostCopy {
    storage: PlanStorage,
    op: usize,
    /// Time at which it begins where nothing waits.
    begins: u64,
}

impl Emitted {
    fn new(base: &Trace, processor: HostProcessor) -> Self {
        let trace =
            Trace { name: base.name.clone(), storages: base.storages.clone(), ops: Vec::new() };
        Self { trace, processor, now: 0, leaving: Vec::new(), returning: Vec::new() }
    }

    fn runs(&mut self, op: &Op) {
        let at = OpIndex(self.trace.ops.len() as u32);
        for Birth { storage, slot } in &op.births {
            let identity = Identity::Output { op: at, slot: *slot };
            self.trace.storages[storage.0 as usize].identity = identity;
        }
        self.now += op.duration.0;
        self.trace.ops.push(op.clone());
    }

    fn leaves(&mut self, used: Use) {
        let rate = self.processor.out;
        let copy = self.copies("to host", Use { access: Access::Read, ..used }, rate);
        self.leaving.push(copy);
    }

    fn returns(&mut self, parameter: PlanStorage) {
        let used = Use { storage: parameter, access: Access::Write, previous: false };
        let copy = self.copies("from host", used, self.processor.back);
        self.returning.push(copy);
    }

    fn copies(&mut self, name: &str, used: Use, rate: Bandwidth) -> HostCopy {
        let copy = HostCopy { storage: used.storage, op: self.trace.ops.len(), begins: self.now };
        let duration = time_of(self.trace.storage(used.storage).size.0, rate);
        let fingerprint = u64::from(used.storage.0) ^ (name.len() as u64) << 32;
        let op = Op {
            name: name.to_owned(),
            duration,
            fingerprint,
            uses: vec![used],
            births: Vec::new(),
            deaths: Vec::new(),
        };
        self.runs(&op);
        copy
    }

    /// An update is left out. What dies with it and is there still dies with the op before.
    fn lets_go(&mut self, update: &Op, moved: &Moved) {
        let Some(last) = self.trace.ops.last_mut() else { return };
        let is_there = |death: &&Death| !moved.is_gone[death.storage.0 as usize];
        last.deaths.extend(update.deaths.iter().filter(is_there));
    }

    /// Has copies wait for the host, which has `room` bytes for gradients. Returns the time of
    /// waiting.
    fn wait_for_host(&mut self, moved: &Moved, traffic: u64, room: u64) -> Nanos {
        let size = |storage: PlanStorage| self.trace.storage(storage).size.0;
        let all: u64 = moved.parameters.iter().map(|each| size(*each)).sum();
        let mut done = vec![0; self.trace.storages.len()];
        let mut waiting: VecDeque<(u64, u64)> = VecDeque::new(); // bytes, until when
        let (mut free, mut waited) = (0, 0);
        let mut waits = Vec::new();
        for (place, copy) in self.leaving.iter().enumerate() {
            let mut begins = copy.begins + waited;
            let bytes = size(copy.storage);
            while let Some((_, until)) =
                waiting.front().filter(|_| held(&waiting) + bytes > room).copied()
            {
                begins = begins.max(until);
                waiting.pop_front();
            }
            waits.push((copy.op, begins - copy.begins - waited));
            waited = begins - copy.begins;
            let Some(parameter) = moved.parameters.get(place) else { continue };
            let share = u128::from(traffic) * u128::from(size(*parameter)) / u128::from(all.max(1));
            let arrives = begins + self.trace.ops[copy.op].duration.0;
            free = arrives.max(free) + time_of(share as u64, self.processor.memory).0;
            done[parameter.0 as usize] = free;
            waiting.push_back((bytes, free));
        }
        for copy in &self.returning {
            let would_begin = self.now + copy.begins + waited;
            let wait = done[copy.storage.0 as usize].saturating_sub(would_begin);
            waits.push((copy.op, wait));
            waited += wait;
        }
        for (op, wait) in waits {
            self.trace.ops[op].duration.0 += wait;
        }
        Nanos(waited)
    }
}

fn held(waiting: &VecDeque<(u64, u64)>) -> u64 {
    waiting.iter().map(|(bytes, _)| bytes).sum()
}

/// The trace without the storages that are no more.
fn without_unused(trace: Trace, moved: &Moved) -> Trace {
    let mut places = Vec::with_capacity(trace.storages.len());
    let mut storages: Vec<Storage> = Vec::new();
    for (storage, is_gone) in trace.storages.into_iter().zip(&moved.is_gone) {
        places.push(PlanStorage(storages.len() as u32));
        if !is_gone {
            storages.push(storage);
        }
    }
    let place = |storage: &mut PlanStorage| *storage = places[storage.0 as usize];
    let mut ops = trace.ops;
    for op in &mut ops {
        op.uses.iter_mut().for_each(|used| place(&mut used.storage));
        op.births.iter_mut().for_each(|birth| place(&mut birth.storage));
        op.deaths.iter_mut().for_each(|death| place(&mut death.storage));
    }
    Trace { name: trace.name, storages, ops }
}

pub(super) fn time_of(bytes: u64, rate: Bandwidth) -> Nanos {
    Nanos((u128::from(bytes) * 1_000_000_000 / u128::from(rate.0.max(1))) as u64)
}

#[cfg(test)]
#[path = "on_host_tests.rs"]
mod tests;
