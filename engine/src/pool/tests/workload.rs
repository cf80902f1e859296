//! Random programs against a reference model: what a pool must answer at any time, across faults,
//! power cuts and reopenings. A failure prints its seed; `TIDELOG_SEED` replays it.

use crate::log::{Durability, Lane, PutRequest};
use std::collections::BTreeMap;

use super::*;
use crate::log::random::seeds;
use crate::path::OperationKind;
use crate::path::sim::{Fault, SimProfile};

type Tensors = BTreeMap<u128, Vec<u8>>;

struct Program {
    seed: u64,
    step: u32,
    /// Ids in use: few leave the pool mostly empty, many keep it nearly full.
    ids: u64,
    random: Random,
    disks: Vec<SimDisk>,
    pool: Pool,
    durable: Tensors,
    scratch: Tensors,
    /// Puts whose end was not waited for, in the order of their calls.
    in_flight: Vec<Ticket>,
}

impl Program {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let disks: Vec<SimDisk> = (0..=random.below(4))
            .map(|_| {
                let profile = SimProfile { seed: random.draw(), ..SimProfile::default() };
                SimDisk::with_profile(ByteCount::mib(2 + random.below(3)), profile)
            })
            .collect();
        let options = FormatOptions {
            stripe_unit: ByteCount::kib(4 << random.below(4)),
            ..FormatOptions::default()
        };
        Pool::format(&disks, &options).unwrap();
        let pool = open(&disks);
        let (durable, scratch) = (Tensors::new(), Tensors::new());
        let (step, in_flight) = (0, Vec::new());
        Self { seed, step, ids: 12, random, disks, pool, durable, scratch, in_flight }
    }

    /// A program that keeps its pool 70 to 95 % full.
    fn crowded(seed: u64) -> Self {
        let program = Self::new(seed);
        let tensors = program.pool.description().capacity.0 / 20_000;
        Self { ids: tensors, ..program }
    }

    fn at(&self) -> String {
        format!("TIDELOG_SEED={}, step {}", self.seed, self.step)
    }

    fn content(&mut self) -> Vec<u8> {
        let length_max = if self.random.chance(6) { 600_000 } else { 20_000 };
        let length = self.random.below(length_max) as usize;
        bytes(self.random.draw(), length)
    }

    /// Scratch and durable ids are apart, since one may not replace the other at will.
    fn scratch_id(&mut self) -> u128 {
        u128::from(self.random.below(self.ids))
    }

    fn durable_id(&mut self) -> u128 {
        100_000 + u128::from(self.random.below(self.ids))
    }

    fn options(&mut self) -> PutOptions {
        let lifetime = LifetimeClass::ALL[self.random.below(3) as usize];
        let may = self.pool.description().geometry.check_copies(Copies::Two).is_ok();
        let copies = (may && self.random.chance(3)).then_some(Copies::Two);
        PutOptions { lifetime, copies, ..PutOptions::default() }
    }

    fn put(&mut self) {
        let (id, content, options) = (self.scratch_id(), self.content(), self.options());
        self.put_this(id, content, options);
    }

    fn put_this(&mut self, id: u128, content: Vec<u8>, options: PutOptions) {
        match self.pool.put(TensorId(id), Source::from(content.clone()), options) {
            Ok(ticket) => {
                self.in_flight.push(ticket);
                self.scratch.insert(id, content);
            }
            Err(PutError::PoolFull { needed, available, space, .. }) => {
                assert!(needed > available && available <= space.free, "{}", self.at());
            }
            Err(error) => panic!("{}: {error}", self.at()),
        }
    }

    fn settle(&mut self) {
        for ticket in self.in_flight.drain(..) {
            ticket.wait().unwrap_or_else(|error| {
                panic!("TIDELOG_SEED={}, step {}: {error}", self.seed, self.step)
            });
        }
    }

    fn read(&mut self) {
        self.settle();
        let durable = self.random.chance(2);
        let id = if durable { self.durable_id() } else { self.scratch_id() };
        let model = if durable { &self.durable } else { &self.scratch };
        let Some(content) = model.get(&id) else {
            assert!(!self.pool.contains(TensorId(id)), "{}: {id}", self.at());
            return;
        };
        let length = content.len() as u64;
        assert_eq!(self.pool.length(TensorId(id)), Some(length), "{}: {id}", self.at());
        let start = self.random.below(length + 1);
        let end = start + self.random.below(length - start + 1);
        let found = get_range(&self.pool, id, start..end);
        assert!(found == content[start as usize..end as usize], "{}: {id}", self.at());
    }

    /// A put that needs no reclamation, which would wait for disks that stand still.
    fn put_if_it_fits(&mut self) {
        let (id, content) = (self.scratch_id(), self.content());
        // A first second copy would wait for the superblocks.
        let options = PutOptions { copies: None, ..self.options() };
        let (class, copies) = (options.lifetime, Copies::One);
        let lane = Lane { durability: Durability::Scratch, class, copies };
        let request =
            PutRequest { id: TensorId(id), name: None, length: content.len() as u64, lane };
        let begun = self.pool.0.shared.contents().begin_apart(request);
        if let Ok(reservation) = begun {
            self.pool.0.shared.contents().abandon(&reservation);
            self.put_this(id, content, options);
        }
    }

    /// Reclaims a segment; what its tensors hold does not change.
    fn reclaim(&mut self) {
        self.settle();
        let before = self.check_space();
        let reclaimed = self.pool.reclaim_once();
        let reclaimed = reclaimed.unwrap_or_else(|error| panic!("{}: {error}", self.at()));
        let after = self.check_space();
        assert_eq!(before.live, after.live, "{}: {reclaimed:?}", self.at());
        match reclaimed {
            Some(reclaimed) => {
                assert!(reclaimed.freed.0 > 0, "{}", self.at());
                assert_eq!(before.dead.0 - after.dead.0, reclaimed.freed.0, "{}", self.at());
            }
            None => assert_eq!(before, after, "{}", self.at()),
        }
    }

    /// Checks that all is whole, and that a scrub changes nothing.
    fn scrub(&mut self) {
        self.settle();
        let report = self.pool.scrub().unwrap_or_else(|error| panic!("{}: {error}", self.at()));
        assert_eq!(report.damaged, [], "{}", self.at());
        let model = self.scratch.values().chain(self.durable.values());
        let (tensors, bytes) = model.fold((0, 0), |(n, sum), it| (n + 1, sum + it.len() as u64));
        assert_eq!((report.tensors, report.bytes.0), (tensors, bytes), "{}", self.at());
    }

    /// A reclamation that a device fails in, or in which the power goes, at any of its writes or
    /// flushes.
    fn reclaim_with_a_fault(&mut self) {
        self.settle();
        let kind = [OperationKind::Write, OperationKind::Flush][self.random.below(2) as usize];
        let disk = self.random.below(self.disks.len() as u64) as usize;
        self.disks[disk].plan_fault(kind, self.random.below(8), Fault::Errno(5));
        let reclaimed = self.pool.reclaim_once();
        let in_doubt = matches!(reclaimed, Err(ReclaimError::Commit(CommitError::InDoubt(_))));
        self.check_space();
        for (id, content) in &self.scratch {
            assert!(get(&self.pool, *id).unwrap() == *content, "{}: {id}", self.at());
        }
        self.check_all();
        if in_doubt || self.random.chance(2) {
            self.crash();
        }
        self.check_all();
        self.reopen_after_fault();
    }

    /// Reads that stand still while what they read is replaced and deleted.
    fn overlap(&mut self) {
        self.settle();
        self.disks.iter().for_each(SimDisk::hold);
        let mut reads = Vec::new();
        for (&id, content) in self.scratch.iter().chain(&self.durable) {
            if !self.random.chance(2) {
                reads.push((start_get(&self.pool, id, 0..content.len() as u64), content.clone()));
            }
        }
        for _ in 0..self.random.below(12) {
            if self.random.chance(2) {
                self.delete();
            } else {
                self.put_if_it_fits();
            }
            self.check_space();
        }
        self.disks.iter().for_each(SimDisk::release);
        for (read, content) in reads {
            read.wait().unwrap_or_else(|error| panic!("{}: {error}", self.at()));
            assert!(read.take_bytes().unwrap() == content, "{}", self.at());
        }
    }

    fn delete(&mut self) {
        let id = self.scratch_id();
        let expected = match self.scratch.remove(&id) {
            Some(_) => Ok(()),
            None => Err(DeleteError::Unknown(TensorId(id).into())),
        };
        let deleted = self.pool.delete(TensorId(id));
        assert_eq!(deleted, expected, "{}", self.at());
    }

    /// A batch; sometimes a device fails in the middle, sometimes nobody commits it.
    fn batch(&mut self) {
        self.settle();
        let mut after = self.durable.clone();
        let mut batch = self.pool.batch();
        if self.random.chance(4) {
            let kind = [OperationKind::Write, OperationKind::Flush][self.random.below(2) as usize];
            let disk = self.random.below(self.disks.len() as u64) as usize;
            self.disks[disk].plan_fault(kind, self.random.below(6), Fault::Errno(5));
        }
        for _ in 0..=self.random.below(5) {
            let id = self.durable_id();
            if self.random.chance(3) {
                let deleted = batch.delete(TensorId(id));
                assert_eq!(deleted.is_ok(), after.contains_key(&id), "{}", self.at());
                after.remove(&id);
                continue;
            }
            let (content, options) = (self.content(), self.options());
            match batch.put(TensorId(id), Source::from(content.clone()), options) {
                Ok(_) => drop(after.insert(id, content)),
                // The fault of the batch may have hit the superblocks.
                Err(PutError::PoolFull { .. } | PutError::Announce(_)) => (),
                Err(error) => panic!("{}: {error}", self.at()),
            }
        }
        if self.random.chance(5) {
            drop(batch);
            return self.reopen_after_fault();
        }
        if batch.commit().is_ok() {
            self.durable = after;
        } else {
            // Until the pool is opened again the state before is what is seen.
            self.check_all();
            self.crash();
            if self.found() == after {
                self.durable = after;
            }
            // Whole or not at all.
            self.check_all();
        }
        self.reopen_after_fault();
    }

    /// A fault that has not happened would happen somewhere else; one that has latched its device.
    fn reopen_after_fault(&mut self) {
        self.disks.iter().for_each(SimDisk::clear_faults);
        if self.random.chance(2) {
            let closed = self.pool.close();
            assert!(matches!(closed, Ok(()) | Err(CloseError::InDoubt(_))), "{closed:?}");
        }
        self.reopen();
    }

    fn crash(&mut self) {
        let cut = match self.random.below(3) {
            0 => PowerCut::DropAll,
            1 => PowerCut::KeepAll,
            _ => PowerCut::Torn(self.random.draw()),
        };
        self.disks.iter().for_each(|disk| disk.cut_power(cut));
        self.disks.iter().for_each(SimDisk::clear_faults);
        self.reopen();
    }

    fn reopen(&mut self) {
        self.in_flight.clear();
        self.scratch.clear();
        // The old handle goes first: its reactor must not drive the disks any more.
        drop(self.pool.close());
        self.pool = open(&self.disks);
    }

    fn found(&self) -> Tensors {
        let tensors = self.pool.durable_tensors().unwrap();
        tensors.iter().map(|(id, _)| (id.0, get(&self.pool, id.0).unwrap())).collect()
    }

    /// Checks that nothing leaked, nothing overlaps, and the parts sum to the capacity.
    fn check_space(&self) -> SpaceUse {
        let audit = self.pool.audit();
        let space = audit.unwrap_or_else(|broken| panic!("{}: {broken}", self.at()));
        let sum = space.live.0 + space.dead.0 + space.free.0 + space.reserved.0 + space.index.0;
        assert_eq!(sum, space.capacity.0, "{}", self.at());
        space
    }

    /// Brings a crowded pool back to between 70 and 95 %.
    fn keep_crowded(&mut self) {
        if self.ids == 12 {
            return;
        }
        loop {
            self.settle();
            let space = self.check_space();
            let percent = 100 * space.live.0 / space.capacity.0;
            if percent < 70 {
                self.put();
            } else if percent > 95 {
                let id = *self.scratch.keys().next().expect("durable tensors do not fill a pool");
                self.scratch.remove(&id);
                self.pool.delete(TensorId(id)).unwrap();
            } else {
                break;
            }
        }
    }

    fn check_all(&mut self) {
        assert!(self.found() == self.durable, "{}", self.at());
    }

    fn run(&mut self, steps: u32) {
        for step in 0..steps {
            self.step = step;
            match self.random.below(46) {
                0..14 => self.put(),
                14..24 => self.read(),
                24..28 => self.delete(),
                28..32 => self.overlap(),
                32..38 => self.batch(),
                38 => {
                    self.crash();
                    self.check_all();
                }
                39 => self.settle(),
                40 => self.reclaim_with_a_fault(),
                41 => self.scrub(),
                _ => self.reclaim(),
            }
            self.check_space();
            self.keep_crowded();
        }
        self.settle();
        self.check_all();
    }
}

#[test]
fn a_pool_answers_like_the_model_through_faults_and_power_cuts() {
    for seed in seeds(60) {
        Program::new(seed).run(120);
    }
}

#[test]
fn a_crowded_pool_reclaims_and_answers_like_the_model() {
    for seed in seeds(24) {
        Program::crowded(seed).run(100);
    }
}
