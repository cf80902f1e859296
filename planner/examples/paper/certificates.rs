//! Bounds are slow to find and quick to check: their prices are kept beside the traces, and what a
//! file says counts only as far as its prices prove it again.

use serde_json::{Value, json};
use std::path::Path;
use tidelog_planner::bound::{Bound, Prices, Relaxation, Skippable};
use tidelog_planner::cost::{Machine, MachineError};
use tidelog_planner::trace::Trace;

/// Prices and what they are for.
pub(super) struct Certificate {
    pub(super) relaxation: Relaxation,
    pub(super) prices: Prices,
}

/// The prices kept in `path` if they still prove something of this trace on this machine, whichever
/// of some groups of ops it leaves out, else what `search` finds.
pub(super) fn certificate(
    path: &Path,
    (trace, machine, groups): (&Trace, &Machine, &[Skippable]),
    search: impl FnOnce() -> Result<Bound, MachineError>,
) -> Result<Certificate, super::Failure> {
    if let Some(kept) = read(path, trace, machine, groups) {
        return Ok(kept);
    }
    let Bound { relaxation, prices, rounds, .. } = search()?;
    let rounds: Vec<Value> = rounds
        .iter()
        .map(|round| json!({"instants": round.instants, "time_ns": round.time.0}))
        .collect();
    let text = json!({
        "of": name(trace, machine), "instants": relaxation.wanted(), "prices": prices,
        "rounds": rounds,
    });
    std::fs::write(path, text.to_string())?;
    Ok(Certificate { relaxation, prices })
}

fn read(
    path: &Path,
    trace: &Trace,
    machine: &Machine,
    groups: &[Skippable],
) -> Option<Certificate> {
    let kept: Value = serde_json::from_str(&std::fs::read_to_string(path).ok()?).ok()?;
    if kept["of"] != name(trace, machine) {
        return None;
    }
    let wanted = u32::try_from(kept["instants"].as_u64()?).ok()?;
    let prices: Prices = serde_json::from_value(kept["prices"].clone()).ok()?;
    let relaxation = Relaxation::with_skips(trace, machine, wanted, groups);
    // Whatever the file says: only what `value` makes of it counts, for this trace and this
    // machine.
    relaxation.value(&prices).ok()?;
    Some(Certificate { relaxation, prices })
}

/// Returns the name of a certificate's trace and machine: another trace may have the same instants,
/// and would be proved little of.
fn name(trace: &Trace, machine: &Machine) -> String {
    format!("{:016x}, {} ns, {machine:?}", trace.fingerprint(), trace.duration().0)
}
