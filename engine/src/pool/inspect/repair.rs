//! Writing damaged copies again from the good ones, and dropping what is lost, by name.

use std::io;

use thiserror::Error;

use super::check::{CheckProgress, CheckReport, check};
use super::damage::{Damage, DamagedTensor};
use super::lost::{DropError, DropName, Lost, named};
use crate::layout::protective_mbr;
use crate::path::MemberSource;
use crate::pool::members::{Member, MemberAccess};
use crate::pool::{
    CloseError, CommitError, DeleteError, OpenError, OpenOptions, Pool, ScrubError, SealError,
};

/// Result of a repair.
#[derive(Clone, Debug)]
pub struct RepairReport {
    /// The pool as it was.
    pub before: CheckReport,
    /// The pool as it is.
    pub after: CheckReport,
    /// Objects that were dropped by name.
    pub dropped: Vec<Lost>,
}

/// The reason why a pool could not be repaired.
#[derive(Debug, Error)]
pub enum RepairError {
    /// The pool cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The objects to drop do not exist, or have several meanings. Nothing was changed.
    #[error(transparent)]
    Drop(#[from] DropError),
    /// A device could not be written.
    #[error("{what}: {source}")]
    System {
        /// Action that failed, and its object.
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
    /// A damaged copy of a tensor could not be read.
    #[error(transparent)]
    Scrub(#[from] ScrubError),
    /// The share could not be given back.
    #[error(transparent)]
    Close(#[from] CloseError),
}

/// Checks the pool, writes damaged copies of its superblocks, index, tensors and protective MBR
/// again from the good ones, drops what `drop_damaged` names and has lost bytes, and checks again.
/// What is whole is not written. A device whose start is overwritten must have been accepted
/// before.
pub fn repair<Source: MemberSource>(
    sources: &[Source],
    drop_damaged: &[DropName],
    buffered: bool,
    progress: &mut dyn FnMut(CheckProgress),
) -> Result<RepairReport, RepairError> {
    let before = check(sources, buffered, progress)?;
    let dropped = named(&before, drop_damaged)?;
    let overwritten = before.damage.iter().find_map(|damage| match damage {
        Damage::OverwrittenStart { device, found } => Some((device.clone(), found.clone())),
        _ => None,
    });
    if let Some((device, found)) = overwritten {
        return Err(OpenError::OverwrittenStart { device, found }.into());
    }
    if dropped.is_empty() && !before.damage.iter().any(Damage::is_repairable) {
        return Ok(RepairReport { after: before.clone(), before, dropped });
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
        for copy in before.damaged_copies().filter(|copy| copy.tensor.share == share) {
            heal(&pool, &copy.tensor)?;
        }
        let mut batch = pool.batch();
        for lost in &dropped {
            match lost {
                Lost::Tensor(tensor) if tensor.share == share => batch.delete(tensor.id)?,
                Lost::Seal { share: at, name, .. } if *at == share => batch.drop_seal(name)?,
                _ => (),
            }
        }
        batch.commit()?;
        pool.close()?;
    }
    let after = check(sources, buffered, progress)?;
    Ok(RepairReport { before, after, dropped })
}

/// Has a scrub write a damaged copy of a tensor again.
fn heal(pool: &Pool, tensor: &DamagedTensor) -> Result<(), ScrubError> {
    if tensor.current {
        pool.scrub_tensor(tensor.id)?;
    } else if let Some(seal) = tensor.seals.first() {
        pool.scrub_seal(seal)?;
    }
    Ok(())
}

/// Staging memory must hold a stripe unit.
fn sized(report: &CheckReport) -> OpenOptions {
    let options = OpenOptions::default();
    let staging = options.staging.0.max(report.geometry.stripe_unit);
    OpenOptions { staging: crate::units::ByteCount(staging), ..options }
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
