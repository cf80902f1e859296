//! Simulates a training step of a small transformer under a third of the memory it takes, once
//! without a plan and once with one, and writes both reports: `report DIRECTORY`.

use std::path::PathBuf;
use tidelog_planner::algorithm1::{Algorithm1Options, algorithm1};
use tidelog_planner::cost::{Machine, SsdLink};
use tidelog_planner::lifetime::Lifetimes;
use tidelog_planner::report::simulated;
use tidelog_planner::simulate::{Policy, simulate, with_expectations};
use tidelog_planner::trace::{
    Access, Birth, Death, Identity, Op, PlanStorage, Storage, StorageKind, Trace, Use,
};
use tidelog_planner::units::{Bandwidth, Bytes, Nanos, OpIndex};

const LAYERS: usize = 24;
const MIB: u64 = 1 << 20;

struct Writer(Trace);

impl Writer {
    fn global(&mut self, name: String, size: u64, kind: StorageKind) -> PlanStorage {
        self.storage(Identity::Name(name), size, kind)
    }

    fn storage(&mut self, identity: Identity, size: u64, kind: StorageKind) -> PlanStorage {
        let (size, part, movable) = (Bytes(size), None, true);
        self.0.storages.push(Storage { identity, size, part, kind, movable });
        PlanStorage(self.0.storages.len() as u32 - 1)
    }

    fn op(&mut self, name: &str, microseconds: u64, uses: &[(PlanStorage, Access)]) -> usize {
        let uses = uses.iter().map(|(storage, access)| Use {
            storage: *storage,
            access: *access,
            previous: false,
        });
        self.0.ops.push(Op {
            name: name.to_owned(),
            duration: Nanos(microseconds * 1000),
            fingerprint: self.0.ops.len() as u64,
            uses: uses.collect(),
            births: Vec::new(),
            deaths: Vec::new(),
        });
        self.0.ops.len() - 1
    }

    fn makes(&mut self, op: usize, size: u64, kind: StorageKind) -> PlanStorage {
        let slot = self.0.ops[op].births.len() as u16;
        let identity = Identity::Output { op: OpIndex(op as u32), slot };
        let storage = self.storage(identity, size, kind);
        self.0.ops[op].births.push(Birth { storage, slot });
        storage
    }

    fn last_use(&mut self, op: usize, storage: PlanStorage, previous: bool) {
        self.0.ops[op].deaths.push(Death { storage, previous });
    }
}

/// Attention and a feed-forward block per layer, then the optimizer over each layer's weights.
fn transformer() -> Trace {
    let mut w = Writer(Trace { name: format!("transformer, {LAYERS} layers"), ..Trace::default() });
    let parts = [("attention", 64 * MIB, 7_400), ("mlp", 128 * MIB, 13_100)];
    let mut weights = Vec::new();
    for layer in 0..LAYERS {
        for (part, size, _) in parts {
            let name = format!("layers.{layer}.{part}.weight");
            let moments = ["exp_avg", "exp_avg_sq"].map(|moment| {
                w.global(format!("{moment} of {name}"), size, StorageKind::OptimizerState)
            });
            weights.push((w.global(name, size, StorageKind::Parameter), moments));
        }
    }
    let mut saved: Vec<PlanStorage> = Vec::new();
    for (index, (weight, _)) in weights.iter().enumerate() {
        let (part, _, time) = parts[index % 2];
        let mut uses = vec![(*weight, Access::Read)];
        uses.extend(saved.last().map(|input| (*input, Access::Read)));
        let op = w.op(part, time, &uses);
        saved.push(w.makes(op, 96 * MIB, StorageKind::Activation));
    }
    let mut gradients = Vec::new();
    for (index, (weight, _)) in weights.iter().enumerate().rev() {
        let (part, size, time) = parts[index % 2];
        let input = saved.pop().expect("one per op");
        let uses = [(*weight, Access::Read), (input, Access::Read)];
        let op = w.op(&format!("{part} backward"), 2 * time, &uses);
        gradients.push(w.makes(op, size, StorageKind::Gradient));
        w.last_use(op, input, false);
    }
    gradients.reverse();
    for ((weight, [first, second]), gradient) in weights.iter().zip(&gradients) {
        let uses = [
            (*weight, Access::Update),
            (*first, Access::Update),
            (*second, Access::Update),
            (*gradient, Access::Read),
        ];
        w.op("adamw", 2_200, &uses);
        w.last_use(0, *gradient, true);
    }
    w.0
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = PathBuf::from(std::env::args().nth(1).ok_or("usage: report DIRECTORY")?);
    let trace = transformer();
    trace.validate()?;
    let staging = Bytes(64 * MIB);
    let machine = Machine {
        budget: Bytes(Lifetimes::of(&trace).peak().0 / 3),
        staging,
        ssd: SsdLink {
            read: Bandwidth(26_000_000_000),
            write: Bandwidth(24_000_000_000),
            latency: Nanos(80_000),
        },
        host: None,
        verify: Bandwidth(40_000_000_000),
    };
    let lru = simulate(&trace, &machine, Policy::Lru)?;
    let plan = algorithm1(&trace, &machine, Algorithm1Options::default());
    let (plan, planned) = with_expectations(plan, &trace, &machine)?;
    std::fs::write(directory.join("trace.json"), trace.to_json())?;
    std::fs::write(directory.join("plan.json"), plan.named(&trace).to_json())?;
    for simulation in [&lru, &planned] {
        let page = simulated(&trace, &machine, simulation).to_html();
        let path = directory.join(format!("{}.html", simulation.policy));
        std::fs::write(&path, page)?;
        let times = (simulation.time.0, trace.duration().0);
        println!("{}: {} ns of {} ns ideal", path.display(), times.0, times.1);
    }
    Ok(())
}
