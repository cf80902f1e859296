//! Plans that move parts of storages, where these are better than any that moves storages whole.
//!
//! Storages are cut into parts that are small beside memory, and the same search is made as for
//! whole storages. Of each plan that it makes, neighbouring parts that move alike are joined before
//! the plan is simulated: each transfer has its latency, and most storages move whole after all.
//! What is left are few parts, cut where the plan has use for it.
//!
//! The search for whole storages comes first, and the one for parts goes on from all that it has
//! found. So the best with parts is no worse; where it is no better, there is none.

use super::candidates::Candidate;
use super::{POLICY, PlanPrice, Search};
use crate::cost::Machine;
use crate::migration::Migration;
use crate::parts::{Cuts, PartedStep};
use crate::plan::{Expectation, Plan};
use crate::simulate::{Carrier, SimulateError, Simulation, Simulator};
use crate::trace::Trace;

/// A plan that moves parts.
#[derive(Clone, Debug)]
pub struct PartedPlan {
    /// The step in the parts that the plan moves.
    pub step: PartedStep,
    /// The plan for it.
    pub plan: Plan,
    /// Simulation of the plan.
    pub simulation: Simulation,
    /// Costs of the plans with and without parts that no other one beats in both time and bytes
    /// written, fastest first.
    pub prices: Vec<PlanPrice>,
}

/// The best plan that moves parts of storages, if it is better than the best of `whole`: a search
/// for whole storages, of which at least one step is done. `go_on` is asked as by [`Search::run`].
///
/// # Errors
/// If the step cannot be simulated in parts.
pub fn in_parts(
    whole: &Search<'_>,
    go_on: impl FnMut(u64) -> bool,
) -> Result<Option<PartedPlan>, SimulateError> {
    in_parts_of(whole, &Cuts::of(whole.trace, whole.machine), go_on)
}

/// Searches for storages that are cut there.
///
/// # Errors
/// If the step cannot be simulated in parts.
pub fn in_parts_of(
    whole: &Search<'_>,
    cuts: &Cuts,
    go_on: impl FnMut(u64) -> bool,
) -> Result<Option<PartedPlan>, SimulateError> {
    if cuts.is_empty() {
        return Ok(None);
    }
    let step = PartedStep::of(whole.trace, cuts);
    let (machine, carrier) = (whole.machine, whole.options.carrier());
    let joining = Joining { whole: whole.trace, step: &step, machine, carrier };
    let mut search = whole.in_parts(joining)?;
    search.run(go_on)?;
    let Some(best) = search.found.best(whole.options.goal) else { return Ok(None) };
    let JoinedPlan { step, rows, simulation } = joining.simulate(&best.rows)?;
    if !step.trace.is_in_parts() {
        return Ok(None);
    }
    let found = Candidate { rows, expects: Expectation::default(), simulation };
    let (plan, simulation) = found.into_plan(&step.trace, machine);
    Ok(Some(PartedPlan { step, plan, simulation, prices: search.prices() }))
}

/// A step in parts, and what it is of.
#[derive(Clone, Copy)]
pub(super) struct Joining<'a> {
    whole: &'a Trace,
    pub(super) step: &'a PartedStep,
    machine: &'a Machine,
    carrier: Carrier,
}

/// A plan of as few parts as do.
pub(super) struct JoinedPlan {
    step: PartedStep,
    rows: Vec<Migration>,
    pub(super) simulation: Simulation,
}

impl Joining<'_> {
    /// Joins the parts that these rows move alike, and simulates.
    pub(super) fn simulate(&self, rows: &[Migration]) -> Result<JoinedPlan, SimulateError> {
        let (step, rows) = self.step.joined(self.whole, rows);
        let simulator = Simulator::new(self.carrier, &step.trace, self.machine)?;
        let simulation = simulator.simulate(POLICY, &rows)?;
        Ok(JoinedPlan { step, rows, simulation })
    }
}
