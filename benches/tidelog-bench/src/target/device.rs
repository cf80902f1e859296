//! Devices and files that are open: what they are, and what they are filled with.

use std::os::fd::AsRawFd;

use tidelog_command_line::complain;
use tidelog_device_safety::NamedDevice;
use tidelog_engine::path::{Device, DeviceIdentity, DeviceOpenError, OpenMode};
use tidelog_engine::units::ByteCount;

use crate::exit::BenchError;

/// Returns the identity of an open device, whatever its name stands for by now.
pub(super) fn identity(device: &Device) -> Result<DeviceIdentity, BenchError> {
    let metadata = device.file().metadata().map_err(|source| {
        let what = format!("{}: cannot find out which device it is", device.path().display());
        BenchError::System { what, source }
    })?;
    Ok(DeviceIdentity::of(&metadata))
}

/// Opens what was looked at, and nothing that took its place.
pub(super) fn open_unchanged(target: &NamedDevice, mode: OpenMode) -> Result<Device, BenchError> {
    let device = Device::open(&target.spec(), mode)?;
    if target.identity == Some(identity(&device)?) {
        Ok(device)
    } else {
        Err(DeviceOpenError::Changed { path: target.path.clone() }.into())
    }
}

/// Gives a file that is to be read bytes to read: of what is reserved and was never written, no
/// device would be asked.
pub(super) fn fill(
    target: &NamedDevice,
    device: &Device,
    size: ByteCount,
) -> Result<(), BenchError> {
    use std::os::unix::fs::FileExt;
    complain(&format!("{}: laying out a file of {size} to read", target.given));
    let write = || {
        // Through the page cache, as lengths need not be whole blocks; to what was just made,
        // whatever is called so by now.
        let path = format!("/proc/self/fd/{}", device.file().as_raw_fd());
        let file = std::fs::File::options().write(true).open(path)?;
        let mut chunk = vec![0; 1 << 20];
        fastrand::Rng::with_seed(size.0).fill(&mut chunk);
        for start in (0..size.0).step_by(chunk.len()) {
            let length = (size.0 - start).min(chunk.len() as u64);
            file.write_all_at(&chunk[..length as usize], start)?;
        }
        file.sync_all()
    };
    write().map_err(|source| BenchError::System {
        what: format!("{}: cannot lay it out", target.given),
        source,
    })
}

/// Returns whether a block device has zones of its own, as the kernel tells it in sysfs.
pub(super) fn has_zones(device: &Device) -> bool {
    use std::os::unix::fs::MetadataExt;

    use nix::sys::stat::{major, minor};

    let Ok(metadata) = device.file().metadata() else { return false };
    let number = metadata.rdev();
    let place = format!("/sys/dev/block/{}:{}", major(number), minor(number));
    // A partition has the queue of its disk.
    let queue = ["queue", "../queue"].iter();
    let mut told =
        queue.filter_map(|it| std::fs::read_to_string(format!("{place}/{it}/zoned")).ok());
    told.next().is_some_and(|it| it.trim() != "none")
}
