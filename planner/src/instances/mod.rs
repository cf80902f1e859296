//! Made-up steps that policies are measured on: small random ones with every plan that there is,
//! where the best can be known, and one as long as is wanted.

mod checkpointed;

use crate::cost::{HostLink, Machine, SsdLink};
use crate::lifetime::{Lifetimes, PeriodEnd};
use crate::migration::{Migration, Target};
use crate::plan::{Expectation, Plan};
use crate::trace::{
    Access, Birth, Death, Identity, Op, PlanStorage, Storage, StorageKind, Trace, Use,
};
use crate::units::{Bandwidth, Bytes, Nanos, OpIndex};
pub use checkpointed::{BlockOp, CheckpointedStep};
use tidelog_random::Random;

/// A random valid trace of up to `ops_max` ops and a handful of storages, for exhaustive tests.
pub fn random_trace(random: &mut Random, ops_max: u64, storages_max: u64) -> Trace {
    let mut b = Builder::default();
    let ops = 3 + random.below(ops_max - 2);
    for _ in 0..ops {
        b.op(1 + random.below(30));
    }
    let access = |random: &mut Random| match random.below(4) {
        0 => Access::Update,
        1 => Access::Write,
        _ => Access::Read,
    };
    for number in 0..=random.below(storages_max) {
        let size = 1 + random.below(40);
        if random.chance(2) {
            let storage = b.global(&format!("global{number}"), size);
            for op in 0..ops as usize {
                if random.chance(3) {
                    let access = access(random);
                    b.uses(op, storage, access);
                }
            }
            continue;
        }
        let birth = random.below(ops) as usize;
        let storage = b.birth(birth, size);
        let last = birth + random.below(ops - birth as u64) as usize;
        for op in birth + 1..=last {
            if random.chance(3) {
                let access = access(random);
                b.uses(op, storage, access);
            }
        }
        if random.chance(3) && birth > 0 {
            let death = random.below(birth as u64) as usize;
            b.death(death, storage, true);
        } else {
            b.death(last, storage, false);
        }
    }
    b.finish()
}

/// So many small steps, each with a machine whose memory is short: what a seed gives never changes.
/// Half of them are so small that every plan can be tried, most of the time.
pub fn small_steps(seed: u64, count: u32) -> impl Iterator<Item = (u32, Trace, Machine)> {
    let mut random = Random::new(seed);
    (0..count).map(move |number| {
        let (ops, storages) = if number % 2 == 0 { (8, 5) } else { (12, 8) };
        let trace = random_trace(&mut random, ops, storages);
        let machine = random_machine(&mut random, &trace);
        (number, trace, machine)
    })
}

/// A machine on which the trace runs, with less memory than it would take: from the least that does
/// upwards.
pub fn random_machine(random: &mut Random, trace: &Trace) -> Machine {
    let lifetimes = Lifetimes::of(trace);
    let largest = trace.storages.iter().map(|storage| storage.size.0).max().unwrap_or(0);
    let least = lifetimes.largest_op().1.0.max(largest);
    let budget = least + random.below(lifetimes.peak().0 - least + 1);
    let mut rate = || Bandwidth(250_000_000 << random.below(5));
    let ssd = SsdLink { read: rate(), write: rate(), latency: Nanos(0) };
    let verify = Bandwidth(1_000_000_000_000);
    Machine { budget: Bytes(budget), staging: Bytes(0), ssd, host: None, verify }
}

/// Forward and backward over `half` ops each: every forward op saves an activation that its mirror
/// image reads, and reads a weight that the mirror image updates.
pub fn deep_network(half: usize) -> Trace {
    let mut trace = Trace { name: "deep".to_owned(), ..Trace::default() };
    let storage =
        |identity, size, kind| Storage { identity, size, part: None, kind, movable: true };
    for op in 0..half {
        let weight = Identity::Name(format!("weight{op}"));
        trace.storages.push(storage(weight, Bytes(1_000_000 + op as u64), StorageKind::Parameter));
        let saved = Identity::Output { op: OpIndex(op as u32), slot: 0 };
        trace.storages.push(storage(saved, Bytes(2_000_000 + op as u64), StorageKind::Activation));
    }
    for index in 0..2 * half {
        let layer = index.min(2 * half - 1 - index) as u32;
        let (weight, saved) = (PlanStorage(2 * layer), PlanStorage(2 * layer + 1));
        let (forward, access) = (index < half, [Access::Update, Access::Read]);
        let read = Use { storage: saved, access: Access::Read, previous: false };
        let weight = Use { storage: weight, access: access[usize::from(forward)], previous: false };
        let mut op = Op {
            name: format!("op{index}"),
            duration: Nanos(100_000 + index as u64 % 7),
            fingerprint: index as u64,
            uses: vec![weight],
            births: Vec::new(),
            deaths: Vec::new(),
        };
        if forward {
            op.births.push(Birth { storage: saved, slot: 0 });
        } else {
            op.uses.push(read);
            op.deaths.push(Death { storage: saved, previous: false });
        }
        trace.ops.push(op);
    }
    trace
}

/// A training step over a chain of layers, with gradients summed over micro-batches and Adam.
#[derive(Clone, Copy, Debug)]
pub struct LayeredStep {
    /// How many layers, of two parameters each; a head comes after them.
    pub layers: usize,
    /// How many micro-batches.
    pub micro_batches: usize,
    /// What a parameter takes.
    pub weight: u64,
    /// What a layer saves for its backward pass.
    pub saved: u64,
    /// How long an op runs.
    pub op_time: u64,
    /// One op updates all parameters, instead of one each.
    pub fused: bool,
    /// Gradients are scaled by their norm over all parameters first.
    pub clipped: bool,
    /// Gradients are kept until the next step begins.
    pub kept: bool,
}

impl LayeredStep {
    /// One op per layer and pass, one update for each parameter.
    pub const fn of(layers: usize, micro_batches: usize) -> Self {
        let (weight, saved, op_time) = (100_000, 30_000, 20_000);
        let (fused, clipped, kept) = (false, false, false);
        Self { layers, micro_batches, weight, saved, op_time, fused, clipped, kept }
    }

    /// The trace of the step.
    pub fn trace(self) -> Trace {
        let mut b = Builder::default();
        let mut names: Vec<String> = (0..self.layers)
            .flat_map(|n| [format!("layers.{n}.up"), format!("layers.{n}.down")])
            .collect();
        names.push("head.weight".to_owned());
        let weights: Vec<_> = names.iter().map(|name| b.global(name, self.weight)).collect();
        let state = |b: &mut Builder, ending: &str| -> Vec<PlanStorage> {
            let made = names.iter().map(|name| b.global(&format!("{name}.{ending}"), self.weight));
            made.collect()
        };
        let states = [state(&mut b, "exp_avg"), state(&mut b, "exp_avg_sq")];
        for one in states.iter().flatten() {
            b.trace.storages[one.0 as usize].kind = StorageKind::OptimizerState;
        }
        let mut gradients = vec![None; weights.len()];
        for _ in 0..self.micro_batches {
            self.pass(&mut b, &weights, &mut gradients);
        }
        let gradients: Vec<PlanStorage> = gradients.into_iter().flatten().collect();
        if self.clipped {
            self.clip(&mut b, &gradients);
        }
        self.update(&mut b, &[&weights, &gradients, &states[0], &states[1]]);
        for gradient in gradients {
            let last = b.trace.ops.len() - 1;
            b.death(if self.kept { 0 } else { last }, gradient, self.kept);
        }
        b.finish()
    }

    /// A micro-batch forward and backward.
    fn pass(self, b: &mut Builder, weights: &[PlanStorage], sums: &mut [Option<PlanStorage>]) {
        let load = b.op(self.op_time / 10);
        let mut saved = vec![b.birth(load, self.saved)];
        for weight in weights {
            let op = b.op(self.op_time);
            b.uses(op, *weight, Access::Read);
            b.uses(op, saved[saved.len() - 1], Access::Read);
            saved.push(b.birth(op, self.saved));
        }
        let mut from_above = saved.pop().expect("the head makes one");
        for (index, weight) in weights.iter().enumerate().rev() {
            let op = b.op(2 * self.op_time);
            let input = saved.pop().expect("one for each");
            for storage in [*weight, input, from_above] {
                b.uses(op, storage, Access::Read);
            }
            let gradient = b.birth(op, self.weight);
            b.trace.storages[gradient.0 as usize].kind = StorageKind::Gradient;
            let passed_on = b.birth(op, self.saved);
            b.death(op, input, false);
            b.death(op, from_above, false);
            from_above = passed_on;
            match sums[index] {
                None => sums[index] = Some(gradient),
                Some(sum) => {
                    let add = b.op(self.op_time / 10);
                    b.uses(add, sum, Access::Update);
                    b.uses(add, gradient, Access::Read);
                    b.death(add, gradient, false);
                }
            }
        }
        let last = b.trace.ops.len() - 1;
        b.death(last, from_above, false);
    }

    fn clip(self, b: &mut Builder, gradients: &[PlanStorage]) {
        let norm = b.op(self.op_time / 10);
        for gradient in gradients {
            b.uses(norm, *gradient, Access::Read);
        }
        let factor = b.birth(norm, 4);
        for gradient in gradients {
            let scale = b.op(self.op_time / 10);
            b.uses(scale, *gradient, Access::Update);
            b.uses(scale, factor, Access::Read);
        }
        let last = b.trace.ops.len() - 1;
        b.death(last, factor, false);
    }

    fn update(self, b: &mut Builder, lists: &[&[PlanStorage]]) {
        let access = |list: usize| if list == 1 { Access::Read } else { Access::Update };
        let count = lists[0].len();
        let each = if self.fused { count } else { 1 };
        for first in (0..count).step_by(each) {
            let op = b.op(self.op_time / 10 * each as u64);
            "aten._fused_adam_.default".clone_into(&mut b.trace.ops[op].name);
            for (list, storages) in lists.iter().enumerate() {
                for storage in &storages[first..first + each] {
                    b.uses(op, *storage, access(list));
                }
            }
        }
    }
}

/// The same step with every storage in pieces of at most `size`, each of which moves alone.
pub fn split(trace: &Trace, size: Bytes) -> Trace {
    let mut split = Trace { storages: Vec::new(), ..trace.clone() };
    let mut slots = vec![0u16; trace.ops.len()];
    let mut pieces: Vec<Vec<PlanStorage>> = Vec::new();
    for storage in &trace.storages {
        let count = storage.size.0.div_ceil(size.0.max(1)).max(1);
        let mut of = Vec::new();
        for piece in 0..count {
            let identity = match &storage.identity {
                Identity::Name(name) => Identity::Name(format!("{name}[{piece}]")),
                Identity::Output { op, .. } => {
                    let slot = &mut slots[op.0 as usize];
                    *slot += 1;
                    Identity::Output { op: *op, slot: *slot - 1 }
                }
                Identity::Arrival => Identity::Arrival,
            };
            let size = Bytes((storage.size.0 - piece * size.0).min(size.0));
            of.push(PlanStorage(split.storages.len() as u32));
            split.storages.push(Storage { identity, size, ..storage.clone() });
        }
        pieces.push(of);
    }
    let of = |storage: PlanStorage| pieces[storage.0 as usize].iter().copied();
    for (op, whole) in split.ops.iter_mut().zip(&trace.ops) {
        let uses = whole.uses.iter();
        op.uses =
            uses.flat_map(|one| of(one.storage).map(|storage| Use { storage, ..*one })).collect();
        let births = whole.births.iter().flat_map(|one| of(one.storage));
        let born = |storage: PlanStorage| match split.storages[storage.0 as usize].identity {
            Identity::Output { slot, .. } => Birth { storage, slot },
            _ => Birth { storage, slot: 0 },
        };
        op.births = births.map(born).collect();
        let deaths = whole.deaths.iter();
        op.deaths = deaths
            .flat_map(|one| of(one.storage).map(|storage| Death { storage, ..*one }))
            .collect();
    }
    split
}

/// The same step on the same links with all bytes and all times `times` as large. Small steps
/// become so large that their storages have parts.
pub fn magnified(trace: &Trace, machine: &Machine, times: u64) -> (Trace, Machine) {
    let (mut trace, mut machine) = (trace.clone(), *machine);
    trace.storages.iter_mut().for_each(|storage| storage.size.0 *= times);
    trace.ops.iter_mut().for_each(|op| op.duration.0 *= times);
    for bytes in [&mut machine.budget, &mut machine.staging] {
        bytes.0 *= times;
    }
    machine.ssd.latency.0 *= times;
    if let Some(host) = &mut machine.host {
        host.memory.0 *= times;
        host.latency.0 *= times;
    }
    (trace, machine)
}

/// The same step, or machine, with more freedom: whatever could be done before still can. Each with
/// what is freer. Pieces are of at most `size`.
pub fn freer(trace: &Trace, machine: &Machine, size: Bytes) -> Vec<(&'static str, Trace, Machine)> {
    let more = |amount: u64, percent: u64| amount + (amount / 100).max(1) * percent;
    let mut memory = *machine;
    memory.budget.0 = more(memory.budget.0, 5);
    let mut bandwidth = *machine;
    bandwidth.ssd.read.0 = more(bandwidth.ssd.read.0, 10);
    bandwidth.ssd.write.0 = more(bandwidth.ssd.write.0, 10);
    let mut link = *machine;
    let (read, write, latency) = (link.ssd.read, link.ssd.write, link.ssd.latency);
    // As much room as a tenth of memory: where there is a link already, more of it.
    let room = Bytes(machine.budget.0 / 10);
    let host = link.host.get_or_insert(HostLink { read, write, latency, memory: Bytes(0) });
    host.memory.0 += room.0;
    vec![
        ("storages in pieces", split(trace, size), *machine),
        ("more memory", trace.clone(), memory),
        ("more bandwidth", trace.clone(), bandwidth),
        ("a second link", trace.clone(), link),
    ]
}

/// More plans than this are not tried; the case is passed over.
const PLANS_MAX: usize = 1500;

/// Every combination of what its inactive periods allow; `None` if there are too many to try.
pub fn every_plan(trace: &Trace, machine: &Machine) -> Option<Vec<Plan>> {
    let mut plans: Vec<Vec<Migration>> = vec![Vec::new()];
    let ops = trace.ops.len() as u32;
    let lifetimes = Lifetimes::of(trace);
    for period in lifetimes.periods.iter().filter(|period| period.end == PeriodEnd::Use) {
        let choices: Vec<_> = period.choices(ops, Target::Ssd).collect();
        if plans.len() * choices.len() > PLANS_MAX {
            return None;
        }
        plans = plans
            .iter()
            .flat_map(|rows| choices.iter().map(|choice| [rows.as_slice(), choice].concat()))
            .collect();
    }
    let plan = |rows| Plan::new("exhaustive", trace, machine, rows, Expectation::default());
    Some(plans.into_iter().map(plan).collect())
}

/// Writes a trace op by op.
#[derive(Default)]
pub(crate) struct Builder {
    pub(crate) trace: Trace,
}

impl Builder {
    /// A storage that is alive across the iteration.
    pub(crate) fn global(&mut self, name: &str, size: u64) -> PlanStorage {
        self.storage(Identity::Name(name.to_owned()), size, StorageKind::Parameter)
    }

    /// The next op; returns its index.
    pub(crate) fn op(&mut self, duration: u64) -> usize {
        let index = self.trace.ops.len();
        self.trace.ops.push(Op {
            name: format!("op{index}"),
            duration: Nanos(duration),
            fingerprint: index as u64 ^ 0x9e37_79b9,
            uses: Vec::new(),
            births: Vec::new(),
            deaths: Vec::new(),
        });
        index
    }

    pub(crate) fn uses(&mut self, op: usize, storage: PlanStorage, access: Access) {
        self.trace.ops[op].uses.push(Use { storage, access, previous: false });
    }

    pub(crate) fn birth(&mut self, op: usize, size: u64) -> PlanStorage {
        let slot = self.trace.ops[op].births.len() as u16;
        let identity = Identity::Output { op: OpIndex(op as u32), slot };
        let storage = self.storage(identity, size, StorageKind::Activation);
        self.trace.ops[op].births.push(Birth { storage, slot });
        storage
    }

    pub(crate) fn death(&mut self, op: usize, storage: PlanStorage, previous: bool) {
        self.trace.ops[op].deaths.push(Death { storage, previous });
    }

    fn storage(&mut self, identity: Identity, size: u64, kind: StorageKind) -> PlanStorage {
        let index = PlanStorage(self.trace.storages.len() as u32);
        let (size, part, movable) = (Bytes(size), None, true);
        self.trace.storages.push(Storage { identity, size, part, kind, movable });
        index
    }

    pub(crate) fn finish(self) -> Trace {
        self.trace.validate().expect("the test's trace is valid");
        self.trace
    }
}
