//! Reading a share's index so that no power cut takes back what was read, and writing it anew where
//! that is due.

use crate::layout::Geometry;
use crate::log::{AppendError, ChangeLog, Contents, LogMedia, LogPlace, Recovered, recover};

/// What stands on the media. What a process that died had written may still be in a cache; once it
/// has been read it must not disappear any more. An index that goes on in segments lies on all
/// devices, so all are flushed.
///
/// # Errors
/// Why the index cannot be read.
pub(super) fn read<M: LogMedia>(
    media: &M,
    geometry: &Geometry,
    place: LogPlace,
) -> Result<Recovered, String> {
    let mut devices = 0..geometry.devices as u8;
    devices.try_for_each(|device| media.flush(device)).map_err(|error| error.to_string())?;
    recover(place, media).map_err(|error| error.to_string())
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
