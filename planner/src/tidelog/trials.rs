//! Improving a plan by trial, where trials are cheap: on short traces every period's other choices are
//! simulated in turn, until none of them helps.

use super::Options;
use crate::cost::Machine;
use crate::lifetime::{Lifetimes, Period, PeriodEnd};
use crate::plan::{Action, Expectation, Plan, Row, Target};
use crate::simulate::{Runtime, SimulateError, Simulation, with_expectations_under};
use crate::trace::Trace;
use crate::units::{Bytes, Nanos, OpIndex};

/// Iterations that one simulation runs.
const ITERATIONS: u64 = 3;

/// Where trials run.
#[derive(Clone, Copy)]
struct Course<'a> {
    trace: &'a Trace,
    machine: &'a Machine,
    runtime: Runtime,
}

/// The best plan that `best`, or one that moves nothing or a single period, becomes by changing one period
/// after the other, simulating at most `options.trials` ops: where two storages have to move, moving either alone
/// may be worse than neither. A trace too long to look at each period once is left as it is.
pub(super) fn improve(
    trace: &Trace,
    machine: &Machine,
    best: (Plan, Simulation),
    options: Options,
) -> Result<(Plan, Simulation), SimulateError> {
    let ops = trace.ops.len() as u64;
    let Options { trials, runtime, .. } = options;
    let mut left = trials / (ITERATIONS * ops.max(1));
    if left < ops {
        return Ok(best);
    }
    let course = Course { trace, machine, runtime };
    let mut periods = Lifetimes::of(trace).periods;
    periods.retain(|period| period.end == PeriodEnd::Use);
    let mut best = climb(course, &periods, best, &mut left)?;
    let single = periods.iter().flat_map(|period| choices(trace, period).into_iter().skip(1));
    for rows in [Vec::new()].into_iter().chain(single) {
        if left == 0 || best.1.stalls.is_empty() {
            break;
        }
        left -= 1;
        let start = with_rows(course, rows)?;
        let other = climb(course, &periods, start, &mut left)?;
        if merit(&other.1) < merit(&best.1) {
            best = other;
        }
    }
    Ok(best)
}

/// Changes one period after the other for the better, until no change of one helps.
fn climb(
    course: Course<'_>,
    periods: &[Period],
    mut best: (Plan, Simulation),
    left: &mut u64,
) -> Result<(Plan, Simulation), SimulateError> {
    loop {
        let before = merit(&best.1);
        for period in periods {
            let others = without(&best.0, course.trace, period);
            for choice in choices(course.trace, period) {
                if *left == 0 || best.1.stalls.is_empty() {
                    return Ok(best);
                }
                *left -= 1;
                let rows = others.iter().cloned().chain(choice).collect();
                let tried = with_rows(course, rows)?;
                if merit(&tried.1) < merit(&best.1) {
                    best = tried;
                }
            }
        }
        if merit(&best.1) == before {
            return Ok(best);
        }
    }
}

fn merit(one: &Simulation) -> (Nanos, Bytes) {
    (one.time, one.bytes.ssd_written)
}

fn with_rows(course: Course<'_>, rows: Vec<Row>) -> Result<(Plan, Simulation), SimulateError> {
    let Course { trace, machine, runtime } = course;
    let plan = Plan::new("tidelog", trace, machine, rows, Expectation::default());
    with_expectations_under(runtime, plan, trace, machine)
}

/// The plan's rows without those of one period.
fn without(plan: &Plan, trace: &Trace, period: &Period) -> Vec<Row> {
    let identity = &trace.storage(period.storage).identity;
    let inside = |row: &&Row| {
        let start = row.start.0;
        let unrolled = if start < period.from { start + plan.ops } else { start };
        row.storage == *identity && unrolled < period.to
    };
    plan.rows.iter().filter(|row| !inside(row)).cloned().collect()
}

/// Staying; or leaving at once, and coming back from some op on.
fn choices(trace: &Trace, period: &Period) -> Vec<Vec<Row>> {
    let ops = trace.ops.len() as u32;
    let row = |action, start: u32, deadline: u32| Row {
        start: OpIndex(start % ops),
        deadline: OpIndex(deadline % ops),
        action,
        target: Target::Ssd,
        storage: trace.storage(period.storage).identity.clone(),
    };
    let leaving = (period.from + 1..period.to).map(|back| {
        vec![row(Action::Evict, period.from, back), row(Action::Prefetch, back, period.to)]
    });
    [Vec::new()].into_iter().chain(leaving).collect()
}
