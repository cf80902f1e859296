//! One pass over the ops, with all that is to come in view: what leaves, what comes back, and when.
//!
//! The pass runs iterations one after the other as the machine will, on links that move one transfer
//! at a time, and notes what it begins in the last of them. Before each op it asks two questions of
//! the line of ops ahead, each answered by one range maximum:
//! - *out*: would an op ahead be over capacity unless bytes leave from now on at full bandwidth?
//! - *in*: would an op ahead miss bytes unless they come in from now on at full bandwidth?
//!
//! As long as neither is so nothing moves, except that free memory is filled by what comes next.

use super::tree::RangeMaximum;
use super::{Guess, Leaning};
use crate::cost::Machine;
use crate::lifetime::{At, Lifetimes, uses_by_storage};
use crate::plan::{Action, Row, Target};
use crate::trace::{Identity, Trace};
use crate::units::{Bandwidth, Bytes, Nanos, OpIndex};
use std::collections::{BTreeSet, VecDeque};

/// Iterations that the pass runs; the last one is the plan.
const ITERATIONS: u32 = 3;

/// A storage smaller than one part in this many of the capacity is left where it is.
const SMALL_PARTS: u64 = 1 << 14;

/// Completions that an op waits through before nothing more is begun ahead of need.
const TURNS_MAX: u32 = 1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Gone,
    In,
    Leaving,
    Out,
    Coming,
}

/// A storage's present instance.
#[derive(Clone, Copy, Debug)]
struct Instance {
    place: Place,
    /// The tier that holds a valid copy.
    copy: Option<Target>,
    /// Which of its uses comes next, and the op 0 that uses are counted from.
    next: u32,
    origin: u32,
}

/// A transfer on a link.
#[derive(Clone, Copy, Debug)]
struct Transfer {
    end: u64,
    instance: u32,
}

struct Link {
    rate: Bandwidth,
    latency: u64,
    busy_until: u64,
    queue: VecDeque<Transfer>,
}

impl Link {
    fn new(rate: Bandwidth, latency: Nanos) -> Self {
        Self { rate, latency: latency.0, busy_until: 0, queue: VecDeque::new() }
    }

    fn begin(&mut self, now: u64, instance: u32, bytes: u64) {
        self.busy_until = self.busy_until.max(now) + self.rate.time_for(Bytes(bytes)).0;
        self.queue.push_back(Transfer { end: self.busy_until + self.latency, instance });
    }
}

pub(super) struct Sweep<'a> {
    trace: &'a Trace,
    kept_percent: u64,
    /// How soon a link must be idle to be given more, and how soon bytes must be needed to move.
    queue: u64,
    slack: i64,
    ops: u32,
    capacity: i64,
    small: u64,
    uses: Vec<Vec<At>>,
    death: Vec<Option<u32>>,
    movable: Vec<bool>,
    /// When each op of the line would begin by the guess, and the guess itself.
    begins: Vec<u64>,
    /// Bytes per op, if what is out comes back for its next use.
    memory: RangeMaximum,
    /// The same as time on the way out, less the time until the op.
    pressure_out: RangeMaximum,
    /// Time that what is out and used by an op takes on the way in, less the time until the op.
    pressure_in: RangeMaximum,
    out: [Option<Link>; 2],
    back: [Option<Link>; 2],
    out_rate: Bandwidth,
    back_rate: Bandwidth,
    host_room: i64,
    instances: Vec<Instance>,
    /// By next use: in memory without a valid copy, in memory beside one, out.
    dirty: BTreeSet<(u32, u32)>,
    clean: BTreeSet<(u32, u32)>,
    absent: BTreeSet<(u32, u32)>,
    held: i64,
    now: u64,
    at: u32,
    rows: Vec<Row>,
}

impl<'a> Sweep<'a> {
    pub(super) fn new(
        trace: &'a Trace,
        machine: &Machine,
        guess: &Guess,
        leaning: Leaning,
    ) -> Self {
        let lifetimes = Lifetimes::of(trace);
        let ops = trace.ops.len() as u32;
        let line = (ITERATIONS + 1) * ops;
        let mut begins = vec![0; line as usize + 1];
        for op in 0..line as usize {
            begins[op + 1] = begins[op] + guess.durations[op % ops as usize];
        }
        let capacity = signed(machine.capacity().0);
        let host = machine.host.filter(|host| host.memory.0 > 0);
        let out_rate = Bandwidth(machine.ssd.write.0 + host.map_or(0, |host| host.write.0));
        let back_rate = Bandwidth(machine.ssd.read.0 + host.map_or(0, |host| host.read.0));
        // In the first iteration nothing is left of one before it: close enough, it is not kept.
        let alive = |op: usize| signed(lifetimes.memory[op % ops as usize].0);
        let memory: Vec<i64> = (0..line as usize).map(alive).collect();
        let time_out = |bytes: i64| signed(out_rate.time_for(Bytes(bytes.unsigned_abs())).0);
        let over = |op: usize| time_out(memory[op]) - time_out(capacity) - signed(begins[op]);
        let pressure: Vec<i64> = (0..line as usize).map(over).collect();
        let deadlines: Vec<i64> =
            begins[..line as usize].iter().map(|begin| -signed(*begin)).collect();
        let ssd = machine.ssd;
        let part = |parts| ssd.write.time_for(Bytes(machine.capacity().0 / parts)).0;
        let storages = trace.storages.len();
        let gone = Instance { place: Place::Gone, copy: None, next: 0, origin: 0 };
        let mut sweep = Self {
            trace,
            kept_percent: u64::from(leaning.kept_percent),
            queue: part(leaning.queue_parts),
            slack: signed(part(leaning.slack_parts)),
            ops,
            capacity,
            small: machine.capacity().0 / SMALL_PARTS,
            uses: uses_by_storage(trace),
            death: lifetimes.lifetimes.iter().map(|life| life.death).collect(),
            movable: Vec::new(),
            memory: RangeMaximum::new(&memory),
            pressure_out: RangeMaximum::new(&pressure),
            pressure_in: RangeMaximum::new(&deadlines),
            begins,
            out: [
                Some(Link::new(ssd.write, ssd.latency)),
                host.map(|h| Link::new(h.write, h.latency)),
            ],
            back: [
                Some(Link::new(ssd.read, ssd.latency)),
                host.map(|h| Link::new(h.read, h.latency)),
            ],
            out_rate,
            back_rate,
            host_room: host.map_or(0, |host| signed(host.memory.0)),
            instances: vec![gone; 2 * storages],
            dirty: BTreeSet::new(),
            clean: BTreeSet::new(),
            absent: BTreeSet::new(),
            held: 0,
            now: 0,
            at: 0,
            rows: Vec::new(),
        };
        sweep.movable = (0..storages as u32).map(|storage| sweep.can_move(storage)).collect();
        sweep.begin_globals();
        sweep
    }

    /// The migrations of one iteration.
    pub(super) fn run(mut self) -> Vec<Row> {
        for at in 0..ITERATIONS * self.ops {
            self.at = at;
            self.op();
        }
        self.rows
    }

    fn can_move(&self, storage: u32) -> bool {
        let described = &self.trace.storages[storage as usize];
        described.movable
            && described.size.0 > self.small
            && !matches!(described.identity, Identity::Arrival)
    }

    /// Globals begin outside, with a copy; those that cannot move, or are not used, inside.
    fn begin_globals(&mut self) {
        for storage in 0..self.trace.storages.len() as u32 {
            if !matches!(self.trace.storages[storage as usize].identity, Identity::Name(_)) {
                continue;
            }
            let moves = self.movable[storage as usize] && !self.uses[storage as usize].is_empty();
            let place = if moves { Place::Out } else { Place::In };
            self.instances[storage as usize] =
                Instance { place, copy: Some(Target::Ssd), next: 0, origin: 0 };
            if moves {
                let next = self.next_use(storage);
                self.absent.insert((next, storage));
                self.project_out(storage, next, 1);
            } else {
                self.held += self.size(storage);
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
        let uses: Vec<(u32, bool)> = op
            .uses
            .iter()
            .map(|used| {
                let of = if used.previous { iteration.wrapping_sub(1) } else { iteration };
                (self.instance_of(used.storage.0, of), used.access.modifies())
            })
            .filter(|(instance, _)| self.instances[*instance as usize].place != Place::Gone)
            .collect();
        let births: i64 = op.births.iter().map(|birth| self.size(birth.storage.0)).sum();
        self.complete();
        self.move_ahead(op.duration.0);
        self.wait_for(&uses, births);
        for birth in &op.births {
            let instance = self.instance_of(birth.storage.0, iteration);
            self.held += self.size(instance);
            self.instances[instance as usize] =
                Instance { place: Place::In, copy: None, next: 0, origin: iteration * self.ops };
            self.list(instance);
        }
        self.now += op.duration.0;
        for &(instance, modifies) in &uses {
            self.unlist(instance);
            if modifies {
                self.lose_copy(instance);
            }
            self.list_after(instance, self.at);
        }
        for birth in &op.births {
            let instance = self.instance_of(birth.storage.0, iteration);
            self.unlist(instance);
            self.list_after(instance, self.at);
        }
        for death in &op.deaths {
            let of = if death.previous { iteration.wrapping_sub(1) } else { iteration };
            self.die(self.instance_of(death.storage.0, of));
        }
        if index + 1 == self.ops {
            self.end_iteration(iteration);
        }
    }

    fn arrivals(&mut self) {
        let iteration = self.at / self.ops;
        for storage in 0..self.trace.storages.len() as u32 {
            if self.trace.storages[storage as usize].identity == Identity::Arrival {
                let instance = self.instance_of(storage, iteration);
                self.held += self.size(storage);
                let origin = iteration * self.ops;
                self.instances[instance as usize] =
                    Instance { place: Place::In, copy: None, next: 0, origin };
            }
        }
    }

    /// What was never seen to die goes with the iteration.
    fn end_iteration(&mut self, iteration: u32) {
        for storage in 0..self.trace.storages.len() as u32 {
            if self.death[storage as usize] == Some(self.ops - 1) {
                self.die(self.instance_of(storage, iteration));
            }
        }
    }

    /// Lets time pass until the op's storages are in memory and its outputs have room.
    fn wait_for(&mut self, uses: &[(u32, bool)], births: i64) {
        let mut turns = 0;
        loop {
            let mut missing = false;
            for &(instance, modifies) in uses {
                match self.instances[instance as usize].place {
                    Place::Out if self.held + self.size(instance) <= self.capacity => {
                        self.fetch(instance);
                        missing = true;
                    }
                    Place::Out => {
                        self.force_room(self.held + self.size(instance) - self.capacity);
                        missing = true;
                    }
                    Place::Coming => missing = true,
                    Place::Leaving if modifies => missing = true,
                    Place::Leaving | Place::In | Place::Gone => {}
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
            let links = self.out.iter().chain(&self.back).flatten();
            let Some(next) = links.filter_map(|link| link.queue.front()).map(|t| t.end).min()
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

    /// Begins evictions until enough is on its way out.
    fn force_room(&mut self, shortage: i64) {
        let leaving: i64 = self
            .out
            .iter()
            .flatten()
            .flat_map(|link| &link.queue)
            .map(|transfer| self.size(transfer.instance))
            .sum();
        let mut shortage = shortage - leaving;
        while shortage > 0 {
            let Some(victim) = self.victim(self.at) else { return };
            shortage -= self.size(victim);
            self.evict(victim);
        }
    }

    // ---- moving ahead of need ----

    /// Begins what has to move by now, as long as a link would be idle within `ahead`.
    fn move_ahead(&mut self, ahead: u64) {
        let until = self.now + ahead + self.queue;
        loop {
            let came = self.fetch_next(until);
            let left = self.write_next(until);
            if !came && !left {
                return;
            }
        }
    }

    fn write_next(&mut self, until: u64) -> bool {
        if !idle(&self.out, until) || self.slack_out() >= self.slack {
            return false;
        }
        let Some(victim) = self.victim(self.at).filter(|victim| self.pays(*victim)) else {
            return false;
        };
        self.evict(victim);
        true
    }

    fn fetch_next(&mut self, until: u64) -> bool {
        let end = (self.at + self.ops).min(self.line());
        let Some(&(next, instance)) = self.absent.first() else { return false };
        let target = self.instances[instance as usize].copy.unwrap_or(Target::Ssd);
        let Some(link) = &self.back[tier(target)] else { return false };
        if next >= end || link.busy_until > until {
            return false;
        }
        let size = self.size(instance);
        let ahead = self.memory.maximum(self.at as usize, next as usize);
        let fits = ahead + size <= self.capacity;
        if fits && self.held + size <= self.capacity {
            self.fetch(instance);
            return true;
        }
        if self.slack_in() >= self.slack {
            return false;
        }
        // It should come now, and something that is used later holds its room.
        let leaves = if fits { None } else { self.victim(next) };
        match leaves.filter(|victim| self.pays(*victim)) {
            Some(victim) if self.is_clean(victim) || idle(&self.out, until) => {
                self.evict(victim);
                true
            }
            _ => false,
        }
    }

    /// How long nothing needs to leave yet.
    fn slack_out(&self) -> i64 {
        let end = (self.at + self.ops).min(self.line());
        -(self.pressure_out.maximum(self.at as usize, end as usize)
            + signed(self.begins[self.at as usize]))
    }

    /// How long nothing needs to come yet.
    fn slack_in(&self) -> i64 {
        let end = (self.at + self.ops).min(self.line());
        -(self.pressure_in.maximum(self.at as usize, end as usize)
            + signed(self.begins[self.at as usize]))
    }

    fn is_clean(&self, instance: u32) -> bool {
        self.instances[instance as usize].copy.is_some()
    }

    /// Whether it stays out long enough to be written and read back meanwhile.
    fn pays(&self, instance: u32) -> bool {
        let next = self.next_use(instance).min(self.line());
        let away = self.begins[next as usize] - self.begins[self.at as usize];
        let size = Bytes(self.size(instance).unsigned_abs());
        away > self.out_rate.time_for(size).0 + self.back_rate.time_for(size).0
    }

    /// Who is used furthest in the future, after `after`. What has a copy already counts as further.
    fn victim(&self, after: u32) -> Option<u32> {
        let furthest =
            |set: &BTreeSet<(u32, u32)>| set.last().copied().filter(|(next, _)| *next > after);
        let begin = self.begins[self.at as usize];
        let away = |next: u32| self.begins[next.min(self.line()) as usize] - begin;
        match (furthest(&self.dirty), furthest(&self.clean)) {
            (Some((written, dirty)), Some((kept, clean))) => {
                let weighted = away(kept) / 100 * self.kept_percent;
                Some(if weighted >= away(written) { clean } else { dirty })
            }
            (one, other) => one.or(other).map(|(_, instance)| instance),
        }
    }

    fn evict(&mut self, instance: u32) {
        self.unlist(instance);
        let next = self.next_use(instance);
        self.project_out(instance, next, 1);
        let size = self.size(instance);
        let clean = self.instances[instance as usize].copy;
        let target = clean.unwrap_or_else(|| self.destination(size));
        let from = self.at;
        let end = if clean.is_some() {
            self.held -= size;
            self.settle_out(instance);
            self.now
        } else {
            self.instances[instance as usize].place = Place::Leaving;
            let now = self.now;
            if target == Target::Host {
                self.host_room -= size;
            }
            let link = self.out[tier(target)].as_mut().expect("the destination has a link");
            link.begin(now, instance, size.unsigned_abs());
            self.instances[instance as usize].copy = Some(target);
            link.busy_until
        };
        let deadline = self.op_at(end);
        self.note(instance, Action::Evict, target, from, deadline);
    }

    /// The SSDs while they keep up, host memory where they do not and it has room.
    fn destination(&self, size: i64) -> Target {
        match (&self.out[0], &self.out[1]) {
            (Some(ssd), Some(_)) if ssd.busy_until > self.now && self.host_room >= size => {
                Target::Host
            }
            _ => Target::Ssd,
        }
    }

    fn fetch(&mut self, instance: u32) {
        let next = self.next_use(instance);
        self.absent.remove(&(next, instance));
        self.project_out(instance, next, -1);
        let size = self.size(instance);
        self.held += size;
        let now = self.now;
        let one = &mut self.instances[instance as usize];
        one.place = Place::Coming;
        let target = one.copy.unwrap_or(Target::Ssd);
        let link = self.back[tier(target)].as_mut().expect("its copy lies behind a link");
        link.begin(now, instance, size.unsigned_abs());
        self.note(instance, Action::Prefetch, target, self.at, next);
    }

    /// Tells the line that a storage is out until `next`, or (`sign` -1) that it is not any more.
    fn project_out(&mut self, instance: u32, next: u32, sign: i64) {
        let size = self.size(instance);
        let bytes = Bytes(size.unsigned_abs());
        let (from, to, end) =
            (self.at as usize, next.min(self.line()) as usize, self.line() as usize);
        self.memory.add(from, to, -sign * size);
        self.pressure_out.add(from, to, -sign * signed(self.out_rate.time_for(bytes).0));
        if self.is_used_again(instance) {
            self.pressure_in.add(to, end, sign * signed(self.back_rate.time_for(bytes).0));
        }
    }

    // ---- what happens ----

    /// Takes in what the links have finished by now.
    fn complete(&mut self) {
        for tier in 0..2 {
            while let Some(done) = take_done(&mut self.out[tier], self.now) {
                if self.instances[done.instance as usize].place == Place::Leaving {
                    self.held -= self.size(done.instance);
                    self.settle_out(done.instance);
                }
            }
            while let Some(done) = take_done(&mut self.back[tier], self.now) {
                if self.instances[done.instance as usize].place == Place::Coming {
                    self.instances[done.instance as usize].place = Place::In;
                    self.list(done.instance);
                }
            }
        }
    }

    /// Its memory is free now.
    fn settle_out(&mut self, instance: u32) {
        self.instances[instance as usize].place = Place::Out;
        if self.is_used_again(instance) {
            self.absent.insert((self.next_use(instance), instance));
        }
    }

    fn lose_copy(&mut self, instance: u32) {
        let size = self.size(instance);
        if self.instances[instance as usize].copy.take() == Some(Target::Host) {
            self.host_room += size;
        }
    }

    fn die(&mut self, instance: u32) {
        let place = self.instances[instance as usize].place;
        if place == Place::Gone {
            return;
        }
        self.unlist(instance);
        if place == Place::Out {
            self.absent.remove(&(self.next_use(instance), instance));
        } else {
            self.held -= self.size(instance);
        }
        self.lose_copy(instance);
        self.instances[instance as usize].place = Place::Gone;
    }

    // ---- the record ----

    fn line(&self) -> u32 {
        (ITERATIONS + 1) * self.ops
    }

    fn instance_of(&self, storage: u32, iteration: u32) -> u32 {
        let global = matches!(self.trace.storages[storage as usize].identity, Identity::Name(_));
        let parity = if global { 0 } else { iteration & 1 };
        storage + parity * self.trace.storages.len() as u32
    }

    fn storage_of(&self, instance: u32) -> u32 {
        instance % self.trace.storages.len() as u32
    }

    fn size(&self, instance: u32) -> i64 {
        signed(self.trace.storages[self.storage_of(instance) as usize].size.0)
    }

    fn is_used_again(&self, instance: u32) -> bool {
        let storage = self.storage_of(instance) as usize;
        self.death[storage].is_none()
            || (self.instances[instance as usize].next as usize) < self.uses[storage].len()
    }

    /// The op of the line that uses it next; the one after its death if none does.
    fn next_use(&self, instance: u32) -> u32 {
        let storage = self.storage_of(instance) as usize;
        let one = &self.instances[instance as usize];
        let uses = &self.uses[storage];
        match (uses.get(one.next as usize), self.death[storage]) {
            (Some(at), _) => one.origin + at.op,
            (None, Some(death)) => one.origin + death + 1,
            (None, None) => uses.first().map_or(self.line(), |at| one.origin + self.ops + at.op),
        }
    }

    /// Counts on to the first use after `at`, and lists it.
    fn list_after(&mut self, instance: u32, at: u32) {
        let storage = self.storage_of(instance) as usize;
        let one = &mut self.instances[instance as usize];
        let uses = &self.uses[storage];
        while uses.get(one.next as usize).is_some_and(|next| one.origin + next.op <= at) {
            one.next += 1;
        }
        if one.next as usize == uses.len() && self.death[storage].is_none() {
            one.next = 0;
            one.origin += self.ops;
        }
        self.list(instance);
    }

    fn list(&mut self, instance: u32) {
        let storage = self.storage_of(instance) as usize;
        let one = &self.instances[instance as usize];
        if one.place == Place::In && self.movable[storage] {
            let entry = (self.next_use(instance), instance);
            let set = if one.copy.is_some() { &mut self.clean } else { &mut self.dirty };
            set.insert(entry);
        }
    }

    fn unlist(&mut self, instance: u32) {
        let entry = (self.next_use(instance), instance);
        self.dirty.remove(&entry);
        self.clean.remove(&entry);
    }

    /// The first op that begins at `time` or later, by the guess from here on.
    fn op_at(&self, time: u64) -> u32 {
        let begin = self.begins[self.at as usize] + time.saturating_sub(self.now);
        let after = self.begins[self.at as usize..].partition_point(|at| *at < begin) as u32;
        (self.at + after).min(self.at + self.ops - 1)
    }

    fn note(&mut self, instance: u32, action: Action, target: Target, from: u32, to: u32) {
        if from < (ITERATIONS - 1) * self.ops {
            return;
        }
        let storage = self.storage_of(instance) as usize;
        let to = to.min(from + self.ops - 1);
        self.rows.push(Row {
            start: OpIndex(from % self.ops),
            deadline: OpIndex(to % self.ops),
            action,
            target,
            storage: self.trace.storages[storage].identity.clone(),
        });
    }
}

fn idle(links: &[Option<Link>; 2], until: u64) -> bool {
    links.iter().flatten().any(|link| link.busy_until <= until)
}

fn take_done(link: &mut Option<Link>, now: u64) -> Option<Transfer> {
    let queue = &mut link.as_mut()?.queue;
    let due = queue.front().is_some_and(|transfer| transfer.end <= now);
    if due { queue.pop_front() } else { None }
}

fn tier(target: Target) -> usize {
    match target {
        Target::Ssd => 0,
        Target::Host => 1,
    }
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX / 4)
}
