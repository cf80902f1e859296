//! The exclusive claim on a block device, which nobody has once it was given back.
//!
//! The kernel ties a claim to an open file, and closing that is all that gives it back. A child of
//! fork has every descriptor of the table that the forking thread uses, so a claim there would live
//! as long as the child. This one is on a thread with a table of its own.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Sender};
use std::thread::{Builder, JoinHandle};

use super::DeviceIdentity;
use crate::memory::process;

/// A block device that is claimed until this is dropped.
#[derive(Debug)]
pub(super) struct Claim {
    device: DeviceIdentity,
    /// The process that took it.
    owner: u32,
    /// The thread that has it, until the sender is gone; `None` only while this is dropped.
    holder: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Claim {
    /// Claims what stands at this path, which is busy if it is mounted or somebody else's claim.
    pub(super) fn take(path: &Path) -> io::Result<Self> {
        let (answer, answered) = mpsc::channel::<io::Result<DeviceIdentity>>();
        let (held, until_given_back) = mpsc::channel::<()>();
        let path = PathBuf::from(path);
        let open = move || {
            leave_descriptors();
            let flags = libc::O_EXCL | libc::O_CLOEXEC;
            let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
            let device = DeviceIdentity::of(&file.metadata()?);
            Ok((file, device))
        };
        let holder = Builder::new().name("tidelog-claim".into()).spawn(move || {
            // Nobody listens only if the claimer is gone, and then nobody needs to know.
            let _ = match open() {
                Err(error) => answer.send(Err(error)),
                Ok((_claimed, device)) => {
                    let heard = answer.send(Ok(device));
                    // This ends when the other side is gone.
                    let _ = until_given_back.recv();
                    heard
                }
            };
        })?;
        let device = answered.recv().map_err(|_| io::Error::other("its thread ended"))??;
        Ok(Self { device, owner: process::id(), holder: Some((held, holder)) })
    }

    /// Returns the identity of the claimed device.
    pub(super) fn device(&self) -> DeviceIdentity {
        self.device
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let Some((held, holder)) = self.holder.take() else { return };
        if self.owner != process::id() {
            // The thread is the parent's; here there is nothing to tell it by, nor to join.
            return std::mem::forget((held, holder));
        }
        drop(held);
        // Only then is the device free.
        let _ = holder.join();
    }
}

/// Gives the calling thread a table of descriptors of its own, with standard input and output
/// alone. Where the kernel refuses (before Linux 5.9, or a filter of system calls), it keeps the
/// process's.
fn leave_descriptors() {
    const FIRST: libc::c_uint = libc::STDERR_FILENO as libc::c_uint + 1;
    // SAFETY: no memory is passed. The thread has opened nothing yet and uses no descriptor of the
    // process's, in whose table every one stays open.
    unsafe {
        libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, libc::CLOSE_RANGE_UNSHARE);
    }
}
