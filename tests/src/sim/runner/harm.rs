//! Blocks of a closed pool that are harmed: what opening, `check` and `repair` make of it.

use std::collections::BTreeSet;

use tidelog_engine::layout::{BLOCK_BYTES, Geometry, Superblock, TensorId};
use tidelog_engine::log::StripeMap;
use tidelog_engine::path::sim::SimDisk;
use tidelog_engine::pool::Pool;
use tidelog_engine::pool::inspect::{CheckReport, Damage, IndexView, check, inspect, repair};

use super::faults::power_cut;
use super::life::options;
use super::structures::{BlockExtent, PoolStructures};
use super::{Check, Runner, text};
use crate::sim::coverage::{FaultSeen, Under};
use crate::sim::harm::{Harm, HarmedCopies, How, Part};
use crate::sim::script::Cut;

/// Index of an operation beyond those of a script.
const NEVER: u64 = 1 << 40;

/// Outcome that a harmed pool must have.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Must {
    /// Open, with nothing lost.
    Open,
    /// Refusal, as often as it is tried.
    BeRefused,
    /// Either: never does it open without what was acknowledged.
    BeSound,
}

/// A block that was harmed.
struct Harmed {
    extent: BlockExtent,
    how: How,
    /// Original bytes.
    before: Vec<u8>,
}

impl Harmed {
    fn is_overlay(&self) -> bool {
        matches!(self.how, How::Rot(_) | How::Unreadable)
    }

    /// Returns whether nothing can be read there but zeroes.
    fn is_blank(&self) -> bool {
        matches!(self.how, How::Zeroes | How::Unreadable)
    }

    /// Restores the original bytes, whatever was written since.
    fn undo(&self, disks: &[SimDisk]) {
        let (disk, block) = (&disks[self.extent.disk], self.extent.block());
        if self.is_overlay() { disk.restore(block) } else { disk.overwrite(block, &self.before) }
    }
}

/// Harm of a pool.
struct Done {
    harm: Harm,
    /// One block at least.
    harmed: Vec<Harmed>,
    /// True if of the block that was harmed no copy is good.
    in_all: bool,
    /// True if the pool was closed well before; else it crashed.
    closed: bool,
    /// The tensor of which a block is harmed.
    tensor: Option<HarmedTensor>,
}

/// A tensor of which a block is harmed.
#[derive(Clone, Copy)]
struct HarmedTensor {
    id: TensorId,
    /// True if another disk has a copy of the block, and nothing was ever wrong with any.
    has_copy: bool,
}

impl Runner<'_> {
    pub(super) fn harm(&mut self, harm: &Harm, cut: Option<Cut>, by_repair: bool) -> Check {
        self.complete()?;
        self.settle()?;
        if self.is_down() {
            return Ok(());
        }
        // What is planned would come in the midst of what is compared.
        SimDisk::cut_power_at(&self.disks, NEVER, power_cut(Cut::Drop));
        let geometry = self.pool()?.description().geometry;
        // Where a copy may lack something already, the other one is all there is.
        let is_sound = !self.allowed_errors.writes && !self.may_be_hurt();
        if let Some(cut) = cut {
            self.blow(cut, Under::Rest);
        }
        let closed = self.close()?;
        self.disks.iter().for_each(SimDisk::clear_faults);
        self.count_struck(Under::Rest);
        let done = if is_sound { self.do_harm(*harm, geometry, closed)? } else { None };
        if let Some(done) = done {
            return self.look_at_harm(&done, by_repair);
        }
        self.open()?;
        self.check_everything()
    }

    /// Does the harm, where there is such a structure, and where what must come of it can be known.
    fn do_harm(
        &self,
        harm: Harm,
        geometry: Geometry,
        closed: bool,
    ) -> Result<Option<Done>, String> {
        let found = inspect(&self.disks).map_err(text)?;
        let index = found.shares[0].index.as_ref().map_err(|why| format!("no index: {why}"))?;
        let structures = PoolStructures { disks: &self.disks, geometry, epoch: index.epoch };
        let (targets, tensor) = if harm.part != Part::Tensor {
            (targets(&structures, &harm), None)
        } else if self.model.in_doubt.is_some() {
            // Its bytes are to say what became of the commit.
            (Vec::new(), None)
        } else {
            let chosen = tensor_and_byte(index, &geometry, harm.at);
            let faultless = self.allowed_errors.damaged == 0 && !self.is_any_unreadable();
            let chosen = chosen.map(|(it, extent)| {
                (HarmedTensor { has_copy: it.has_copy && faultless, ..it }, extent)
            });
            let target = chosen.map(|(_, extent)| (extent, harm.how[0]));
            (target.into_iter().collect(), chosen.map(|(tensor, _)| tensor))
        };
        let in_all =
            harm.part.is_of_index() && is_in_all(&harm, targets.len(), structures.copies());
        // Without its first superblock nobody can tell what else is wrong with a disk's start from
        // what somebody has made there.
        let is_stained = |(extent, _): &(BlockExtent, How)| self.stained.contains(&extent.disk);
        if harm.part == Part::FirstSuperblock && targets.iter().any(is_stained) {
            return Ok(None);
        }
        // After a crash nobody can tell what it tore in all copies from what was harmed there; but
        // that a block cannot be read is no crash's doing.
        if !closed && in_all && targets.iter().any(|(_, how)| *how != How::Unreadable) {
            return Ok(None);
        }
        let harmed = self.harm_blocks(&targets);
        let in_all = in_all && harmed.len() == targets.len();
        Ok((!harmed.is_empty()).then_some(Done { harm, harmed, in_all, closed, tensor }))
    }

    /// Harms these blocks, but for those that are the same afterwards.
    fn harm_blocks(&self, targets: &[(BlockExtent, How)]) -> Vec<Harmed> {
        let mut harmed = Vec::new();
        for &(extent, how) in targets {
            let (disk, block) = (&self.disks[extent.disk], extent.block());
            let before = disk.peek(block, BLOCK_BYTES as usize);
            let after = match how {
                How::Rot(_) | How::Unreadable => None,
                How::Zeroes => Some(vec![0; BLOCK_BYTES as usize]),
                How::OfAnotherDevice | How::OfAnotherPool => {
                    Superblock::decode(&before).ok().map(|it| self.another(&it, how).encode())
                }
            };
            if after.as_ref() == Some(&before) {
                continue;
            }
            match how {
                How::Rot(mask) => disk.rot(extent.offset, mask),
                How::Unreadable => disk.make_unreadable(block),
                _ => disk.overwrite(block, &after.unwrap_or_default()),
            }
            harmed.push(Harmed { extent, how, before });
        }
        harmed
    }

    /// Returns the superblock of another device, or of another pool.
    fn another(&self, superblock: &Superblock, how: How) -> Superblock {
        let devices = self.disks.len() as u32;
        if how == How::OfAnotherDevice && devices > 1 {
            let device = (superblock.device + 1) % devices;
            return Superblock { device, ..*superblock };
        }
        Superblock { pool: !superblock.pool, ..*superblock }
    }

    fn look_at_harm(&mut self, done: &Done, by_repair: bool) -> Check {
        let Done { harm, harmed, .. } = done;
        let must = done.must();
        let what = format!("{harm:?}, closed well: {}", done.closed);
        let lost = (self.lost.clone(), self.lost_sealed.clone());
        let (damaged, unreadable) = (self.allowed_errors.damaged, self.allowed_errors.unreadable);
        let has_copy = done.tensor.is_some_and(|it| it.has_copy);
        if done.tensor.is_some() && !has_copy {
            // What stands, and another version that a seal holds in the same place.
            self.allowed_errors.damaged += 2;
            self.allowed_errors.unreadable = true;
        }
        let seen = if has_copy { FaultSeen::HurtCopy } else { seen(harm, harmed[0].how, must) };
        self.see_fault(seen, Under::Open);
        let report = self.checked(&what)?;
        self.compare_report(&report, done)
            .map_err(|why| format!("{why}; check found {:?}; {what}", report.damage))?;
        let opens = match must {
            Must::Open => true,
            Must::BeRefused => false,
            Must::BeSound => match Pool::open(&self.disks, &options()) {
                Ok(pool) => pool.close().is_ok(),
                Err(_) => false,
            },
        };
        if opens {
            if by_repair && (done.tensor.is_none() || has_copy) {
                self.repaired(&what)?;
            }
            self.open().map_err(|why| format!("{why}; {what}"))?;
            self.check_everything().map_err(|why| format!("{why}; {what}"))?;
            if has_copy {
                self.is_healed(by_repair).map_err(|why| format!("{why}; {what}"))?;
            }
            harmed.iter().filter(|it| it.is_overlay()).for_each(|it| it.undo(&self.disks));
        } else {
            self.is_refused(&what)?;
            for it in harmed {
                it.undo(&self.disks);
            }
            self.open().map_err(|why| format!("{why}, with the harm undone; {what}"))?;
            self.check_everything().map_err(|why| format!("{why}, undone; {what}"))?;
        }
        if done.tensor.is_some() && !has_copy {
            (self.lost, self.lost_sealed) = lost;
            (self.allowed_errors.damaged, self.allowed_errors.unreadable) = (damaged, unreadable);
        }
        Ok(())
    }

    /// Checks that a copy that was harmed is whole again: after a scrub, and before one where
    /// `repair` has been there.
    fn is_healed(&self, repaired: bool) -> Check {
        let pool = self.pool()?;
        let first = pool.scrub().map_err(text)?.healed;
        let second = pool.scrub().map_err(text)?.healed;
        if second > 0 || (repaired && first > 0) {
            return Err(format!("{first}, then {second} copies are healed, repaired: {repaired}"));
        }
        Ok(())
    }

    /// Refused however often: being refused leaves nothing that the next try takes for right.
    fn is_refused(&mut self, what: &str) -> Check {
        for time in 1..=2 {
            if let Ok(pool) = Pool::open(&self.disks, &options()) {
                drop(pool.close());
                return Err(format!("opened at try {time} without what was lost; {what}"));
            }
        }
        let report = self.checked(what)?;
        if report.damage.iter().all(is_of_tensor) {
            return Err(format!("check finds nothing where opening is refused; {what}"));
        }
        Ok(())
    }

    fn checked(&self, what: &str) -> Result<CheckReport, String> {
        let report = check(&self.disks, true, &mut |_| ());
        report.map_err(|error| format!("check cannot look at it: {error}; {what}"))
    }

    /// `repair` leaves nothing that it could have repaired.
    fn repaired(&self, what: &str) -> Check {
        let report = repair(&self.disks, &[], true, &mut |_| ());
        let report = report.map_err(|error| format!("it cannot be repaired: {error}; {what}"))?;
        match report.after.damage.iter().find(|it| it.is_repairable()) {
            Some(left) => Err(format!("repair left {left:?}; {what}")),
            None => Ok(()),
        }
    }

    /// Checks that the damage is named.
    fn compare_report(&self, report: &CheckReport, done: &Done) -> Check {
        let Done { harm, harmed, closed, tensor, .. } = done;
        let count = |is_meant: &dyn Fn(&Damage) -> bool| {
            report.damage.iter().filter(|it| is_meant(it)).count()
        };
        let name = format!("sim{}", harmed[0].extent.disk);
        let is_of = |copy: char| {
            count(
                &|it| matches!(it, Damage::Superblock { device, copy: of, .. } if *device == name && *of == copy),
            )
        };
        let unreadable = harmed.iter().any(|it| it.how == How::Unreadable);
        let blank = harmed.iter().any(Harmed::is_blank);
        let others = count(&|it| !is_of_tensor(it));
        let found = match harm.part {
            Part::FirstSuperblock => is_of('A') > 0,
            Part::SecondSuperblock => is_of('B') > 0,
            Part::Tensor => tensor.is_some_and(|HarmedTensor { id, has_copy }| {
                let is_lost = report.damaged_tensors().any(|it| it.id == id);
                let mut copies = report.damaged_copies().filter(|it| it.tensor.id == id);
                if has_copy {
                    copies.any(|it| it.device == name) && !is_lost
                } else {
                    is_lost || copies.next().is_some()
                }
            }),
            _ if !*closed => true,
            Part::Holder => !blank || self.disks.len() == 1 || others > 0,
            Part::Checkpoint | Part::Grown | Part::Record | Part::LastRecord => match done.must() {
                Must::Open => count(&|it| matches!(it, Damage::IndexCopy { .. })) >= harmed.len(),
                Must::BeRefused => count(&|it| matches!(it, Damage::Index { .. })) > 0,
                Must::BeSound => others > 0,
            },
            Part::Tail => !unreadable || others > 0,
            Part::Owner | Part::OtherSlot => true,
        };
        let lost: BTreeSet<_> = report.damaged_tensors().map(|it| (it.id, it.current)).collect();
        if !found {
            return Err("check does not name what was harmed".into());
        }
        if lost.len() as u64 > self.allowed_errors.damaged {
            return Err("check names tensors that nothing has harmed".into());
        }
        Ok(())
    }

    /// Checks a pool after a crash, or after closing, where nothing else has happened: that nothing
    /// is damaged but what may be.
    pub(super) fn verdict(&mut self) -> Check {
        if self.may_be_hurt() || self.was_hurt {
            return Ok(());
        }
        self.disks.iter().for_each(SimDisk::clear_faults);
        self.count_struck(Under::Rest);
        let report = self.checked("")?;
        // Where no tensor can be damaged no copy of one can.
        let may_be = |it: &&Damage| is_of_tensor(it) && self.allowed_errors.damaged > 0;
        let damage = report.damage.iter().filter(|it| !may_be(it));
        let damage: Vec<String> = damage.map(ToString::to_string).collect();
        if !damage.is_empty() {
            return Err(format!("check finds damage where there were crashes alone: {damage:?}"));
        }
        let lost = report.damaged_tensors().count() as u64;
        if lost > self.allowed_errors.damaged {
            return Err(format!(
                "check finds tensors damaged where none can be: {:?}",
                report.damage
            ));
        }
        Ok(())
    }
}

/// Returns whether the damage is of tensors' bytes.
fn is_of_tensor(damage: &Damage) -> bool {
    matches!(damage, Damage::Tensor(_) | Damage::TensorCopy(_))
}

/// Returns whether what was harmed, in `harmed` of the copies, has no good copy.
fn is_in_all(harm: &Harm, harmed: usize, copies: usize) -> bool {
    harmed == copies && (copies == 1 || harm.copies == HarmedCopies::All)
}

/// A tensor, durable or held by a seal, and a byte of one of its copies.
fn tensor_and_byte(
    index: &IndexView,
    geometry: &Geometry,
    at: [u16; 2],
) -> Option<(HarmedTensor, BlockExtent)> {
    let all: Vec<_> = index.readable().filter(|(entry, ..)| entry.length > 0).collect();
    let (entry, ..) = all.get(usize::from(at[0]) % all.len().max(1))?;
    let pieces: Vec<_> = StripeMap::new(geometry).placements(&entry.runs, entry.length).collect();
    let piece = pieces[usize::from(at[1]) % pieces.len()];
    let byte = (u64::from(at[1]) * u64::from(piece.length)) >> 16;
    let first = (piece.device, piece.device_offset);
    let (disk, offset) = piece.mirror.filter(|_| at[0] % 2 == 1).unwrap_or(first);
    let tensor = HarmedTensor { id: entry.id, has_copy: piece.mirror.is_some() };
    Some((tensor, BlockExtent { disk: disk.into(), offset: offset + byte, length: 1 }))
}

/// The blocks that are to be harmed, and how.
fn targets(structures: &PoolStructures<'_>, harm: &Harm) -> Vec<(BlockExtent, How)> {
    let Harm { part, how, copies, disk, at } = *harm;
    let disk = usize::from(disk);
    let in_each_disk =
        matches!(part, Part::FirstSuperblock | Part::SecondSuperblock | Part::Holder | Part::Owner);
    let first = disk % if in_each_disk { structures.disks.len() } else { structures.copies() };
    let nth = |extents: &[BlockExtent], at: u16| (usize::from(at) * extents.len()) >> 16;
    // Which of the bytes that count is another number's matter than which block.
    let byte = |extent: BlockExtent, at: u16| BlockExtent {
        offset: extent.offset + u64::from(at) * 31 % extent.length,
        ..extent
    };
    let all = structures.of(part, first);
    if all.is_empty() {
        return Vec::new();
    }
    let one = nth(&all, at[0]);
    let mut targets = vec![(byte(all[one], at[1]), how[0])];
    if copies != HarmedCopies::One && !in_each_disk && structures.copies() == 2 {
        let other = structures.of(part, 1 - first);
        let apart = copies == HarmedCopies::Apart;
        let two = if apart { nth(&other, at[1]) } else { one };
        match other.get(two) {
            Some(extent) if !apart || two != one => targets.push((byte(*extent, at[0]), how[1])),
            _ if apart => {}
            // A crash has left the other copy shorter: this one may be the only one.
            _ => return Vec::new(),
        }
    }
    targets
}

impl Done {
    /// Returns the outcome that the pool must have.
    fn must(&self) -> Must {
        let Self { harm, harmed, in_all, closed, .. } = self;
        let unreadable = harmed.iter().any(|it| it.how == How::Unreadable);
        match harm.part {
            Part::FirstSuperblock | Part::SecondSuperblock | Part::Owner | Part::Tensor => {
                Must::Open
            }
            // Of a disk without a copy of the index nothing says then that it is no older copy.
            Part::Holder if harmed.iter().any(|it| it.extent.disk > 1 && it.is_blank()) => {
                Must::BeRefused
            }
            Part::Holder => Must::Open,
            Part::Record | Part::LastRecord if *in_all && *closed => Must::BeRefused,
            // The checkpoint before it may say the same.
            Part::Checkpoint | Part::Grown if *in_all => Must::BeSound,
            _ if *closed => Must::Open,
            // Nobody can tell what a crash tore from what else may have stood there.
            _ if *in_all || unreadable => Must::BeSound,
            _ => Must::Open,
        }
    }
}

fn seen(harm: &Harm, how: How, must: Must) -> FaultSeen {
    match (harm.part, how) {
        (_, How::OfAnotherDevice) => FaultSeen::SuperblockOfAnotherDevice,
        (_, How::OfAnotherPool) => FaultSeen::SuperblockOfAnotherPool,
        (Part::Tensor, How::Unreadable) => FaultSeen::UnreadableTensor,
        (Part::Tensor, _) => FaultSeen::HurtTensor,
        (Part::FirstSuperblock | Part::SecondSuperblock, How::Unreadable) => {
            FaultSeen::UnreadableSuperblock
        }
        (Part::FirstSuperblock | Part::SecondSuperblock, _) => FaultSeen::HurtSuperblock,
        (Part::Holder, How::Unreadable) => FaultSeen::UnreadableHolder,
        (Part::Holder, _) => FaultSeen::HurtHolder,
        (Part::LastRecord, _) if must == Must::BeRefused => FaultSeen::LastRecordLost,
        (Part::LastRecord, How::Rot(_) | How::Zeroes) => FaultSeen::HurtLastRecord,
        (Part::Checkpoint | Part::Grown, How::Unreadable) => FaultSeen::UnreadableCheckpoint,
        (Part::Checkpoint | Part::Grown, _) => FaultSeen::HurtCheckpoint,
        (Part::Record | Part::LastRecord | Part::Tail, How::Unreadable) => FaultSeen::UnreadableLog,
        (Part::Record | Part::Tail, _) => FaultSeen::HurtLog,
        (Part::Owner | Part::OtherSlot, _) => FaultSeen::HurtElsewhere,
    }
}
