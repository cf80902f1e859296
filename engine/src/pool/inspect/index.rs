//! A share's durable tensors, read without changing anything, and each copy of the index by itself.

use std::io;

use crate::layout::{Geometry, TensorEntry};
use crate::log::{
    Contents, IndexRoom, IndexUse, Media, Place, Recovered, Space, SpaceUse, recover,
};
use crate::pool::devices::Member;

/// A share's index as the next opener will find it.
#[derive(Clone, Debug)]
pub struct IndexView {
    /// Counts the checkpoints since the pool was formatted.
    pub epoch: u64,
    /// Every durable tensor, by id.
    pub tensors: Vec<TensorEntry>,
    /// How the space is used.
    pub space: SpaceUse,
    /// How the room for the index is used.
    pub usage: IndexUse,
    /// The copies, one on each metadata device that is at hand.
    pub copies: Vec<IndexCopy>,
}

/// One device's copy of a share's index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexCopy {
    /// The device's place.
    pub device: u8,
    /// Whether this copy alone says the same as all together; else what is wrong with it.
    pub state: Result<(), String>,
}

/// Reads the index of a share.
///
/// # Errors
/// Why it cannot be read from any copy.
pub(super) fn read_index<M: Media>(
    pool: u128,
    share: u32,
    geometry: &Geometry,
    media: &M,
) -> Result<IndexView, String> {
    let place = Place::new(pool, share, geometry).ok_or("there is no such share")?;
    let all = recover(place, media).map_err(|error| error.to_string())?;
    let alone = |device| {
        let found = recover(Place { only: Some(device), ..place }, media)
            .map_err(|error| error.to_string())?;
        let same = found.log.epoch() == all.log.epoch() && found.tensors == all.tensors;
        same.then_some(())
            .ok_or_else(|| "it lacks commits that another copy has, or has others".to_owned())
    };
    let whole = |device| {
        // Where all copies are damaged, an older checkpoint with its change log may well give the same.
        match all.passed_over.iter().find(|(at, _)| *at == device) {
            Some((_, epoch)) => Err(format!(
                "its newest checkpoint, of epoch {epoch}, is not whole; the one of epoch {} and its change log hold",
                all.log.epoch()
            )),
            None => alone(device),
        }
    };
    let copies = place.copies().map(|device| IndexCopy { device, state: whole(device) });
    let copies = copies.collect();
    let Recovered { tensors, runs, index_segments, log, .. } = all;
    let space = Space::new(&place.area, geometry.segment_blocks());
    let room = IndexRoom::new(&place, index_segments, false);
    let contents = Contents::recovered(space, room, tensors.clone(), runs);
    let (space, usage) = (contents.space_use(), contents.index_use());
    Ok(IndexView { epoch: log.epoch(), tensors, space, usage, copies })
}

/// Devices that are open for reading; some may be missing.
pub(super) struct MemberMedia<'a>(Vec<Option<&'a Member>>);

impl<'a> MemberMedia<'a> {
    pub(super) fn new(members: impl Iterator<Item = Option<&'a Member>>) -> Self {
        Self(members.collect())
    }
}

impl Media for MemberMedia<'_> {
    type Error = io::Error;

    fn read(&self, device: u8, offset: u64, length: u64) -> io::Result<Vec<u8>> {
        let Some(Some(member)) = self.0.get(usize::from(device)) else {
            return Err(io::Error::other(format!("device {device} is not at hand")));
        };
        member.read(offset, length as usize)
    }

    fn write(&self, _: u8, _: u64, _: Vec<u8>) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn flush(&self, _: u8) -> io::Result<()> {
        Ok(())
    }
}
