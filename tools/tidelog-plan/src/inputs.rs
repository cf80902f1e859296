//! Inputs of the commands: a trace, a machine, a plan or who makes one.

use crate::cli::{Inputs, PartsName, PlanSource, PolicyName};
use crate::failure::PlanFailure;
use crate::recompute::{ArrangedStep, arranged, steps};
use std::cell::RefCell;
use std::path::Path;
use std::time::{Duration, Instant};
use tidelog_planner::algorithm1::{Algorithm1Options, Score, algorithm1};
use tidelog_planner::bound::{Effort, lower_bound, with_skips};
use tidelog_planner::cost::Machine;
use tidelog_planner::endurance::{StepChoice, unbeaten};
use tidelog_planner::explain::Case;
use tidelog_planner::hardware::{Hardware, MachineFile, rounds_at_most, settle};
use tidelog_planner::order::OpOrder;
use tidelog_planner::parts::PartedStep;
use tidelog_planner::plan::{Plan, PlanFile};
use tidelog_planner::recompute::{LeftOut, Reruns};
use tidelog_planner::simulate::{self, SimulateError, Simulation, simulate, with_expectations};
use tidelog_planner::tidelog::{PartedPlan, PlanPrice, Search, TidelogOptions, in_parts};
use tidelog_planner::trace::Trace;
use tidelog_planner::units::Nanos;

/// Policies that make plans, under the names that plans carry.
pub(crate) const PLANNERS: [(&str, PolicyName); 4] = [
    ("algorithm1", PolicyName::Algorithm1),
    ("algorithm1, as printed", PolicyName::Algorithm1Printed),
    ("algorithm1, size x time", PolicyName::Algorithm1Benefit),
    ("tidelog", PolicyName::Tidelog),
];

/// A step, ready to be looked at.
pub(crate) struct LoadedStep {
    /// The step as the program runs it.
    pub(crate) program: Trace,
    /// Reruns that are left out, and the step without them.
    pub(crate) left_out: LeftOut,
    pub(crate) base: Trace,
    /// Step in the order that is planned.
    pub(crate) order: OpOrder,
    pub(crate) ordered: Trace,
    /// Step in the parts that the plan moves, if it moves any, and what is planned.
    pub(crate) parts: Option<PartedStep>,
    pub(crate) trace: Trace,
    pub(crate) machine: Machine,
    pub(crate) hardware: Option<Hardware>,
    /// Machine file as read, before a plan settled on rates.
    pub(crate) file: MachineFile,
    pub(crate) policy: PolicyName,
    pub(crate) plan: Option<Plan>,
    pub(crate) simulation: Simulation,
    /// Limit of the time of each search.
    pub(crate) within: Option<Duration>,
    /// Choices that the search found beside the plan, if there was one: the plans that no other
    /// beats in both time and bytes written, fastest first.
    pub(crate) found: Vec<StepChoice>,
    /// Costs of those choices.
    pub(crate) prices: Vec<PlanPrice>,
}

impl LoadedStep {
    /// Reads, plans where no plan is given, and simulates.
    pub(crate) fn read(inputs: &Inputs, source: &PlanSource) -> Result<Self, PlanFailure> {
        let (program, file) = read(inputs)?;
        if let Some(path) = &source.plan {
            return Self::with_plan(program, file, path, inputs);
        }
        let mut fastest: Option<Self> = None;
        for arranged in steps(&program, &file.machine, inputs)? {
            let step = Self::planned(&program, &arranged, &file, source.policy, inputs)?;
            if fastest.as_ref().is_none_or(|best| step.simulation.time < best.simulation.time) {
                fastest = Some(step);
            }
        }
        Ok(fastest.expect("there is at least one step"))
    }

    /// A step whose plan is there already, in the order that it was made for.
    fn with_plan(
        program: Trace,
        file: MachineFile,
        path: &Path,
        inputs: &Inputs,
    ) -> Result<Self, PlanFailure> {
        let name = path.display().to_string();
        let wrong = |source| PlanFailure::Plan { file: name.clone(), source };
        let named = PlanFile::from_json(&text_of(path)?).map_err(wrong)?;
        let left_out = LeftOut(named.left_out.clone());
        let base = arranged(&Reruns::of(&program), left_out.clone(), OpOrder::OWN)?.base;
        let of_plan = OpOrder::with_fingerprint(&base, named.fingerprint);
        let (order, trace) = of_plan.unwrap_or_else(|| (OpOrder::OWN, base.clone()));
        let (parts, plan) = named.in_parts(&trace).map_err(wrong)?;
        let policy = simulate::Policy::Planned(&plan);
        let simulation = match simulate(&parts.trace, &file.machine, policy) {
            Err(SimulateError::Plan(source)) => return Err(wrong(source)),
            simulated => simulated?,
        };
        let named = PLANNERS.into_iter().find(|(name, _)| *name == plan.policy);
        let policy = named.map_or(PolicyName::Tidelog, |(_, policy)| policy);
        let parts = Some(parts).filter(|parts| parts.trace.is_in_parts());
        let found = Found { parts, ..Found::default() };
        let made = PlannedStep { machine: file.machine, plan: Some(plan), simulation, found };
        let arranged = ArrangedStep { left_out, base, order, trace };
        Ok(Self::of(program, arranged, file, (policy, inputs.within), made))
    }

    /// A step, and what was made for it.
    fn of(
        program: Trace,
        arranged: ArrangedStep,
        file: MachineFile,
        (policy, within): (PolicyName, Option<Duration>),
        made: PlannedStep,
    ) -> Self {
        let ArrangedStep { left_out, base, order, trace: ordered } = arranged;
        let PlannedStep { machine, plan, simulation, found } = made;
        let Found { choices, prices, parts } = found;
        Self {
            program,
            left_out,
            base,
            order,
            trace: parts.as_ref().map_or(&ordered, |parts| &parts.trace).clone(),
            ordered,
            parts,
            machine,
            hardware: file.hardware.clone(),
            file,
            policy,
            plan,
            simulation,
            within,
            found: choices,
            prices,
        }
    }

    fn planned(
        program: &Trace,
        arranged: &ArrangedStep,
        file: &MachineFile,
        policy: PolicyName,
        &Inputs { within, parts, .. }: &Inputs,
    ) -> Result<Self, PlanFailure> {
        if parts == PartsName::Best && policy != PolicyName::Tidelog {
            let why = "--parts best goes with --policy tidelog alone: no other plans parts";
            return Err(PlanFailure::Usage(why.to_owned()));
        }
        let (trace, MachineFile { machine, hardware }) = (&arranged.trace, file.clone());
        let of = |made| {
            Self::of(program.clone(), arranged.clone(), file.clone(), (policy, within), made)
        };
        if policy == PolicyName::Lru {
            let simulation = simulate(trace, &machine, simulate::Policy::Lru)?;
            return Ok(of(PlannedStep {
                machine,
                plan: None,
                simulation,
                found: Found::default(),
            }));
        }
        let rounds = hardware.as_ref().map_or(Ok(1), rounds_at_most)?;
        let within_each = within.map(|within| within / rounds);
        let last: RefCell<Found> = RefCell::default();
        let planner = |trace: &Trace, machine: &Machine| {
            if policy != PolicyName::Tidelog {
                return planner(policy, within_each)(trace, machine);
            }
            if parts == PartsName::Best {
                let (search, found) = searched_in_parts(trace, machine, within_each)?;
                if let Some(PartedPlan { step, plan, simulation, prices }) = found {
                    let parts = Some(step);
                    *last.borrow_mut() = Found { choices: Vec::new(), prices, parts };
                    return Ok((plan, simulation));
                }
                *last.borrow_mut() = Found::of(&search);
                return Ok(best(&search));
            }
            let search = searched(trace, machine, within_each)?;
            *last.borrow_mut() = Found::of(&search);
            Ok(best(&search))
        };
        let (machine, plan, simulation) = if let Some(hardware) = &hardware {
            settle(hardware, trace, &planner)?
        } else {
            let (plan, simulation) = planner(trace, &machine)?;
            (machine, plan, simulation)
        };
        Ok(of(PlannedStep { machine, plan: Some(plan), simulation, found: last.take() }))
    }

    /// Returns all choices that a search for this step finds, the plan of the step among them.
    pub(crate) fn choices(&self) -> Result<Vec<StepChoice>, PlanFailure> {
        let mut found = self.found.clone();
        if let Some(plan) = self.plan.clone().filter(|_| found.is_empty()) {
            // Whoever planned, another plan may be one that writes less.
            found = choices(&searched(&self.trace, &self.machine, self.within)?);
            found.push(StepChoice { plan, simulation: self.simulation.clone() });
        }
        Ok(unbeaten(found))
    }

    /// The file of a plan for this step.
    pub(crate) fn file_of(&self, plan: &Plan) -> String {
        let mut named = match &self.parts {
            Some(parts) => plan.named_in_parts(parts),
            None => plan.named(&self.trace),
        };
        named.left_out.clone_from(&self.left_out.0);
        named.to_json()
    }

    pub(crate) fn case(&self) -> Case<'_> {
        Case {
            trace: &self.trace,
            machine: &self.machine,
            plan: self.plan.as_ref(),
            simulation: &self.simulation,
        }
    }
}

/// Plan of a step.
struct PlannedStep {
    /// Machine with the rates that the plan settled on.
    machine: Machine,
    plan: Option<Plan>,
    simulation: Simulation,
    found: Found,
}

/// Results of a search beside its best plan.
#[derive(Default)]
struct Found {
    choices: Vec<StepChoice>,
    prices: Vec<PlanPrice>,
    /// The step in the parts that the best plan moves, if it moves any.
    parts: Option<PartedStep>,
}

impl Found {
    fn of(search: &Search<'_>) -> Self {
        Self { choices: choices(search), prices: search.prices(), parts: None }
    }
}

/// Plans and simulates as a policy says, for so long each time.
pub(crate) fn simulator(
    policy: PolicyName,
    within: Option<Duration>,
) -> impl Fn(&Trace, &Machine) -> Result<Simulation, SimulateError> {
    move |trace, machine| match policy {
        PolicyName::Lru => simulate(trace, machine, simulate::Policy::Lru),
        _ => Ok(planner(policy, within)(trace, machine)?.1),
    }
}

/// Returns the planner of a policy, for so long each time; ours where it is one that makes no
/// plans.
pub(crate) fn planner(
    policy: PolicyName,
    within: Option<Duration>,
) -> impl Fn(&Trace, &Machine) -> Result<(Plan, Simulation), SimulateError> {
    move |trace, machine| {
        let score = match policy {
            PolicyName::Tidelog | PolicyName::Lru => {
                return Ok(best(&searched(trace, machine, within)?));
            }
            PolicyName::Algorithm1 => Score::PerTransferTime,
            PolicyName::Algorithm1Printed => Score::PerByte,
            PolicyName::Algorithm1Benefit => Score::Benefit,
        };
        let plan =
            algorithm1(trace, machine, Algorithm1Options { score, ..Algorithm1Options::default() });
        with_expectations(plan, trace, machine)
    }
}

/// The one search that every command makes, so that none knows a better plan than another: for so
/// long, or to its end.
pub(crate) fn searched<'a>(
    trace: &'a Trace,
    machine: &'a Machine,
    within: Option<Duration>,
) -> Result<Search<'a>, SimulateError> {
    searched_with(trace, machine, TidelogOptions::thorough(), within)
}

/// Searches with the given options.
pub(crate) fn searched_with<'a>(
    trace: &'a Trace,
    machine: &'a Machine,
    options: TidelogOptions,
    within: Option<Duration>,
) -> Result<Search<'a>, SimulateError> {
    let begun = Instant::now();
    let mut search = Search::new(trace, machine, options)?;
    search.run(|_| within.is_none_or(|within| begun.elapsed() < within))?;
    Ok(search)
}

/// Searches, and then once more for plans that move parts of storages, each for half the time.
/// Nothing comes of the second where whole storages are as good.
pub(crate) fn searched_in_parts<'a>(
    trace: &'a Trace,
    machine: &'a Machine,
    within: Option<Duration>,
) -> Result<(Search<'a>, Option<PartedPlan>), SimulateError> {
    let half = within.map(|within| within / 2);
    let search = searched(trace, machine, half)?;
    let found = parts_after(&search, half)?;
    Ok((search, found))
}

/// The second of these searches.
pub(crate) fn parts_after(
    search: &Search<'_>,
    within: Option<Duration>,
) -> Result<Option<PartedPlan>, SimulateError> {
    let begun = Instant::now();
    in_parts(search, |_| within.is_none_or(|within| begun.elapsed() < within))
}

pub(crate) fn best(search: &Search<'_>) -> (Plan, Simulation) {
    search.best().expect("the first step of a search makes a plan")
}

fn choices(search: &Search<'_>) -> Vec<StepChoice> {
    let found = search.frontier().into_iter();
    found.map(|(plan, simulation)| StepChoice { plan, simulation }).collect()
}

/// Returns the lower bound of all policies on this machine. Reads and writes are taken not to slow
/// each other: drives whose do are slower yet. Every command that tells a bound takes it from here,
/// so that all tell one.
pub(crate) fn bound(trace: &Trace, file: &MachineFile) -> Result<Nanos, PlanFailure> {
    Ok(lower_bound(trace, &file.machine, Effort::default())?.time)
}

/// Returns the lower bound of all policies, whichever reruns they leave out.
pub(crate) fn bound_of_all_choices(
    program: &Trace,
    file: &MachineFile,
) -> Result<Nanos, PlanFailure> {
    let reruns = Reruns::of(program).skippable();
    Ok(with_skips(program, &file.machine, Effort::default(), &reruns)?.time)
}

pub(crate) fn read(inputs: &Inputs) -> Result<(Trace, MachineFile), PlanFailure> {
    let file = inputs.trace.display().to_string();
    let trace = Trace::from_json(&text_of(&inputs.trace)?)
        .map_err(|source| PlanFailure::Trace { file, source })?;
    let machine = read_machine(&inputs.machine)?;
    let file = inputs.machine.display().to_string();
    let checked = machine.machine.check_for(&trace);
    checked.map_err(|error| PlanFailure::Machine { file, source: error.into() })?;
    Ok((trace, machine))
}

pub(crate) fn read_machine(path: &Path) -> Result<MachineFile, PlanFailure> {
    let file = path.display().to_string();
    MachineFile::from_json(&text_of(path)?).map_err(|source| PlanFailure::Machine { file, source })
}

pub(crate) fn text_of(path: &Path) -> Result<String, PlanFailure> {
    std::fs::read_to_string(path)
        .map_err(|source| PlanFailure::Read { file: path.display().to_string(), source })
}
