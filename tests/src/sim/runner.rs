//! Executes a script on a pool and compares every answer with the model.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tidelog_engine::layout::{LifetimeClass, TensorId};
use tidelog_engine::memory::{Destination, Source};
use tidelog_engine::path::OperationKind;
use tidelog_engine::path::sim::{Fault, PowerCut, SimDisk, SimProfile};
use tidelog_engine::pool::{DeleteError, FormatOptions, OpenOptions, Pool, PutError, PutOptions};
use tidelog_engine::schedule::{Outcome, Ticket, TransferError, Urgency};
use tidelog_engine::units::ByteCount;

use super::commits::Started;
use super::coverage::{Coverage, Struck, Under};
use super::model::{Content, Model};
use super::random::Random;
use super::script::{Act, Cut, Script, Strike};

/// Durable tensors have ids of their own: a scratch tensor may not take a durable one's place.
const DURABLE: u128 = 1000;

/// The pool did what it must not.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The act that showed it, counted from 0.
    pub act: usize,
    /// What was wrong.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "act {}: {}", self.act, self.what)
    }
}

/// What a run did.
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
    /// Which fault met which state.
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

struct Write {
    id: u8,
    content: Content,
    order: u64,
    ticket: Ticket,
}

struct Read {
    name: String,
    durable: Option<u8>,
    content: Content,
    ticket: Ticket,
}

/// What may go wrong now, because something was done to the disks.
#[derive(Default)]
pub(super) struct Licence {
    /// Writes and flushes may fail: a fault is planned or has struck since the pool was opened.
    pub(super) writes: bool,
    /// How many reads may fail or answer other bytes, once. One alone is tried again and never seen.
    reads: u64,
    /// How many tensors may be unreadable for good.
    damaged: u64,
    /// The disk whose metadata copy was hurt since the pool was opened.
    metadata: Option<usize>,
    /// A disk is gone.
    vanished: bool,
}

impl Licence {
    fn any(&self) -> bool {
        self.writes || self.reads > 1 || self.damaged > 0 || self.vanished
    }
}

/// A script under way.
pub struct Runner<'a> {
    script: &'a Script,
    disks: Vec<SimDisk>,
    pub(super) pool: Option<Pool>,
    pub(super) model: Model,
    /// Commits that were in flight when this was last looked at, in the order of their start.
    pub(super) commits: Vec<Started>,
    writes: Vec<Write>,
    reads: Vec<Read>,
    /// Writes of batches, which may outlive a batch that was given up.
    pub(super) staged: Vec<Ticket>,
    order: u64,
    pub(super) licence: Licence,
    /// Durable tensors that were found damaged; they stay so until they are written again.
    pub(super) lost: BTreeMap<u8, Content>,
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
            ..FormatOptions::default()
        };
        Pool::format_sim(&disks, &options).expect("blank disks can be formatted");
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
            licence: Licence::default(),
            lost: BTreeMap::new(),
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
            self.take_in()?;
            if self.disks.iter().any(SimDisk::is_off) && !self.licence.vanished {
                self.recover()?;
            }
            self.reconcile()?;
        }
        self.land()?;
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
            Act::Land => self.land(),
            Act::Verify { id, flipped } => self.verify(*id, *flipped),
            Act::Delete { id } => self.delete(*id),
            Act::Batch { puts, deletes, commit: true } => self.commit(puts, deletes),
            Act::Batch { puts, deletes, commit: false } => self.give_up(puts, deletes),
            Act::Start { puts, deletes } => self.start_commit(puts, deletes).map(drop),
            Act::Follow(nth) => {
                self.follow(*nth);
                Ok(())
            }
            Act::Reclaim => self.reclaim(),
            Act::Scrub => self.scrub(),
            Act::Reopen => {
                self.land()?;
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
                self.cut = *cut;
                self.close()?;
                SimDisk::cut_power_at(&self.disks, u64::from(*nth), power_cut(*cut));
                self.recover()
            }
            Act::Fault { disk, nth, strike } => {
                self.plan(*disk, *nth, *strike);
                Ok(())
            }
            Act::Rot { disk, metadata, at, mask } => self.rot(*disk, *metadata, *at, *mask),
            Act::Vanish { disk } => {
                self.disks[usize::from(*disk)].vanish();
                self.licence.vanished = true;
                self.licence.writes = true;
                self.strike(Struck::Vanished, Under::Rest);
                Ok(())
            }
        }
    }

    // -- scratch tensors --------------------------------------------------------------------------

    fn put(&mut self, id: u8, content: Content, class: u8, urgent: bool) -> Check {
        let options = PutOptions {
            lifetime: LifetimeClass::ALL[usize::from(class)],
            urgency: if urgent { Urgency::Urgent } else { Urgency::Ahead },
            notify: None,
        };
        let put = self.pool()?.put(TensorId(id.into()), Source::from(content.bytes()), options);
        match put {
            Ok(ticket) => {
                self.order += 1;
                self.writes.push(Write { id, content, order: self.order, ticket });
                Ok(())
            }
            Err(error) => self.refused(&error),
        }
    }

    /// A put may be refused only because the pool is full, and then with the true figures.
    pub(super) fn refused(&self, error: &PutError) -> Check {
        let PutError::PoolFull { needed, available, space, .. } = error else {
            return Err(format!("the put was refused: {error}"));
        };
        let now = self.pool()?.stats().map_err(text)?.space;
        if *space != now || needed <= available || *available > space.free {
            return Err(format!("full, but the figures are wrong: {error}; it has {now:?}"));
        }
        Ok(())
    }

    /// Takes in the commits and writes that have ended.
    pub(super) fn take_in(&mut self) -> Check {
        self.take_in_commits()?;
        let mut going = Vec::new();
        for write in std::mem::take(&mut self.writes) {
            match write.ticket.poll() {
                None => going.push(write),
                Some(Ok(_)) => self.model.installed(write.id, write.content, write.order),
                Some(Err(error)) => self.allow_write(&error)?,
            }
        }
        self.writes = going;
        Ok(())
    }

    fn settle(&mut self) -> Check {
        for write in &self.writes {
            write.ticket.wait().ok();
        }
        self.count_struck(Under::Rest);
        self.take_in()
    }

    fn delete(&mut self, id: u8) -> Check {
        self.take_in()?;
        let newest = self.model.newest(id);
        let is_coming = self.writes.iter().any(|write| write.id == id && write.order > newest);
        let any_coming = self.writes.iter().any(|write| write.id == id);
        let deleted = self.pool()?.delete(TensorId(id.into()));
        let expected = self.model.scratch.contains_key(&id) || is_coming;
        match deleted {
            Ok(()) if expected || any_coming => {
                self.order += 1;
                self.model.deleted(id, self.order);
                Ok(())
            }
            Err(DeleteError::Unknown(_)) if !expected => Ok(()),
            other => Err(format!("{other:?}, where the model says {expected}")),
        }
    }

    // -- reads ------------------------------------------------------------------------------------

    /// What can be read under an id now.
    fn expected(&mut self, id: u8, durable: bool) -> Result<Option<Content>, String> {
        self.take_in()?;
        let tensors = if durable { &self.model.durable } else { &self.model.scratch };
        Ok(tensors.get(&id).copied())
    }

    pub(super) fn start(
        &mut self,
        id: u8,
        durable: bool,
        range: (u64, u64),
    ) -> Result<Ticket, String> {
        let destination = Destination::buffer((range.1 - range.0) as usize);
        self.pool()?
            .get(tensor(id, durable), range.0..range.1, destination, Urgency::Urgent, None)
            .map_err(text)
    }

    fn get(&mut self, id: u8, durable: bool, from: u8, to: u8) -> Check {
        let Some(content) = self.expected(id, durable)? else {
            let there = self.pool()?.contains(tensor(id, durable));
            return if there { Err("it should not be there".into()) } else { Ok(()) };
        };
        let part = |of: u8| u64::from(content.length) * u64::from(of) / 255;
        let (from, to) = (part(from), part(to));
        let ticket = self.start(id, durable, (from, to))?;
        let outcome = ticket.wait();
        self.count_struck(Under::Get);
        let expected = &content.bytes()[from as usize..to as usize];
        let name = durable.then_some(id);
        self.compare(&format!("{id}"), name, content, &outcome, &ticket, expected)
    }

    fn begin(&mut self, id: u8, durable: bool, slow: bool) -> Check {
        let Some(content) = self.expected(id, durable)? else { return Ok(()) };
        if slow {
            // Longer than hundreds of other operations take.
            for disk in &self.disks {
                disk.plan_fault(OperationKind::Read, 0, Fault::Slow(10_000));
            }
        }
        let ticket = self.start(id, durable, (0, content.length.into()))?;
        let durable = durable.then_some(id);
        self.reads.push(Read {
            name: format!("{id}, begun in act {}", self.act),
            durable,
            content,
            ticket,
        });
        Ok(())
    }

    fn land(&mut self) -> Check {
        for read in std::mem::take(&mut self.reads) {
            let outcome = read.ticket.wait();
            self.count_struck(Under::Get);
            let bytes = read.content.bytes();
            self.compare(&read.name, read.durable, read.content, &outcome, &read.ticket, &bytes)?;
        }
        Ok(())
    }

    fn compare(
        &mut self,
        name: &str,
        durable: Option<u8>,
        content: Content,
        outcome: &Outcome,
        ticket: &Ticket,
        expected: &[u8],
    ) -> Check {
        match outcome {
            Ok(_) => {
                let found = ticket.take_bytes().ok_or("a read that ended well has no bytes")?;
                if found == expected {
                    return Ok(());
                }
                let at = found.iter().zip(expected).position(|(one, other)| one != other);
                Err(format!("WRONG BYTES in tensor {name}, from byte {at:?} of the range"))
            }
            Err(TransferError::Checksum { .. }) if self.licence.damaged > 0 => {
                if let Some(id) = durable {
                    self.lost.insert(id, content);
                }
                Ok(())
            }
            Err(TransferError::Checksum { .. } | TransferError::Device { .. })
                // The second try of what is rotten may be the one that fails.
                if self.licence.reads + self.licence.damaged > 1 || self.is_down() =>
            {
                Ok(())
            }
            Err(TransferError::Latched { .. } | TransferError::Stopped { .. })
                if self.is_down() =>
            {
                Ok(())
            }
            Err(error) => Err(format!("tensor {name} cannot be read: {error}")),
        }
    }

    fn verify(&mut self, id: u8, flipped: bool) -> Check {
        let Some(content) = self.expected(id, false)? else { return Ok(()) };
        let mut bytes = content.bytes();
        let flipped = flipped && !bytes.is_empty();
        if flipped {
            let at = bytes.len() / 2;
            bytes[at] ^= 1;
        }
        let verify = self.pool()?.verify(TensorId(id.into()), Source::from(bytes), None);
        match verify.map_err(text)?.wait() {
            Ok(done) if done.matched != flipped => Ok(()),
            other => Err(format!("{other:?}, where the memory was flipped: {flipped}")),
        }
    }

    // -- housekeeping -----------------------------------------------------------------------------

    /// Nobody must see a difference, whatever becomes of it.
    fn reclaim(&mut self) -> Check {
        let reclaimed = self.pool()?.reclaim_once();
        self.count_struck(Under::Reclaim);
        match reclaimed {
            Ok(_) => Ok(()),
            Err(_) if self.licence.any() || self.is_down() => Ok(()),
            Err(error) => Err(format!("nothing is wrong with the disks: {error}")),
        }
    }

    fn scrub(&mut self) -> Check {
        let report = self.pool()?.scrub();
        self.count_struck(Under::Get);
        match report {
            Ok(report) if report.damaged.is_empty() => Ok(()),
            _ if self.licence.any() || self.is_down() => Ok(()),
            Ok(report) => Err(format!("undamaged disks have bad units: {report:?}")),
            Err(error) => Err(error.to_string()),
        }
    }

    // -- faults -----------------------------------------------------------------------------------

    fn plan(&mut self, disk: u8, nth: u8, strike: Strike) {
        let index = usize::from(disk);
        let size = self.disks[index].size().0;
        let place = |at: u16| u64::from(at) * (size >> 16);
        let silent = matches!(strike, Strike::WriteLost | Strike::WriteMisdirected(_));
        if silent && !self.may_hurt_metadata(index) {
            return;
        }
        let (kind, fault) = match strike {
            Strike::ReadError => (OperationKind::Read, Fault::Errno(5)),
            Strike::ReadShort => (OperationKind::Read, Fault::Short(0)),
            Strike::ReadCorrupt => (OperationKind::Read, Fault::Corrupt),
            Strike::ReadMisdirected(at) => (OperationKind::Read, Fault::Misdirected(place(at))),
            Strike::ReadSlow => (OperationKind::Read, Fault::Slow(10_000)),
            Strike::WriteError => (OperationKind::Write, Fault::Errno(5)),
            Strike::WriteShort => (OperationKind::Write, Fault::Short(0)),
            Strike::WriteLost => (OperationKind::Write, Fault::Lost),
            Strike::WriteMisdirected(at) => (OperationKind::Write, Fault::Misdirected(place(at))),
            Strike::WriteSlow => (OperationKind::Write, Fault::Slow(10_000)),
            Strike::FlushError => (OperationKind::Flush, Fault::Errno(5)),
        };
        match strike {
            Strike::WriteError | Strike::WriteShort | Strike::FlushError => {
                self.licence.writes = true;
            }
            Strike::ReadError
            | Strike::ReadShort
            | Strike::ReadCorrupt
            | Strike::ReadMisdirected(_) => self.licence.reads += 1,
            Strike::WriteLost | Strike::WriteMisdirected(_) => {
                self.licence.metadata = Some(index);
            }
            _ => {}
        }
        self.disks[index].plan_fault(kind, nth.into(), fault);
    }

    /// Only one copy of the metadata may be hurt at a time, and there must be two.
    fn may_hurt_metadata(&self, disk: usize) -> bool {
        self.script.disks > 1 && self.licence.metadata.is_none_or(|hurt| hurt == disk || disk > 1)
    }

    fn rot(&mut self, disk: u8, metadata: bool, at: u16, mask: u8) -> Check {
        let index = usize::from(disk);
        let geometry = self.pool()?.description().geometry;
        let (begin, end) = if metadata {
            if index > 1 || !self.may_hurt_metadata(index) {
                return Ok(());
            }
            self.licence.metadata = Some(index);
            self.strike(Struck::RotInMetadata, Under::Rest);
            (4096, geometry.data_offset)
        } else {
            self.licence.damaged += 1;
            self.strike(Struck::RotInData, Under::Rest);
            (geometry.data_offset, geometry.second_superblock_offset())
        };
        self.disks[index].rot(begin + u64::from(at) * (end - begin) / 65_536, mask);
        Ok(())
    }

    /// Cuts the power of all disks at once.
    fn blow(&mut self, cut: Cut, under: Under) {
        for disk in &self.disks {
            disk.cut_power(power_cut(cut));
        }
        self.cut = cut;
        self.strike(struck_by(cut), under);
    }

    pub(super) fn count_struck(&mut self, under: Under) {
        for index in 0..self.disks.len() {
            for (kind, fault) in self.disks[index].take_struck() {
                // What was written, and up to two tensors where it went instead.
                self.licence.damaged += match fault {
                    Fault::Lost => 1,
                    Fault::Misdirected(_) if kind == OperationKind::Write => 3,
                    _ => 0,
                };
                self.strike(struck(kind, fault), under);
            }
        }
        if self.disks.iter().all(SimDisk::is_off) && self.pool.is_some() {
            self.strike(struck_by(self.cut), under);
        }
    }

    fn strike(&mut self, struck: Struck, under: Under) {
        self.figures.faults += 1;
        self.figures.coverage.count(struck, under);
        if self.commits.len() > 1 {
            self.figures.coverage.count(struck, Under::Flight);
        }
    }

    fn allow_write(&self, error: &TransferError) -> Check {
        match error {
            TransferError::Cancelled => Ok(()),
            _ if self.licence.writes || self.is_down() => Ok(()),
            error => Err(format!("a write failed: {error}")),
        }
    }

    pub(super) fn is_down(&self) -> bool {
        self.disks.iter().any(SimDisk::is_off)
    }

    // -- opening and closing ------------------------------------------------------------------------

    pub(super) fn pool(&self) -> Result<&Pool, String> {
        self.pool.as_ref().ok_or_else(|| "there is no open pool".into())
    }

    fn close(&mut self) -> Check {
        self.writes.clear();
        self.reads.clear();
        self.staged.clear();
        if let Some(pool) = self.pool.take() {
            drop(pool.close());
        }
        self.take_in_commits()?;
        if !self.commits.is_empty() {
            return Err(format!("{} commits have no end in a closed pool", self.commits.len()));
        }
        self.model.restarted();
        Ok(())
    }

    fn reopen(&mut self) -> Check {
        self.close()?;
        self.open()
    }

    /// After a power cut.
    fn recover(&mut self) -> Check {
        self.figures.crashes += 1;
        self.reopen()?;
        self.check_everything()
    }

    fn open(&mut self) -> Check {
        self.disks.iter().for_each(SimDisk::clear_faults);
        let options = OpenOptions {
            staging: ByteCount::kib(256),
            huge_pages: false,
            stepped: true,
            ..OpenOptions::default()
        };
        // A second cut may strike while recovery is under way; then it begins again.
        for _ in 0..3 {
            match Pool::open_sim(&self.disks, &options) {
                Ok(pool) => {
                    self.pool = Some(pool);
                    break;
                }
                Err(_) if self.is_down() => {
                    self.strike(struck_by(self.cut), Under::Open);
                    self.figures.crashes += 1;
                }
                Err(error) => return Err(format!("the pool cannot be opened: {error}")),
            }
        }
        // What was hurt is repaired by opening, or is data.
        let Licence { damaged, .. } = self.licence;
        self.licence = Licence { damaged, ..Licence::default() };
        self.resolve_doubt()
    }

    pub(super) fn found(&self) -> Result<BTreeMap<u8, u64>, String> {
        let pool = self.pool()?;
        let tensors = pool.durable_tensors().map_err(text)?;
        tensors
            .into_iter()
            .map(|(id, _)| {
                let length = pool.length(id).ok_or("a tensor that is listed is not there")?;
                Ok(((id.0 - DURABLE) as u8, length))
            })
            .collect()
    }

    pub(super) fn bytes_of(&mut self, id: u8) -> Result<Option<Vec<u8>>, String> {
        let length = self.pool()?.length(tensor(id, true)).ok_or("it is not there")?;
        let ticket = self.start(id, true, (0, length))?;
        let ended = ticket.wait();
        self.count_struck(Under::Get);
        Ok(ended.ok().and_then(|_| ticket.take_bytes()))
    }

    // -- checks -----------------------------------------------------------------------------------

    /// The books: nothing leaked, nothing overlaps, and what lives is what the model says.
    fn reconcile(&mut self) -> Check {
        let space = self.pool()?.audit()?;
        if space.live.0 + space.dead.0 + space.free.0 + space.reserved.0 != space.capacity.0 {
            return Err(format!("the parts do not sum to the whole: {space:?}"));
        }
        self.take_in()?;
        let blocks = |content: &Content| u64::from(content.length).div_ceil(4096) * 4096;
        let tensors = self.model.scratch.values().chain(self.model.durable.values());
        let live: u64 = tensors.map(blocks).sum();
        if space.live.0 != live {
            return Err(format!("{} lives where the model has {live} bytes", space.live));
        }
        self.staged.retain(|ticket| ticket.poll().is_none());
        let quiet = self.writes.is_empty()
            && self.reads.is_empty()
            && self.staged.is_empty()
            && self.commits.is_empty();
        // A reclamation's commit in doubt holds space until the pool is opened again.
        if quiet && self.model.in_doubt.is_none() && !self.licence.writes && space.reserved.0 != 0 {
            return Err(format!("{} is reserved and nothing is in flight", space.reserved));
        }
        Ok(())
    }

    /// Every durable tensor is there with its bytes, and no other.
    fn check_everything(&mut self) -> Check {
        let expected = self.model.durable.iter();
        let expected: BTreeMap<u8, u64> =
            expected.map(|(id, content)| (*id, content.length.into())).collect();
        let found = self.found()?;
        if found != expected {
            return Err(format!("durable tensors (id and length) are {found:?}, not {expected:?}"));
        }
        for (id, content) in self.model.durable.clone() {
            let ticket = self.start(id, true, (0, content.length.into()))?;
            let outcome = ticket.wait();
            let bytes = content.bytes();
            self.compare(&format!("durable {id}"), Some(id), content, &outcome, &ticket, &bytes)?;
        }
        let lost = self.lost.iter();
        let lost = lost.filter(|(id, content)| self.model.durable.get(id) == Some(content)).count();
        if lost as u64 > self.licence.damaged {
            let damaged = self.licence.damaged;
            return Err(format!("{lost} tensors are lost where {damaged} could be damaged"));
        }
        Ok(())
    }
}

pub(super) fn tensor(id: u8, durable: bool) -> TensorId {
    TensorId(u128::from(id) + if durable { DURABLE } else { 0 })
}

fn power_cut(cut: Cut) -> PowerCut {
    match cut {
        Cut::Drop => PowerCut::DropAll,
        Cut::Keep => PowerCut::KeepAll,
        Cut::Torn(seed) => PowerCut::Torn(seed.into()),
    }
}

fn struck_by(cut: Cut) -> Struck {
    match cut {
        Cut::Drop => Struck::PowerDropped,
        Cut::Keep => Struck::PowerKept,
        Cut::Torn(_) => Struck::PowerTorn,
    }
}

fn struck(kind: OperationKind, fault: Fault) -> Struck {
    match (kind, fault) {
        (OperationKind::Read, Fault::Errno(_)) => Struck::ReadError,
        (OperationKind::Read, Fault::Short(_)) => Struck::ReadShort,
        (OperationKind::Read, Fault::Misdirected(_)) => Struck::ReadMisdirected,
        (OperationKind::Read, Fault::Slow(_)) => Struck::ReadSlow,
        (OperationKind::Read, _) => Struck::ReadCorrupt,
        (OperationKind::Flush, _) => Struck::FlushError,
        (_, Fault::Errno(_)) => Struck::WriteError,
        (_, Fault::Short(_)) => Struck::WriteShort,
        (_, Fault::Misdirected(_)) => Struck::WriteMisdirected,
        (_, Fault::Slow(_)) => Struck::WriteSlow,
        (_, _) => Struck::WriteLost,
    }
}

pub(super) fn text(error: impl fmt::Display) -> String {
    error.to_string()
}
