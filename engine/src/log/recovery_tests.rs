//! Change log and recovery over two arrays of bytes that forget what was not flushed.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::layout::{
    BLOCK_BYTES, ChangeRecord, Checksums, Copies, Geometry, GeometryRequest, HeldVersion,
    LifetimeClass, RECORD_HEADER_BYTES, Run, Runs, Seal, ShareArea, TensorEntry, TensorId,
};
use crate::log::change_log::AppendError;
use crate::log::random::seeds;
use crate::units::{ByteCount, DeviceIndex};
use tidelog_random::Random;

#[derive(Debug, Error)]
enum Failed {
    #[error("device {0} failed")]
    Device(u8),
    #[error("device {0} has lost byte {1}")]
    Block(u8, u64),
}

/// A block's offset and its bytes.
type Block = (u64, Vec<u8>);

/// Two devices: what is on media, and writes that only their caches hold.
#[derive(Default)]
struct Disks {
    media: [RefCell<BTreeMap<u64, Vec<u8>>>; 2],
    cached: [RefCell<Vec<Block>>; 2],
    /// Writes that still succeed; then everything fails.
    writes_left: RefCell<Option<u32>>,
    unreadable: RefCell<Option<u8>>,
    /// Blocks that cannot be read until they are written, by device and offset.
    unreadable_blocks: RefCell<BTreeSet<(u8, u64)>>,
}

impl Disks {
    fn block(&self, device: usize, offset: u64) -> Vec<u8> {
        let cached = self.cached[device].borrow();
        let last = cached.iter().rev().find(|(at, _)| *at == offset);
        last.map(|(_, bytes)| bytes.clone())
            .or_else(|| self.media[device].borrow().get(&offset).cloned())
            .unwrap_or_else(|| vec![0; BLOCK_BYTES as usize])
    }

    /// The power goes: each block that was not flushed survives by chance.
    fn power_cut(&self, random: &mut Random) {
        for device in 0..2 {
            for (offset, bytes) in self.cached[device].borrow_mut().drain(..) {
                if random.chance(2) {
                    self.media[device].borrow_mut().insert(offset, bytes);
                }
            }
        }
        *self.writes_left.borrow_mut() = None;
    }

    fn damage(&self, device: usize, offset: u64) {
        self.media[device].borrow_mut().insert(offset, vec![0xEE; BLOCK_BYTES as usize]);
    }
}

impl LogMedia for Disks {
    type Error = Failed;

    fn is_of_block(error: &Failed) -> bool {
        matches!(error, Failed::Block(..))
    }

    fn read(&self, device: u8, offset: u64, length: u64) -> Result<Vec<u8>, Failed> {
        if *self.unreadable.borrow() == Some(device) {
            return Err(Failed::Device(device));
        }
        let lost = self.unreadable_blocks.borrow();
        if let Some((_, at)) = lost.range((device, offset)..(device, offset + length)).next() {
            return Err(Failed::Block(device, *at));
        }
        let blocks = (offset..offset + length).step_by(BLOCK_BYTES as usize);
        Ok(blocks.flat_map(|at| self.block(device.into(), at)).collect())
    }

    fn write(&self, device: u8, offset: u64, bytes: Vec<u8>) -> Result<(), Failed> {
        for (index, block) in bytes.chunks(BLOCK_BYTES as usize).enumerate() {
            if let Some(left) = self.writes_left.borrow_mut().as_mut() {
                *left = left.checked_sub(1).ok_or(Failed::Device(device))?;
            }
            let at = offset + index as u64 * BLOCK_BYTES;
            self.cached[usize::from(device)].borrow_mut().push((at, block.to_vec()));
            self.unreadable_blocks.borrow_mut().remove(&(device, at));
        }
        Ok(())
    }

    fn flush(&self, device: u8) -> Result<(), Failed> {
        if let Some(left) = self.writes_left.borrow_mut().as_mut() {
            *left = left.checked_sub(1).ok_or(Failed::Device(device))?;
        }
        let cached = self.cached[usize::from(device)].borrow_mut().drain(..).collect::<Vec<_>>();
        self.media[usize::from(device)].borrow_mut().extend(cached);
        Ok(())
    }
}

fn none() -> Vec<TensorEntry> {
    Vec::new()
}

struct Share {
    disks: Disks,
    place: LogPlace,
}

impl Share {
    fn formatted() -> Self {
        // A log of three blocks, so that checkpoints come often.
        Self::with_log_of(3)
    }

    fn with_log_of(blocks: u64) -> Self {
        Self::with(blocks, BlockFormat::Checked)
    }

    fn with(blocks: u64, format: BlockFormat) -> Self {
        let geometry = Geometry::plan(&GeometryRequest {
            devices: 2,
            device_bytes: ByteCount::mib(16),
            stripe_unit: ByteCount::kib(32),
            segment_bytes: None,
            shares: 1,
            copies: Copies::One,
        })
        .unwrap();
        let mut area: ShareArea = geometry.share(0).unwrap();
        for slot in &mut area.slots {
            slot.log_bytes = blocks * BLOCK_BYTES;
        }
        let place = LogPlace { area, ..LogPlace::new(77, 0, &geometry, format).unwrap() };
        let disks = Disks::default();
        ChangeLog::format(place, &disks).unwrap();
        Self { disks, place }
    }

    fn recover(&self) -> Result<Recovered, RecoveryError> {
        recover(self.place, LogMark::NONE, &self.disks)
    }

    fn log_offset(&self, slot: usize) -> u64 {
        self.place.area.slots[slot].log_offset
    }

    /// Writes blocks of a slot's log, on one device.
    fn write_log(&self, device: u8, slot: usize, block: u64, bytes: Vec<u8>) {
        let at = self.log_offset(slot) + block * BLOCK_BYTES;
        self.disks.write(device, at, bytes).unwrap();
        self.disks.flush(device).unwrap();
    }

    /// Fills a log with records none of which is whole, and each of which claims all that follows
    /// it.
    fn fill_with_claims(&self, device: u8, slot: usize, head: impl Fn(u64) -> (u64, u64)) {
        let LogPlace { pool, share, area, .. } = self.place;
        for block in 0..area.slots[slot].log_bytes / BLOCK_BYTES {
            let (epoch, sequence) = head(block);
            let mut record =
                ChangeRecord { pool, share, epoch, sequence, changes: vec![] }.encode();
            let rest = area.slots[slot].log_bytes - block * BLOCK_BYTES;
            let claimed =
                self.place.format.content_of(rest) as u32 - RECORD_HEADER_BYTES as u32 - 1;
            record[12..16].copy_from_slice(&claimed.to_le_bytes());
            self.write_log(device, slot, block, self.place.format.lay_out(record));
        }
    }
}

fn put(id: u128, block: u32) -> Change {
    Change::Put(TensorEntry {
        id: TensorId(id),
        name: None,
        length: 100 + id as u64,
        class: LifetimeClass::Step,
        runs: Runs::from_slice(&[Run::single(0, block, 1)]),
        checksums: Checksums::from_slice(&[block]),
    })
}

fn apply(model: &mut BTreeMap<TensorId, TensorEntry>, changes: &[Change]) {
    for change in changes {
        match change {
            Change::Put(entry) => drop(model.insert(entry.id, entry.clone())),
            Change::Delete(id) => drop(model.remove(id)),
            other => unreachable!("{other:?} of no seal"),
        }
    }
}

fn after(model: &BTreeMap<TensorId, TensorEntry>, changes: &[Change]) -> Vec<TensorEntry> {
    let mut model = model.clone();
    apply(&mut model, changes);
    model.into_values().collect()
}

#[test]
fn a_formatted_share_is_empty_and_settled() {
    let recovered = Share::formatted().recover().unwrap();
    assert!(recovered.index.tensors.is_empty() && recovered.settled);
    assert_eq!(recovered.log.epoch(), 1);
}

#[test]
fn every_acknowledged_commit_survives_crashes_and_no_commit_survives_in_part() {
    for seed in seeds(300) {
        let mut random = Random::new(seed);
        let share = Share::formatted();
        let mut model = BTreeMap::new();
        for life in 0..6 {
            let recovered = share.recover().unwrap();
            let mut log = recovered.log;
            let found: Vec<_> = model.values().cloned().collect();
            assert_eq!(recovered.index.tensors, found, "TIDELOG_SEED={seed}, life {life}");
            if !recovered.settled {
                log.checkpoint(&share.disks, &recovered.index.tensors, &[]).unwrap();
            }
            *share.disks.writes_left.borrow_mut() = Some(random.below(60) as u32);
            loop {
                // Two changes at least, so that half of a commit would show.
                let mut changes: Vec<_> = (0..2 + random.below(90))
                    .map(|_| TensorId(u128::from(random.below(12))))
                    .map(|id| put(id.0, id.0 as u32))
                    .collect();
                changes.push(Change::Delete(TensorId(u128::from(random.below(12)))));
                let then = after(&model, &changes);
                let committed = log.append(&share.disks, changes, |_| then.clone());
                if committed.is_ok() {
                    model = then.into_iter().map(|entry| (entry.id, entry)).collect();
                    continue;
                }
                assert!(matches!(committed, Err(AppendError::Device(_))));
                assert!(matches!(
                    log.append(&share.disks, vec![], |_| Vec::new()),
                    Err(AppendError::Stopped(_))
                ));
                share.disks.power_cut(&mut random);
                // The commit in doubt is there whole or not at all; both are right.
                let found = share.recover().unwrap().index.tensors;
                if found == then {
                    model = then.into_iter().map(|entry| (entry.id, entry)).collect();
                }
                break;
            }
        }
    }
}

#[test]
fn either_device_alone_is_enough_to_read_the_index() {
    let share = Share::formatted();
    let mut log = share.recover().unwrap().log;
    log.append(&share.disks, vec![put(1, 1)], |_| Vec::new()).unwrap();
    for device in 0..2 {
        *share.disks.unreadable.borrow_mut() = Some(device);
        let recovered = share.recover().unwrap();
        assert_eq!(recovered.index.tensors.len(), 1);
        assert!(!recovered.settled);
    }
}

#[test]
fn a_device_with_another_checkpoint_of_the_same_epoch_has_no_copy() {
    let mut share = Share::formatted();
    let LogPlace { pool, share: number, area, .. } = share.place;
    let Change::Put(entry) = put(1, 1) else { unreachable!() };
    let other = Checkpoint::encode(pool, number, 1, (&[], 0), &(&vec![entry]).into());
    let other = share.place.format.lay_out(other);
    share.disks.write(1, area.slots[0].checkpoint_offset, other).unwrap();
    share.disks.flush(1).unwrap();

    let recovered = share.recover().unwrap();
    assert_eq!(recovered.index.tensors, [], "the first device's holds");
    assert!(!recovered.settled, "commits must not continue both");
    let mut log = recovered.log;
    log.checkpoint(&share.disks, &none(), &[]).unwrap();
    assert!(share.recover().unwrap().settled);
    share.place.metadata = [DeviceIndex(0)].into_iter().collect();
    assert!(share.recover().unwrap().settled);
}

#[test]
fn damage_in_the_middle_of_the_log_is_not_taken_for_its_end() {
    let share = Share::formatted();
    let mut log = share.recover().unwrap().log;
    for id in 1..=3 {
        log.append(&share.disks, vec![put(id, id as u32)], |_| Vec::new()).unwrap();
    }
    share.disks.damage(0, share.log_offset(0));
    assert_eq!(share.recover().unwrap().index.tensors.len(), 3, "the other device has it");
    share.disks.damage(1, share.log_offset(0));
    assert!(matches!(share.recover(), Err(RecoveryError::LogDamaged { expected: 1, .. })));
}

#[test]
fn a_lost_checkpoint_that_commits_continue_is_not_replaced_by_an_older_one() {
    let share = Share::formatted();
    let mut log = share.recover().unwrap().log;
    log.checkpoint(&share.disks, &none(), &[]).unwrap();
    log.append(&share.disks, vec![put(1, 1)], |_| Vec::new()).unwrap();
    for device in 0..2 {
        share.disks.damage(device, share.place.area.slots[1].checkpoint_offset);
    }
    assert!(matches!(share.recover(), Err(RecoveryError::CheckpointDamaged { epoch: 2 })));
    for device in 0..2 {
        share.disks.damage(device, share.place.area.slots[0].checkpoint_offset);
        share.disks.damage(device, share.log_offset(1));
    }
    assert!(matches!(share.recover(), Err(RecoveryError::NoCheckpoint { .. })));
}

#[test]
fn a_lost_checkpoint_is_noticed_by_any_record_that_continued_it() {
    let share = Share::formatted();
    let mut log = share.recover().unwrap().log;
    log.checkpoint(&share.disks, &none(), &[]).unwrap();
    for id in 1..=2 {
        log.append(&share.disks, vec![put(id, id as u32)], |_| Vec::new()).unwrap();
    }
    for device in 0..2 {
        share.disks.damage(device, share.place.area.slots[1].checkpoint_offset);
        share.disks.damage(device, share.log_offset(1));
    }
    assert!(matches!(share.recover(), Err(RecoveryError::CheckpointDamaged { epoch: 2 })));
}

#[test]
fn what_an_old_record_contains_does_not_matter() {
    let share = Share::formatted();
    let mut log = share.recover().unwrap().log;
    log.append(&share.disks, vec![], |_| Vec::new()).unwrap();
    let Change::Put(mut entry) = put(1, 1) else { unreachable!("put() makes puts") };
    entry.length += BLOCK_BYTES; // more than its runs hold
    log.append(&share.disks, vec![Change::Put(entry)], |_| Vec::new()).unwrap();
    assert!(matches!(share.recover(), Err(RecoveryError::Contradiction(_))));
    log.checkpoint(&share.disks, &none(), &[]).unwrap();
    log.checkpoint(&share.disks, &none(), &[]).unwrap();
    assert!(
        share.recover().unwrap().index.tensors.is_empty(),
        "it stands behind the end of the log"
    );
}

#[test]
fn an_epoch_that_leaves_none_to_come_is_refused() {
    let share = Share::formatted();
    let write = |epoch| {
        let bytes = Checkpoint::encode(
            share.place.pool,
            share.place.share,
            epoch,
            (&[], 0),
            &(&none()).into(),
        );
        let bytes = share.place.format.lay_out(bytes);
        for device in 0..2 {
            let at = share.place.area.slots[1].checkpoint_offset;
            share.disks.write(device, at, bytes.clone()).unwrap();
            share.disks.flush(device).unwrap();
        }
    };
    write(u64::MAX - 1);
    assert!(matches!(share.recover(), Err(RecoveryError::Contradiction(_))));
    write(EPOCHS_END - 1);
    let mut log = share.recover().unwrap().log;
    log.checkpoint(&share.disks, &none(), &[]).unwrap();
}

#[test]
fn an_index_that_cannot_be_is_refused() {
    let recovered_with = |changes: Vec<Change>| {
        let share = Share::formatted();
        let mut log = share.recover().unwrap().log;
        log.append(&share.disks, changes, |_| Vec::new()).unwrap();
        match share.recover() {
            Err(RecoveryError::Contradiction(what)) => what,
            other => panic!("recovered all the same: {other:?}"),
        }
    };
    assert!(recovered_with(vec![put(1, 1), put(2, 1)]).contains("overlap"));
    assert!(recovered_with(vec![put(1, 1 << 20)]).contains("outside"));
    let share = Share::formatted();
    let tensors = [put(1, 1), put(1, 2)].map(|change| match change {
        Change::Put(entry) => entry,
        _ => unreachable!("put() makes puts"),
    });
    share.recover().unwrap().log.checkpoint(&share.disks, &tensors.to_vec(), &[]).unwrap();
    assert!(share.recover().unwrap_err().to_string().contains("twice"));
    let Change::Put(mut entry) = put(1, 1) else { unreachable!("put() makes puts") };
    entry.checksums = Checksums::from_slice(&[]);
    assert!(recovered_with(vec![Change::Put(entry)]).contains("0 checksums for 1 pieces"));
}

fn hold(number: u64, id: u128, block: u32) -> Change {
    let Change::Put(entry) = put(id, block) else { unreachable!("put() makes puts") };
    Change::Hold(HeldVersion { number, entry })
}

fn seal(name: &str, versions: &[u64]) -> Change {
    Change::Seal(Seal { name: name.into(), sealed_at: 0, order: 0, versions: versions.into() })
}

#[test]
fn a_held_version_is_there_as_long_as_a_seal_names_it() {
    let share = Share::formatted();
    let mut log = share.recover().unwrap().log;
    let numbers = || -> Vec<u64> {
        share.recover().unwrap().index.held.iter().map(|held| held.number).collect()
    };
    // Number 3 no seal names: what moved while its seal was given up.
    let first = vec![hold(1, 1, 1), hold(2, 2, 2), hold(3, 3, 3), seal("a", &[1, 2]), put(1, 1)];
    log.append(&share.disks, first, |_| Vec::new()).unwrap();
    assert_eq!(numbers(), [1, 2]);
    // In one record the order of a seal and of what it holds does not matter.
    let second = vec![seal("b", &[2, 4]), Change::Drop("a".into()), hold(4, 1, 9)];
    log.append(&share.disks, second, |_| Vec::new()).unwrap();
    assert_eq!(numbers(), [2, 4]);
    log.append(&share.disks, vec![seal("b", &[])], |_| Vec::new()).unwrap();
    assert_eq!(numbers(), [0_u64; 0]);
    let found = share.recover().unwrap().index;
    assert_eq!((found.seals.len(), found.tensors.len(), found.runs.len()), (1, 1, 1));
}

#[test]
fn seals_that_cannot_be_are_refused() {
    let refused = |changes: Vec<Change>, why: &str| {
        let share = Share::formatted();
        let mut log = share.recover().unwrap().log;
        log.append(&share.disks, changes, |_| Vec::new()).unwrap();
        match share.recover() {
            Err(RecoveryError::Contradiction(what)) => assert!(what.contains(why), "{what}"),
            other => panic!("recovered all the same: {other:?}"),
        }
    };
    refused(vec![seal("a", &[7])], "names version 7, which is not there");
    refused(vec![hold(1, 1, 1), hold(2, 1, 2), seal("a", &[1, 2])], "twice");
    refused(vec![hold(1, 1, 1), hold(2, 2, 1), seal("a", &[1, 2])], "overlap");
    refused(vec![put(2, 1), hold(1, 1, 1), seal("a", &[1])], "overlap");
    let twice = vec![put(1, 1), hold(1, 1, 1), hold(2, 1, 1), seal("a", &[1]), seal("b", &[2])];
    refused(twice, "held twice where it lies");
    refused(vec![hold(1, 1, 1 << 20), seal("a", &[1])], "outside");
    let Change::Hold(mut other) = hold(1, 1, 1) else { unreachable!("hold() makes holds") };
    other.entry.checksums = Checksums::from_slice(&[9; 1]);
    refused(vec![put(1, 1), Change::Hold(other), seal("a", &[1])], "lies where another lies");
}

#[test]
fn an_index_too_large_for_its_place_is_refused_and_the_log_goes_on() {
    let share = Share::formatted();
    let mut log = share.recover().unwrap().log;
    let many: Vec<TensorEntry> = (0..20_000)
        .map(|id| match put(id, 1) {
            Change::Put(entry) => entry,
            _ => unreachable!("put() makes puts"),
        })
        .collect();
    let full = log.checkpoint(&share.disks, &many, &[]);
    assert!(matches!(full, Err(AppendError::IndexFull { .. })));
    log.append(&share.disks, vec![put(1, 1)], |_| Vec::new()).unwrap();
    assert_eq!(share.recover().unwrap().index.tensors.len(), 1);
}

#[test]
fn a_log_full_of_false_claims_costs_no_more_than_its_bytes() {
    const BLOCKS: u64 = 256;
    let share = Share::with(BLOCKS, BlockFormat::Plain);
    // Both slots have checkpoints, the newer of which is damaged: its log must be searched for
    // records.
    share.recover().unwrap().log.checkpoint(&share.disks, &none(), &[]).unwrap();
    for device in 0..2_u8 {
        share.disks.damage(device.into(), share.place.area.slots[1].checkpoint_offset);
        share.fill_with_claims(device, 1, |block| (2 + block, 1));
    }
    // One copy of the log that holds claims what the other has, block by block.
    share.fill_with_claims(0, 0, |block| (1, block + 1));
    let LogPlace { pool, share: number, .. } = share.place;
    for block in 0..BLOCKS / 2 {
        let changes = vec![put(u128::from(block) % 64, block as u32 % 64)];
        let record = ChangeRecord { pool, share: number, epoch: 1, sequence: block + 1, changes };
        share.write_log(1, 0, block, share.place.format.lay_out(record.encode()));
    }
    let reader = Reader::new(share.place, LogMark::NONE, &share.disks);
    let recovered = reader.recover().unwrap();
    assert_eq!(recovered.index.tensors.len(), 64, "every record of the other copy counts");
    let (checksummed, logs) = (reader.checksummed.get(), 4 * BLOCKS * BLOCK_BYTES);
    assert!(checksummed > logs / 2, "{checksummed} of {logs}: the claims were not looked at");
    assert!(checksummed <= 2 * logs + logs / 16, "{checksummed} of {logs}");
}

#[test]
fn a_log_full_of_false_claims_in_blocks_with_checksums_costs_a_few_times_its_bytes() {
    const BLOCKS: u64 = 256;
    let share = Share::with_log_of(BLOCKS);
    // One copy claims what the other has; each claim costs itself and the block behind it.
    share.fill_with_claims(0, 0, |block| (1, block + 1));
    let LogPlace { pool, share: number, .. } = share.place;
    for block in 0..BLOCKS {
        let changes = vec![put(u128::from(block) % 64, block as u32 % 64)];
        let record = ChangeRecord { pool, share: number, epoch: 1, sequence: block + 1, changes };
        share.write_log(1, 0, block, share.place.format.lay_out(record.encode()));
    }
    let reader = Reader::new(share.place, LogMark::NONE, &share.disks);
    assert_eq!(reader.recover().unwrap().index.tensors.len(), 64, "every record counts");
    let (checksummed, logs) = (reader.checksummed.get(), 2 * BLOCKS * BLOCK_BYTES);
    assert!(checksummed > logs, "{checksummed} of {logs}: the claims were not looked at");
    assert!(checksummed <= 4 * logs, "{checksummed} of {logs}");
}

#[test]
fn a_newer_record_in_the_log_that_holds_is_one_whose_checkpoint_is_lost() {
    let share = Share::with_log_of(8);
    let LogPlace { pool, share: number, .. } = share.place;
    let record = |pool, epoch, sequence| {
        let record = ChangeRecord { pool, share: number, epoch, sequence, changes: vec![] };
        share.place.format.lay_out(record.encode())
    };
    share.write_log(1, 0, 5, record(pool + 1, 3, 1));
    share.write_log(0, 0, 4, record(pool, 0, 9));
    assert!(share.recover().unwrap().settled, "of another pool, or older");
    share.write_log(1, 0, 5, record(pool, 3, 1));
    assert!(matches!(share.recover(), Err(RecoveryError::CheckpointDamaged { epoch: 3 })));
}

#[test]
fn rotten_bits_of_an_old_record_are_no_newer_one() {
    for format in [BlockFormat::Plain, BlockFormat::Checked] {
        let share = Share::with(8, format);
        let LogPlace { pool, share: number, .. } = share.place;
        let record = |sequence| {
            let record = ChangeRecord { pool, share: number, epoch: 0, sequence, changes: vec![] };
            format.lay_out(record.encode())
        };
        let bits_of_epoch = (0..64).map(|bit| (32 + bit / 8, 1 << (bit % 8)));
        for (byte, mask) in bits_of_epoch {
            for slot in 0..2 {
                let mut rotten = record(9);
                rotten[byte] ^= mask;
                share.write_log(1, slot, 4, rotten);
            }
            let recovered = share.recover();
            assert!(recovered.is_ok_and(|it| it.settled), "{format:?}, byte {byte}, mask {mask}");
        }
    }
}

/// A put of many, each in another place.
fn spread(id: u128) -> Change {
    let Change::Put(mut entry) = put(id, id as u32 % 32) else { unreachable!("put() makes puts") };
    entry.runs[0].segment = id as u32 / 32;
    Change::Put(entry)
}

/// A share of two devices with a checkpoint of several blocks and, in its log, a record of three
/// blocks behind one of one block; and what it contains.
fn large(format: BlockFormat) -> (Share, BTreeMap<TensorId, TensorEntry>) {
    let share = Share::with(16, format);
    let mut model = BTreeMap::new();
    let mut log = share.recover().unwrap().log;
    let changes = |ids: std::ops::Range<u128>| ids.map(spread).collect::<Vec<Change>>();
    apply(&mut model, &changes(0..280));
    let all: Vec<TensorEntry> = model.values().cloned().collect();
    log.checkpoint(&share.disks, &all, &[]).unwrap();
    for ids in [280..281, 281..400] {
        let changes = changes(ids);
        apply(&mut model, &changes);
        log.append(&share.disks, changes, |_| panic!("the log has room")).unwrap();
    }
    (share, model)
}

/// The blocks of [`large`] that count, as offsets on either device.
fn blocks_of_large(share: &Share) -> Vec<u64> {
    let slot = share.place.area.slots[1];
    let blocks = |start: u64, count: u64| (0..count).map(move |it| start + it * BLOCK_BYTES);
    blocks(slot.checkpoint_offset, 5).chain(blocks(slot.log_offset, 4)).collect()
}

/// Way in which a block is corrupted.
#[derive(Clone, Copy, Debug)]
enum Spoil {
    Zero,
    Flip,
    Unreadable,
}

impl Share {
    fn spoil(&self, device: u8, offset: u64, how: Spoil) {
        let mut media = self.disks.media[usize::from(device)].borrow_mut();
        let block = media.get_mut(&offset).unwrap();
        match how {
            Spoil::Zero => block.fill(0),
            Spoil::Flip => block[100] ^= 0x10,
            Spoil::Unreadable => {
                self.disks.unreadable_blocks.borrow_mut().insert((device, offset));
            }
        }
    }
}

#[test]
fn a_share_is_whole_while_one_good_copy_of_each_block_is_there() {
    for seed in seeds(200) {
        let mut random = Random::new(seed);
        let (share, model) = large(BlockFormat::Checked);
        for offset in blocks_of_large(&share) {
            let how = [Spoil::Zero, Spoil::Flip, Spoil::Unreadable][random.below(3) as usize];
            if random.chance(2) {
                share.spoil(random.below(2) as u8, offset, how);
            }
        }
        let recovered = share.recover().unwrap_or_else(|it| panic!("TIDELOG_SEED={seed}: {it}"));
        let found: Vec<_> = model.values().cloned().collect();
        assert_eq!(recovered.index.tensors, found, "TIDELOG_SEED={seed}");
        assert!(!recovered.settled);
    }
}

#[test]
fn blocks_that_cannot_be_read_are_joined_in_pools_without_block_checksums_too() {
    let (share, model) = large(BlockFormat::Plain);
    for (number, offset) in blocks_of_large(&share).into_iter().enumerate() {
        share.spoil(number as u8 % 2, offset, Spoil::Unreadable);
    }
    let recovered = share.recover().unwrap();
    assert_eq!(recovered.index.tensors, model.into_values().collect::<Vec<_>>());
    // Where the first block cannot be read, the rest of that copy is read as far as it is needed.
    assert_eq!(recovered.unread.len(), 7);
}

#[test]
fn a_block_that_no_copy_has_is_told_and_nothing_behind_it_is_dropped() {
    for format in [BlockFormat::Plain, BlockFormat::Checked] {
        for how in [Spoil::Zero, Spoil::Flip, Spoil::Unreadable] {
            for number in 0..9 {
                let (share, _) = large(format);
                let end = LogPoint { epoch: 2, sequence: 2 };
                let mark = LogMark { end, commit: end, closed: true };
                let offset = blocks_of_large(&share)[number];
                (0..2).for_each(|device| share.spoil(device, offset, how));
                match recover(share.place, mark, &share.disks) {
                    Err(RecoveryError::CheckpointDamaged { epoch: 2 }) if number < 5 => (),
                    Err(RecoveryError::LogDamaged { epoch: 2, expected, last: 2 }) => {
                        assert_eq!(expected, if number < 6 { 1 } else { 2 });
                    }
                    other => panic!("{format:?} {how:?} {number}: {other:?}"),
                }
            }
        }
    }
}

#[test]
fn a_record_that_only_an_unreadable_copy_may_have_whole_is_not_gone_on_without() {
    for format in [BlockFormat::Plain, BlockFormat::Checked] {
        // The last record of one copy has rotted in its head, or behind it.
        for rotten in [0, 1] {
            let (share, _) = large(format);
            let last = blocks_of_large(&share)[6];
            let mut media = share.disks.media[1].borrow_mut();
            match rotten {
                0 => media.get_mut(&last).unwrap()[3] ^= 1,
                _ => media.get_mut(&(last + BLOCK_BYTES)).unwrap()[40] ^= 1,
            }
            drop(media);
            assert_eq!(share.recover().unwrap().index.tensors.len(), 400, "the other has it");
            let hidden = |found: Result<Recovered, RecoveryError>| match found {
                Err(RecoveryError::Unreadable { what, unread }) => {
                    assert!(what.contains("change record 2 of epoch 2"), "{what}");
                    assert_eq!(unread.device, 0);
                }
                other => panic!("{format:?} {rotten}: {other:?}"),
            };
            // In all of the log, or where it matters.
            *share.disks.unreadable.borrow_mut() = Some(0);
            hidden(share.recover());
            *share.disks.unreadable.borrow_mut() = None;
            share.spoil(0, last + rotten * BLOCK_BYTES, Spoil::Unreadable);
            hidden(share.recover());
        }
    }
}

#[test]
fn a_block_behind_the_end_that_cannot_be_read_locks_nothing_that_the_log_is_known_not_to_need() {
    for format in [BlockFormat::Plain, BlockFormat::Checked] {
        let (mut share, _) = large(format);
        let log = share.place.area.slots[1].log_offset;
        let [next, further] = [4, 9].map(|block| log + block * BLOCK_BYTES);
        share.disks.media[0].borrow_mut().insert(further, vec![0; BLOCK_BYTES as usize]);
        share.spoil(0, further, Spoil::Unreadable);
        assert_eq!(share.recover().unwrap().unread.len(), 1);
        // Exactly where the next record would be: the other copy says that there is none.
        share.disks.media[0].borrow_mut().insert(next, vec![0; BLOCK_BYTES as usize]);
        share.spoil(0, next, Spoil::Unreadable);
        assert_eq!(share.recover().unwrap().index.tensors.len(), 400);
        // There is no other copy.
        share.place.metadata = [DeviceIndex(0)].into_iter().collect();
        let refused = share.recover().unwrap_err();
        assert!(refused.to_string().contains("change record 3 of epoch 2"), "{refused}");
        // The share was closed there.
        let end = LogPoint { epoch: 2, sequence: 2 };
        let mark = LogMark { end, commit: end, closed: true };
        assert_eq!(recover(share.place, mark, &share.disks).unwrap().index.tensors.len(), 400);
        let opened = LogMark { closed: false, ..mark };
        assert!(recover(share.place, opened, &share.disks).is_err());
    }
}

#[test]
fn a_newer_checkpoint_that_may_be_behind_what_cannot_be_read_is_not_gone_back_from() {
    for format in [BlockFormat::Plain, BlockFormat::Checked] {
        let (mut share, model) = large(format);
        let mut log = share.recover().unwrap().log;
        let all: Vec<TensorEntry> = model.into_values().collect();
        log.checkpoint(&share.disks, &all, &[]).unwrap();
        let newest = share.place.area.slots[0].checkpoint_offset;
        // One copy of it is torn, as far as anybody can see, and the other cannot be read.
        share.spoil(1, newest + BLOCK_BYTES, Spoil::Flip);
        share.spoil(0, newest + BLOCK_BYTES, Spoil::Unreadable);
        let refused = share.recover().unwrap_err();
        assert!(matches!(refused, RecoveryError::Unreadable { .. }), "{refused}");
        // A share that was closed before it knows that it brought no commit.
        let end = LogPoint { epoch: 2, sequence: 2 };
        let mark = LogMark { end, commit: end, closed: true };
        assert_eq!(recover(share.place, mark, &share.disks).unwrap().log.epoch(), 2);
        // Not even its start.
        share.place.metadata = [DeviceIndex(0)].into_iter().collect();
        share.spoil(0, newest, Spoil::Unreadable);
        let refused = share.recover().unwrap_err();
        assert!(matches!(refused, RecoveryError::Unreadable { .. }), "{refused}");
    }
}
