//! Naming devices: a path, or a list of them. Python's `_devices` reads lists by the same rule.

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

/// Identity of a device, independent of its name: a block device's number, or a file's place on its
/// file system.
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

    /// Returns the identity of the block device of this number, or if that is 0 of the file of this
    /// inode.
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
    /// A comma that is more likely part of a name than between two.
    #[error(
        "the comma in {name:?} separates devices, and {why}; for a comma that is part of a name write \\,"
    )]
    CommaInName {
        /// Text that may be one name.
        name: String,
        /// Reason to take it for one name.
        why: String,
    },
    /// The list has an empty name between two commas, or is empty.
    #[error("device {position} of {list:?} is empty; write paths separated by commas")]
    Empty {
        /// Counted from 1.
        position: usize,
        /// List as given.
        list: String,
    },
    /// One device twice would stripe it against itself.
    #[error("{path} is named twice in {list:?}; a pool needs different devices")]
    Twice {
        /// The device.
        path: String,
        /// List as given.
        list: String,
    },
    /// The pool has more devices than a pool can have.
    #[error("{count} devices are named; a pool has at most {DEVICES_MAX}")]
    TooMany {
        /// Number of devices.
        count: usize,
    },
}

impl DeviceSpec {
    /// The device at `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Reads a comma-separated list such as `/a/tide,/b/tide`, in stripe order. `\,` is a comma
    /// that is part of a name, and `\\` a backslash; a backslash before anything else is itself.
    ///
    /// # Errors
    /// It is no list of different devices, or has a comma without a backslash where one name is
    /// more likely than two: its halves would be made as devices.
    pub fn parse_list(list: &str) -> Result<Vec<Self>, SpecError> {
        let names = split_list(list);
        refuse_commas_in_names(&names)?;
        let mut specs: Vec<Self> = Vec::new();
        for (index, name) in names.iter().enumerate() {
            if name.is_empty() {
                return Err(SpecError::Empty { position: index + 1, list: list.into() });
            }
            let spec = Self::new(name);
            if specs.contains(&spec) {
                return Err(SpecError::Twice { path: name.clone(), list: list.into() });
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

    /// Returns whether there is something to open. A controller is asked when it is opened.
    pub fn exists(&self) -> bool {
        self.controller().is_some() || self.target().exists()
    }
}

/// The names of a list, without the spaces around them.
fn split_list(list: &str) -> Vec<String> {
    let mut names = vec![String::new()];
    let mut rest = list.chars().peekable();
    while let Some(next) = rest.next() {
        let escaped = if next == '\\' { rest.next_if(|it| matches!(it, ',' | '\\')) } else { None };
        match (escaped, next, names.last_mut()) {
            (Some(escaped), _, Some(name)) => name.push(escaped),
            (None, ',', _) => names.push(String::new()),
            (_, next, Some(name)) => name.push(next),
            (_, _, None) => (),
        }
    }
    names.iter().map(|name| name.trim().to_owned()).collect()
}

/// Refuses a list of which neighbours together name what is there, or would be in a folder that is
/// there; and one with a new device of a relative path beside an absolute one, which is what a
/// comma in a name looks like.
fn refuse_commas_in_names(names: &[String]) -> Result<(), SpecError> {
    for start in 0..names.len().min(DEVICES_MAX) {
        for end in start + 1..names.len().min(DEVICES_MAX) {
            let name = names[start..=end].join(",");
            let path = Path::new(&name);
            let folder = path.parent().filter(|it| it.to_string_lossy().contains(','));
            let why = if path.exists() {
                "that is there as one name".to_owned()
            } else if let Some(folder) = folder.filter(|it| it.is_dir()) {
                format!("{} is a folder", folder.display())
            } else {
                continue;
            };
            return Err(SpecError::CommaInName { name, why });
        }
    }
    for (at, name) in names.iter().enumerate().skip(1) {
        let spec = DeviceSpec::new(name);
        let before = Path::new(&names[at - 1]);
        if before.is_absolute() && spec.path.is_relative() && !name.is_empty() && !spec.exists() {
            let why =
                format!("{name:?}, which is not there, would be a file beside an absolute path");
            return Err(SpecError::CommaInName { name: names[at - 1..=at].join(","), why });
        }
    }
    Ok(())
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
