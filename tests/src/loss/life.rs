//! One life, from a seed.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tidelog_engine::layout::{DeviceRates, LifetimeClass, TensorId};
use tidelog_engine::memory::{Destination, Source};
use tidelog_engine::path::sim::{PowerCut, SimDisk, SimProfile};
use tidelog_engine::pool::inspect::{check, check_degraded};
use tidelog_engine::pool::{
    Batch, Copies, FormatOptions, OpenError, OpenOptions, Pool, PutError, PutOptions,
    ReplaceOptions, begin_replacement, replace,
};
use tidelog_engine::schedule::{Ticket, Urgency};
use tidelog_engine::units::ByteCount;
use tidelog_random::Random;

use super::model::{DurableChanges, DurableState, DurableStates};
use super::reshape::ReshapeFigures;
use crate::sim::Content;

pub(super) const SIZE: ByteCount = ByteCount::mib(4);
const TENSORS: u64 = 8;
const SEALS: u64 = 3;
/// Commits in flight at most.
const IN_FLIGHT: usize = 3;
/// Acts before the loss at most, and of each part of a life after it.
const ACTS: u64 = 60;

/// Figures of lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LossFigures {
    /// Devices that were lost.
    pub losses: u64,
    /// Devices that were lost while a commit, a seal or a reclamation was under way.
    pub during_work: u64,
    /// Devices that came back and were refused.
    pub refused: u64,
    /// Processes that were killed while they replaced a device.
    pub kills: u64,
    /// Changes of the pool's devices.
    pub reshapes: ReshapeFigures,
    /// Devices that were replaced.
    pub replaced: u64,
    /// Devices that were made again while the pool was used, of these.
    pub replaced_in_use: u64,
    /// Processes that were killed while they used such a pool.
    pub kills_in_use: u64,
    /// Second losses, after the first device was replaced.
    pub second_losses: u64,
    /// Times that tensors lay on faster devices alone, because devices differ in rate.
    pub shared_out: u64,
    /// Commits that returned well.
    pub commits: u64,
    /// Tensors that were compared, byte by byte.
    pub compared: u64,
}

impl LossFigures {
    /// Adds those of another life.
    pub fn add(&mut self, other: &Self) {
        self.losses += other.losses;
        self.during_work += other.during_work;
        self.refused += other.refused;
        self.kills += other.kills;
        self.reshapes.add(&other.reshapes);
        self.replaced += other.replaced;
        self.replaced_in_use += other.replaced_in_use;
        self.kills_in_use += other.kills_in_use;
        self.second_losses += other.second_losses;
        self.shared_out += other.shared_out;
        self.commits += other.commits;
        self.compared += other.compared;
    }
}

pub(super) type Check<T = ()> = Result<T, String>;

/// Lives the life of a seed. A panic of the engine ends it, too.
///
/// # Errors
/// Something was lost, or was mixed in that must not be.
pub fn live(seed: u64) -> Result<LossFigures, String> {
    let mut life = PoolLife::new(seed);
    let lived = catch_unwind(AssertUnwindSafe(|| life.run()));
    let result = lived.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("?");
        Err(format!("the engine panicked: {text}"))
    });
    result.map(|()| life.figures)
}

/// A pool and what should be in it.
pub(super) struct PoolLife {
    pub(super) random: Random,
    /// Disks in stripe order.
    pub(super) disks: Vec<SimDisk>,
    /// The place of each in the pool.
    pub(super) places: Vec<u32>,
    /// Places that the pool has had.
    pub(super) had: u32,
    /// Disks that were emptied, by their numbers among the others.
    pub(super) emptied: Option<usize>,
    /// Disks that were removed.
    pub(super) removed: Vec<SimDisk>,
    pub(super) copies: Copies,
    /// The number of the disk that is missing.
    pub(super) missing: Option<usize>,
    states: DurableStates,
    pub(super) pool: Option<Pool>,
    pub(super) figures: LossFigures,
}

impl PoolLife {
    /// Formats the pool of a seed.
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x006C_6F73_7365_7300);
        // With one copy none may be lost; they come and go.
        let copies = if random.chance(4) { Copies::One } else { Copies::Two };
        let count = u64::from(copies.count()) + random.below(4);
        let disks: Vec<SimDisk> = (0..count).map(|_| disk(&mut random)).collect();
        let options = FormatOptions {
            stripe_unit: ByteCount::kib(4 << random.below(4)),
            copies,
            pool_id: Some(u128::from(seed) + 1),
            rates: random.chance(2).then(|| rates(&mut random)),
            ..FormatOptions::default()
        };
        Pool::format(&disks, &options).expect("blank disks can be formatted");
        Self {
            random,
            places: (0..disks.len() as u32).collect(),
            had: disks.len() as u32,
            disks,
            emptied: None,
            removed: Vec::new(),
            copies,
            missing: None,
            states: DurableStates::default(),
            pool: None,
            figures: LossFigures::default(),
        }
    }

    fn run(&mut self) -> Check {
        self.open()?;
        self.work(ACTS)?;
        if self.copies == Copies::One {
            for _ in 0..=self.random.below(5) {
                self.reshape()?;
                self.work(ACTS / 4)?;
            }
            return self.end();
        }
        if self.random.chance(3) {
            self.reshape()?;
            self.work(ACTS / 4)?;
        }
        self.lose()?;
        self.open_without()?;
        self.work(ACTS)?;
        let old = self.missing.map(|lost| self.disks[lost].clone());
        self.come_back(old.as_ref())?;
        if self.random.chance(4) {
            // For ever without it.
            return self.end();
        }
        let is_removed = self.random.chance(4) && self.disks.len() > 3 && self.remove_lost()?;
        if !is_removed {
            self.replace()?;
            self.come_back(old.as_ref())?;
            self.missing = None;
        }
        self.open()?;
        self.work(ACTS / 2)?;
        if self.random.chance(3) {
            self.reshape()?;
            self.work(ACTS / 4)?;
        }
        self.figures.second_losses += 1;
        self.lose()?;
        self.open_without()?;
        self.work(ACTS / 4)?;
        self.end()
    }

    /// Does some random things.
    pub(super) fn work(&mut self, acts: u64) -> Check {
        for _ in 0..self.random.below(acts) + acts / 2 {
            self.act()?;
        }
        Ok(())
    }

    fn act(&mut self) -> Check {
        let pool = self.pool.clone().ok_or("no pool is open")?;
        match self.random.below(20) {
            0..8 => self.commit(&pool)?,
            8..10 => self.seal(&pool)?,
            10..13 => self.put_scratch(&pool)?,
            13..15 => drop(pool.reclaim_once().map_err(text)?),
            15 => drop(pool.step(self.random.below(30)).map_err(text)?),
            16..18 => self.wait_for(0)?,
            18 => {
                self.wait_for(0)?;
                pool.audit()?;
                self.compare(&pool)?;
                let table = pool.description().table;
                let faster = table.weighted_sets().into_iter().skip(1);
                let uses = |number: u8| pool.striped_over(&|set| set == number) > 0;
                self.figures.shared_out += u64::from(faster.into_iter().any(|it| uses(it.0)));
            }
            _ => {
                drop(pool);
                self.leave()?;
                self.open()?;
            }
        }
        Ok(())
    }

    fn content(&mut self) -> Content {
        let longest = self.random.pick(&[3000, 20_000, 90_000]);
        let length = self.random.below(longest) as u32;
        Content { length, salt: self.random.draw() as u32 }
    }

    fn options(&mut self, copies: Option<Copies>) -> PutOptions {
        let lifetime = self.random.pick(&LifetimeClass::ALL);
        PutOptions { lifetime, copies, ..PutOptions::default() }
    }

    /// Starts a commit of some puts and deletions.
    pub(super) fn commit(&mut self, pool: &Pool) -> Check {
        self.wait_for(IN_FLIGHT - 1)?;
        let there = self.states.last();
        let (mut changes, mut batch) = (DurableChanges::default(), pool.batch());
        for _ in 0..=self.random.below(3) {
            let (id, content) = (self.random.below(TENSORS) as u8, self.content());
            if self.random.chance(5) {
                let is_put = changes.tensors.get(&id).map(Option::is_some);
                if is_put.unwrap_or(there.tensors.contains_key(&id)) {
                    batch.delete(tensor(id)).map_err(text)?;
                    changes.tensors.insert(id, None);
                }
                continue;
            }
            let options = self.options(None);
            match batch.put(tensor(id), Source::from(content.bytes()), options) {
                Ok(_) => drop(changes.tensors.insert(id, Some(content))),
                Err(PutError::PoolFull { .. }) => return self.empty(pool),
                Err(error) => return Err(format!("a durable put was refused: {error}")),
            }
        }
        self.begin(batch, changes)
    }

    /// Deletes all that is there.
    fn empty(&mut self, pool: &Pool) -> Check {
        self.wait_for(0)?;
        let there = self.states.last();
        let (mut changes, mut batch) = (DurableChanges::default(), pool.batch());
        for id in there.tensors.into_keys() {
            batch.delete(tensor(id)).map_err(text)?;
            changes.tensors.insert(id, None);
        }
        for name in there.seals.into_keys() {
            batch.drop_seal(&called(name)).map_err(text)?;
            changes.seals.insert(name, None);
        }
        self.begin(batch, changes)
    }

    /// Starts to seal some of what is there.
    fn seal(&mut self, pool: &Pool) -> Check {
        self.wait_for(0)?;
        let there = self.states.last();
        let name = self.random.below(SEALS) as u8;
        let random = &mut self.random;
        let sealed = there.tensors.into_iter().filter(|_| random.chance(2));
        let sealed: BTreeMap<u8, Content> = sealed.collect();
        let mut batch = pool.batch();
        let ids: Vec<TensorId> = sealed.keys().map(|id| tensor(*id)).collect();
        batch.seal(&called(name), ids).map_err(text)?;
        let seals = BTreeMap::from([(name, Some(sealed))]);
        self.begin(batch, DurableChanges { seals, ..DurableChanges::default() })
    }

    fn begin(&mut self, batch: Batch, changes: DurableChanges) -> Check {
        let commit = batch.start_commit().map_err(text)?;
        self.states.start(commit, changes);
        Ok(())
    }

    /// Puts a scratch tensor, and reads it if nothing else comes between.
    fn put_scratch(&mut self, pool: &Pool) -> Check {
        let (content, options) = (self.content(), self.options(None));
        let id = TensorId(5000 + u128::from(self.random.below(4)));
        match pool.put(id, Source::from(content.bytes()), options) {
            Ok(ticket) if self.random.chance(2) => {
                ticket.wait().map_err(|error| format!("a scratch put failed: {error}"))?;
                let get = |memory, range| pool.get(id, range, memory, Urgency::Urgent, None);
                if read(get, content)? != content.bytes() {
                    return Err("a scratch tensor has other bytes".into());
                }
                Ok(())
            }
            Ok(_) | Err(PutError::PoolFull { .. }) => Ok(()),
            Err(error) => Err(format!("a scratch put was refused: {error}")),
        }
    }

    /// Waits until at most this many commits are in flight.
    pub(super) fn wait_for(&mut self, left: usize) -> Check {
        while self.states.in_flight() > left {
            self.states.wait().map_err(|error| format!("a commit failed: {error}"))?;
            self.figures.commits += 1;
        }
        Ok(())
    }

    /// A device is gone at some step, with all that it has in flight, and the process ends.
    fn lose(&mut self) -> Check {
        let lost = self.random.below(self.disks.len() as u64) as usize;
        self.figures.losses += 1;
        let pool = self.pool.clone().ok_or("no pool is open")?;
        // Something is under way, most often.
        let busy = !self.random.chance(4);
        if busy {
            self.figures.during_work += 1;
            match self.random.below(3) {
                0 => self.commit(&pool)?,
                1 => self.seal(&pool)?,
                _ => {
                    self.commit(&pool)?;
                    pool.step(self.random.below(12)).map_err(text)?;
                }
            }
            pool.step(self.random.below(12)).map_err(text)?;
        }
        if busy && self.random.chance(2) {
            // It goes at a write of its own, with whatever is done then: what fails, fails.
            let nth = self.random.below(6);
            let cut = self.cut();
            SimDisk::cut_power_at(&self.disks[lost..=lost], nth, cut);
            let _ = pool.reclaim_once();
            let _ = pool.step(40);
            let _ = self.goes_on(&pool);
        }
        self.disks[lost].remove_device();
        if self.random.chance(2) {
            let _ = self.goes_on(&pool);
        }
        drop(pool);
        if self.random.chance(2) {
            self.crash();
        } else {
            self.end_process();
        }
        never_cut(&self.disks);
        self.missing = Some(lost);
        Ok(())
    }

    /// Commits once more, whatever comes of it.
    fn goes_on(&mut self, pool: &Pool) -> Result<(), String> {
        if self.states.in_flight() < IN_FLIGHT {
            self.commit(pool)?;
        }
        pool.step(60).map_err(text)?;
        Ok(())
    }

    pub(super) fn cut(&mut self) -> PowerCut {
        let seed = self.random.draw();
        self.random.pick(&[PowerCut::DropAll, PowerCut::KeepAll, PowerCut::Torn(seed)])
    }

    /// The process ends, or the power goes.
    fn leave(&mut self) -> Check {
        if self.random.chance(2) {
            self.wait_for(0)?;
            return self.close();
        }
        self.crash();
        Ok(())
    }

    /// The power goes.
    fn crash(&mut self) {
        let cut = self.cut();
        self.disks.iter().for_each(|disk| disk.cut_power(cut));
        self.end_process();
    }

    fn end_process(&mut self) {
        if let Some(pool) = self.pool.take() {
            let _ = pool.close();
        }
        self.figures.commits += self.states.take_what_returned();
    }

    pub(super) fn close(&mut self) -> Check {
        match self.pool.take() {
            Some(pool) => pool.close().map_err(text),
            None => Ok(()),
        }
    }

    /// The disks that are there.
    pub(super) fn present(&self) -> Vec<SimDisk> {
        let disks = self.disks.iter().enumerate();
        let disks = disks.filter(|(place, _)| Some(*place) != self.missing);
        disks.map(|(_, disk)| disk.clone()).collect()
    }

    /// Opens what is there, and compares all of it.
    pub(super) fn open(&mut self) -> Check {
        let degraded = self.missing.is_some();
        let pool = Pool::open(&self.present(), &options(degraded));
        let pool = pool.map_err(|error| format!("it cannot be opened: {error}"))?;
        let found = self.found(&pool)?;
        self.states.found(found);
        self.compare(&pool)?;
        self.pool = Some(pool);
        Ok(())
    }

    /// Opens the pool without a device, which is refused unless that is asked for.
    fn open_without(&mut self) -> Check {
        let present = self.present();
        let report = check_degraded(&present, true, &mut |_| ()).map_err(text)?;
        if let Some(lost) = report.damaged_tensors().next() {
            return Err(format!("check calls something lost: {lost}"));
        }
        match Pool::open(&present, &options(false)) {
            Err(OpenError::Missing { count: 1, .. }) => self.open(),
            Err(error) => Err(format!("a device is missing, not: {error}")),
            Ok(_) => Err("a pool without one of its devices was opened unasked".into()),
        }
    }

    /// Returns which of the states that may be there is there.
    fn found(&self, pool: &Pool) -> Check<DurableState> {
        let ids = pool.durable_tensors().map_err(text)?;
        let mut lengths = BTreeMap::new();
        for (id, _) in ids {
            lengths.insert((id.0 - 1) as u8, pool.length(id).ok_or("it is listed")? as u32);
        }
        let seals = pool.seals().map_err(text)?;
        let seals: BTreeMap<String, usize> =
            seals.into_iter().map(|seal| (seal.name, seal.tensors)).collect();
        let is_there = |state: &&DurableState| {
            let expected: BTreeMap<u8, u32> =
                state.tensors.iter().map(|(id, content)| (*id, content.length)).collect();
            let sealed: BTreeMap<String, usize> =
                state.seals.iter().map(|(name, held)| (called(*name), held.len())).collect();
            expected == lengths && sealed == seals
        };
        let possible = self.states.possible();
        let mut fitting = possible.iter().filter(is_there);
        let whole = fitting.find(|state| Self::has(pool, state).is_ok());
        let count = possible.len();
        whole.cloned().ok_or_else(|| {
            format!("none of {count} states is there: tensors {lengths:?}, seals {seals:?}")
        })
    }

    /// Compares every byte with a state.
    fn has(pool: &Pool, state: &DurableState) -> Check<u64> {
        let mut compared = 0;
        let mut compare = |what: String, found: Vec<u8>, content: Content| {
            compared += 1;
            if found == content.bytes() { Ok(()) } else { Err(format!("{what} has other bytes")) }
        };
        for (&id, &content) in &state.tensors {
            let get = |memory, range| pool.get(tensor(id), range, memory, Urgency::Urgent, None);
            compare(format!("tensor {id}"), read(get, content)?, content)?;
        }
        for (&name, held) in &state.seals {
            for (&id, &content) in held {
                let get = |memory, range| {
                    pool.get_sealed(&called(name), tensor(id), range, memory, Urgency::Urgent, None)
                };
                compare(format!("{id} in seal {name}"), read(get, content)?, content)?;
            }
        }
        Ok(compared)
    }

    fn compare(&mut self, pool: &Pool) -> Check {
        let state = self.states.last();
        self.figures.compared += Self::has(pool, &state)?;
        if self.missing.is_some() && pool.stats().map_err(text)?.lost > 0 {
            return Err("durable tensors with two copies are called lost".into());
        }
        Ok(())
    }

    /// The device that was lost is there again, as it was: nobody takes it in, however it is asked.
    fn come_back(&mut self, old: Option<&SimDisk>) -> Check {
        let (Some(old), Some(lost)) = (old, self.missing) else { return Ok(()) };
        self.wait_for(0)?;
        if self.random.chance(2) {
            self.close()?;
        } else {
            self.crash();
        }
        let mut disks = self.disks.clone();
        disks[lost] = old.clone();
        let lies = OpenOptions { accept_older_copies: self.random.chance(2), ..options(false) };
        let is_replaced = self.disks[lost].size() > SIZE;
        for asked in [options(false), options(true), lies] {
            // Who says that an older copy counts takes that of a pool that is whole.
            if is_replaced && asked.accept_older_copies {
                continue;
            }
            match Pool::open(&disks, &asked) {
                Err(OpenError::Stale { .. }) => (),
                Err(OpenError::OlderCopy { .. }) if is_replaced => (),
                Err(error) => return Err(format!("it is stale, not: {error}")),
                Ok(_) => return Err("a device that missed commits was taken in".into()),
            }
        }
        self.figures.refused += 1;
        if !is_replaced {
            self.open()?;
        }
        Ok(())
    }

    /// Replaces the device that is missing, with kills on the way.
    fn replace(&mut self) -> Check {
        let Some(lost) = self.missing else { return Ok(()) };
        self.wait_for(0)?;
        self.close()?;
        let size = ByteCount(SIZE.0 + (1 << 20));
        let new = SimDisk::with_profile(size, profile(&mut self.random));
        let others = self.present();
        let mut all = others.clone();
        all.push(new.clone());
        let mut options = ReplaceOptions::default();
        for attempt in 0.. {
            if self.random.chance(3) && self.replace_in_use(&new, &options)? {
                break;
            }
            let is_killed = attempt < 6 && !self.random.chance(4);
            if is_killed {
                let (nth, cut) = (self.random.below(40 << attempt), self.cut());
                SimDisk::cut_power_at(&all, nth, cut);
            } else {
                never_cut(&all);
            }
            match replace(&new, &others, &options, &mut |_| ()) {
                Ok(done) if done.lost.is_empty() => break,
                Ok(done) => return Err(format!("the replacement lacks {:?}", done.lost)),
                Err(_) if all.iter().any(SimDisk::is_off) => self.figures.kills += 1,
                Err(error) => return Err(format!("attempt {attempt} to replace: {error}")),
            }
            never_cut(&all);
            if self.random.chance(3) {
                // The pool is used without it meanwhile, which may leave it behind once it was
                // whole.
                options.overwrite = true;
                self.open()?;
                let pool = self.pool.clone().ok_or("no pool is open")?;
                self.commit(&pool)?;
                self.wait_for(0)?;
                drop(pool);
                self.close()?;
            }
        }
        never_cut(&all);
        self.figures.replaced += 1;
        self.disks[lost] = new;
        let report = check(&self.disks, true, &mut |_| ()).map_err(text)?;
        if let Some(damage) = report.damage.first() {
            return Err(format!("after the replacement check finds: {damage}"));
        }
        Ok(())
    }

    /// Has a new device made again while the pool is used, unless the process is killed before.
    /// Returns whether it was.
    fn replace_in_use(&mut self, new: &SimDisk, how: &ReplaceOptions) -> Check<bool> {
        let Some(lost) = self.missing else { return Ok(false) };
        let (_, was_whole) = begin_replacement(new, &self.present(), how).map_err(text)?;
        if was_whole {
            return Ok(true);
        }
        let old = std::mem::replace(&mut self.disks[lost], new.clone());
        self.missing = None;
        let options = options(true);
        let done = self.use_while_it_is_made(&options);
        if !matches!(done, Ok(true)) {
            (self.disks[lost], self.missing) = (old, Some(lost));
        }
        if matches!(done, Ok(false)) {
            // Without it all that had returned is there, too.
            self.open()?;
            self.close()?;
        }
        done
    }

    fn use_while_it_is_made(&mut self, options: &OpenOptions) -> Check<bool> {
        let pool = Pool::open(&self.disks, options);
        let pool = pool.map_err(|error| format!("a replacement that was begun: {error}"))?;
        let found = self.found(&pool)?;
        self.states.found(found);
        self.pool = Some(pool.clone());
        let rebuild = pool.rebuild(ByteCount::ZERO).map_err(text)?;
        let mut rebuild = rebuild.ok_or("nothing is made again")?;
        let is_killed = self.random.chance(2);
        while rebuild.step().map_err(text)?.is_some() {
            if is_killed && self.random.chance(2) {
                self.figures.kills_in_use += 1;
                drop((rebuild, pool));
                self.crash();
                return Ok(false);
            }
            match self.random.below(8) {
                0..3 => self.commit(&pool)?,
                3 => self.seal(&pool)?,
                4 => self.put_scratch(&pool)?,
                5 => drop(pool.reclaim_once().map_err(text)?),
                6 => drop(pool.step(self.random.below(30)).map_err(text)?),
                _ => {
                    self.wait_for(0)?;
                    self.compare(&pool)?;
                }
            }
        }
        rebuild.finish().map_err(text)?;
        drop(rebuild);
        // It goes on, and nothing takes back that it is whole.
        self.commit(&pool)?;
        self.seal(&pool)?;
        drop(pool);
        self.figures.replaced_in_use += 1;
        self.leave()?;
        let pool = Pool::open(&self.disks, &self::options(false));
        let pool = pool.map_err(|error| format!("it is whole, and not opened: {error}"))?;
        let found = self.found(&pool)?;
        self.states.found(found);
        self.compare(&pool)?;
        pool.close().map_err(text)?;
        Ok(true)
    }

    fn end(&mut self) -> Check {
        self.wait_for(0)?;
        self.close()?;
        let degraded = self.missing.is_some();
        let pool = Pool::open(&self.present(), &options(degraded)).map_err(text)?;
        self.compare(&pool)?;
        pool.audit()?;
        pool.close().map_err(text)
    }
}

fn profile(random: &mut Random) -> SimProfile {
    SimProfile {
        seed: random.draw(),
        latency_ticks_max: random.pick(&[1, 8, 64]),
        logical_block: random.pick(&[512, 4096]),
        volatile_cache: !random.chance(4),
        forced_writes: !random.chance(8),
    }
}

/// Rates by which segments are shared out; some are equal.
pub(super) fn rates(random: &mut Random) -> DeviceRates {
    let slowest = 1 + random.below(3);
    DeviceRates::of((0..64).map(|_| ByteCount::mib(slowest * random.pick(&[1, 1, 2, 4]))))
}

pub(super) fn disk(random: &mut Random) -> SimDisk {
    SimDisk::with_profile(SIZE, profile(random))
}

/// Takes back a power cut that has not come.
pub(super) fn never_cut(disks: &[SimDisk]) {
    SimDisk::cut_power_at(disks, u64::MAX - 1, PowerCut::KeepAll);
}

pub(super) fn options(degraded: bool) -> OpenOptions {
    OpenOptions {
        degraded,
        staging: ByteCount::kib(256),
        huge_pages: false,
        stepped: true,
        ..OpenOptions::default()
    }
}

fn read<E: Display>(
    get: impl FnOnce(Destination, Range<u64>) -> Result<Ticket, E>,
    content: Content,
) -> Check<Vec<u8>> {
    let length = content.length;
    let ticket = get(Destination::buffer(length as usize), 0..length.into()).map_err(text)?;
    ticket.wait().map_err(|error| format!("a read failed: {error}"))?;
    ticket.take_bytes().ok_or_else(|| "a read that ended well has no bytes".into())
}

fn tensor(id: u8) -> TensorId {
    TensorId(u128::from(id) + 1)
}

fn called(name: u8) -> String {
    format!("seal {name}")
}

pub(super) fn text(error: impl Display) -> String {
    error.to_string()
}
