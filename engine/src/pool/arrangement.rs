//! Arrangement of members: the pool and the device that each is.
//!
//! A superblock may be another device's: a write went astray, or somebody copied one. So what a
//! device's two superblocks say counts where they agree. Where they do not, the device's own count
//! of openings says which pool it is of, and the places that are taken which device it is not. If
//! that leaves two orders of the devices, the tensors that lie on them speak for one.

use super::device_order;
use super::error::OpenError;
use super::members::{Member, Members};
use super::superblock_copies::{DamagedCopy, SuperblockClaim, known_geometries};
use crate::layout::Superblock;
use crate::units::ByteCount;

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

/// Puts the devices into stripe order; they must be one whole pool.
pub(super) fn arrange(
    members: Vec<Member>,
) -> Result<(Members, Vec<Superblock>, Vec<Damaged>), OpenError> {
    let places = place(members)?;
    let expected = places.first().map_or(0, |it| it.superblock.geometry.devices);
    if places.len() as u32 != expected {
        let missing: Vec<String> = (0..expected)
            .filter(|device| places.iter().all(|other| other.superblock.device != *device))
            .map(|device| device.to_string())
            .collect();
        return Err(OpenError::NotOnePool(format!(
            "the pool has {expected} devices; device {} is missing",
            missing.join(", ")
        )));
    }
    let (mut members, mut superblocks, mut damaged) = (Vec::new(), Vec::new(), Vec::new());
    for PlacedMember { member, superblock, damaged: copies } in places {
        damaged.extend(copies.into_iter().map(|copy| (superblock.device as u8, copy)));
        superblocks.push(superblock);
        members.push(member);
    }
    Ok((Members::new(members), superblocks, damaged))
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
