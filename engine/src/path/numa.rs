//! NUMA nodes of devices and of the GPU that they serve, and the move of the thread that drives
//! them there.
//!
//! Memory comes from the node of the thread that first touches it. That is the same thread: it
//! registers, or fills, the staging memory. So what is done for the thread is done for its buffers.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::memory::{GpuMemory, GpuPlace};

use super::device::{Device, DeviceKind};

/// Keeps the calling thread on the CPUs from which these devices are best driven: those of the
/// GPU's place, if they serve a GPU that has one, else of the node that they are all on. Returns
/// what came of it, in words, or `None` where there is nothing to choose: one node, or devices
/// whose node nobody knows.
pub fn stay_near(devices: &[Device], gpu: Option<&dyn GpuMemory>) -> Option<String> {
    let numbers: Vec<Option<u64>> = devices.iter().map(number).collect();
    let place = gpu.and_then(|gpu| gpu.near(&numbers));
    stay_near_in(Path::new("/sys"), &numbers, place)
}

/// The number of a block device, or of the one that a file lies on.
fn number(device: &Device) -> Option<u64> {
    let metadata = device.file().metadata().ok()?;
    Some(if device.kind() == DeviceKind::Block { metadata.rdev() } else { metadata.dev() })
}

fn stay_near_in(sysfs: &Path, numbers: &[Option<u64>], place: Option<GpuPlace>) -> Option<String> {
    if list(&sysfs.join("devices/system/node/online"))?.len() < 2 {
        return None;
    }
    let (node, why) = if let Some(place) = place {
        (place.node, format!("where {}", place.why))
    } else {
        let node = |number: &Option<u64>| number.and_then(|number| node_of(sysfs, number));
        let first = node(numbers.first()?)?;
        if numbers.iter().any(|number| node(number) != Some(first)) {
            return Some("not all devices are on one NUMA node; driven from any".into());
        }
        (first, "where the devices are".to_owned())
    };
    Some(match move_to(sysfs, node) {
        Ok(()) => format!("driven from NUMA node {node}, {why}"),
        Err(not) => format!("driven from any NUMA node, not from {node}, {why}: {not}"),
    })
}

/// Keeps the calling thread on those CPUs of a node that it may run on now.
fn move_to(sysfs: &Path, node: usize) -> Result<(), String> {
    let this = Pid::from_raw(0);
    let shown = sysfs.join(format!("devices/system/node/node{node}/cpulist"));
    let cpus = list(&shown).ok_or_else(|| format!("{} cannot be read", shown.display()))?;
    let allowed = sched_getaffinity(this).map_err(|error| error.to_string())?;
    let mut near = CpuSet::new();
    for cpu in cpus.into_iter().filter(|&cpu| allowed.is_set(cpu) == Ok(true)) {
        near.set(cpu).map_err(|error| error.to_string())?;
    }
    if near == CpuSet::new() {
        return Err("it may use none of that node's CPUs".into());
    }
    sched_setaffinity(this, &near).map_err(|error| error.to_string())
}

/// The node of a block device: what the nearest device above it says that knows one.
fn node_of(sysfs: &Path, number: u64) -> Option<usize> {
    let link = format!("dev/block/{}:{}", libc::major(number), libc::minor(number));
    let device = fs::canonicalize(sysfs.join(link)).ok()?;
    let said = device.ancestors().find_map(|at| fs::read_to_string(at.join("numa_node")).ok())?;
    // -1 where the machine does not say.
    said.trim().parse().ok()
}

/// The numbers of a list as the kernel writes them: `0-3,8`.
fn list(file: &Path) -> Option<Vec<usize>> {
    let text = fs::read_to_string(file).ok()?;
    let mut numbers = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        numbers.extend(first.parse::<usize>().ok()?..=last.parse::<usize>().ok()?);
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use super::*;

    /// A sysfs of a machine with two nodes and a disk on each, the second with a partition; removed
    /// at the end.
    struct FakeSysfs(PathBuf);

    impl FakeSysfs {
        fn new(name: &str, cpus_of_second: &str) -> Self {
            let root = std::env::temp_dir().join(format!("tidelog-{}-{name}", std::process::id()));
            let put = |path: &str, text: &str| {
                let path = root.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            };
            put("devices/system/node/online", "0-1\n");
            put("devices/system/node/node0/cpulist", "900\n");
            put("devices/system/node/node1/cpulist", cpus_of_second);
            put("devices/pci/a/numa_node", "0\n");
            put("devices/pci/a/nvme/nvme0/nvme0n1/size", "");
            put("devices/pci/b/numa_node", "1\n");
            put("devices/pci/b/nvme/nvme1/nvme1n1/nvme1n1p1/size", "");
            put("devices/virtual/c/numa_node", "-1\n");
            put("devices/virtual/c/loop0/size", "");
            fs::create_dir_all(root.join("dev/block")).unwrap();
            let disks = [
                ("259:0", "pci/a/nvme/nvme0/nvme0n1"),
                ("259:1", "pci/b/nvme/nvme1/nvme1n1"),
                ("259:2", "pci/b/nvme/nvme1/nvme1n1/nvme1n1p1"),
                ("7:0", "virtual/c/loop0"),
            ];
            for (number, place) in disks {
                let link = root.join("dev/block").join(number);
                symlink(Path::new("../../devices").join(place), link).unwrap();
            }
            Self(root)
        }
    }

    impl Drop for FakeSysfs {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn affinity() -> CpuSet {
        sched_getaffinity(Pid::from_raw(0)).unwrap()
    }

    fn disk(minor: u32) -> u64 {
        libc::makedev(259, minor)
    }

    fn gpu_on(node: usize) -> GpuPlace {
        GpuPlace { node, why: "GPU 0 is".into() }
    }

    #[test]
    fn the_thread_stays_on_the_cpus_of_its_devices_node_that_it_may_use() {
        let before = affinity();
        let cpu = (0..CpuSet::count()).find(|&cpu| before.is_set(cpu).unwrap()).unwrap();
        let sysfs = FakeSysfs::new("node", &format!("{cpu},901-902\n"));
        let said = stay_near_in(&sysfs.0, &[Some(disk(1)), Some(disk(2))], None).unwrap();
        let (mut only, after) = (CpuSet::new(), affinity());
        only.set(cpu).unwrap();
        sched_setaffinity(Pid::from_raw(0), &before).unwrap();
        assert_eq!(said, "driven from NUMA node 1, where the devices are");
        assert_eq!(after, only);
    }

    #[test]
    fn a_gpu_decides_before_the_devices_do() {
        let before = affinity();
        let cpu = (0..CpuSet::count()).find(|&cpu| before.is_set(cpu).unwrap()).unwrap();
        let sysfs = FakeSysfs::new("gpu", &format!("{cpu}\n"));
        for devices in [[Some(0), Some(0)], [Some(0), Some(1)], [None, None]] {
            let said =
                stay_near_in(&sysfs.0, &devices.map(|minor| minor.map(disk)), Some(gpu_on(1)))
                    .unwrap();
            let (mut only, after) = (CpuSet::new(), affinity());
            only.set(cpu).unwrap();
            sched_setaffinity(Pid::from_raw(0), &before).unwrap();
            assert_eq!(said, "driven from NUMA node 1, where GPU 0 is");
            assert_eq!(after, only);
        }
        let said = stay_near_in(&sysfs.0, &[Some(disk(1))], Some(gpu_on(0))).unwrap();
        let expected = "driven from any NUMA node, not from 0, where GPU 0 is: it may use none of that node's CPUs";
        assert_eq!(
            (said.as_str(), affinity()),
            (expected, before),
            "not from the devices' instead"
        );
    }

    #[test]
    fn the_thread_stays_where_it_is_when_there_is_no_one_node_to_be_on() {
        let (before, sysfs) = (affinity(), FakeSysfs::new("nowhere", "901-902\n"));
        let says = |numbers: &[Option<u64>], words: &str| {
            let said = stay_near_in(&sysfs.0, numbers, None).unwrap();
            assert!(said.contains(words), "{said}");
        };
        says(&[Some(disk(0)), Some(disk(1))], "not all devices are on one NUMA node");
        says(&[Some(disk(1))], "it may use none of that node's CPUs");
        for unknown in [Some(libc::makedev(7, 0)), Some(libc::makedev(7, 1)), None] {
            assert_eq!(stay_near_in(&sysfs.0, &[unknown], None), None);
        }
        fs::remove_file(sysfs.0.join("devices/system/node/node1/cpulist")).unwrap();
        says(&[Some(disk(1))], "cpulist cannot be read");
        fs::write(sysfs.0.join("devices/system/node/online"), "0\n").unwrap();
        assert_eq!(stay_near_in(&sysfs.0, &[Some(disk(1))], None), None, "one node needs nothing");
        assert_eq!(
            stay_near_in(&sysfs.0, &[Some(disk(1))], Some(gpu_on(1))),
            None,
            "with a GPU neither"
        );
        assert_eq!(affinity(), before);
    }
}
