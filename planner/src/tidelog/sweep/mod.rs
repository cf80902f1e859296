//! One pass over the ops, with all that is to come in view: what leaves, what comes back, and when.
//!
//! The pass runs iterations one after the other as the machine will, on links that move one
//! transfer at a time, and notes what it begins in the last of them. Before each op it asks two
//! questions of the line of ops ahead, each answered by one range maximum:
//! - *out*: would an op ahead be over capacity unless bytes leave from now on at full bandwidth?
//! - *in*: would an op ahead miss bytes unless they come in from now on at full bandwidth?
//!
//! As long as neither is so nothing moves, except that free memory is filled by what comes next.

mod ahead;
mod line;
mod links;
mod record;

use super::Idea;
use super::assignment::TierAssignment;
use super::variant::{Guess, Variant};
use crate::cost::Machine;
use crate::lifetime::Lifetimes;
use crate::migration::{Migration, MigrationDirection, Target};
use crate::trace::{Identity, PlanStorage, Trace};
use crate::units::Bytes;
use line::SweepLine;
use links::SweepLinks;
use record::{Record, StorageInstance, SweepPlace};

/// Iterations that the pass runs; the last one is the plan.
const ITERATIONS: u32 = 3;

/// Completions that an op waits through before nothing more is begun ahead of need.
const TURNS_MAX: u32 = 1000;

/// Input of a pass.
#[derive(Clone, Copy)]
pub(super) struct SweepCase<'a> {
    pub(super) trace: &'a Trace,
    pub(super) machine: &'a Machine,
    pub(super) lifetimes: &'a Lifetimes,
    pub(super) assignment: Option<&'a TierAssignment>,
}

pub(super) struct Sweep<'a> {
    trace: &'a Trace,
    assignment: Option<&'a TierAssignment>,
    variant: Variant,
    without: Option<Idea>,
    /// Length of a link's queue, and with it how soon bytes must be needed to move.
    queue: u64,
    slack_out: i64,
    slack_in: i64,
    ops: u32,
    capacity: i64,
    record: Record<'a>,
    line: SweepLine,
    out: SweepLinks,
    back: SweepLinks,
    host_room: i64,
    held: i64,
    now: u64,
    at: u32,
    rows: Vec<Migration>,
}

impl<'a> Sweep<'a> {
    pub(super) fn new(
        case: SweepCase<'a>,
        guess: &Guess,
        variant: Variant,
        without: Option<Idea>,
    ) -> Self {
        let SweepCase { trace, machine, lifetimes, assignment } = case;
        let capacity = machine.capacity().0;
        let (out, back) = (SweepLinks::out(machine), SweepLinks::back(machine));
        let rates = match assignment {
            Some(assignment) => assignment.rates,
            None => [out.rate(), back.rate()],
        };
        let mut line = SweepLine::new(machine, &lifetimes.memory, &guess.durations, rates);
        let drops = variant.expects_drops && without != Some(Idea::ExpectedDrops);
        let record = Record::new(trace, lifetimes, capacity, &mut line, drops);
        let part = |parts| machine.ssd.write.time_for(Bytes(capacity / parts)).0;
        let host = machine.host.map_or(0, |host| signed(host.memory.0));
        let mut sweep = Self {
            trace,
            assignment,
            variant: Variant { expects_drops: drops, ..variant },
            without,
            queue: part(variant.queue_parts),
            slack_out: signed(part(variant.out_parts)),
            slack_in: signed(part(variant.in_parts)),
            ops: trace.ops.len() as u32,
            capacity: signed(capacity),
            record,
            line,
            out,
            back,
            host_room: host,
            held: 0,
            now: 0,
            at: 0,
            rows: Vec::new(),
        };
        sweep.begin_globals(lifetimes.peak().0 > capacity);
        sweep
    }

    /// The migrations of one iteration.
    pub(super) fn run(mut self) -> Vec<Migration> {
        for at in 0..ITERATIONS * self.ops {
            self.at = at;
            self.op();
        }
        self.rows
    }

    /// Globals begin outside, with a copy; those that cannot move inside. What nothing uses stays
    /// outside for good where memory is short: the row that says so is needed once.
    fn begin_globals(&mut self, is_short: bool) {
        for storage in 0..self.trace.storages.len() as u32 {
            if !self.record.is_global(storage) {
                continue;
            }
            let is_used = self.record.is_used(storage);
            let moves = self.record.movable[storage as usize] && (is_used || is_short);
            let place = if moves { SweepPlace::Out } else { SweepPlace::In };
            self.record.instances[storage as usize] =
                StorageInstance::new(place, Some(Target::Ssd), 0);
            if !moves {
                self.held += self.record.size(storage);
                continue;
            }
            let next = self.record.next_use(storage);
            self.project(storage, next, 1);
            if is_used {
                self.record.absent.insert((next, storage));
            } else {
                let (way, when) = ((MigrationDirection::Out, Target::Ssd), (0, self.ops));
                self.rows.push(Migration::unrolled(PlanStorage(storage), way, when, self.ops));
            }
        }
    }

    // ---- one op ----

    fn op(&mut self) {
        let trace = self.trace;
        let (iteration, index) = (self.at / self.ops, self.at % self.ops);
        let op = &trace.ops[index as usize];
        if index == 0 {
            self.arrivals();
        }
        let named = |storage, previous: bool, record: &Record<'_>| {
            let of = if previous { iteration.wrapping_sub(1) } else { iteration };
            record.instance_of(storage, of)
        };
        let uses: Vec<(u32, bool)> = op
            .uses
            .iter()
            .map(|used| {
                (named(used.storage.0, used.previous, &self.record), used.access.modifies())
            })
            .filter(|(instance, _)| self.place(*instance) != SweepPlace::Gone)
            .collect();
        let births: i64 = op.births.iter().map(|birth| self.record.size(birth.storage.0)).sum();
        self.complete();
        self.move_ahead(op.duration.0);
        self.wait_for(&uses, births);
        for birth in &op.births {
            let instance = self.record.instance_of(birth.storage.0, iteration);
            self.held += self.record.size(instance);
            self.record.instances[instance as usize] =
                StorageInstance::new(SweepPlace::In, None, iteration * self.ops);
        }
        self.now += op.duration.0;
        for &(instance, modifies) in &uses {
            self.record.unlist(instance);
            if modifies {
                self.lose_copy(instance);
            }
            self.record.list_after(instance, self.at);
        }
        for birth in &op.births {
            let instance = self.record.instance_of(birth.storage.0, iteration);
            self.record.unlist(instance);
            self.record.list_after(instance, self.at);
        }
        for death in &op.deaths {
            self.die(named(death.storage.0, death.previous, &self.record));
        }
        if index + 1 == self.ops {
            self.end_iteration(iteration);
        }
    }

    fn arrivals(&mut self) {
        let iteration = self.at / self.ops;
        for storage in 0..self.trace.storages.len() as u32 {
            if self.trace.storages[storage as usize].identity == Identity::Arrival {
                let instance = self.record.instance_of(storage, iteration);
                self.held += self.record.size(storage);
                self.record.instances[instance as usize] =
                    StorageInstance::new(SweepPlace::In, None, iteration * self.ops);
            }
        }
    }

    /// Ends the iteration, with the storages that were never seen to die.
    fn end_iteration(&mut self, iteration: u32) {
        for storage in 0..self.trace.storages.len() as u32 {
            if self.record.death[storage as usize] == Some(self.ops - 1) {
                self.die(self.record.instance_of(storage, iteration));
            }
        }
    }

    /// Lets time pass until the op's storages are in memory and its outputs have room.
    fn wait_for(&mut self, uses: &[(u32, bool)], births: i64) {
        let mut turns = 0;
        loop {
            let mut missing = false;
            for &(instance, modifies) in uses {
                let wanted = self.held + self.record.size(instance);
                match self.place(instance) {
                    SweepPlace::Out if wanted <= self.capacity => {
                        self.fetch(instance);
                        missing = true;
                    }
                    SweepPlace::Out => {
                        self.force_room(wanted - self.capacity);
                        missing = true;
                    }
                    SweepPlace::Coming => missing = true,
                    SweepPlace::Leaving if modifies => missing = true,
                    SweepPlace::Leaving | SweepPlace::In | SweepPlace::Gone => {}
                }
            }
            if !missing {
                if self.held + births <= self.capacity {
                    return;
                }
                self.force_room(self.held + births - self.capacity);
                if self.held + births <= self.capacity {
                    return;
                }
            }
            let Some(next) = self.out.next_end().into_iter().chain(self.back.next_end()).min()
            else {
                return;
            };
            self.now = self.now.max(next);
            self.complete();
            // What comes ahead of need must not keep the op waiting for ever.
            turns += 1;
            if turns < TURNS_MAX {
                self.move_ahead(0);
            }
        }
    }

    // ---- what happens ----

    fn place(&self, instance: u32) -> SweepPlace {
        self.record.instances[instance as usize].place
    }

    fn evict(&mut self, instance: u32) {
        self.record.unlist(instance);
        let next = self.record.next_use(instance);
        self.project(instance, next, 1);
        let size = self.record.size(instance);
        let clean = self.record.instances[instance as usize].copy;
        let target = clean.unwrap_or_else(|| self.destination(instance));
        let from = self.at;
        let end = if clean.is_some() {
            self.held -= size;
            self.settle_out(instance);
            self.now
        } else {
            if target == Target::Host {
                self.host_room -= size;
            }
            let link = self.out.of_mut(target).expect("the destination has a link");
            link.begin(self.now, instance, size.unsigned_abs());
            let end = link.busy_until;
            let one = &mut self.record.instances[instance as usize];
            (one.place, one.copy) = (SweepPlace::Leaving, Some(target));
            end
        };
        let deadline = self.line.op_after(self.at, end.saturating_sub(self.now));
        self.note(instance, MigrationDirection::Out, target, from, deadline);
    }

    /// Tier that it is assigned to; else the SSDs while they keep up, and host memory where they do
    /// not. The SSDs where host memory has no room.
    fn destination(&self, instance: u32) -> Target {
        let size = self.record.size(instance);
        let has_room = self.out.of(Target::Host).is_some() && self.host_room >= size;
        let assigned = self.assignment.and_then(|all| all.of(self.record.storage_of(instance)));
        let is_busy = self.out.of(Target::Ssd).is_some_and(|ssd| ssd.busy_until > self.now);
        let wanted = assigned.unwrap_or(if is_busy { Target::Host } else { Target::Ssd });
        if has_room { wanted } else { Target::Ssd }
    }

    fn fetch(&mut self, instance: u32) {
        let next = self.record.next_use(instance);
        self.record.absent.remove(&(next, instance));
        self.project(instance, next, -1);
        let size = self.record.size(instance);
        self.held += size;
        let one = &mut self.record.instances[instance as usize];
        one.place = SweepPlace::Coming;
        let target = one.copy.unwrap_or(Target::Ssd);
        let link = self.back.of_mut(target).expect("its copy lies behind a link");
        link.begin(self.now, instance, size.unsigned_abs());
        self.note(instance, MigrationDirection::In, target, self.at, next);
    }

    /// Tells the line that a storage is out until `next`, or (`sign` -1) that it is not any more.
    fn project(&mut self, instance: u32, next: u32, sign: i64) {
        let size = sign * self.record.size(instance);
        let leaves = !(self.variant.expects_drops && self.record.is_expected_drop(instance));
        let returns = self.record.is_used_again(instance);
        self.line.project(self.at, next, size, leaves, returns);
    }

    /// Processes what the links have finished by now.
    fn complete(&mut self) {
        while let Some(done) = self.out.take_done(self.now) {
            if self.place(done.instance) == SweepPlace::Leaving {
                self.held -= self.record.size(done.instance);
                self.settle_out(done.instance);
            }
        }
        while let Some(done) = self.back.take_done(self.now) {
            if self.place(done.instance) == SweepPlace::Coming {
                self.record.instances[done.instance as usize].place = SweepPlace::In;
                self.record.list(done.instance);
            }
        }
    }

    /// Settles an eviction: its memory is free now.
    fn settle_out(&mut self, instance: u32) {
        self.record.instances[instance as usize].place = SweepPlace::Out;
        if self.record.is_used_again(instance) {
            self.record.absent.insert((self.record.next_use(instance), instance));
        }
    }

    fn lose_copy(&mut self, instance: u32) {
        let size = self.record.size(instance);
        if self.record.instances[instance as usize].copy.take() == Some(Target::Host) {
            self.host_room += size;
        }
    }

    fn die(&mut self, instance: u32) {
        let place = self.place(instance);
        if place == SweepPlace::Gone {
            return;
        }
        self.record.unlist(instance);
        if place == SweepPlace::Out {
            self.record.absent.remove(&(self.record.next_use(instance), instance));
        } else {
            self.held -= self.record.size(instance);
        }
        self.lose_copy(instance);
        self.record.instances[instance as usize].place = SweepPlace::Gone;
    }

    fn note(
        &mut self,
        instance: u32,
        direction: MigrationDirection,
        target: Target,
        from: u32,
        to: u32,
    ) {
        if from < (ITERATIONS - 1) * self.ops {
            return;
        }
        let storage = PlanStorage(self.record.storage_of(instance));
        let when = (from, to.min(from + self.ops - 1));
        self.rows.push(Migration::unrolled(storage, (direction, target), when, self.ops));
    }
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX / 4)
}
