//! A recorded step less what ZeRO takes from the GPU: optimizer state, the optimizer, and adding
//! gradients up.

use crate::cost::{HostLink, Timeline};
use crate::lifetime::Period;
use crate::trace::{Op, PlanStorage, StorageKind, Trace};
use crate::units::{Bytes, Nanos, OpIndex};
use std::collections::HashSet;

/// Data that the CPU touches when it updates one parameter.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Touched {
    /// The parameter and its optimizer state: read, and written back.
    pub(super) state: Bytes,
    /// The gradient: read.
    pub(super) gradient: Bytes,
}

impl Touched {
    /// Bytes through host memory.
    pub(super) fn all(self) -> Bytes {
        Bytes(2 * self.state.0 + self.gradient.0)
    }
}

/// The step that is left, and where its parts went.
pub(super) struct OnHost {
    pub(super) trace: Trace,
    /// Gradients that leave for the host, and the first op by which each can.
    pub(super) gradients: Vec<(PlanStorage, u32)>,
    /// The ops during which the CPU updates a parameter.
    updates: Vec<(u32, PlanStorage)>,
    /// Sums of gradients: what the host keeps of them.
    sums: HashSet<PlanStorage>,
}

impl OnHost {
    /// `update_time`: how long the CPU takes for one update.
    pub(super) fn of(
        recorded: &Trace,
        host: &HostLink,
        update_time: impl Fn(Touched) -> Nanos,
    ) -> Self {
        let mut trace = recorded.clone();
        trace.name += ", optimizer on the host";
        let kind = |storage: PlanStorage| recorded.storage(storage).kind;
        let is_update =
            |op: &Op| op.uses.iter().any(|used| kind(used.storage) == StorageKind::OptimizerState);
        let gradients_of = |op: &Op| -> Vec<PlanStorage> {
            let used = op.uses.iter().map(|used| used.storage);
            used.filter(|storage| kind(*storage) == StorageKind::Gradient).collect()
        };
        let updates_of = recorded.ops.iter().filter(|op| is_update(op));
        let sums: HashSet<PlanStorage> = updates_of.flat_map(gradients_of).collect();

        let mut updates = Vec::new();
        let mut leaving = sums.clone();
        for (index, op) in trace.ops.iter_mut().enumerate() {
            if is_update(op) {
                let changed = op.uses.iter().filter(|used| {
                    kind(used.storage) == StorageKind::Parameter && used.access.modifies()
                });
                updates.extend(changed.map(|used| (index as u32, used.storage)));
                op.duration = update_time(touched(recorded, op));
                "adam on the host".clone_into(&mut op.name);
                op.uses.clear();
            } else if op.births.is_empty() && adds_to(op, &sums) {
                leaving.extend(gradients_of(op));
                op.duration = Nanos(0);
                "add on the host".clone_into(&mut op.name);
                op.uses.clear();
            }
        }
        outlive_their_way(&mut trace, &leaving);
        for storage in &mut trace.storages {
            if storage.kind == StorageKind::OptimizerState {
                storage.size = Bytes(0);
            }
        }
        let gradients = when_made(&trace, &leaving);
        if let Some((first, _)) = updates.first() {
            let late = last_arrival(&trace, &gradients, *first, host);
            trace.ops[*first as usize].duration.0 += late.0;
        }
        Self { trace, gradients, updates, sums }
    }

    /// The op in whose time the CPU updates the parameter that waits, unrolled.
    pub(super) fn update_in(&self, period: &Period) -> Option<u32> {
        let ops = self.trace.ops.len() as u32;
        let of_storage = self.updates.iter().filter(|(_, storage)| *storage == period.storage);
        let mut unrolled = of_storage.flat_map(|(op, _)| [*op, op + ops]);
        unrolled.find(|op| (period.from..period.to).contains(op))
    }

    pub(super) fn gradient_bytes(&self) -> Bytes {
        Bytes(self.sums.iter().map(|storage| self.trace.storage(*storage).size.0).sum())
    }
}

/// Returns the size of all storages of a kind.
pub(super) fn sizes_of(recorded: &Trace, kind: StorageKind) -> u64 {
    let of_kind = recorded.storages.iter().filter(|storage| storage.kind == kind);
    of_kind.map(|storage| storage.size.0).sum()
}

fn adds_to(op: &Op, sums: &HashSet<PlanStorage>) -> bool {
    op.uses.iter().any(|used| used.access.modifies() && sums.contains(&used.storage))
}

fn touched(trace: &Trace, op: &Op) -> Touched {
    let mut touched = Touched::default();
    for storage in op.uses.iter().map(|used| trace.storage(used.storage)) {
        match storage.kind {
            StorageKind::Gradient => touched.gradient.0 += storage.size.0,
            _ => touched.state.0 += storage.size.0,
        }
    }
    touched
}

/// Extends the lives of leaving storages: what dies where it was added is on its way there: here it
/// dies with the step.
fn outlive_their_way(trace: &mut Trace, leaving: &HashSet<PlanStorage>) {
    let mut late = Vec::new();
    for op in &mut trace.ops {
        let (kept, moved) =
            op.deaths.drain(..).partition(|death| !leaving.contains(&death.storage));
        op.deaths = kept;
        let moved: Vec<crate::trace::Death> = moved;
        late.extend(moved);
    }
    if let Some(last) = trace.ops.last_mut() {
        last.deaths.extend(late);
    }
}

/// The op after the last that looks at each, in the order of these ops.
fn when_made(trace: &Trace, leaving: &HashSet<PlanStorage>) -> Vec<(PlanStorage, u32)> {
    let mut made = std::collections::BTreeMap::new();
    for (index, op) in trace.ops.iter().enumerate() {
        let born = op.births.iter().map(|birth| birth.storage);
        for storage in born.chain(op.uses.iter().map(|used| used.storage)) {
            if leaving.contains(&storage) {
                made.insert(storage, index as u32 + 1);
            }
        }
    }
    let ops = trace.ops.len() as u32;
    let mut made: Vec<_> = made.into_iter().filter(|(_, from)| *from < ops).collect();
    made.sort_by_key(|(storage, from)| (*from, *storage));
    made
}

/// Returns the time from the earliest start of op `first` until the last gradient arrives at the
/// host.
fn last_arrival(
    trace: &Trace,
    gradients: &[(PlanStorage, u32)],
    first: u32,
    host: &HostLink,
) -> Nanos {
    let timeline = Timeline::of(trace);
    let mut free = 0;
    for (storage, from) in gradients {
        let moving = host.write.time_for(trace.storage(*storage).size).0;
        free = timeline.begin(*from).0.max(free) + moving;
    }
    Nanos((free + host.latency.0).saturating_sub(timeline.begin(OpIndex(first).0).0))
}
