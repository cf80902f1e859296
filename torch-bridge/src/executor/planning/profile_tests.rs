//! Tests of alike steps, and of storages that are known again in the next.

use std::collections::BTreeSet;

use tidelog_planner::residency::{OpUse, StorageId};
use tidelog_planner::trace::{Identity, REMADE_FROM, Storage, StorageKind};
use tidelog_planner::units::OpIndex;

use super::profile::{Profile, Profiled};
use crate::executor::storages::Storages;

/// A program that is profiled. Numbers of storages are never used again.
pub(super) struct Program {
    pub(super) profile: Profile,
    pub(super) storages: Storages,
    next: u32,
    op: u32,
}

impl Program {
    pub(super) fn new() -> Self {
        let storages = Storages::default();
        Self { profile: Profile::new(true), storages, next: 0, op: 0 }
    }

    fn born(&mut self, place: Option<OpIndex>) -> StorageId {
        let storage = StorageId(self.next);
        self.next += 1;
        let place = place.map(|op| (op, 0));
        self.storages.born(storage, true, place);
        self.profile.born(storage, 64, place);
        storage
    }

    pub(super) fn parameter(&mut self, name: &str) -> StorageId {
        let storage = self.born(None);
        assert!(self.storages.name(storage, StorageKind::Parameter, name).is_ok());
        storage
    }

    pub(super) fn begin(&mut self) {
        self.profile.step_begins();
        self.op = 0;
    }

    pub(super) fn op(&mut self, uses: &[StorageId]) {
        let uses: Vec<OpUse> =
            uses.iter().map(|&storage| OpUse { storage, modifies: false }).collect();
        self.profile.op_begins(self.op, "op", self.op.into(), &uses);
        self.op += 1;
    }

    /// An op that makes a storage.
    pub(super) fn make(&mut self, uses: &[StorageId]) -> StorageId {
        self.op(uses);
        self.born(Some(OpIndex(self.op - 1)))
    }

    pub(super) fn die(&mut self, storage: StorageId) {
        self.profile.died(storage);
        self.storages.died(storage);
    }

    /// A storage that was empty is filled.
    fn fill(&mut self, storage: StorageId) {
        let place = (OpIndex(self.op - 1), REMADE_FROM);
        self.profile.resized(storage, true, 64, Some(place));
    }

    fn empty(&mut self, storage: StorageId) {
        self.profile.resized(storage, false, 0, None);
    }

    /// Ends a step; returns the profile, or why none can be made.
    fn end(&mut self) -> Result<Profiled, String> {
        let profiled = self.profile.step_ends(true, &self.storages).expect("steps are recorded")?;
        match profiled.differs {
            Some(why) => Err(why),
            None => Ok(profiled),
        }
    }
}

#[test]
fn a_batch_that_is_fetched_ahead_and_let_go_late_holds_no_step_back() {
    let mut program = Program::new();
    let weight = program.parameter("weight");
    let (mut used, mut ahead): (Option<StorageId>, Option<StorageId>) = (None, None);
    for step in 1..=4 {
        program.begin();
        let fetched = program.make(&[weight]);
        used.take().into_iter().for_each(|used| program.die(used));
        used = ahead.replace(fetched);
        program.op(&used.map_or(vec![weight], |batch| vec![weight, batch]));
        let ended = program.end();
        if step > 3 {
            let trace = ended.map_err(|why| format!("step {step}: {why}")).unwrap().trace;
            // Both were there when the step began: the batch that the step before used, and the one
            // that it fetched.
            let (gone, batch) = (&trace.ops[0].deaths[0], &trace.ops[1].uses[1]);
            assert!(!gone.previous && !batch.previous && gone.storage != batch.storage);
            let arrives = |it: &Storage| it.identity == Identity::Arrival;
            for storage in [gone.storage, batch.storage] {
                assert!(arrives(&trace.storages[storage.0 as usize]));
            }
            assert_eq!(trace.storages.iter().filter(|it| arrives(it)).count(), 2);
        }
    }
}

/// Gathers of FSDP2 do so, for each pass.
#[test]
fn what_is_emptied_is_another_storage_each_time_that_it_is_filled() {
    let mut program = Program::new();
    let (weight, gathered) = (program.parameter("weight"), program.born(None));
    program.empty(gathered);
    for step in 1..=3 {
        program.begin();
        for _ in 0..2 {
            program.op(&[weight]);
            program.fill(gathered);
            program.op(&[gathered, weight]);
            program.empty(gathered);
            program.op(&[gathered]);
        }
        let ended = program.end();
        if step == 3 {
            let Profiled { trace, bindings, .. } = ended.expect("steps are alike");
            let places = [0, 3].map(|op| Identity::Output { op: OpIndex(op), slot: REMADE_FROM });
            let identities: BTreeSet<_> =
                trace.storages.iter().map(|storage| storage.identity.clone()).collect();
            let weight_too = [Identity::Name("weight".to_owned())].into_iter().chain(places);
            assert_eq!(identities, weight_too.collect());
            for (begin, life) in [(0, trace.ops[0].births[0]), (3, trace.ops[3].births[0])] {
                let [_, uses, empty] = [0, 1, 2].map(|at| &trace.ops[begin + at]);
                assert_eq!(uses.uses[0].storage, life.storage);
                assert_eq!(uses.deaths[0].storage, life.storage);
                assert!(empty.uses.is_empty() && empty.deaths.is_empty());
            }
            assert_eq!(bindings.len(), 1, "what is filled is bound when it is");
        }
    }
}

/// Bytes that live on are needed by the next step.
#[test]
fn what_is_not_empty_between_steps_is_one_storage() {
    let mut program = Program::new();
    let kept = program.born(None);
    for step in 1..=4 {
        program.begin();
        program.op(&[kept]);
        program.empty(kept);
        program.op(&[]);
        program.fill(kept);
        program.op(&[kept]);
        let ended = program.end();
        if step == 4 {
            let trace = ended.expect("steps are alike").trace;
            let identities = trace.storages.iter().map(|storage| storage.identity.clone());
            assert_eq!(identities.collect::<Vec<_>>(), [Identity::Name("unnamed 1".to_owned())]);
        }
    }
}

/// A model that was made inside the block: what lives on is planned, and a batch is not.
#[test]
fn what_lives_across_steps_without_a_name_is_known_by_its_place() {
    let mut program = Program::new();
    let weights = [program.born(None), program.born(None)];
    for step in 1..=4 {
        let batch = program.born(None);
        program.begin();
        program.op(&[batch, weights[1]]);
        program.op(&[weights[0]]);
        let ended = program.end();
        program.die(batch);
        if step > 3 {
            let Profiled { trace, bindings, .. } =
                ended.map_err(|why| format!("step {step}: {why}")).unwrap();
            let found = |used: usize, op: usize| {
                let storage = trace.ops[op].uses[used].storage;
                trace.storages[storage.0 as usize].identity.clone()
            };
            assert_eq!(found(0, 0), Identity::Arrival);
            assert_eq!(found(1, 0), Identity::Name("unnamed 1".to_owned()));
            assert_eq!(found(0, 1), Identity::Name("unnamed 2".to_owned()));
            let bound = |op: usize, used: usize| {
                let storage = trace.ops[op].uses[used].storage;
                bindings.iter().find(|(named, _)| *named == storage).map(|&(_, storage)| storage)
            };
            assert_eq!([bound(1, 0), bound(0, 1)], weights.map(Some));
        }
    }
}

#[test]
fn one_that_goes_in_the_next_step_is_the_previous_instance() {
    let mut program = Program::new();
    let weight = program.parameter("weight");
    let mut kept: Option<StorageId> = None;
    for step in 1..=4 {
        program.begin();
        program.op(&kept.map_or(vec![weight], |kept| vec![weight, kept]));
        kept.take().into_iter().for_each(|kept| program.die(kept));
        kept = Some(program.make(&[weight]));
        let ended = program.end();
        if step > 2 {
            let trace = ended.map_err(|why| format!("step {step}: {why}")).unwrap().trace;
            assert!(trace.ops[0].uses[1].previous && trace.ops[0].deaths[0].previous);
        }
    }
}

#[test]
fn one_that_outlives_its_step_by_chance_holds_no_step_back() {
    let mut program = Program::new();
    let weight = program.parameter("weight");
    let mut late: Option<StorageId> = None;
    let mut first = None;
    for step in 1..=6 {
        program.begin();
        let made = program.make(&[weight]);
        late.take().into_iter().for_each(|late| program.die(late));
        program.op(&[weight, made]);
        // A collective still uses it when the step ends.
        if step == 4 {
            late = Some(made);
        } else {
            program.die(made);
        }
        let ended = program.end();
        if step > 2 {
            let trace = ended.map_err(|why| format!("step {step}: {why}")).unwrap().trace;
            assert_eq!(*first.get_or_insert(trace.fingerprint()), trace.fingerprint());
        }
    }
}

#[test]
fn a_step_is_held_back_with_the_reason() {
    let mut program = Program::new();
    let weight = program.parameter("weight");
    let mut why = |ops: usize| {
        program.begin();
        (0..ops).for_each(|_| program.op(&[weight]));
        program.end().err()
    };
    let reasons = [why(0), why(2), why(3), why(3)];
    assert!(reasons[0].as_ref().unwrap().contains("budget was not reached"), "{reasons:?}");
    assert!(reasons[1].as_ref().unwrap().contains("first that was recorded"), "{reasons:?}");
    assert_eq!(reasons[2].as_deref(), Some("3 ops, 2 in the step before"));
    assert_eq!(reasons[3], None);
}
