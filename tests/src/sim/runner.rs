//! Executes a script on a pool and compares every answer with the model.

mod checks;
mod faults;
mod harm;
mod housekeeping;
mod life;
mod reads;
mod scratch;
mod seals;
mod structures;
mod trouble;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tidelog_engine::layout::{Copies, TensorId};
use tidelog_engine::path::sim::{SimDisk, SimProfile};
use tidelog_engine::pool::{FormatOptions, Pool, TensorKey};
use tidelog_engine::schedule::Ticket;
use tidelog_engine::units::ByteCount;

use super::commits::Started;
use super::coverage::{Coverage, FaultSeen, Under};
use super::model::{Content, Model};
use super::script::{Act, Cut, Script};
use faults::{AllowedErrors, power_cut};
use reads::ReadInFlight;
use scratch::Write;
use tidelog_random::Random;
use trouble::Copied;

/// Durable tensors have ids of their own: a scratch tensor may not take a durable one's place.
const DURABLE: u128 = 1000;
/// Number from which durable tensors have names that are as long as hundreds of other entries of
/// the index.
pub(super) const FILLERS: u16 = 256;

/// The pool did what it must not.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The act that showed it, counted from 0.
    pub act: usize,
    /// Description of the error.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "act {}: {}", self.act, self.what)
    }
}

/// Figures of a run.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// Acts done.
    pub acts: u64,
    /// Times the power went.
    pub crashes: u64,
    /// Faults that struck.
    pub faults: u64,
    /// Commits that returned well.
    pub commits: u64,
    /// Coverage of faults and states.
    pub coverage: Coverage,
}

/// Runs a script to its end or to the first violation. A panic of the engine is a violation.
pub fn run(script: &Script) -> (Figures, Result<(), Violation>) {
    let mut runner = Runner::new(script);
    let ended = catch_unwind(AssertUnwindSafe(|| runner.run()));
    let result = ended.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("?");
        Err(format!("the engine panicked: {text}"))
    });
    let violation = result.map_err(|what| Violation { act: runner.act, what });
    (std::mem::take(&mut runner.figures), violation)
}

pub(super) type Check = Result<(), String>;

/// A script under way.
pub struct Runner<'a> {
    pub(super) script: &'a Script,
    disks: Vec<SimDisk>,
    pub(super) pool: Option<Pool>,
    pub(super) model: Model,
    /// Commits that were in flight when this was last looked at, in the order of their start.
    pub(super) commits: Vec<Started>,
    writes: Vec<Write>,
    reads: Vec<ReadInFlight>,
    /// Writes of batches, which may outlive a batch that was given up.
    pub(super) staged: Vec<Ticket>,
    order: u64,
    pub(super) allowed_errors: AllowedErrors,
    /// Durable tensors that were found damaged; they stay so until they are written again.
    pub(super) lost: BTreeMap<u16, Content>,
    /// Lost versions that seals hold.
    lost_sealed: BTreeSet<(u16, bool, Content)>,
    /// Disks to whose start a write went that was not meant for it. What it left stays there.
    astray: BTreeSet<usize>,
    /// Disks of whose start something has rotted, or cannot be read. What is in places that nobody
    /// writes stays so.
    stained: BTreeSet<usize>,
    /// Number of times that the pool was opened.
    openings: u64,
    copied: Option<Copied>,
    /// True if something was done to the metadata once that no crash does. What is left of it in
    /// places that do not count is damage all the same.
    was_hurt: bool,
    /// True if the pool was closed well last.
    closed: bool,
    cut: Cut,
    act: usize,
    pub(super) figures: Figures,
}

impl<'a> Runner<'a> {
    /// Formats the script's disks.
    pub fn new(script: &'a Script) -> Self {
        let mut random = Random::new(script.seed);
        let disks: Vec<SimDisk> = (0..script.disks)
            .map(|_| {
                let latency_ticks_max = random.pick(&[1, 8, 64]);
                let logical_block = script.logical_block;
                let profile = SimProfile {
                    seed: random.draw(),
                    latency_ticks_max,
                    logical_block,
                    volatile_cache: !random.chance(4),
                    forced_writes: !random.chance(8),
                };
                SimDisk::with_profile(ByteCount::mib(2), profile)
            })
            .collect();
        let options = FormatOptions {
            stripe_unit: ByteCount::kib(script.stripe_kib),
            pool_id: Some(u128::from(script.seed) + 1),
            copies: if script.mirrors { Copies::Two } else { Copies::One },
            ..FormatOptions::default()
        };
        Pool::format(&disks, &options).expect("blank disks can be formatted");
        Self {
            script,
            disks,
            pool: None,
            model: Model::default(),
            commits: Vec::new(),
            writes: Vec::new(),
            reads: Vec::new(),
            staged: Vec::new(),
            order: 0,
            allowed_errors: AllowedErrors::default(),
            lost: BTreeMap::new(),
            lost_sealed: BTreeSet::new(),
            astray: BTreeSet::new(),
            stained: BTreeSet::new(),
            openings: 0,
            copied: None,
            was_hurt: false,
            closed: true,
            cut: Cut::Drop,
            act: 0,
            figures: Figures::default(),
        }
    }

    /// Does every act, then looks at everything once more.
    pub fn run(&mut self) -> Result<(), String> {
        self.open()?;
        for index in 0..self.script.acts.len() {
            self.act = index;
            self.figures.acts += 1;
            let act = &self.script.acts[index];
            self.perform(act).map_err(|what| format!("{act:?}: {what}"))?;
            self.process_completions()?;
            if self.disks.iter().any(SimDisk::is_off) && !self.allowed_errors.removed {
                self.recover()?;
            }
            self.reconcile()?;
        }
        self.complete()?;
        self.settle()?;
        self.reopen()?;
        self.check_everything()
    }

    fn perform(&mut self, act: &Act) -> Check {
        match act {
            Act::Put { id, content, class, urgent } => self.put(*id, *content, *class, *urgent),
            Act::Cancel => {
                if let Some(write) = self.writes.first() {
                    write.ticket.cancel();
                }
                Ok(())
            }
            Act::Settle => self.settle(),
            Act::Step(rounds) => {
                self.pool()?.step(u64::from(*rounds)).map_err(text)?;
                self.count_struck(Under::Rest);
                Ok(())
            }
            Act::Get { id, durable, from, to } => self.get(*id, *durable, *from, *to),
            Act::Begin { id, durable, slow } => self.begin(*id, *durable, *slow),
            Act::Land => self.complete(),
            Act::Verify { id, flipped } => self.verify(*id, *flipped),
            Act::Delete { id } => self.delete(*id),
            Act::Batch { puts, deletes, commit } => {
                let (puts, deletes) = widened(puts, deletes);
                if *commit { self.commit(&puts, &deletes) } else { self.give_up(&puts, &deletes) }
            }
            Act::Start { puts, deletes } => {
                let (puts, deletes) = widened(puts, deletes);
                self.start_commit(&puts, &deletes).map(drop)
            }
            Act::FillIndex { first, count, flight } => self.fill_index(*first, *count, *flight),
            Act::EmptyIndex { first, count } => self.empty_index(*first, *count),
            Act::Follow(nth) => {
                self.follow(*nth);
                Ok(())
            }
            Act::Seal { name, scratch, durable, dropped, flight } => {
                self.seal(*name, (scratch, durable), *dropped, *flight)
            }
            Act::PutAndSeal { name, puts, durable, flight } => {
                self.put_and_seal(*name, puts, durable, *flight)
            }
            Act::GiveUpSeal { name, scratch } => self.give_up_seal(*name, scratch),
            Act::DropSeal { name, flight } => self.drop_seal(*name, *flight),
            Act::GetSealed { name, nth } => self.get_sealed(*name, *nth),
            Act::Reclaim => self.reclaim(),
            Act::Scrub => self.scrub(),
            Act::Reopen => {
                self.complete()?;
                self.settle()?;
                self.reopen()
            }
            Act::Crash(cut) => {
                self.blow(*cut, Under::Rest);
                self.recover()
            }
            Act::CrashAt { nth, cut } => {
                self.cut = *cut;
                SimDisk::cut_power_at(&self.disks, u64::from(*nth), power_cut(*cut));
                Ok(())
            }
            Act::CrashTwice { nth, cut } => {
                self.blow(*cut, Under::Rest);
                self.close()?;
                SimDisk::cut_power_at(&self.disks, u64::from(*nth), power_cut(*cut));
                self.recover()
            }
            Act::Fault { disk, nth, see_fault } => {
                self.plan(*disk, *nth, *see_fault);
                Ok(())
            }
            Act::Rot { disk, metadata, at, mask } => self.spoil(*disk, *metadata, *at, Some(*mask)),
            Act::Lose { disk, metadata, at } => self.spoil(*disk, *metadata, *at, None),
            Act::Harm { harm, cut, repair } => self.harm(harm, *cut, *repair),
            Act::Vanish { disk } => {
                self.disks[usize::from(*disk)].remove_device();
                self.allowed_errors.removed = true;
                self.allowed_errors.writes = true;
                self.see_fault(FaultSeen::Vanished, Under::Rest);
                Ok(())
            }
            Act::Copy { disk } => {
                self.copy(*disk);
                Ok(())
            }
            Act::Stale { disk, cut } => self.stale(*disk, *cut),
            Act::Stall { disk } => self.stall(*disk),
        }
    }

    pub(super) fn pool(&self) -> Result<&Pool, String> {
        self.pool.as_ref().ok_or_else(|| "there is no open pool".into())
    }
}

type Puts = Vec<(u16, Content, u8)>;

/// A script's small numbers as ids of durable tensors.
fn widened(puts: &[(u8, Content, u8)], deletes: &[u8]) -> (Puts, Vec<u16>) {
    let puts = puts.iter().map(|&(id, content, class)| (id.into(), content, class));
    (puts.collect(), deletes.iter().map(|&id| id.into()).collect())
}

pub(super) fn tensor(id: u16, durable: bool) -> TensorId {
    TensorId(u128::from(id) + if durable { DURABLE } else { 0 })
}

/// A durable tensor. Those that fill the index have long names.
pub(super) fn durable(id: u16) -> TensorKey {
    let name = (id >= FILLERS).then(|| format!("{id:0>1000}").into());
    TensorKey { id: tensor(id, true), name }
}

pub(super) fn text(error: impl fmt::Display) -> String {
    error.to_string()
}
