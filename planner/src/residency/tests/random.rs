//! Seeded random programs against the [`World`]. A failure prints its seed; `TIDELOG_SEED` replays
//! one, `TIDELOG_SEEDS` says how many to run.

use super::chance::Random;
use super::planned::Parts;
use super::world::{EndedMove, FaultInjection, World};
use super::*;
use crate::trace::PlanStorage;
use crate::units::OpIndex;
use std::sync::Arc;

const SEEDS: u64 = 4_000;

/// Names the seed if the test fails while it runs.
struct Named(u64);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed with seed {0}: replay with TIDELOG_SEED={0}", self.0);
        }
    }
}

fn for_seeds(run: impl Fn(u64)) {
    let number = |name: &str| {
        let text = std::env::var(name).ok()?;
        Some(text.parse::<u64>().unwrap_or_else(|_| panic!("{name} is not a number: {text}")))
    };
    let all = 0..number("TIDELOG_SEEDS").unwrap_or(SEEDS);
    let seeds = number("TIDELOG_SEED").map_or(all, |seed| seed..seed + 1);
    for seed in seeds {
        let _named = Named(seed);
        run(seed);
    }
}

fn world(seed: u64) -> World {
    let mut random = Random::new(seed);
    // A third of the runs without any trouble, a third with all of it.
    let level = random.below(3);
    let mut up_to = |most: u64| if level == 0 { 0 } else { random.below(most * level) };
    let trouble = FaultInjection {
        failing: up_to(10),
        giving_up: up_to(8),
        disturbing: up_to(20),
        silent: up_to(6),
    };
    // Half of the runs without host memory, the others with too little of it.
    let host_memory = Bytes(random.below(2) * random.below(50));
    let config = machine(20 + random.below(40)).config;
    let recheck = random.percent(50);
    let mut machine = Residency::new(Config { host_memory, recheck, ..config });
    machine.set_headroom(Bytes(random.below(3) * 6));
    machine.set_lookahead(random.below(3) as u32 * 3);
    World::new(machine, random, trouble)
}

fn random_uses(world: &mut World, most: u64) -> Vec<OpUse> {
    let mut uses = Vec::new();
    for _ in 0..world.random.below(most + 1) {
        let storage = if world.random.percent(2) { Some(9_999) } else { world.any() };
        let modifies = world.random.percent(35);
        uses.extend(storage.map(|storage| OpUse { storage: id(storage), modifies }));
    }
    uses
}

/// An op at the end of which births fill what it asked for, or more.
fn random_op(world: &mut World) {
    let uses = random_uses(world, 4);
    let needs = if world.random.percent(50) { world.random.below(16) } else { 0 };
    let ended = world.op(&OpBegin { index: None, uses: &uses, needs: Bytes(needs) });
    if ended == EndedMove::Ran {
        if needs > 0 {
            let part = world.random.below(needs);
            world.born(part, Attributes::default());
            world.complete_one();
            world.born(needs - part, Attributes::default());
            world.perform();
            world.check_budget(0);
        } else if world.random.percent(40) {
            let size = world.random.below(12);
            let movable = world.random.percent(92);
            world.born(size, Attributes { movable, birth: None });
        }
        if world.random.percent(30)
            && let Some(storage) = world.any()
        {
            world.died(storage);
        }
    }
    if ended == EndedMove::Ran && world.random.percent(15) {
        world.op_goes_on();
    }
    // An exception ends an op without a word.
    if world.random.percent(90) {
        world.op_end();
    }
}

#[test]
fn random_programs_never_lose_a_byte_nor_exceed_the_budget() {
    for_seeds(|seed| {
        let mut world = world(seed);
        for _ in 0..60 {
            match world.random.below(20) {
                0..=9 => random_op(&mut world),
                10..=12 => drop(world.settle()),
                13 => {
                    if let Some(storage) = world.any() {
                        world.evict(storage);
                    }
                }
                14 => world.disturb(),
                15 => {
                    if let Some(storage) = world.any() {
                        world.died(storage);
                    }
                }
                16 => world.retry(true),
                17 => {
                    let size = world.random.below(14);
                    world.born(size, Attributes::default());
                }
                _ => {
                    world.complete_one();
                    let used = world.async_used();
                    if let Some(storage) = world.random.pick(&used) {
                        world.async_use_ends(storage);
                    }
                }
            }
            if world.random.percent(60) {
                world.perform();
            }
        }
        world.finish();
    });
}

/// One iteration of a program that repeats, in the schedule's numbers.
struct Iteration {
    /// Sizes; the first `globals` live for ever, the others are born in the iteration.
    sizes: Vec<u64>,
    globals: usize,
    ops: Vec<IterationOp>,
}

#[derive(Default)]
struct IterationOp {
    uses: Vec<(usize, bool)>,
    births: Vec<usize>,
    deaths: Vec<usize>,
}

fn iteration(random: &mut Random) -> Iteration {
    let globals = 1 + random.below(6) as usize;
    let mut sizes: Vec<u64> = (0..globals).map(|_| 1 + random.below(9)).collect();
    let mut live: Vec<usize> = (0..globals).collect();
    let mut ops = Vec::new();
    for _ in 0..4 + random.below(20) {
        let mut op = IterationOp::default();
        for _ in 0..random.below(4) {
            let storage = live[random.below(live.len() as u64) as usize];
            op.uses.push((storage, random.percent(30)));
        }
        for _ in 0..random.below(3) {
            op.births.push(sizes.len());
            live.push(sizes.len());
            sizes.push(1 + random.below(9));
        }
        if live.len() > globals && random.percent(50) {
            let at = globals + random.below((live.len() - globals) as u64) as usize;
            op.deaths.push(live.remove(at));
        }
        ops.push(op);
    }
    // What is still there dies with the last op.
    ops.last_mut().expect("at least four").deaths.extend(live.drain(globals..));
    Iteration { sizes, globals, ops }
}

impl Iteration {
    fn needs(&self, op: usize) -> u64 {
        self.ops[op].births.iter().map(|&storage| self.sizes[storage]).sum()
    }

    fn uses_of(&self, storage: usize) -> ScheduledUses {
        let uses = |op: &IterationOp| op.uses.iter().any(|&(used, _)| used == storage);
        let ops = (0..self.ops.len()).filter(|&op| uses(&self.ops[op]));
        let ops = ops.map(|op| OpIndex(op as u32)).collect();
        ScheduledUses { ops, cyclic: storage < self.globals }
    }

    /// Makes the schedule that a planner would: `lies` percent of it wrong.
    fn schedule(&self, random: &mut Random, lies: u64) -> Arc<Schedule> {
        let mut parts = Parts::default();
        let count = self.ops.len() as u64;
        for op in 0..self.ops.len() {
            let wrong = random.percent(lies);
            parts.step.fingerprints.push(op as u64);
            parts.step.needs.push(Bytes(if wrong { random.below(80) } else { self.needs(op) }));
            for (slot, &storage) in self.ops[op].births.iter().enumerate() {
                let op = OpIndex(op as u32);
                let storage = PlanStorage(storage as u32);
                parts.step.births.push(ScheduledBirth { op, slot: slot as u16, storage });
            }
        }
        for storage in 0..self.sizes.len() {
            let mut uses = self.uses_of(storage);
            let plan = PlanStorage(storage as u32);
            for (at, &used) in uses.ops.iter().enumerate() {
                let next = uses.ops.get(at + 1).or(uses.ops.first()).copied().unwrap_or(used);
                let wrong = random.percent(lies);
                let mut time = |right: u32| if wrong { random.below(count) as u32 } else { right };
                let out = OpIndex(time((used.0 + 1) % count as u32));
                let back = OpIndex(time((next.0 + count as u32 - 1) % count as u32));
                let target = if random.percent(50) { Target::Host } else { Target::Ssd };
                let storage = plan;
                let (start, deadline, awaited) = (out, back, random.percent(20));
                let (direction, stays) = (MigrationDirection::Out, random.percent(25));
                let row = Migration { start, deadline, direction, target, storage, awaited, stays };
                parts.moves.push(row);
                let direction = MigrationDirection::In;
                let (start, deadline, stays) = (back, next, false);
                parts.moves.push(Migration { start, deadline, direction, stays, ..row });
            }
            if random.percent(lies) {
                uses.ops.retain(|_| random.percent(60));
            }
            parts.step.uses.push(uses);
            if storage < self.globals {
                parts.step.names.push((format!("global {storage}"), plan));
            }
        }
        parts.schedule().expect("a schedule may lie, but it is well formed")
    }
}

/// One step of the iteration; what is born and dies in it, it takes with it whatever happens.
fn step(world: &mut World, iteration: &Iteration, live: &mut [Option<u32>], astray: u64) {
    world.retry(true);
    for (index, op) in iteration.ops.iter().enumerate() {
        if world.random.percent(astray) {
            // An op that is not in the schedule, under its index or none at all.
            random_op(world);
            let fingerprint = 1_000 + world.random.below(9);
            let _ = world.random.percent(50)
                && world.machine.expect(OpIndex(index as u32), fingerprint);
        }
        if world.random.percent(astray / 4) {
            break;
        }
        let uses: Vec<OpUse> = op
            .uses
            .iter()
            .filter_map(|&(storage, modifies)| {
                let storage = id(live[storage]?);
                world.machine.state(storage).map(|_| OpUse { storage, modifies })
            })
            .collect();
        let told = world.random.percent(70);
        let needs = if told { iteration.needs(index) } else { 0 };
        let at = OpIndex(index as u32);
        world.machine.expect(at, index as u64);
        let ended = world.op(&OpBegin { index: Some(at), uses: &uses, needs: Bytes(needs) });
        for (slot, &storage) in op.births.iter().enumerate() {
            if ended == EndedMove::Ran {
                let attributes = Attributes { movable: true, birth: Some((at, slot as u16)) };
                live[storage] = Some(world.born(iteration.sizes[storage], attributes));
            }
        }
        world.perform();
        if told && ended == EndedMove::Ran {
            world.check_budget(0);
        }
        if ended == EndedMove::Ran && world.random.percent(astray) {
            world.op_goes_on();
        }
        for &storage in &op.deaths {
            record_death(world, &mut live[storage]);
        }
        if world.random.percent(95) {
            world.op_end();
        }
        world.settle();
        if world.random.percent(50) {
            world.complete_one();
        }
    }
    world.machine.step_end();
    for storage in &mut live[iteration.globals..] {
        record_death(world, storage);
    }
}

fn record_death(world: &mut World, storage: &mut Option<u32>) {
    if let Some(storage) = storage.take()
        && world.machine.state(id(storage)).is_some()
    {
        world.died(storage);
    }
}

#[test]
fn schedules_right_and_wrong_never_lose_a_byte_nor_exceed_the_budget() {
    for_seeds(|seed| {
        let mut world = world(seed);
        let iteration = iteration(&mut world.random);
        let mut live: Vec<Option<u32>> = vec![None; iteration.sizes.len()];
        let lies = world.random.below(3) * world.random.below(60);
        let astray = world.random.below(2) * world.random.below(12);
        for (storage, &size) in live.iter_mut().zip(&iteration.sizes).take(iteration.globals) {
            *storage = Some(world.born(size, Attributes::default()));
        }
        for round in 0..4 {
            if round == 1 || world.random.percent(10) {
                let schedule = iteration.schedule(&mut world.random, lies);
                world.machine.load_schedule(Arc::clone(&schedule));
                for (name, plan) in schedule.step().names() {
                    assert_eq!(schedule.step().named(name), Some(*plan));
                    let storage = live[plan.0 as usize].expect("a global");
                    let alive = world.machine.state(id(storage)).is_some();
                    assert_eq!(world.machine.bind(*plan, id(storage)), alive);
                }
            }
            if world.random.percent(3) {
                world.machine.clear_schedule("the test said so");
            }
            step(&mut world, &iteration, &mut live, astray);
        }
        world.finish();
    });
}
