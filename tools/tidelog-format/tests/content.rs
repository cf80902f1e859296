//! Every kind of content that is refused, made by the real tool, and what naming it twice then
//! does.

mod common;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use common::{Loop, format_of, overwrite_of, pool, program, put, sparse, temporary, tool};
use tidelog_device_safety::{program_directories, signatures};
use tidelog_engine::path::DeviceSpec;
use tidelog_engine::path::device::blank::first_byte_set;
use tidelog_engine::pool::{FormatError, FormatOptions, Pool};
use tidelog_tests::machine::{LoopDevice, LoopOptions, skip};

const MIB: u64 = 1 << 20;

/// The device is refused by the name of what it holds, is left as it is, and is written only when
/// named twice.
fn shows_its_content_is_refused(device: &str, name: &str) {
    let before = ends(device);
    let refused = format_of(device);
    assert_eq!(refused.refusals(), ["content"], "{refused}");
    let reason = refused.json()["refusals"][0]["reason"].as_str().unwrap().to_owned();
    assert!(reason.contains(name), "{name} is not in: {reason}");
    tool(&["format", device, "--yes"]).expect(4);
    assert_eq!(overwrite_of(device).code, 0);
    assert!(ends(device) == before, "a refused or dry run wrote");

    tool(&["format", device, "--overwrite", device, "--yes"]).expect(0);
    tool(&["check", device]).expect(0);
    let left = signatures(Path::new(device), &program_directories());
    let foreign: Vec<_> = left.iter().filter(|it| it.name != "PMBR").collect();
    assert!(foreign.is_empty(), "{foreign:?} was left behind");
}

fn size(device: &str) -> u64 {
    use std::io::Seek;
    File::open(device).unwrap().seek(std::io::SeekFrom::End(0)).unwrap()
}

/// The first and last four MiB: all that any signature here touches.
fn ends(device: &str) -> Vec<u8> {
    let (file, size) = (File::open(device).unwrap(), size(device));
    let mut bytes = vec![0; 8 << 20];
    let (head, tail) = bytes.split_at_mut(4 << 20);
    file.read_exact_at(head, 0).unwrap();
    file.read_exact_at(tail, size - 4 * MIB).unwrap();
    bytes
}

/// A file system and the like, by the arguments of the program that makes it.
fn made_by(test: &str, bytes: u64, program_name: &str, arguments: &[&str], name: &str) {
    let directory = temporary(test);
    let file = sparse(&directory, "device", bytes);
    let mut arguments = arguments.to_vec();
    arguments.push(&file);
    if program(test, program_name, &arguments).is_some() {
        shows_its_content_is_refused(&file, name);
    }
}

#[test]
fn ext4_is_refused() {
    made_by("ext4", 64 * MIB, "mkfs.ext4", &["-q"], "ext4");
}

#[test]
fn xfs_is_refused() {
    made_by("xfs", 320 * MIB, "mkfs.xfs", &["-q"], "xfs");
}

#[test]
fn swap_space_is_refused() {
    made_by("swap", 64 * MIB, "mkswap", &[], "swap");
}

#[test]
fn a_gpt_is_refused_and_goes_at_both_ends() {
    made_by("gpt", 64 * MIB, "sgdisk", &["--clear", "--new=1:0:0"], "gpt");
}

#[test]
fn a_gpt_that_lost_its_front_is_refused_by_its_back() {
    let directory = temporary("gpt-back");
    let file = sparse(&directory, "device", 64 * MIB);
    let made = program("gpt-back", "sgdisk", &["--clear", "--new=1:0:0", &file]);
    if made.is_some() {
        let device = File::options().write(true).open(&file).unwrap();
        device.write_all_at(&vec![0; 64 << 10], 0).unwrap();
        drop(device);
        shows_its_content_is_refused(&file, "gpt");
    }
}

#[test]
fn an_mbr_is_refused() {
    let directory = temporary("mbr");
    let file = sparse(&directory, "device", 64 * MIB);
    let script = format!("echo 'label: dos\n,16M' | sfdisk --quiet {file}");
    if program("mbr", "sfdisk", &["--version"]).is_some() {
        assert!(Command::new("sh").args(["-c", &script]).status().unwrap().success());
        shows_its_content_is_refused(&file, "dos");
    }
}

/// A file system that begins at a byte of a large device whose partition table is lost is refused
/// by its name.
fn lost_partition(
    test: &str,
    size: u64,
    start: u64,
    program_name: &str,
    arguments: &[&str],
    name: &str,
) {
    let Some(device) = Loop::new(test, size) else { return };
    // As a partition: where another loop device begins.
    let options = LoopOptions { offset: start, ..LoopOptions::default() };
    let Ok(part) = LoopDevice::attach(device.backing(), options) else {
        return skip(test, "there is no second loop device");
    };
    let made = program(test, program_name, &[arguments, &[part.node()]].concat());
    drop(part);
    if made.is_none() {
        return;
    }
    let refused = format_of(device.node());
    assert_eq!(refused.refusals(), ["content"], "{refused}");
    let reason = refused.json()["refusals"][0]["reason"].as_str().unwrap().to_owned();
    assert!(reason.contains(&format!("{name} at {start:#x}")), "{reason}");
    tool(&["format", device.node(), "--yes"]).expect(4);
    // The engine, which looks again, finds it by itself.
    let found = first_byte_set(&File::open(device.node()).unwrap(), size, &|_| false).unwrap();
    assert!(found.is_some_and(|at| at >= start), "{found:?}");
    let spec = DeviceSpec::new(device.node());
    let refused = Pool::format(&[spec], &FormatOptions::default());
    assert!(matches!(refused, Err(FormatError::HoldsData { .. })), "{refused:?}");
    assert_eq!(overwrite_of(device.node()).code, 0);
}

#[test]
fn a_file_system_behind_a_lost_partition_table_is_refused_by_its_name() {
    let ext4 = ["-q", "-E", "lazy_itable_init=1,lazy_journal_init=1"];
    lost_partition("lost-ext4", 4 << 30, MIB, "mkfs.ext4", &ext4, "ext4");
    lost_partition("lost-ext4-later", 4 << 30, 513 * MIB, "mkfs.ext4", &ext4, "ext4");
    lost_partition("lost-ext4-dos", 4 << 30, 63 * 512, "mkfs.ext4", &ext4, "ext4");
    lost_partition("lost-btrfs", 1 << 40, MIB, "mkfs.btrfs", &["-q"], "btrfs");
    lost_partition("lost-xfs", 4 << 30, 1025 * MIB, "mkfs.xfs", &["-q"], "xfs");
    lost_partition("lost-swap", 4 << 30, 101 * MIB, "mkswap", &[], "swap");
}

/// Checks a file system whose front was cleared: what is left lies at equal distances, and so did
/// the samples.
#[test]
fn what_lies_at_equal_distances_is_refused_as_not_blank() {
    let size = 4 << 30;
    let Some(device) = Loop::new("periodic", size) else { return };
    let file = File::options().write(true).open(device.node()).unwrap();
    for start in (17 * MIB..size - 2 * MIB).step_by(4 << 20) {
        file.write_all_at(&vec![1; 256 << 10], start).unwrap();
    }
    file.sync_all().unwrap();
    drop(file);
    assert_eq!(format_of(device.node()).refusals(), ["not-blank"]);
}

/// mdadm makes superblocks only through the kernel's RAID driver, which machines that test lack:
/// these are the bytes of one, of metadata version 1, as the kernel's `md_p.h` has them.
fn raid_superblock(sector: u64) -> Vec<u8> {
    let mut bytes = vec![0; 256];
    let put_at = |bytes: &mut [u8], at: usize, value: &[u8]| {
        bytes[at..at + value.len()].copy_from_slice(value);
    };
    let mut put = |at, value: &[u8]| put_at(&mut bytes, at, value);
    put(0, &0xa92b_4efc_u32.to_le_bytes());
    put(4, &1_u32.to_le_bytes());
    put(16, &[0x5A; 16]); // set_uuid
    put(32, b"host:tide");
    put(72, &1_u32.to_le_bytes()); // level
    put(80, &100_000_u64.to_le_bytes()); // size
    put(92, &2_u32.to_le_bytes()); // raid_disks
    put(128, &2048_u64.to_le_bytes()); // data_offset
    put(136, &100_000_u64.to_le_bytes()); // data_size
    put(144, &sector.to_le_bytes()); // super_offset
    let words = bytes.chunks_exact(4).map(|it| u32::from_le_bytes(it.try_into().unwrap()));
    let sum: u64 = words.map(u64::from).sum();
    let checksum = (sum & 0xFFFF_FFFF) as u32;
    put_at(&mut bytes, 216, &checksum.wrapping_add((sum >> 32) as u32).to_le_bytes());
    bytes
}

#[test]
fn a_raid_member_is_refused_wherever_its_superblock_stands() {
    // Version 1.1 at the start, 1.2 at 4 KiB, 1.0 near the end.
    let size = 64 * MIB;
    for (name, sector) in [("raid-1.1", 0), ("raid-1.2", 8), ("raid-1.0", size / 512 - 16)] {
        let directory = temporary(name);
        let file = sparse(&directory, "device", size);
        let device = File::options().write(true).open(&file).unwrap();
        device.write_all_at(&raid_superblock(sector), sector * 512).unwrap();
        drop(device);
        if program(name, "wipefs", &["--version"]).is_some() {
            shows_its_content_is_refused(&file, "linux_raid_member");
        }
    }
}

#[test]
fn an_lvm_volume_is_refused() {
    // pvcreate takes block devices only.
    let Some(device) = Loop::new("lvm", 64 * MIB) else { return };
    let made = program("lvm", "pvcreate", &["--yes", "--devices", device.node(), device.node()]);
    if made.is_some() {
        shows_its_content_is_refused(device.node(), "LVM2_member");
    }
}

#[test]
fn a_file_system_on_a_block_device_is_refused_and_its_blocks_are_given_back_by_discard() {
    use std::os::unix::fs::MetadataExt;
    let Some(device) = Loop::new("discard", 64 * MIB) else { return };
    if program("discard", "mkfs.ext4", &["-q", device.node()]).is_none() {
        return;
    }
    let file = File::options().write(true).open(device.backing()).unwrap();
    file.write_all_at(&vec![1; 16 << 20], 20 * MIB).unwrap();
    file.sync_all().unwrap();
    let blocks = || device.backing().metadata().unwrap().blocks() * 512;
    assert!(blocks() > 16 * MIB);
    tool(&["format", device.node(), "--discard", "--overwrite", device.node(), "--yes"]).expect(0);
    assert!(blocks() < 8 * MIB, "{} bytes are still there", blocks());
    tool(&["check", device.node()]).expect(0);
    // A block device of a pool carries our own protective MBR, and wiping takes it away again.
    let view = tool(&["inspect", device.node(), "--output", "json"]).expect(0).json();
    assert_eq!(view["devices"][0]["protective_mbr"], true);
    tool(&["wipe", device.node(), "--yes"]).expect(0);
    assert_eq!(signatures(Path::new(device.node()), &program_directories()), []);
    // Only the signatures are gone: what the pool was is not blank.
    assert_eq!(format_of(device.node()).refusals(), ["not-blank"]);
}

#[test]
fn a_lost_protective_mbr_is_damage_and_is_written_again() {
    let Some(device) = Loop::new("mbr-lost", 64 * MIB) else { return };
    tool(&["format", device.node(), "--yes"]).expect(0);
    let node = File::options().write(true).open(device.node()).unwrap();
    node.write_all_at(&[0; 512], 0).unwrap();
    drop(node);
    assert!(tool(&["check", device.node()]).expect(2).out.contains("protective MBR"));
    tool(&["repair", device.node()]).expect(1);
    tool(&["check", device.node()]).expect(0);
}

#[test]
fn labels_on_the_media_cannot_write_to_the_terminal() {
    let directory = temporary("label");
    let file = sparse(&directory, "device", 64 * MIB);
    let label = "\u{1b}[2Jevil";
    if program("label", "mkfs.ext4", &["-q", "-L", label, &file]).is_some() {
        let refused = tool(&["format", &file, "--dry-run"]).expect(4);
        assert!(refused.err.contains("evil") && !refused.err.contains('\u{1b}'), "{refused}");
    }
}

#[test]
fn another_pool_is_refused_by_its_name_and_tensors() {
    let directory = temporary("other-pool");
    let file = pool(&directory, "device", &["precious"]);
    let refused = format_of(&file);
    assert_eq!(refused.refusals(), ["tidelog-pool"], "{refused}");
    let reason = refused.json()["refusals"][0]["reason"].as_str().unwrap().to_owned();
    assert!(reason.contains("1 durable tensor(s)"), "{reason}");
    tool(&["format", &file, "--yes"]).expect(4);
    put(&[&file], &["another"]);
    tool(&["format", &file, "--overwrite", &file, "--yes"]).expect(0);
    let view = tool(&["inspect", &file, "--output", "json"]).expect(0).json();
    assert_eq!(view["shares"][0]["index"]["tensors"].as_array().unwrap().len(), 0);
}

#[test]
fn what_nobody_knows_is_refused_as_not_blank_at_either_end() {
    let size = 16 * MIB;
    for (name, at) in [("front", 700_000), ("back", size - 700_000), ("last", size - 1)] {
        let directory = temporary(name);
        let file = sparse(&directory, "device", size);
        File::options().write(true).open(&file).unwrap().write_all_at(&[1], at).unwrap();
        let refused = format_of(&file);
        assert_eq!(refused.refusals(), ["not-blank"]);
        assert!(refused.out.contains(&format!("data at byte {at}")), "{refused}");
        assert_eq!(overwrite_of(&file).code, 0);
    }
}

#[test]
fn without_any_program_what_has_a_name_is_still_not_blank() {
    let directory = temporary("no-programs");
    let file = sparse(&directory, "device", 64 * MIB);
    if program("no-programs", "mkfs.ext4", &["-q", &file]).is_none() {
        return;
    }
    assert_eq!(signatures(Path::new(&file), &[]), []);
    assert!(first_byte_set(&File::open(&file).unwrap(), 64 * MIB, &|_| false).unwrap().is_some());
    // With blkid alone, as on a machine that has no wipefs.
    let blkid = Path::new("/usr/sbin/blkid");
    if blkid.exists() {
        let programs = temporary("blkid-only");
        std::os::unix::fs::symlink(blkid, programs.path().join("blkid")).unwrap();
        let found = signatures(Path::new(&file), &[programs.path().into()]);
        assert_eq!(found[0].name, "ext4");
    }
    // And a program that fails or talks nonsense is not believed.
    let programs = temporary("liars");
    for name in ["wipefs", "blkid"] {
        std::os::unix::fs::symlink("/bin/true", programs.path().join(name)).unwrap();
    }
    assert_eq!(signatures(Path::new(&file), &[programs.path().into()]), []);
}

#[test]
fn naming_one_device_twice_covers_no_other() {
    let directory = temporary("one-of-two");
    let devices = ["a", "b"].map(|name| sparse(&directory, name, 16 * MIB));
    for device in &devices {
        File::options().write(true).open(device).unwrap().write_all_at(&[1], 5000).unwrap();
    }
    let [a, b] = &devices;
    let refused =
        tool(&["format", a, b, "--overwrite", a, "--dry-run", "--output", "json"]).expect(4);
    let refusals = refused.json()["refusals"].clone();
    assert_eq!(
        (refusals.as_array().unwrap().len(), refusals[0]["device"].as_str()),
        (1, Some(b.as_str()))
    );
    tool(&["format", a, b, "--overwrite", a, "--overwrite", b, "--yes"]).expect(0);
}

#[test]
fn overwriting_must_repeat_the_very_name() {
    let directory = temporary("very-name");
    let file = sparse(&directory, "device", 16 * MIB);
    File::options().write(true).open(&file).unwrap().write_all_at(&[1], 5000).unwrap();
    let link = directory.at("link");
    std::os::unix::fs::symlink(&file, &link).unwrap();
    // The same device by another name, the directory, a pattern: all are slips.
    for other in [link.as_str(), "device", "*", "all", ""] {
        let ran = tool(&["format", &file, "--overwrite", other, "--yes"]).expect(64);
        assert!(ran.err.contains("letter for letter"), "{ran}");
    }
    assert_eq!(overwrite_of(&link).code, 0, "the name may be any, if it is the same one");
}
