//! Made-up steps that policies are measured on: small random ones with every plan that there is,
//! where the best can be known, and one as long as is wanted.

mod builder;
mod checkpointed;
mod freer;
mod layered;

use crate::cost::{Machine, SsdLink};
use crate::lifetime::{Lifetimes, PeriodEnd};
use crate::migration::{Migration, Target};
use crate::plan::{Expectation, Plan};
use crate::trace::{
    Access, Birth, Death, Identity, Op, PlanStorage, Storage, StorageKind, Trace, Use,
};
use crate::units::{Bandwidth, Bytes, Nanos, OpIndex};
pub(crate) use builder::Builder;
pub use checkpointed::{BlockOp, CheckpointedStep};
pub use freer::{freer, magnified, split};
pub use layered::LayeredStep;
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

/// Makes `count` small steps, each with a machine whose memory is short: what a seed gives never
/// changes. Half of them are so small that every plan can be tried, most of the time.
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

/// Limit of plans: where there are more, they are not tried; the case is passed over.
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
