//! Reading a share's index so that no power cut takes back what was read, and writing it anew where
//! that is due.

use crate::layout::{BLOCK_BYTES, Geometry, LogMark};
use crate::log::{
    AppendError, ChangeLog, Contents, LogMedia, LogPlace, Recovered, RecoveryError, Unread,
};

/// Reads the media, of which `mark` says how far it went, as `recover` reads it. What a process
/// that died had written may still be in a cache; once it has been read it must not disappear any
/// more. An index that goes on in segments lies on all devices, so all are flushed.
///
/// # Errors
/// Why the index cannot be read.
pub(super) fn read<M: LogMedia>(
    media: &M,
    geometry: &Geometry,
    place: LogPlace,
    mark: LogMark,
    recover: impl FnOnce(LogPlace, LogMark, &M) -> Result<Recovered, RecoveryError>,
) -> Result<Recovered, String> {
    let mut devices = 0..geometry.devices as u8;
    devices.try_for_each(|device| media.flush(device)).map_err(|error| error.to_string())?;
    recover(place, mark, media).map_err(|error| error.to_string())
}

/// Writes the index anew, so that what a crash has torn is never continued. Where there is no space
/// for it, returns that it was not written: the next commit does so, which must delete enough.
///
/// # Errors
/// A device failed.
pub(super) fn settle<M: LogMedia>(
    media: &M,
    log: &mut ChangeLog,
    contents: &mut Contents,
) -> Result<bool, AppendError<M::Error>> {
    let (slot, payload) = (log.next_slot(), contents.index_use().live.0);
    let Ok(segments) = contents.index_segments_for(slot, payload).map(<[u32]>::to_vec) else {
        log.end_here();
        return Ok(false);
    };
    let used = log.checkpoint(media, contents.durable_after(&[]), &segments)?;
    contents.checkpoint_is_written(slot, used);
    Ok(true)
}

/// Writes blocks of the metadata again that could not be read, as another copy has them or as
/// zeroes, once the index was written anew: nothing that counts stands in them. Most devices give
/// such a block another place when it is written.
///
/// # Errors
/// A device failed.
pub(super) fn heal<M: LogMedia>(
    media: &M,
    place: &LogPlace,
    log: &ChangeLog,
    unread: &[Unread],
) -> Result<(), M::Error> {
    let current = 1 - log.next_slot();
    let is_idle = |at: &u64| {
        let within = |start: u64, bytes: u64| (start..start + bytes).contains(at);
        place.area.slots.iter().enumerate().any(|(slot, area)| {
            let idle = slot != current && within(area.checkpoint_offset, area.checkpoint_bytes);
            idle || within(area.log_offset, area.log_bytes)
        })
    };
    for lost in unread.iter().filter(|it| it.is_of_block) {
        let device = lost.device;
        for at in lost.blocks().filter(is_idle) {
            let mut others = place.carriers().filter(|other| *other != device);
            let good = others.find_map(|other| media.read(other, at, BLOCK_BYTES).ok());
            media.write(device, at, good.unwrap_or_else(|| vec![0; BLOCK_BYTES as usize]))?;
        }
        media.flush(device)?;
    }
    Ok(())
}
