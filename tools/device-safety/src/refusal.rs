//! Reasons against writing a device.

use std::fmt;

use tidelog_engine::path::device::users::DeviceUse;

/// A device and one thing that speaks against writing it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceRefusal {
    /// The device, as it was named.
    pub device: String,
    /// Reason against writing it.
    pub reason: Reason,
}

/// Reason against writing a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The device, or a partition of it, carries the root file system.
    HoldsRoot,
    /// The device is mounted: the device (or its partition) and where.
    Mounted {
        /// The name of the device or partition.
        what: String,
        /// The mount point.
        at: String,
    },
    /// The device is part of another one: LVM, RAID, encryption, a loop device.
    HeldBy {
        /// The name of the device or partition.
        what: String,
        /// The device that holds it.
        holder: String,
    },
    /// The device is swap space in use.
    Swap {
        /// The name of the device or partition.
        what: String,
    },
    /// The kernel gave it to somebody else exclusively, and no file says to whom.
    Claimed,
    /// The device is locked, or open for writing, in another program.
    Used {
        /// Kind of the use.
        how: DeviceUse,
    },
    /// A process has a share of the Tidelog pool on it open.
    PoolInUse {
        /// The process, if it said its name.
        holder: String,
    },
    /// The device is read-only.
    ReadOnly,
    /// The name is neither that of a directory, nor a file, nor a block device.
    NoDevice {
        /// Kind of the file.
        found: &'static str,
    },
    /// The name does not exist.
    Missing {
        /// Part of the path that is missing.
        why: String,
    },
    /// The drive is of a kind that Tidelog does not use.
    Unsuitable {
        /// The reason why not.
        why: String,
    },
    /// The device is named twice: another name on the command line is the same device, or a part of
    /// it.
    SameAs {
        /// Name that is the same device.
        other: String,
    },
    /// The kernel knows partitions on it.
    Partitioned {
        /// Names of the partitions.
        partitions: Vec<String>,
    },
    /// The device belongs to a Tidelog pool.
    Pool {
        /// Description of that pool.
        description: String,
    },
    /// The device holds something that has a name.
    Holds {
        /// Signatures, and their places.
        signatures: Vec<String>,
    },
    /// The device holds something unknown.
    NotBlank {
        /// The first byte that is not zero, of those that were looked at.
        at: u64,
    },
}

impl Reason {
    /// Returns whether naming the device in `--overwrite` sets this aside.
    pub fn may_be_overridden(&self) -> bool {
        matches!(
            self,
            Self::Partitioned { .. }
                | Self::Pool { .. }
                | Self::Holds { .. }
                | Self::NotBlank { .. }
        )
    }

    /// A word for programs.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::HoldsRoot => "holds-root",
            Self::Mounted { .. } => "mounted",
            Self::HeldBy { .. } => "held",
            Self::Swap { .. } => "swap",
            Self::Claimed => "claimed",
            Self::Used { how: DeviceUse::Locked } => "locked",
            Self::Used { how: DeviceUse::OpenForWriting } => "open",
            Self::PoolInUse { .. } => "pool-in-use",
            Self::ReadOnly => "read-only",
            Self::NoDevice { .. } => "no-device",
            Self::Missing { .. } => "missing",
            Self::Unsuitable { .. } => "unsuitable",
            Self::SameAs { .. } => "same-device",
            Self::Partitioned { .. } => "partitioned",
            Self::Pool { .. } => "tidelog-pool",
            Self::Holds { .. } => "content",
            Self::NotBlank { .. } => "not-blank",
        }
    }

    /// Returns the advice.
    pub fn help(&self, device: &str) -> String {
        match self {
            Self::HoldsRoot => "this is never written; name another device".to_owned(),
            Self::Mounted { at, .. } => format!("if it is the right device: umount {at}"),
            Self::HeldBy { what, holder } if holder.contains("Tidelog pool") => {
                format!("if that pool may be lost: tidelog-format wipe /dev/{what}")
            }
            Self::HeldBy { holder, .. } => {
                format!("if it is the right device: stop {holder} first (lsblk shows what it is)")
            }
            Self::Swap { what } if what.starts_with('/') => {
                format!("if it is the right file: swapoff {what}")
            }
            Self::Swap { what } => format!("if it is the right device: swapoff /dev/{what}"),
            Self::Claimed => {
                "if it is the right device: find and end its user (fuser -v, lsblk, lsof)"
                    .to_owned()
            }
            Self::Used { .. } => {
                "if it is the right file: end that program, or detach that device (fuser -v, losetup, lslocks)"
                    .to_owned()
            }
            Self::PoolInUse { .. } => "end that process first".to_owned(),
            Self::ReadOnly => "name a device that can be written (blockdev --setrw)".to_owned(),
            Self::NoDevice { .. } | Self::Missing { .. } => {
                "name a directory, a file, a block device or a partition".to_owned()
            }
            Self::Unsuitable { .. } => {
                format!("name another device; if it is its format: tidelog-format lba {device}")
            }
            Self::SameAs { .. } => "a pool needs different devices; name each once".to_owned(),
            Self::Partitioned { .. }
            | Self::Pool { .. }
            | Self::Holds { .. }
            | Self::NotBlank { .. } => format!("if all of that may be lost: --overwrite {device}"),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HoldsRoot => write!(out, "it holds the root file system"),
            Self::Mounted { what, at } => write!(out, "{what} is mounted at {at}"),
            Self::HeldBy { what, holder } => write!(out, "{what} is held by {holder}"),
            Self::Swap { what } => write!(out, "{what} is swap space in use"),
            Self::Claimed => write!(out, "another program has claimed it exclusively"),
            Self::Used { how } => write!(out, "it is {how}"),
            Self::PoolInUse { holder } => write!(out, "its Tidelog pool is open{holder}"),
            Self::ReadOnly => write!(out, "it is read-only"),
            Self::NoDevice { found } => write!(out, "it is {found}"),
            Self::Missing { why } => write!(out, "{why}"),
            Self::Unsuitable { why } => write!(out, "Tidelog does not use it: {why}"),
            Self::SameAs { other } => {
                write!(out, "it is the same device as {other}, or overlaps it")
            }
            Self::Partitioned { partitions } => {
                write!(out, "it has partitions: {}", partitions.join(", "))
            }
            Self::Pool { description } => write!(out, "it belongs to {description}"),
            Self::Holds { signatures } => write!(out, "it holds {}", signatures.join(", ")),
            Self::NotBlank { at } => {
                write!(out, "it is not blank, and its content is unknown (data at byte {at})")
            }
        }
    }
}
