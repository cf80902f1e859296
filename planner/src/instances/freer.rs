//! Variants of a step with more freedom, in pieces, or larger.

use crate::cost::{HostLink, Machine};
use crate::parts::{Cuts, PartedStep};
use crate::trace::{PlanStorage, Storage, Trace};
use crate::units::Bytes;

/// Splits every storage into parts of at most `size`, each of which moves alone. Parts of a plan
/// file begin at multiples of more than that.
pub fn split(trace: &Trace, size: Bytes) -> Trace {
    let mut cuts = Cuts::default();
    let large = |storage: &&(usize, &Storage)| storage.1.size > size;
    for (index, storage) in trace.storages.iter().enumerate().filter(|one| large(&one)) {
        let begins = (0..storage.size.0).step_by(size.0 as usize).map(Bytes);
        cuts.cut(PlanStorage(index as u32), begins);
    }
    PartedStep::of(trace, &cuts).trace
}

/// Magnifies a step on the same links with all bytes and all times `times` as large. Small steps
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

/// Returns steps, or machines, with more freedom: whatever could be done before still can. Each
/// with what is freer. Pieces are of at most `size`.
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
