//! Opening a share of a pool: locks, superblocks, data path, recovery, in this order.

use std::num::NonZero;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::announce::Announced;
use super::arrangement::{Arranged, Completeness, Damaged, arrange_those};
use super::error::OpenError;
use super::events::{self, EventCount, ShareOnDevices};
use super::lanes::Handles;
use super::media::MetadataIo;
use super::members::{MemberAccess, Members, MembersReactor, PresentMembers};
use super::options::{OpenOptions, PoolDescription};
use super::owner;
use super::rebuild::Rebuilt;
use super::settle;
use super::superblock_copies::DamagedCopy;
use super::{start, superblocks};
use crate::layout::{BLOCK_BYTES, Copies, DEVICES_MAX, LogMark, SUPERBLOCK_OFFSET, Superblock};
use crate::log::{
    ChangeLog, Contents, IndexRoom, LogMedia, LogPlace, Recovered, Space, StripeMap, recover,
    recover_rest,
};
use crate::path::{MemberSource, OpenMode, PathRequest};
use crate::schedule::{Reactor, ReactorOptions};
use crate::units::{ByteCount, DeviceSet};

/// An open share, before it becomes a `Pool`.
pub(super) struct OpenShare {
    pub(super) members: Members,
    pub(super) reactor: Reactor,
    pub(super) contents: Contents,
    pub(super) log: ChangeLog,
    pub(super) stripes: StripeMap,
    pub(super) handles: Handles,
    pub(super) description: PoolDescription,
    pub(super) repaired_superblocks: Vec<String>,
    pub(super) metadata_written: u64,
    /// Features that the superblocks announce.
    pub(super) announced: Announced,
    /// `None` where it is open for reading only.
    pub(super) events: Option<EventCount>,
    /// True if the index was written anew.
    pub(super) has_new_index: bool,
    /// A device that takes the place of a lost one.
    pub(super) rebuilt: Option<Rebuilt>,
}

/// Reason to write the index of a share anew when it is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IndexRenewal {
    /// Renewal where what stands on the media asks for it.
    IfDue,
    /// Renewal in any case.
    Always,
}

/// Opens devices, named in any order.
pub(super) fn open<Source: MemberSource>(
    sources: &[Source],
    options: &OpenOptions,
    (completeness, renewal): (Completeness, IndexRenewal),
) -> Result<OpenShare, OpenError> {
    if sources.is_empty() || sources.len() > DEVICES_MAX {
        return Err(OpenError::Devices(sources.len()));
    }
    let access = if options.read_only {
        MemberAccess::of_share_to_read(options.share, options.buffered)
    } else {
        MemberAccess::of_share(options.share, options.buffered)
    };
    open_arranged(open_members(sources, &access, completeness)?, (options, renewal))
}

/// Opens and arranges the devices that are there, of which some may be missing where `completeness`
/// says so.
pub(super) fn open_members<Source: MemberSource>(
    sources: &[Source],
    access: &MemberAccess,
    completeness: Completeness,
) -> Result<Arranged, OpenError> {
    let PresentMembers { members, unopened } = Members::open_present(sources, access)?;
    let names: Vec<String> = unopened.iter().map(|(name, _)| name.clone()).collect();
    let arranged = arrange_those(members, &names, completeness);
    let is_told = match &arranged {
        Ok(Arranged { members, .. }) => unopened.len() <= members.missing().len(),
        Err(error) => matches!(error, OpenError::Missing { .. }),
    };
    match unopened.into_iter().next() {
        // What keeps a device from being opened says more than what follows from it.
        Some((_, error)) if !is_told => Err(error.into()),
        _ => arranged,
    }
}

fn open_arranged(
    arranged: Arranged,
    (options, renewal): (&OpenOptions, IndexRenewal),
) -> Result<OpenShare, OpenError> {
    let Arranged { members, superblocks, damaged, missing, is_behind } = arranged;
    let Superblock { pool, geometry, .. } = superblocks[0];
    let newest = superblocks.iter().max_by_key(|it| it.generation);
    let copies = newest.map_or(Copies::One, Superblock::default_copies);
    let calibrated = superblocks.iter().max_by_key(|it| it.generation).and_then(|it| it.depth);
    let share = options.share;
    let no_share = OpenError::NoShare { share, shares: geometry.shares };
    let place = LogPlace::of(&superblocks[0], share).ok_or(no_share)?;
    let place = place.without(missing, members.absent());
    start::refuse_overwritten(&members, &superblocks)?;
    let mut events = enter(&members, &superblocks[0], missing, options)?;
    let request = PathRequest {
        choice: options.path,
        backend: options.backend.as_deref(),
        gpu: options.gpu.as_ref(),
        mode: OpenMode {
            buffered: options.buffered,
            read_only: options.read_only,
            ..OpenMode::default()
        },
    };
    let provider = || members.provider(&request);
    let chunk = ByteCount(geometry.stripe_unit);
    let others = threads(&members, chunk, options) - 1;
    let reactor = MembersReactor::new(
        &members,
        Reactor::start_with_threads(
            provider()?,
            (0..others).map(|_| provider()).collect::<Result<_, _>>()?,
            &ReactorOptions {
                staging: options.staging,
                buffers: options.buffers,
                gpu: options.gpu.clone(),
                chunk,
                depth: options.depth.or(calibrated).unwrap_or(ReactorOptions::default().depth),
                huge_pages: options.huge_pages,
                stepped: options.stepped,
                ..ReactorOptions::default()
            },
        )?,
    );

    let superblocks = &superblocks;
    let found =
        Found { members: &members, superblocks, damaged, place, options, missing, is_behind };
    let recovered = found.recover(&reactor, events.as_mut(), renewal)?;
    let SoundShare { contents, log, handles, repaired_superblocks, metadata_written, .. } =
        recovered;
    let (announced, has_new_index) = (recovered.announced, recovered.has_new_index);
    let reactor = reactor.into_reactor();
    let rebuilt = missing.without(members.absent()).iter().next();
    let rebuilt = rebuilt.filter(|_| !options.read_only);
    let rebuilt = rebuilt.map(|place| Rebuilt::new(place, has_new_index, contents.age()));

    let capacity = u64::from(geometry.segments) * place.stripes.segment_blocks() * BLOCK_BYTES;
    let (capacity, devices) = (ByteCount(capacity), members.names());
    let table = superblocks[0].device_table();
    let description = PoolDescription { table, pool, geometry, devices, capacity, copies, missing };
    Ok(OpenShare {
        members,
        reactor,
        contents,
        log,
        stripes: place.stripes,
        handles,
        description,
        repaired_superblocks,
        metadata_written,
        announced,
        events,
        has_new_index,
        rebuilt,
    })
}

/// Refuses devices that are not as the share was left, and signs it where it is to be written.
fn enter(
    members: &Members,
    superblock: &Superblock,
    missing: DeviceSet,
    options: &OpenOptions,
) -> Result<Option<EventCount>, OpenError> {
    let accept = options.accept_older_copies;
    if options.read_only {
        owner::refuse_other(members)?;
        if !accept {
            events::refuse_older(&members.each_but(missing), superblock)?;
        }
        return Ok(None);
    }
    owner::claim(members, superblock.pool)?;
    EventCount::begin(members, superblock, missing, (options.share, accept)).map(Some)
}

/// A share as its devices have it.
struct Found<'a> {
    members: &'a Members,
    superblocks: &'a [Superblock],
    /// Copies of superblocks that are written again.
    damaged: Vec<Damaged>,
    place: LogPlace,
    options: &'a OpenOptions,
    /// Devices of which nothing is read.
    missing: DeviceSet,
    /// True if a device does not say yet which devices the pool has.
    is_behind: bool,
}

/// A share that can be used.
struct SoundShare {
    contents: Contents,
    log: ChangeLog,
    handles: Handles,
    repaired_superblocks: Vec<String>,
    metadata_written: u64,
    announced: Announced,
    has_new_index: bool,
}

impl Found<'_> {
    /// Reads the index, and writes what has to be written before it can be used. Without a count of
    /// events it is for reading only, and nothing is written.
    fn recover(
        &self,
        reactor: &Reactor,
        events: Option<&mut EventCount>,
        renewal: IndexRenewal,
    ) -> Result<SoundShare, OpenError> {
        let Self { superblocks, place, options, .. } = *self;
        let share = options.share;
        let metadata_written = AtomicU64::new(0);
        let missing = self.members.absent();
        let media = MetadataIo { reactor, written: &metadata_written, missing };
        let failed = |what: String| OpenError::Recovery { share, what };
        let (mut repaired_superblocks, writes) = (Vec::new(), events.is_some());
        let recovered = if let Some(events) = events {
            let recovered = self.read(&media, events.mark()).map_err(failed)?;
            // Before anything else is written: what was written without a device must show on the
            // others.
            let counted = events.count(reactor, recovered.log.mark(false), Duration::MAX)?;
            metadata_written.fetch_add(counted, Ordering::Relaxed);
            repaired_superblocks = self.repair_superblocks(&media)?;
            recovered
        } else {
            let (superblock, members) = (&superblocks[0], self.members.each_but(self.missing));
            let mark = ShareOnDevices { superblock, members: &members, share }.seen().mark();
            // What stands in a device's cache alone is shown, too: a flush would be a write.
            recover(place, mark, &media).map_err(|error| failed(error.to_string()))?
        };
        let Recovered { index, index_segments, mut log, unread, settled, .. } = recovered;
        let mut space = Space::at(&place).shared_out_by(&superblocks[0].device_table());
        let handles = Handles::of(reactor.capabilities(), options.lanes);
        if !handles.by_lifetime() {
            space = space.without_lifetime_lanes();
        }
        let grows = superblocks.iter().all(|superblock| superblock.index_in_segments);
        let room = IndexRoom::new(&place, index_segments, grows);
        let mut contents = Contents::recovered(space, room, index);
        let (mut announced, mut has_new_index) = (Announced::by(superblocks), false);
        if writes {
            announced = self.announce(&media, &mut contents, announced)?;
            contents.settle_index(log.next_slot());
            // Segments that the slot before needs no more come back, too, once something else
            // stands there.
            // What is being replaced gets all of it.
            let lacks = self.missing != self.members.missing();
            let is_due = lacks || renewal == IndexRenewal::Always;
            if is_due || !settled || contents.index_has_surplus(log.next_slot()) {
                has_new_index = settle::settle(&media, &mut log, &mut contents)
                    .map_err(|error| failed(error.to_string()))?;
                if has_new_index {
                    settle::heal(&media, &place, &log, &unread)?;
                }
            }
        }
        let metadata_written = metadata_written.into_inner();
        Ok(SoundShare {
            contents,
            log,
            handles,
            repaired_superblocks,
            metadata_written,
            announced,
            has_new_index,
        })
    }

    /// Reads the media; without commits that are lost, if they are those that may be.
    fn read(&self, media: &MetadataIo<'_>, mark: LogMark) -> Result<Recovered, String> {
        let (geometry, place) = (&self.superblocks[0].geometry, self.place);
        let Some(accepted) = &self.options.accept_lost_commits else {
            return settle::read(media, geometry, place, mark, recover);
        };
        let recovered = settle::read(media, geometry, place, mark, recover_rest)?;
        let same = recovered.lost.as_ref().is_some_and(|lost| lost.loses_the_same(accepted));
        if same { Ok(recovered) } else { Err("other commits are lost than were accepted".into()) }
    }

    /// Has the superblocks say what older software does not understand, before any of it is
    /// written. Returns what they announce, given what they did.
    fn announce(
        &self,
        media: &MetadataIo<'_>,
        contents: &mut Contents,
        announced: Announced,
    ) -> Result<Announced, OpenError> {
        let grow = contents.index_should_grow();
        // Another share's owner may have written over what this one's wrote.
        let seals = announced.seals || contents.seals().next().is_some();
        let all = Announced { seals, copies: announced.copies || contents.has_mirrors() };
        // What is missing now is stale from now on.
        let mut present = self.members.present();
        let says_so = |(device, _)| self.superblocks[usize::from(device)].missing == self.missing;
        if grow || all != announced || self.is_behind || !present.all(says_so) {
            superblocks::rewrite(media, self.superblocks, |superblock| {
                superblock.index_in_segments |= grow;
                superblock.missing = self.missing;
                all.set(superblock);
            })?;
        }
        if grow {
            contents.let_index_grow();
        }
        Ok(all)
    }

    /// Writes damaged copies of superblocks again; returns which.
    fn repair_superblocks(&self, media: &MetadataIo<'_>) -> Result<Vec<String>, OpenError> {
        let mut repaired = Vec::new();
        for &(device, DamagedCopy { copy, .. }) in &self.damaged {
            let superblock = &self.superblocks[usize::from(device)];
            let offset = match copy {
                'A' => SUPERBLOCK_OFFSET,
                _ => superblock.geometry.second_superblock_offset(),
            };
            media.write(device, offset, superblock.encode())?;
            media.flush(device)?;
            repaired.push(format!("{} copy {copy}", self.members.0[usize::from(device)].name()));
        }
        Ok(repaired)
    }
}

/// Returns the number of threads that move tensors: one for each device at most, where the data
/// path may be opened several times.
fn threads(members: &Members, chunk: ByteCount, options: &OpenOptions) -> usize {
    /// Threads in all, unless the caller wants another number: nobody has measured more.
    const THREADS: usize = 4;
    /// Chunks of staging memory for each, so that its devices do not wait for them; at least two
    /// for each device, of which none can take the last.
    const CHUNKS: u64 = 8;
    let alone = options.stepped || options.backend.is_some() || options.gpu.is_some();
    if alone || !members.allow_several_paths() {
        return 1;
    }
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    let chunks = CHUNKS.max(2 * members.0.len() as u64);
    let by_staging = (options.staging.0 / chunk.0 / chunks) as usize;
    let limit = options.reactors.map_or(processors.min(THREADS), NonZero::get);
    members.0.len().min(limit).min(by_staging).max(1)
}
