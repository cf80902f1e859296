//! A device that was given to something else is not written, though its second superblock stands.

use super::*;
use crate::layout::{
    BLOCK_BYTES, HOLDERS_OFFSET, METADATA_OFFSET, OWNER_OFFSET, SUPERBLOCK_OFFSET,
};
use crate::path::OperationKind;
use crate::path::sim::Fault;
use crate::pool::CalibrateError;
use crate::pool::inspect::{self, Damage};
use crate::schedule::TransferError;

const BLOCK: usize = BLOCK_BYTES as usize;

/// A pool with a durable tensor, closed.
fn closed() -> (Vec<SimDisk>, Vec<u8>) {
    let disks = disks(2, ByteCount::mib(4));
    let (pool, content) = (open(&disks), bytes(1, 300_000));
    commit(&pool, &[(1, &content)], &[]).unwrap();
    pool.close().unwrap();
    (disks, content)
}

fn contents(disks: &[SimDisk]) -> Vec<Vec<u8>> {
    disks.iter().map(|disk| disk.peek(0, disk.size().0 as usize)).collect()
}

/// Opening, calibrating and checking say what was found and write nothing.
fn shows_it_is_refused(disks: &[SimDisk], what: &str) {
    let before = contents(disks);
    match Pool::open(disks, &quick()) {
        Err(OpenError::OverwrittenStart { device, found }) => {
            assert_eq!((device.as_str(), found.contains(what)), ("sim1", true), "{found}: {what}");
        }
        Err(other) => panic!("{what}: another error: {other}"),
        Ok(_) => panic!("{what}: opened"),
    }
    let refused = Pool::calibrate(disks, false, &mut |_| ());
    let Err(CalibrateError::Open(OpenError::OverwrittenStart { .. })) = refused else {
        panic!("{what}: calibrated");
    };
    let report = inspect::check(disks, false, &mut |_| ()).unwrap();
    let [damage @ Damage::OverwrittenStart { found, .. }, others @ ..] = &report.damage[..] else {
        panic!("{what}: {:?}", report.damage);
    };
    // What lies behind the start may have hit the device's copy of the index.
    let is_of_index =
        |it: &Damage| matches!(it, Damage::IndexCopy { device, .. } if device == "sim1");
    assert!(others.iter().all(is_of_index), "{what}: {:?}", report.damage);
    assert!(found.contains(what) && !damage.is_repairable(), "{damage}");
    assert!(inspect::repair(disks, &[], false, &mut |_| ()).is_err(), "{what}: repaired");
    assert!(contents(disks) == before, "{what}: something was written");
}

fn shows_it_is_repaired(disks: &[SimDisk], content: &[u8]) {
    let pool = open(disks);
    assert_eq!(get(&pool, 1).unwrap(), content);
    assert_eq!(pool.stats().unwrap().repaired_superblocks, ["sim1 copy A"]);
    pool.close().unwrap();
    assert_eq!(inspect::check(disks, false, &mut |_| ()).unwrap().damage, []);
}

#[test]
fn a_first_superblock_that_has_rotted_is_repaired_where_the_rest_of_the_start_is_the_pools() {
    let (disks, content) = closed();
    for byte in (0..BLOCK_BYTES).step_by(7).take(20) {
        disks[1].rot(SUPERBLOCK_OFFSET + byte, 0x55);
        shows_it_is_repaired(&disks, &content);
    }
    for block in [bytes(9, BLOCK), vec![0; BLOCK], vec![0xFF; BLOCK]] {
        disks[1].overwrite(SUPERBLOCK_OFFSET, &block);
        shows_it_is_repaired(&disks, &content);
    }
    // An image of a block device, whatever that one's size was.
    disks[1].overwrite(0, &crate::layout::protective_mbr(1 << 40));
    disks[1].overwrite(SUPERBLOCK_OFFSET, &bytes(10, BLOCK));
    shows_it_is_repaired(&disks, &content);
    // Rot elsewhere does not matter as long as the first superblock stands.
    for place in [700, HOLDERS_OFFSET + 3, OWNER_OFFSET + 9, METADATA_OFFSET - 1] {
        disks[1].rot(place, 0xFF);
        assert_eq!(get(&open(&disks), 1).unwrap(), content);
    }
}

#[test]
fn anything_around_a_superblock_that_is_gone_is_a_reason_to_refuse() {
    let places = [0, HOLDERS_OFFSET, HOLDERS_OFFSET + 9 * BLOCK_BYTES, OWNER_OFFSET]
        .into_iter()
        .chain([65_536, OWNER_OFFSET + BLOCK_BYTES, METADATA_OFFSET - BLOCK_BYTES]);
    for (place, gone) in places.flat_map(|place| [(place, 0), (place, 0xA5)]) {
        let (disks, _) = closed();
        disks[1].overwrite(SUPERBLOCK_OFFSET, &vec![gone; BLOCK]);
        let mut other = vec![0; BLOCK];
        other[40..].fill(1);
        disks[1].overwrite(place, &other);
        shows_it_is_refused(&disks, &format!("byte {}", place + 40));
    }
}

#[test]
fn what_leaves_all_blocks_but_one_is_told_by_its_name() {
    let at = |place: usize, bytes: &[u8]| {
        let mut block = vec![0; BLOCK];
        block[place..][..bytes.len()].copy_from_slice(bytes);
        block
    };
    let partition = at(446, &[0, 1, 1, 0, 0x83, 9, 9, 9, 0, 8, 0, 0, 0, 9, 0, 0]);
    let mut table = partition.clone();
    table[510..512].copy_from_slice(&[0x55, 0xAA]);
    let cases = [
        (SUPERBLOCK_OFFSET, at(0, &[0xFC, 0x4E, 0x2B, 0xA9, 1]), "(md) at byte 4096"),
        (SUPERBLOCK_OFFSET, at(0, b"EFI PART"), "(GPT) at byte 4096"),
        (SUPERBLOCK_OFFSET, at(24, &[0xC6, 0x85, 0x73, 0xF6, 0x4E]), "bcachefs at byte 4120"),
        // These leave even the superblock.
        (0, table, "(MBR) in block 0"),
        (0, at(4086, b"SWAPSPACE2"), "swap space at byte 4086"),
    ];
    for (place, block, name) in cases {
        let (disks, _) = closed();
        disks[1].overwrite(place, &block);
        shows_it_is_refused(&disks, name);
    }
    let (disks, content) = closed();
    disks[1].overwrite(0, &partition);
    assert_eq!(get(&open(&disks), 1).unwrap(), content, "without its signature that is no table");
}

#[test]
fn a_write_that_goes_astray_to_the_start_costs_its_own_tensor_alone() {
    // Stripe units of four blocks, which go to another place on the same disk.
    for place in (0..METADATA_OFFSET).step_by(8 * BLOCK).chain([BLOCK_BYTES, 3 * BLOCK_BYTES]) {
        let (disks, content) = closed();
        let pool = open(&disks);
        disks[1].plan_fault(OperationKind::Write, 0, Fault::Misdirected(place));
        commit(&pool, &[(2, &bytes(2, 300_000))], &[]).unwrap();
        pool.close().unwrap();
        let hits_superblock = (place..place + 4 * BLOCK_BYTES).contains(&SUPERBLOCK_OFFSET);
        if hits_superblock {
            let refused = Pool::open(&disks, &quick()).map(drop);
            assert!(matches!(refused, Err(OpenError::OverwrittenStart { .. })), "{refused:?}");
            let taken = inspect::accept_overwritten_start(&disks, false).unwrap();
            assert_eq!(taken.iter().map(|it| &*it.device).collect::<Vec<_>>(), ["sim1"]);
        }
        let pool = open(&disks);
        assert_eq!(get(&pool, 1).unwrap(), content);
        let error = start_get(&pool, 2, 0..300_000).wait().unwrap_err();
        assert!(matches!(error, TransferError::Checksum { .. }), "{place}: {error}");
        pool.close().unwrap();
        let report = inspect::check(&disks, false, &mut |_| ()).unwrap();
        let [Damage::Tensor(lost)] = &report.damage[..] else { panic!("{:?}", report.damage) };
        assert_eq!(lost.id, TensorId(2));
    }
}

const KIB: u64 = 1 << 10;

/// Writes a label as `zpool create` does: what the pool is made of, and its ring of uberblocks. The
/// first 16 KiB stay as they are.
fn write_zfs_label(disk: &SimDisk, label: u64) {
    let mut config = vec![0; 112 << 10];
    config[..4].copy_from_slice(&[1, 1, 0, 0]);
    config[20..31].copy_from_slice(b"\0\0\0\x07version");
    disk.overwrite(label + 16 * KIB, &config);
    let mut ring = vec![0; 128 << 10];
    for slot in ring.chunks_mut(1 << 10).take(4) {
        slot[..8].copy_from_slice(&0x00BA_B10C_u64.to_le_bytes());
    }
    disk.overwrite(label + 128 * KIB, &ring);
}

/// Changes bytes within a block.
fn mark(disk: &SimDisk, at: u64, bytes: &[u8]) {
    let start = at / BLOCK_BYTES * BLOCK_BYTES;
    let mut block = disk.peek(start, BLOCK);
    block[(at - start) as usize..][..bytes.len()].copy_from_slice(bytes);
    disk.overwrite(start, &block);
}

/// Returns the offsets of the four labels.
fn zfs_labels(disk: &SimDisk) -> [u64; 4] {
    let end = disk.size().0 / (256 * KIB) * 256 * KIB;
    [0, 256 * KIB, end - 512 * KIB, end - 256 * KIB]
}

#[test]
fn a_device_that_was_given_to_zfs_is_refused_though_its_first_superblock_stands() {
    let (disks, content) = closed();
    for label in zfs_labels(&disks[1]) {
        write_zfs_label(&disks[1], label);
    }
    shows_it_is_refused(&disks, "a label of ZFS");
    let taken = inspect::accept_overwritten_start(&disks, false).unwrap();
    assert_eq!(taken.len(), 1);
    let pool = open(&disks);
    assert_eq!(get(&pool, 1).unwrap(), content, "the other device has the index");
    pool.close().unwrap();
    assert_eq!(inspect::check(&disks, false, &mut |_| ()).unwrap().damage, []);
    // Each label alone, and of the first each of its halves.
    for (label, halves) in [(0, 0..2), (1, 0..1), (3, 0..1)] {
        for half in halves {
            let (disks, _) = closed();
            let at = zfs_labels(&disks[1])[label];
            let blank = disks[1].peek(at + 16 * KIB, 240 << 10);
            write_zfs_label(&disks[1], at);
            if label == 0 {
                let keep = if half == 0 { (0, 112 << 10) } else { (112 << 10, 240 << 10) };
                disks[1].overwrite(at + 16 * KIB + keep.0 as u64, &blank[keep.0..keep.1]);
            }
            shows_it_is_refused(&disks, "a label of ZFS");
        }
    }
}

#[test]
fn a_tensor_that_looks_like_a_label_is_none_while_the_second_superblock_stands() {
    let (disks, _) = closed();
    let label = zfs_labels(&disks[1])[2];
    let mut config = vec![0; BLOCK];
    config[0] = 1;
    config[20..31].copy_from_slice(b"\0\0\0\x07version");
    disks[1].overwrite(label + 16 * KIB, &config);
    assert_eq!(inspect::check(&disks, false, &mut |_| ()).unwrap().damage, []);
    open(&disks).close().unwrap();
    let end = disks[1].size().0;
    disks[1].overwrite(end - BLOCK_BYTES, &[0; BLOCK]);
    shows_it_is_refused(&disks, "a label of ZFS");
}

#[test]
fn whatever_has_a_name_at_either_end_is_refused_as_by_format() {
    let at_start: [(u64, &[u8], &str); 11] = [
        (0, b"LUKS\xBA\xBE\0\x02", "LUKS"),
        (16 * KIB, b"SKUL\xBA\xBE", "LUKS"),
        (512, b"LABELONE", "LVM"),
        (1536, b"LABELONE", "LVM"),
        (3, b"NTFS    ", "NTFS"),
        (3, b"EXFAT   ", "exFAT"),
        (1024, &[0x10, 0x20, 0xF5, 0xF2], "f2fs"),
        (1080, &[0x53, 0xEF], "ext4"),
        (65_526, b"SWAPSPACE2", "swap"),
        (65_600, b"_BHRfS_M", "btrfs"),
        (64 * KIB, &[0x01, 0x16, 0x19, 0x70], "gfs2"),
    ];
    for (at, bytes, name) in at_start {
        let (disks, _) = closed();
        mark(&disks[1], at, bytes);
        shows_it_is_refused(&disks, name);
    }
    let size = ByteCount::mib(4).0;
    let at_end: [(u64, &[u8], &str); 5] = [
        (size - 512, b"EFI PART", "GPT"),
        (size - 8192, &[0xFC, 0x4E, 0x2B, 0xA9, 1, 0, 0, 0], "md"),
        (size - 65_536, &[0xFC, 0x4E, 0x2B, 0xA9, 0, 0, 0, 0, 90, 0, 0, 0], "md"),
        (size - 1024, b"Intel Raid ISM Cfg Sig. ", "Intel"),
        (size - 4096 + 60, &[0x83, 0x74, 0x02, 0x6D], "DRBD"),
    ];
    for (at, bytes, name) in at_end {
        let (disks, content) = closed();
        disks[1].overwrite(size - BLOCK_BYTES, &[0; BLOCK]);
        mark(&disks[1], at, bytes);
        shows_it_is_refused(&disks, name);
        inspect::accept_overwritten_start(&disks, false).unwrap();
        let pool = open(&disks);
        assert_eq!(get(&pool, 1).unwrap(), content, "{name}");
    }
}
