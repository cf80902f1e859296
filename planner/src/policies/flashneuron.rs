//! `FlashNeuron` (FAST 2021): activations alone leave, to SSDs. They are taken in the order in
//! which the forward pass makes them until the rest fits (its linear selection), each leaves after
//! the last use before its longest wait, and comes back as late as the reads after it allow.

use super::common::{DoesNotFit, fits, latest_reads, worst};
use crate::cost::{Machine, Timeline};
use crate::lifetime::{Lifetimes, Period, PeriodEnd};
use crate::migration::{Migration, MigrationDirection, Target};
use crate::plan::{Expectation, Plan};
use crate::trace::{StorageKind, Trace};
use crate::units::Bytes;

/// The plan of an iteration, if memory suffices for all that is no activation.
pub fn flashneuron(trace: &Trace, machine: &Machine) -> Result<Plan, DoesNotFit> {
    let timeline = Timeline::of(trace);
    let lifetimes = Lifetimes::of(trace);
    let candidates = longest_waits(trace, &lifetimes.periods, &timeline);
    let count = selected(&lifetimes, &candidates, machine.capacity())?;
    let mut chosen = candidates[..count].to_vec();
    let back = latest_reads(&mut chosen, machine.ssd.read, &timeline);
    let ops = trace.ops.len() as u32;
    let mut rows = Vec::with_capacity(2 * count);
    for (&Period { storage, from, to, .. }, back) in chosen.iter().zip(back) {
        let row =
            |direction, when| Migration::unrolled(storage, (direction, Target::Ssd), when, ops);
        rows.extend([
            row(MigrationDirection::Out, (from, back)),
            row(MigrationDirection::In, (back, to)),
        ]);
    }
    Ok(Plan::new("flashneuron", trace, machine, rows, Expectation::default()))
}

/// Each activation's longest wait, where it can go out and back in it, in the order of their
/// making.
fn longest_waits(trace: &Trace, periods: &[Period], timeline: &Timeline) -> Vec<Period> {
    let wait = |period: &Period| timeline.begin(period.to).0 - timeline.begin(period.from).0;
    let mut longest: Vec<Period> = Vec::new();
    for period in periods {
        let is_activation = trace.storage(period.storage).kind == StorageKind::Activation;
        if !is_activation || period.end != PeriodEnd::Use || period.to < period.from + 2 {
            continue;
        }
        // Periods stand by storage.
        match longest.last_mut() {
            Some(known) if known.storage == period.storage => {
                if wait(known) < wait(period) {
                    *known = *period;
                }
            }
            _ => longest.push(*period),
        }
    }
    longest.sort_by_key(|period| (period.from, period.storage));
    longest
}

/// Returns the number of periods, from the first on, that must leave for the rest to fit.
fn selected(
    lifetimes: &Lifetimes,
    candidates: &[Period],
    capacity: Bytes,
) -> Result<usize, DoesNotFit> {
    let needed = |count: usize| {
        let away = candidates[..count].iter().map(|one| (one.from, one.to, one.size));
        worst(lifetimes, away)
    };
    fits(needed(candidates.len()), capacity)?;
    let (mut low, mut high) = (0, candidates.len());
    while low < high {
        let middle = low + (high - low) / 2;
        if needed(middle).1 <= capacity { high = middle } else { low = middle + 1 }
    }
    Ok(low)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::{Policy, simulate};
    use crate::testing::{machine, training};

    #[test]
    fn only_activations_leave_the_first_ones_first() {
        let trace = training(12, 4_000, 100_000, 200_000);
        let machine = machine(Lifetimes::of(&trace).peak().0 * 3 / 4);
        let plan = flashneuron(&trace, &machine).unwrap();
        let kind = |row: &Migration| trace.storage(row.storage).kind;
        assert!(plan.rows.iter().all(|row| kind(row) == StorageKind::Activation));
        assert!(!plan.rows.is_empty() && plan.rows.len() < 24, "{} rows", plan.rows.len());
        let simulation = simulate(&trace, &machine, Policy::Planned(&plan)).unwrap();
        let lru = simulate(&trace, &machine, Policy::Lru).unwrap();
        assert!(simulation.time < lru.time, "{:?}, lru {:?}", simulation.time, lru.time);
    }

    #[test]
    fn what_does_not_fit_without_activations_is_refused_with_the_figures() {
        let trace = training(12, 100_000, 1_000, 60);
        let error = flashneuron(&trace, &machine(900_000)).unwrap_err();
        assert!(error.needed > error.capacity, "{error}");
    }
}
