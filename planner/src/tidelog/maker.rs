//! Makers of plans: for the trace and the machine as they are, or for others whose plans may turn
//! out well here.

use super::assignment::TierAssignment;
use super::pieces::Whole;
use super::rounding::RoundingCase;
use super::variant::{Guess, VARIANTS};
use crate::cost::Machine;
use crate::lifetime::Lifetimes;
use crate::migration::Migration;
use crate::trace::{PlanStorage, Trace};

pub(super) struct Maker<'a> {
    trace: &'a Trace,
    /// The trace that plans are made for, where it is not the real one.
    whole: Option<Whole>,
    pub(super) machine: Machine,
    pub(super) lifetimes: Lifetimes,
    /// The tiers that storages leave for; none: the SSDs while they have time, then host memory.
    pub(super) assignment: Option<TierAssignment>,
    /// Guesses of each variant: the stalls that its plans led to, in the order made.
    pub(super) guesses: [Vec<Guess>; VARIANTS.len()],
}

impl<'a> Maker<'a> {
    pub(super) fn of(trace: &'a Trace, machine: Machine) -> Self {
        let lifetimes = Lifetimes::of(trace);
        let (assignment, guesses) = (None, Default::default());
        Self { trace, whole: None, machine, lifetimes, assignment, guesses }
    }

    /// Makes a maker whose storages leave for the tiers that they are assigned to.
    pub(super) fn assigned(trace: &'a Trace, machine: Machine, to: TierAssignment) -> Self {
        Self { assignment: Some(to), ..Self::of(trace, machine) }
    }

    /// Makes a maker that plans the pieces of a tensor as the whole; none if nothing is in pieces.
    pub(super) fn of_wholes(trace: &'a Trace, machine: Machine) -> Option<Self> {
        let whole = Whole::of(trace)?;
        let lifetimes = Lifetimes::of(&whole.trace);
        let (assignment, guesses) = (None, Default::default());
        Some(Self { trace, whole: Some(whole), machine, lifetimes, assignment, guesses })
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
    pub(super) fn rows(&self, rows: Vec<Migration>) -> Vec<Migration> {
        match &self.whole {
            Some(whole) => whole.rows(&rows),
            None => rows,
        }
    }
}
