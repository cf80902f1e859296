//! Findings of a check.

use std::fmt;

use crate::layout::{TensorId, TensorKey};
use crate::units::ByteCount;

/// Damage: something that is not as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Damage {
    /// A device that is missing, with all that it had.
    Missing {
        /// The device.
        device: String,
    },
    /// One of a device's two superblocks.
    Superblock {
        /// The device.
        device: String,
        /// `A` or `B`.
        copy: char,
        /// Device whose superblock is stored there, if it is another device's.
        other: Option<String>,
    },
    /// A device on which something else was made, while a superblock stands.
    OverwrittenStart {
        /// The device.
        device: String,
        /// Data that was found, and where.
        found: String,
    },
    /// A block device's protective MBR.
    ProtectiveMbr {
        /// The device.
        device: String,
    },
    /// One of two copies of a share's index.
    IndexCopy {
        /// The share.
        share: u32,
        /// The device.
        device: String,
        /// Reason, in words.
        why: String,
    },
    /// A share's index, in every copy: none of its tensors can be found.
    Index {
        /// The share.
        share: u32,
        /// Reason, in words.
        why: String,
    },
    /// A device that is an older copy of itself.
    OlderCopy {
        /// The share that was used without it.
        share: u32,
        /// The device.
        device: String,
        /// Evidence, in words.
        why: String,
    },
    /// A share's holder block on a device, with its count of openings.
    Holder {
        /// The share.
        share: u32,
        /// The device.
        device: String,
    },
    /// One of two copies of a tensor.
    TensorCopy(DamagedTensorCopy),
    /// A tensor.
    Tensor(DamagedTensor),
}

/// A durable tensor of which one copy is damaged on a device, and whole on another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedTensorCopy {
    /// The device that has the damaged copy.
    pub device: String,
    /// The tensor, and how much of this copy is damaged.
    pub tensor: DamagedTensor,
}

/// A durable tensor of which bytes are lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedTensor {
    /// The share it belongs to.
    pub share: u32,
    /// The id.
    pub id: TensorId,
    /// Name, if it was put by one.
    pub name: Option<String>,
    /// The seals that hold this version of it.
    pub seals: Vec<String>,
    /// True if the version is what stands under its id; if not, only seals hold it.
    pub current: bool,
    /// The length.
    pub length: ByteCount,
    /// Number of its bytes in pieces that cannot be read or are not what was written.
    pub lost: ByteCount,
    /// Error of the first of them, and its place.
    pub why: String,
}

/// Work that is left for the next open, though nothing is damaged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unsettled {
    /// A first superblock that is older than the second, which is written before it.
    Superblock {
        /// The device.
        device: String,
    },
    /// A copy of a share's index that lacks what was written last, as after a process that was
    /// killed.
    Copy {
        /// The share.
        share: u32,
        /// The device.
        device: String,
        /// Description of the missing part.
        what: String,
    },
    /// An index that fits no checkpoint as it is. Versions before its growth took commits all the
    /// same.
    Index {
        /// The share.
        share: u32,
        /// Size of its tensors in the index.
        needed: ByteCount,
        /// Capacity of the index.
        room: ByteCount,
    },
}

impl fmt::Display for Unsettled {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Superblock { device } => write!(
                out,
                "{device}: superblock copy A is older than copy B, as after a process that was killed; \
                 the next open writes it"
            ),
            Self::Copy { share, device, what } => {
                write!(out, "{device}: the index of share {share} in this copy: {what}")
            }
            Self::Index { share, needed, room } => write!(
                out,
                "the index of share {share} needs {needed} and its place has {room}; \
                 the next open has it go on in free segments, if there are any"
            ),
        }
    }
}

impl Damage {
    /// Returns whether a good copy is left from which this one can be written again.
    pub fn is_repairable(&self) -> bool {
        !matches!(
            self,
            Self::Missing { .. }
                | Self::OverwrittenStart { .. }
                | Self::Index { .. }
                | Self::OlderCopy { .. }
                | Self::Tensor(_)
        )
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { device } => {
                write!(out, "{device}: what has two copies has lost one, with all other redundancy")
            }
            Self::Superblock { device, copy, other: None } => {
                write!(out, "{device}: superblock copy {copy} is damaged or missing")
            }
            Self::Superblock { device, copy, other: Some(whose) } => {
                write!(out, "{device}: superblock copy {copy} is another device's ({whose})")
            }
            Self::OverwrittenStart { device, found } => write!(
                out,
                "{device}: it was given to something else, it has {found}; a superblock is still the pool's"
            ),
            Self::ProtectiveMbr { device } => {
                write!(out, "{device}: the protective MBR is damaged or missing")
            }
            Self::IndexCopy { share, device, why } => {
                write!(out, "{device}: the index of share {share} is damaged in this copy: {why}")
            }
            Self::Index { share, why } => {
                write!(out, "the index of share {share} cannot be read from any copy: {why}")
            }
            Self::OlderCopy { share, device, why } => write!(
                out,
                "{device}: an older copy of itself, share {share} was used since without it: {why}"
            ),
            Self::Holder { share, device } => write!(
                out,
                "{device}: the holder block of share {share} is damaged or missing, with its count of openings"
            ),
            Self::TensorCopy(DamagedTensorCopy { device, tensor }) => {
                let DamagedTensor { share, lost, length, why, .. } = tensor;
                write!(out, "{device}: one of two copies of {}", tensor.called())?;
                write!(out, " of share {share} is damaged, {lost} of {length}; the first: {why}")
            }
            Self::Tensor(tensor) => write!(out, "{tensor}"),
        }
    }
}

impl fmt::Display for DamagedTensor {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { share, length, lost, why, .. } = self;
        let called = self.called();
        write!(out, "{called} of share {share}: {lost} of {length} are lost; the first: {why}")
    }
}

impl DamagedTensor {
    /// Returns the name, with the seals that hold it.
    fn called(&self) -> String {
        let Self { id, name, seals, current, .. } = self;
        let key = TensorKey { id: *id, name: name.as_deref().map(Into::into) };
        if seals.is_empty() {
            return key.to_string();
        }
        let held = if *current { "which seals hold, too" } else { "as seals hold it" };
        format!("{key}, {held} ({}),", seals.join(", "))
    }
}
