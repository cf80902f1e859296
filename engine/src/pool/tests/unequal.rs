//! Devices that are not equally fast.

use super::degraded::without;
use super::*;
use crate::layout::{DeviceRates, SUPERBLOCK_OFFSET, Superblock};
use crate::pool::inspect::check;
use crate::units::DeviceIndex;

fn rates(of: &[u64]) -> DeviceRates {
    DeviceRates::of(of.iter().map(|rate| ByteCount::mib(*rate)))
}

fn pool_of(of: &[u64], options: FormatOptions) -> Vec<SimDisk> {
    let disks: Vec<SimDisk> = of.iter().map(|_| SimDisk::new(ByteCount::mib(8))).collect();
    Pool::format(&disks, &FormatOptions { rates: Some(rates(of)), ..options }).unwrap();
    disks
}

fn written(disks: &[SimDisk]) -> Vec<u64> {
    disks.iter().map(|disk| disk.counters().bytes_written).collect()
}

#[test]
fn a_device_of_a_third_of_the_rate_gets_a_third_of_the_bytes() {
    let disks = pool_of(&[300, 100], small());
    let pool = open(&disks);
    let before = written(&disks);
    for id in 0..50 {
        put(&pool, id, &bytes(id as u64, 150_000));
    }
    let wrote: Vec<u64> =
        written(&disks).iter().zip(before).map(|(now, then)| now - then).collect();
    assert!((24 * wrote[1]..36 * wrote[1]).contains(&(10 * wrote[0])), "{wrote:?}");
    for id in 0..50 {
        assert!(get(&pool, id).unwrap() == bytes(id as u64, 150_000), "tensor {id}");
    }
    space(&pool);
}

#[test]
fn all_space_is_to_be_had_whatever_the_rates_are() {
    let full = |of: &[u64]| {
        let disks = pool_of(of, small());
        let pool = open(&disks);
        let count = (0..1000).find(|id| match start_put(&pool, *id, &bytes(*id as u64, 50_000)) {
            Ok(ticket) => ticket.wait().is_err(),
            Err(PutError::PoolFull { .. }) => true,
            Err(error) => panic!("{error}"),
        });
        let count = count.unwrap();
        for id in 0..count {
            assert!(get(&pool, id).unwrap() == bytes(id as u64, 50_000), "tensor {id}");
        }
        space(&pool);
        count
    };
    let (equal, unequal) = (full(&[100, 100]), full(&[100, 400]));
    assert!(unequal >= equal - 2, "{unequal} tensors, and {equal} on equal devices");
}

#[test]
fn pools_of_equal_devices_are_as_they_were() {
    let formatted = |rates: Option<DeviceRates>| {
        let disks: Vec<SimDisk> = (0..2).map(|_| SimDisk::new(ByteCount::mib(8))).collect();
        let options = FormatOptions { rates, pool_id: Some(7), ..small() };
        Pool::format(&disks, &options).unwrap();
        let superblock = Superblock::decode(&disks[1].peek(SUPERBLOCK_OFFSET, 4096)).unwrap();
        Superblock { formatted_at: 0, ..superblock }.encode()
    };
    assert!(formatted(Some(rates(&[100, 110]))) == formatted(None));
    assert!(formatted(Some(rates(&[100, 200]))) != formatted(None));
}

#[test]
fn both_copies_are_there_without_any_one_device_whatever_the_rates_are() {
    let disks = pool_of(&[100, 300, 900], FormatOptions { copies: Copies::Two, ..small() });
    let pool = open(&disks);
    for id in 0..20 {
        commit(&pool, &[(id, &bytes(id as u64, 120_000))], &[]).unwrap();
    }
    let table = pool.description().table;
    let faster = table.weighted_sets()[1].0;
    assert!(pool.striped_over(&|set| set == faster) > 0, "no segment is on faster devices alone");
    pool.close().unwrap();
    for lost in 0..disks.len() {
        let options = OpenOptions { degraded: true, read_only: true, ..quick() };
        let pool = Pool::open(&without(&disks, lost), &options).unwrap();
        for id in 0..20 {
            assert!(get(&pool, id).unwrap() == bytes(id as u64, 120_000), "{id} without {lost}");
        }
        pool.close().unwrap();
    }
}

#[test]
fn rates_that_are_stored_count_from_the_next_opening_and_through_reshapes() {
    let disks = pool_of(&[100, 100, 100], small());
    let pool = open(&disks);
    for id in 0..10 {
        commit(&pool, &[(id, &bytes(id as u64, 100_000))], &[]).unwrap();
    }
    pool.close().unwrap();
    Pool::store_rates(&disks, rates(&[100, 100, 400]), false).unwrap();
    let pool = open(&disks);
    assert_eq!(pool.description().table.weighted_sets().len(), 2);
    for id in 10..30 {
        commit(&pool, &[(id, &bytes(id as u64, 100_000))], &[]).unwrap();
    }
    assert!(pool.striped_over(&|set| set == 1) > 0);
    pool.close().unwrap();
    evacuate(&disks, 2, &ReshapeOptions::default(), &mut |_| ()).unwrap();
    let pool = open(&disks);
    let table = pool.description().table;
    assert!(!table.used().contains(DeviceIndex(2)) && table.weighted_sets().len() == 1);
    pool.close().unwrap();
    add(&disks[2], &disks[..2], &ReshapeOptions::default(), &mut |_| ()).unwrap();
    evacuate(&disks, 0, &ReshapeOptions::default(), &mut |_| ()).unwrap();
    let report = check(&disks, true, &mut |_| ()).unwrap();
    assert!(report.damage.is_empty(), "{report:?}");
    let pool = open(&disks);
    assert_eq!(pool.description().table.weighted_sets().len(), 2, "faster devices keep their set");
    for id in 0..30 {
        assert!(get(&pool, id).unwrap() == bytes(id as u64, 100_000), "tensor {id}");
    }
}
