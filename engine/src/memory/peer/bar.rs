//! A BAR of a PCI device, mapped through sysfs: memory that any program with the right to may map,
//! and that the device's own driver need not know of.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr::NonNull;

use super::PeerMemory;
use crate::memory::ALIGNMENT;

/// Directory in which the kernel lists PCI devices.
const DEVICES: &str = "/sys/bus/pci/devices";
/// A BAR that is memory and not ports (`IORESOURCE_MEM`).
const IS_MEMORY: u64 = 0x200;
/// SPDK older than 25.01 registers whole huge pages only, so the mapping begins at one.
const MAPPING_ALIGNMENT: usize = 2 << 20;
/// BAR 6 is the expansion ROM.
const BARS: u8 = 6;

/// The memory of a PCI device behind one of its BARs.
#[derive(Debug)]
pub struct PciBar {
    address: String,
    number: u8,
    base: NonNull<u8>,
    length: usize,
    bus_address: u64,
}

// SAFETY: the mapping is not tied to a thread, and nothing is read or written through it.
unsafe impl Send for PciBar {}
// SAFETY: as above.
unsafe impl Sync for PciBar {}

/// A BAR that cannot stand for peer memory, and why not.
#[derive(Debug, thiserror::Error)]
#[error("BAR {number} of {address} cannot be peer memory: {reason}")]
pub struct BarError {
    /// The device.
    pub address: String,
    /// The BAR.
    pub number: u8,
    /// The reason why not, and what would help.
    pub reason: String,
}

impl PciBar {
    /// Maps BAR `number` of the device at this PCI address, such as `0000:01:00.0`, without
    /// touching it.
    ///
    /// # Errors
    /// There is no such memory, or it may not be had.
    pub fn open(address: &str, number: u8) -> Result<Self, BarError> {
        Self::open_in(Path::new(DEVICES), address, number).map_err(|reason| BarError {
            address: address.into(),
            number,
            reason,
        })
    }

    fn open_in(devices: &Path, address: &str, number: u8) -> Result<Self, String> {
        let device = devices.join(address);
        if !device.exists() {
            return Err("there is no PCI device at this address".into());
        }
        let Resource { bus_address, length } = resource(&device, number)?;
        if !length.is_multiple_of(ALIGNMENT) {
            return Err(format!("it has {length} bytes, which are no whole pages"));
        }
        decode(&device)?;
        let path = device.join(format!("resource{number}"));
        let said =
            |what: &str, error: io::Error| format!("cannot {what} {}: {error}", path.display());
        let file = OpenOptions::new().read(true).write(true).open(&path);
        let file = file.map_err(|error| said("open", error))?;
        let base = map(&file, length).map_err(|error| said("map", error))?;
        Ok(Self { address: address.into(), number, base, length, bus_address })
    }
}

// SAFETY: the mapping was made here, is as long as the BAR, and goes when this is dropped. A BAR is
// one run of bus addresses.
unsafe impl PeerMemory for PciBar {
    fn span(&self) -> (NonNull<u8>, usize) {
        (self.base, self.length)
    }

    fn bus_address(&self) -> Option<u64> {
        Some(self.bus_address)
    }

    fn describe(&self) -> String {
        format!("BAR {} of {}", self.number, self.address)
    }
}

impl Drop for PciBar {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and the last buffer in it is gone.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.length) };
    }
}

struct Resource {
    bus_address: u64,
    length: usize,
}

/// Parses the kernel's description of a BAR: a line of first address, last address and flags for
/// each.
fn resource(device: &Path, number: u8) -> Result<Resource, String> {
    let path = device.join("resource");
    let text = std::fs::read_to_string(&path);
    let text = text.map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    if number >= BARS {
        return Err(format!("a device has the BARs 0 to {}", BARS - 1));
    }
    let line = text.lines().nth(number.into()).unwrap_or_default();
    let mut numbers =
        line.split_whitespace().map(|it| u64::from_str_radix(it.trim_start_matches("0x"), 16));
    let (Some(Ok(first)), Some(Ok(last)), Some(Ok(flags))) =
        (numbers.next(), numbers.next(), numbers.next())
    else {
        return Err(format!("{} cannot be understood: {line:?}", path.display()));
    };
    if last <= first {
        return Err("the device has no such BAR".into());
    }
    if flags & IS_MEMORY == 0 {
        return Err("it is made of ports, not of memory".into());
    }
    Ok(Resource { bus_address: first, length: (last - first + 1) as usize })
}

/// Lets the device answer at its addresses. A driver has seen to that; without one we ask the
/// kernel.
fn decode(device: &Path) -> Result<(), String> {
    if device.join("driver").exists() {
        return Ok(());
    }
    let enable = device.join("enable");
    match std::fs::read_to_string(&enable).as_deref().map(str::trim) {
        Ok("0") => std::fs::write(&enable, "1").map_err(|error| {
            format!(
                "the device is switched off and cannot be enabled ({}): {error}",
                enable.display()
            )
        }),
        _ => Ok(()),
    }
}

/// Maps all of it at a whole huge page, and keeps it out of forked children.
fn map(file: &File, length: usize) -> io::Result<NonNull<u8>> {
    let room = length.next_multiple_of(MAPPING_ALIGNMENT) + MAPPING_ALIGNMENT;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a reservation at a place that the kernel chooses; then the file over a part of that
    // reservation, which nobody else knows of; then the rest of it goes. Failures leave nothing
    // behind.
    unsafe {
        let nobody = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let reserved = libc::mmap(std::ptr::null_mut(), room, libc::PROT_NONE, nobody, -1, 0);
        if reserved == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let before = (reserved as usize).next_multiple_of(MAPPING_ALIGNMENT) - reserved as usize;
        let base = reserved.byte_add(before);
        let shared = libc::MAP_SHARED | libc::MAP_FIXED;
        if libc::mmap(base, length, access, shared, file.as_raw_fd(), 0) == libc::MAP_FAILED {
            let error = io::Error::last_os_error();
            libc::munmap(reserved, room);
            return Err(error);
        }
        if before > 0 {
            libc::munmap(reserved, before);
        }
        let behind = room - before - length;
        if behind > 0 {
            libc::munmap(base.byte_add(length), behind);
        }
        libc::madvise(base, length, libc::MADV_DONTFORK);
        NonNull::new(base.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// A directory that looks like the kernel's, with one device.
    struct Sysfs(PathBuf);

    impl Sysfs {
        fn with(name: &str, resource: &str) -> Self {
            let root =
                std::env::temp_dir().join(format!("tidelog-bar-{}-{name}", std::process::id()));
            let device = root.join("0000:01:00.0");
            std::fs::create_dir_all(&device).unwrap();
            std::fs::write(device.join("resource"), resource).unwrap();
            std::fs::write(device.join("enable"), "0\n").unwrap();
            File::create(device.join("resource2")).unwrap().set_len(1 << 20).unwrap();
            Self(root)
        }

        fn open(&self, number: u8) -> Result<PciBar, String> {
            PciBar::open_in(&self.0, "0000:01:00.0", number)
        }
    }

    impl Drop for Sysfs {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    const BARS_OF_A_DEVICE: &str = "0x00000000fe800000 0x00000000fe8000ff 0x0000000000040200
0x000000000000c000 0x000000000000c03f 0x0000000000040101
0x000000c000000000 0x000000c0000fffff 0x000000000014220c
0x0000000000000000 0x0000000000000000 0x0000000000000000
";

    #[test]
    fn a_bar_is_mapped_where_huge_pages_begin_and_knows_its_bus_address() {
        let sysfs = Sysfs::with("mapped", BARS_OF_A_DEVICE);
        let bar = sysfs.open(2).unwrap();
        let (base, length) = bar.span();
        assert_eq!((length, bar.bus_address()), (1 << 20, Some(0xc0_0000_0000)));
        assert_eq!(base.as_ptr() as usize % MAPPING_ALIGNMENT, 0);
        let enabled = std::fs::read_to_string(sysfs.0.join("0000:01:00.0/enable")).unwrap();
        assert_eq!(enabled, "1", "a device without a driver is switched on");
    }

    #[test]
    fn what_is_no_memory_is_refused_with_the_reason() {
        let sysfs = Sysfs::with("refused", BARS_OF_A_DEVICE);
        for (number, reason) in [
            (0, "it has 256 bytes, which are no whole pages"),
            (1, "it is made of ports, not of memory"),
            (3, "the device has no such BAR"),
            (6, "a device has the BARs 0 to 5"),
        ] {
            assert_eq!(sysfs.open(number).unwrap_err(), reason);
        }
        let nowhere = PciBar::open("ffff:ff:1f.7", 0).unwrap_err().to_string();
        assert_eq!(
            nowhere,
            "BAR 0 of ffff:ff:1f.7 cannot be peer memory: there is no PCI device at this address"
        );
    }
}
