//! Writing damaged copies again from the good ones, and dropping tensors that are lost, by name.

use std::collections::BTreeSet;
use std::io;

use thiserror::Error;

use super::check::{CheckProgress, CheckReport, Damage, DamagedTensor, check};
use crate::layout::protective_mbr;
use crate::path::MemberSource;
use crate::pool::members::{Member, MemberAccess};
use crate::pool::{CloseError, CommitError, DeleteError, OpenError, OpenOptions, Pool, SealError};

/// What a repair found and did.
#[derive(Clone, Debug)]
pub struct RepairReport {
    /// The pool as it was.
    pub before: CheckReport,
    /// The pool as it is.
    pub after: CheckReport,
    /// Lost tensors that were dropped because they were named.
    pub dropped: Vec<DamagedTensor>,
}

/// Why a pool could not be repaired.
#[derive(Debug, Error)]
pub enum RepairError {
    /// It cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A tensor that was to be dropped is not a damaged tensor of the pool. Nothing was changed.
    #[error(
        "{name:?} is no damaged tensor of this pool and no seal with one, and only those are dropped; \
         nothing was changed"
    )]
    NotDamaged {
        /// What was named.
        name: String,
    },
    /// A device could not be written.
    #[error("{what}: {source}")]
    System {
        /// What was tried, on what.
        what: String,
        /// The operating system's answer.
        source: io::Error,
    },
    /// The lost tensors could not be dropped.
    #[error(transparent)]
    Delete(#[from] DeleteError),
    /// The seals that have lost tensors could not be dropped.
    #[error(transparent)]
    Seal(#[from] SealError),
    /// The lost tensors could not be dropped.
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// The share could not be given back.
    #[error(transparent)]
    Close(#[from] CloseError),
}

/// Checks the pool, writes damaged copies of its superblocks, index and protective MBR again from
/// the good ones, drops the lost tensors that `drop_damaged` names (by name, or by id in
/// hexadecimal) and the seals that it names and that have lost a tensor, and checks again. What is
/// whole is not written. A device whose start is overwritten must have been accepted before.
pub fn repair<Source: MemberSource>(
    sources: &[Source],
    drop_damaged: &[String],
    buffered: bool,
    progress: &mut dyn FnMut(CheckProgress),
) -> Result<RepairReport, RepairError> {
    let before = check(sources, buffered, progress)?;
    let dropped = named(&before, drop_damaged)?;
    if dropped.is_empty() && !before.damage.iter().any(Damage::is_repairable) {
        return Ok(RepairReport { after: before.clone(), before, dropped });
    }
    let overwritten = before.damage.iter().find_map(|damage| match damage {
        Damage::OverwrittenStart { device, found } => Some((device.clone(), found.clone())),
        _ => None,
    });
    if let Some((device, found)) = overwritten {
        return Err(OpenError::OverwrittenStart { device, found }.into());
    }
    for (place, source) in sources.iter().enumerate() {
        let member = Member::open(source, place, &MemberAccess::alone(buffered));
        write_mbr(&member.map_err(OpenError::from)?)?;
    }
    for share in 0..before.geometry.shares {
        let lost = before
            .damage
            .iter()
            .any(|it| matches!(it, Damage::Index { share: at, .. } if *at == share));
        if lost {
            continue;
        }
        // Opening a share writes its damaged copies again: there is one way to do that, and this is
        // it.
        let options = OpenOptions { share, buffered, huge_pages: false, ..sized(&before) };
        let pool = Pool::open(sources, &options)?;
        let dropped = dropped.iter().filter(|it| it.share == share);
        let mut batch = pool.batch();
        for damaged in dropped.clone().filter(|it| it.current && is_named(it, drop_damaged)) {
            batch.delete(damaged.id)?;
        }
        // A seal that has lost a tensor goes as a whole, if it was named.
        let seals: BTreeSet<&String> = dropped.flat_map(|it| &it.seals).collect();
        for seal in seals.into_iter().filter(|seal| drop_damaged.contains(seal)) {
            batch.drop_seal(seal)?;
        }
        batch.commit()?;
        pool.close()?;
    }
    let after = check(sources, buffered, progress)?;
    Ok(RepairReport { before, after, dropped })
}

/// Staging memory must hold a stripe unit.
fn sized(report: &CheckReport) -> OpenOptions {
    let options = OpenOptions::default();
    let staging = options.staging.0.max(report.geometry.stripe_unit);
    OpenOptions { staging: crate::units::ByteCount(staging), ..options }
}

/// Whether one of these names is the tensor's, or its id.
fn is_named(tensor: &DamagedTensor, names: &[String]) -> bool {
    let id = format!("{:032x}", tensor.id.0);
    names.iter().any(|name| tensor.name.as_ref() == Some(name) || id == *name)
}

/// The damaged tensors that were named, or of which a seal was, each of which must be one.
fn named(report: &CheckReport, names: &[String]) -> Result<Vec<DamagedTensor>, RepairError> {
    let mut found: Vec<DamagedTensor> = Vec::new();
    for name in names {
        let is_meant = |tensor: &&DamagedTensor| {
            let is_tensor = tensor.current && is_named(tensor, std::slice::from_ref(name));
            is_tensor || tensor.seals.contains(name)
        };
        if !report.damaged_tensors().any(|tensor| is_meant(&tensor)) {
            return Err(RepairError::NotDamaged { name: name.clone() });
        }
        let new: Vec<_> = report.damaged_tensors().filter(is_meant).cloned().collect();
        found.extend(new.into_iter().filter(|tensor| !found.contains(tensor)).collect::<Vec<_>>());
    }
    Ok(found)
}

/// Writes a block device's protective MBR again if something else stands there.
fn write_mbr(member: &Member) -> Result<(), RepairError> {
    if !member.is_block_device() || super::view::has_protective_mbr(member) {
        return Ok(());
    }
    let what = || format!("cannot write the protective MBR of {}", member.name());
    let block = protective_mbr(member.size().0);
    member.write(0, &block).map_err(|source| RepairError::System { what: what(), source })
}
