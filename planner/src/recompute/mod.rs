//! Running ops again, or keeping what they made: the third choice beside staying and leaving.
//!
//! A program with activation checkpointing lets go of what a part of the model makes in the forward
//! pass, and runs that part again just before its backward pass: a *rerun*. That costs time of the
//! kernels and saves memory, or what moving would take. Where memory and links have room, what the
//! first run made is better kept, so that the second run is not needed.
//!
//! A trace of such a program shows its reruns: the same ops of the same values twice. Or the
//! program names them ([`CheckpointedRegion`]). A choice of reruns that are left out is a trace of
//! its own ([`Reruns::without`]), planned, bounded and simulated like any other. What makes it
//! lawful is `check`: it follows which op wrote what each op reads, in both.
//!
//! An op is taken to make the same of the same bytes. Random numbers are no storages of a trace:
//! whoever checkpoints gives the second run the generator's state that the first one had, as
//! `torch.utils.checkpoint` does.

mod check;
mod choose;
mod keep;
mod regions;
mod repetitions;
mod reruns;

use crate::bound::Skippable;
use crate::order::BrokenDependence;
use crate::trace::{Trace, TraceError};
use serde::Serialize;
use std::fmt;

pub use check::check;
pub use choose::{Choice, choose, finalists};
pub use regions::{CheckpointedRegion, NoRerun, SameWrites, without_aliases};
pub use reruns::Rerun;

/// A step and what it runs twice.
#[derive(Clone, Debug)]
pub struct Reruns<'a> {
    program: &'a Trace,
    all: Vec<Rerun>,
    same: Vec<SameWrites>,
}

/// A step without some of its reruns.
#[derive(Clone, Debug)]
pub struct KeptStep {
    /// The step.
    pub trace: Trace,
    /// Op of the program that each op of the step is.
    pub schedule: Vec<u32>,
}

/// Reruns that a step is without, by their place in [`Reruns::all`], in that order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct LeftOut(pub Vec<u32>);

impl<'a> Reruns<'a> {
    /// Finds the reruns of a program's step.
    pub fn of(program: &'a Trace) -> Self {
        Self { program, all: Rerun::all(program), same: Vec::new() }
    }

    /// Returns all reruns, in the order in which they run.
    pub fn all(&self) -> &[Rerun] {
        &self.all
    }

    /// Returns the groups that the bound may leave out.
    pub fn skippable(&self) -> Vec<Skippable> {
        self.all.iter().map(Rerun::skippable).collect()
    }

    /// Leaves out all reruns: the program without checkpointing.
    pub fn every(&self) -> LeftOut {
        LeftOut((0..self.all.len() as u32).collect())
    }

    /// The step without some of its reruns. Without none it is the program's.
    ///
    /// # Errors
    /// Where there is no such rerun, or an op would read something else.
    pub fn without(&self, left_out: &LeftOut) -> Result<KeptStep, RecomputeError> {
        let reruns = left_out.0.iter().map(|rerun| {
            let none = RecomputeError::NoSuchRerun { rerun: *rerun, count: self.all.len() };
            self.all.get(*rerun as usize).ok_or(none)
        });
        let reruns: Vec<&Rerun> = reruns.collect::<Result<_, _>>()?;
        let mut step = keep::keep(self.program, &reruns)?;
        if !reruns.is_empty() {
            let (count, all) = (reruns.len(), self.all.len());
            step.trace.name = format!("{}, without {count} of {all} reruns", step.trace.name);
        }
        check(self.program, &reruns, &step, &self.same)?;
        Ok(step)
    }
}

/// The reason why a step cannot be without such reruns.
#[derive(Debug, thiserror::Error)]
pub enum RecomputeError {
    /// The program runs nothing twice.
    #[error(
        "the step runs no part of the model twice: it was recorded without activation checkpointing"
    )]
    NoReruns,
    /// A number that is none.
    #[error("there is no rerun {rerun}: the step has {count}, counted from 0")]
    NoSuchRerun {
        /// The number.
        rerun: u32,
        /// Number of reruns.
        count: usize,
    },
    /// An op would read something else.
    #[error("without these reruns {0}")]
    Dependence(#[from] BrokenDependence),
    /// The remaining trace is not valid.
    #[error("the step without these reruns contradicts itself: {0}")]
    Trace(#[from] TraceError),
}

impl fmt::Display for LeftOut {
    /// `0-3, 7`.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs = self.0.chunk_by(|one, next| one + 1 == *next);
        for (index, run) in runs.enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            match run {
                [one] => write!(out, "{comma}{one}")?,
                [first, .., last] => write!(out, "{comma}{first}-{last}")?,
                [] => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod property_tests;
#[cfg(test)]
mod region_tests;
#[cfg(test)]
mod tests;
