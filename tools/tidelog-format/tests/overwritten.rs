//! A device that was given to something else after it was a pool's: nothing writes it, though the
//! pool's second superblock stands, until its owner says that the pool is what counts.

mod common;

use std::fs::File;
use std::os::unix::fs::FileExt;

use common::{Loop, pool, program, put, sparse, temporary, tool};
use tidelog_engine::path::DeviceSpec;
use tidelog_engine::pool::{OpenError, OpenOptions, Pool};
use tidelog_tests::machine::Directory;

const MIB: u64 = 1 << 20;
/// The smaller device of each pool here; `mkfs.xfs` takes nothing smaller.
const SMALL: u64 = 320 * MIB;
/// The larger one, which has its second superblock where the smaller one ends, and no file system
/// writes.
const LARGE: u64 = 2 * SMALL;
/// Size of the start, as far as the shares' metadata.
const START: usize = 256 << 10;

/// Program with its arguments that makes something on a device. They keep what they do not need, as
/// on devices that have no discard.
type Maker = (&'static str, &'static [&'static str]);

const EXT4: Maker = ("mkfs.ext4", &["-q", "-F", "-E", "nodiscard"]);
const XFS: Maker = ("mkfs.xfs", &["-q", "-f", "-K"]);
const BTRFS: Maker = ("mkfs.btrfs", &["-q", "-f", "-K"]);
const GPT: Maker = ("sgdisk", &["--clear", "--new=1:0:0"]);

fn make(test: &str, (name, arguments): Maker, device: &str) -> Option<()> {
    program(test, name, &[arguments, &[device]].concat())
}

/// A pool of a small file and this device, with a tensor.
fn pool_with(directory: &Directory, large: &str) -> String {
    let small = sparse(directory, "small", SMALL);
    tool(&["format", "--sparse", &small, large, "--yes"]).expect(0);
    put(&[&small, large], &["precious"]);
    small
}

/// Returns the blocks that anybody who opens the pool would write: the start, and the second
/// superblock.
fn written(device: &str) -> Vec<u8> {
    let mut bytes = vec![0; 2 * MIB as usize + 4096];
    let (start, second) = bytes.split_at_mut(2 * MIB as usize);
    let file = File::open(device).unwrap();
    file.read_exact_at(start, 0).unwrap();
    file.read_exact_at(second, SMALL - 4096).unwrap();
    bytes
}

fn shows_it_is_refused(test: &str, large: &str, maker: Maker) {
    let directory = temporary(&format!("{test}-small"));
    let small = pool_with(&directory, large);
    if make(test, maker, large).is_none() {
        return;
    }
    let before = [&small, large].map(written);
    let unchanged = |what: &str| {
        assert!([&small, large].map(written) == before, "{test}: {what} wrote");
    };
    let specs = [small.as_str(), large].map(DeviceSpec::new);
    match Pool::open(&specs, &OpenOptions { huge_pages: false, ..OpenOptions::default() }) {
        Err(OpenError::OverwrittenStart { device, .. }) => assert_eq!(device, large),
        Err(other) => panic!("{test}: another error: {other}"),
        Ok(_) => panic!("{test}: opened"),
    }
    unchanged("Pool::open");
    let refused = tool(&["repair", &small, large]).expect(4);
    assert!(refused.err.contains("--accept-overwritten-start"), "{refused}");
    unchanged("repair");
    tool(&["calibrate", &small, large, "--yes"]).expect(4);
    unchanged("calibrate");
    let checked = tool(&["check", &small, large]).expect(2);
    assert!(
        checked.out.contains(&format!("OVERWRITTEN: {large}: it was given to something else")),
        "{checked}"
    );
    let inspected = tool(&["inspect", &small, large]).expect(2);
    assert!(inspected.out.contains(&format!("start of {large} is OVERWRITTEN")), "{inspected}");
    unchanged("looking");
}

fn of_a_file(test: &str, maker: Maker) {
    let directory = temporary(test);
    shows_it_is_refused(test, &sparse(&directory, "large", LARGE), maker);
}

fn of_a_block_device(test: &str, maker: Maker) {
    let Some(device) = Loop::new(test, LARGE) else { return };
    shows_it_is_refused(test, device.node(), maker);
}

#[test]
fn a_file_that_was_given_to_a_file_system_or_partitioned_is_not_opened() {
    of_a_file("over-ext4", EXT4);
    of_a_file("over-xfs", XFS);
    of_a_file("over-btrfs", BTRFS);
    of_a_file("over-gpt", GPT);
}

#[test]
fn a_block_device_that_was_given_to_a_file_system_or_partitioned_is_not_opened() {
    of_a_block_device("over-ext4-block", EXT4);
    of_a_block_device("over-xfs-block", XFS);
    of_a_block_device("over-btrfs-block", BTRFS);
    of_a_block_device("over-gpt-block", GPT);
}

#[test]
fn a_block_device_whose_start_was_cleared_is_not_opened() {
    let Some(device) = Loop::new("cleared", 64 * MIB) else { return };
    tool(&["format", device.node(), "--yes"]).expect(0);
    put(&[device.node()], &["precious"]);
    let node = File::options().write(true).open(device.node()).unwrap();
    node.write_all_at(&vec![0; 64 << 10], 0).unwrap();
    drop(node);
    let refused = tool(&["repair", device.node()]).expect(4);
    assert!(refused.err.contains("zeroes in block 0"), "{refused}");
    shows_it_is_taken_back(&[device.node()]);
}

#[test]
fn a_first_superblock_that_has_rotted_on_a_block_device_is_repaired_by_opening() {
    let Some(device) = Loop::new("rotted", 64 * MIB) else { return };
    tool(&["format", device.node(), "--yes"]).expect(0);
    put(&[device.node()], &["precious"]);
    for rotten in [vec![0xA5; 4096], vec![0; 4096], vec![b'X'; 1]] {
        let node = File::options().write(true).open(device.node()).unwrap();
        node.write_all_at(&rotten, 4096).unwrap();
        drop(node);
        assert!(tool(&["check", device.node()]).expect(2).out.contains("superblock copy A"));
        put(&[device.node()], &["another"]);
        tool(&["check", device.node()]).expect(0);
    }
}

/// Checks that with the flag the pool is whole again, and stays so.
fn shows_it_is_taken_back(devices: &[&str]) {
    tool(&[&["repair"], devices].concat()).expect(4);
    let repaired = tool(&[&["repair", "--accept-overwritten-start"], devices].concat()).expect(1);
    assert!(repaired.out.contains("start written again"), "{repaired}");
    assert!(repaired.out.contains("1 durable tensor(s)"), "{repaired}");
    tool(&[&["check"], devices].concat()).expect(0);
    put(devices, &["another"]);
    let view = tool(&[&["inspect"], devices].concat()).expect(0);
    assert!(view.out.contains("precious") && view.out.contains("another"), "{view}");
    tool(&[&["repair", "--accept-overwritten-start"], devices].concat()).expect(0);
}

/// The start of what was made, over that of a pool.
fn taken_back(test: &str, maker: Maker) {
    let directory = temporary(test);
    let image = sparse(&directory, "image", LARGE);
    if make(test, maker, &image).is_none() {
        return;
    }
    let mut start = vec![0; START];
    File::open(&image).unwrap().read_exact_at(&mut start, 0).unwrap();
    let over = |device: &str| {
        let device = File::options().write(true).open(device).unwrap();
        device.write_all_at(&start, 0).unwrap();
    };
    let alone = pool(&directory, "alone", &["precious"]);
    over(&alone);
    shows_it_is_taken_back(&[&alone]);

    let large = sparse(&directory, "large", LARGE);
    let small = pool_with(&directory, &large);
    over(&large);
    shows_it_is_taken_back(&[&small, &large]);

    let Some(device) = Loop::new(&format!("{test}-block"), LARGE) else { return };
    std::fs::remove_file(&small).unwrap();
    let small = pool_with(&directory, device.node());
    over(device.node());
    shows_it_is_taken_back(&[&small, device.node()]);
}

#[test]
fn the_owner_of_an_overwritten_device_gets_all_tensors_back_by_saying_so() {
    taken_back("back-ext4", EXT4);
    taken_back("back-xfs", XFS);
    taken_back("back-btrfs", BTRFS);
    taken_back("back-gpt", GPT);
}

#[test]
fn what_is_left_of_a_pool_under_a_file_system_is_wiped_and_nothing_else() {
    let directory = temporary("wiped-under");
    let device = sparse(&directory, "device", SMALL);
    tool(&["format", "--sparse", &device, "--yes"]).expect(0);
    // A file system of less than the device: the second superblock stands behind it.
    let arguments = [EXT4.1, &[&device, "200M"]].concat();
    if program("wiped-under", EXT4.0, &arguments).is_none() {
        return;
    }
    tool(&["repair", &device]).expect(4);
    let before = written(&device);
    tool(&["wipe", &device, "--yes"]).expect(0);
    let after = written(&device);
    let second = 2 * MIB as usize;
    assert!(after[..second] == before[..second] && after[second..].iter().all(|byte| *byte == 0));
    tool(&["repair", &device, "--accept-overwritten-start"]).expect(3);
}
