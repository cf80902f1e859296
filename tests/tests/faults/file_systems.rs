//! File systems that cannot reserve space for a file, which are given zeroes to store; and those
//! that have no more room, for one reason or another, under files that are sparse.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tidelog_engine::layout::TensorId;
use tidelog_engine::memory::{Destination, Source};
use tidelog_engine::path::{DeviceOpenError, DeviceSpec, PathChoice, PathKind};
use tidelog_engine::pool::{FormatError, FormatOptions, OpenOptions, Pool, PutOptions};
use tidelog_engine::schedule::Urgency;
use tidelog_engine::units::ByteCount;
use tidelog_tests::machine::{Directory, LoopDevice, LoopOptions, Mount, Ran, Unavailable, skip};

use super::rig::{DEVICE_BYTES, close_after_faults, format_options, open_options, watch};

const FILE_SYSTEM_BYTES: u64 = 64 << 20;

/// Runs a scenario on a file system of a given size, if this machine has one to give.
fn on_file_system(
    test: &'static str,
    bytes: u64,
    mount: impl FnOnce(&Path, &Path) -> Result<Mount, Unavailable>,
    scenario: impl FnOnce(&Path),
) {
    on_mount(test, bytes, mount, |_, mount| scenario(mount.path()));
}

/// Runs a scenario that does more with a file system than to use it.
fn on_mount(
    test: &'static str,
    bytes: u64,
    mount: impl FnOnce(&Path, &Path) -> Result<Mount, Unavailable>,
    scenario: impl FnOnce(&Path, Mount),
) {
    let _watchdog = watch(test);
    let directory = Directory::new(test).unwrap();
    let at = directory.path().join("mounted");
    std::fs::create_dir(&at).unwrap();
    let image = directory.sparse_file("image", bytes).unwrap();
    let device = match LoopDevice::attach(&image, LoopOptions::default()) {
        Ok(device) => device,
        Err(why) => return skip(test, &why),
    };
    let node = Path::new(device.node());
    match mount(node, &at) {
        Ok(mount) => scenario(node, mount),
        Err(why) => skip(test, &why),
    }
}

/// Returns the size of a file in its file system.
fn stored(path: &Path) -> u64 {
    path.metadata().unwrap().blocks() * 512
}

fn makes_pools_whose_space_is_there(at: &Path) {
    let probe = at.join("probe");
    let file = File::create(&probe).unwrap();
    let reserved = nix::fcntl::fallocate(&file, nix::fcntl::FallocateFlags::empty(), 0, 4096);
    assert_eq!(reserved, Err(nix::errno::Errno::EOPNOTSUPP), "this file system shows nothing");
    drop(file);
    std::fs::remove_file(probe).unwrap();

    let specs = ["new", "sparse"].map(|name| DeviceSpec::new(at.join(name)));
    let [new, there] = specs.each_ref().map(DeviceSpec::target);
    File::create(&there).unwrap().set_len(DEVICE_BYTES).unwrap();
    let options = FormatOptions { device_size: Some(ByteCount(DEVICE_BYTES)), ..format_options() };
    Pool::format(&specs, &options).unwrap();
    for path in [&new, &there] {
        assert_eq!(path.metadata().unwrap().len(), DEVICE_BYTES);
        assert!(stored(path) >= DEVICE_BYTES, "{}: {}", path.display(), stored(path));
    }
    let pool = Pool::open(&specs, &open_options()).unwrap();
    let mut batch = pool.batch();
    batch.put("tensor", Source::from(vec![7; 1 << 20]), PutOptions::default()).unwrap();
    batch.commit().unwrap();
    assert_eq!(pool.scrub().unwrap().damaged, []);
    pool.close().unwrap();

    // What is too large is told as that, and leaves nothing behind.
    let large = [DeviceSpec::new(at.join("large"))];
    let options = FormatOptions { device_size: Some(ByteCount(FILE_SYSTEM_BYTES)), ..options };
    let refused = Pool::format(&large, &options).unwrap_err();
    assert!(matches!(&refused, FormatError::Device(DeviceOpenError::Reserve { .. })), "{refused}");
    let text = refused.to_string();
    assert!(text.contains("No space left") && text.contains("sparse"), "{text}");
    assert!(!large[0].exists(), "a refused format has left its file");
}

/// Puts into sparse pools of one file each, on both data paths, until there is no room. That must
/// be told in these words; and once there is, the same pool goes on.
fn runs_out_and_goes_on(at: &Path, says: &str, narrow: impl Fn(&Path), widen: impl Fn(&Path)) {
    for path in [PathChoice::Posix, PathChoice::Auto] {
        let spec = [DeviceSpec::new(at.join("sparse"))];
        let file = spec[0].target();
        let device_size = Some(ByteCount(FILE_SYSTEM_BYTES / 2));
        let options = FormatOptions { device_size, sparse: true, ..format_options() };
        Pool::format(&spec, &options).unwrap();
        narrow(&file);
        let pool = Pool::open(&spec, &OpenOptions { path, ..open_options() }).unwrap();
        // Several pieces each, and pieces of several blocks: room ends in the middle of one.
        let put = |number: u8| {
            let (id, bytes) = (TensorId::from_name(&number.to_string()), vec![number; 900_000]);
            let put = pool.put(id, Source::from(bytes), PutOptions::default()).unwrap();
            put.wait().map(drop).map_err(|error| error.to_string())
        };
        let failures: Vec<String> = (0..30).filter_map(|number| put(number).err()).collect();
        assert!(failures.len() > 1, "there was room");
        for failure in failures {
            assert!(failure.contains(says) && failure.contains("device 0"), "{failure}");
        }
        widen(&file);
        (0..30).for_each(|number| put(number).unwrap());
        let mut batch = pool.batch();
        batch.put("durable", Source::from(vec![7; 5000]), PutOptions::default()).unwrap();
        batch.commit().unwrap();
        assert_eq!(pool.scrub().unwrap().damaged, []);
        pool.close().unwrap();
        std::fs::remove_file(file).unwrap();
    }
}

#[test]
fn a_full_file_system_is_told_as_that_and_the_pool_goes_on_once_there_is_room() {
    on_file_system(
        "a_full_file_system_is_told_as_that_and_the_pool_goes_on_once_there_is_room",
        FILE_SYSTEM_BYTES,
        Mount::ext4,
        |at| {
            let others = at.join("others");
            let narrow = |_: &Path| std::fs::write(&others, vec![1; 44 << 20]).unwrap();
            let widen = |_: &Path| std::fs::remove_file(&others).unwrap();
            runs_out_and_goes_on(at, "No space left on device (os error 28)", narrow, widen);
        },
    );
}

/// Runs a program that has to do with quotas.
fn quota(program: &str, arguments: &[&str], at: &Path) {
    Ran::of(Command::new(program).args(arguments).arg(at)).expect(0);
}

#[test]
fn a_quota_that_is_used_up_is_told_as_that_and_the_pool_goes_on_once_it_is_raised() {
    const OWNER: u32 = 12_345;
    let test = "a_quota_that_is_used_up_is_told_as_that_and_the_pool_goes_on_once_it_is_raised";
    on_file_system(test, 320 << 20, Mount::xfs_with_quotas, |at| {
        let limit = |mib: u32| {
            let command = format!("limit bhard={mib}m {OWNER}");
            quota("xfs_quota", &["-x", "-c", &command], at);
        };
        let narrow = |file: &Path| {
            std::os::unix::fs::chown(file, Some(OWNER), None).unwrap();
            limit(16);
        };
        runs_out_and_goes_on(at, "(os error 122): its owner's quota", narrow, |_| limit(1000));
    });
}

/// Checks a quota where the kernel's XFS knows no quotas.
#[test]
fn a_quota_of_a_subvolume_that_is_used_up_is_told_as_that_and_the_pool_goes_on() {
    /// The first subvolume that is made.
    const SUBVOLUME: &str = "0/256";
    let test = "a_quota_of_a_subvolume_that_is_used_up_is_told_as_that_and_the_pool_goes_on";
    on_file_system(test, 320 << 20, Mount::btrfs_with_quotas, |at| {
        let subvolume = at.join("subvolume");
        quota("btrfs", &["subvolume", "create"], &subvolume);
        // By way of the file system's root: a limit that is reached may refuse another one, too.
        let limit = |size: &str| quota("btrfs", &["qgroup", "limit", size, SUBVOLUME], at);
        let narrow = |_: &Path| {
            // What a file had that was removed counts until then.
            quota("btrfs", &["filesystem", "sync"], at);
            limit("16M");
        };
        let widen = |_: &Path| limit("none");
        runs_out_and_goes_on(&subvolume, "(os error 122): its owner's quota", narrow, widen);
    });
}

#[test]
fn a_pool_on_ext3_has_all_of_its_space() {
    on_file_system(
        "a_pool_on_ext3_has_all_of_its_space",
        FILE_SYSTEM_BYTES,
        |device, at| Mount::made_by(&["mkfs.ext3", "-q", "-m", "0"], device, at),
        |at| {
            makes_pools_whose_space_is_there(at);
            let spec = [DeviceSpec::new(at.join("asked-to-be-sparse"))];
            let device_size = Some(ByteCount(FILE_SYSTEM_BYTES));
            let options = FormatOptions { device_size, sparse: true, ..format_options() };
            Pool::format(&spec, &options).unwrap();
            assert!(stored(&spec[0].target()) < FILE_SYSTEM_BYTES / 2);
        },
    );
}

#[test]
fn a_pool_on_vfat_has_all_of_its_space() {
    on_file_system(
        "a_pool_on_vfat_has_all_of_its_space",
        FILE_SYSTEM_BYTES,
        |device, at| Mount::made_by(&["mkfs.vfat"], device, at),
        makes_pools_whose_space_is_there,
    );
}

#[test]
fn a_pool_on_a_file_system_by_fuse_has_all_of_its_space() {
    on_file_system(
        "a_pool_on_a_file_system_by_fuse_has_all_of_its_space",
        FILE_SYSTEM_BYTES,
        Mount::by_fuse,
        makes_pools_whose_space_is_there,
    );
}

/// Makes and opens a pool of one file.
fn made(at: &Path, path: PathChoice) -> ([DeviceSpec; 1], Pool) {
    let spec = [DeviceSpec::new(at.join("pool"))];
    let device_size = Some(ByteCount(DEVICE_BYTES));
    Pool::format(&spec, &FormatOptions { device_size, ..format_options() }).unwrap();
    let pool = Pool::open(&spec, &OpenOptions { path, ..open_options() }).unwrap();
    (spec, pool)
}

/// Puts and reads on a file system of which only this is to be shown: bytes, and what is durable.
fn is_used_as_any(at: &Path) {
    for path in [PathChoice::Posix, PathChoice::Auto] {
        let (spec, pool) = made(at, path);
        (0..8).for_each(|number| put(&pool, number));
        pool.close().unwrap();
        let pool = Pool::open(&spec, &OpenOptions { path, ..open_options() }).unwrap();
        (0..8).for_each(|number| assert_eq!(get(&pool, number), content(number)));
        assert_eq!(pool.scrub().unwrap().damaged, []);
        pool.close().unwrap();
        std::fs::remove_file(spec[0].target()).unwrap();
    }
}

fn content(number: u8) -> Vec<u8> {
    vec![number; 300_000]
}

/// Puts one durable tensor.
fn put(pool: &Pool, number: u8) {
    let (mut batch, source) = (pool.batch(), Source::from(content(number)));
    batch.put(&*number.to_string(), source, PutOptions::default()).unwrap();
    batch.commit().unwrap();
}

fn get(pool: &Pool, number: u8) -> Vec<u8> {
    let id = TensorId::from_name(&number.to_string());
    let length = content(number).len();
    let memory = Destination::buffer(length);
    let ticket = pool.get(id, 0..length as u64, memory, Urgency::Urgent, None).unwrap();
    ticket.wait().unwrap();
    ticket.take_bytes().unwrap()
}

#[test]
fn a_pool_on_an_overlay_is_as_any() {
    on_file_system("a_pool_on_an_overlay_is_as_any", FILE_SYSTEM_BYTES, Mount::ext4, |at| {
        let (layers, merged) = (at.join("layers"), at.join("merged"));
        for folder in [&layers, &merged] {
            std::fs::create_dir(folder).unwrap();
        }
        match Mount::overlay(&layers, &merged) {
            Ok(mount) => is_used_as_any(mount.path()),
            Err(why) => skip("a_pool_on_an_overlay_is_as_any", &why),
        }
    });
}

/// Direct writes go through the page cache there, as the checksums are of what does not change.
#[test]
fn a_pool_on_a_file_system_with_checksums_is_as_any() {
    on_file_system(
        "a_pool_on_a_file_system_with_checksums_is_as_any",
        320 << 20,
        |device, at| Mount::made_by(&["mkfs.btrfs", "-q"], device, at),
        is_used_as_any,
    );
}

#[test]
fn writes_wait_for_a_frozen_file_system_and_go_on_when_it_is_thawed() {
    let test = "writes_wait_for_a_frozen_file_system_and_go_on_when_it_is_thawed";
    on_mount(test, FILE_SYSTEM_BYTES, Mount::ext4, |_, mount| {
        for path in [PathChoice::Posix, PathChoice::Auto] {
            let (spec, pool) = made(mount.path(), path);
            put(&pool, 1);
            let frozen = match mount.freeze() {
                Ok(frozen) => frozen,
                Err(why) => return skip(test, &why),
            };
            std::thread::scope(|threads| {
                let commit = threads.spawn(|| put(&pool, 2));
                // Long enough for the write to have been given to the file system.
                std::thread::sleep(Duration::from_millis(200));
                assert!(!commit.is_finished(), "the file system is not frozen");
                // The threads of `posix` may all be in a write.
                if pool.stats().unwrap().reactor.capabilities.kind == PathKind::Uring {
                    assert_eq!(get(&pool, 1), content(1));
                }
                drop(frozen);
            });
            assert_eq!(get(&pool, 2), content(2));
            pool.close().unwrap();
            std::fs::remove_file(spec[0].target()).unwrap();
        }
    });
}

#[test]
fn a_file_system_that_shuts_down_is_an_error_and_what_was_committed_is_there_afterwards() {
    let test =
        "a_file_system_that_shuts_down_is_an_error_and_what_was_committed_is_there_afterwards";
    let xfs = |device: &Path, at: &Path| Mount::made_by(&["mkfs.xfs", "-q"], device, at);
    on_mount(test, 320 << 20, xfs, |device, mut mount| {
        for path in [PathChoice::Posix, PathChoice::Auto] {
            let at = mount.path().to_owned();
            let (spec, pool) = made(&at, path);
            put(&pool, 1);
            if let Err(why) = mount.shut_down() {
                return skip(test, &why);
            }
            let id = TensorId::from_name("2");
            let refused = pool.put(id, Source::from(content(2)), PutOptions::default()).unwrap();
            let refused = refused.wait().unwrap_err().to_string();
            assert!(refused.contains("(os error 5): the device, or the way to it"), "{refused}");
            close_after_faults(&pool);
            drop((pool, mount));

            mount = Mount::of(device, &at).unwrap();
            let pool = Pool::open(&spec, &OpenOptions { path, ..open_options() }).unwrap();
            assert_eq!(get(&pool, 1), content(1));
            put(&pool, 2);
            pool.close().unwrap();
            std::fs::remove_file(spec[0].target()).unwrap();
        }
    });
}
