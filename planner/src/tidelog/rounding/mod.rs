//! Plans rounded from the relaxation: its prices say what a byte of memory is worth at each moment
//! and what moving one costs; the periods that gain most by these prices are out until everything
//! fits.
//!
//! When a period's memory is free follows from how long the links are busy with the other periods
//! chosen, so that choosing is repeated a few times for the delays of the choice before.

mod cover;
mod line;
mod worth;

use super::variant::Guess;
use crate::bound::Bound;
use crate::cost::Machine;
use crate::lifetime::{ContentVersion, Lifetimes, Period, PeriodEnd};
use crate::migration::{Migration, MigrationDirection, Target};
use crate::trace::{PlanStorage, Trace};
use crate::units::{Bandwidth, Bytes};
use cover::Cover;
pub(super) use line::{Advance, LineOptions, RoundingLine};
use std::collections::HashMap;
use worth::{AbsencePeriod, Worth};

/// Number of times that periods are chosen for the links' delays.
const TURNS: u32 = 3;

/// Span of a period's move: its memory is free in `gone..back`, unrolled.
#[derive(Clone, Copy, Debug)]
struct Span {
    gone: u32,
    back: u32,
}

/// Delays by the links of what may leave at an op, or must be there at one. Per tier and op.
#[derive(Default)]
struct Delays {
    out: [Vec<u64>; 2],
    back: [Vec<u64>; 2],
}

impl Delays {
    fn of_percent(mut self, percent: u64) -> Self {
        for delay in self.out.iter_mut().chain(&mut self.back).flatten() {
            *delay = *delay / 100 * percent;
        }
        self
    }
}

/// Case for which a plan is rounded.
#[derive(Clone, Copy)]
pub(super) struct RoundingCase<'a> {
    pub(super) trace: &'a Trace,
    pub(super) machine: &'a Machine,
    pub(super) lifetimes: &'a Lifetimes,
}

pub(super) struct Rounding {
    /// The periods that may be out, the most worthwhile first.
    choices: Vec<AbsencePeriod>,
}

impl Rounding {
    pub(super) fn new(case: RoundingCase<'_>, bound: &Bound) -> Self {
        let RoundingCase { trace, machine, lifetimes } = case;
        let worth = Worth::new(trace, machine, bound.relaxation.instants(), &bound.prices);
        Self { choices: worth.choices(trace, machine, lifetimes) }
    }

    /// The migrations of one iteration whose ops run at these times. The links' queues count as so
    /// many percent of what they are: where less than all, ops wait for them, and fewer bytes
    /// leave.
    pub(super) fn rows(
        &self,
        case: RoundingCase<'_>,
        guess: &Guess,
        queues_percent: u64,
    ) -> Vec<Migration> {
        let ops = case.trace.ops.len();
        let none = || [vec![0; ops], vec![0; ops]];
        let mut delays = Delays { out: none(), back: none() };
        let links = TierLinks(case.machine);
        let (mut spans, mut chosen) = (Vec::new(), Vec::new());
        for _ in 0..TURNS {
            spans = self.spans(links, guess, &delays);
            chosen = Cover::new(case.lifetimes, case.machine).cover(&self.choices, &spans);
            delays = self.delays(links, &guess.durations, &chosen).of_percent(queues_percent);
        }
        let moves = |index: usize| self.choices[index].moves(spans[index], ops as u32);
        chosen.into_iter().flat_map(moves).collect()
    }

    fn spans(&self, links: TierLinks<'_>, guess: &Guess, delays: &Delays) -> Vec<Span> {
        let (ops, begins) = (guess.durations.len(), guess.begins());
        let span = |choice: &AbsencePeriod| {
            let Period { from, to, size, end, .. } = choice.period;
            let tier = tier(choice.target);
            let delay = delays.out[tier][from as usize % ops];
            let leaving = if choice.clean { 0 } else { links.writing(choice.target, size) + delay };
            let coming = links.reading(choice.target, size) + delays.back[tier][to as usize % ops];
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
    fn delays(&self, links: TierLinks<'_>, durations: &[u64], chosen: &[usize]) -> Delays {
        let ops = durations.len();
        let longest: u64 = durations.iter().sum();
        let mut delays = Delays::default();
        let written = self.written_once(chosen);
        for target in TARGETS {
            let (mut leaving, mut coming) = (vec![0; ops], vec![0; ops]);
            for choice in written.iter().filter(|choice| choice.target == target) {
                leaving[choice.period.from as usize % ops] +=
                    links.writing(target, choice.period.size);
            }
            let returns = |choice: &&AbsencePeriod| {
                choice.target == target && choice.period.end == PeriodEnd::Use
            };
            for choice in chosen.iter().map(|index| &self.choices[*index]).filter(returns) {
                coming[choice.period.to as usize % ops] +=
                    links.reading(target, choice.period.size);
            }
            let (mut out, mut back) = (vec![0; ops], vec![0; ops]);
            // Twice around: a queue may reach over the end of the iteration.
            let (mut queue_out, mut queue_back) = (0_u64, 0_u64);
            for at in (0..ops).chain(0..ops) {
                queue_out += leaving[at];
                out[at] = queue_out.min(longest);
                queue_out = queue_out.saturating_sub(durations[at]);
            }
            for at in (0..ops).chain(0..ops).rev() {
                queue_back = queue_back.saturating_sub(durations[at]) + coming[at];
                back[at] = queue_back.min(longest);
            }
            (delays.out[tier(target)], delays.back[tier(target)]) = (out, back);
        }
        delays
    }

    /// Returns the first of the chosen periods with the same contents: its copy serves the others.
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
}

impl AbsencePeriod {
    /// Returns the moves of a span: out, and back if it is used again.
    fn moves(&self, span: Span, ops: u32) -> impl Iterator<Item = Migration> + use<> {
        let Self { target, period: Period { storage, from, to, end, .. }, .. } = *self;
        let row = |direction, when| Migration::unrolled(storage, (direction, target), when, ops);
        let leaves = row(MigrationDirection::Out, (from, span.gone.clamp(from + 1, to)));
        let comes = row(MigrationDirection::In, (span.back.clamp(from + 1, to), to));
        [leaves].into_iter().chain((end == PeriodEnd::Use).then_some(comes))
    }
}

/// Links of a tier, and the time of bytes on them.
#[derive(Clone, Copy)]
struct TierLinks<'a>(&'a Machine);

impl TierLinks<'_> {
    fn writing(self, target: Target, size: Bytes) -> u64 {
        time(self.rates(target)[1], size)
    }

    fn reading(self, target: Target, size: Bytes) -> u64 {
        time(self.rates(target)[0], size)
    }

    fn rates(self, target: Target) -> [Bandwidth; 2] {
        match (target, self.0.host) {
            (Target::Host, Some(host)) => [host.read, host.write],
            _ => [self.0.ssd.read, self.0.ssd.write],
        }
    }
}

const TARGETS: [Target; 2] = [Target::Ssd, Target::Host];

fn tier(target: Target) -> usize {
    match target {
        Target::Ssd => 0,
        Target::Host => 1,
    }
}

fn time(rate: Bandwidth, size: Bytes) -> u64 {
    rate.time_for(size).0
}

#[cfg(test)]
mod tests;
