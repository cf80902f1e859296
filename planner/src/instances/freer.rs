//! The same step with more freedom, in pieces, or larger.

use crate::cost::{HostLink, Machine};
use crate::trace::{Birth, Death, Identity, PlanStorage, Storage, Trace, Use};
use crate::units::Bytes;

/// The same step with every storage in pieces of at most `size`, each of which moves alone.
pub fn split(trace: &Trace, size: Bytes) -> Trace {
    let mut split = Trace { storages: Vec::new(), ..trace.clone() };
    let mut slots = vec![0u16; trace.ops.len()];
    let mut pieces: Vec<Vec<PlanStorage>> = Vec::new();
    for storage in &trace.storages {
        let count = storage.size.0.div_ceil(size.0.max(1)).max(1);
        let mut of = Vec::new();
        for piece in 0..count {
            let identity = match &storage.identity {
                Identity::Name(name) => Identity::Name(format!("{name}[{piece}]")),
                Identity::Output { op, .. } => {
                    let slot = &mut slots[op.0 as usize];
                    *slot += 1;
                    Identity::Output { op: *op, slot: *slot - 1 }
                }
                Identity::Arrival => Identity::Arrival,
            };
            let size = Bytes((storage.size.0 - piece * size.0).min(size.0));
            of.push(PlanStorage(split.storages.len() as u32));
            split.storages.push(Storage { identity, size, ..storage.clone() });
        }
        pieces.push(of);
    }
    let of = |storage: PlanStorage| pieces[storage.0 as usize].iter().copied();
    for (op, whole) in split.ops.iter_mut().zip(&trace.ops) {
        let uses = whole.uses.iter();
        op.uses =
            uses.flat_map(|one| of(one.storage).map(|storage| Use { storage, ..*one })).collect();
        let births = whole.births.iter().flat_map(|one| of(one.storage));
        let born = |storage: PlanStorage| match split.storages[storage.0 as usize].identity {
            Identity::Output { slot, .. } => Birth { storage, slot },
            _ => Birth { storage, slot: 0 },
        };
        op.births = births.map(born).collect();
        let deaths = whole.deaths.iter();
        op.deaths = deaths
            .flat_map(|one| of(one.storage).map(|storage| Death { storage, ..*one }))
            .collect();
    }
    split
}

/// The same step on the same links with all bytes and all times `times` as large. Small steps
/// become so large that their storages have parts.
pub fn magnified(trace: &Trace, machine: &Machine, times: u64) -> (Trace, Machine) {
    let (mut trace, mut machine) = (trace.clone(), *machine);
    trace.storages.iter_mut().for_each(|storage| storage.size.0 *= times);
    trace.ops.iter_mut().for_each(|op| op.duration.0 *= times);
    for bytes in [&mut machine.budget, &mut machine.staging] {
        bytes.0 *= times;
    }
    machine.ssd.latency.0 *= times;
    if let Some(host) = &mut machine.host {
        host.memory.0 *= times;
        host.latency.0 *= times;
    }
    (trace, machine)
}

/// The same step, or machine, with more freedom: whatever could be done before still can. Each with
/// what is freer. Pieces are of at most `size`.
pub fn freer(trace: &Trace, machine: &Machine, size: Bytes) -> Vec<(&'static str, Trace, Machine)> {
    let more = |amount: u64, percent: u64| amount + (amount / 100).max(1) * percent;
    let mut memory = *machine;
    memory.budget.0 = more(memory.budget.0, 5);
    let mut bandwidth = *machine;
    bandwidth.ssd.read.0 = more(bandwidth.ssd.read.0, 10);
    bandwidth.ssd.write.0 = more(bandwidth.ssd.write.0, 10);
    let mut link = *machine;
    let (read, write, latency) = (link.ssd.read, link.ssd.write, link.ssd.latency);
    // As much room as a tenth of memory: where there is a link already, more of it.
    let room = Bytes(machine.budget.0 / 10);
    let host = link.host.get_or_insert(HostLink { read, write, latency, memory: Bytes(0) });
    host.memory.0 += room.0;
    vec![
        ("storages in pieces", split(trace, size), *machine),
        ("more memory", trace.clone(), memory),
        ("more bandwidth", trace.clone(), bandwidth),
        ("a second link", trace.clone(), link),
    ]
}
