//! Arrangement of members: the pool and the device that each is.
//!
//! A superblock may be another device's: a write went astray, or somebody copied one. So what a
//! device's two superblocks say counts where they agree. Where they do not, the device's own count
//! of openings says which pool it is of, and the places that are taken which device it is not. If
//! that leaves two orders of the devices, the tensors that lie on them speak for one.

use super::absent::AbsentMember;
use super::device_order;
use super::error::OpenError;
use super::members::{Member, Members};
use super::superblock_copies::{DamagedCopy, SuperblockClaim, known_geometries};
use crate::layout::Superblock;
use crate::units::{ByteCount, DeviceIndex, DeviceSet};

/// A member whose place in its pool is known.
pub(super) struct PlacedMember {
    pub(super) member: Member,
    /// Superblock of the member.
    pub(super) superblock: Superblock,
    /// Copies of its superblock that do not say so.
    pub(super) damaged: Vec<DamagedCopy>,
}

/// A copy of a superblock that is to be written again, and the place of its device.
pub(super) type Damaged = (u8, DamagedCopy);

/// The devices of a pool in stripe order, with a stand-in for each that is missing.
pub(super) struct Arranged {
    pub(super) members: Members,
    /// Superblock of each; that of a missing one as the others have it.
    pub(super) superblocks: Vec<Superblock>,
    pub(super) damaged: Vec<Damaged>,
    /// Devices of which nothing is read: those that are missing, and those that are being replaced.
    pub(super) missing: DeviceSet,
    /// True if a device does not say yet which devices the pool has.
    pub(super) is_behind: bool,
}

/// Puts the devices into stripe order; they must be one whole pool.
pub(super) fn arrange(members: Vec<Member>) -> Result<Arranged, OpenError> {
    arrange_those(members, &[], Completeness::Whole)
}

/// Requirement on the devices of a pool: which of them must be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Completeness {
    /// Every device is there, and none is to be replaced.
    Whole,
    /// One may be missing.
    Degraded,
    /// One may be missing, or, in a pool of one share, be a replacement that was begun.
    Usable,
    /// A replacement that was begun is among them.
    Rebuilding,
}

impl Completeness {
    fn allows_absence(self) -> bool {
        matches!(self, Self::Degraded | Self::Usable)
    }
}

/// Puts the devices into stripe order. These names stood for nothing, and may have been of what is
/// missing.
pub(super) fn arrange_those(
    members: Vec<Member>,
    unopened: &[String],
    completeness: Completeness,
) -> Result<Arranged, OpenError> {
    let places = place(members)?;
    let newest = newest(places.iter().map(|it| &it.superblock));
    let Some(newest) = newest else { return Err(OpenError::Devices(0)) };
    let (geometry, table) = (&newest.geometry, newest.device_table());
    refuse_others(&places, &newest)?;
    // Those that say it are of one generation, unless a process ended between two of them.
    let gone_on_without = places.iter().map(|it| &it.superblock);
    let gone_on_without = gone_on_without.filter(|it| it.generation == newest.generation);
    let gone_on_without =
        gone_on_without.fold(DeviceSet::default(), |all, it| all.union(it.missing));
    let has = |device: u8| places.iter().any(|it| it.superblock.device == u32::from(device));
    let absent = (0..geometry.devices as u8).filter(|it| !has(*it)).map(DeviceIndex);
    let missing = absent.collect::<DeviceSet>().without(table.removed);
    let is_needed = !missing.intersection(table.used()).is_empty();
    refuse_stale(&places, gone_on_without, (completeness, geometry.shares))?;
    let names = || places.iter().map(|it| it.member.name()).collect::<Vec<_>>().join(", ");
    match missing.len() {
        0 => (),
        _ if is_needed && newest.copies.is_none() => {
            let (list, devices) = (listed(missing), geometry.devices);
            let why = match completeness {
                Completeness::Whole => "",
                _ => ", and its tensors have one copy each: nothing of them can be had without it",
            };
            return Err(OpenError::NotOnePool(format!(
                "the pool has {devices} devices; device {list} is missing{why}"
            )));
        }
        1 if completeness.allows_absence() && missing.union(gone_on_without) == missing => (),
        count => {
            return Err(OpenError::Missing {
                places: listed(missing),
                count,
                devices: geometry.devices,
                present: names(),
                unopened: unopened.join(", "),
            });
        }
    }
    let (mut members, mut superblocks, mut damaged) = (Vec::new(), Vec::new(), Vec::new());
    let mut is_behind = false;
    let mut places = places.into_iter().peekable();
    for device in 0..geometry.devices {
        let next = places.next_if(|it| it.superblock.device == device);
        let Some(PlacedMember { member, superblock, damaged: copies }) = next else {
            let given = unopened.first().map(String::as_str);
            let size = ByteCount(geometry.device_bytes);
            let absent = if table.removed.contains(DeviceIndex(device as u8)) {
                AbsentMember::removed(device, size)
            } else {
                AbsentMember::new(device, given, size)
            };
            members.push(Member::absent(absent));
            superblocks.push(newest.of_device(device));
            continue;
        };
        damaged.extend(copies.into_iter().map(|copy| (superblock.device as u8, copy)));
        let told = superblock.with_devices_of(&newest);
        is_behind |= told != superblock;
        superblocks.push(told);
        members.push(member);
    }
    let missing = missing.union(gone_on_without).without(table.removed);
    let members = Members::without(members, table.removed);
    Ok(Arranged { members, superblocks, damaged, missing, is_behind })
}

/// Returns the superblock that says which devices the pool has. Of two of one generation it is the
/// one with more places: none of the others may be forgotten.
pub(super) fn newest<'a>(superblocks: impl Iterator<Item = &'a Superblock>) -> Option<Superblock> {
    superblocks.max_by_key(|it| (it.generation, it.geometry.devices)).copied()
}

/// Refuses devices that the pool has given up, and those that it has not got yet.
fn refuse_others(places: &[PlacedMember], newest: &Superblock) -> Result<(), OpenError> {
    let removed = newest.device_table().removed;
    for PlacedMember { member, superblock, .. } in places {
        let (device, place) = (member.name(), superblock.device);
        if place >= newest.geometry.devices {
            return Err(OpenError::Unadded { device });
        }
        if removed.contains(DeviceIndex(place as u8)) {
            return Err(OpenError::Removed { device, place });
        }
    }
    Ok(())
}

/// Refuses devices without which the pool has gone on. One that says so of itself is a replacement
/// that was begun: it is finished by who has all shares.
fn refuse_stale(
    places: &[PlacedMember],
    gone_on_without: DeviceSet,
    (completeness, shares): (Completeness, u32),
) -> Result<(), OpenError> {
    let is_without =
        |it: &&PlacedMember| gone_on_without.contains(DeviceIndex(it.superblock.device as u8));
    for PlacedMember { member, superblock, .. } in places.iter().filter(is_without) {
        let (device, place) = (member.name(), superblock.device);
        let is_begun = superblock.missing.contains(DeviceIndex(place as u8));
        match (is_begun, completeness) {
            (false, _) => return Err(OpenError::Stale { device, place }),
            (true, Completeness::Rebuilding) => (),
            (true, Completeness::Usable) if shares == 1 => (),
            (true, _) => return Err(OpenError::Unreplaced { device, place }),
        }
    }
    Ok(())
}

fn listed(devices: DeviceSet) -> String {
    let places: Vec<String> = devices.iter().map(|it| it.0.to_string()).collect();
    places.join(", ")
}

/// Puts the devices into stripe order. They must be of one pool, of which others may be missing.
pub(super) fn place(members: Vec<Member>) -> Result<Vec<PlacedMember>, OpenError> {
    // A device larger than the pool's smallest has its second copy where only the others can say.
    let known = known_geometries(members.iter());
    let absent = |member: &Member, source| OpenError::Superblock { device: member.name(), source };
    let claims = members.iter().map(|it| it.claims(&known).map_err(|error| absent(it, error)));
    let mut claims = settled(claims.collect::<Result<_, _>>()?);
    if claims.iter().any(|claims| claims.len() > 1) {
        device_order::settle(&members, &mut claims);
    }
    let mut places: Vec<PlacedMember> = Vec::new();
    for (member, claims) in members.into_iter().zip(claims) {
        let found = SuperblockClaim::only(claims).map_err(|error| absent(&member, error))?;
        let SuperblockClaim { superblock, damaged } = found;
        check_fits(&member, &superblock)?;
        check_beside(&places, &member, &superblock)?;
        places.push(PlacedMember { member, superblock, damaged });
    }
    places.sort_by_key(|it| it.superblock.device);
    Ok(places)
}

/// Chooses one of the claims of each device: of two claims the one that fits those that are sure,
/// as often as that tells something.
fn settled(mut claims: Vec<Vec<SuperblockClaim>>) -> Vec<Vec<SuperblockClaim>> {
    loop {
        let sure = |claims: &Vec<SuperblockClaim>| match &claims[..] {
            [claim] => Some(claim.superblock),
            _ => None,
        };
        let sure: Vec<Superblock> = claims.iter().filter_map(sure).collect();
        let fits = |claim: &SuperblockClaim| {
            let found = &claim.superblock;
            sure.iter().all(|it| it.is_of_the_same_pool(found) && it.device != found.device)
        };
        let told = |claims: &&mut Vec<SuperblockClaim>| {
            claims.len() > 1 && claims.iter().filter(|claim| fits(claim)).count() == 1
        };
        match claims.iter_mut().find(told) {
            Some(claims) => claims.retain(fits),
            None => return claims,
        }
    }
}

/// Checks that the device has been found to be that large.
fn check_fits(member: &Member, superblock: &Superblock) -> Result<(), OpenError> {
    let needed = ByteCount(superblock.geometry.device_bytes);
    if member.size() < needed {
        return Err(OpenError::Shrunk { device: member.name(), found: member.size(), needed });
    }
    Ok(())
}

/// Refuses a device of another pool, and one whose place another has.
fn check_beside(
    places: &[PlacedMember],
    member: &Member,
    superblock: &Superblock,
) -> Result<(), OpenError> {
    if let Some(other) = places.first()
        && !other.superblock.is_of_the_same_pool(superblock)
    {
        return Err(OpenError::NotOnePool(format!(
            "{} belongs to pool {:032x}, {} to pool {:032x}",
            other.member.name(),
            other.superblock.pool,
            member.name(),
            superblock.pool
        )));
    }
    if let Some(twin) = places.iter().find(|it| it.superblock.device == superblock.device) {
        return Err(OpenError::NotOnePool(format!(
            "{} and {} both say that they are device {}",
            twin.member.name(),
            member.name(),
            superblock.device
        )));
    }
    Ok(())
}
