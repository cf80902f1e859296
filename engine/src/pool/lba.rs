//! Giving a whole NVMe namespace another LBA format.

use std::time::{Duration, Instant};

use super::error::FormatError;
use super::format::existing;
use super::options::FormatOptions;
use crate::path::nvme::{AdminError, LbaFormat};
use crate::path::{Device, DeviceIdentity, DeviceSpec, OpenMode};

/// Time for the kernel to see what has changed.
const NOTICE: Duration = Duration::from_secs(30);

/// A namespace does not have the format that it was to have.
#[derive(Debug, thiserror::Error)]
pub enum LbaError {
    /// The device must not be written; nothing was done.
    #[error(transparent)]
    Refused(#[from] FormatError),
    /// The namespace is not available, or the drive failed.
    #[error("{device}: {source}")]
    Admin {
        /// The device.
        device: String,
        /// Error of the drive.
        source: AdminError,
    },
    /// The drive did as it was told.
    #[error(
        "{device} has its new format, and the kernel does not see it: {why}; restart the machine"
    )]
    Unnoticed {
        /// The device.
        device: String,
        /// Reason of the kernel.
        why: String,
    },
}

/// Gives the namespace that `spec` names another format, through the kernel. EVERYTHING THAT IT
/// HOLDS IS LOST, which is refused unless it is blank or among `overwrite`.
///
/// # Errors
/// Why not.
pub fn set_lba_format(
    spec: &DeviceSpec,
    format: LbaFormat,
    overwrite: &[DeviceIdentity],
) -> Result<(), LbaError> {
    let device = spec.to_string();
    let failed = |source| LbaError::Admin { device: device.clone(), source };
    let options =
        FormatOptions { overwrite_devices: overwrite.to_vec(), ..FormatOptions::default() };
    let member = existing(spec, 0, &options)?;
    let namespace = member.namespace().map_err(failed)?;
    namespace.format(format.index).map_err(failed)?;
    let unnoticed = |why: String| LbaError::Unnoticed { device: device.clone(), why };
    namespace.rescan().map_err(|error| unnoticed(error.to_string()))?;
    let until = Instant::now() + NOTICE;
    loop {
        let seen = Device::open(spec, OpenMode { read_only: true, ..OpenMode::default() });
        match seen.map(|device| device.logical_block()) {
            Ok(block) if block == format.block => return Ok(()),
            seen if Instant::now() > until => return Err(unnoticed(format!("{seen:?}"))),
            _ => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}
