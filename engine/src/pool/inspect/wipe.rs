//! Making devices no pool any more: Tidelog's own signatures go, and nothing else is touched.

use super::view::has_protective_mbr;
use crate::layout::{BLOCK_BYTES, Geometry, SUPERBLOCK_OFFSET, SuperblockError};
use crate::path::{DeviceSpec, OpenMode};
use crate::pool::OpenError;
use crate::pool::devices::{Member, find_twins};
use crate::pool::open::refused;
use crate::pool::share_lock::Shares;
use crate::units::ByteCount;

/// A signature that is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wiped {
    /// The device.
    pub device: String,
    /// What it was.
    pub what: &'static str,
    /// The block that is zero now.
    pub offset: ByteCount,
}

/// Overwrites the superblocks and protective MBR of these devices with zeroes. All of them are claimed and
/// looked at before the first is written; one without a Tidelog superblock is an error.
pub fn wipe(specs: &[DeviceSpec], buffered: bool) -> Result<Vec<Wiped>, OpenError> {
    if let Some((one, other)) = find_twins(specs) {
        return Err(OpenError::NotOnePool(format!("{one} and {other} are the same device")));
    }
    let mode = OpenMode { buffered, exclusive: true, ..OpenMode::default() };
    let open = |spec| Member::open(spec, Shares::All, mode).map_err(|error| refused(error, 0));
    let members: Vec<Member> = specs.iter().map(open).collect::<Result<_, _>>()?;
    let known = members.iter().find_map(|member| member.superblock(None).ok());
    let known = known.map(|(superblock, _)| superblock.geometry);
    let plans: Vec<Vec<Wiped>> = members
        .iter()
        .map(|member| signatures(member, known.as_ref()))
        .collect::<Result<_, _>>()?;
    let zeroes = vec![0; BLOCK_BYTES as usize];
    for (member, plan) in members.iter().zip(&plans) {
        for signature in plan {
            member.write(signature.offset.0, &zeroes).map_err(|source| OpenError::System {
                what: format!("cannot wipe the {} of {}", signature.what, member.name()),
                source,
            })?;
        }
    }
    Ok(plans.into_iter().flatten().collect())
}

/// Everything on the device that says Tidelog: damaged superblocks too, which still carry its mark.
fn signatures(member: &Member, others: Option<&Geometry>) -> Result<Vec<Wiped>, OpenError> {
    let copies = member.superblock_copies(others);
    if let (Err(SuperblockError::Absent), Err(SuperblockError::Absent)) =
        (&copies.first, &copies.second)
    {
        let source = SuperblockError::Absent;
        return Err(OpenError::Superblock { device: member.name(), source });
    }
    let found = |what, offset| Wiped { device: member.name(), what, offset: ByteCount(offset) };
    let mut signatures = Vec::new();
    if has_protective_mbr(member) {
        signatures.push(found("protective MBR", 0));
    }
    if copies.first != Err(SuperblockError::Absent) {
        signatures.push(found("superblock A", SUPERBLOCK_OFFSET));
    }
    if copies.second != Err(SuperblockError::Absent) {
        signatures.push(found("superblock B", copies.second_offset));
    }
    Ok(signatures)
}
