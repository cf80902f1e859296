//! Iterations on one clock: the residency machine is asked, its actions are performed on the links.

use super::links::SimulatedLinks;
use super::thread::ProgramThread;
use super::world::World;
use super::{Carrier, OpStall, Policy, SimulateError, Simulation};
use crate::cost::Machine;
use crate::plan::{born_bytes, simulated};
use crate::residency::{Config, OpBegin, OpProgress, OpUse, Residency, Schedule, StorageId};
use crate::trace::{Identity, PlanStorage, Trace};
use crate::units::{Bytes, Nanos, OpIndex};
use std::sync::Arc;

/// A budget that nothing reaches: sizes of a valid trace sum up to less than 2^53.
const UNLIMITED: Bytes = Bytes(1 << 60);

/// The instances that a name of the trace means.
#[derive(Clone, Copy, Debug, Default)]
struct Instances {
    current: Option<StorageId>,
    previous: Option<StorageId>,
}

pub(super) struct SimulationRun<'a> {
    world: World<'a>,
    named: Vec<Instances>,
    /// True if a storage that is born in an iteration dies in the next one.
    ends_late: Vec<bool>,
}

impl<'a> SimulationRun<'a> {
    /// A run under a policy, on a machine that is checked first.
    pub(super) fn begin(
        carrier: Carrier,
        trace: &'a Trace,
        machine: &Machine,
        policy: Policy<'_>,
    ) -> Result<Self, SimulateError> {
        if let Policy::Ideal = policy {
            let machine = Machine { budget: UNLIMITED, staging: Bytes(0), ..*machine };
            return Self::new(carrier, trace, &machine, None);
        }
        machine.check_for(trace)?;
        let schedule = match policy {
            Policy::Planned(plan) => Some(Arc::new(simulated(plan, trace)?)),
            _ => None,
        };
        Self::new(carrier, trace, machine, schedule.as_ref())
    }

    /// A run whose global storages are all made, out of memory where they do not fit.
    pub(super) fn new(
        carrier: Carrier,
        trace: &'a Trace,
        machine: &Machine,
        schedule: Option<&Arc<Schedule>>,
    ) -> Result<Self, SimulateError> {
        let (budget, staging) = (machine.budget, machine.staging);
        let host_memory = machine.host.map_or(Bytes(0), |host| host.memory);
        let (lookahead, recheck) = (carrier.lookahead(), carrier.rechecks());
        let config = Config { lookahead, host_memory, recheck, ..Config::new(budget, staging) };
        let residency = Residency::new(config);
        let capacity = Bytes(budget.0.saturating_sub(staging.0));
        let (links, thread, handling) = match carrier {
            Carrier::Thread(runtime) => (SimulatedLinks::new(machine), None, runtime.handling),
            Carrier::Gpu(runtime) => {
                let thread = ProgramThread::new(runtime, capacity.0);
                (SimulatedLinks::of_gpu(machine, &runtime), Some(thread), Nanos(0))
            }
        };
        let figures = [capacity.0, handling.0];
        let mut run = Self {
            world: World::new(trace, residency, links, thread, figures),
            named: vec![Instances::default(); trace.storages.len()],
            ends_late: ends_late(trace),
        };
        if let Some(schedule) = schedule {
            run.world.residency.load_schedule(Arc::clone(schedule));
        }
        for (index, storage) in trace.storages.iter().enumerate() {
            if matches!(storage.identity, Identity::Name(_)) {
                let storage = PlanStorage(index as u32);
                let id = run.make_between_steps(storage)?;
                if schedule.is_some() {
                    run.world.residency.bind(storage, id);
                }
            }
        }
        Ok(run)
    }

    /// The clock.
    pub(super) fn now(&self) -> Nanos {
        Nanos(self.world.now)
    }

    /// Returns the statistics of the residency machine so far.
    pub(super) fn stats(&self) -> super::Stats {
        self.world.residency.stats()
    }

    /// Keeps what happens in the last iteration from now on.
    pub(super) fn record(&mut self) {
        self.world.recording = true;
    }

    /// Runs an iteration, and returns how long it took.
    pub(super) fn timed_iteration(&mut self) -> Result<Nanos, SimulateError> {
        let began = self.now();
        self.iteration()?;
        Ok(Nanos(self.now().0 - began.0))
    }

    pub(super) fn iteration(&mut self) -> Result<(), SimulateError> {
        self.world.begin_iteration();
        for (index, storage) in self.world.trace.storages.iter().enumerate() {
            if storage.identity == Identity::Arrival {
                self.make_between_steps(PlanStorage(index as u32))?;
            }
        }
        self.world.residency.step_begin();
        for index in 0..self.world.trace.ops.len() {
            self.op(index)?;
        }
        self.world.end_gpu_step();
        self.world.residency.step_end();
        self.world.perform();
        for index in 0..self.named.len() {
            let storage = PlanStorage(index as u32);
            if matches!(self.world.trace.storage(storage).identity, Identity::Name(_)) {
                continue;
            }
            let Some(current) = self.named[index].current.take() else { continue };
            if self.ends_late[index] {
                self.named[index].previous = Some(current);
            } else {
                // Never seen to die: it is let go where the lifetimes end it.
                self.world.unmake(current);
            }
        }
        self.world.perform();
        Ok(())
    }

    fn op(&mut self, index: usize) -> Result<(), SimulateError> {
        let trace = self.world.trace;
        let op = &trace.ops[index];
        let op_index = OpIndex(index as u32);
        self.world.dispatch();
        let uses = self.uses(op);
        self.world.residency.expect(op_index, op.fingerprint);
        let waited_for = self.first_absent(&uses);
        let begin = OpBegin { index: Some(op_index), uses: &uses, needs: born_bytes(trace, op) };
        let progress = self.world.residency.op_begin(&begin);
        let mut waited = self.until_ready(progress, || format!("op {index} ({})", op.name))?;
        let births = op.births.iter();
        let made: Vec<StorageId> =
            births.map(|birth| self.make(birth.storage, Some((op_index, birth.slot)))).collect();
        let progress = self.world.residency.settle();
        waited +=
            self.until_ready(progress, || format!("the outputs of op {index} ({})", op.name))?;
        if self.world.recording {
            let now = self.world.since_origin(self.world.now);
            self.world.result.begins.push(now);
            if waited > 0 {
                let (begin, length) = (Nanos(now.0.saturating_sub(waited)), Nanos(waited));
                self.world.result.stalls.push(OpStall { op: op_index, begin, length, waited_for });
            }
        }
        // What it makes may leave before it is launched, as far as the machine knows.
        let made = made.into_iter().map(|storage| OpUse { storage, modifies: false });
        let touched = uses.iter().copied().chain(made);
        self.world.run(op_index, op, touched);
        self.world.residency.op_end();
        for death in &op.deaths {
            let instances = &mut self.named[death.storage.0 as usize];
            let named =
                if death.previous { &mut instances.previous } else { &mut instances.current };
            if let Some(id) = named.take() {
                self.world.unmake(id);
            }
        }
        self.world.complete();
        self.world.perform();
        Ok(())
    }

    fn uses(&self, op: &crate::trace::Op) -> Vec<OpUse> {
        let named = op.uses.iter().filter_map(|used| {
            let instances = self.named[used.storage.0 as usize];
            // The first iteration has no instances of an iteration before.
            let id = if used.previous { instances.previous } else { instances.current };
            Some(OpUse { storage: id?, modifies: used.access.modifies() })
        });
        named.collect()
    }

    fn first_absent(&self, uses: &[OpUse]) -> Option<PlanStorage> {
        let mut instances = uses.iter().map(|used| self.world.instance(used.storage));
        instances.find(|i| !i.holds_memory || i.moving).map(|instance| instance.storage)
    }

    /// Performs actions and lets time pass until what was asked for can go on. Returns how much of
    /// it was waiting.
    fn until_ready(
        &mut self,
        mut progress: OpProgress,
        what: impl Fn() -> String,
    ) -> Result<u64, SimulateError> {
        let mut waited = 0;
        loop {
            let has_told = self.world.perform();
            self.world.handle();
            match progress {
                OpProgress::Ready => return Ok(waited),
                OpProgress::Waiting if has_told => {
                    progress = self.world.residency.resume();
                    continue;
                }
                OpProgress::Waiting => {}
                OpProgress::Refused(refusal) => {
                    let told = refusal.told(|id| self.world.name_of(id));
                    return Err(SimulateError::Refused { what: what(), refusal, told });
                }
                OpProgress::Failed(failure) => {
                    return Err(SimulateError::Failed { what: what(), failure });
                }
            }
            let Some(more) = self.world.wait() else {
                return Err(SimulateError::Stuck { what: what() });
            };
            waited += more;
            progress = self.world.residency.resume();
        }
    }

    /// Makes a storage outside any op, when there is room for it.
    fn make_between_steps(&mut self, storage: PlanStorage) -> Result<StorageId, SimulateError> {
        let needs = self.world.trace.storage(storage).size;
        let progress = self.world.residency.op_begin(&OpBegin { index: None, uses: &[], needs });
        self.until_ready(progress, || self.world.trace.storage(storage).identity.to_string())?;
        let id = self.make(storage, None);
        self.world.residency.op_end();
        self.world.perform();
        Ok(id)
    }

    fn make(&mut self, storage: PlanStorage, birth: Option<(OpIndex, u16)>) -> StorageId {
        let id = self.world.make(storage, birth);
        self.named[storage.0 as usize].current = Some(id);
        id
    }

    pub(super) fn into_simulation(self, policy: &str) -> Simulation {
        self.world.into_simulation(policy)
    }
}

fn ends_late(trace: &Trace) -> Vec<bool> {
    let mut late = vec![false; trace.storages.len()];
    for death in trace.ops.iter().flat_map(|op| &op.deaths).filter(|death| death.previous) {
        late[death.storage.0 as usize] = true;
    }
    late
}
