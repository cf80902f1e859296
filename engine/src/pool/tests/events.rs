//! Devices that are older copies of themselves, and crashes that only look like it.

use super::*;
use crate::path::sim::PowerCut;
use crate::pool::inspect::{Damage, check};

fn disks_of_a_pool() -> Vec<SimDisk> {
    let disks: Vec<SimDisk> = (0..3).map(|_| SimDisk::new(ByteCount::mib(16))).collect();
    Pool::format(&disks, &FormatOptions::default()).unwrap();
    use_it(&disks, 0);
    disks
}

fn commit(pool: &Pool, number: u8) {
    let mut batch = pool.batch();
    let source = Source::from(vec![number; 2_000_000]);
    batch.put(&*format!("tensor {number}"), source, PutOptions::default()).unwrap();
    batch.commit().unwrap();
}

/// Opens, commits, closes.
fn use_it(disks: &[SimDisk], number: u8) {
    let pool = Pool::open(disks, &quick()).unwrap();
    commit(&pool, number);
    pool.close().unwrap();
}

/// The names in the refusal.
fn refused(disks: &[SimDisk]) -> Vec<String> {
    match Pool::open(disks, &quick()) {
        Err(error @ OpenError::OlderCopy { .. }) => {
            let text = error.to_string();
            let OpenError::OlderCopy { share: 0, devices } = error else { panic!("{error}") };
            assert!(devices.iter().all(|it| text.contains(&it.device)), "{text}");
            devices.into_iter().map(|it| it.device).collect()
        }
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("an older copy was admitted"),
    }
}

#[test]
fn a_device_that_is_an_older_copy_of_itself_is_refused_by_name_and_changes_nothing() {
    let disks = disks_of_a_pool();
    let mut older = disks[1].snapshot();
    use_it(&disks, 1);
    disks[1].swap(&mut older);
    let written = |disks: &[SimDisk]| disks.iter().map(|it| it.counters().writes).sum::<u64>();
    let before = written(&disks);
    assert_eq!(refused(&disks), ["sim1"]);
    assert_eq!(written(&disks), before);
    disks[1].swap(&mut older);
    let pool = Pool::open(&disks, &quick()).unwrap();
    assert_eq!(pool.durable_tensors().unwrap().len(), 2);
}

#[test]
fn a_copy_from_before_the_first_opening_is_older_too_and_so_are_two() {
    let disks: Vec<SimDisk> = (0..3).map(|_| SimDisk::new(ByteCount::mib(16))).collect();
    Pool::format(&disks, &FormatOptions::default()).unwrap();
    let mut older = [0, 2].map(|disk: usize| disks[disk].snapshot());
    use_it(&disks, 0);
    disks[0].swap(&mut older[0]);
    disks[2].swap(&mut older[1]);
    assert_eq!(refused(&disks), ["sim0", "sim2"]);
}

#[test]
fn a_copy_that_was_made_while_the_pool_was_open_is_older_than_its_closing() {
    let disks = disks_of_a_pool();
    let pool = Pool::open(&disks, &quick()).unwrap();
    let mut older = disks[2].snapshot();
    commit(&pool, 1);
    pool.close().unwrap();
    disks[2].swap(&mut older);
    assert_eq!(refused(&disks), ["sim2"]);
}

#[test]
fn an_older_copy_shows_after_a_power_cut_too() {
    for cut in [PowerCut::DropAll, PowerCut::KeepAll, PowerCut::Torn(3)] {
        let disks = disks_of_a_pool();
        let mut older = disks[0].snapshot();
        let pool = Pool::open(&disks, &quick()).unwrap();
        cut_power(&disks, cut);
        drop(pool);
        disks[0].swap(&mut older);
        assert_eq!(refused(&disks), ["sim0"], "{cut:?}");
    }
}

/// The count says nothing of it: the index does, where the device has a copy of that, and checksums
/// do.
#[test]
fn a_device_that_is_older_within_one_killed_run_gives_errors_and_never_other_bytes() {
    for older in 0..3 {
        let disks = disks_of_a_pool();
        let pool = Pool::open(&disks, &quick()).unwrap();
        (1..3).for_each(|number| commit(&pool, number));
        let mut copy = disks[older].snapshot();
        (3..6).for_each(|number| commit(&pool, number));
        cut_power(&disks, PowerCut::KeepAll);
        drop(pool);
        disks[older].swap(&mut copy);

        let name = |number: u8| format!("tensor {number}");
        let report = check(&disks, false, &mut |_| ()).unwrap();
        let mut lost: Vec<_> = report.damaged_tensors().filter_map(|it| it.name.clone()).collect();
        lost.sort_unstable();
        assert_eq!(lost, (3..6).map(name).collect::<Vec<_>>(), "sim{older}");
        let is_named = |damage: &Damage| match damage {
            Damage::IndexCopy { device, .. } => *device == format!("sim{older}"),
            Damage::Tensor(_) => false,
            other => panic!("{other}"),
        };
        // The index is on two devices.
        assert_eq!(report.damage.iter().any(is_named), older < 2, "{:?}", report.damage);

        let pool = Pool::open(&disks, &quick()).unwrap();
        assert_eq!(pool.durable_tensors().unwrap().len(), 6, "every commit had returned");
        // What is put now may take space in which the device has bytes of nobody.
        commit(&pool, 6);
        for number in 0..7 {
            let memory = Destination::buffer(2_000_000);
            let read = pool.get(&*name(number), 0..2_000_000, memory, Urgency::Urgent, None);
            let read = read.unwrap();
            match read.wait() {
                Ok(_) => assert_eq!(read.take_bytes().unwrap(), vec![number; 2_000_000]),
                Err(error) => {
                    assert!((3..6).contains(&number), "{error}");
                    assert!(error.to_string().contains(&format!("sim{older}")), "{error}");
                }
            }
        }
        pool.close().unwrap();
        let report = check(&disks, false, &mut |_| ()).unwrap();
        assert!(report.damage.iter().all(|it| matches!(it, Damage::Tensor(_))), "{report:?}");
    }
}

#[test]
fn devices_that_went_on_apart_are_no_pool_together() {
    let disks = disks_of_a_pool();
    let copies: Vec<SimDisk> = (0..3).map(|_| SimDisk::new(ByteCount::mib(16))).collect();
    for (disk, copy) in disks.iter().zip(&copies) {
        copy.swap(&mut disk.snapshot());
    }
    use_it(&disks, 1);
    use_it(&copies, 2);
    let mixed = [disks[0].clone(), copies[1].clone(), disks[2].clone()];
    assert_eq!(refused(&mixed).len(), 1);
}

#[test]
fn a_crash_at_any_write_or_flush_of_an_opening_or_closing_makes_no_device_an_older_copy() {
    for cut in [PowerCut::DropAll, PowerCut::KeepAll, PowerCut::Torn(7)] {
        for nth in 0.. {
            let disks = disks_of_a_pool();
            let mut older = disks[1].snapshot();
            use_it(&disks, 1);
            SimDisk::cut_power_at(&disks, nth, cut);
            if let Ok(pool) = Pool::open(&disks, &quick()) {
                let _ = pool.close();
            }
            if !disks[0].is_off() {
                // Both count by two writes and two flushes of each disk.
                assert!(nth >= 2 * 4 * 3, "{nth}");
                break;
            }
            disks[1].swap(&mut older);
            assert_eq!(refused(&disks), ["sim1"], "power went at {nth}");
            disks[1].swap(&mut older);
            for again in 0..3 {
                use_it(&disks, 2 + again);
            }
        }
    }
}

#[test]
fn a_device_that_is_older_for_one_share_is_refused_to_all() {
    let disks: Vec<SimDisk> = (0..3).map(|_| SimDisk::new(ByteCount::mib(32))).collect();
    Pool::format(&disks, &FormatOptions { share_count: 2, ..FormatOptions::default() }).unwrap();
    let use_share = |share, number| {
        let pool = Pool::open(&disks, &OpenOptions { share, ..quick() }).unwrap();
        commit(&pool, number);
        pool.close().unwrap();
    };
    use_share(0, 0);
    let mut older = disks[1].snapshot();
    use_share(1, 1);
    disks[1].swap(&mut older);
    for share in [0, 1] {
        let refused = Pool::open(&disks, &OpenOptions { share, ..quick() });
        let Err(OpenError::OlderCopy { share: 1, devices }) = refused else { panic!("{share}") };
        assert_eq!(devices[0].device, "sim1");
    }
    disks[1].swap(&mut older);
    use_share(0, 2);
    use_share(1, 3);
}

#[test]
fn a_device_whose_count_has_rotted_is_not_refused_and_has_one_again() {
    let disks = disks_of_a_pool();
    let at = crate::layout::HOLDERS_OFFSET + 1072;
    disks[1].rot(at, 1);
    use_it(&disks, 1);
    for disk in &disks {
        disk.rot(at, 1);
    }
    use_it(&disks, 2);
    let mut older = disks[1].snapshot();
    use_it(&disks, 3);
    disks[1].swap(&mut older);
    assert_eq!(refused(&disks), ["sim1"]);
}

#[test]
fn checking_names_an_older_copy_and_it_counts_once_it_is_accepted() {
    let disks = disks_of_a_pool();
    let mut older = disks[2].snapshot();
    use_it(&disks, 1);
    disks[2].swap(&mut older);
    let report = check(&disks, false, &mut |_| ()).unwrap();
    let is_older = |it: &&Damage| matches!(it, Damage::OlderCopy { share: 0, .. });
    let found: Vec<&Damage> = report.damage.iter().filter(is_older).collect();
    let [damage @ Damage::OlderCopy { device, .. }] = &found[..] else { panic!("{report:#?}") };
    assert!(device == "sim2" && !damage.is_repairable());
    let accept = OpenOptions { accept_older_copies: true, ..quick() };
    Pool::open(&disks, &accept).unwrap().close().unwrap();
    let report = check(&disks, false, &mut |_| ()).unwrap();
    assert!(!report.damage.iter().any(|it| is_older(&it)), "{report:#?}");
    let lost: Vec<_> = report.damaged_tensors().filter_map(|it| it.name.as_deref()).collect();
    assert_eq!(lost, ["tensor 1"], "only what was written since is lost");
    use_it(&disks, 2);
}

const HOLDER: u64 = crate::layout::HOLDERS_OFFSET;

/// The holder block of the first share becomes zeroes.
fn blank(disk: &SimDisk) {
    disk.overwrite(HOLDER, &[0; 4096]);
}

/// The superblock comes there: it has zeroes where the count is, and a mark like a holder block's.
fn stray(disk: &SimDisk) {
    disk.overwrite(HOLDER, &disk.peek(crate::layout::SUPERBLOCK_OFFSET, 4096));
}

#[test]
fn a_holder_block_of_zeroes_beside_an_index_that_lacks_nothing_is_damage_that_is_mended() {
    for disk in 0..2 {
        for (left_by_a_kill, strays) in [(false, false), (true, false), (false, true)] {
            let disks = disks_of_a_pool();
            if left_by_a_kill {
                let pool = Pool::open(&disks, &quick()).unwrap();
                commit(&pool, 1);
                cut_power(&disks, PowerCut::KeepAll);
                drop(pool);
            }
            if strays {
                stray(&disks[disk]);
            } else {
                blank(&disks[disk]);
            }
            let report = check(&disks, false, &mut |_| ()).unwrap();
            let device = format!("sim{disk}");
            let lost = Damage::Holder { share: 0, device: device.clone() };
            assert_eq!(report.damage, [lost]);
            let mut older = disks[disk].snapshot();
            let repaired = crate::pool::inspect::repair(&disks, &[], false, &mut |_| ()).unwrap();
            assert_eq!(repaired.after.damage, []);
            // It counts again.
            use_it(&disks, 2);
            disks[disk].swap(&mut older);
            assert_eq!(refused(&disks), [device], "it lacks a commit now");
        }
    }
}

#[test]
fn a_holder_block_of_zeroes_is_an_older_copy_where_no_index_says_otherwise() {
    // A device without an index, and all devices that have one.
    for blanks in [&[2][..], &[0, 1]] {
        let disks = disks_of_a_pool();
        for disk in blanks {
            blank(&disks[*disk]);
        }
        let names: Vec<String> = blanks.iter().map(|disk| format!("sim{disk}")).collect();
        assert_eq!(refused(&disks), names);
        let accept = OpenOptions { accept_older_copies: true, ..quick() };
        Pool::open(&disks, &accept).unwrap().close().unwrap();
        assert_eq!(check(&disks, false, &mut |_| ()).unwrap().damage, []);
    }
    // A commit that the device alone lacks.
    let disks = disks_of_a_pool();
    let mut older = disks[1].snapshot();
    let pool = Pool::open(&disks, &quick()).unwrap();
    commit(&pool, 1);
    cut_power(&disks, PowerCut::KeepAll);
    drop(pool);
    disks[1].swap(&mut older);
    for hit in [blank, stray] {
        hit(&disks[1]);
        assert_eq!(refused(&disks), ["sim1"]);
    }
}

#[test]
fn a_holder_block_that_has_rotted_is_damage_that_check_names() {
    let disks = disks_of_a_pool();
    disks[2].rot(HOLDER + 1080, 1);
    let lost = Damage::Holder { share: 0, device: "sim2".into() };
    assert_eq!(check(&disks, false, &mut |_| ()).unwrap().damage, [lost]);
    use_it(&disks, 1);
    assert_eq!(check(&disks, false, &mut |_| ()).unwrap().damage, []);
}
