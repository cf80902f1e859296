//! The reference: what memory, log and host memory really hold, version by version. It performs the
//! machine's actions (in `executor`), completes them late, in any order, well or badly, and checks
//! every one.

use super::chance::Random;
use super::*;
use std::collections::BTreeMap;

/// Contents of a storage's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Memory {
    Gone,
    /// Allocated, and not (yet) the storage's bytes.
    Garbage,
    Holds(u64),
}

/// A copy that mixes versions.
pub(super) const TORN: u64 = u64::MAX;

/// A copy that is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) target: Target,
    pub(super) version: u64,
    /// The storage's size when it was made.
    pub(super) bytes: u64,
}

#[derive(Debug)]
pub(super) struct Actual {
    pub(super) size: u64,
    pub(super) truth: u64,
    pub(super) memory: Memory,
    pub(super) copy: Option<Kept>,
    pub(super) alive: bool,
    pub(super) movable: bool,
    pub(super) pins: u32,
    /// Number of asynchronous uses.
    pub(super) async_uses: u32,
    pub(super) unwritable: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Write(Target),
    Verify,
    Fetch { urgent: bool },
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Flight {
    pub(super) storage: u32,
    pub(super) kind: Kind,
    pub(super) bytes: u64,
    pub(super) cancelled: bool,
    pub(super) torn: bool,
}

/// End of an attempt to run an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndedMove {
    Ran,
    Refused,
    Failed,
    /// The caller lost interest while it waited.
    GivenUp,
}

/// Faults to inject, in percent.
#[derive(Clone, Copy, Debug)]
pub(super) struct FaultInjection {
    pub(super) failing: u64,
    pub(super) giving_up: u64,
    pub(super) disturbing: u64,
    /// Number of evictions whose sources changed without anybody saying so.
    pub(super) silent: u64,
}

pub(super) const NO_FAULTS: FaultInjection =
    FaultInjection { failing: 0, giving_up: 0, disturbing: 0, silent: 0 };

pub(super) struct World {
    pub(super) machine: Residency,
    pub(super) random: Random,
    pub(super) trouble: FaultInjection,
    pub(super) host_memory: u64,
    pub(super) storages: BTreeMap<u32, Actual>,
    pub(super) flights: BTreeMap<u64, Flight>,
    pub(super) transfers_seen: u64,
    pub(super) versions: u64,
    /// Uses of the op that runs.
    pub(super) running: Vec<OpUse>,
    /// Uses of the op that waits, and whether a fetch for it failed.
    pub(super) waiting: Vec<OpUse>,
    pub(super) must_fail: bool,
    /// Uses of an op that waited when the caller lost interest.
    pub(super) given_up: Vec<OpUse>,
    pub(super) failures: u64,
    pub(super) reported: u64,
}

impl World {
    pub(super) fn new(machine: Residency, random: Random, trouble: FaultInjection) -> Self {
        let host_memory = machine.config.host_memory.0;
        Self {
            machine,
            random,
            trouble,
            host_memory,
            storages: BTreeMap::new(),
            flights: BTreeMap::new(),
            transfers_seen: 0,
            versions: 0,
            running: Vec::new(),
            waiting: Vec::new(),
            must_fail: false,
            given_up: Vec::new(),
            failures: 0,
            reported: 0,
        }
    }

    pub(super) fn alive(&self) -> Vec<u32> {
        self.storages.iter().filter(|(_, one)| one.alive).map(|(&storage, _)| storage).collect()
    }

    pub(super) fn any(&mut self) -> Option<u32> {
        let alive = self.alive();
        self.random.pick(&alive)
    }

    /// A birth under the smallest number that is free, or under a fresh one.
    pub(super) fn born(&mut self, size: u64, attributes: Attributes) -> u32 {
        self.perform();
        let reuse = self.random.percent(50);
        let free = |one: &u32| !self.machine.knows(id(*one)) && !self.storages.contains_key(one);
        let fresh = self.storages.keys().next_back().map_or(0, |last| last + 1);
        let storage = (0..fresh).find(free).filter(|_| reuse).unwrap_or(fresh);
        assert!(self.machine.born(id(storage), Bytes(size), attributes));
        if self.random.percent(10) {
            assert!(!self.machine.born(id(storage), Bytes(size + 1), attributes));
        }
        self.versions += 1;
        let actual = Actual {
            size,
            truth: self.versions,
            memory: Memory::Holds(self.versions),
            copy: None,
            alive: true,
            movable: attributes.movable,
            pins: 0,
            async_uses: 0,
            unwritable: false,
        };
        self.storages.insert(storage, actual);
        storage
    }

    pub(super) fn died(&mut self, storage: u32) {
        let in_flight = self.flight_of(storage).is_some();
        let actual = self.storages.get_mut(&storage).expect("it lives");
        actual.alive = false;
        if !in_flight {
            actual.memory = Memory::Gone;
        }
        // Whoever is born under its number is not what those ops use.
        for uses in [&mut self.running, &mut self.waiting, &mut self.given_up] {
            uses.retain(|one| one.storage != id(storage));
        }
        self.machine.died(id(storage));
        if self.random.percent(10) {
            self.machine.died(id(storage));
        }
    }

    pub(super) fn pin(&mut self, storage: u32) {
        self.perform();
        self.storages.get_mut(&storage).expect("it lives").pins += 1;
        self.machine.pin(id(storage));
    }

    pub(super) fn unpin(&mut self, storage: u32) {
        let actual = self.storages.get_mut(&storage).expect("it lives");
        actual.pins = actual.pins.saturating_sub(1);
        self.machine.unpin(id(storage));
    }

    /// Extends uses: what runs goes on to use its storages after its end.
    pub(super) fn op_goes_on(&mut self) {
        for one in &self.running {
            let Some(actual) = self.storages.get_mut(&one.storage.0) else { continue };
            actual.async_uses += 1;
            self.machine.async_use_begins(one.storage);
        }
    }

    /// One asynchronous use of a storage ends; until then it may have written.
    pub(super) fn async_use_ends(&mut self, storage: u32) {
        let actual = self.storages.get_mut(&storage).expect("it lives");
        actual.async_uses -= 1;
        if actual.async_uses == 0 {
            self.machine.async_use_ends(id(storage));
        }
    }

    /// Storages that are used asynchronously.
    pub(super) fn async_used(&self) -> Vec<u32> {
        let used = self.storages.iter().filter(|(_, one)| one.alive && one.async_uses > 0);
        used.map(|(&storage, _)| storage).collect()
    }

    /// The storage's bytes change outside an op, if they are in memory; `size` if it changes too.
    pub(super) fn modified(&mut self, storage: u32, size: Option<u64>) {
        self.perform();
        let told = match size {
            Some(size) => self.machine.resized(id(storage), Bytes(size)),
            None => self.machine.modified(id(storage)),
        };
        let actual = self.storages.get_mut(&storage).expect("it lives");
        let resident = matches!(actual.memory, Memory::Holds(_));
        assert_eq!(told.is_ok(), resident, "{told:?} about {actual:?}");
        if !resident || size == Some(actual.size) {
            return;
        }
        actual.size = size.unwrap_or(actual.size);
        self.versions += 1;
        actual.truth = self.versions;
        actual.memory = Memory::Holds(self.versions);
        for flight in self.flights.values_mut().filter(|flight| flight.storage == storage) {
            flight.torn = true;
        }
    }

    /// The caller writes the storage's bytes to the log, where the machine says that this may be
    /// its copy.
    pub(super) fn copied_by_caller(&mut self, storage: u32) {
        self.perform();
        let may_be = self.machine.copy_in_log(id(storage)) == CopyInLog::NotYet;
        let mut begun = self.machine.begin_copy(id(storage));
        assert_eq!(begun, may_be);
        // Whoever changes it meanwhile takes it back.
        if begun && self.random.percent(30) {
            self.modified(storage, None);
            begun = false;
        }
        assert_eq!(self.machine.adopt_copy(id(storage)), begun);
        let actual = self.storages.get_mut(&storage).expect("it lives");
        if begun {
            assert_eq!(actual.copy, None, "it has a copy already");
            assert!(actual.memory == Memory::Holds(actual.truth) && actual.pins == 0);
            let (version, bytes) = (actual.truth, actual.size);
            actual.copy = Some(Kept { target: Target::Ssd, version, bytes });
        }
    }

    /// The storage's bytes change and nobody tells.
    pub(super) fn modified_silently(&mut self, storage: u32) {
        let quiet = self.flight_of(storage).is_none();
        let resident =
            matches!(self.machine.state(id(storage)), Some(StorageState::Resident { .. }));
        let actual = self.storages.get_mut(&storage).expect("it lives");
        let holds = matches!(actual.memory, Memory::Holds(_));
        let written = self
            .flights
            .values_mut()
            .find(|flight| flight.storage == storage && matches!(flight.kind, Kind::Write(_)));
        let written = written.filter(|_| holds && self.machine.config.recheck);
        let is_torn = written.is_some();
        if let Some(flight) = written {
            flight.torn = true;
        }
        if is_torn || (holds && quiet && resident) {
            self.versions += 1;
            actual.truth = self.versions;
            actual.memory = Memory::Holds(self.versions);
        }
    }

    pub(super) fn set_limit(&mut self, limit: u64) {
        self.perform();
        self.machine.set_budget(Bytes(limit + 7));
    }

    pub(super) fn retry(&mut self, step: bool) {
        self.storages.values_mut().for_each(|actual| actual.unwritable = false);
        if step {
            self.machine.step_begin();
            self.running.clear();
            self.given_up.clear();
        } else {
            self.machine.retry_failed();
        }
    }

    /// Runs an op as far as it goes. If it ran, it still runs: its end is to be told.
    pub(super) fn op(&mut self, begin: &OpBegin<'_>) -> EndedMove {
        self.running.clear();
        self.given_up.clear();
        self.waiting = begin.uses.to_vec();
        let progress = self.machine.op_begin(begin);
        let ended = self.drive(progress, Some(begin.needs.0));
        self.must_fail = false;
        let uses = std::mem::take(&mut self.waiting);
        match ended {
            EndedMove::Ran => self.running = uses,
            EndedMove::GivenUp => self.given_up = uses,
            EndedMove::Refused | EndedMove::Failed => {}
        }
        ended
    }

    pub(super) fn op_end(&mut self) {
        self.running.clear();
        self.given_up.clear();
        self.machine.op_end();
    }

    pub(super) fn settle(&mut self) -> EndedMove {
        self.given_up.clear();
        let progress = self.machine.settle();
        self.drive(progress, Some(0))
    }

    pub(super) fn evict(&mut self, storage: u32) {
        let mut in_use = self.running.iter().chain(&self.given_up);
        let in_use = in_use.any(|one| one.storage == id(storage));
        let actual = self.storages.get_mut(&storage).expect("it lives");
        let may = actual.movable && actual.pins == 0 && actual.async_uses == 0 && !in_use;
        let answer = self.machine.evict(id(storage));
        assert_eq!(answer.is_ok(), may, "{answer:?} about {actual:?}");
        let Ok(progress) = answer else { return };
        actual.unwritable = false;
        self.given_up.clear();
        let calm = self.trouble.disturbing == 0 && actual.size > 0;
        // The budget may have been exceeded by births: that is not this call's business.
        if self.drive(progress, None) == EndedMove::Ran && calm {
            assert_eq!(self.machine.state(id(storage)), Some(StorageState::Evicted));
        }
    }

    fn drive(&mut self, first: OpProgress, needs: Option<u64>) -> EndedMove {
        let mut progress = first;
        for _ in 0..2_000 {
            assert!(!self.must_fail || matches!(progress, OpProgress::Failed(_)), "{progress:?}");
            match progress {
                OpProgress::Ready => {
                    self.modify();
                    self.perform();
                    self.check_ready(needs);
                    return EndedMove::Ran;
                }
                OpProgress::Refused(refusal) => {
                    self.perform();
                    self.check_refusal(&refusal, needs.unwrap_or(0));
                    return EndedMove::Refused;
                }
                OpProgress::Failed(failure) => {
                    if failure.direction == MigrationDirection::Out {
                        self.reported += 1 + u64::from(failure.others);
                    }
                    self.perform();
                    return EndedMove::Failed;
                }
                OpProgress::Waiting => {}
            }
            self.perform();
            let used = self.async_used();
            assert!(!self.flights.is_empty() || !used.is_empty(), "waiting for nothing");
            if self.random.percent(self.trouble.giving_up) {
                return EndedMove::GivenUp;
            }
            if self.random.percent(self.trouble.disturbing) {
                self.disturb();
            }
            for _ in 0..=self.random.below(3) {
                self.complete_one();
            }
            // Collectives end by themselves; what is sent or received may not.
            let refuses = self.random.percent(10);
            if let Some(storage) = self.random.pick(&self.async_used()) {
                self.async_use_ends(storage);
            }
            progress =
                if refuses { self.machine.resume_or_refuse() } else { self.machine.resume() };
        }
        panic!("two thousand completions did not bring it on");
    }

    /// Injects an event that has nothing to do with what runs or waits.
    pub(super) fn disturb(&mut self) {
        let Some(storage) = self.any() else { return };
        let size = self.random.below(12);
        match self.random.below(10) {
            0 => self.died(storage),
            1 => drop(self.born(size, Attributes::default())),
            2 => self.pin(storage),
            3 | 4 => self.unpin(storage),
            5 => self.modified(storage, None),
            6 => self.modified(storage, Some(size)),
            7 => self.retry(false),
            8 => self.copied_by_caller(storage),
            _ => {
                let limit = 20 + self.random.below(40);
                self.set_limit(limit);
            }
        }
    }

    fn modify(&mut self) {
        for one in self.waiting.iter().filter(|one| one.modifies) {
            if !self.storages.contains_key(&one.storage.0) {
                continue;
            }
            assert!(self.flight_of(one.storage.0).is_none(), "modified while it is being copied");
            let actual = self.storages.get_mut(&one.storage.0).expect("it lives");
            assert_eq!(actual.memory, Memory::Holds(actual.truth), "an op got old bytes");
            self.versions += 1;
            actual.truth = self.versions;
            actual.memory = Memory::Holds(self.versions);
        }
    }

    fn check_ready(&self, needs: Option<u64>) {
        for one in &self.waiting {
            let Some(actual) = self.storages.get(&one.storage.0) else { continue };
            assert_eq!(actual.memory, Memory::Holds(actual.truth), "an op got {actual:?}");
        }
        if let Some(needs) = needs {
            self.check_budget(needs);
        }
    }

    pub(super) fn check_budget(&self, needs: u64) {
        let (committed, limit) = (self.machine.committed().0, self.machine.limit().0);
        assert!(committed + needs <= limit, "{committed} + {needs} > {limit}");
    }

    /// A refusal must be deserved.
    fn check_refusal(&self, refusal: &BudgetRefusal, needs: u64) {
        let used = |storage: &u32| {
            self.waiting.iter().chain(&self.running).any(|one| one.storage.0 == *storage)
        };
        let stuck = |storage: &u32, one: &Actual| {
            let asynchronous = refusal.asynchronous.0 > 0 && one.async_uses > 0;
            let stays = !one.movable || one.pins > 0 || one.unwritable || asynchronous;
            one.alive && (used(storage) || (stays && one.memory != Memory::Gone))
        };
        let least: u64 =
            self.storages.iter().filter(|(id, one)| stuck(id, one)).map(|(_, one)| one.size).sum();
        assert!(least + needs > self.machine.limit().0, "{refusal} but {least} + {needs} fit");
        assert!(refusal.smallest_budget > self.machine.budget());
        let parts = [
            refusal.staging,
            refusal.uses,
            refusal.outputs,
            refusal.unmovable,
            refusal.unwritable,
            refusal.asynchronous,
        ];
        assert_eq!(parts.iter().map(|part| part.0).sum::<u64>(), refusal.smallest_budget.0);
    }

    pub(super) fn with_memory(&self) -> impl Iterator<Item = &Actual> {
        self.storages.values().filter(|one| one.memory != Memory::Gone)
    }

    pub(super) fn flight_of(&self, storage: u32) -> Option<&Flight> {
        self.flights.values().find(|flight| flight.storage == storage)
    }
}
