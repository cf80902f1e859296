//! Devices that are older copies of themselves: taking them as they are.

use crate::layout::Geometry;
use crate::path::MemberSource;
use crate::pool::arrangement::{Arranged, arrange};
use crate::pool::events::{OlderCopy, ShareOnDevices};
use crate::pool::members::{MemberAccess, Members};
use crate::pool::{CloseError, OpenError, OpenOptions, Pool};
use crate::units::ByteCount;

/// The reason why an older copy could not be made what counts.
#[derive(Debug, thiserror::Error)]
pub enum AcceptError {
    /// The pool cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The share could not be closed.
    #[error(transparent)]
    Close(#[from] CloseError),
}

/// Makes older copies of devices what counts from now on, where what was used last is lost for
/// good; returns which they were, and of which share. Tensors that had bytes on a device since its
/// copy was made are damaged, which a check tells.
///
/// # Errors
/// A share cannot be opened.
pub fn accept_older_copies<Source: MemberSource>(
    sources: &[Source],
    buffered: bool,
) -> Result<Vec<(u32, OlderCopy)>, AcceptError> {
    let (geometry, older) = find(sources, buffered)?;
    let mut shares: Vec<u32> = older.iter().map(|(share, _)| *share).collect();
    shares.dedup();
    for share in shares {
        let staging = OpenOptions::default().staging.0.max(geometry.stripe_unit);
        let options = OpenOptions {
            share,
            buffered,
            staging: ByteCount(staging),
            huge_pages: false,
            accept_older_copies: true,
            housekeeping: None,
            ..OpenOptions::default()
        };
        Pool::open(sources, &options)?.close()?;
    }
    Ok(older)
}

fn find<Source: MemberSource>(
    sources: &[Source],
    buffered: bool,
) -> Result<(Geometry, Vec<(u32, OlderCopy)>), OpenError> {
    let members = Members::open(sources, &MemberAccess::to_read(buffered))?;
    let Arranged { members, superblocks, .. } = arrange(members)?;
    let superblock = superblocks.first().ok_or(OpenError::Devices(0))?;
    let members = members.each();
    let older = (0..superblock.geometry.shares).flat_map(|share| {
        let found = ShareOnDevices { superblock, members: &members, share }.seen().older;
        found.into_iter().map(move |it| (share, it))
    });
    Ok((superblock.geometry, older.collect()))
}
