//! Bytes that say whose they are, so that any reader can tell right ones from wrong ones.

use crate::sim::Random;

const HEADER: usize = 16;
/// Every eighth version of a tensor is its deletion.
pub(super) const DELETION_EVERY: u64 = 8;

/// A tensor's bytes in one of its versions. Some versions are deletions and have none.
pub(super) fn content(tensor: u64, version: u64, longest: u64) -> Option<Vec<u8>> {
    let mut random = Random::new(tensor << 32 ^ version);
    if is_deletion(version) {
        return None;
    }
    let length = HEADER + random.below(longest) as usize;
    let mut bytes = Vec::with_capacity(length + 8);
    bytes.extend(tensor.to_le_bytes());
    bytes.extend(version.to_le_bytes());
    while bytes.len() < length {
        bytes.extend(random.draw().to_le_bytes());
    }
    bytes.truncate(length);
    Some(bytes)
}

/// Returns whether the tensor is not there in this version.
pub(super) fn is_deletion(version: u64) -> bool {
    version.is_multiple_of(DELETION_EVERY)
}

/// Result of a read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Whole tensor of this version.
    Whole(u64),
    /// The beginning of a version: the reader had asked for the length of an older one.
    Beginning,
}

/// Returns the version of the tensor that these bytes are, every one compared.
pub(super) fn identify(tensor: u64, bytes: &[u8], longest: u64) -> Result<Found, String> {
    let number = |at: usize| {
        let number = bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
        number.map(u64::from_le_bytes).ok_or(format!("tensor {tensor} has {} bytes", bytes.len()))
    };
    let (owner, version) = (number(0)?, number(8)?);
    if owner != tensor {
        return Err(format!("tensor {tensor} has the bytes of tensor {owner}"));
    }
    match content(tensor, version, longest) {
        Some(right) if right == bytes => Ok(Found::Whole(version)),
        Some(right) if right.starts_with(bytes) => Ok(Found::Beginning),
        _ => Err(format!("tensor {tensor} has wrong bytes, which claim version {version}")),
    }
}
