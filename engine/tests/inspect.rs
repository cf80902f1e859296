//! Looking at, checking, repairing and wiping pools on files.

mod common;

use std::os::unix::fs::FileExt;

use common::{Directory, get, quick, small, stage};
use tidelog_engine::layout::{
    BLOCK_BYTES, Geometry, HOLDERS_OFFSET, Superblock, SuperblockError, TensorId,
};
use tidelog_engine::path::{DeviceIdentity, DeviceOpenError, DeviceSpec};
use tidelog_engine::pool::inspect::{
    CheckReport, CopyState, Damage, DeviceView, DropError, DropName, RepairError, check, inspect,
    probe, repair, wipe,
};
use tidelog_engine::pool::{FormatError, FormatOptions, OpenError, Pool};
use tidelog_engine::units::ByteCount;

/// A pool of two files with two tensors, and its geometry.
fn pool(directory: &Directory) -> (Vec<DeviceSpec>, Geometry) {
    let specs = directory.devices();
    let geometry = Pool::format(&specs, &small()).unwrap().geometry;
    put_two(&Pool::open(&specs, &quick()).unwrap());
    (specs, geometry)
}

fn put_two(pool: &Pool) {
    let mut batch = pool.batch();
    stage(&mut batch, "kept", vec![1; 10_000]);
    stage(&mut batch, "large", vec![2; 100_000]);
    batch.commit().unwrap();
}

/// Makes a pool, as [`pool`] does, and leaves it like a process that is killed.
fn killed_pool(directory: &Directory) -> (Vec<DeviceSpec>, Geometry) {
    let specs = directory.devices();
    let geometry = Pool::format(&specs, &small()).unwrap().geometry;
    forget_closing(&specs, put_two);
    (specs, geometry)
}

/// Opens the pool, uses it, closes it, and puts back what the opening had left of itself.
fn forget_closing(specs: &[DeviceSpec], using: impl FnOnce(&Pool)) {
    let pool = Pool::open(specs, &quick()).unwrap();
    let opened: Vec<_> = specs.iter().map(|spec| block(spec, HOLDERS_OFFSET)).collect();
    using(&pool);
    pool.close().unwrap();
    for (spec, opened) in specs.iter().zip(opened) {
        write(spec, HOLDERS_OFFSET, &opened);
    }
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

    let wrong = repair(&specs, &[DropName::Bare("kept".into())], false, &mut |_| ());
    assert!(matches!(wrong, Err(RepairError::Drop(DropError::NotDamaged { .. }))), "{wrong:?}");
    assert_eq!(checked(&specs).damage, report.damage, "a refused repair changes nothing");

    let repaired = repair(&specs, &[], false, &mut |_| ()).unwrap();
    assert_eq!(repaired.before.damage, report.damage);
    assert!(matches!(repaired.after.damage.as_slice(), [Damage::Tensor(_)]), "{repaired:#?}");
    let pool = Pool::open(&specs, &quick()).unwrap();
    assert!(pool.contains(TensorId::from_name("large")), "lost, but not dropped");
    drop(pool);

    let dropped = repair(&specs, &[DropName::Bare("large".into())], false, &mut |_| ()).unwrap();
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
    // The second tells, as long as it stands.
    let told = |probed: DeviceView| probed.newest.map(|it| it.geometry);
    assert_eq!(told(probe(&specs[0]).unwrap()), Ok(geometry));
    rot(&specs[0], geometry.second_superblock_offset() + 50);
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

fn write(spec: &DeviceSpec, offset: u64, bytes: &[u8]) {
    let file = std::fs::File::options().write(true).open(spec.target()).unwrap();
    file.write_all_at(bytes, offset).unwrap();
    file.sync_all().unwrap();
}

fn block(spec: &DeviceSpec, offset: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK_BYTES as usize];
    std::fs::File::open(spec.target()).unwrap().read_exact_at(&mut bytes, offset).unwrap();
    bytes
}

const NOTHING: [u8; BLOCK_BYTES as usize] = [0; BLOCK_BYTES as usize];

/// A pool whose second device is larger than the first: its second superblock stands in the middle.
fn uneven_pool(directory: &Directory) -> (Vec<DeviceSpec>, u64) {
    let specs = directory.devices();
    std::fs::File::create(specs[1].target()).unwrap().set_len(16 << 20).unwrap();
    let made = Pool::format(&specs, &small()).unwrap();
    (specs, made.geometry.second_superblock_offset())
}

#[test]
fn a_wipe_that_was_killed_anywhere_is_finished_by_the_same_call() {
    let directory = Directory::new("half-wiped");
    let (specs, second) = uneven_pool(&directory);
    let whole = content(&specs);
    let steps = wipe(&specs, false).unwrap();
    let wiped = content(&specs);
    assert_eq!(steps.len(), 4, "{steps:?}");
    for done in 0..steps.len() {
        for (spec, bytes) in specs.iter().zip(&whole) {
            std::fs::write(spec.target(), bytes).unwrap();
        }
        for step in &steps[..done] {
            let spec = specs.iter().find(|spec| spec.to_string() == step.device).unwrap();
            write(spec, step.offset.0, &NOTHING);
        }
        assert_eq!(wipe(&specs, false).unwrap(), steps[done..], "after {done}");
        assert!(content(&specs) == wiped, "after {done}");
    }
    // As an older version left it: the first superblock gone before the second.
    write(&specs[0], BLOCK_BYTES, &whole[0][BLOCK_BYTES as usize..][..BLOCK_BYTES as usize]);
    write(&specs[1], second, &whole[1][second as usize..][..BLOCK_BYTES as usize]);
    assert_eq!(wipe(&specs, false).unwrap().len(), 2);
    assert!(content(&specs) == wiped);
    // What is no pool's and was not wiped is a slip.
    write(&specs[0], BLOCK_BYTES, &whole[0][BLOCK_BYTES as usize..][..BLOCK_BYTES as usize]);
    write(&specs[1], BLOCK_BYTES, b"something");
    let refused = wipe(&specs, false);
    assert!(matches!(refused, Err(OpenError::Superblock { .. })), "{refused:?}");
    assert!(probe(&specs[0]).unwrap().newest.is_ok(), "nothing was wiped");
}

#[test]
fn an_older_pools_second_superblock_makes_no_pool_again() {
    let directory = Directory::new("older");
    let (specs, second) = uneven_pool(&directory);
    let older = block(&specs[1], second);
    let options = FormatOptions { overwrite: true, device_size: None, ..small() };
    Pool::format(&specs[1..], &options).unwrap();
    assert!(block(&specs[1], second) == NOTHING, "it went with its pool");
    // A version that left it there.
    write(&specs[1], second, &older);
    wipe(&specs[1..], false).unwrap();
    let refused = repair(&specs, &[], false, &mut |_| ());
    assert!(matches!(refused, Err(RepairError::Open(OpenError::Superblock { .. }))), "{refused:?}");
    assert!(Pool::open(&specs, &quick()).is_err());
    assert!(block(&specs[1], BLOCK_BYTES) == NOTHING);
}

#[test]
fn a_damaged_first_superblock_still_says_where_the_second_is_to_be_wiped() {
    let directory = Directory::new("damaged-wipe");
    let (specs, second) = uneven_pool(&directory);
    rot(&specs[1], BLOCK_BYTES + 130);
    assert_eq!(wipe(&specs[1..], false).unwrap().len(), 2);
    assert!(block(&specs[1], second) == NOTHING && block(&specs[1], BLOCK_BYTES) == NOTHING);
}

#[test]
fn the_last_record_on_one_copy_alone_is_no_damage_and_any_other_is() {
    let directory = Directory::new("unsettled");
    let (specs, geometry) = killed_pool(&directory);
    let slot = geometry.share(0).unwrap().slots[0];
    let with_one = block(&specs[1], slot.log_offset);
    // As a process leaves it that was killed between the two writes of a record.
    for (lacks, spec) in specs.iter().enumerate() {
        write(spec, slot.log_offset, &NOTHING);
        let report = checked(&specs);
        assert_eq!(report.damage, [], "{lacks}");
        assert_eq!((report.unsettled.len(), report.tensors), (1, 2));
        let note = report.unsettled[0].to_string();
        assert!(note.starts_with(&spec.to_string()), "{note}");
        assert!(note.contains("the next open writes it"), "{note}");
        let index = inspect(&specs).unwrap().shares.remove(0).index.unwrap();
        assert!(matches!(index.copies[lacks].state, CopyState::Behind(_)), "{index:?}");
        let before = content(&specs);
        repair(&specs, &[], false, &mut |_| ()).unwrap();
        assert_eq!(content(&specs), before, "there is nothing to repair");
        write(spec, slot.log_offset, &with_one);
        assert_eq!(checked(&specs).unsettled, []);
    }
    // The next open settles it, into the other slot.
    write(&specs[1], slot.log_offset, &NOTHING);
    drop(Pool::open(&specs, &quick()).unwrap());
    let report = checked(&specs);
    assert_eq!((report.damage, report.unsettled, report.tensors), (vec![], vec![], 2));

    // Two records behind is what no crash leaves.
    let pool = Pool::open(&specs, &quick()).unwrap();
    for name in ["third", "fourth"] {
        let mut batch = pool.batch();
        stage(&mut batch, name, vec![3; 5000]);
        batch.commit().unwrap();
    }
    drop(pool);
    let slot = geometry.share(0).unwrap().slots[1];
    write(&specs[1], slot.log_offset, &[NOTHING, NOTHING].concat());
    let report = checked(&specs);
    assert!(matches!(report.damage.as_slice(), [Damage::IndexCopy { .. }]), "{report:?}");
}

#[test]
fn a_checkpoint_that_one_device_has_not_begun_is_no_damage_and_a_damaged_one_is() {
    let directory = Directory::new("begun");
    let (specs, geometry) = pool(&directory);
    let before = content(&specs);
    forget_closing(&specs, |_| ());
    let slot = geometry.share(0).unwrap().slots[1];
    let range = slot.checkpoint_offset as usize..(slot.checkpoint_offset + BLOCK_BYTES) as usize;
    // The second checkpoint, of which this device has nothing yet.
    write(&specs[1], slot.checkpoint_offset, &before[1][range]);
    let report = checked(&specs);
    assert_eq!((report.damage, report.unsettled.len()), (vec![], 1));
    // One that was there on both when the pool was closed.
    drop(Pool::open(&specs, &quick()).unwrap());
    let slot = geometry.share(0).unwrap().slots[0];
    write(&specs[1], slot.checkpoint_offset, &[7; 64]);
    let report = checked(&specs);
    assert!(matches!(report.damage.as_slice(), [Damage::IndexCopy { .. }]), "{report:?}");
}

#[test]
fn a_superblock_of_a_newer_version_is_not_written_over_because_the_other_copy_is_older() {
    let directory = Directory::new("newer");
    let (specs, geometry) = pool(&directory);
    let places = [BLOCK_BYTES, geometry.second_superblock_offset()];
    // A version, and the last feature bit, that this version does not know, in one of the copies.
    for (place, (field, value)) in
        places.into_iter().flat_map(|at| [(at, (8, 2_u8)), (at, (31, 128))])
    {
        let whole = block(&specs[0], place);
        let mut newer = whole.clone();
        newer[field] |= value;
        newer[12..16].fill(0);
        let checksum = crc32c::crc32c(&newer);
        newer[12..16].copy_from_slice(&checksum.to_le_bytes());
        write(&specs[0], place, &newer);
        let before = content(&specs);
        let open = |error: Option<OpenError>| match error {
            Some(OpenError::Superblock { source, .. }) => source,
            other => panic!("{other:?}"),
        };
        let refused = [
            open(Pool::open(&specs, &quick()).err()),
            open(check(&specs, false, &mut |_| ()).err()),
            open(inspect(&specs).err()),
            match repair(&specs, &[], false, &mut |_| ()).err() {
                Some(RepairError::Open(error)) => open(Some(error)),
                other => panic!("{other:?}"),
            },
        ];
        assert!(refused.iter().all(SuperblockError::is_of_another_version), "{refused:?}");
        assert_eq!(content(&specs), before);
        write(&specs[0], place, &whole);
    }
    assert_eq!(checked(&specs).damage, []);
}

#[test]
fn a_file_that_another_program_may_write_or_has_locked_is_not_formatted() {
    let directory = Directory::new("used");
    let specs = &directory.devices()[..1];
    let path = specs[0].target();
    std::fs::write(&path, vec![1; 8 << 20]).unwrap();
    let options = FormatOptions { overwrite: true, ..small() };
    let locked = std::fs::File::open(&path).unwrap();
    locked.lock().unwrap();
    let refused = Pool::format(specs, &options);
    assert!(
        matches!(refused, Err(FormatError::Device(DeviceOpenError::Used { .. }))),
        "{refused:?}"
    );
    drop(locked);
    let writer = std::fs::File::options().append(true).open(&path).unwrap();
    let mut other = std::process::Command::new("sleep").arg("1000").stdout(writer).spawn().unwrap();
    let refused = Pool::format(specs, &options);
    other.kill().unwrap();
    other.wait().unwrap();
    // File systems without leases cannot tell.
    if let Err(error) = &refused {
        assert!(error.to_string().contains("open for writing"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), vec![1; 8 << 20]);
    }
    Pool::format(specs, &options).unwrap();
}

#[test]
fn where_devices_must_exist_no_file_is_made() {
    let directory = Directory::new("must-exist");
    let specs = directory.devices();
    let options = FormatOptions { must_exist: true, ..small() };
    std::fs::File::create(specs[0].target()).unwrap();
    let refused = Pool::format(&specs, &options);
    assert!(
        matches!(refused, Err(FormatError::Device(DeviceOpenError::Missing { .. }))),
        "{refused:?}"
    );
    assert!(!specs[1].exists() && content(&specs[..1]) == [vec![]]);
}
