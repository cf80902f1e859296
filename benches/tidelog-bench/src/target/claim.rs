//! Locks on what is written raw, so that no other run, and no pool, takes it for blank meanwhile.

use std::fs::File;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, Flock, FlockArg, fcntl};
use tidelog_engine::path::device::lock_of_bytes;
use tidelog_engine::path::{Device, DeviceKind};

use crate::exit::BenchError;
use crate::holder::LockHolder;

/// A device or file that is this run's as long as this lives.
///
/// Two locks, since each does what the other cannot: one of whole files, whose owner the kernel
/// names to everybody, and one of byte ranges, which pools also take. Both are lost with the
/// process, however it ends.
#[derive(Debug)]
pub(super) struct TargetClaim {
    _whole: Flock<File>,
}

impl TargetClaim {
    /// Takes an open device for this process.
    ///
    /// # Errors
    /// Another process has it.
    pub(super) fn take(device: &Device) -> Result<Self, BenchError> {
        let path = device.path();
        let failed = |source: std::io::Error| BenchError::System {
            what: format!("{}: cannot lock it", path.display()),
            source,
        };
        let held = || BenchError::Held {
            path: path.to_path_buf(),
            holder: device.file().metadata().ok().and_then(|it| LockHolder::of(&it)),
        };
        let file = device.file().try_clone().map_err(failed)?;
        let whole = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(whole) => whole,
            Err((_, Errno::EAGAIN)) => return Err(held()),
            Err((_, error)) => return Err(failed(error.into())),
        };
        if device.kind() == DeviceKind::File {
            let all = lock_of_bytes(nix::libc::F_WRLCK, 0, 0);
            match fcntl(device.file(), FcntlArg::F_OFD_SETLK(&all)) {
                Ok(_) => {}
                Err(Errno::EAGAIN | Errno::EACCES) => return Err(held()),
                Err(error) => return Err(failed(error.into())),
            }
        }
        Ok(Self { _whole: whole })
    }
}
