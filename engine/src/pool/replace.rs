//! Replacing a device of a pool by a new one, on which everything that it had is made again from
//! the other copies.
//!
//! 1. The superblocks of the others say that the pool goes on without the old device, which is
//!    stale from then on.
//! 2. The new device gets a superblock that says so of itself: it is written and never read.
//! 3. Each share is opened, its index is written anew, and every copy that the old device had is
//!    read from the other device that has one and written to the new one.
//! 4. Once that is on the medium, all superblocks say that the pool is whole.
//!
//! Whatever ends a process in between, the same steps lead to the same end. All shares stay open
//! until the last step: nobody writes meanwhile what the new device would lack.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::arrangement::{Arranged, Completeness, arrange_those};
use super::error::{FormatError, OpenError, Unusable};
use super::format;
use super::held::Reading;
use super::media::{MetadataIo, with_media};
use super::members::{Member, MemberAccess, Members};
use super::options::{FormatOptions, OpenOptions};
use super::reshape::{ReshapeError, keep_rate};
use super::scrub::ScrubTarget;
use super::{Pool, events, pieces, start, superblocks};
use crate::layout::{Geometry, Superblock, TensorKey, UnfinishedFormat, protective_mbr};
use crate::log::LogMedia;
use crate::memory::{Destination, Source};
use crate::path::{DeviceIdentity, MemberSource};
use crate::schedule::{
    Finish, Piece, Reactor, Subject, SubmitError, Ticket, Transfer, TransferError, Urgency,
};
use crate::units::{ByteCount, DeviceIndex, DeviceSet};

/// Bytes that are read and written at once, at least one stripe unit.
const GROUP_BYTES: u64 = 4 << 20;
/// Bytes that are read ahead of their writes, and as many that are written.
const BYTES_IN_FLIGHT: u64 = 4 * GROUP_BYTES;
/// Limit of the groups that these are, where tensors are small.
const GROUPS_IN_FLIGHT: usize = 256;

/// Options of a replacement.
#[derive(Clone, Debug, Default)]
pub struct ReplaceOptions {
    /// Go through the page cache, where the file system has no `O_DIRECT`.
    pub buffered: bool,
    /// True if what the new device holds may be lost.
    pub overwrite: bool,
    /// Devices that may lose what they hold, whatever `overwrite` says.
    pub overwrite_devices: Vec<DeviceIdentity>,
    /// Tensor bytes to write in a second; zero for as many as the devices move.
    pub rate: ByteCount,
    /// True to go on without durable tensors that no other device has. They stay as they are:
    /// damaged, until they are dropped.
    pub accept_loss: bool,
}

/// Progress of a replacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplaceProgress {
    /// Tensor bytes that are on the new device.
    pub done: ByteCount,
    /// Tensor bytes of the whole replacement.
    pub total: ByteCount,
}

/// Result of a replacement.
#[derive(Clone, Debug)]
pub struct Replaced {
    /// Place of the device in the pool.
    pub place: u32,
    /// Names of the devices, in stripe order.
    pub devices: Vec<String>,
    /// Tensor bytes that were written to it.
    pub bytes: ByteCount,
    /// Durable tensors that have lost bytes, because no other device had them.
    pub lost: Vec<TensorKey>,
    /// True if there was nothing left to do.
    pub was_whole: bool,
}

/// Has `new` take the place of the device that is missing beside `others`, which are all other
/// devices of the pool. Nobody can open the pool meanwhile.
///
/// # Errors
/// See [`ReshapeError`].
pub fn replace<Device: MemberSource + Clone>(
    new: &Device,
    others: &[Device],
    options: &ReplaceOptions,
    progress: &mut dyn FnMut(ReplaceProgress),
) -> Result<Replaced, ReshapeError> {
    let all: Vec<Device> = others.iter().chain([new]).cloned().collect();
    if let Some((one, other)) = Device::find_twins(&all) {
        return Err(FormatError::SameDevice(one, other).into());
    }
    let (geometry, place) = match prepare(new, others, options)? {
        Prepared::Whole(place) => return end_whole(&all, place, options),
        Prepared::Begun { geometry, place } => (geometry, place),
    };
    let place_in_pool = DeviceIndex(place as u8);
    let open = |share| {
        let how = open_options(&geometry, share, options.buffered);
        let opened = Pool::open_renewed(&all, &how, Completeness::Rebuilding)?;
        opened.ok_or(ReshapeError::NoRoom(share))
    };
    let shares = (0..geometry.shares).map(open).collect::<Result<Vec<Pool>, _>>()?;
    let rebuilding = Rebuilding { shares: &shares, place: place_in_pool, options };
    let (bytes, lost) = rebuilding.run(progress)?;
    let mut devices = Vec::new();
    if let Some(pool) = shares.first() {
        pool.end_rebuilding(place_in_pool)?;
        devices.clone_from(&pool.description().devices);
    }
    shares.into_iter().try_for_each(|pool| pool.close())?;
    Ok(Replaced { place, devices, bytes, lost, was_whole: false })
}

/// State of the devices once the new one can be written.
enum Prepared {
    /// A device that has this place already; nothing is left to do but to say so everywhere.
    Whole(u32),
    /// A replacement that is begun.
    Begun { geometry: Geometry, place: u32 },
}

/// Has the others go on without the old device, and the new one be a replacement that is begun.
fn prepare<Device: MemberSource>(
    new: &Device,
    others: &[Device],
    options: &ReplaceOptions,
) -> Result<Prepared, ReshapeError> {
    let access = MemberAccess::alone(options.buffered);
    let members = Members::open(others, &access)?;
    let Arranged { members, superblocks, .. } =
        arrange_those(members, &[], Completeness::Degraded)?;
    let Some(newest) = superblocks.iter().max_by_key(|it| it.generation) else {
        return Err(OpenError::Devices(0).into());
    };
    let (newest, geometry) = (*newest, newest.geometry);
    let missing = members.missing();
    let Some(place) = missing.iter().next() else { return Err(ReshapeError::NoneMissing) };
    start::refuse_overwritten(&members, &superblocks)?;
    let place = u32::from(place.0);
    let format = FormatOptions {
        overwrite: options.overwrite,
        overwrite_devices: options.overwrite_devices.clone(),
        buffered: options.buffered,
        ..FormatOptions::default()
    };
    let needed = ByteCount(geometry.device_bytes);
    if new.check_exists().is_err() {
        new.create(needed, false, access.mode, &mut |_| ()).map_err(FormatError::from)?;
    }
    let mut member = Member::open(new, others.len(), &access).map_err(FormatError::from)?;
    let is_its = |it: &Superblock| it.is_of_the_same_pool(&newest) && it.device == place;
    let found = member.superblock().ok().filter(is_its);
    let newer = found.filter(|found| found.generation > newest.generation).unwrap_or(newest);
    if found.is_some() && newer.missing.is_empty() && is_as_new(&members, &member, &newest) {
        // The others were never without it, or are no more.
        return Ok(Prepared::Whole(place));
    }
    let is_begun = found.is_some_and(|it| it.missing.contains(DeviceIndex(place as u8)));
    if !is_begun {
        format::refuse_content(std::iter::once(&member), &format)?;
    }
    // A file of which an earlier call was killed while it was made.
    member.grow(needed, false, &mut |_| ()).map_err(FormatError::from)?;
    if member.size() < needed {
        let (device, found) = (member.name(), member.size());
        return Err(ReshapeError::TooSmall { device, found, needed });
    }
    events::refuse_older(&members.each(), &newest)?;
    let generation = newest.generation + 1;
    let is_missing = |it: &mut Superblock| it.missing = missing;
    with_media(&members, options.buffered, |media| {
        Ok::<_, ReshapeError>(superblocks::rewrite(media, &superblocks, is_missing)?)
    })?;
    let superblock = Superblock { generation, missing, device: place, ..newest };
    let new = Members::new(vec![member]);
    with_media(&new, options.buffered, |media| begin_new(media, &new, &superblock, is_begun))?;
    Ok(Prepared::Begun { geometry, place })
}

/// Returns whether a device has seen all openings of every share that the others have.
fn is_as_new(members: &Members, member: &Member, superblock: &Superblock) -> bool {
    let each = members.each().into_iter().map(|it| it.or(Some(member)));
    events::refuse_older(&each.collect::<Vec<_>>(), superblock).is_ok()
}

/// Makes the new device one that is written, and not read.
fn begin_new(
    media: &MetadataIo<'_>,
    new: &Members,
    superblock: &Superblock,
    is_begun: bool,
) -> Result<(), ReshapeError> {
    let Superblock { pool, geometry, .. } = superblock;
    if !is_begun {
        format::clear_ends(media, new, UnfinishedFormat { pool: *pool })
            .map_err(|error| ReshapeError::Device(error.to_string()))?;
    }
    superblocks::clear_slots(media, 0, geometry)?;
    if new.0[0].is_block_device() {
        media.write(0, 0, protective_mbr(new.0[0].size().0))?;
    }
    media.flush(0)?;
    Ok(superblocks::write(media, 0, superblock)?)
}

/// Has all superblocks say that the pool is whole, which it is.
fn end_whole<Device: MemberSource>(
    all: &[Device],
    place: u32,
    options: &ReplaceOptions,
) -> Result<Replaced, ReshapeError> {
    let first = OpenOptions { buffered: options.buffered, ..quiet() };
    let pool = Pool::open(all, &first)?;
    let devices = pool.description().devices.clone();
    pool.close()?;
    Ok(Replaced { place, devices, bytes: ByteCount::ZERO, lost: Vec::new(), was_whole: true })
}

pub(super) fn quiet() -> OpenOptions {
    OpenOptions { huge_pages: false, housekeeping: None, ..OpenOptions::default() }
}

pub(super) fn open_options(geometry: &Geometry, share: u32, buffered: bool) -> OpenOptions {
    let staging = ByteCount(OpenOptions::default().staging.0.max(2 * geometry.stripe_unit));
    OpenOptions { buffered, share, staging, ..quiet() }
}

/// All shares of a pool, open, and a device on which everything is to be made again.
struct Rebuilding<'a> {
    shares: &'a [Pool],
    place: DeviceIndex,
    options: &'a ReplaceOptions,
}

/// Some pieces of a tensor that are to be copied, as they lie one behind the other in memory.
struct Group {
    tensor: TensorKey,
    bytes: u64,
    from: Vec<Piece>,
    to: Vec<Piece>,
    /// Keeps the version where it is.
    _reading: Arc<Reading>,
}

impl Rebuilding<'_> {
    /// Copies everything. Returns the bytes, and the tensors that have lost some.
    fn run(
        &self,
        progress: &mut dyn FnMut(ReplaceProgress),
    ) -> Result<(ByteCount, Vec<TensorKey>), ReshapeError> {
        let mut lost = Vec::new();
        for pool in self.shares {
            lost.extend(pool.lost_tensors()?);
        }
        self.refuse_loss(&lost)?;
        let mut total = 0;
        for pool in self.shares {
            for target in pool.targets() {
                total += self.groups(pool, &target).iter().map(|group| group.bytes).sum::<u64>();
            }
        }
        let total = ByteCount(total);
        let (start, mut begun, mut done) = (Instant::now(), 0, 0);
        for pool in self.shares {
            let reactor = pool.reactor()?;
            let reactor = reactor.as_ref().ok_or(Unusable::Closed)?;
            let targets = pool.targets();
            let groups = targets.iter().flat_map(|target| self.groups(pool, target));
            let mut copying = Copying { reactor, reads: VecDeque::new(), writes: VecDeque::new() };
            for group in groups {
                begun += group.bytes;
                copying.begin(group)?;
                lost.extend(copying.advance(BYTES_IN_FLIGHT, &mut done)?);
                progress(ReplaceProgress { done: ByteCount(done), total });
                keep_rate(self.options.rate, start, begun);
            }
            lost.extend(copying.advance(0, &mut done)?);
            progress(ReplaceProgress { done: ByteCount(done), total });
            reactor.flush(&[self.place])?;
        }
        lost.sort_by_key(|key| key.id);
        lost.dedup();
        self.refuse_loss(&lost)?;
        Ok((ByteCount(done), lost))
    }

    fn refuse_loss(&self, lost: &[TensorKey]) -> Result<(), ReshapeError> {
        if lost.is_empty() || self.options.accept_loss {
            return Ok(());
        }
        Err(ReshapeError::Lost(lost.to_vec()))
    }

    /// The parts of a version that have a copy on the new device.
    fn groups(&self, pool: &Pool, target: &ScrubTarget) -> Vec<Group> {
        let Some(reading) = target.read(pool) else { return Vec::new() };
        let reading = Arc::new(reading);
        let entry = &reading.version().entry;
        let whole = pool.0.stripes.without(DeviceSet::default());
        let mut groups: Vec<Group> = Vec::new();
        for piece in pieces::of_range(&whole, entry, 0..entry.length, true) {
            let Some(second) = piece.swapped() else { continue };
            let (from, to) = match self.place {
                place if piece.device == place => (second.alone(), piece.alone()),
                place if second.device == place => (piece.alone(), second.alone()),
                _ => continue,
            };
            let length = u64::from(piece.length);
            let fits = |group: &&mut Group| group.bytes + length <= GROUP_BYTES;
            let group = if let Some(group) = groups.last_mut().filter(fits) {
                group
            } else {
                let (tensor, reading) = (entry.key(), Arc::clone(&reading));
                let (from, to) = (Vec::new(), Vec::new());
                groups.push(Group { tensor, bytes: 0, from, to, _reading: reading });
                let last = groups.len() - 1;
                &mut groups[last]
            };
            // In memory each begins at a block, so that none shares one with the next.
            let at = group.bytes;
            group.from.push(Piece { tensor_offset: at, ..from });
            group.to.push(Piece { tensor_offset: at, checksum: None, ..to });
            group.bytes += length;
        }
        groups
    }
}

/// Groups on their way. Callers that wait for bytes go first.
struct Copying<'a> {
    reactor: &'a Reactor,
    reads: VecDeque<(Group, Ticket)>,
    writes: VecDeque<(Group, Ticket)>,
}

impl Copying<'_> {
    fn begin(&mut self, group: Group) -> Result<(), ReshapeError> {
        let ticket = self.read(&group)?;
        self.reads.push_back((group, ticket));
        Ok(())
    }

    /// Goes on until at most this many bytes are being read, and as many are being written. Returns
    /// the tensors of which something could not be read.
    fn advance(&mut self, most: u64, done: &mut u64) -> Result<Vec<TensorKey>, ReshapeError> {
        let mut lost = Vec::new();
        while is_full(&self.reads, most)
            && let Some((group, read)) = self.reads.pop_front()
        {
            match read.wait() {
                Ok(_) => {
                    let bytes = read.take_bytes().unwrap_or_default();
                    self.write(group, bytes)?;
                }
                Err(error @ (TransferError::Checksum { .. } | TransferError::Device { .. })) => {
                    let removed = matches!(&error, TransferError::Device { error, .. } if error.status.is_removal());
                    if removed {
                        return Err(error.into());
                    }
                    lost.push(group.tensor.clone());
                    self.copy_apart(&group)?;
                    *done += group.bytes;
                }
                Err(error) => return Err(error.into()),
            }
        }
        while is_full(&self.writes, most)
            && let Some((group, write)) = self.writes.pop_front()
        {
            write.wait()?;
            *done += group.bytes;
        }
        Ok(lost)
    }

    /// Copies what can be read of a group, piece by piece.
    fn copy_apart(&self, group: &Group) -> Result<(), ReshapeError> {
        for (from, to) in group.from.iter().zip(&group.to) {
            let [from, to] = [from, to].map(|piece| Piece { tensor_offset: 0, ..*piece });
            let destination = Destination::buffer(from.length as usize);
            let read = Transfer::Read { destination, pieces: vec![from] };
            let read = self.submit(read)?;
            if read.wait().is_ok() {
                let source = Source::Owned(read.take_bytes().unwrap_or_default());
                self.submit(Transfer::Write { source, pieces: vec![to] })?.wait()?;
            }
        }
        Ok(())
    }

    fn read(&self, group: &Group) -> Result<Ticket, SubmitError> {
        let destination = Destination::buffer(group.bytes as usize);
        self.submit(Transfer::Read { destination, pieces: group.from.clone() })
    }

    fn write(&mut self, group: Group, bytes: Vec<u8>) -> Result<(), ReshapeError> {
        let write = Transfer::Write { source: Source::Owned(bytes), pieces: group.to.clone() };
        let ticket = self.submit(write)?;
        self.writes.push_back((group, ticket));
        Ok(())
    }

    fn submit(&self, transfer: Transfer) -> Result<Ticket, SubmitError> {
        let (subject, finish) = (Subject::default(), Finish::nothing());
        self.reactor.submit_about(subject, transfer, Urgency::Ahead, None, finish)
    }
}

/// Returns whether more than this many bytes are in flight, or too many groups.
fn is_full(groups: &VecDeque<(Group, Ticket)>, most: u64) -> bool {
    let bytes: u64 = groups.iter().map(|(group, _)| group.bytes).sum();
    bytes > most || groups.len() > GROUPS_IN_FLIGHT
}

impl Pool {
    /// Returns everything that is there to be read.
    fn targets(&self) -> Vec<ScrubTarget> {
        self.scrub_pass().rest()
    }

    /// Has the superblocks of all devices say that none is missing.
    fn end_rebuilding(&self, place: DeviceIndex) -> Result<(), ReshapeError> {
        let reactor = self.reactor()?;
        let reactor = reactor.as_ref().ok_or(Unusable::Closed)?;
        let written = &self.0.shared.written.metadata;
        let missing = self.0.description.table.removed;
        let media = MetadataIo { reactor, written, missing };
        let (pool, geometry) = (self.0.description.pool, &self.0.description.geometry);
        let now = superblocks::read(&media, pool, geometry, missing);
        let now = now.map_err(ReshapeError::Device)?;
        let of_place: DeviceSet = [place].into_iter().collect();
        superblocks::rewrite(&media, &now, |superblock| {
            superblock.missing = superblock.missing.without(of_place);
        })?;
        Ok(())
    }
}
