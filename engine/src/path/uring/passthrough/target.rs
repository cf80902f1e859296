//! Namespace's generic character device of a block device, and the capabilities of both.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use crate::memory::ALIGNMENT;
use crate::path::device::{Device, DeviceKind, shown};
use crate::path::nvme::steps::Limits;
use crate::path::nvme::{Namespace, retry_delay};
use crate::path::{DeviceCapabilities, DeviceSpec, PlacementHandle, Status};

/// A namespace that commands can be sent to.
#[derive(Debug)]
pub(super) struct CommandTarget {
    /// The generic character device.
    pub(super) file: File,
    pub(super) number: u32,
    pub(super) limits: Limits,
    retry_delays_ms: [u32; 3],
    volatile_cache: bool,
    deallocate: bool,
    poll_queues: bool,
    /// The placement identifiers of its placement handles (FDP), in the order of its list.
    placement: Vec<u16>,
}

impl CommandTarget {
    /// The namespace that `device` is; the error says why commands cannot be sent to it.
    pub(super) fn find(device: &Device) -> Result<Self, String> {
        Self::of(device).map_err(|why| {
            let name = DeviceSpec::new(device.path());
            format!("{name} {why}; NVMe commands go to whole namespaces of the kernel's driver")
        })
    }

    fn of(device: &Device) -> Result<Self, String> {
        if device.kind() == DeviceKind::File {
            return Err("is a regular file".into());
        }
        let shown =
            shown(device.file()).map_err(|error| format!("is not shown in /sys ({error})"))?;
        if shown.join("partition").exists() {
            return Err("is a partition".into());
        }
        let of_block = Namespace::of(device.file()).map_err(|error| format!("is none: {error}"))?;
        let file = open_generic(&shown)?;
        let cannot = |error| format!("cannot be asked what it is: {error}");
        let namespace = Namespace::of(&file).map_err(cannot)?;
        if namespace.number() != of_block.number() {
            return Err("has another namespace's generic device".into());
        }
        if let Some(why) = namespace.unusable().map_err(cannot)? {
            return Err(format!("is none that Tidelog uses: {why}"));
        }
        let controller = namespace.controller().map_err(cannot)?;
        let facts = namespace.facts().map_err(cannot)?;
        let block = facts.format().block;
        let handles = namespace.placement_handles(&facts).map_err(cannot)?;
        if facts.blocks.checked_mul(block.into()) != Some(device.size().0) {
            return Err("has changed its size".into());
        }
        // The kernel wants a segment for each page of a command's data, and has so many.
        let segments = limit(&shown, "max_segments")? * ALIGNMENT as u64;
        let kernel = limit(&shown, "max_hw_sectors_kb")? * 1024;
        let transfer = controller.transfer.unwrap_or(u64::MAX).min(kernel).min(segments);
        Ok(Self {
            number: namespace.number(),
            limits: Limits::new(block, u32::try_from(transfer).unwrap_or(u32::MAX))
                .within_limits_of(&namespace.block_commands()),
            retry_delays_ms: controller.retry_delays_ms,
            volatile_cache: controller.volatile_cache,
            deallocate: controller.deallocate,
            placement: handles.iter().map(|handle| handle.placement).collect(),
            poll_queues: limit(&shown, "io_poll").is_ok_and(|polled| polled == 1),
            file,
        })
    }

    pub(super) fn has_poll_queues(&self) -> bool {
        self.poll_queues
    }

    /// Returns the capabilities of `device`, which this is, on this path.
    pub(super) fn capabilities(&self, device: &Device) -> DeviceCapabilities {
        let Self { volatile_cache, deallocate, .. } = *self;
        let placement_handles = self.placement.len() as u16;
        let of = DeviceCapabilities::of(device);
        DeviceCapabilities { volatile_cache, deallocate, placement_handles, ..of }
    }

    /// Interprets the status of a failed command. To one that has no controller any more Linux
    /// returns EINVAL, as to one that it does not understand; but what is gone it shows no more.
    pub(super) fn meant(&self, status: Status) -> Status {
        match status {
            Status::Errno(libc::EINVAL) if !self.is_shown() => Status::Errno(libc::ENODEV),
            other => other,
        }
    }

    fn is_shown(&self) -> bool {
        let shown = |number| {
            let (major, minor) = (libc::major(number), libc::minor(number));
            Path::new("/sys/dev/char").join(format!("{major}:{minor}")).exists()
        };
        self.file.metadata().is_ok_and(|it| shown(it.rdev()))
    }

    /// Returns the delay before a command with this status is retried.
    pub(super) fn retry_delay(&self, answer: i32) -> Duration {
        let chosen = retry_delay(answer).checked_sub(1);
        Duration::from_millis(chosen.map_or(0, |it| self.retry_delays_ms[it].into()))
    }

    /// Returns the placement identifier of a write for a placement handle.
    pub(super) fn placement_identifier(&self, handle: Option<PlacementHandle>) -> Option<u16> {
        self.placement.get(usize::from(handle?.0)).copied()
    }
}

/// Opens the character device that stands beside a namespace's block device: `ng0n1` beside
/// `nvme0n1`.
fn open_generic(shown: &Path) -> Result<File, String> {
    let name = shown.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let generic = name.replacen("nvme", "ng", 1);
    let number = fs::read_to_string(shown.with_file_name(&generic).join("dev"))
        .map_err(|_| format!("has no generic device {generic}; Linux 5.13 or newer makes one"))?;
    let node = Path::new("/dev").join(&generic);
    let file = File::options().read(true).write(true).open(&node);
    let file = file.map_err(|error| {
        format!("has a generic device, and {} cannot be opened: {error}", node.display())
    })?;
    let found = file.metadata().map_err(|error| error.to_string())?.rdev();
    let found = format!("{}:{}", libc::major(found), libc::minor(found));
    if found == number.trim() {
        Ok(file)
    } else {
        Err(format!("is not what {} is", node.display()))
    }
}

/// A number that the kernel shows of a device's queue.
fn limit(shown: &Path, name: &str) -> Result<u64, String> {
    let path = shown.join("queue").join(name);
    let text =
        fs::read_to_string(&path).map_err(|error| format!("lacks {}: {error}", path.display()))?;
    text.trim().parse().map_err(|_| format!("has a {} that is no number", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(node: &str) -> CommandTarget {
        CommandTarget {
            file: File::open(node).unwrap(),
            number: 1,
            limits: Limits::new(512, 4096),
            retry_delays_ms: [0, 200, 0],
            volatile_cache: false,
            deallocate: false,
            poll_queues: false,
            placement: Vec::new(),
        }
    }

    #[test]
    fn a_status_says_how_long_to_wait_before_the_next_try() {
        let delays = [0x281, 0xA81, 0x1281].map(|answer| target("/dev/null").retry_delay(answer));
        assert_eq!(delays.map(|it| it.as_millis()), [0, 0, 200]);
    }

    #[test]
    fn a_command_to_what_is_shown_no_more_says_that_it_is_gone() {
        let [invalid, gone] = [libc::EINVAL, libc::ENODEV].map(Status::Errno);
        assert_eq!(target("/dev/null").meant(invalid), invalid);
        // No character device, so shown as none.
        let lost = target("/proc/self/exe");
        assert_eq!(lost.meant(invalid), gone);
        assert!(lost.meant(invalid).is_removal());
        assert_eq!(lost.meant(Status::Errno(libc::EIO)), Status::Errno(libc::EIO));
    }
}
