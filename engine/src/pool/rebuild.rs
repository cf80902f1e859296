//! Making again what a device had that was replaced, while the pool is used.
//!
//! A replacement that was begun is written and not read: what is put from the opening on has its
//! copies there. Everything older is read from the other device that has it and written to the new
//! one, as it lies on the devices and not tensor by tensor, when nobody else wants them. What is
//! copied stays where it is meanwhile; what is moved, replaced or held by a seal in between is
//! looked up again until nothing is left. Then the superblocks say that the pool is whole, and from
//! the next opening on the new device is read.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::RangeInclusive;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::error::Unusable;
use super::held::Reading;
use super::media::MetadataIo;
use super::reshape::ReshapeError;
use super::{Pool, pieces, superblocks};
use crate::layout::{BLOCK_BYTES, TensorKey};
use crate::log::Version;
use crate::memory::{Destination, Source, checksum};
use crate::schedule::{
    Finish, Piece, Reactor, Subject, SubmitError, Ticket, Transfer, TransferError, Urgency,
};
use crate::units::{ByteCount, DeviceIndex, DeviceSet};

/// Bytes of an operation, at most; and while the pool is used: what a caller waits for whose read
/// comes just behind one.
const PIECE_BYTES: u64 = 256 << 10;
const SMALL_PIECE_BYTES: u64 = 64 << 10;
/// Bytes that are read and written at once: some stripe units, within these bounds.
const GROUP_UNITS: u64 = 4;
const GROUP_BYTES: RangeInclusive<u64> = 64 << 10..=1 << 20;
/// Groups that are read ahead of their writes, and as many that are written.
const GROUPS_IN_FLIGHT: u64 = 4;

/// Progress of a replacement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplaceProgress {
    /// Tensor bytes that are on the new device.
    pub done: ByteCount,
    /// Tensor bytes of the whole replacement.
    pub total: ByteCount,
}

/// State of a device that takes the place of a lost one in an open pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RebuildStats {
    /// Place of the device in the pool.
    pub place: u32,
    /// Progress since the pool was opened.
    pub progress: ReplaceProgress,
    /// True once all of it is there and the superblocks say that the pool is whole. It is read from
    /// the next opening on.
    pub is_whole: bool,
    /// The reason why it does not go on, if it does not.
    pub error: Option<String>,
}

/// A device that is to be made again, as it was found when the pool was opened.
pub(super) struct Rebuilt {
    place: DeviceIndex,
    /// False if the index was not written anew, for want of space.
    has_index: bool,
    /// Age of the first version that was put with all its copies.
    age: u64,
    stats: RebuildStats,
}

impl Rebuilt {
    pub(super) fn new(place: DeviceIndex, has_index: bool, age: u64) -> Self {
        let stats = RebuildStats {
            place: place.0.into(),
            progress: ReplaceProgress::default(),
            is_whole: false,
            error: None,
        };
        Self { place, has_index, age, stats }
    }

    pub(super) fn stats(&self) -> &RebuildStats {
        &self.stats
    }
}

/// Making one share of a device again, step by step.
pub struct Rebuild {
    pool: Pool,
    place: DeviceIndex,
    age: u64,
    rate: ByteCount,
    urgency: Urgency,
    begun_at: Instant,
    /// Tensor bytes that were begun, and those that are there.
    begun: u64,
    done: u64,
    total: u64,
    left: std::vec::IntoIter<Arc<Version>>,
    /// Versions that are there, or lost, by their serial numbers.
    through: HashSet<u64>,
    lost: HashMap<u64, TensorKey>,
    /// Parts of the version that is being gathered.
    parts: std::vec::IntoIter<Part>,
    copying: Copying,
}

impl Pool {
    /// Begins to make again what the device had that is being replaced: that is read from other
    /// devices and written to the new one, `rate` tensor bytes in a second at most (zero: as many
    /// as the devices move). The pool is used meanwhile. `None` if no device of the pool is being
    /// replaced, or it is done.
    ///
    /// # Errors
    /// The index is not on the new device, or the pool is closed.
    pub fn rebuild(&self, rate: ByteCount) -> Result<Option<Rebuild>, ReshapeError> {
        self.check_usable()?;
        let device = self.rebuilt();
        let Some(device) = device.as_ref().filter(|it| !it.stats.is_whole) else {
            return Ok(None);
        };
        if !device.has_index {
            return Err(ReshapeError::NoRoom(self.0.share));
        }
        let mut rebuild = Rebuild {
            pool: self.clone(),
            place: device.place,
            age: device.age,
            rate,
            urgency: Urgency::Idle,
            begun_at: Instant::now(),
            begun: 0,
            done: 0,
            total: 0,
            left: Vec::new().into_iter(),
            through: HashSet::new(),
            lost: HashMap::new(),
            parts: Vec::new().into_iter(),
            copying: Copying::default(),
        };
        rebuild.look_again();
        rebuild.total = rebuild.left.as_slice().iter().map(|it| rebuild.bytes_of(it)).sum();
        Ok(Some(rebuild))
    }

    pub(super) fn rebuilt(&self) -> MutexGuard<'_, Option<Rebuilt>> {
        self.0.rebuilt.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the devices that are not there: nothing is read of them or written to them.
    pub(super) fn absent(&self) -> DeviceSet {
        let description = &self.0.description;
        let written: DeviceSet = self.rebuilt().iter().map(|it| it.place).collect();
        description.missing.without(written).union(description.table.removed)
    }

    /// Notes why a device is not made again.
    pub(super) fn note_rebuild_error(&self, error: &ReshapeError) {
        if let Some(rebuilt) = &mut *self.rebuilt() {
            rebuilt.stats.error = Some(error.to_string());
        }
    }

    /// Has the superblocks of all devices say that none is missing. All shares must be there.
    pub(super) fn end_rebuilding(&self, place: DeviceIndex) -> Result<(), ReshapeError> {
        let reactor = self.reactor()?;
        let reactor = reactor.as_ref().ok_or(Unusable::Closed)?;
        let written = &self.0.shared.written.metadata;
        let missing = self.0.description.table.removed;
        let media = MetadataIo { reactor, written, missing };
        let (pool, geometry) = (self.0.description.pool, &self.0.description.geometry);
        // Nobody may write them in between with what they said before.
        let _announced = self.0.announced.lock().unwrap_or_else(PoisonError::into_inner);
        let now = superblocks::read(&media, pool, geometry, missing);
        let now = now.map_err(ReshapeError::Device)?;
        let of_place: DeviceSet = [place].into_iter().collect();
        superblocks::rewrite(&media, &now, |superblock| {
            superblock.missing = superblock.missing.without(of_place);
        })?;
        if let Some(rebuilt) = &mut *self.rebuilt() {
            (rebuilt.stats.is_whole, rebuilt.stats.error) = (true, None);
        }
        Ok(())
    }
}

impl Rebuild {
    /// Returns the tensor bytes that there were to be made again at the beginning.
    pub(super) fn total(&self) -> ByteCount {
        ByteCount(self.total)
    }

    /// Makes way for nobody: the pool is open for this alone.
    pub(super) fn alone(self) -> Self {
        Self { urgency: Urgency::Ahead, ..self }
    }

    /// Has the rate count from now on.
    pub(super) fn start_clock(&mut self) {
        self.begun_at = Instant::now();
    }

    /// Returns the time after which the next step keeps to the rate.
    pub fn due(&self) -> Duration {
        ByteCount(self.begun).time_left(self.rate, self.begun_at)
    }

    /// Goes on by a part of what is left, at once. `None` if all of it is on the medium.
    ///
    /// # Errors
    /// A device failed, or the pool is closed.
    pub fn step(&mut self) -> Result<Option<ReplaceProgress>, ReshapeError> {
        let pool = self.pool.clone();
        let reactor = pool.reactor()?;
        let reactor = reactor.as_ref().ok_or(Unusable::Closed)?;
        let unit = pool.0.description.geometry.stripe_unit;
        let bytes = (GROUP_UNITS * unit).clamp(*GROUP_BYTES.start(), *GROUP_BYTES.end());
        let group = self.gather(bytes);
        let is_last = group.parts.is_empty();
        if !is_last {
            self.begun += group.bytes;
            self.copying.begin((reactor, self.urgency), group)?;
        }
        let most = if is_last { 0 } else { GROUPS_IN_FLIGHT * bytes };
        let Self { copying, lost, done, urgency, .. } = self;
        copying.advance((reactor, *urgency), most, lost, done)?;
        if is_last {
            self.look_again();
            if self.left.as_slice().is_empty() {
                reactor.flush(&[self.place])?;
                self.done = self.total;
                self.note();
                return Ok(None);
            }
        }
        Ok(Some(self.note()))
    }

    /// Has the superblocks say that the pool is whole, once a step has found nothing left, of a
    /// pool of one share.
    ///
    /// # Errors
    /// A device failed; or durable tensors are lost: no other device has them. They are to be
    /// dropped, and then it can be whole.
    pub fn finish(&self) -> Result<(), ReshapeError> {
        let lost = self.lost()?;
        if !lost.is_empty() {
            return Err(ReshapeError::Lost(lost));
        }
        self.pool.end_rebuilding(self.place)
    }

    /// Returns the tensors that have lost bytes, as far as they are still kept.
    pub(super) fn lost(&self) -> Result<Vec<TensorKey>, ReshapeError> {
        let mut lost = self.pool.lost_tensors()?;
        let contents = self.pool.0.shared.contents();
        let kept = contents.kept_before(self.age).filter_map(|it| self.lost.get(&it.serial()));
        lost.extend(kept.cloned());
        lost.sort_by_key(|key| key.id);
        lost.dedup();
        Ok(lost)
    }

    fn note(&self) -> ReplaceProgress {
        let progress = ReplaceProgress { done: ByteCount(self.done), total: ByteCount(self.total) };
        if let Some(rebuilt) = &mut *self.pool.rebuilt() {
            (rebuilt.stats.progress, rebuilt.stats.error) = (progress, None);
        }
        progress
    }

    /// Looks for what is not on the new device yet, in the order in which it lies in the log.
    fn look_again(&mut self) {
        let contents = self.pool.0.shared.contents();
        let kept = contents.kept_before(self.age);
        let mut left: Vec<Arc<Version>> =
            kept.filter(|it| !self.through.contains(&it.serial())).cloned().collect();
        drop(contents);
        let place = |it: &Arc<Version>| it.entry.runs.first().map(|run| (run.segment, run.block));
        left.sort_by_key(place);
        self.left = left.into_iter();
    }

    /// Gathers parts of this many bytes or a little more; none if there are none any more.
    fn gather(&mut self, bytes: u64) -> Group {
        let mut group = Group::default();
        while group.bytes < bytes {
            if let Some(part) = self.parts.next() {
                group.add(part);
            } else if let Some(version) = self.left.next() {
                self.through.insert(version.serial());
                match Reading::start_kept(&self.pool.0.shared, &version) {
                    Some(reading) => self.parts = self.parts_of(reading),
                    None => self.done += self.bytes_of(&version),
                }
            } else {
                break;
            }
        }
        group
    }

    fn parts_of(&self, reading: Reading) -> std::vec::IntoIter<Part> {
        let reading = Arc::new(reading);
        let part = |(from, to)| Part { from, to, at: 0, reading: Arc::clone(&reading) };
        let parts: Vec<Part> = self.copies(reading.version()).into_iter().map(part).collect();
        parts.into_iter()
    }

    fn bytes_of(&self, version: &Version) -> u64 {
        self.copies(version).iter().map(|(from, _)| on_device(from)).sum()
    }

    /// Returns the pieces of a version that have a copy on the new device: where each is read, and
    /// where it is written.
    fn copies(&self, version: &Version) -> Vec<(Piece, Piece)> {
        let (place, entry) = (self.place, &version.entry);
        let whole = self.pool.0.stripes.to_write();
        let pieces = pieces::of_range(&whole, entry, 0..entry.length, true);
        let copies = pieces.filter_map(|piece| {
            let second = piece.swapped()?;
            if piece.device == place {
                return Some((second.alone(), piece.alone()));
            }
            (second.device == place).then(|| (piece.alone(), second.alone()))
        });
        copies.collect()
    }
}

/// Returns the bytes that a piece takes up on its device.
fn on_device(piece: &Piece) -> u64 {
    u64::from(piece.length).next_multiple_of(BLOCK_BYTES)
}

/// A piece of a version and where it goes.
struct Part {
    from: Piece,
    to: Piece,
    /// Offset in the memory of the group.
    at: u64,
    /// Keeps the version where it is.
    reading: Arc<Reading>,
}

impl Part {
    fn bytes(&self) -> u64 {
        on_device(&self.from)
    }

    /// Returns whether the part lies right behind another one, on both devices.
    fn follows(&self, before: &Self) -> bool {
        let is_next = |this: &Piece, that: &Piece| {
            this.device == that.device && this.offset.0 == that.offset.0 + before.bytes()
        };
        is_next(&self.from, &before.from) && is_next(&self.to, &before.to)
    }
}

/// Parts that are copied together, one behind the other in memory.
#[derive(Default)]
struct Group {
    bytes: u64,
    parts: Vec<Part>,
}

impl Group {
    fn add(&mut self, part: Part) {
        let at = self.bytes;
        self.bytes += part.bytes();
        self.parts.push(Part { at, ..part });
    }

    /// Cuts the bytes into operations: those that lie side by side on their devices are one.
    fn operations(&self, (reactor, urgency): By<'_>) -> (Vec<Piece>, Vec<Piece>) {
        let makes_way = urgency == Urgency::Idle && reactor.is_in_use();
        let most = if makes_way { SMALL_PIECE_BYTES } else { PIECE_BYTES };
        let most = most.min(reactor.chunk().0);
        let (mut from, mut to) = (Vec::new(), Vec::new());
        for parts in self.parts.chunk_by(|before, part| part.follows(before)) {
            let (first, bytes) = (&parts[0], parts.iter().map(Part::bytes).sum::<u64>());
            for start in (0..bytes).step_by(most as usize) {
                let length = (bytes - start).min(most) as u32;
                let piece = |it: &Piece| {
                    let offset = ByteCount(it.offset.0 + start);
                    Piece::new(it.device, offset, first.at + start, length)
                };
                from.push(piece(&first.from));
                to.push(piece(&first.to));
            }
        }
        (from, to)
    }

    /// Returns the parts whose bytes are not those that were written.
    fn damaged(&self, bytes: &[u8]) -> Vec<&Part> {
        let is_damaged = |part: &&Part| {
            let start = part.at as usize;
            let found = bytes.get(start..start + part.from.length as usize).map(checksum);
            found.is_none() || found != part.from.checksum
        };
        self.parts.iter().filter(is_damaged).collect()
    }

    /// Returns what keeps its versions where they are until the transfer has ended, whoever waits
    /// for it or does not.
    fn keep(&self) -> Finish {
        let readings: Vec<Arc<Reading>> =
            self.parts.iter().map(|part| Arc::clone(&part.reading)).collect();
        Finish::new(move |_| drop(readings))
    }
}

/// The reactor that copies, and how urgently.
type By<'a> = (&'a Reactor, Urgency);

/// Groups on their way.
#[derive(Default)]
struct Copying {
    reads: VecDeque<(Group, Ticket)>,
    writes: VecDeque<(u64, Ticket)>,
}

impl Copying {
    fn begin(&mut self, by: By<'_>, group: Group) -> Result<(), ReshapeError> {
        let destination = Destination::buffer(group.bytes as usize);
        let (pieces, _) = group.operations(by);
        let read = submit(by, Transfer::Read { destination, pieces }, group.keep())?;
        self.reads.push_back((group, read));
        Ok(())
    }

    /// Goes on until at most this many bytes are being read, and as many are being written. Adds
    /// the versions of which something could not be read.
    fn advance(
        &mut self,
        by: By<'_>,
        most: u64,
        lost: &mut HashMap<u64, TensorKey>,
        done: &mut u64,
    ) -> Result<(), ReshapeError> {
        while self.reads.iter().map(|(group, _)| group.bytes).sum::<u64>() > most
            && let Some((group, read)) = self.reads.pop_front()
        {
            let bytes = match read.wait() {
                Ok(_) => read.take_bytes().unwrap_or_default(),
                Err(error) if says_something(&error) => Vec::new(),
                Err(error) => return Err(error.into()),
            };
            let damaged = group.damaged(&bytes);
            if damaged.is_empty() {
                self.write(by, &group, bytes)?;
                continue;
            }
            // Its parts one by one, to lose no more than cannot be read.
            for part in &group.parts {
                if !copy_alone(by, part)? {
                    let version = part.reading.version();
                    lost.insert(version.serial(), version.entry.key());
                }
            }
            *done += group.bytes;
        }
        while self.writes.iter().map(|(bytes, _)| bytes).sum::<u64>() > most
            && let Some((bytes, write)) = self.writes.pop_front()
        {
            write.wait()?;
            *done += bytes;
        }
        Ok(())
    }

    fn write(&mut self, by: By<'_>, group: &Group, bytes: Vec<u8>) -> Result<(), ReshapeError> {
        let (_, pieces) = group.operations(by);
        let write = Transfer::Write { source: Source::Owned(bytes), pieces };
        self.writes.push_back((group.bytes, submit(by, write, group.keep())?));
        Ok(())
    }
}

/// Copies one part, compared with its checksum. Returns whether it could be read.
fn copy_alone(by: By<'_>, part: &Part) -> Result<bool, ReshapeError> {
    let [from, to] = [part.from, part.to].map(|piece| Piece { tensor_offset: 0, ..piece });
    let keep = || {
        let reading = Arc::clone(&part.reading);
        Finish::new(move |_| drop(reading))
    };
    let destination = Destination::buffer(from.length as usize);
    let read = submit(by, Transfer::Read { destination, pieces: vec![from] }, keep())?;
    match read.wait() {
        Ok(_) => (),
        Err(error) if says_something(&error) => return Ok(false),
        Err(error) => return Err(error.into()),
    }
    let source = Source::Owned(read.take_bytes().unwrap_or_default());
    let pieces = vec![Piece { checksum: None, ..to }];
    submit(by, Transfer::Write { source, pieces }, keep())?.wait()?;
    Ok(true)
}

/// Returns whether the error of a read says something of its bytes, and not of all.
fn says_something(error: &TransferError) -> bool {
    match error {
        TransferError::Checksum { .. } => true,
        TransferError::Device { error, .. } => !error.status.is_removal(),
        _ => false,
    }
}

fn submit(
    (reactor, urgency): By<'_>,
    transfer: Transfer,
    finish: Finish,
) -> Result<Ticket, SubmitError> {
    reactor.submit_about(Subject::default(), transfer, urgency, None, finish)
}
