//! View of a pool, as far as the devices at hand tell.

use super::index::{IndexView, read_index};
use crate::layout::{
    Holder, LogMark, Owner, SUPERBLOCK_OFFSET, ShareArea, Superblock, SuperblockError,
    protective_mbr,
};
use crate::path::{Endurance, MemberSource};
use crate::pool::OpenError;
use crate::pool::arrangement::{newest, place};
use crate::pool::events::{OlderCopy, ShareOnDevices};
use crate::pool::holder::last_holder;
use crate::pool::media::MemberMedia;
use crate::pool::members::{Member, MemberAccess, Members};
use crate::pool::superblock_copies::SuperblockCopies;
use crate::pool::{owner, start};
use crate::units::{ByteCount, DeviceIndex};

/// One copy of a superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SuperblockCopyView {
    /// `A` at the front, `B` at the end.
    pub copy: char,
    /// Offset at which it was read.
    pub offset: ByteCount,
    /// Superblock, or the reason why there is none.
    pub state: Result<Superblock, SuperblockError>,
}

/// One device.
#[derive(Clone, Debug)]
pub struct DeviceView {
    /// The name, as given.
    pub name: String,
    /// The real size.
    pub size: ByteCount,
    /// True if the device is a block device, as against a file.
    pub block_device: bool,
    /// Copies of its superblock.
    pub copies: [SuperblockCopyView; 2],
    /// Newest superblock, or why neither can be used.
    pub newest: Result<Superblock, SuperblockError>,
    /// True if Tidelog's own protective MBR stands in block 0; only block devices have one.
    pub protective_mbr: bool,
    /// Data of other software written to it later, and its place; its second superblock still
    /// stands.
    pub overwritten: Option<String>,
    /// The host that owns it, if other hosts can reach it.
    pub owner: Option<Owner>,
}

/// One share of a pool.
#[derive(Clone, Debug)]
pub struct ShareView {
    /// The number.
    pub share: u32,
    /// Area of the share.
    pub area: ShareArea,
    /// True if a process has it open now.
    pub held: bool,
    /// The process that has it open, or had it open last.
    pub holder: Option<Holder>,
    /// The durable tensors, or why they cannot be read. While the share is held they may be of a
    /// moment ago, or be unreadable because they are just being written.
    pub index: Result<IndexView, String>,
    /// The devices that are older copies of themselves: the share was used since without them.
    pub older: Vec<OlderCopy>,
}

/// A pool, whole or in part.
#[derive(Clone, Debug)]
pub struct PoolView {
    /// Newest superblock; its `device` is of no meaning here.
    pub superblock: Superblock,
    /// The devices at hand with their places, in stripe order.
    pub devices: Vec<(u32, DeviceView)>,
    /// The places of the devices that are not at hand.
    pub missing: Vec<u32>,
    /// The shares.
    pub shares: Vec<ShareView>,
}

/// Reads the superblocks of a single device. Nothing is locked, and only the superblocks are read.
pub fn probe<Source: MemberSource>(source: &Source) -> Result<DeviceView, OpenError> {
    let member = Member::open(source, 0, &MemberAccess::to_look(true))?;
    Ok(view_device(&member, member.superblock_copies(&[]), member.superblock()))
}

/// Inspects the pool on these devices. Nothing is locked or written, and devices may be missing.
pub fn inspect<Source: MemberSource>(sources: &[Source]) -> Result<PoolView, OpenError> {
    // What is read here goes through the page cache in any case.
    view_members(Members::open(sources, &MemberAccess::to_look(true))?)
}

/// Returns the wear that a single device reports; the reason where it does not. Nothing is locked.
///
/// # Errors
/// It cannot be opened.
pub fn wear<Source: MemberSource>(source: &Source) -> Result<Result<Endurance, String>, OpenError> {
    let member = Member::open_whoever_owns_it(source, 0, &MemberAccess::to_look(true))?;
    Ok(member.endurance())
}

fn view_members(members: Vec<Member>) -> Result<PoolView, OpenError> {
    let places = place(members)?;
    let newest = newest(places.iter().map(|it| &it.superblock));
    let superblock = newest.ok_or(OpenError::Devices(0))?;
    let (geometry, table) = (superblock.geometry, superblock.device_table());
    let here = |device: u32| places.iter().find(|it| it.superblock.device == device);
    let is_there = |device: &u32| {
        here(*device).is_some() || table.removed.contains(DeviceIndex(*device as u8))
    };
    let missing = (0..geometry.devices).filter(|device| !is_there(device)).collect();
    let members: Vec<_> = (0..geometry.devices).map(|it| here(it).map(|it| &it.member)).collect();
    let media = MemberMedia(&members);
    let known = [geometry];
    let devices = places
        .iter()
        .map(|it| {
            let copies = it.member.superblock_copies(&known);
            (it.superblock.device, view_device(&it.member, copies, Ok(it.superblock)))
        })
        .collect();
    let first = &*places[0].member;
    let shares = (0..geometry.shares)
        .filter_map(|share| {
            let area = geometry.share(share)?;
            let held = first.is_locked_elsewhere(share);
            let holder = places.iter().find_map(|it| last_holder(&*it.member, share));
            let devices = ShareOnDevices { superblock: &superblock, members: &members, share };
            // Before the log, which may be longer meanwhile.
            let seen = devices.seen();
            let mark = seen.mark();
            let mark = LogMark { closed: mark.closed && !held, ..mark };
            let index = read_index(&superblock, share, (mark, devices.missing()), &media);
            Some(ShareView { share, area, held, holder, index, older: seen.older })
        })
        .collect();
    Ok(PoolView { superblock, devices, missing, shares })
}

fn view_device(
    member: &Member,
    copies: SuperblockCopies,
    newest: Result<Superblock, SuperblockError>,
) -> DeviceView {
    let view = |copy, offset, state| SuperblockCopyView { copy, offset: ByteCount(offset), state };
    DeviceView {
        name: member.name(),
        size: member.size(),
        block_device: member.is_block_device(),
        copies: [
            view('A', SUPERBLOCK_OFFSET, copies.first),
            view('B', copies.second_offset, copies.second),
        ],
        protective_mbr: has_protective_mbr(member),
        overwritten: newest.as_ref().ok().and_then(|it| start::overwritten(member, it)),
        newest,
        owner: owner::owner(member).ok().flatten(),
    }
}

/// Returns whether block 0 is the one that formatting writes on block devices.
pub(super) fn has_protective_mbr(member: &Member) -> bool {
    if !member.is_block_device() {
        return false;
    }
    let expected = protective_mbr(member.size().0);
    member.read(0, expected.len()).is_ok_and(|found| found == expected)
}
