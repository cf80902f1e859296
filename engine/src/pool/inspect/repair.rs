//! Writing damaged copies again from the good ones, and dropping tensors that are lost, by name.

use std::io;

use thiserror::Error;

use super::check::{CheckProgress, CheckReport, Damage, DamagedTensor, check};
use crate::layout::{TensorId, protective_mbr};
use crate::path::MemberSource;
use crate::pool::members::{Member, MemberAccess};
use crate::pool::{CloseError, CommitError, DeleteError, OpenError, OpenOptions, Pool};

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
        "{name:?} is no damaged tensor of this pool, and only those are dropped; nothing was changed"
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
    /// The lost tensors could not be dropped.
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// The share could not be given back.
    #[error(transparent)]
    Close(#[from] CloseError),
}

/// Checks the pool, writes damaged copies of its superblocks, index and protective MBR again from
/// the good ones, drops the lost tensors that `drop_damaged` names (by name, or by id in
/// hexadecimal), and checks again. What is whole is not written. A device whose start is
/// overwritten must have been accepted before.
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
        let to_delete: Vec<TensorId> =
            dropped.iter().filter(|it| it.share == share).map(|it| it.id).collect();
        let mut batch = pool.batch();
        to_delete.into_iter().try_for_each(|id| batch.delete(id))?;
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

/// The damaged tensors that were named, each of which must be one.
fn named(report: &CheckReport, names: &[String]) -> Result<Vec<DamagedTensor>, RepairError> {
    let mut found: Vec<DamagedTensor> = Vec::new();
    for name in names {
        let is_named = |tensor: &&DamagedTensor| {
            tensor.name.as_deref() == Some(name.as_str())
                || format!("{:032x}", tensor.id.0) == *name
        };
        let before = found.len();
        found.extend(report.damaged_tensors().filter(is_named).cloned());
        if found.len() == before {
            return Err(RepairError::NotDamaged { name: name.clone() });
        }
    }
    found.dedup();
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
