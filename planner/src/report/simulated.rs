//! A simulation as the page that shows it.

use super::{OpSpan, Report, Stall, TransferSpan, Unmovable};
use crate::cost::Machine;
use crate::migration::{Ending, MigrationDirection};
use crate::simulate::Simulation;
use crate::trace::{PlanStorage, StorageKind, Trace};
use crate::units::{Bytes, Nanos};

/// The report of a simulated iteration of `trace` on `machine`.
pub fn simulated(trace: &Trace, machine: &Machine, simulation: &Simulation) -> Report {
    let clean = simulation.transfers.iter().filter(|t| t.ending == Ending::Clean);
    let size = |storage: PlanStorage| trace.storage(storage).size;
    Report {
        title: trace.name.clone(),
        subtitle: format!("simulated, {}", simulation.policy),
        duration: simulation.time,
        unlimited: Some(trace.duration()),
        budget: machine.budget,
        staging: machine.staging,
        memory: simulation.memory.clone(),
        ops: ops(trace, simulation),
        transfers: transfers(trace, simulation),
        stalls: stalls(trace, simulation),
        clocks: simulation.gpu.as_ref().map(|step| step.clocks.clone()).unwrap_or_default(),
        read_limit: Some(machine.ssd.read),
        write_limit: Some(machine.ssd.write),
        written: written(trace, simulation),
        clean_evictions: clean.clone().count() as u64,
        clean_bytes: Bytes(clean.map(|transfer| size(transfer.storage).0).sum()),
        unmovable: unmovable(trace),
        ..Report::default()
    }
}

fn ops(trace: &Trace, simulation: &Simulation) -> Vec<OpSpan> {
    let spans = trace.ops.iter().zip(&simulation.begins).map(|(op, begin)| OpSpan {
        name: op.name.clone(),
        begin: *begin,
        end: Nanos(begin.0 + op.duration.0),
    });
    spans.collect()
}

fn transfers(trace: &Trace, simulation: &Simulation) -> Vec<TransferSpan> {
    let spans = simulation.transfers.iter().map(|transfer| {
        let storage = trace.storage(transfer.storage);
        TransferSpan {
            name: trace.label(transfer.storage),
            kind: storage.kind,
            bytes: storage.size,
            direction: transfer.direction,
            target: transfer.target,
            begin: transfer.begin,
            moved: transfer.moved,
            end: transfer.end,
            in_step: transfer.in_step,
            urgent: transfer.urgent,
            ending: transfer.ending,
        }
    });
    spans.collect()
}

fn stalls(trace: &Trace, simulation: &Simulation) -> Vec<Stall> {
    let stalls = simulation.stalls.iter().map(|stall| Stall {
        op: format!("{} (op {})", trace.ops[stall.op.0 as usize].name, stall.op.0),
        begin: stall.begin,
        end: Nanos(stall.begin.0 + stall.length.0),
        waited_for: stall.waited_for.map_or_else(|| "memory".to_owned(), |s| trace.label(s)),
    });
    stalls.collect()
}

/// Bytes written by kind, largest first; kinds of which nothing was written are left out.
fn written(trace: &Trace, simulation: &Simulation) -> Vec<(StorageKind, Bytes)> {
    let of_kind = |kind| {
        let moved = simulation.transfers.iter().filter(|transfer| {
            let out =
                transfer.direction == MigrationDirection::Out && transfer.ending == Ending::Moved;
            out && trace.storage(transfer.storage).kind == kind
        });
        Bytes(moved.map(|transfer| trace.storage(transfer.storage).size.0).sum())
    };
    let mut written: Vec<_> =
        StorageKind::ALL.into_iter().map(|kind| (kind, of_kind(kind))).collect();
    written.retain(|(_, bytes)| bytes.0 > 0);
    written.sort_by_key(|(kind, bytes)| (std::cmp::Reverse(*bytes), *kind));
    written
}

fn unmovable(trace: &Trace) -> Vec<Unmovable> {
    let fixed = trace.storages.iter().enumerate().filter(|(_, storage)| !storage.movable);
    let entries = fixed.map(|(index, storage)| Unmovable {
        name: trace.label(PlanStorage(index as u32)),
        bytes: storage.size,
        why: "its memory cannot be taken away and given back".to_owned(),
    });
    entries.collect()
}
