//! Makers of plans: for the trace and the machine as they are, or for others whose plans may turn
//! out well here.

use super::assignment::TierAssignment;
use super::pieces::Whole;
use super::rounding::RoundingCase;
use super::variant::{Guess, VARIANTS};
use crate::cost::{HostLink, Machine, SsdLink};
use crate::lifetime::Lifetimes;
use crate::migration::{Migration, Target};
use crate::trace::{PlanStorage, Trace};

pub(super) struct Maker<'a> {
    trace: &'a Trace,
    /// The trace that plans are made for, where it is not the real one.
    whole: Option<Whole>,
    pub(super) machine: Machine,
    pub(super) lifetimes: Lifetimes,
    /// The tiers that storages leave for; none: the SSDs while they have time, then host memory.
    pub(super) assignment: Option<TierAssignment>,
    /// True if host memory takes all that leaves: it has the place of the SSDs in `machine`.
    is_on_host: bool,
    /// Guesses of each variant: the stalls that its plans led to, in the order made.
    pub(super) guesses: [Vec<Guess>; VARIANTS.len()],
}

impl<'a> Maker<'a> {
    pub(super) fn of(trace: &'a Trace, machine: Machine) -> Self {
        let lifetimes = Lifetimes::of(trace);
        Self {
            trace,
            whole: None,
            machine,
            lifetimes,
            assignment: None,
            is_on_host: false,
            guesses: Default::default(),
        }
    }

    /// Makes a maker all of whose storages leave for host memory. None where that is not as large
    /// as what the step needs, or no faster than the SSDs.
    pub(super) fn on_host(trace: &'a Trace, machine: Machine) -> Option<Self> {
        let HostLink { read, write, latency, memory } = machine.host?;
        let all: u64 = trace.storages.iter().map(|storage| storage.size.0).sum();
        let is_faster = read > machine.ssd.read && write > machine.ssd.write;
        let ssd = SsdLink { read, write, latency };
        let maker = Self::of(trace, Machine { ssd, host: None, ..machine });
        let made = Self { is_on_host: true, ..maker };
        (is_faster && memory.0 >= all).then_some(made)
    }

    /// Makes a maker whose storages leave for the tiers that they are assigned to.
    pub(super) fn assigned(trace: &'a Trace, machine: Machine, to: TierAssignment) -> Self {
        Self { assignment: Some(to), ..Self::of(trace, machine) }
    }

    /// Makes a maker that plans the pieces of a tensor as the whole; none if nothing is in pieces.
    pub(super) fn of_wholes(trace: &'a Trace, machine: Machine) -> Option<Self> {
        let whole = Whole::of(trace)?;
        let lifetimes = Lifetimes::of(&whole.trace);
        Some(Self { whole: Some(whole), lifetimes, ..Self::of(trace, machine) })
    }

    /// The trace that plans are made for.
    pub(super) fn trace(&self) -> &Trace {
        self.whole.as_ref().map_or(self.trace, |whole| &whole.trace)
    }

    pub(super) fn case(&self) -> RoundingCase<'_> {
        let (trace, machine) = (self.trace(), &self.machine);
        RoundingCase { trace, machine, lifetimes: &self.lifetimes }
    }

    /// Returns whether the maker plans the pieces of a tensor as the whole.
    pub(super) fn is_of_wholes(&self) -> bool {
        self.whole.is_some()
    }

    /// The storages of the real trace that a storage stands for.
    pub(super) fn members(&self, storage: PlanStorage) -> Vec<PlanStorage> {
        self.whole.as_ref().map_or_else(|| vec![storage], |whole| whole.members(storage).to_vec())
    }

    /// The rows of the real trace that these rows stand for.
    pub(super) fn rows(&self, mut rows: Vec<Migration>) -> Vec<Migration> {
        if self.is_on_host {
            for row in &mut rows {
                row.target = Target::Host;
            }
        }
        match &self.whole {
            Some(whole) => whole.rows(&rows),
            None => rows,
        }
    }
}
