//! Drives whose reads and writes slow each other: the rates depend on the plan, and the plan on the
//! rates.

use super::{Hardware, HardwareError};
use crate::cost::Machine;
use crate::migration::{Ending, MigrationDirection, Target};
use crate::plan::Plan;
use crate::simulate::{SimulateError, Simulation};
use crate::trace::Trace;

/// Plans that are made at most: rates, plan, what the plan mixes, new rates, …
const ROUNDS: u32 = 4;

/// Function that makes plans for whatever machine is asked for.
pub type Planner<'a> = &'a dyn Fn(&Trace, &Machine) -> Result<(Plan, Simulation), SimulateError>;

/// Mix of reads and writes of a step on the drives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mix {
    /// The part of the reading time in which something is written as well.
    pub read_met_per_mille: u64,
    /// The part of the writing time in which something is read as well.
    pub write_met_per_mille: u64,
    /// The part of all bytes that is read.
    pub read_share_per_mille: u64,
}

/// The reason why nothing settled.
#[derive(Debug, thiserror::Error)]
pub enum SettleError {
    /// The machine does not come out of the hardware.
    #[error(transparent)]
    Hardware(#[from] HardwareError),
    /// The step cannot be simulated.
    #[error(transparent)]
    Simulate(#[from] SimulateError),
}

/// Plans until the rates that a plan was made for are those that it meets. One pair of rates stands
/// for the whole step: where a step first only writes and then only reads, they are too low for
/// both; where it always does both they are right.
pub fn settle(
    hardware: &Hardware,
    trace: &Trace,
    planner: Planner<'_>,
) -> Result<(Machine, Plan, Simulation), SettleError> {
    let mut mix = Mix::default();
    let rounds = rounds_at_most(hardware)?;
    let mut round = 1;
    loop {
        let machine = hardware.machine(mix)?;
        let (plan, simulation) = planner(trace, &machine)?;
        let found = Mix::of(&simulation);
        if round == rounds || found == mix {
            return Ok((machine, plan, simulation));
        }
        (mix, round) = (found, round + 1);
    }
}

/// Returns the largest number of plans that [`settle`] makes for this hardware.
///
/// # Errors
/// The drives are not known.
pub fn rounds_at_most(hardware: &Hardware) -> Result<u32, HardwareError> {
    Ok(if hardware.drives.drive()?.mixed.is_empty() { 1 } else { ROUNDS })
}

impl Mix {
    /// Returns the mix of a simulated step.
    pub fn of(simulation: &Simulation) -> Self {
        let spans = |direction: MigrationDirection| {
            let moved = simulation.transfers.iter().filter(|t| {
                (t.direction, t.target, t.ending) == (direction, Target::Ssd, Ending::Moved)
            });
            merged(moved.map(|t| (t.moved.0, t.end.0)).collect())
        };
        let (reads, writes) = (spans(MigrationDirection::In), spans(MigrationDirection::Out));
        let length = |spans: &[(u64, u64)]| spans.iter().map(|(from, to)| to - from).sum::<u64>();
        let met = met(&reads, &writes);
        let per_mille =
            |part: u64, whole: u64| (u128::from(part) * 1000 / u128::from(whole.max(1))) as u64;
        let (read, written) = (simulation.bytes.ssd_read.0, simulation.bytes.ssd_written.0);
        Self {
            read_met_per_mille: per_mille(met, length(&reads)),
            write_met_per_mille: per_mille(met, length(&writes)),
            read_share_per_mille: per_mille(read, read + written),
        }
    }
}

/// Spans in order, those that overlap as one.
fn merged(mut spans: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    spans.sort_unstable();
    let mut merged: Vec<(u64, u64)> = Vec::with_capacity(spans.len());
    for (from, to) in spans {
        match merged.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(to),
            _ => merged.push((from, to)),
        }
    }
    merged
}

/// The time that lies in spans of both.
fn met(one: &[(u64, u64)], other: &[(u64, u64)]) -> u64 {
    let (mut sum, mut at) = (0, 0);
    for &(from, to) in one {
        while other.get(at).is_some_and(|span| span.1 <= from) {
            at += 1;
        }
        let meeting = other[at..].iter().take_while(|span| span.0 < to);
        sum += meeting.map(|span| span.1.min(to) - span.0.max(from)).sum::<u64>();
    }
    sum
}
