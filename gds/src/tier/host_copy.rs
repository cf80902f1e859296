//! A tensor's copy in host memory.

use std::sync::OnceLock;

use tidelog_engine::schedule::TransferError;

use super::copies::UNIT;
use super::space::Room;
use crate::cuda::Event;

/// A tensor's copy. Its bytes, and its checksums, may be on their way.
#[derive(Debug)]
pub(super) struct HostCopy {
    room: Room,
    /// Event behind the copy of its bytes, where the host has not waited for that.
    copied: Option<Event>,
    /// One checksum for each [`UNIT`], as the GPU took them when the bytes left; or why the copy is
    /// of no use.
    sums: OnceLock<Result<Vec<u32>, String>>,
}

impl HostCopy {
    /// A copy that is complete.
    pub(super) fn complete(room: Room, sums: Vec<u32>) -> Self {
        Self { room, copied: None, sums: Ok(sums).into() }
    }

    /// Makes a copy whose bytes are there once `copied` has happened, and of which more is said by
    /// [`HostCopy::end`].
    pub(super) fn coming(room: Room, copied: Event) -> Self {
        Self { room, copied: Some(copied), sums: OnceLock::new() }
    }

    /// Records the result once the GPU is done with it. What was known before stays.
    pub(super) fn end(&self, outcome: Result<Vec<u32>, String>) {
        let _ = self.sums.set(outcome);
    }

    pub(super) fn room(&self) -> &Room {
        &self.room
    }

    /// Returns the event for which a copy of its bytes waits, where they may be on their way.
    pub(super) fn copied(&self) -> Option<&Event> {
        self.copied.as_ref().filter(|_| self.sums.get().is_none())
    }

    /// Returns the checksums. Waits until they are known.
    pub(super) fn sums(&self) -> Result<&[u32], TransferError> {
        let known = self.sums.wait().as_ref();
        known
            .map(Vec::as_slice)
            .map_err(|reason| TransferError::HostMemory { reason: reason.clone() })
    }

    /// An error where what came back is not what had left.
    pub(super) fn compare(&self, found: &[u32]) -> Result<(), TransferError> {
        let sums = self.sums()?;
        let differs = sums.iter().zip(found).position(|(left, came)| left != came);
        let Some(unit) = differs else { return Ok(()) };
        let (begin, end) = bytes_of(unit, self.room.bytes());
        let reason = format!(
            "bytes {begin} to {end} came back from host memory with CRC32C {:#010x} where {:#010x} had left; \
             host memory or the link to the GPU is damaged",
            found[unit], sums[unit]
        );
        Err(TransferError::HostMemory { reason })
    }
}

/// Returns start and end of a checksum's bytes, in a tensor of `length` bytes.
pub(super) fn bytes_of(unit: usize, length: usize) -> (usize, usize) {
    let begin = unit * UNIT as usize;
    (begin, (begin + UNIT as usize).min(length))
}
