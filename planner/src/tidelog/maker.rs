//! Who makes plans: for the trace and the machine as they are, or for others whose plans may turn
//! out well here.

use super::rounding::RoundingCase;
use super::variant::{Guess, VARIANTS};
use crate::cost::Machine;
use crate::lifetime::Lifetimes;
use crate::trace::Trace;
use std::borrow::Cow;

pub(super) struct Maker<'a> {
    pub(super) trace: Cow<'a, Trace>,
    pub(super) machine: Machine,
    pub(super) lifetimes: Lifetimes,
    /// Of each variant the stalls that its plans led to, in the order made.
    pub(super) guesses: [Vec<Guess>; VARIANTS.len()],
}

impl<'a> Maker<'a> {
    pub(super) fn of(trace: &'a Trace, machine: Machine) -> Self {
        let lifetimes = Lifetimes::of(trace);
        Self { trace: Cow::Borrowed(trace), machine, lifetimes, guesses: Default::default() }
    }

    pub(super) fn case(&self) -> RoundingCase<'_> {
        let (trace, machine) = (self.trace.as_ref(), &self.machine);
        RoundingCase { trace, machine, lifetimes: &self.lifetimes }
    }
}
