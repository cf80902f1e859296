//! Shares that are refused because commits are lost: what exactly, and going on without them.

use std::sync::atomic::AtomicU64;

use super::check::{CheckProgress, reactor_to_read};
use super::damage::DamagedTensor;
use super::index::IndexView;
use super::older::AcceptError;
use super::tensors::{ReadableVersion, Reader};
use crate::log::{LogPlace, LostCommits, recover, recover_rest};
use crate::path::MemberSource;
use crate::pool::arrangement::{Arranged, arrange};
use crate::pool::events::ShareOnDevices;
use crate::pool::media::MetadataIo;
use crate::pool::members::{MemberAccess, Members};
use crate::pool::{OpenError, OpenOptions, Pool};
use crate::units::{ByteCount, DeviceSet};

/// A share of which commits are lost.
#[derive(Clone, Debug)]
pub struct LostShare {
    /// The number.
    pub share: u32,
    /// Lost commits.
    pub commits: LostCommits,
    /// Number of durable tensors without them.
    pub tensors: u64,
    /// Tensors of which bytes are lost as well: the commits may have had their places used for
    /// other tensors.
    pub damaged: Vec<DamagedTensor>,
}

/// The shares of a pool that are refused because commits are lost, and what is lost if they go on
/// without them. Reads only.
///
/// # Errors
/// The devices are no pool or cannot be read, or there is nothing that a share could go back to.
pub fn lost_commits<Source: MemberSource>(
    sources: &[Source],
    buffered: bool,
    progress: &mut dyn FnMut(CheckProgress),
) -> Result<Vec<LostShare>, OpenError> {
    let members = Members::open(sources, &MemberAccess::to_read(buffered))?;
    let Arranged { members, superblocks, .. } = arrange(members)?;
    let superblock = superblocks.first().ok_or(OpenError::Devices(0))?;
    let geometry = &superblock.geometry;
    let reactor = reactor_to_read(&members, geometry, buffered)?;
    let (written, missing) = (&AtomicU64::new(0), DeviceSet::default());
    let media = MetadataIo { reactor: &reactor, written, missing };
    let mut lost = Vec::new();
    for share in 0..geometry.shares {
        let no_share = OpenError::NoShare { share, shares: geometry.shares };
        let place = LogPlace::of(superblock, share).ok_or(no_share)?;
        let mark = ShareOnDevices { superblock, members: &members.each(), share }.seen().mark();
        if recover(place, mark, &media).is_ok() {
            continue;
        }
        let failed = |error: crate::log::RecoveryError| {
            let what = error.to_string();
            OpenError::Recovery { share, what }
        };
        let mut found = recover_rest(place, mark, &media).map_err(failed)?;
        let Some(commits) = found.lost.take() else { continue };
        let view = IndexView::of(&place, found, Vec::new());
        let read: Vec<ReadableVersion> = ReadableVersion::all(share, &view).collect();
        let (stripes, devices) = (place.stripes, &members.names());
        let reader = Reader { reactor: &reactor, stripes, devices };
        let damaged = reader.damaged(&read, progress).tensors;
        lost.push(LostShare { share, commits, tensors: view.tensors.len() as u64, damaged });
    }
    Ok(lost)
}

/// Has shares go on without commits that are lost. What is lost is compared with what was told: no
/// more is given up than that.
///
/// # Errors
/// Other commits are lost, or a share cannot be opened.
pub fn accept_lost_commits<Source: MemberSource>(
    sources: &[Source],
    buffered: bool,
    lost: &[LostShare],
) -> Result<(), AcceptError> {
    for LostShare { share, commits, .. } in lost {
        let members = Members::open(sources, &MemberAccess::to_read(buffered));
        let Arranged { members, superblocks, .. } = arrange(members?)?;
        drop(members);
        let unit = superblocks.first().map_or(0, |it| it.geometry.stripe_unit);
        let defaults = OpenOptions::default();
        let options = OpenOptions {
            share: *share,
            buffered,
            staging: ByteCount(defaults.staging.0.max(unit)),
            huge_pages: false,
            accept_lost_commits: Some(commits.clone()),
            housekeeping: None,
            ..defaults
        };
        Pool::open(sources, &options)?.close()?;
    }
    Ok(())
}
