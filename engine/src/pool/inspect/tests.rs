//! Checking pools on simulated disks; `engine/tests/inspect.rs` has files, repairs and wipes.

use super::check::check;
use super::*;
use crate::layout::{BLOCK_BYTES, TensorId};
use crate::memory::Source;
use crate::path::sim::SimDisk;
use crate::pool::{FormatOptions, OpenOptions, Pool, PutOptions};
use crate::units::ByteCount;

fn pool_with_tensors() -> (Vec<SimDisk>, crate::layout::Geometry) {
    let disks: Vec<SimDisk> = (0..2).map(|_| SimDisk::new(ByteCount::mib(32))).collect();
    let options = FormatOptions { stripe_unit: ByteCount::kib(16), ..FormatOptions::default() };
    let geometry = Pool::format(&disks, &options).unwrap().geometry;
    // Opened again for each, so that both slots hold a checkpoint of something.
    for (name, length) in [("small", 5_000), ("large", 20_000_000)] {
        let pool = Pool::open(&disks, &quick()).unwrap();
        let mut batch = pool.batch();
        let source = Source::from(vec![7; length]);
        batch.put(name, source, PutOptions::default()).unwrap();
        batch.commit().unwrap();
    }
    drop(Pool::open(&disks, &quick()).unwrap());
    (disks, geometry)
}

fn quick() -> OpenOptions {
    OpenOptions { huge_pages: false, ..OpenOptions::default() }
}

#[test]
fn a_whole_pool_is_clean_and_every_byte_of_it_is_read() {
    let (disks, _) = pool_with_tensors();
    let before: u64 = disks.iter().map(|disk| disk.counters().reads).sum();
    let report = check(&disks, false, &mut |_| ()).unwrap();
    assert_eq!(report.damage, []);
    assert_eq!((report.tensors, report.bytes), (2, ByteCount(20_005_000)));
    let after: u64 = disks.iter().map(|disk| disk.counters().reads).sum();
    assert!(after - before > 20_000_000 / (16 << 10), "{}", after - before);
}

#[test]
fn damage_is_found_where_it_is_and_nowhere_else() {
    let (disks, geometry) = pool_with_tensors();
    disks[1].rot(geometry.second_superblock_offset() + 9, 1);
    let share = geometry.share(0).unwrap();
    for slot in share.slots {
        disks[0].rot(slot.checkpoint_offset + 70, 1);
    }
    // The large tensor fills whole segments of its lane; the last of its bytes lie before the free
    // ones.
    let row = geometry.data_offset + 3 * geometry.segment_bytes;
    disks[0].rot(row, 1);
    let report = check(&disks, false, &mut |_| ()).unwrap();
    let [
        Damage::Superblock { device, copy: 'B', other: None },
        Damage::IndexCopy { share: 0, device: index, .. },
        Damage::Tensor(tensor),
    ] = report.damage.as_slice()
    else {
        panic!("{:#?}", report.damage);
    };
    assert_eq!((device.as_str(), index.as_str()), ("sim1", "sim0"));
    assert_eq!((tensor.name.as_deref(), tensor.id), (Some("large"), TensorId::from_name("large")));
    assert_eq!(tensor.lost, ByteCount::kib(16), "one stripe unit");
    assert!(tensor.why.contains("CRC32C"), "{}", tensor.why);
    assert_eq!(report.damage.iter().filter(|it| it.is_repairable()).count(), 2);
}

#[test]
fn an_index_without_any_good_copy_is_damage_of_the_share() {
    let (disks, geometry) = pool_with_tensors();
    for disk in &disks {
        for slot in geometry.share(0).unwrap().slots {
            disk.rot(slot.checkpoint_offset + 70, 1);
        }
    }
    let report = check(&disks, false, &mut |_| ()).unwrap();
    assert!(matches!(report.damage.as_slice(), [Damage::Index { share: 0, .. }]), "{report:#?}");
}

#[test]
fn a_newest_checkpoint_damaged_on_every_device_is_damage_though_an_older_one_gives_the_same_index()
{
    let (disks, geometry) = pool_with_tensors();
    // The third, into which the last open has put what stands in the second and its change log.
    let slot = geometry.share(0).unwrap().slots[0];
    for disk in &disks {
        disk.rot(slot.checkpoint_offset + 70, 1);
    }
    let report = check(&disks, false, &mut |_| ()).unwrap();
    let damaged: Vec<_> = report
        .damage
        .iter()
        .map(|damage| match damage {
            Damage::IndexCopy { share: 0, device, why } if why.contains("epoch 3") => device,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(damaged, ["sim0", "sim1"]);
    assert!(report.damage.iter().all(Damage::is_repairable));
    // Opening writes it again, from the older one.
    let pool = Pool::open(&disks, &quick()).unwrap();
    assert_eq!(pool.durable_tensors().unwrap().len(), 2);
    pool.close().unwrap();
    assert_eq!(check(&disks, false, &mut |_| ()).unwrap().damage, []);
}

#[test]
fn the_second_superblock_of_a_larger_device_is_found_where_the_others_have_theirs() {
    let disks = [SimDisk::new(ByteCount::mib(16)), SimDisk::new(ByteCount::mib(24))];
    Pool::format(&disks, &FormatOptions::default()).unwrap();
    disks[1].rot(BLOCK_BYTES + 100, 1);
    let report = check(&disks, false, &mut |_| ()).unwrap();
    let lost = Damage::Superblock { device: "sim1".into(), copy: 'A', other: None };
    assert_eq!(report.damage, [lost]);
    let pool = Pool::open(&disks, &quick()).unwrap();
    assert_eq!(pool.stats().unwrap().repaired_superblocks, ["sim1 copy A"]);
    drop(pool);
    assert_eq!(check(&disks, false, &mut |_| ()).unwrap().damage, []);
}
