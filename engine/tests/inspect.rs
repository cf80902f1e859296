//! Looking at, checking, repairing and wiping pools on files.

mod common;

use std::os::unix::fs::FileExt;

use common::{Directory, get, quick, small, stage};
use tidelog_engine::layout::{BLOCK_BYTES, Geometry, Superblock, SuperblockError, TensorId};
use tidelog_engine::path::{DeviceIdentity, DeviceSpec};
use tidelog_engine::pool::inspect::{
    CheckReport, Damage, RepairError, check, inspect, probe, repair, wipe,
};
use tidelog_engine::pool::{FormatError, FormatOptions, OpenError, Pool};
use tidelog_engine::units::ByteCount;

/// A pool of two files with two tensors, and its geometry.
fn pool(directory: &Directory) -> (Vec<DeviceSpec>, Geometry) {
    let specs = directory.devices();
    Pool::format(&specs, &small()).unwrap();
    let pool = Pool::open(&specs, &quick()).unwrap();
    let geometry = pool.description().geometry;
    let mut batch = pool.batch();
    stage(&mut batch, "kept", vec![1; 10_000]);
    stage(&mut batch, "large", vec![2; 100_000]);
    batch.commit().unwrap();
    drop(pool);
    (specs, geometry)
}

fn checked(specs: &[DeviceSpec]) -> CheckReport {
    check(specs, false, &mut |_| ()).unwrap()
}

/// Turns one byte around.
fn rot(spec: &DeviceSpec, offset: u64) {
    let file = std::fs::File::options().read(true).write(true).open(spec.target()).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[!byte[0]], offset).unwrap();
    file.sync_all().unwrap();
}

fn identity(spec: &DeviceSpec) -> DeviceIdentity {
    DeviceIdentity::of(&spec.target().metadata().unwrap())
}

fn content(specs: &[DeviceSpec]) -> Vec<Vec<u8>> {
    specs.iter().map(|spec| std::fs::read(spec.target()).unwrap()).collect()
}

#[test]
fn looking_and_checking_write_nothing_and_need_no_right_to() {
    use std::os::unix::fs::PermissionsExt;
    let directory = Directory::new("look");
    let (specs, geometry) = pool(&directory);
    for spec in &specs {
        std::fs::set_permissions(spec.target(), PermissionsExt::from_mode(0o400)).unwrap();
    }
    let before = content(&specs);
    let view = inspect(&specs).unwrap();
    assert_eq!(view.superblock.geometry, geometry);
    assert_eq!((view.devices.len(), view.missing.len(), view.shares.len()), (2, 0, 1));
    let share = &view.shares[0];
    let index = share.index.as_ref().unwrap();
    let names: Vec<_> = index.tensors.iter().map(|it| it.name.as_deref().unwrap()).collect();
    assert!(names.len() == 2 && names.contains(&"kept") && names.contains(&"large"));
    assert!(!share.held && share.holder.as_ref().unwrap().process == std::process::id());
    let mut last = None;
    let report = check(&specs, false, &mut |progress| last = Some(progress)).unwrap();
    assert_eq!(report.damage, []);
    assert_eq!(last.map(|it| (it.done, it.total)), Some((report.bytes, ByteCount(110_000))));
    assert_eq!(content(&specs), before);
}

#[test]
fn a_held_share_is_shown_and_not_checked_nor_repaired_nor_wiped() {
    let directory = Directory::new("held");
    let (specs, _) = pool(&directory);
    let held = Pool::open(&specs, &quick()).unwrap();
    assert!(inspect(&specs).unwrap().shares[0].held);
    let refused = [
        check(&specs, false, &mut |_| ()).err(),
        wipe(&specs, false).err(),
        repair(&specs, &[], false, &mut |_| ()).err().map(|error| match error {
            RepairError::Open(error) => error,
            other => panic!("{other}"),
        }),
    ];
    for error in refused {
        let Some(OpenError::ShareHeld { share: 0, holder: Some(holder), .. }) = error else {
            panic!("{error:?}");
        };
        assert_eq!(holder.process, std::process::id());
    }
    drop(held);
    assert_eq!(checked(&specs).damage, []);
}

#[test]
fn one_device_of_two_tells_what_it_can() {
    let directory = Directory::new("lone");
    let (specs, _) = pool(&directory);
    for (spec, missing) in specs.iter().zip([1, 0]) {
        let view = inspect(std::slice::from_ref(spec)).unwrap();
        assert_eq!(view.missing, [missing]);
        // Either device alone has the index.
        assert_eq!(view.shares[0].index.as_ref().unwrap().tensors.len(), 2);
    }
    let refused = check(&specs[..1], false, &mut |_| ());
    assert!(matches!(refused, Err(OpenError::NotOnePool(_))), "{refused:?}");
}

#[test]
fn damaged_copies_are_written_again_and_lost_tensors_stay_until_they_are_named() {
    let directory = Directory::new("repair");
    let (specs, geometry) = pool(&directory);
    rot(&specs[0], BLOCK_BYTES + 50);
    rot(&specs[1], geometry.second_superblock_offset() + 50);
    for slot in geometry.share(0).unwrap().slots {
        rot(&specs[1], slot.checkpoint_offset + 8);
    }
    // Behind "kept" in the one open segment of its lane lies "large": 3 blocks, then 25.
    rot(&specs[0], geometry.data_offset + 5 * BLOCK_BYTES);
    let report = checked(&specs);
    assert_eq!(report.damage.iter().filter(|it| it.is_repairable()).count(), 3, "{report:#?}");
    let lost: Vec<_> = report.damaged_tensors().map(|it| it.name.clone().unwrap()).collect();
    assert_eq!(lost, ["large"]);

    let wrong = repair(&specs, &["kept".into()], false, &mut |_| ());
    assert!(matches!(wrong, Err(RepairError::NotDamaged { .. })), "{wrong:?}");
    assert_eq!(checked(&specs).damage, report.damage, "a refused repair changes nothing");

    let repaired = repair(&specs, &[], false, &mut |_| ()).unwrap();
    assert_eq!(repaired.before.damage, report.damage);
    assert!(matches!(repaired.after.damage.as_slice(), [Damage::Tensor(_)]), "{repaired:#?}");
    let pool = Pool::open(&specs, &quick()).unwrap();
    assert!(pool.contains(TensorId::from_name("large")), "lost, but not dropped");
    drop(pool);

    let dropped = repair(&specs, &["large".into()], false, &mut |_| ()).unwrap();
    assert_eq!((dropped.dropped.len(), dropped.after.damage.len()), (1, 0));
    let pool = Pool::open(&specs, &quick()).unwrap();
    assert!(!pool.contains(TensorId::from_name("large")));
    assert_eq!(get(&pool, TensorId::from_name("kept")).unwrap(), vec![1; 10_000]);
}

#[test]
fn a_whole_pool_is_not_written_by_a_repair() {
    let directory = Directory::new("clean");
    let (specs, _) = pool(&directory);
    let before = content(&specs);
    let report = repair(&specs, &[], false, &mut |_| ()).unwrap();
    assert_eq!(report.after.damage, []);
    assert_eq!(content(&specs), before);
}

#[test]
fn wiping_takes_the_signatures_and_nothing_else() {
    let directory = Directory::new("wipe");
    let (specs, geometry) = pool(&directory);
    // A damaged one is a signature all the same.
    rot(&specs[1], BLOCK_BYTES + 50);
    let before = content(&specs);
    let wiped = wipe(&specs, false).unwrap();
    assert_eq!(wiped.len(), 4, "{wiped:?}");
    for (mut old, new) in before.into_iter().zip(content(&specs)) {
        for offset in [BLOCK_BYTES, geometry.second_superblock_offset()] {
            old[offset as usize..][..BLOCK_BYTES as usize].fill(0);
        }
        assert!(old == new, "something else was written");
    }
    assert!(matches!(
        wipe(&specs, false),
        Err(OpenError::Superblock { source: SuperblockError::Absent, .. })
    ));
}

#[test]
fn superblocks_that_lie_about_their_device_are_refused_before_they_are_used() {
    let directory = Directory::new("lies");
    let (specs, geometry) = pool(&directory);
    let view = inspect(&specs).unwrap();
    // Everything about it is right but the size: the device ends long before.
    let device_bytes = 1 << 50;
    let lie = Superblock { geometry: Geometry { device_bytes, ..geometry }, ..view.superblock };
    let file = std::fs::File::options().write(true).open(specs[0].target()).unwrap();
    file.write_all_at(&lie.encode(), BLOCK_BYTES).unwrap();
    assert!(probe(&specs[0]).unwrap().copies[1].state.is_err());
    let alone = &specs[..1];
    assert!(matches!(inspect(alone), Err(OpenError::Shrunk { .. })));
    assert!(matches!(check(alone, false, &mut |_| ()), Err(OpenError::Shrunk { .. })));
    assert!(matches!(Pool::open(alone, &quick()), Err(OpenError::Shrunk { .. })));
}

#[test]
fn a_plan_is_what_formatting_then_does() {
    let directory = Directory::new("plan");
    let specs = directory.devices();
    let options = FormatOptions { over_provision_percent: 10, ..small() };
    let plan = Pool::plan_format(&specs, &[ByteCount::ZERO; 2], &options).unwrap();
    assert!(specs.iter().all(|spec| !spec.exists()));
    assert_eq!(Pool::format(&specs, &options).unwrap().geometry, plan);
    let all = Pool::plan_format(&specs, &[ByteCount::ZERO; 2], &small()).unwrap();
    assert_eq!(plan.segments, all.segments * 9 / 10);
}

#[test]
fn only_the_named_device_is_overwritten_and_its_old_marks_are_gone_at_both_ends() {
    let directory = Directory::new("named");
    let specs = directory.devices();
    let size = ByteCount::mib(8).0;
    for spec in &specs {
        let file = std::fs::File::create(spec.target()).unwrap();
        file.set_len(size).unwrap();
        // Where a RAID of metadata version 1.0 has its superblock.
        file.write_all_at(b"mark", size - 8192).unwrap();
        file.write_all_at(b"mark", 600 << 10).unwrap();
    }
    let named = |specs: &[DeviceSpec]| FormatOptions {
        overwrite_devices: specs.iter().map(identity).collect(),
        ..small()
    };
    let before = content(&specs);
    let refused = Pool::format(&specs, &named(&specs[..1]));
    assert!(matches!(refused, Err(FormatError::HoldsData { .. })), "{refused:?}");
    assert_eq!(content(&specs), before);
    Pool::format(&specs, &named(&specs)).unwrap();
    for bytes in content(&specs) {
        assert!(!bytes.windows(4).any(|four| four == b"mark"));
    }
}

#[test]
fn permission_to_overwrite_goes_with_the_device_and_not_with_its_name() {
    let directory = Directory::new("swapped");
    let specs = &directory.devices()[..1];
    std::fs::write(specs[0].target(), vec![1; 8 << 20]).unwrap();
    let options = FormatOptions { overwrite_devices: vec![identity(&specs[0])], ..small() };
    // Another file takes the name between looking and writing.
    let other = directory.0.join("other");
    std::fs::write(&other, vec![2; 8 << 20]).unwrap();
    std::fs::rename(specs[0].target(), directory.0.join("moved")).unwrap();
    std::fs::rename(&other, specs[0].target()).unwrap();
    let refused = Pool::format(specs, &options);
    assert!(matches!(refused, Err(FormatError::HoldsData { .. })), "{refused:?}");
    assert_eq!(std::fs::read(specs[0].target()).unwrap(), vec![2; 8 << 20]);
}
