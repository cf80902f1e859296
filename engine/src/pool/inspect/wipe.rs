//! Making devices no pool any more: Tidelog's own signatures go, and nothing else is touched.

use super::view::has_protective_mbr;
use crate::layout::{BLOCK_BYTES, Geometry, SUPERBLOCK_OFFSET, SuperblockError};
use crate::path::MemberSource;
use crate::pool::members::{Member, MemberAccess, Members};
use crate::pool::superblock_copies::known_geometries;
use crate::pool::{OpenError, owner};
use crate::units::ByteCount;

/// A signature that is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wiped {
    /// The device.
    pub device: String,
    /// Kind of the structure.
    pub what: &'static str,
    /// The block that is zero now.
    pub offset: ByteCount,
}

/// Overwrites the superblocks and protective MBR of these devices with zeroes. All of them are
/// claimed and looked at before the first is written; one without a Tidelog superblock is an error,
/// unless zeroes stand in its place: then it was wiped already, and this goes on where another wipe
/// ended half way.
pub fn wipe<Source: MemberSource>(
    sources: &[Source],
    buffered: bool,
) -> Result<Vec<Wiped>, OpenError> {
    let members = Members::new(Members::open(sources, &MemberAccess::alone(buffered))?);
    let plans = plans(&members)?;
    let zeroes = vec![0; BLOCK_BYTES as usize];
    for (member, plan) in members.0.iter().zip(&plans) {
        for signature in plan {
            member.write(signature.offset.0, &zeroes).map_err(|source| OpenError::System {
                what: format!("cannot wipe the {} of {}", signature.what, member.name()),
                source,
            })?;
        }
    }
    owner::unfence(&members);
    Ok(plans.into_iter().flatten().collect())
}

/// Returns the structures to wipe on each device, in this order.
fn plans(members: &Members) -> Result<Vec<Vec<Wiped>>, OpenError> {
    let known = known_geometries(members.0.iter());
    let plans: Vec<Vec<Wiped>> =
        members.0.iter().map(|member| signatures(member, &known)).collect();
    let nothing_left = plans.iter().all(Vec::is_empty);
    for (member, plan) in members.0.iter().zip(&plans) {
        if plan.is_empty() && (nothing_left || !member.was_wiped()) {
            let source = SuperblockError::Absent;
            return Err(OpenError::Superblock { device: member.name(), source });
        }
    }
    Ok(plans)
}

/// Returns all structures on the device that are Tidelog's: damaged superblocks too, which still
/// carry its mark. The first superblock goes last: until then it says where the other one is.
fn signatures(member: &Member, others: &[Geometry]) -> Vec<Wiped> {
    let found = |what, offset| Wiped { device: member.name(), what, offset: ByteCount(offset) };
    let marks = member.superblock_marks(others);
    let (first, others): (Vec<u64>, Vec<u64>) =
        marks.into_iter().partition(|place| *place == SUPERBLOCK_OFFSET);
    let is_pool = !first.is_empty() || !others.is_empty();
    let mbr = (is_pool && has_protective_mbr(member)).then(|| found("protective MBR", 0));
    let second = others.into_iter().map(|place| found("superblock B", place));
    let first = first.into_iter().map(|place| found("superblock A", place));
    second.chain(mbr).chain(first).collect()
}
