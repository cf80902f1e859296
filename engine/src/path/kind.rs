//! The data paths and their names: what options, errors, statistics and tools call them.

use std::fmt;
use std::str::FromStr;

/// The backends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PathKind {
    /// `io_uring`.
    Uring,
    /// NVMe commands through `io_uring`.
    UringCmd,
    /// Threads of `pread` and `pwrite`.
    Posix,
    /// cuFile, by way of GPU memory.
    Gds,
    /// SPDK's NVMe driver, without the kernel.
    Spdk,
    /// Disks in memory.
    Sim,
}

impl PathKind {
    /// Returns the name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Uring => "uring",
            Self::UringCmd => "uring-cmd",
            Self::Posix => "posix",
            Self::Gds => "gds",
            Self::Spdk => "spdk",
            Self::Sim => "sim",
        }
    }

    /// The one of this name.
    pub fn named(name: &str) -> Option<Self> {
        let all = [Self::Uring, Self::UringCmd, Self::Posix, Self::Gds, Self::Spdk, Self::Sim];
        all.into_iter().find(|kind| kind.name() == name)
    }
}

impl fmt::Display for PathKind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

/// Data path that a caller wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathChoice {
    /// The best that works here.
    #[default]
    Auto,
    /// `io_uring` or nothing.
    Uring,
    /// NVMe commands through `io_uring`, to whole namespaces; never by [`Auto`](Self::Auto).
    UringCmd,
    /// Threads of `pread` and `pwrite`.
    Posix,
    /// SPDK's NVMe driver; the devices must be named as its controllers, which go by no other path.
    Spdk,
}

impl PathChoice {
    /// The path that is wanted; none where any is.
    pub const fn kind(self) -> Option<PathKind> {
        match self {
            Self::Auto => None,
            Self::Uring => Some(PathKind::Uring),
            Self::UringCmd => Some(PathKind::UringCmd),
            Self::Posix => Some(PathKind::Posix),
            Self::Spdk => Some(PathKind::Spdk),
        }
    }

    /// Returns the choice of this path, if it is one of the engine's for the host's devices.
    pub fn of(kind: PathKind) -> Option<Self> {
        let all = [Self::Uring, Self::UringCmd, Self::Posix, Self::Spdk];
        all.into_iter().find(|choice| choice.kind() == Some(kind))
    }
}

/// A data path's name is none of ours.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no data path; there are auto, uring, uring-cmd, posix and spdk")]
pub struct UnknownPath(String);

impl FromStr for PathChoice {
    type Err = UnknownPath;

    fn from_str(name: &str) -> Result<Self, UnknownPath> {
        if name == "auto" {
            return Ok(Self::Auto);
        }
        PathKind::named(name).and_then(Self::of).ok_or_else(|| UnknownPath(name.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_asked_for_by_the_name_that_it_tells() {
        for name in ["uring", "uring-cmd", "posix", "spdk"] {
            let choice: PathChoice = name.parse().unwrap();
            assert_eq!(choice.kind().unwrap().to_string(), name);
        }
        assert_eq!("auto".parse(), Ok(PathChoice::Auto));
        for other in ["gds", "sim", "io_uring", ""] {
            assert_eq!(other.parse::<PathChoice>(), Err(UnknownPath(other.into())));
        }
    }
}
