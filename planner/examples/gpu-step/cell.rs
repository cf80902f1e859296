//! One step in one part of its memory, with every bridge that was asked for.

use crate::Failure;
use serde::Serialize;
use std::path::Path;
use tidelog_planner::gpu_step::{Bridge, Constants, LimitedStep, MEASURED, RangeEnd, StepFigures};
use tidelog_planner::plan::Plan;
use tidelog_planner::trace::Trace;
use tidelog_planner::units::{Bytes, Nanos};

const ENDS: [RangeEnd; 3] = [RangeEnd::Value, RangeEnd::Fast, RangeEnd::Slow];

/// A step in a part of its memory.
pub(crate) struct StepCell {
    pub(crate) trace: String,
    pub(crate) percent: u32,
    pub(crate) budget: Bytes,
    pub(crate) measured: Option<Nanos>,
    /// Points with all constants at one end, in the order of [`ENDS`].
    pub(crate) points: Vec<Point>,
}

/// The step with all constants at one end of their ranges.
pub(crate) struct Point {
    pub(crate) end: RangeEnd,
    pub(crate) kernels: Nanos,
    pub(crate) plain: Nanos,
    pub(crate) bound: Nanos,
    /// The bound if both ways of the link had their full rates at once.
    pub(crate) bound_of_full_rates: Nanos,
    pub(crate) bridges: Vec<(Bridge, StepFigures)>,
}

impl StepCell {
    pub(crate) fn of(name: &str, percent: u32, bridges: &[Bridge]) -> Result<Self, Failure> {
        let trace = recorded(name)?;
        let points = ENDS.map(|end| Point::of(&trace, end, percent, bridges));
        let points = points.into_iter().collect::<Result<Vec<_>, Failure>>()?;
        let budget = LimitedStep::new(&trace, Constants::at(RangeEnd::Value), percent).budget();
        let measured = MEASURED.iter().find(|one| one.trace == name && one.percent == percent);
        let measured = measured.map(|step| step.time);
        Ok(Self { trace: name.to_owned(), percent, budget, measured, points })
    }

    /// Returns the point of the likeliest figures.
    pub(crate) fn value(&self) -> &Point {
        &self.points[0]
    }
}

impl Point {
    fn of(trace: &Trace, end: RangeEnd, percent: u32, bridges: &[Bridge]) -> Result<Self, Failure> {
        let step = LimitedStep::new(trace, Constants::at(end), percent);
        let with = |bridge: &Bridge| {
            let plan = step.plan(*bridge)?;
            Ok((*bridge, step.simulate(*bridge, &plan)?))
        };
        Ok(Self {
            end,
            kernels: step.kernels(),
            plain: step.plain()?.time,
            bound: step.bound()?,
            bound_of_full_rates: step.bound_of_full_rates()?,
            bridges: bridges.iter().map(with).collect::<Result<_, Failure>>()?,
        })
    }
}

/// Times of a step where one constant alone is at an end of its range.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Effect {
    pub(crate) constant: String,
    pub(crate) fast_ns: Nanos,
    pub(crate) slow_ns: Nanos,
}

impl Effect {
    /// Returns the distance between the ends.
    pub(crate) fn span(&self) -> u64 {
        self.slow_ns.0.abs_diff(self.fast_ns.0)
    }
}

/// Constants that decide what a step takes, those that decide most first.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Deciding {
    pub(crate) trace: String,
    pub(crate) percent: u32,
    pub(crate) bridge: &'static str,
    pub(crate) effects: Vec<Effect>,
}

impl Deciding {
    pub(crate) fn of(cell: &StepCell, bridge: Bridge) -> Result<Self, Failure> {
        let (trace, value) = (recorded(&cell.trace)?, Constants::at(RangeEnd::Value));
        let plan = LimitedStep::new(&trace, value.clone(), cell.percent).plan(bridge)?;
        let time = |constants: Constants, plan: &Plan| {
            let step = LimitedStep::new(&trace, constants, cell.percent);
            step.simulate(bridge, plan).map(|figures| figures.time)
        };
        let effect = |constant: &str| -> Result<Effect, Failure> {
            let at = |end| time(value.clone().with(constant, end), &plan);
            let (fast_ns, slow_ns) = (at(RangeEnd::Fast)?, at(RangeEnd::Slow)?);
            Ok(Effect { constant: constant.to_owned(), fast_ns, slow_ns })
        };
        let mut effects = value
            .table()
            .map(|constant| effect(&constant.name))
            .collect::<Result<Vec<_>, Failure>>()?;
        effects.sort_by_key(|effect| std::cmp::Reverse(effect.span()));
        let (trace, percent) = (cell.trace.clone(), cell.percent);
        Ok(Self { trace, percent, bridge: bridge.word(), effects })
    }
}

fn recorded(name: &str) -> Result<Trace, Failure> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("traces/{name}.json"));
    let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(Trace::from_json(&text)?)
}
