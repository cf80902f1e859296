//! Naming devices: a path, or a list of them.

use std::fmt;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::ControllerName;

/// The file that stands for the device when a pool's device is named by a directory.
pub const FILE_IN_DIRECTORY: &str = "tidelog.device";
/// The most devices a pool may have.
pub const DEVICES_MAX: usize = 64;

/// A device's name as a person writes it: a file, a directory, a block device, or a controller
/// ([`ControllerName`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSpec {
    path: PathBuf,
}

/// What a device is, whatever it is called: a block device's number, or a file's place on its file
/// system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceIdentity {
    block: bool,
    file_system: u64,
    number: u64,
}

impl DeviceIdentity {
    /// The identity of what this metadata is of.
    pub fn of(metadata: &Metadata) -> Self {
        Self::numbered(metadata.rdev(), metadata.dev(), metadata.ino())
    }

    /// That of the block device of this number, or if that is 0 of the file of this inode.
    pub(super) fn numbered(number: u64, file_system: u64, inode: u64) -> Self {
        match number {
            0 => Self { block: false, file_system, number: inode },
            number => Self { block: true, file_system: 0, number },
        }
    }
}

/// A list of devices cannot be understood.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// Nothing between two commas, or nothing at all.
    #[error("device {position} of {list:?} is empty; write paths separated by commas")]
    Empty {
        /// Counted from 1.
        position: usize,
        /// What was given.
        list: String,
    },
    /// One device twice would stripe it against itself.
    #[error("{path} is named twice in {list:?}; a pool needs different devices")]
    Twice {
        /// The device.
        path: String,
        /// What was given.
        list: String,
    },
    /// More devices than a pool can have.
    #[error("{count} devices are named; a pool has at most {DEVICES_MAX}")]
    TooMany {
        /// How many.
        count: usize,
    },
}

impl DeviceSpec {
    /// The device at `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Reads a comma-separated list such as `/a/tide,/b/tide`, in stripe order.
    pub fn parse_list(list: &str) -> Result<Vec<Self>, SpecError> {
        let mut specs: Vec<Self> = Vec::new();
        for (index, part) in list.split(',').map(str::trim).enumerate() {
            if part.is_empty() {
                return Err(SpecError::Empty { position: index + 1, list: list.into() });
            }
            let spec = Self::new(part);
            if specs.contains(&spec) {
                return Err(SpecError::Twice { path: part.into(), list: list.into() });
            }
            specs.push(spec);
        }
        match specs.len() {
            count if count > DEVICES_MAX => Err(SpecError::TooMany { count }),
            _ => Ok(specs),
        }
    }

    /// The path as given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file or block device that this names: the path, or Tidelog's file if it is a directory.
    pub fn target(&self) -> PathBuf {
        if self.path.is_dir() { self.path.join(FILE_IN_DIRECTORY) } else { self.path.clone() }
    }

    /// The controller that this names, for the data path spdk.
    pub fn controller(&self) -> Option<ControllerName> {
        ControllerName::read(self.path.to_str()?)
    }

    /// Whether there is something to open. A controller is asked when it is opened.
    pub fn exists(&self) -> bool {
        self.controller().is_some() || self.target().exists()
    }
}

impl FromStr for DeviceSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        match text.trim() {
            "" => Err(SpecError::Empty { position: 1, list: text.into() }),
            path => Ok(Self::new(path)),
        }
    }
}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.path.display())
    }
}
