//! Records what a training step does, makes a planner's trace of it, and tells when two are alike.
//!
//! Storages are followed by the caller's numbers. When a step ends they get the names under which a
//! plan finds them again: parameters and optimizer state by name, or by their place among what has
//! none, what an op made by (op, output slot), also where it lives on into the next step.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use rustc_hash::{FxHashMap, FxHashSet};
use tidelog_planner::residency::{OpUse as Touched, StorageId};
use tidelog_planner::trace::{
    Access, Birth, Death, Identity, Op, PlanStorage, Storage, Trace, Use,
};
use tidelog_planner::units::{Bytes, Nanos, OpIndex};

use super::held_back::difference;
use super::remade::{FilledTime, Remade};
use crate::executor::storages::{Description, Storages};

/// A storage as the recorder sees it.
struct Seen {
    size: u64,
    /// The step and place of its birth; None: made between steps or before the block.
    born: Option<(u64, OpIndex, u16)>,
    /// The number of steps that had begun when it was first seen.
    since: u64,
}

/// One recorded op.
struct Recorded {
    name: String,
    duration: Nanos,
    fingerprint: u64,
    uses: Vec<Touched>,
    births: Vec<(StorageId, u16)>,
    deaths: Vec<StorageId>,
}

/// The recorder.
#[derive(Default)]
pub(super) struct Profile {
    /// True if steps are being recorded.
    recording: bool,
    step: u64,
    in_step: bool,
    ops: Vec<Recorded>,
    running_since: Option<Instant>,
    storages: FxHashMap<StorageId, Seen>,
    /// Died during the step: their facts are needed until it ends.
    died: FxHashMap<StorageId, Seen>,
    alive_at_begin: Vec<StorageId>,
    /// True if a storage is one in all of a step, also where that empties and fills it.
    keeps_storages: bool,
    /// Storages that the step has emptied and filled.
    remade: Remade,
    /// The storages whose times have numbers of their own in the step's ops, by these.
    filled: FxHashMap<StorageId, StorageId>,
    /// Trace of the last step, if it was recorded to its end.
    last: Option<Arc<Trace>>,
    /// Storages that the step before used, if it was recorded.
    used_before: FxHashSet<StorageId>,
}

/// A step that was recorded to its end.
pub(super) struct Profiled {
    pub(super) trace: Arc<Trace>,
    /// Bindings of the trace's storages to live ones.
    pub(super) bindings: Vec<(PlanStorage, StorageId)>,
    /// Storages that were there before the step and are there after it, whether their names are
    /// known by then.
    pub(super) kept: Vec<PlanStorage>,
    /// The reason why no plan can be made for such steps yet; `None`: the step before was like this
    /// one.
    pub(super) differs: Option<String>,
}

impl Profile {
    pub(super) fn new(recording: bool) -> Self {
        Self { recording, ..Self::default() }
    }

    /// Has a storage be one in all of a step, also where that empties and fills it.
    pub(super) fn keep_storages(&mut self) {
        self.keeps_storages = true;
    }

    /// Records no more steps: there is a plan, or there will be none.
    pub(super) fn stop(&mut self) {
        self.recording = false;
        self.last = None;
    }

    /// Records again, from the next step on.
    pub(super) fn resume(&mut self) {
        self.recording = true;
    }

    /// The steps that have begun.
    pub(super) fn step(&self) -> u64 {
        self.step
    }

    pub(super) fn step_begins(&mut self) {
        self.step += 1;
        self.in_step = true;
        self.used_before.clear();
        let uses = self.ops.iter().flat_map(|op| &op.uses);
        self.used_before.extend(uses.map(|used| used.storage));
        self.ops.clear();
        self.died.clear();
        self.remade.clear();
        self.filled.clear();
        self.alive_at_begin.clear();
        self.alive_at_begin.extend(self.storages.keys().copied());
        self.alive_at_begin.sort_unstable();
    }

    pub(super) fn born(&mut self, storage: StorageId, size: u64, place: Option<(OpIndex, u16)>) {
        let born = place.filter(|_| self.in_step).map(|(op, slot)| (self.step, op, slot));
        if self.recording
            && let Some((_, op, slot)) = born
            && let Some(op) = self.ops.get_mut(op.0 as usize)
            && !op.births.iter().any(|&(known, _)| known == storage)
        {
            op.births.push((storage, slot));
        }
        self.storages.entry(storage).or_insert(Seen { size, born, since: self.step });
    }

    /// A storage has another size. `place`: at which it is filled, if it was empty.
    pub(super) fn resized(
        &mut self,
        storage: StorageId,
        was_empty: bool,
        size: u64,
        place: Option<(OpIndex, u16)>,
    ) {
        let Some(seen) = self.storages.get_mut(&storage) else { return };
        seen.size = seen.size.max(size);
        if self.recording && self.in_step {
            match (was_empty, size == 0) {
                (true, false) => self.remade.filled(storage, size, place),
                (false, true) => {
                    let after = self.ops.len().checked_sub(1);
                    self.remade.emptied(storage, after.map(|op| OpIndex(op as u32)));
                }
                (false, false) => self.remade.grows(storage, size),
                (true, true) => {}
            }
        }
    }

    pub(super) fn died(&mut self, storage: StorageId) {
        if let Some(seen) = self.storages.remove(&storage)
            && self.in_step
            && self.recording
        {
            self.remade.died(storage);
            self.died.insert(storage, seen);
            if let Some(op) = self.ops.last_mut() {
                op.deaths.push(storage);
            }
        }
    }

    pub(super) fn op_begins(&mut self, index: u32, name: &str, fingerprint: u64, uses: &[Touched]) {
        if !self.recording || !self.in_step {
            return;
        }
        // An op that raised, and was retried, stands at the same index.
        self.ops.truncate(index as usize);
        let name = name.to_owned();
        self.ops.push(Recorded {
            name,
            duration: Nanos(0),
            fingerprint,
            uses: uses.to_vec(),
            births: Vec::new(),
            deaths: Vec::new(),
        });
    }

    /// The op's storages are there: from here on its own time counts.
    pub(super) fn op_runs(&mut self, now: Instant) {
        if self.recording {
            self.running_since = Some(now);
        }
    }

    pub(super) fn op_ends(&mut self, now: Instant) {
        if let (Some(since), Some(op)) = (self.running_since.take(), self.ops.last_mut()) {
            op.duration = Nanos(now.duration_since(since).as_nanos() as u64);
        }
    }

    /// Records the real times of the step's ops. Those of another number are of another step.
    pub(super) fn took(&mut self, nanoseconds: &[u64]) {
        if nanoseconds.len() == self.ops.len() {
            for (op, &took) in self.ops.iter_mut().zip(nanoseconds) {
                op.duration = Nanos(took);
            }
        }
    }

    /// Ends a step. What it did comes out, or why that is not known. `None`: steps are not
    /// recorded.
    pub(super) fn step_ends(
        &mut self,
        complete: bool,
        storages: &Storages,
    ) -> Option<Result<Profiled, String>> {
        self.in_step = false;
        if !self.recording {
            return None;
        }
        let before = self.last.take();
        if !complete {
            return Some(Err("it was cut short".to_owned()));
        }
        if self.ops.is_empty() {
            return Some(Err("the budget was not reached yet".to_owned()));
        }
        let (trace, bindings) = self.make_trace(storages);
        if let Err(error) = trace.validate() {
            return Some(Err(format!("its trace makes no sense: {error}")));
        }
        let differs = match &before {
            None => Some("it is the first that was recorded, or the one before was not".to_owned()),
            Some(before) => difference(before, &trace),
        };
        let kept = self.kept(&bindings);
        let trace = Arc::new(trace);
        // The next step may be compared with either of two that are alike.
        self.last = if differs.is_some() { Some(Arc::clone(&trace)) } else { before };
        Some(Ok(Profiled { trace, bindings, kept, differs }))
    }

    fn kept(&self, bindings: &[(PlanStorage, StorageId)]) -> Vec<PlanStorage> {
        let before = |storage| self.alive_at_begin.binary_search(storage).is_ok();
        bindings.iter().filter(|(_, bound)| before(bound)).map(|(storage, _)| *storage).collect()
    }

    /// Gives each time from when a storage was filled until it was empty a number in the ops.
    fn divide_times(&mut self) {
        for (storage, times) in self.remade.take() {
            let ends = |time: &FilledTime| time.born.0.0 as usize..=time.died.0 as usize;
            if times.iter().map(ends).any(|ops| self.ops.get(ops).is_none_or(<[_]>::is_empty)) {
                continue; // of ops that raised
            }
            for time in &times {
                let (&FilledTime { number, born: (op, slot), size, .. }, ops) = (time, ends(time));
                for used in &mut self.ops[ops.clone()][1..] {
                    for touched in used.uses.iter_mut().filter(|it| it.storage == storage) {
                        touched.storage = number;
                    }
                }
                self.ops[*ops.start()].births.push((number, slot));
                self.ops[*ops.end()].deaths.push(number);
                let born = Some((self.step, op, slot));
                self.died.insert(number, Seen { size, born, since: self.step });
                self.filled.insert(number, storage);
            }
            // An op that uses what is empty moves nothing.
            for op in &mut self.ops {
                op.uses.retain(|used| used.storage != storage);
            }
        }
    }

    /// Takes the ops' names with it, which nobody asks for again.
    fn make_trace(&mut self, live: &Storages) -> (Trace, Vec<(PlanStorage, StorageId)>) {
        if !self.keeps_storages {
            self.divide_times();
        }
        let divided: FxHashSet<_> = self.filled.values().copied().collect();
        let mut recorded = std::mem::take(&mut self.ops);
        let mut names = Names {
            profile: self,
            live,
            storages: Vec::new(),
            by_place: FxHashMap::default(),
            meanings: FxHashMap::default(),
            taken: HashSet::new(),
            unnamed: 0,
        };
        // What this step makes comes first: what the step before made at the same place is then
        // known as the previous instance under the same name.
        for (storage, _) in recorded.iter().flat_map(|op| &op.births) {
            names.meaning(*storage);
        }
        let ops = recorded.iter_mut().map(|op| names.op(op)).collect();
        for &storage in &self.alive_at_begin {
            // Idle all step long, but known by name: it still takes memory. What has neither a name
            // nor a use (a list of losses that grows) is left to the machine, which evicts it
            // first.
            if live.describe(storage).name.is_some() && !divided.contains(&storage) {
                names.meaning(storage);
            }
        }
        let bindings = names.bindings();
        let storages = names.storages;
        self.ops = recorded;
        (Trace { name: "profiled step".to_owned(), storages, ops }, bindings)
    }
}

/// Finds the trace's name for each storage.
struct Names<'a> {
    profile: &'a Profile,
    live: &'a Storages,
    storages: Vec<Storage>,
    by_place: FxHashMap<(OpIndex, u16), (PlanStorage, StorageId)>,
    taken: HashSet<String>,
    unnamed: u32,
    meanings: FxHashMap<StorageId, Meaning>,
}

/// A storage of the trace, or the instance of it that the step before left behind.
#[derive(Clone, Copy)]
struct Meaning {
    storage: PlanStorage,
    previous: bool,
}

impl Names<'_> {
    fn meaning(&mut self, storage: StorageId) -> Meaning {
        if let Some(&meaning) = self.meanings.get(&storage) {
            return meaning;
        }
        let meaning = self.find_meaning(storage);
        self.meanings.insert(storage, meaning);
        meaning
    }

    fn find_meaning(&mut self, storage: StorageId) -> Meaning {
        let profile = self.profile;
        let seen = profile.storages.get(&storage).or_else(|| profile.died.get(&storage));
        let filled = profile.filled.get(&storage).copied();
        let Description { name, kind, movable } = self.live.describe(filled.unwrap_or(storage));
        let size = Bytes(seen.map_or(0, |seen| seen.size));
        let born = seen.and_then(|seen| seen.born);
        let in_this_step = born.is_some_and(|(step, ..)| step == profile.step);
        if let Some(previous) = self.previous(storage) {
            return previous;
        }
        let identity = match born {
            Some((_, op, slot)) if in_this_step => Identity::Output { op, slot },
            _ => match self.global_name(storage, name) {
                Some(name) => Identity::Name(name),
                None => Identity::Arrival,
            },
        };
        let named = PlanStorage(self.storages.len() as u32);
        if let Identity::Output { op, slot } = identity {
            self.by_place.insert((op, slot), (named, storage));
        }
        self.storages.push(Storage { identity, size, part: None, kind, movable });
        Meaning { storage: named, previous: false }
    }

    /// Returns the meaning of a storage of the step before, if this step makes one in its place.
    /// One that lives on into a third step (a batch that was fetched ahead) does not: a trace has
    /// room for two instances, so that one comes and goes as what is made between steps does.
    fn previous(&self, storage: StorageId) -> Option<Meaning> {
        let died = self.profile.died.get(&storage)?;
        let (step, op, slot) = died.born?;
        let &(meaning, successor) = self.by_place.get(&(op, slot))?;
        // Of another size it is another storage: that step was not like this one.
        let alike = self.storages[meaning.0 as usize].size == Bytes(died.size);
        let lives_on = !self.profile.died.contains_key(&successor);
        let previous = alike && lives_on && step + 1 == self.profile.step;
        previous.then_some(Meaning { storage: meaning, previous })
    }

    /// Outlived the step before by chance, as what a collective still uses does: this step does not
    /// use it, and makes nothing in its place that lives on. Steps with and without one are alike.
    fn is_late(&self, storage: StorageId) -> bool {
        !self.meanings.contains_key(&storage)
            && self.previous(storage).is_none()
            && self.profile.died.get(&storage).is_some_and(|it| it.since + 1 >= self.profile.step)
    }

    /// The name of what lives across iterations. What nobody has named (a model that was made in
    /// the block) is known by its place among others such: it counts where two steps in a row have
    /// used it, unlike a batch that was fetched ahead.
    fn global_name(&mut self, storage: StorageId, name: Option<&str>) -> Option<String> {
        if !self.is_global(storage) {
            return None;
        }
        let Some(name) = name else {
            let is_kept = self.profile.used_before.contains(&storage);
            return is_kept.then(|| {
                self.unnamed += 1;
                format!("unnamed {}", self.unnamed)
            });
        };
        // Two storages may carry one name (an optimizer's state that was replaced).
        let free = self.taken.insert(name.to_owned());
        Some(if free { name.to_owned() } else { format!("{name} ({storage})") })
    }

    /// Alive after the step, and all through the one before: what is made between two steps, such
    /// as a batch, is another one every time.
    fn is_global(&self, storage: StorageId) -> bool {
        self.profile.storages.contains_key(&storage)
            && self.profile.alive_at_begin.binary_search(&storage).is_ok()
            && self.profile.storages[&storage].since + 1 < self.profile.step
    }

    fn op(&mut self, op: &mut Recorded) -> Op {
        let mut uses: Vec<Use> = Vec::with_capacity(op.uses.len());
        for &Touched { storage, modifies } in &op.uses {
            let Meaning { storage, previous } = self.meaning(storage);
            let access = if modifies { Access::Update } else { Access::Read };
            uses.push(Use { storage, access, previous });
        }
        let births = op
            .births
            .iter()
            .map(|&(storage, slot)| Birth { storage: self.meaning(storage).storage, slot })
            .collect();
        let mut deaths = Vec::with_capacity(op.deaths.len());
        for &storage in &op.deaths {
            if !self.is_late(storage) {
                let Meaning { storage, previous } = self.meaning(storage);
                deaths.push(Death { storage, previous });
            }
        }
        Op {
            name: std::mem::take(&mut op.name),
            duration: op.duration,
            fingerprint: op.fingerprint,
            uses,
            births,
            deaths,
        }
    }

    fn bindings(&self) -> Vec<(PlanStorage, StorageId)> {
        let mut bindings: Vec<_> = self
            .meanings
            .iter()
            .filter(|(storage, _)| self.profile.storages.contains_key(storage))
            .map(|(&storage, meaning)| (meaning.storage, storage))
            .collect();
        bindings.sort_unstable();
        bindings
    }
}
