//! Tests of what may be formatted and opened, and what is refused.

use super::*;
use crate::layout::{
    BLOCK_BYTES, HOLDERS_OFFSET, SUPERBLOCK_OFFSET, SuperblockError, UnfinishedFormat,
};

fn blank(count: usize) -> Vec<SimDisk> {
    (0..count).map(|_| SimDisk::new(ByteCount::mib(4))).collect()
}

#[test]
fn a_pool_is_not_formatted_over_unless_it_may_be_lost() {
    let disks = disks(2, ByteCount::mib(4));
    let pool = open(&disks);
    let mut batch = pool.batch();
    batch.put("precious", Source::from(vec![1]), PutOptions::default()).unwrap();
    batch.commit().unwrap();
    drop(pool);
    let refused = Pool::format(&disks, &small());
    assert!(matches!(refused, Err(FormatError::HoldsPool { .. })), "{refused:?}");
    assert!(open(&disks).contains(TensorId::from_name("precious")));
    let options = FormatOptions { overwrite: true, ..small() };
    Pool::format(&disks, &options).unwrap();
    assert!(!open(&disks).contains(TensorId::from_name("precious")));
}

#[test]
fn the_right_number_of_devices_is_asked_for() {
    assert!(matches!(Pool::format::<SimDisk>(&[], &small()), Err(FormatError::Devices(0))));
    assert!(matches!(Pool::format(&blank(65), &small()), Err(FormatError::Devices(65))));
    assert!(matches!(Pool::open::<SimDisk>(&[], &quick()), Err(OpenError::Devices(0))));
    let many = disks(64, ByteCount::mib(2));
    let pool = open(&many);
    let content = bytes(1, 64 * (16 << 10) + 5);
    put(&pool, 1, &content);
    assert_eq!(get(&pool, 1).unwrap(), content);
}

#[test]
fn devices_may_be_named_in_any_order_but_must_be_one_whole_pool() {
    let mut disks = disks(3, ByteCount::mib(4));
    let pool = open(&disks);
    let content = bytes(1, 300_000);
    let mut batch = pool.batch();
    batch.put(TensorId(1), Source::from(content.clone()), PutOptions::default()).unwrap();
    batch.commit().unwrap();
    drop(pool);
    disks.reverse();
    assert_eq!(get(&open(&disks), 1).unwrap(), content);

    let refused = |disks: &[SimDisk]| match Pool::open(disks, &quick()) {
        Err(OpenError::NotOnePool(what)) => what,
        Err(other) => panic!("another error: {other}"),
        Ok(_) => panic!("opened"),
    };
    assert!(refused(&disks[..2]).contains("device 0 is missing"));
    let twice = [disks[0].clone(), disks[1].clone(), disks[0].clone()];
    assert!(refused(&twice).contains("both say that they are device 2"));
    let other = super::disks(3, ByteCount::mib(4));
    let mixed = [disks[0].clone(), disks[1].clone(), other[0].clone()];
    assert!(refused(&mixed).contains("belongs to pool"));
}

#[test]
fn what_is_no_pool_is_not_opened() {
    let fresh = blank(1);
    let refused = Pool::open(&fresh, &quick());
    let Err(OpenError::Superblock { source, .. }) = refused else { panic!("opened a blank disk") };
    assert_eq!(source, SuperblockError::Absent);
    let both = disks(1, ByteCount::mib(4));
    let second = Pool::open(&both, &quick()).unwrap().description().geometry;
    for offset in [BLOCK_BYTES, second.second_superblock_offset()] {
        both[0].rot(offset + 100, 1);
    }
    let Err(OpenError::Superblock { source, .. }) = Pool::open(&both, &quick()) else {
        panic!("opened a pool without a superblock");
    };
    assert!(matches!(source, SuperblockError::Checksum { .. }));
}

#[test]
fn shares_are_apart() {
    let disks = blank(2);
    let options = FormatOptions { share_count: 2, ..small() };
    Pool::format(&disks, &options).unwrap();
    let share = |share| Pool::open(&disks, &OpenOptions { share, ..quick() });
    let (one, two) = (share(0).unwrap(), share(1).unwrap());
    let Err(OpenError::NoShare { share: 2, shares: 2 }) = share(2) else {
        panic!("there are two shares");
    };
    let usable = |pool: &Pool| {
        let space = space(pool);
        (space.capacity.0 - space.reclaim_reserve.0) as usize
    };
    let fill = |pool: &Pool, seed: u64| {
        let mut batch = pool.batch();
        let content = bytes(seed, usable(pool));
        batch.put(TensorId(1), Source::from(content), PutOptions::default()).unwrap();
        batch.commit().unwrap();
    };
    fill(&one, 1);
    fill(&two, 2);
    drop((one, two));
    let (one, two) = (share(0).unwrap(), share(1).unwrap());
    assert_eq!(get(&one, 1).unwrap(), bytes(1, usable(&one)));
    assert_eq!(get(&two, 1).unwrap(), bytes(2, usable(&two)));
    let sum = space(&one).capacity.0 + space(&two).capacity.0;
    assert_eq!(one.description().capacity.0, sum);
}

/// Formats blank disks, and cuts their power at the `nth` operation that changes something.
fn interrupted(nth: u64, options: &FormatOptions) -> (Vec<SimDisk>, Result<(), FormatError>) {
    let disks = blank(2);
    SimDisk::cut_power_at(&disks, nth, PowerCut::Torn(nth));
    let ended = Pool::format(&disks, options).map(drop);
    (disks, ended)
}

#[test]
fn devices_of_a_format_that_was_interrupted_anywhere_are_taken_by_the_next() {
    let mut taken = 0;
    for nth in 0.. {
        let (disks, ended) = interrupted(nth, &small());
        if ended.is_ok() {
            break;
        }
        match Pool::format(&disks, &small()) {
            Ok(_) => taken += 1,
            // Nothing was missing but the last flush.
            Err(FormatError::HoldsPool { .. }) => (),
            Err(refused) => panic!("after {nth} operations: {refused}"),
        }
        let pool = open(&disks);
        put(&pool, 1, &bytes(1, 100_000));
        pool.close().unwrap();
    }
    assert!(taken > 15, "{taken}");

    let calibrating = FormatOptions { calibrate: true, ..small() };
    for nth in [20, 21, 60, 300] {
        let (disks, ended) = interrupted(nth, &calibrating);
        assert!(matches!(ended, Err(FormatError::Calibrate(_))), "{ended:?}");
        // That one is interrupted, too, which must not hide what the first has left.
        SimDisk::cut_power_at(&disks, nth % 11, PowerCut::Torn(nth));
        Pool::format(&disks, &small()).unwrap_err();
        assert!(Pool::open(&disks, &quick()).is_err());
        // What somebody else has put there since is not ours, wherever it lies.
        for at in [0, 300 << 10, 2 << 20] {
            let before = disks[1].peek(at, BLOCK_BYTES as usize);
            disks[1].overwrite(at, &[7; BLOCK_BYTES as usize]);
            let refused = Pool::format(&disks, &small());
            assert!(matches!(refused, Err(FormatError::HoldsData { .. })), "{at}: {refused:?}");
            disks[1].overwrite(at, &before);
        }
        Pool::format(&disks, &small()).unwrap();
        open(&disks).close().unwrap();
    }
}

/// A disk that loses its power in the midst of blocks keeps some of their sectors, and what nine
/// shares need goes beyond the first sector of a superblock.
#[test]
fn what_a_format_leaves_that_was_cut_off_anywhere_is_a_pool_or_says_that_it_is_to_be_formatted() {
    let options = FormatOptions { share_count: 9, ..small() };
    for count in [1, 2] {
        let cuts = [PowerCut::DropAll, PowerCut::KeepAll];
        let mut pools = 0;
        'operations: for nth in 0.. {
            for cut in cuts.into_iter().chain([nth, nth + 1000].map(PowerCut::Torn)) {
                let disks: Vec<_> = (0..count).map(|_| SimDisk::new(ByteCount::mib(16))).collect();
                SimDisk::cut_power_at(&disks, nth, cut);
                match Pool::format(&disks, &options) {
                    Ok(_) => break 'operations,
                    Err(FormatError::HalfWay(_)) => (),
                    Err(other) => panic!("{cut:?} at {nth}: {other}"),
                }
                pools +=
                    usize::from(is_pool_or_taken(&disks, &options, &format!("{cut:?} at {nth}")));
            }
        }
        assert!(pools > 0, "the last flush, at least");
    }
}

/// Returns whether the devices are a pool. If not, opening says what to do about those that have a
/// mark, and that helps.
fn is_pool_or_taken(disks: &[SimDisk], options: &FormatOptions, what: &str) -> bool {
    let mark = |disk: &SimDisk| {
        UnfinishedFormat::decode(&disk.peek(SUPERBLOCK_OFFSET, BLOCK_BYTES as usize))
    };
    let is_marked = disks.iter().any(|disk| mark(disk).is_some());
    let is_pool = match Pool::open(disks, &quick()) {
        Ok(pool) => pool.close().is_ok(),
        Err(OpenError::Superblock { source: SuperblockError::Unfinished, .. }) => false,
        Err(OpenError::Superblock { source: SuperblockError::Absent, .. }) if !is_marked => false,
        Err(other) => panic!("{what}: {other}"),
    };
    if is_pool {
        let refused = Pool::format(disks, options);
        assert!(matches!(refused, Err(FormatError::HoldsPool { .. })), "{what}: {refused:?}");
    } else {
        Pool::format(disks, options).unwrap_or_else(|refused| panic!("{what}: {refused}"));
        open(disks).close().unwrap();
    }
    is_pool
}

#[test]
fn of_a_format_that_wrote_one_superblock_both_devices_are_taken_unless_one_was_used() {
    let disks = disks(2, ByteCount::mib(4));
    let pool = open(&disks).description().pool;
    let marked = |disks: &[SimDisk]| {
        disks[1].overwrite(SUPERBLOCK_OFFSET, &UnfinishedFormat { pool }.encode());
    };
    marked(&disks);
    let Err(refused) = Pool::open(&disks, &quick()) else { panic!("opened an unfinished pool") };
    assert!(refused.to_string().contains("a format of it was interrupted"), "{refused}");
    // It was open above.
    let used = Pool::format(&disks, &small());
    assert!(matches!(used, Err(FormatError::HoldsPool { .. })), "{used:?}");
    for disk in &disks {
        disk.overwrite(HOLDERS_OFFSET, &[0; BLOCK_BYTES as usize]);
    }
    let other = blank(1);
    other[0].overwrite(SUPERBLOCK_OFFSET, &UnfinishedFormat { pool: pool + 1 }.encode());
    let not_of_it = Pool::format(&[disks[0].clone(), other[0].clone()], &small());
    assert!(matches!(not_of_it, Err(FormatError::HoldsPool { .. })), "{not_of_it:?}");
    Pool::format(&disks, &small()).unwrap();
    open(&disks).close().unwrap();
}
