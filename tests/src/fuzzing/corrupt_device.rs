//! A pool whose every byte of metadata somebody else wrote, with checksums that are right.

use std::collections::BTreeMap;

use arbitrary::{Result, Unstructured};
use tidelog_engine::layout::{
    BLOCK_BYTES, Change, Copies, Events, Geometry, GeometryRequest, HOLDERS_OFFSET, Holder,
    LogMark, LogPoint, METADATA_OFFSET, SUPERBLOCK_OFFSET, ShareEvent, Superblock,
};
use tidelog_engine::log::{EPOCHS_END, StripeMap};
use tidelog_engine::units::{ByteCount, DeviceSet};

use super::frame::{self, CheckpointHead, RecordHead};
use super::index::{changes, payload};

/// The pool's identity.
const POOL: u128 = 5;

/// Number of epochs, more than a target's calls use up.
const EPOCHS_USED: u64 = 16;

/// Bytes that somebody put on a device.
pub(super) struct Patch {
    pub(super) device: usize,
    pub(super) offset: u64,
    pub(super) bytes: Vec<u8>,
}

/// Contents of the devices.
pub(super) struct CorruptDevice {
    pub(super) geometry: Geometry,
    pub(super) patches: Vec<Patch>,
    /// The epoch of the checkpoint that stands there now, by share, slot and device.
    checkpoints: BTreeMap<(u32, usize, u8), u64>,
    /// The highest epoch of a record, by share.
    records: BTreeMap<u32, u64>,
    /// True if the index may go on in segments, from the start.
    index_in_segments: bool,
    /// True if raw bytes lie over the metadata.
    damaged: bool,
}

impl CorruptDevice {
    /// The pool that `words` describe. Where they end, it ends.
    pub(super) fn of(words: &mut Unstructured<'_>) -> Result<Self> {
        let request = GeometryRequest {
            devices: words.int_in_range(1..=3)?,
            device_bytes: ByteCount::mib(4),
            stripe_unit: *words.choose(&[ByteCount::kib(4), ByteCount::kib(16)])?,
            segment_bytes: None,
            shares: words.int_in_range(1..=2)?,
            copies: Copies::One,
        };
        let geometry = Geometry::plan(&request).expect("four MiB are enough for two shares");
        let mut pool = Self {
            geometry,
            patches: Vec::new(),
            checkpoints: BTreeMap::new(),
            records: BTreeMap::new(),
            index_in_segments: words.arbitrary()?,
            damaged: false,
        };
        for device in 0..geometry.devices {
            let block = pool.superblock(device);
            pool.put(device as usize, SUPERBLOCK_OFFSET, block.clone());
            pool.put(device as usize, geometry.second_superblock_offset(), block);
        }
        while !words.is_empty() && pool.patches.len() < 48 {
            pool.damage(words)?;
        }
        Ok(pool)
    }

    /// Returns whether records lie in wait for a checkpoint to come: whoever can write such records
    /// can write any, and a share that meets them later is refused then. So is one whose next
    /// checkpoint is of the first epoch that no share can have.
    pub(super) fn lies_in_wait(&self) -> bool {
        let waits = |(share, epoch): (&u32, &u64)| {
            let of_share = self.checkpoints.iter().filter(|((other, ..), _)| other == share);
            of_share.map(|(_, epoch)| epoch).max() < Some(epoch)
        };
        let last = (EPOCHS_END - EPOCHS_USED)..EPOCHS_END;
        let ends = self.checkpoints.values().any(|epoch| last.contains(epoch));
        self.damaged || ends || self.records.iter().any(waits)
    }

    fn superblock(&self, device: u32) -> Vec<u8> {
        let geometry = self.geometry;
        let (generation, formatted_at, depth) = (1, 1, None);
        let index_in_segments = self.index_in_segments;
        let pool = POOL;
        Superblock {
            generation,
            pool,
            device,
            geometry,
            formatted_at,
            depth,
            index_in_segments,
            seals: index_in_segments,
            block_checksums: self.block_checksums(),
            copies: index_in_segments.then_some(Copies::One),
            missing: DeviceSet::default(),
            table: None,
        }
        .encode()
    }

    fn damage(&mut self, words: &mut Unstructured<'_>) -> Result<()> {
        let device = words.int_in_range(0..=self.geometry.devices as usize - 1)?;
        match words.int_in_range(0..=9)? {
            0..=3 => self.checkpoint(words),
            4..=6 => self.record(words),
            7 => self.superblock_word(words, device),
            8 => self.holder(words, device),
            _ => self.raw(words, device),
        }
    }

    /// A checkpoint in one of the slots, on one device or on all.
    fn checkpoint(&mut self, words: &mut Unstructured<'_>) -> Result<()> {
        let (share, slot, copies) = self.place(words)?;
        let area = self.geometry.share(share).expect("a share of the pool").slots[slot];
        let (payload, entries) = self.payload(words, false)?;
        let wrong = words.ratio(1, 16)?;
        let tensors = if wrong { words.arbitrary()? } else { entries };
        let epoch = epoch(words)?;
        let segments = if words.ratio(1, 16)? { words.arbitrary()? } else { Vec::new() };
        let head = CheckpointHead { pool: POOL, share, epoch, tensors, segments };
        for device in self.devices_of(copies) {
            self.checkpoints.insert((share, slot, device), epoch);
        }
        let blocks = frame::blocks(&frame::checkpoint(&head, &payload), self.block_checksums());
        self.put_copies(copies, area.checkpoint_offset, &blocks);
        Ok(())
    }

    /// A record at some block of a slot's log.
    fn record(&mut self, words: &mut Unstructured<'_>) -> Result<()> {
        let (share, slot, copies) = self.place(words)?;
        let area = self.geometry.share(share).expect("a share of the pool").slots[slot];
        let (payload, _) = self.payload(words, true)?;
        let block = words.int_in_range(0..=3)?;
        let sequence = if words.ratio(1, 8)? { words.arbitrary()? } else { block + 1 };
        let epoch = epoch(words)?;
        let head = RecordHead { pool: POOL, share, epoch, sequence };
        let highest = self.records.entry(share).or_default();
        *highest = epoch.max(*highest);
        let blocks = frame::blocks(&frame::record(&head, &payload), self.block_checksums());
        self.put_copies(copies, area.log_offset + block * BLOCK_BYTES, &blocks);
        Ok(())
    }

    /// Returns whether blocks of its index have checksums. A pool that is older than those is older
    /// than an index in segments, or seals.
    fn block_checksums(&self) -> bool {
        self.index_in_segments
    }

    /// Index entries and how many, or bytes that are none.
    fn payload(&self, words: &mut Unstructured<'_>, deletions: bool) -> Result<(Vec<u8>, u64)> {
        if words.ratio(1, 8)? {
            let length = words.int_in_range(0..=200)?.min(words.len());
            return Ok((words.bytes(length)?.to_vec(), 1));
        }
        let stripes = StripeMap::new(&self.geometry);
        let mut changes = changes(words, Some(&stripes))?;
        let is_deletion = |change: &Change| matches!(change, Change::Delete(_) | Change::Drop(_));
        changes.retain(|change| deletions || !is_deletion(change));
        let puts = changes.iter().filter(|change| matches!(change, Change::Put(_))).count();
        Ok((payload(&changes), puts as u64))
    }

    /// One word of a superblock is another, and the checksum right.
    fn superblock_word(&mut self, words: &mut Unstructured<'_>, device: usize) -> Result<()> {
        let mut block = self.superblock(device as u32);
        let at = 4 * words.int_in_range(0..=40)?;
        let small = words.ratio(1, 2)?;
        let word = if small { u32::from(words.arbitrary::<u8>()?) } else { words.arbitrary()? };
        block[at..at + 4].copy_from_slice(&word.to_le_bytes());
        frame::seal(&mut block, frame::SUPERBLOCK_CHECKSUM);
        let second = self.geometry.second_superblock_offset();
        let copies = words.int_in_range(0..=2)?;
        if copies != 1 {
            self.put(device, SUPERBLOCK_OFFSET, block.clone());
        }
        if copies != 0 {
            self.put(device, second, block);
        }
        Ok(())
    }

    fn holder(&mut self, words: &mut Unstructured<'_>, device: usize) -> Result<()> {
        let (process, since) = words.arbitrary()?;
        let length = words.int_in_range(0..=64)?.min(words.len());
        let command = String::from_utf8_lossy(words.bytes(length)?).into_owned();
        let share = words.int_in_range(0..=2)?;
        // Of the same words, so that inputs of old mean what they meant. Mostly counts that devices
        // may well have.
        let number = if process % 8 == 0 { since } else { u64::from(process % 4) };
        let event = |number| ShareEvent { number, id: (since % 3).into() };
        let confirmed = event(number.saturating_sub(since % 2));
        // Mostly of no log, or of what may well stand there.
        let point = |word: u64| LogPoint { epoch: word % 4, sequence: word / 4 % 3 };
        let commit = point(since / 8).min(point(since / 256));
        let mark = LogMark { end: point(since / 8), commit, closed: since % 2 == 0 };
        let event = Events { begun: event(number), confirmed, mark };
        let block = Holder { process, command, since }.encode(POOL, share, event);
        self.put(device, HOLDERS_OFFSET + u64::from(share) * BLOCK_BYTES, block);
        Ok(())
    }

    /// Bytes anywhere in front of the data, the first block included.
    fn raw(&mut self, words: &mut Unstructured<'_>, device: usize) -> Result<()> {
        let blocks = self.geometry.data_offset / BLOCK_BYTES - 1;
        let anywhere = words.ratio(1, 4)?;
        let block = if anywhere {
            words.int_in_range(0..=blocks)?
        } else {
            *words.choose(&[0, 1, 2, METADATA_OFFSET / BLOCK_BYTES])?
        };
        let length = words.int_in_range(1..=128)?.min(words.len());
        let mut bytes = words.bytes(length)?.to_vec();
        bytes.resize(BLOCK_BYTES as usize, 0);
        self.damaged |= block * BLOCK_BYTES >= METADATA_OFFSET;
        self.put(device, block * BLOCK_BYTES, bytes);
        Ok(())
    }

    /// A share, a slot, and which of the metadata devices get a copy.
    fn place(&self, words: &mut Unstructured<'_>) -> Result<(u32, usize, u8)> {
        let share = words.int_in_range(0..=self.geometry.shares - 1)?;
        Ok((share, words.int_in_range(0..=1)?, *words.choose(&[3, 3, 1, 2])?))
    }

    fn put_copies(&mut self, copies: u8, offset: u64, bytes: &[u8]) {
        for device in self.devices_of(copies) {
            self.put(device.into(), offset, bytes.to_vec());
        }
    }

    fn devices_of(&self, copies: u8) -> impl Iterator<Item = u8> + use<> {
        (0..self.geometry.metadata_devices()).filter(move |it| copies >> it & 1 != 0)
    }

    fn put(&mut self, device: usize, offset: u64, bytes: Vec<u8>) {
        self.patches.push(Patch { device, offset, bytes });
    }
}

/// Draws an epoch, mostly one of the first, sometimes one of the last there can be.
fn epoch(words: &mut Unstructured<'_>) -> Result<u64> {
    match words.int_in_range(0..=15)? {
        0 => words.arbitrary(),
        1 => Ok(u64::MAX - words.int_in_range(0..=2)?),
        _ => words.int_in_range(0..=4),
    }
}
