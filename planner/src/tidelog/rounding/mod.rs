//! Plans rounded from the relaxation: its prices say what a byte of memory is worth at each moment
//! and what moving one costs; the periods that gain most by these prices are out until everything
//! fits.
//!
//! When a period's memory is free follows from how long the links are busy with the other periods
//! chosen, so that choosing is repeated a few times for the delays of the choice before.

mod cover;
mod worth;

use super::Guess;
use crate::bound::{Effort, with_toll};
use crate::cost::{Machine, MachineError};
use crate::lifetime::{ContentVersion, Lifetimes, Period, PeriodEnd};
use crate::migration::{Migration, MigrationDirection, Target};
use crate::trace::{PlanStorage, Trace};
use crate::units::{Bandwidth, Bytes};
use cover::Cover;
use std::collections::HashMap;
use worth::{AbsencePeriod, Worth};

/// Enough to tell who should leave: prices need not prove anything here.
const EFFORT: Effort = Effort { instants: 75, steps: 150 };

/// What a byte written may cost on top, in the time that writing it takes. The first leads to short
/// iterations; which of the others leads to few bytes differs from model to model.
pub(super) const TOLLS: [f64; 3] = [1.0, 8.0, 32.0];

/// How often periods are chosen anew for the links' delays.
const TURNS: u32 = 3;

/// What a period's move occupies: its memory is free in `gone..back`, unrolled.
#[derive(Clone, Copy, Debug)]
struct Span {
    gone: u32,
    back: u32,
}

/// How long what may leave at an op, or must be there at one, waits for the links. Per op.
struct Delays {
    out: Vec<u64>,
    back: Vec<u64>,
}

impl Delays {
    fn of_percent(mut self, percent: u64) -> Self {
        for delay in self.out.iter_mut().chain(&mut self.back) {
            *delay = *delay / 100 * percent;
        }
        self
    }
}

pub(super) struct Rounding<'a> {
    trace: &'a Trace,
    machine: &'a Machine,
    lifetimes: &'a Lifetimes,
    /// The periods that may be out, the most worthwhile first.
    choices: Vec<AbsencePeriod>,
}

impl<'a> Rounding<'a> {
    pub(super) fn new(
        trace: &'a Trace,
        machine: &'a Machine,
        lifetimes: &'a Lifetimes,
        write_penalty: f64,
    ) -> Result<Self, MachineError> {
        #[allow(clippy::cast_precision_loss, reason = "prices are searched in floating point")]
        let write_penalty = write_penalty * 1e9 / machine.ssd.write.0.max(1) as f64;
        let bound = with_toll(trace, machine, EFFORT, write_penalty)?;
        let worth = Worth::new(trace, bound.relaxation.instants(), &bound.prices);
        let choices = worth.choices(trace, machine, lifetimes);
        Ok(Self { trace, machine, lifetimes, choices })
    }

    /// The migrations of one iteration whose ops run at these times. The links' queues count as so
    /// many percent of what they are: where less than all, ops wait for them, and fewer bytes
    /// leave.
    pub(super) fn rows(&self, guess: &Guess, queues_percent: u64) -> Vec<Migration> {
        let ops = self.trace.ops.len();
        let mut delays = Delays { out: vec![0; ops], back: vec![0; ops] };
        let (mut spans, mut chosen) = (Vec::new(), Vec::new());
        for _ in 0..TURNS {
            spans = self.spans(&guess.durations, &delays);
            chosen = Cover::new(self.lifetimes, self.machine).cover(&self.choices, &spans);
            delays = self.delays(&guess.durations, &chosen).of_percent(queues_percent);
        }
        chosen.into_iter().flat_map(|index| self.moves(index, spans[index])).collect()
    }

    fn spans(&self, durations: &[u64], delays: &Delays) -> Vec<Span> {
        let ops = durations.len();
        let mut begins = vec![0];
        for at in 0..2 * ops {
            begins.push(begins[at] + durations[at % ops]);
        }
        let span = |choice: &AbsencePeriod| {
            let Period { from, to, size, end, .. } = choice.period;
            let leaving =
                if choice.clean { 0 } else { self.writing(size) + delays.out[from as usize % ops] };
            let coming = self.reading(size) + delays.back[to as usize % ops];
            let gone = begins[from as usize] + leaving;
            let back = begins[to as usize].saturating_sub(coming);
            let back_for_use =
                (begins.partition_point(|begin| *begin <= back) as u32).saturating_sub(1);
            Span {
                gone: begins.partition_point(|begin| *begin < gone) as u32,
                back: if end == PeriodEnd::Use { back_for_use } else { to },
            }
        };
        self.choices.iter().map(span).collect()
    }

    /// The links' queues, if everything chosen moves as soon, or comes as late, as it may.
    fn delays(&self, durations: &[u64], chosen: &[usize]) -> Delays {
        let ops = durations.len();
        let (mut leaving, mut coming) = (vec![0; ops], vec![0; ops]);
        for choice in self.written_once(chosen) {
            leaving[choice.period.from as usize % ops] += self.writing(choice.period.size);
        }
        let returns = |choice: &&AbsencePeriod| choice.period.end == PeriodEnd::Use;
        for choice in chosen.iter().map(|index| &self.choices[*index]).filter(returns) {
            coming[choice.period.to as usize % ops] += self.reading(choice.period.size);
        }
        let mut delays = Delays { out: vec![0; ops], back: vec![0; ops] };
        let longest: u64 = durations.iter().sum();
        // Twice around: a queue may reach over the end of the iteration.
        let (mut queue_out, mut queue_back) = (0_u64, 0_u64);
        for at in (0..ops).chain(0..ops) {
            queue_out += leaving[at];
            delays.out[at] = queue_out.min(longest);
            queue_out = queue_out.saturating_sub(durations[at]);
        }
        for at in (0..ops).chain(0..ops).rev() {
            queue_back = queue_back.saturating_sub(durations[at]) + coming[at];
            delays.back[at] = queue_back.min(longest);
        }
        delays
    }

    /// Of the chosen periods with the same contents the first: its copy serves the others.
    fn written_once(&self, chosen: &[usize]) -> Vec<&AbsencePeriod> {
        let mut first: HashMap<(PlanStorage, ContentVersion), &AbsencePeriod> = HashMap::new();
        for choice in chosen.iter().map(|index| &self.choices[*index]) {
            let period = &choice.period;
            if period.version == ContentVersion::Constant {
                continue;
            }
            let known = first.entry((period.storage, period.version)).or_insert(choice);
            if period.order() < known.period.order() {
                *known = choice;
            }
        }
        first.into_values().collect()
    }

    /// Out, and back if it is used again.
    fn moves(&self, index: usize, span: Span) -> impl Iterator<Item = Migration> {
        let Period { storage, from, to, end, .. } = self.choices[index].period;
        let ops = self.trace.ops.len() as u32;
        let row =
            |direction, when| Migration::unrolled(storage, (direction, Target::Ssd), when, ops);
        let leaves = row(MigrationDirection::Out, (from, span.gone.clamp(from + 1, to)));
        let comes = row(MigrationDirection::In, (span.back.clamp(from + 1, to), to));
        [leaves].into_iter().chain((end == PeriodEnd::Use).then_some(comes))
    }

    fn writing(&self, size: Bytes) -> u64 {
        time(self.machine.ssd.write, size)
    }

    fn reading(&self, size: Bytes) -> u64 {
        time(self.machine.ssd.read, size)
    }
}

fn time(rate: Bandwidth, size: Bytes) -> u64 {
    rate.time_for(size).0
}

#[cfg(test)]
mod tests;
