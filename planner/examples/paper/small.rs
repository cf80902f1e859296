//! A thousand small random steps: no policy is faster than the bound, and where all plans can be
//! tried tidelog's is close to the best of them.

use serde::Serialize;
use tidelog_planner::algorithm1::{self, Score, algorithm1};
use tidelog_planner::bound::{Effort, lower_bound};
use tidelog_planner::cost::Machine;
use tidelog_planner::instances::{every_plan, freer, magnified, small_steps};
use tidelog_planner::policies::flashneuron;
use tidelog_planner::simulate::{Policy, SimulateError, run_many, simulate};
use tidelog_planner::tidelog::{Search, TidelogOptions, tidelog};
use tidelog_planner::trace::Trace;
use tidelog_planner::units::Bytes;

const INSTANCES: u32 = 1000;
const SEED: u64 = 20_260;

/// The bound is on the steady state: a run may owe to later iterations what memory holds at its
/// end.
const ITERATIONS: u32 = 40;

/// Factor by which steps are larger, and take longer, where the gain of freedom is measured: that
/// times are whole nanoseconds is then no matter.
const TIMES: u64 = 1000;

/// Limit of the pieces of storages in pieces: they are up to 40 bytes large before.
const PIECE: Bytes = Bytes(16 * TIMES);

/// Every op is an instant.
const EFFORT: Effort = Effort { instants: 1 << 20, steps: 60 };

/// Results of small instances.
#[derive(Default, Serialize)]
pub(super) struct Small {
    pub(super) instances: u32,
    /// Bounds that say more than the kernels' time.
    #[serde(skip)]
    pub(super) telling: u32,
    /// Runs that were faster than their bound: there are none.
    pub(super) beaten: Vec<String>,
    /// Instances of which every plan was tried, and how many of tidelog's were the best.
    pub(super) enumerated: u32,
    pub(super) best: u32,
    #[serde(rename = "worst_over_best_per_mille")]
    pub(super) worst_per_mille: u32,
    /// Number of plans with more freedom, of those that took longer, and the most that one did.
    pub(super) freed: u32,
    pub(super) slower: u32,
    #[serde(rename = "worst_over_less_freedom_per_mille")]
    pub(super) worst_freed_per_mille: u64,
}

pub(super) fn small() -> Result<Small, SimulateError> {
    let mut small = Small::default();
    for (number, trace, machine) in small_steps(SEED, INSTANCES) {
        small.instances += 1;
        small.against_the_bound(number, &trace, &machine)?;
        if number % 2 == 0 {
            small.against_every_plan(&trace, &machine)?;
        }
        small.with_more_freedom(&trace, &machine)?;
    }
    Ok(small)
}

impl Small {
    fn against_the_bound(
        &mut self,
        number: u32,
        trace: &Trace,
        machine: &Machine,
    ) -> Result<(), SimulateError> {
        let bound = lower_bound(trace, machine, EFFORT)?.time;
        self.telling += u32::from(bound > trace.duration());
        let mut plans = vec![tidelog(trace, machine, TidelogOptions::default())?.0];
        for score in Score::ALL {
            let options =
                algorithm1::Algorithm1Options { score, ..algorithm1::Algorithm1Options::default() };
            plans.push(algorithm1(trace, machine, options));
        }
        plans.extend(flashneuron(trace, machine));
        let all = Bytes(trace.storages.iter().map(|storage| 2 * storage.size.0).sum());
        let owed = machine.ssd.read.time_for(all).0 + machine.ssd.write.time_for(all).0;
        for policy in plans.iter().map(Policy::Planned).chain([Policy::Lru]) {
            let time = run_many(trace, machine, policy, ITERATIONS)?.0.0;
            if time + owed < u64::from(ITERATIONS) * bound.0 {
                let (name, bound) = (policy.name(), bound.0);
                let run =
                    format!("{ITERATIONS} iterations in {time} ns, the bound of one is {bound}");
                self.beaten.push(format!("instance {number}, {name}: {run}"));
            }
        }
        Ok(())
    }

    fn against_every_plan(
        &mut self,
        trace: &Trace,
        machine: &Machine,
    ) -> Result<(), SimulateError> {
        let Some(plans) = every_plan(trace, machine) else { return Ok(()) };
        let mut best = u64::MAX;
        for plan in &plans {
            best = best.min(simulate(trace, machine, Policy::Planned(plan))?.time.0);
        }
        let found = tidelog(trace, machine, TidelogOptions::default())?.1.time.0;
        self.enumerated += 1;
        self.best += u32::from(found <= best);
        let per_mille = u32::try_from(found * 1000 / best.max(1)).unwrap_or(u32::MAX);
        self.worst_per_mille = self.worst_per_mille.max(per_mille);
        Ok(())
    }

    fn with_more_freedom(&mut self, trace: &Trace, machine: &Machine) -> Result<(), SimulateError> {
        let shortest = |trace: &Trace, machine: &Machine| -> Result<u64, SimulateError> {
            let mut search = Search::new(trace, machine, TidelogOptions::default())?;
            search.run(|_| true)?;
            Ok(search.prices()[0].time.0)
        };
        let (trace, machine) = magnified(trace, machine, TIMES);
        let time = shortest(&trace, &machine)?;
        for (_, trace, machine) in freer(&trace, &machine, PIECE) {
            let found = shortest(&trace, &machine)?;
            self.freed += 1;
            self.slower += u32::from(found > time);
            self.worst_freed_per_mille = self.worst_freed_per_mille.max(found * 1000 / time.max(1));
        }
        Ok(())
    }
}
