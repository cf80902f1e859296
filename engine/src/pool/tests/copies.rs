//! Tensors with two copies: whatever one device has lost costs nothing, and is written again.

use super::*;
use crate::layout::{GeometryError, SUPERBLOCK_OFFSET, Superblock};
use crate::log::Placement;
use crate::path::OperationKind;
use crate::path::sim::Fault;
use crate::pool::inspect::{Damage, check, repair};
use crate::schedule::{DeviceStats, TransferError};

fn mirrored(count: usize) -> Vec<SimDisk> {
    let disks: Vec<SimDisk> = (0..count).map(|_| SimDisk::new(ByteCount::mib(6))).collect();
    Pool::format(&disks, &FormatOptions { copies: Copies::Two, ..small() }).unwrap();
    disks
}

fn pieces(pool: &Pool, id: u128) -> Vec<Placement> {
    let version = pool.current(TensorId(id)).unwrap();
    pool.0.stripes.placements(&version.entry.runs, version.entry.length).collect()
}

/// The place of one of a piece's copies.
fn place(piece: Placement, copy: usize) -> (usize, u64) {
    let (device, offset) = match (copy, piece.mirror) {
        (1, mirror) => mirror.expect("a piece has two copies"),
        _ => (piece.device, piece.device_offset),
    };
    (device.into(), offset)
}

/// Hurts a copy of every piece; whether it can be read at all alternates.
fn hurt(disks: &[SimDisk], pieces: &[Placement], copy: usize) {
    for (nth, piece) in pieces.iter().enumerate() {
        let (device, offset) = place(*piece, copy);
        if nth % 2 == 0 {
            disks[device].rot(offset + u64::from(piece.length) / 2, 1);
        } else {
            disks[device].make_unreadable(offset);
        }
    }
}

fn sum(pool: &Pool, of: fn(&DeviceStats) -> u64) -> u64 {
    pool.device_stats().unwrap().iter().map(of).sum()
}

fn features(disk: &SimDisk) -> Superblock {
    Superblock::decode(&disk.peek(SUPERBLOCK_OFFSET, 4096)).unwrap()
}

#[test]
fn both_copies_are_the_tensor_and_lie_on_two_devices() {
    for count in [2, 3, 5] {
        let disks = mirrored(count);
        let pool = open(&disks);
        let content = bytes(1, 200_001);
        commit(&pool, &[(1, &content)], &[]).unwrap();
        assert_eq!(space(&pool).live.0, 2 * 200_001_u64.next_multiple_of(4096));
        for piece in pieces(&pool, 1) {
            let places = [place(piece, 0), place(piece, 1)];
            assert_ne!(places[0].0, places[1].0);
            for (device, offset) in places {
                let found = disks[device].peek(offset, piece.length as usize);
                let start = piece.tensor_offset as usize;
                assert!(found == content[start..start + piece.length as usize]);
            }
        }
        // Scratch has one copy unless it is to have two.
        put(&pool, 2, &content);
        assert!(pieces(&pool, 2).iter().all(|piece| piece.mirror.is_none()));
    }
}

#[test]
fn what_one_copy_has_lost_is_read_from_the_other_and_written_again() {
    for count in [2, 3] {
        let disks = mirrored(count);
        let pool = open(&disks);
        let content = bytes(1, 300_000);
        commit(&pool, &[(1, &content)], &[]).unwrap();
        let all = pieces(&pool, 1);
        for copy in [0, 1] {
            hurt(&disks, &all, copy);
            assert!(get(&pool, 1).unwrap() == content);
            assert!(get_range(&pool, 1, 1000..290_000) == content[1000..290_000]);
            // Where the first copies were hurt, and once.
            let expected = all.len() as u64;
            assert_eq!(sum(&pool, |device| device.read_elsewhere), expected);
            assert_eq!(sum(&pool, |device| device.healed), expected);
            let bad_seconds = if copy == 1 { expected } else { 0 };
            let report = pool.scrub().unwrap();
            assert_eq!((report.damaged.len(), report.healed), (0, bad_seconds));
            assert_eq!(pool.scrub().unwrap().healed, 0);
        }
        let by_device = pool.device_stats().unwrap();
        assert!(by_device.iter().all(|device| device.healed > 0), "{by_device:?}");
        pool.close().unwrap();
        assert!(check(&disks, true, &mut |_| ()).unwrap().damage.is_empty());
    }
}

#[test]
fn what_both_copies_have_lost_is_lost_and_both_places_are_told() {
    let disks = mirrored(3);
    let pool = open(&disks);
    let content = bytes(1, 100_000);
    commit(&pool, &[(1, &content), (2, &content)], &[]).unwrap();
    let lost = pieces(&pool, 1)[2];
    for copy in [0, 1] {
        let (device, offset) = place(lost, copy);
        disks[device].rot(offset + 5, 1);
    }
    let all = start_get(&pool, 1, 0..100_000);
    assert!(matches!(all.wait(), Err(TransferError::Checksum { .. })));
    let report = pool.scrub().unwrap();
    let [damaged] = &report.damaged[..] else { panic!("{report:?}") };
    let found = damaged.bad.iter().map(|bad| (usize::from(bad.device.0), bad.offset.0));
    let mut found: Vec<_> = found.collect();
    let mut expected = [place(lost, 0), place(lost, 1)];
    found.sort_unstable();
    expected.sort_unstable();
    assert_eq!(found, expected);
    assert!(get_range(&pool, 1, 0..u64::from(lost.length)) == content[..lost.length as usize]);
    assert!(get(&pool, 2).unwrap() == content);
    pool.close().unwrap();
    let report = check(&disks, true, &mut |_| ()).unwrap();
    let [Damage::Tensor(tensor)] = &report.damage[..] else { panic!("{report:?}") };
    assert_eq!(tensor.lost.0, u64::from(lost.length));
}

#[test]
fn check_names_the_device_of_a_bad_copy_and_repair_writes_it_again() {
    let disks = mirrored(3);
    let pool = open(&disks);
    let content = bytes(1, 100_000);
    commit(&pool, &[(1, &content), (2, &content)], &[]).unwrap();
    let mut batch = pool.batch();
    batch.seal("kept", [TensorId(2)]).unwrap();
    batch.commit().unwrap();
    let hurt = [pieces(&pool, 1)[1], pieces(&pool, 2)[0]];
    // What only a seal holds is healed as well.
    commit(&pool, &[(2, &[1])], &[]).unwrap();
    pool.close().unwrap();
    let mut expected = Vec::new();
    for (copy, piece) in hurt.into_iter().enumerate() {
        let (device, offset) = place(piece, copy);
        disks[device].rot(offset, 0x80);
        expected.push((format!("sim{device}"), u128::from(copy as u8) + 1, piece.length.into()));
    }
    let report = check(&disks, true, &mut |_| ()).unwrap();
    let found = report.damaged_copies();
    let found: Vec<_> =
        found.map(|it| (it.device.clone(), it.tensor.id.0, it.tensor.lost.0)).collect();
    assert_eq!(found, expected, "{report:?}");
    assert!(report.damaged_tensors().next().is_none());
    let repaired = repair(&disks, &[], true, &mut |_| ()).unwrap();
    assert!(repaired.after.damage.is_empty(), "{:?}", repaired.after);
    let pool = open(&disks);
    assert!(get(&pool, 1).unwrap() == content);
}

#[test]
fn the_feature_is_announced_before_the_first_tensor_with_two_copies() {
    let disks = disks(2, ByteCount::mib(6));
    let pool = open(&disks);
    commit(&pool, &[(1, &[1; 9000])], &[]).unwrap();
    assert!(disks.iter().all(|disk| features(disk).copies.is_none()));
    let two = PutOptions { copies: Some(Copies::Two), ..PutOptions::default() };
    let mut batch = pool.batch();
    batch.put(TensorId(2), Source::from(vec![2; 9000]), two).unwrap();
    assert!(disks.iter().all(|disk| features(disk).copies.is_some()), "before the commit");
    batch.commit().unwrap();
    let mut batch = pool.batch().with_copies(Copies::Two);
    batch.put(TensorId(3), Source::from(vec![3; 9000]), PutOptions::default()).unwrap();
    batch.commit().unwrap();
    pool.close().unwrap();
    let pool = open(&disks);
    assert_eq!(pool.description().copies, Copies::One);
    for (id, copies) in [(1, 1), (2, 2), (3, 2)] {
        let found = pieces(&pool, id)[0];
        assert_eq!(1 + u8::from(found.mirror.is_some()), copies);
        assert!(get(&pool, id).unwrap() == [id as u8; 9000]);
    }
    pool.close().unwrap();
    let options = OpenOptions { copies: Some(Copies::Two), ..quick() };
    let pool = Pool::open(&disks, &options).unwrap();
    commit(&pool, &[(4, &[4; 9000])], &[]).unwrap();
    assert!(pieces(&pool, 4)[0].mirror.is_some());
}

#[test]
fn a_pool_without_place_for_two_copies_refuses_them() {
    for (count, segment) in [(1, 4), (2, 3)] {
        let disks: Vec<SimDisk> = (0..count).map(|_| SimDisk::new(ByteCount::mib(4))).collect();
        let segment_size = Some(ByteCount::kib(16 * segment));
        let options = FormatOptions { segment_size, ..small() };
        let two = FormatOptions { copies: Copies::Two, ..options.clone() };
        let refused = Pool::format(&disks, &two);
        let is_of_copies = |error: &GeometryError| matches!(error, GeometryError::Copies { .. });
        assert!(
            matches!(&refused, Err(FormatError::Geometry(error)) if is_of_copies(error)),
            "{refused:?}"
        );
        Pool::format(&disks, &options).unwrap();
        let pool = open(&disks);
        let two = PutOptions { copies: Some(Copies::Two), ..PutOptions::default() };
        let refused = pool.batch().put(TensorId(1), Source::from(vec![1]), two.clone());
        assert!(matches!(&refused, Err(PutError::Copies(error)) if is_of_copies(error)));
        let refused = pool.put(TensorId(1), Source::from(vec![1]), two);
        assert!(matches!(refused, Err(PutError::Copies(_))));
        assert!(features(&disks[0]).copies.is_none());
    }
}

#[test]
fn seals_and_reclamation_keep_the_copies_of_a_version() {
    let disks = mirrored(3);
    let pool = open(&disks);
    let content = bytes(1, 40_000);
    let two = PutOptions { copies: Some(Copies::Two), ..PutOptions::default() };
    pool.put(TensorId(7), Source::from(content.clone()), two).unwrap().wait().unwrap();
    for id in 0..6 {
        commit(&pool, &[(100 + id, &content), (200 + id, &bytes(2, 40_000))], &[]).unwrap();
    }
    let mut batch = pool.batch();
    batch.seal("kept", [TensorId(7), TensorId(100)]).unwrap();
    batch.commit().unwrap();
    commit(&pool, &[], &[200, 201, 202, 203, 204, 205]).unwrap();
    let before = pieces(&pool, 101);
    let mut moved = 0;
    while let Some(reclaimed) = pool.reclaim_once().unwrap() {
        moved += reclaimed.tensors;
    }
    assert!(moved > 0 && pieces(&pool, 101) != before);
    space(&pool);
    pool.close().unwrap();
    let pool = open(&disks);
    for id in 100..106 {
        let all = pieces(&pool, id);
        hurt(&disks, &all, (id % 2) as usize);
        assert!(get(&pool, id).unwrap() == content);
    }
    let sealed = pool.0.shared.contents();
    let version = sealed.sealed_version(sealed.seal("kept").unwrap(), TensorId(7)).unwrap();
    assert!(version.entry.runs.iter().all(|run| run.copies == Copies::Two));
}

#[test]
fn a_pool_that_is_read_only_is_read_from_either_copy_and_not_written() {
    let disks = mirrored(2);
    let pool = open(&disks);
    let content = bytes(1, 100_000);
    commit(&pool, &[(1, &content)], &[]).unwrap();
    let all = pieces(&pool, 1);
    pool.close().unwrap();
    hurt(&disks, &all, 0);
    let options = OpenOptions { read_only: true, ..quick() };
    let pool = Pool::open(&disks, &options).unwrap();
    assert!(get(&pool, 1).unwrap() == content && get(&pool, 1).unwrap() == content);
    assert_eq!(pool.scrub().unwrap().healed, 0);
    assert!(sum(&pool, |device| device.read_elsewhere) >= 2 * all.len() as u64);
    assert_eq!(sum(&pool, |device| device.writes), 0);
}

#[test]
fn a_copy_that_cannot_be_written_again_fails_no_read() {
    let disks = mirrored(2);
    let pool = open(&disks);
    let content = bytes(1, 10_000);
    commit(&pool, &[(1, &content)], &[]).unwrap();
    let [piece] = pieces(&pool, 1)[..] else { panic!("one piece") };
    hurt(&disks, &[piece], 0);
    disks[usize::from(piece.device)].plan_fault(OperationKind::Write, 0, Fault::Errno(5));
    assert!(get(&pool, 1).unwrap() == content);
    assert!(get(&pool, 1).unwrap() == content, "the device takes no writes any more");
    assert_eq!(sum(&pool, |device| device.healed), 0);
    assert_eq!(sum(&pool, |device| device.read_elsewhere), 2);
    pool.close().unwrap();
    let pool = open(&disks);
    assert_eq!(pool.scrub().unwrap().healed, 1);
}

#[test]
fn what_nothing_was_compared_with_takes_the_place_of_nothing() {
    let disks = mirrored(2);
    let pool = open(&disks);
    let content = bytes(1, 10_000);
    commit(&pool, &[(1, &content)], &[]).unwrap();
    let piece = pieces(&pool, 1)[0];
    pool.close().unwrap();
    disks[usize::from(piece.device)].make_unreadable(piece.device_offset);
    let (second, offset) = place(piece, 1);
    disks[second].rot(offset, 1);
    let pool = Pool::open(&disks, &OpenOptions { verify_reads: false, ..quick() }).unwrap();
    assert!(get(&pool, 1).unwrap()[1..] == content[1..]);
    assert_eq!(sum(&pool, |device| device.healed), 0);
}

#[test]
fn memory_that_devices_write_themselves_is_read_and_put_in_two_copies() {
    let disks = mirrored(3);
    let options =
        OpenOptions { staging: ByteCount::kib(256), buffers: ByteCount::mib(1), ..quick() };
    let pool = Pool::open(&disks, &options).unwrap();
    let content = bytes(1, 100_000);
    let mut buffer = pool.buffer(content.len()).unwrap().unwrap();
    buffer[..content.len()].copy_from_slice(&content);
    let mut batch = pool.batch();
    let source = Source::Dma { buffer, length: content.len() };
    batch.put(TensorId(1), source, PutOptions::default()).unwrap();
    batch.commit().unwrap();
    let all = pieces(&pool, 1);
    for copy in [0, 1] {
        hurt(&disks, &all, copy);
        let buffer = pool.buffer(content.len()).unwrap().unwrap();
        let length = content.len();
        let destination = Destination::Dma { buffer, length };
        let range = 0..length as u64;
        let ticket = pool.get(TensorId(1), range, destination, Urgency::Urgent, None).unwrap();
        assert_eq!(ticket.wait().unwrap().healed, if copy == 0 { all.len() as u32 } else { 0 });
        assert!(ticket.take_buffer().unwrap()[..length] == content);
    }
}

#[test]
fn a_device_that_is_gone_takes_nothing_that_has_two_copies() {
    let disks = mirrored(3);
    let pool = open(&disks);
    let content = bytes(1, 300_000);
    commit(&pool, &[(1, &content)], &[]).unwrap();
    let bare = PutOptions { copies: Some(Copies::One), ..PutOptions::default() };
    let mut batch = pool.batch();
    batch.put(TensorId(2), Source::from(content.clone()), bare).unwrap();
    batch.commit().unwrap();
    disks[1].remove_device();
    for _ in 0..3 {
        assert!(get(&pool, 1).unwrap() == content);
    }
    assert!(start_get(&pool, 2, 0..300_000).wait().is_err());
}
