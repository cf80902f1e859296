//! Pools on regular files: making them, refusing to harm what is there, both kernel paths.

mod common;

use std::os::unix::fs::MetadataExt;

use common::{Directory, get, quick, small, stage};
use tidelog_engine::layout::TensorId;
use tidelog_engine::memory::Source;
use tidelog_engine::path::{DeviceSpec, PathChoice, PathKind};
use tidelog_engine::pool::{
    FormatError, FormatOptions, Housekeeping, OpenError, OpenOptions, Pool, PutError, PutOptions,
};
use tidelog_engine::units::ByteCount;

#[test]
fn what_one_path_writes_another_reads() {
    let directory = Directory::new("paths");
    let specs = directory.devices();
    let description = Pool::format(&specs, &small()).unwrap();
    assert_eq!(description.geometry.devices, 2);
    let content: Vec<u8> = (0..300_001_u32).map(|index| (index * 7 / 5) as u8).collect();
    let by = |path| OpenOptions { path, ..quick() };

    let pool = Pool::open(&specs, &by(PathChoice::Posix)).unwrap();
    let mut batch = pool.batch();
    stage(&mut batch, "weight", content.clone());
    batch.commit().unwrap();
    assert_eq!(pool.stats().unwrap().reactor.capabilities.kind, PathKind::Posix);
    pool.close().unwrap();

    let pool = Pool::open(&specs, &by(PathChoice::Auto)).unwrap();
    let stats = pool.stats().unwrap();
    let is_best = stats.reactor.capabilities.kind == PathKind::Uring;
    assert_eq!(is_best, stats.reactor.why_not.is_empty(), "a worse path says why");
    assert_eq!(get(&pool, TensorId::from_name("weight")).unwrap(), content);
    let scratch = TensorId(1);
    pool.put(scratch, Source::from(content.clone()), PutOptions::default())
        .unwrap()
        .wait()
        .unwrap();
    assert_eq!(get(&pool, scratch).unwrap(), content);
    pool.audit().unwrap();
}

#[test]
fn a_directory_is_a_device_and_its_file_is_not_sparse() {
    let directory = Directory::new("directory");
    let spec = DeviceSpec::new(&directory.0);
    Pool::format(std::slice::from_ref(&spec), &small()).unwrap();
    let metadata = spec.target().metadata().unwrap();
    assert_eq!(metadata.len(), 8 << 20);
    assert!(metadata.blocks() * 512 >= metadata.len(), "every byte is reserved");
    Pool::open(&[spec], &quick()).unwrap();
}

#[test]
fn data_of_others_is_not_formatted_over_and_nothing_is_left_behind() {
    let directory = Directory::new("foreign");
    let specs = directory.devices();
    let photo = specs[1].target();
    for content in [b"holiday".to_vec(), [vec![0; 3 << 20], vec![1]].concat()] {
        std::fs::write(&photo, &content).unwrap();
        let refused = Pool::format(&specs, &small());
        assert!(matches!(refused, Err(FormatError::HoldsData { .. })), "{refused:?}");
        assert_eq!(std::fs::read(&photo).unwrap(), content);
        assert!(!specs[0].exists(), "the other device was not made");
    }
    let overwrite = FormatOptions { overwrite: true, ..small() };
    // 3 MiB and a byte: the file keeps its size, and the pool takes what fits on both.
    let description = Pool::format(&specs, &overwrite).unwrap();
    assert_eq!(description.geometry.device_bytes, 3 << 20);
    Pool::open(&specs, &quick()).unwrap();
}

#[test]
fn a_file_that_was_reserved_beforehand_is_blank() {
    let directory = Directory::new("blank");
    let specs = directory.devices();
    std::fs::File::create(specs[0].target()).unwrap();
    std::fs::File::create(specs[1].target()).unwrap().set_len(8 << 20).unwrap();
    Pool::format(&specs, &small()).unwrap();
    Pool::open(&specs, &quick()).unwrap();
}

#[test]
fn impossible_pools_leave_no_files() {
    let directory = Directory::new("impossible");
    let specs = directory.devices();
    let format = |options: FormatOptions| Pool::format(&specs, &options);
    let no_size = format(FormatOptions { device_size: None, ..small() });
    assert!(matches!(no_size, Err(FormatError::SizeNeeded(_))), "{no_size:?}");
    let tiny = FormatOptions { device_size: Some(ByteCount::kib(64)), ..small() };
    assert!(matches!(format(tiny), Err(FormatError::Geometry(_))));
    let huge = FormatOptions { device_size: Some(ByteCount::gib(1 << 30)), ..small() };
    assert!(format(huge).is_err());
    assert_eq!(directory.0.read_dir().unwrap().count(), 0);
}

#[test]
fn one_device_under_two_names_is_noticed() {
    let directory = Directory::new("twins");
    let file = directory.0.join("device");
    std::fs::File::create(&file).unwrap();
    let link = directory.0.join("link");
    std::os::unix::fs::symlink(&file, &link).unwrap();
    let twins = [DeviceSpec::new(&file), DeviceSpec::new(link)];
    let refused = Pool::format(&twins, &small());
    assert!(matches!(refused, Err(FormatError::SameDevice(..))), "{refused:?}");
    assert_eq!(file.metadata().unwrap().len(), 0);
    let Err(OpenError::NotOnePool(what)) = Pool::open(&twins, &quick()) else {
        panic!("opened one device twice");
    };
    assert!(what.contains("the same device"), "{what}");
    // A directory and the file in it, neither of which is there yet.
    let inside = directory.0.join("tidelog.device");
    let twins = [DeviceSpec::new(&directory.0), DeviceSpec::new(&inside)];
    assert!(Pool::format(&twins, &small()).is_err());
    assert!(!inside.exists());
}

#[test]
fn a_missing_or_shrunken_device_is_named() {
    let directory = Directory::new("shrunken");
    let specs = directory.devices();
    let missing = Pool::open(&specs, &quick());
    assert!(matches!(missing, Err(OpenError::Device(_))));
    Pool::format(&specs, &small()).unwrap();
    let file = std::fs::File::options().write(true).open(specs[1].target()).unwrap();
    file.set_len(7 << 20).unwrap();
    let Err(error) = Pool::open(&specs, &quick()) else {
        panic!("opened a pool that lost its end")
    };
    assert!(matches!(error, OpenError::Shrunk { .. }), "{error}");
    assert!(error.to_string().contains(&specs[1].to_string()), "{error}");
}

#[test]
fn a_pool_on_files_keeps_house_by_itself_and_gives_its_share_back_at_once() {
    let directory = Directory::new("housekeeping");
    let specs = directory.devices();
    Pool::format(&specs, &small()).unwrap();
    let content = |id: u128| vec![id as u8; 20_000];
    for _ in 0..5 {
        let housekeeping =
            Some(Housekeeping { scrub_rate: ByteCount::mib(64), ..Housekeeping::default() });
        let pool = Pool::open(&specs, &OpenOptions { housekeeping, ..quick() }).unwrap();
        let capacity = pool.description().capacity.0;
        // Three times what fits; of each three, one lives on for a while.
        let puts = u128::from(3 * capacity / 20_000);
        let lives = |id: u128| id.is_multiple_of(3) && id + 300 > puts;
        for id in 0..puts {
            let source = Source::from(content(id));
            pool.put(TensorId(id), source, PutOptions::default()).unwrap().wait().unwrap();
            if let Some(dying) = id.checked_sub(3) {
                pool.delete(TensorId(dying - dying % 3 + 1)).ok();
                pool.delete(TensorId(dying - dying % 3 + 2)).ok();
            }
            if let Some(old) = id.checked_sub(300).filter(|old| old.is_multiple_of(3)) {
                pool.delete(TensorId(old)).unwrap();
            }
        }
        for id in (0..puts).filter(|id| lives(*id)) {
            assert_eq!(get(&pool, TensorId(id)).unwrap(), content(id));
        }
        assert!(pool.scrub().unwrap().damaged.is_empty());
        assert!(pool.discard_once().unwrap().is_none(), "files keep what was reserved for them");
        pool.audit().unwrap();
        // The next open finds the share free: the thread has ended.
        drop(pool);
    }
}

#[test]
fn readers_share_a_share_keep_writers_out_and_change_no_byte() {
    let directory = Directory::new("readers");
    let specs = directory.devices();
    Pool::format(&specs, &FormatOptions { share_count: 2, ..small() }).unwrap();
    let writer = Pool::open(&specs, &quick()).unwrap();
    let mut batch = writer.batch();
    stage(&mut batch, "weight", vec![7; 100_000]);
    batch.commit().unwrap();
    let to_read = |path| OpenOptions { read_only: true, path, ..quick() };
    let refused = Pool::open(&specs, &to_read(PathChoice::Auto)).map(drop).unwrap_err();
    assert!(matches!(refused, OpenError::ShareHeld { share: 0, .. }), "{refused}");
    // Another share is another matter.
    let mut other = to_read(PathChoice::Auto);
    other.share = 1;
    assert!(Pool::open(&specs, &other).unwrap().durable_tensors().unwrap().is_empty());
    writer.close().unwrap();

    let contents = || specs.iter().map(|spec| std::fs::read(spec.target()).unwrap());
    let times = || specs.iter().map(|spec| spec.target().metadata().unwrap().modified().unwrap());
    let (before, written): (Vec<_>, Vec<_>) = (contents().collect(), times().collect());
    let readers = [PathChoice::Auto, PathChoice::Posix]
        .map(|path| Pool::open(&specs, &to_read(path)).unwrap());
    let refused = Pool::open(&specs, &quick()).map(drop).unwrap_err();
    assert!(matches!(refused, OpenError::ShareHeld { share: 0, .. }), "{refused}");
    for reader in &readers {
        assert_eq!(get(reader, TensorId::from_name("weight")).unwrap(), vec![7; 100_000]);
        let put = reader.put("weight", Source::from(vec![1]), PutOptions::default());
        assert!(matches!(put, Err(PutError::ReadOnly(_))), "{put:?}");
    }
    drop(readers);
    assert!(contents().eq(before), "a byte has changed");
    assert!(times().eq(written), "something was written");
    Pool::open(&specs, &quick()).unwrap();
}
