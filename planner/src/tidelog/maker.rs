//! Who makes plans: for the trace and the machine as they are, or for others whose plans may turn
//! out well here.

use super::rounding::RoundingCase;
use super::simpler::Simpler;
use super::variant::{Guess, VARIANTS};
use crate::cost::Machine;
use crate::lifetime::Lifetimes;
use crate::migration::Migration;
use crate::trace::Trace;
use crate::units::Bytes;

pub(super) struct Maker<'a> {
    trace: &'a Trace,
    /// The trace that plans are made for, where it is not the real one.
    simpler: Option<Simpler>,
    pub(super) machine: Machine,
    pub(super) lifetimes: Lifetimes,
    /// Of each variant the stalls that its plans led to, in the order made.
    pub(super) guesses: [Vec<Guess>; VARIANTS.len()],
}

impl<'a> Maker<'a> {
    pub(super) fn of(trace: &'a Trace, machine: Machine) -> Self {
        let lifetimes = Lifetimes::of(trace);
        Self { trace, simpler: None, machine, lifetimes, guesses: Default::default() }
    }

    /// One that plans the pieces of a tensor as the whole; none if nothing is in pieces.
    pub(super) fn of_wholes(trace: &'a Trace, machine: Machine) -> Option<Self> {
        Some(Self::of_simpler(trace, machine, Simpler::of_wholes(trace)?))
    }

    /// One that leaves in memory what is smaller than `least`; none if nothing is, or it takes too
    /// much.
    pub(super) fn of_large(trace: &'a Trace, machine: Machine, least: Bytes) -> Option<Self> {
        let simpler = Simpler::without_small(trace, least)?;
        machine.check_for(&simpler.trace).ok()?;
        Some(Self::of_simpler(trace, machine, simpler))
    }

    fn of_simpler(trace: &'a Trace, machine: Machine, simpler: Simpler) -> Self {
        let lifetimes = Lifetimes::of(&simpler.trace);
        Self { trace, simpler: Some(simpler), machine, lifetimes, guesses: Default::default() }
    }

    /// The trace that plans are made for.
    pub(super) fn trace(&self) -> &Trace {
        self.simpler.as_ref().map_or(self.trace, |simpler| &simpler.trace)
    }

    pub(super) fn case(&self) -> RoundingCase<'_> {
        let (trace, machine) = (self.trace(), &self.machine);
        RoundingCase { trace, machine, lifetimes: &self.lifetimes }
    }

    /// The rows of the real trace that these rows stand for.
    pub(super) fn rows(&self, rows: Vec<Migration>) -> Vec<Migration> {
        match &self.simpler {
            Some(simpler) => simpler.rows(&rows),
            None => rows,
        }
    }
}
