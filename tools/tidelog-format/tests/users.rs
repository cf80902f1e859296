//! Devices that somebody uses are refused whatever is said: real mounts, swap, claims, loops; and
//! tables of machines with LVM, RAID and btrfs, which test machines do not have.

mod common;

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{
    Finally, Loop, format_of, open, overwrite_of, pool, program, sparse, temporary, tool,
};
use tidelog_device_safety::{DeviceNumber, Reason, System};
use tidelog_engine::path::DeviceSpec;
use tidelog_engine::path::device::lock_of_bytes;
use tidelog_engine::pool::{FormatOptions, OpenOptions as PoolOptions, Pool};
use tidelog_tests::machine::{Directory, LoopDevice, LoopOptions, skip};

const MIB: u64 = 1 << 20;

/// The reasons remain when the device is named twice, and with `--yes` nothing is written.
fn is_refused_whatever_is_said(device: &str, kind: &str) {
    for ran in [format_of(device), overwrite_of(device)] {
        assert!(ran.refusals().iter().any(|it| it == kind), "no {kind}: {ran}");
    }
    tool(&["format", device, "--overwrite", device, "--yes"]).expect(4);
    tool(&["wipe", device, "--yes"]).expect(4);
    tool(&["repair", device]).expect(4);
}

fn mounted(node: &str, at: &str) -> Finally {
    fs::create_dir(at).unwrap();
    assert!(Command::new("mount").args([node, at]).status().unwrap().success());
    Finally(vec!["umount".into(), at.into()])
}

#[test]
fn a_mounted_device_is_refused_under_each_of_its_names() {
    let Some(device) = Loop::new("mounted", 64 * MIB) else { return };
    let directory = temporary("mount-point");
    if program("mounted", "mkfs.ext4", &["-q", device.node()]).is_none() {
        return;
    }
    // A mount point with a space is escaped in the kernel's table.
    let at = directory.at("mount point");
    let mount = mounted(device.node(), &at);
    let link = directory.at("link");
    symlink(device.node(), &link).unwrap();
    for name in [device.node(), &link] {
        is_refused_whatever_is_said(name, "mounted");
        assert!(format_of(name).out.contains(&at));
    }
    drop(mount);
    assert_eq!(overwrite_of(device.node()).code, 0, "free again");
}

#[test]
fn a_disk_whose_partition_is_mounted_is_refused_and_so_is_the_partition() {
    let Some(device) = Loop::new("partition", 64 * MIB) else { return };
    let directory = temporary("partition-mount");
    let test = "partition";
    let made =
        program(test, "sgdisk", &["--clear", "--new=1:0:+30M", "--new=2:0:0", device.node()])
            .and_then(|()| program(test, "partx", &["--add", device.node()]));
    let parts = ["p1", "p2"].map(|part| format!("{}{part}", device.node()));
    if made.is_none() || program(test, "mkfs.ext4", &["-q", &parts[0]]).is_none() {
        return;
    }
    // While nobody uses them, partitions and their table are content, which may be overwritten.
    let refused = format_of(device.node()).refusals();
    assert_eq!(refused, ["partitioned", "content"]);
    assert_eq!(overwrite_of(device.node()).code, 0);
    let view = format_of(&parts[1]).expect(0).json();
    assert!(view["devices"][0]["scope"].as_str().unwrap().starts_with("partition of loop"));

    let mount = mounted(&parts[0], &directory.at("at"));
    is_refused_whatever_is_said(device.node(), "mounted");
    is_refused_whatever_is_said(&parts[0], "mounted");
    assert_eq!(format_of(&parts[1]).code, 0, "the other partition is nobody's");
    drop(mount);

    // A disk and a part of it are not two devices.
    let both = tool(&["format", device.node(), &parts[1], "--dry-run", "--output", "json"]);
    assert!(both.refusals().iter().any(|it| it == "same-device"), "{both}");
}

#[test]
fn a_pool_on_a_partition_guards_its_disk_and_a_pool_on_a_disk_its_leftover_partitions() {
    let Some(device) = Loop::new("neighbours", 64 * MIB) else { return };
    let test = "neighbours";
    let made = program(test, "sgdisk", &["--clear", "--new=1:0:+30M", device.node()])
        .and_then(|()| program(test, "partx", &["--add", device.node()]));
    if made.is_none() {
        return;
    }
    let part = format!("{}p1", device.node());
    tool(&["format", &part, "--yes"]).expect(0);
    let refused = format_of(device.node()).refusals();
    assert_eq!(refused, ["tidelog-pool", "partitioned", "content"]);
    let held = open(&[&part]);
    is_refused_whatever_is_said(device.node(), "pool-in-use");
    drop(held);

    // The kernel goes on showing the partition of a table that is gone.
    let ran = tool(&["format", device.node(), "--overwrite", device.node(), "--yes"]).expect(0);
    assert!(ran.out.contains("blockdev --rereadpt"), "{ran}");
    is_refused_whatever_is_said(&part, "held");
    tool(&["check", device.node()]).expect(0);
}

/// The kernel keeps partitions that it was told of when the file behind them goes: the next test
/// that got the loop device was refused for them.
#[test]
fn partitions_that_a_killed_test_left_do_not_reach_the_next() {
    let test = "left-partitions";
    let Some(device) = Loop::new(test, 64 * MIB) else { return };
    let made = program(test, "sgdisk", &["--clear", "--new=1:0:+30M", device.node()])
        .and_then(|()| program(test, "partx", &["--add", device.node()]));
    if made.is_none() {
        return;
    }
    let part = format!("{}p1", device.node());
    // A test that looks at the partition for a little longer than its device lives.
    let looking = fs::File::open(&part).unwrap();
    let later = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(100));
        drop(looking);
    });
    drop(device);
    assert!(!fs::exists(&part).unwrap(), "{part} is still there");
    later.join().unwrap();
}

#[test]
fn swap_in_use_is_refused() {
    let Some(device) = Loop::new("swapon", 64 * MIB) else { return };
    if program("swapon", "mkswap", &[device.node()]).is_none() {
        return;
    }
    if !Command::new("swapon").arg(device.node()).status().is_ok_and(|it| it.success()) {
        return skip("swapon", "this machine does not let swap be used");
    }
    let swap = Finally(vec!["swapoff".into(), device.node().to_owned()]);
    is_refused_whatever_is_said(device.node(), "swap");
    drop(swap);
    assert_eq!(overwrite_of(device.node()).code, 0);
}

#[test]
fn a_device_that_a_program_has_claimed_is_refused() {
    let Some(device) = Loop::new("claimed", 64 * MIB) else { return };
    let claim =
        || OpenOptions::new().read(true).custom_flags(nix::libc::O_EXCL).open(device.node());
    let claimed = claim().unwrap();
    is_refused_whatever_is_said(device.node(), "claimed");
    drop(claimed);
    // A tool that another test starts just now has our descriptors until it executes.
    while claim().is_err() {
        std::thread::yield_now();
    }
    assert_eq!(format_of(device.node()).code, 0);
}

#[test]
fn a_file_behind_a_loop_device_is_refused() {
    let Some(device) = Loop::new("backing", 64 * MIB) else { return };
    is_refused_whatever_is_said(device.backing().to_str().unwrap(), "held");
}

/// The kernel shows the name by which the loop device was made: the other one, and that it is gone.
#[test]
fn a_file_behind_a_loop_device_is_refused_by_a_name_that_the_kernel_does_not_show() {
    let test = "hard-link";
    let Some(device) = Loop::new(test, 64 * MIB) else { return };
    if program(test, "mkfs.ext4", &["-q", device.node()]).is_none() {
        return;
    }
    let directory = temporary("hard-link-mount");
    let image = format!("{}.image", device.backing().display());
    fs::hard_link(device.backing(), &image).unwrap();
    fs::remove_file(device.backing()).unwrap();
    let mount = mounted(device.node(), &directory.at("at"));
    is_refused_whatever_is_said(&image, "held");
    drop(mount);
    is_refused_whatever_is_said(&image, "held");
    // Also where the loop device cannot write it.
    let link = directory.at("read-only");
    fs::hard_link(&image, &link).unwrap();
    drop(device);
    let options = LoopOptions { read_only: true, ..LoopOptions::default() };
    let read_only = LoopDevice::attach(Path::new(&link), options).unwrap();
    let other = directory.at("other");
    fs::rename(&link, &other).unwrap();
    is_refused_whatever_is_said(&other, "held");
    drop(read_only);
}

#[test]
fn a_file_behind_a_loop_device_of_another_mount_namespace_is_refused() {
    let test = "namespace";
    let directory = temporary(test);
    let image = sparse(&directory, "image", 64 * MIB);
    fs::create_dir(directory.at("seen-there")).unwrap();
    let script = "mount --bind . seen-there && losetup --find --show seen-there/image";
    let ran = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", script])
        .current_dir(directory.path())
        .output();
    let node = match ran {
        Ok(output) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).trim().to_owned()
        }
        other => return skip(test, &format!("no loop device in a mount namespace: {other:?}")),
    };
    let detach = Finally(vec!["losetup".into(), "--detach".into(), node.clone()]);
    let listed = ["--noheadings", "--output", "BACK-FILE", &node];
    let shown = Command::new("losetup").args(listed).output().unwrap();
    assert_ne!(String::from_utf8_lossy(&shown.stdout).trim(), image, "it has another name there");
    is_refused_whatever_is_said(&image, "held");
    drop(detach);
}

#[test]
fn a_loop_device_is_refused_where_another_one_over_the_same_bytes_is_mounted() {
    let test = "two-loops";
    let Some(device) = Loop::new(test, 64 * MIB) else { return };
    let directory = temporary("two-loops-mount");
    if program(test, "mkfs.ext4", &["-q", device.node()]).is_none() {
        return;
    }
    let Ok(other) = LoopDevice::attach(device.backing(), LoopOptions::default()) else {
        return skip(test, "there is no second loop device");
    };
    assert_eq!(overwrite_of(other.node()).code, 0, "nobody uses the first");
    let mount = mounted(device.node(), &directory.at("at"));
    is_refused_whatever_is_said(other.node(), "held");
    drop(mount);
}

#[test]
fn a_file_that_a_program_has_locked_is_refused() {
    use nix::fcntl::{FcntlArg, Flock, FlockArg, fcntl};
    let directory = temporary("locked");
    let image = sparse(&directory, "image", 64 * MIB);
    let open = || fs::File::open(&image).unwrap();
    // As QEMU does: shared locks on single bytes, by an open file description.
    let byte = lock_of_bytes(nix::libc::F_RDLCK, 103, 1);
    let guest = open();
    fcntl(&guest, FcntlArg::F_OFD_SETLK(&byte)).unwrap();
    is_refused_whatever_is_said(&image, "locked");
    drop(guest);
    for kind in [FlockArg::LockSharedNonblock, FlockArg::LockExclusiveNonblock] {
        let guest = Flock::lock(open(), kind).unwrap();
        is_refused_whatever_is_said(&image, "locked");
        drop(guest);
    }
    assert_eq!(format_of(&image).code, 0);
}

/// Shared locks are enough: a program that reads a disk and would not have it written.
#[test]
fn a_block_device_that_a_program_has_locked_is_refused_and_a_pool_on_it_not_opened() {
    use nix::fcntl::{FcntlArg, Flock, FlockArg, fcntl};
    let Some(device) = Loop::new("locked-block", 64 * MIB) else { return };
    let specs = [DeviceSpec::new(device.node())];
    let open = || fs::File::open(device.node()).unwrap();
    let shows_it_is_refused = || {
        is_refused_whatever_is_said(device.node(), "locked");
        let refused =
            Pool::format(&specs, &FormatOptions { overwrite: true, ..FormatOptions::default() });
        let text = refused.unwrap_err().to_string();
        assert!(text.contains(device.node()) && text.contains("locked by another"), "{text}");
    };
    let shows_it_is_not_opened = || {
        let text = Pool::open(&specs, &PoolOptions::default()).err().unwrap().to_string();
        assert!(text.contains(device.node()) && text.contains("locked by another"), "{text}");
    };
    let byte = lock_of_bytes(nix::libc::F_RDLCK, 4096, 1);
    for pool_is_there in [false, true] {
        let guest = open();
        fcntl(&guest, FcntlArg::F_OFD_SETLK(&byte)).unwrap();
        if pool_is_there {
            shows_it_is_not_opened();
        } else {
            shows_it_is_refused();
        }
        drop(guest);
        let guest = Flock::lock(open(), FlockArg::LockSharedNonblock).unwrap();
        if pool_is_there {
            shows_it_is_not_opened();
        } else {
            shows_it_is_refused();
        }
        drop(guest);
        if !pool_is_there {
            tool(&["format", device.node(), "--yes"]).expect(0);
        }
    }
    Pool::open(&specs, &PoolOptions::default()).unwrap().close().unwrap();
}

#[test]
fn a_virtual_machines_image_is_refused_while_it_has_it_open() {
    let test = "virtual-machine";
    let directory = temporary(test);
    let image = sparse(&directory, "image", 64 * MIB);
    // The same block layer, and the same locks, as the machine's own.
    let Ok(mut guest) = Command::new("qemu-io")
        .args(["-f", "raw", &image])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
    else {
        return skip(test, "qemu-io is not installed (package qemu-utils)");
    };
    let is_open = || {
        let entries = fs::read_dir(format!("/proc/{}/fd", guest.id())).unwrap().flatten();
        entries.filter_map(|it| fs::read_link(it.path()).ok()).any(|it| it == Path::new(&image))
    };
    while !is_open() {
        std::thread::yield_now();
    }
    for ran in [format_of(&image), overwrite_of(&image)] {
        let kinds = ran.expect(4).refusals();
        assert!(kinds == ["locked"] || kinds == ["open"], "{kinds:?}");
    }
    drop(guest.stdin.take());
    guest.wait().unwrap();
    assert_eq!(format_of(&image).code, 0);
}

#[test]
fn a_file_that_a_program_has_open_for_writing_is_refused() {
    let test = "open-for-writing";
    let directory = temporary(test);
    let image = sparse(&directory, "image", 64 * MIB);
    let reader = fs::File::open(&image).unwrap();
    assert_eq!(format_of(&image).code, 0, "who reads it does not use it");
    let writer = OpenOptions::new().write(true).open(&image).unwrap();
    if format_of(&image).code == 0 {
        return skip(test, "this file system has no leases");
    }
    is_refused_whatever_is_said(&image, "open");
    drop((reader, writer));
    assert_eq!(format_of(&image).code, 0);
}

#[test]
fn a_read_only_device_is_refused() {
    let options = LoopOptions { read_only: true, ..LoopOptions::default() };
    let Some(device) = Loop::with("read-only", 64 * MIB, options) else { return };
    is_refused_whatever_is_said(device.node(), "read-only");
}

#[test]
fn the_disk_under_the_root_file_system_is_refused() {
    let root = DeviceNumber::from_raw(fs::metadata("/").unwrap().dev());
    let Some(device) = System::default().block_device(root) else {
        return skip("root", "the root file system is on no block device that sysfs shows");
    };
    // Only ever looked at: a bug here must not cost the machine.
    let node = format!("/dev/{}", device.name);
    if !Path::new(&node).exists() {
        return skip("root", &format!("there is no {node}"));
    }
    for ran in [format_of(&node), overwrite_of(&node)] {
        assert!(ran.refusals().contains(&"holds-root".to_owned()), "{ran}");
    }
    tool(&["wipe", &node, "--dry-run"]).expect(4);
}

#[test]
fn a_pool_that_is_open_is_refused_by_the_name_of_its_holder() {
    let directory = temporary("open-pool");
    let file = pool(&directory, "device", &[]);
    let held = open(&[&file]);
    is_refused_whatever_is_said(&file, "pool-in-use");
    assert!(format_of(&file).out.contains(&format!("process {}", std::process::id())));
    tool(&["check", &file]).expect(4);
    let view = tool(&["inspect", &file, "--output", "json"]).expect(0).json();
    assert_eq!(view["shares"][0]["held"], true);
    drop(held);
    tool(&["check", &file]).expect(0);
}

#[test]
fn two_names_of_one_device_are_noticed() {
    let directory = temporary("two-names");
    let file = sparse(&directory, "device", 16 * MIB);
    symlink(&file, directory.at("symbolic")).unwrap();
    fs::hard_link(&file, directory.at("hard")).unwrap();
    let both = |one: &str, other: &str| {
        tool(&["format", one, other, "--size", "16MiB", "--yes", "--output", "json"]).refusals()
    };
    for name in ["device", "symbolic", "hard"] {
        assert_eq!(both(&file, &directory.at(name)), ["same-device"], "{name}");
    }
    // Files that do not exist yet have one name each, too.
    let dotted = format!("{}/./new", directory.path().display());
    assert_eq!(both(&directory.at("new"), &dotted), ["same-device"]);
    assert!(!directory.path().join("new").exists());

    let Some(device) = Loop::new("two-nodes", 64 * MIB) else { return };
    let number = fs::metadata(device.node()).unwrap().rdev();
    let DeviceNumber { major, minor } = DeviceNumber::from_raw(number);
    let node = directory.at("node");
    let (major, minor) = (major.to_string(), minor.to_string());
    let made = Command::new("mknod").args([&node, "b", &major, &minor]).status();
    if made.is_ok_and(|it| it.success()) && fs::File::open(&node).is_ok() {
        assert_eq!(both(device.node(), &node), ["same-device"]);
    } else {
        skip("two-nodes", "device nodes cannot be made or used here");
    }
}

#[test]
fn what_is_no_device_is_refused_and_a_mistyped_one_is_not_made() {
    assert_eq!(format_of("/dev/null").refusals(), ["no-device"]);
    for mistyped in ["/dev/nvme99n1", "/dev/disk/by-id/no-such"] {
        let ran = tool(&["format", mistyped, "--size", "16MiB", "--yes"]).expect(4);
        assert!(ran.err.contains(mistyped), "{ran}");
        for command in
            [&["inspect", mistyped][..], &["wipe", mistyped, "--yes"], &["repair", mistyped]]
        {
            tool(command).expect(3);
        }
        assert!(!Path::new(mistyped).exists());
    }
    let directory = temporary("no-device");
    symlink("/nowhere/at/all", directory.at("broken")).unwrap();
    sparse(&directory, "file", MIB);
    for name in ["broken", "no-directory/file", "file/below"] {
        let ran = tool(&["format", &directory.at(name), "--size", "16MiB", "--yes"]).expect(4);
        assert!(ran.err.contains("refused: "), "{ran}");
    }
    let both = tool(&["format", "/dev/nvme98n1", "/dev/nvme99n1", "--dry-run", "--output", "json"]);
    assert_eq!(both.refusals(), ["missing", "missing"], "{both}");
}

#[test]
fn where_devices_must_exist_no_file_is_made() {
    let directory = temporary("must-exist");
    let at = directory.path().to_str().unwrap();
    let format = ["format", at, "--size", "16MiB", "--must-exist", "--yes"];
    let refused = tool(&format).expect(4);
    assert!(refused.err.contains("is its file system mounted?"), "{refused}");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    sparse(&directory, "tidelog.device", 0);
    tool(&format).expect(0);
}

/// A machine in a directory: `sda` with `sda1` (mounted at /boot) and `sda2` under the LVM volume
/// `dm-0` that carries `/`; `sdb` under the RAID `md0`; `nvme0n1`, which is free, with a model.
fn machine(directory: &Directory) -> System {
    let put = |path: &str, text: &str| {
        let path = directory.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let devices = [
        ("pci/block/sda", "8:0"),
        ("pci/block/sda/sda1", "8:1"),
        ("pci/block/sda/sda2", "8:2"),
        ("pci/block/sdb", "8:16"),
        ("pci/block/nvme0n1", "259:0"),
        ("virtual/block/dm-0", "253:0"),
        ("virtual/block/md0", "9:0"),
    ];
    for (place, number) in devices {
        let name = Path::new(place).file_name().unwrap().to_str().unwrap();
        put(&format!("sys/devices/{place}/dev"), &format!("{number}\n"));
        put(&format!("sys/devices/{place}/size"), "2048\n");
        put(&format!("sys/devices/{place}/ro"), "0\n");
        let target = directory.path().join("sys/devices").join(place);
        for link in [format!("sys/dev/block/{number}"), format!("sys/class/block/{name}")] {
            let link = directory.path().join(link);
            fs::create_dir_all(link.parent().unwrap()).unwrap();
            symlink(&target, link).unwrap();
        }
    }
    for part in ["sda1", "sda2"] {
        put(&format!("sys/devices/pci/block/sda/{part}/partition"), "1\n");
    }
    put("sys/devices/pci/block/sda/sda2/holders/dm-0", "");
    put("sys/devices/virtual/block/dm-0/slaves/sda2", "");
    put("sys/devices/virtual/block/dm-0/dm/name", "vg-root\n");
    put("sys/devices/pci/block/sdb/holders/md0", "");
    put("sys/devices/pci/block/nvme0n1/device/model", "Fast SSD 4TB  \n");
    put(
        "proc/self/mountinfo",
        "21 1 0:40 / /proc rw - proc proc rw\n\
         22 1 253:0 / / rw,relatime shared:1 - ext4 /dev/mapper/vg-root rw\n\
         23 22 8:1 / /boot\\040here rw master:3 - ext4 /dev/sda1 rw\n",
    );
    put("proc/swaps", "Filename Type Size Used Priority\n");
    System { sysfs: directory.path().join("sys"), procfs: directory.path().join("proc") }
}

fn users(system: &System, name: &str) -> Vec<Reason> {
    system.users(&system.named(name).unwrap())
}

#[test]
fn everything_under_the_root_file_system_is_known_through_lvm_and_partitions() {
    let directory = temporary("fake-root");
    let system = machine(&directory);
    let held = Reason::HeldBy { what: "sda2".into(), holder: "dm-0 (vg-root)".into() };
    let boot = Reason::Mounted { what: "sda1".into(), at: "/boot here".into() };
    assert_eq!(users(&system, "sda"), [Reason::HoldsRoot, boot.clone(), held.clone()]);
    assert_eq!(users(&system, "sda2"), [Reason::HoldsRoot, held]);
    // The disk it is a partition of counts as a whole, its sisters do not.
    assert_eq!(users(&system, "sda1"), [boot]);
    let root = Reason::Mounted { what: "dm-0".into(), at: "/".into() };
    assert_eq!(users(&system, "dm-0"), [Reason::HoldsRoot, root]);
}

#[test]
fn a_member_of_a_running_raid_is_held_and_a_free_device_is_free() {
    let directory = temporary("fake-raid");
    let system = machine(&directory);
    let held = Reason::HeldBy { what: "sdb".into(), holder: "md0".into() };
    assert!(!held.may_be_overridden());
    assert_eq!(users(&system, "sdb"), [held]);
    assert_eq!(users(&system, "nvme0n1"), []);
    let free = system.named("nvme0n1").unwrap();
    assert_eq!(free.model().as_deref(), Some("Fast SSD 4TB"));
    assert!(free.is_nvme_namespace() && free.number == DeviceNumber { major: 259, minor: 0 });
    assert_eq!(system.named("sda2").unwrap().parent().unwrap().name, "sda");
}

#[test]
fn a_file_system_with_a_number_of_its_own_is_known_by_its_source() {
    // As btrfs does: 0:33 is no block device, and the source names one. The test's own root stands
    // in.
    let Some(device) = Loop::new("btrfs-like", 16 * MIB) else { return };
    let directory = temporary("fake-btrfs");
    let table = format!("22 1 0:33 / /data rw - btrfs {} rw\n", device.node());
    fs::create_dir_all(directory.path().join("proc/self")).unwrap();
    fs::write(directory.path().join("proc/self/mountinfo"), table).unwrap();
    let system = System { sysfs: PathBuf::from("/sys"), procfs: directory.path().join("proc") };
    let name = device.node().trim_start_matches("/dev/").to_owned();
    let at = "/data".to_owned();
    assert_eq!(users(&system, &name), [Reason::Mounted { what: name, at }]);
}
