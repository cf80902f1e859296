//! Gain by running again less, or more: planned again, simulated again.

use super::SimulateFn;
use crate::cost::Machine;
use crate::order::OpOrder;
use crate::plan::PlannedBytes;
use crate::recompute::{LeftOut, Reruns, choose, finalists};
use crate::report::text::{bytes, time};
use crate::simulate::SimulateError;
use crate::tidelog::{QUICK_STEPS, TidelogOptions, step_cost};
use crate::trace::Trace;
use crate::units::Nanos;
use serde::Serialize;
use std::fmt;

/// Result of a choice of reruns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RecomputeAnswer {
    /// Name of the choice.
    pub recompute: &'static str,
    /// The reruns that it leaves out.
    pub left_out: LeftOut,
    /// Number of reruns.
    pub reruns: usize,
    /// Duration of the remaining reruns.
    #[serde(rename = "again_ns")]
    pub again: Nanos,
    /// The length of the step; `None` if it cannot run.
    #[serde(rename = "time_ns")]
    pub time: Option<Nanos>,
    /// The bytes that move.
    pub bytes: Option<PlannedBytes>,
}

/// Plans and simulates a step with all its reruns, with none, and with those that a short
/// search finds best to leave out. Nothing where the step has no reruns.
///
/// # Errors
/// If a step cannot be simulated for another reason than a lack of memory.
pub fn recomputation(
    program: &Trace,
    order: OpOrder,
    machine: &Machine,
    simulator: SimulateFn<'_>,
) -> Result<Vec<RecomputeAnswer>, SimulateError> {
    let reruns = Reruns::of(program);
    if reruns.all().is_empty() {
        return Ok(Vec::new());
    }
    let planned = |trace: &Trace| {
        let Ok(ordered) = order.of(trace) else { return Ok(None) };
        match simulator(&ordered.trace, machine) {
            Ok(found) => Ok(Some((found.time, found.bytes))),
            Err(SimulateError::Refused { .. }) => Ok(None),
            Err(other) => Err(other),
        }
    };
    let found = choose(&reruns, machine, |trace| match order.of(trace) {
        Ok(ordered) => step_cost(&ordered.trace, machine, TidelogOptions::default(), QUICK_STEPS),
        Err(_) => Ok(None),
    })?;
    let answer = |left_out: LeftOut| {
        let step = reruns.without(&left_out).ok();
        let found = step.map_or(Ok(None), |step| planned(&step.trace))?;
        let runs = |index: &usize| !left_out.0.contains(&(*index as u32));
        let again = (0..reruns.all().len()).filter(runs).map(|index| reruns.all()[index].time.0);
        Ok(RecomputeAnswer {
            recompute: "best",
            again: Nanos(again.sum()),
            reruns: reruns.all().len(),
            time: found.map(|(time, _)| time),
            bytes: found.map(|(_, bytes)| bytes),
            left_out,
        })
    };
    let finalists = finalists(&reruns, found, 1).into_iter().map(answer);
    let finalists: Vec<RecomputeAnswer> = finalists.collect::<Result<_, SimulateError>>()?;
    let best = finalists.iter().filter(|one| one.time.is_some()).min_by_key(|one| one.time);
    let named = |recompute: &'static str, one: &RecomputeAnswer| RecomputeAnswer {
        recompute,
        ..one.clone()
    };
    let own_and_none = ["own", "none"].into_iter().zip(&finalists);
    let asked = own_and_none.map(|(recompute, one)| named(recompute, one));
    Ok(asked.chain(best.map(|one| named("best", one))).collect())
}

impl fmt::Display for RecomputeAnswer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (runs, all) = (self.reruns - self.left_out.0.len(), self.reruns);
        write!(out, "{:5}", self.recompute)?;
        write!(out, "({runs} of {all} reruns, {} of the kernels): ", time(self.again))?;
        match (self.time, self.bytes) {
            (Some(length), Some(moved)) => write!(
                out,
                "{}, {} written, {} read",
                time(length),
                bytes(moved.ssd_written),
                bytes(moved.ssd_read)
            ),
            _ => out.write_str("not possible"),
        }
    }
}
