//! Properties of the driver: the mode in force above all, of which nothing is guessed.

use std::fmt;
use std::path::PathBuf;

use super::driver::{Compat, DriverOpenError, Users};
use super::error::CuFileError;
use super::library::CuFileLibrary;
use super::sys;

/// Mode in which cuFile moves bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Directly, by the kernel module nvidia-fs of this version.
    NvidiaFs {
        /// The first number.
        major: u32,
        /// The second.
        minor: u32,
    },
    /// Directly, by the kernel's own peer-to-peer DMA.
    PeerToPeer,
    /// Compat mode: through a buffer in host memory, with POSIX calls: correct, and slower.
    Compat,
}

impl fmt::Display for Mode {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NvidiaFs { major, minor } => write!(out, "direct (nvidia-fs {major}.{minor})"),
            Self::PeerToPeer => out.write_str("direct (PCI peer-to-peer DMA)"),
            Self::Compat => out.write_str("compat (through host memory)"),
        }
    }
}

/// Properties of the driver, as reported when it was opened.
#[derive(Clone, Debug)]
pub struct DriverInfo {
    /// Mode in which bytes move.
    pub mode: Mode,
    /// The library's file.
    pub library: PathBuf,
    /// The library's version, where it tells.
    pub version: Option<(u32, u32)>,
    /// Entries that a batch holds at most.
    pub batch_entries_max: u32,
    /// The longest transfer that it does not split, in bytes.
    pub direct_io_max: u64,
    /// GPU memory that may be registered, in bytes.
    pub pinned_max: u64,
}

/// Batches are cut to this even where the driver allows more: cuFile documents it as the most.
const BATCH_ENTRIES_MAX: u32 = 128;

pub(super) fn read_facts(
    library: &CuFileLibrary,
    compat: Compat,
    users: &Users,
) -> Result<DriverInfo, DriverOpenError> {
    let functions = &library.functions;
    let get = functions.get_properties.clone()?;
    let mut found = sys::Properties::default();
    // SAFETY: the call writes one structure, laid out as its header says.
    CuFileError::check(unsafe { get(&raw mut found) }, "read its properties")?;
    let parameter = |parameter| parameter_of(library, parameter);
    let mode = mode_in_force(&found, peer_to_peer(library), &parameter);
    if compat == Compat::Forbidden {
        if mode == Mode::Compat {
            return Err(DriverOpenError::NotDirect { why: why_not_direct(&found) });
        }
        // The parameter reads false where nobody has set it, whatever the configuration says; the
        // bit counts as well.
        let allowed = found.control & (1 << sys::ALLOW_COMPAT) != 0;
        if allowed || parameter(sys::PARAMETER_ALLOW_COMPAT) == Some(true) {
            return Err(why_allowed(library, users));
        }
    }
    Ok(DriverInfo {
        mode,
        library: library.path().to_path_buf(),
        version: library.version(),
        batch_entries_max: found.batch_entries_max.clamp(1, BATCH_ENTRIES_MAX),
        direct_io_max: found.direct_io_max as u64 * 1024,
        pinned_max: u64::from(found.pinned_max) * 1024,
    })
}

fn parameter_of(library: &CuFileLibrary, parameter: u32) -> Option<bool> {
    let get = library.functions.get_parameter.as_ref().ok()?;
    let mut value = false;
    // SAFETY: the call writes one bool.
    let answer = unsafe { get(parameter, &raw mut value) };
    (answer.code == 0).then_some(value)
}

/// Returns whether NVMe goes by peer-to-peer DMA, from a library that has a call to tell.
fn peer_to_peer(library: &CuFileLibrary) -> Option<bool> {
    let get = library.functions.get_p2p_flags.as_ref().ok()?;
    let mut flags = 0;
    // SAFETY: the call writes one word.
    let answer = unsafe { get(sys::NVME_SUPPORTED, &raw mut flags) };
    (answer.code == 0).then_some(flags & (1 << sys::P2PDMA) != 0)
}

/// Returns the reason why compat mode is allowed although whoever opens forbids it.
fn why_allowed(library: &CuFileLibrary, users: &Users) -> DriverOpenError {
    const CONFIGURE: &str =
        "set allow_compat_mode to false in cufile.json (CUFILE_ENV_PATH_JSON names the file)";
    let (why, advice) = if users.count > 0 && users.compat == Compat::Named {
        ("another user in this process asked for it by name", "close that one first")
    } else if !users.ours {
        ("another library in this process opened cuFile first, with that setting", CONFIGURE)
    } else if library.functions.set_parameter.is_err() {
        ("this library is too old to be told otherwise by a program", CONFIGURE)
    } else {
        ("its configuration outranks what it was told", CONFIGURE)
    };
    DriverOpenError::CompatAllowed { why, advice }
}

/// The mode that the driver's own words amount to. `peer_to_peer` is its answer where it has a call
/// for that.
fn mode_in_force(
    found: &sys::Properties,
    peer_to_peer: Option<bool>,
    parameter: &dyn Fn(u32) -> Option<bool>,
) -> Mode {
    let has = |bit: u32| found.status & (1 << bit) != 0;
    if parameter(sys::PARAMETER_FORCE_COMPAT) == Some(true) {
        return Mode::Compat;
    }
    // Older libraries have a bit, which counts unless the setting was read and is off.
    let by_bit =
        || has(sys::NVME_P2P_SUPPORTED) && parameter(sys::PARAMETER_USE_P2PDMA) != Some(false);
    if peer_to_peer.unwrap_or_else(by_bit) {
        return Mode::PeerToPeer;
    }
    if has(sys::NVME_SUPPORTED) && (found.major, found.minor) != (0, 0) {
        return Mode::NvidiaFs { major: found.major, minor: found.minor };
    }
    Mode::Compat
}

fn why_not_direct(found: &sys::Properties) -> String {
    let modules = if (found.major, found.minor) == (0, 0) {
        "nvidia-fs is not loaded".to_owned()
    } else {
        format!("nvidia-fs {}.{} is loaded and does not serve NVMe", found.major, found.minor)
    };
    let allowed =
        if found.control & (1 << sys::ALLOW_COMPAT) == 0 { "forbidden" } else { "allowed" };
    format!(
        "{modules}, peer-to-peer DMA is not in force, compat mode is {allowed} by its configuration"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn properties(major: u32, status: &[u32]) -> sys::Properties {
        let status = status.iter().fold(0, |bits, bit| bits | 1 << bit);
        sys::Properties { major, minor: 17, status, ..sys::Properties::default() }
    }

    fn none(_: u32) -> Option<bool> {
        None
    }

    #[test]
    fn the_mode_is_what_the_driver_says_and_nothing_is_guessed() {
        let direct = properties(2, &[sys::NVME_SUPPORTED]);
        assert_eq!(mode_in_force(&direct, None, &none), Mode::NvidiaFs { major: 2, minor: 17 });
        let peer = properties(0, &[sys::NVME_P2P_SUPPORTED]);
        assert_eq!(mode_in_force(&peer, None, &none), Mode::PeerToPeer);
        assert_eq!(mode_in_force(&properties(2, &[]), None, &none), Mode::Compat);
        assert_eq!(mode_in_force(&sys::Properties::default(), None, &none), Mode::Compat);
    }

    #[test]
    fn where_the_library_has_a_call_that_tells_of_peer_to_peer_dma_it_outranks_the_old_bit() {
        let newer = properties(0, &[]);
        assert_eq!(mode_in_force(&newer, Some(true), &none), Mode::PeerToPeer);
        let stale = properties(0, &[sys::NVME_P2P_SUPPORTED]);
        assert_eq!(mode_in_force(&stale, Some(false), &none), Mode::Compat);
    }

    #[test]
    fn a_setting_that_was_read_outranks_a_capability() {
        let forced = |parameter| (parameter == sys::PARAMETER_FORCE_COMPAT).then_some(true);
        assert_eq!(
            mode_in_force(&properties(2, &[sys::NVME_SUPPORTED]), Some(true), &forced),
            Mode::Compat
        );
        let off = |parameter| (parameter == sys::PARAMETER_USE_P2PDMA).then_some(false);
        assert_eq!(
            mode_in_force(&properties(0, &[sys::NVME_P2P_SUPPORTED]), None, &off),
            Mode::Compat
        );
    }
}
