//! Order of devices, found by the tensors that lie on them.
//!
//! Where two devices have each other's superblock in the place of the same copy, superblocks speak
//! for two orders of the devices, and nothing but the tensors for one of them.

use super::media::MemberMedia;
use super::members::Member;
use super::superblock_copies::SuperblockClaim;
use crate::layout::{LogMark, Superblock, TensorEntry};
use crate::log::{LogPlace, StripeMap, recover};
use crate::memory::checksum;

/// Number of pieces that are read of each share, of those on devices in question.
const SAMPLES: usize = 32;

/// Settles what all first copies claim, or all second ones, if the tensors speak for one of both
/// alone.
pub(super) fn settle(members: &[Member], claims: &mut [Vec<SuperblockClaim>]) {
    let speaks_for = |copy: &usize| is_told(members, &order(claims, *copy));
    let told: Vec<usize> = [0, 1].into_iter().filter(speaks_for).collect();
    let [copy] = told[..] else { return };
    for claims in claims.iter_mut().filter(|claims| claims.len() > 1) {
        let claim = claims.swap_remove(copy);
        *claims = vec![claim];
    }
}

/// Returns the order of the devices if this copy is right where two contradict each other, and
/// whether they do.
fn order(claims: &[Vec<SuperblockClaim>], copy: usize) -> Vec<(Superblock, bool)> {
    let claim = |claims: &Vec<SuperblockClaim>| {
        let claim = claims.get(copy).or(claims.first())?;
        Some((claim.superblock, claims.len() > 1))
    };
    claims.iter().filter_map(claim).collect()
}

/// Returns whether the devices are a whole pool in this order, and most pieces of tensors on those
/// in question have the bytes that their checksums are of. In a wrong order none has, but of bytes
/// that are the same everywhere.
fn is_told(members: &[Member], order: &[(Superblock, bool)]) -> bool {
    let Some((first, _)) = order.first() else { return false };
    let geometry = &first.geometry;
    let mut places: Vec<Option<&Member>> = vec![None; geometry.devices as usize];
    let mut doubted = vec![false; places.len()];
    for (member, (superblock, is_doubted)) in members.iter().zip(order) {
        let place = superblock.device as usize;
        if !superblock.is_of_the_same_pool(first) || places[place].is_some() {
            return false;
        }
        (places[place], doubted[place]) = (Some(member), *is_doubted);
    }
    if places.iter().any(Option::is_none) {
        return false;
    }
    let shares = (0..geometry.shares).filter_map(|it| LogPlace::of(first, it));
    let (mut right, mut wrong) = (0, 0);
    for share in shares {
        let Ok(found) = recover(share, LogMark::NONE, &MemberMedia(&places)) else { continue };
        let held = found.index.held.iter().map(|held| &held.entry);
        let entries = found.index.tensors.iter().chain(held);
        let samples = entries.flat_map(|entry| pieces(&share.stripes, entry));
        let samples = samples.filter(|(device, ..)| doubted[usize::from(*device)]);
        for (device, offset, length, expected) in samples.take(SAMPLES) {
            let Some(member) = places[usize::from(device)] else { return false };
            match member.read(offset, length.next_multiple_of(4096)) {
                Ok(bytes) if checksum(&bytes[..length]) == expected => right += 1,
                Ok(_) => wrong += 1,
                // What cannot be read speaks for nothing.
                Err(_) => (),
            }
        }
    }
    right > wrong
}

/// Each piece of a tensor: its device, where it is there, its bytes and their checksum.
fn pieces<'a>(
    stripes: &'a StripeMap,
    entry: &'a TensorEntry,
) -> impl Iterator<Item = (u8, u64, usize, u32)> + use<'a> {
    let placements = stripes.placements(&entry.runs, entry.length);
    let pieces = placements.zip(&entry.checksums);
    pieces.map(|(it, checksum)| (it.device, it.device_offset, it.length as usize, *checksum))
}
