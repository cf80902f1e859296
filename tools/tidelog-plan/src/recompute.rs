//! The steps that a command looks at: orders and choices of reruns by name.

use crate::cli::{Inputs, RecomputeName};
use crate::failure::PlanFailure;
use crate::order::orders;
use tidelog_planner::cost::Machine;
use tidelog_planner::order::OpOrder;
use tidelog_planner::recompute::{LeftOut, RecomputeError, Reruns, choose, finalists};
use tidelog_planner::tidelog::{QUICK_STEPS, TidelogOptions, step_cost};
use tidelog_planner::trace::Trace;

/// Number of choices that are planned in full, of those that look best after a short search.
const PLANNED: usize = 3;

/// A step in an order, without some of its reruns.
#[derive(Clone)]
pub(crate) struct ArrangedStep {
    pub(crate) left_out: LeftOut,
    /// The step in the program's order.
    pub(crate) base: Trace,
    /// Step in the order that is planned.
    pub(crate) order: OpOrder,
    pub(crate) trace: Trace,
}

/// The steps to plan: each order with what may be best left out in it.
pub(crate) fn steps(
    program: &Trace,
    machine: &Machine,
    inputs: &Inputs,
) -> Result<Vec<ArrangedStep>, PlanFailure> {
    let reruns = Reruns::of(program);
    if inputs.recompute != RecomputeName::Own && reruns.all().is_empty() {
        return Err(RecomputeError::NoReruns.into());
    }
    let mut found = Vec::new();
    for order in orders(inputs.order) {
        for left_out in choices(&reruns, machine, inputs.recompute, order)? {
            match arranged(&reruns, left_out, order) {
                // Of all orders, those that there are.
                Err(PlanFailure::Order(_)) if !found.is_empty() => {}
                made => found.push(made?),
            }
        }
    }
    Ok(found)
}

/// The step without these reruns, in this order.
pub(crate) fn arranged(
    reruns: &Reruns<'_>,
    left_out: LeftOut,
    order: OpOrder,
) -> Result<ArrangedStep, PlanFailure> {
    let base = reruns.without(&left_out)?.trace;
    let trace = order.of(&base)?.trace;
    Ok(ArrangedStep { left_out, base, order, trace })
}

fn choices(
    reruns: &Reruns<'_>,
    machine: &Machine,
    name: RecomputeName,
    order: OpOrder,
) -> Result<Vec<LeftOut>, PlanFailure> {
    match name {
        RecomputeName::Own => return Ok(vec![LeftOut::default()]),
        RecomputeName::None => return Ok(vec![reruns.every()]),
        RecomputeName::Best => {}
    }
    let found = choose(reruns, machine, |trace| match order.of(trace) {
        Ok(ordered) => step_cost(&ordered.trace, machine, TidelogOptions::default(), QUICK_STEPS),
        Err(_) => Ok(None),
    });
    Ok(finalists(reruns, found?, PLANNED))
}
