//! File systems that cannot reserve space for a file: they are given zeroes to store, or the files
//! stay sparse.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use tidelog_engine::memory::Source;
use tidelog_engine::path::{DeviceOpenError, DeviceSpec};
use tidelog_engine::pool::{FormatError, FormatOptions, Pool, PutOptions};
use tidelog_engine::units::ByteCount;
use tidelog_tests::machine::{Directory, LoopDevice, LoopOptions, Mount, Unavailable, skip};

use super::rig::{DEVICE_BYTES, format_options, open_options, watch};

const FILE_SYSTEM_BYTES: u64 = 64 << 20;

/// Runs a scenario on a file system that cannot reserve, if this machine has one to give.
fn on_file_system(
    test: &'static str,
    mount: impl FnOnce(&Path, &Path) -> Result<Mount, Unavailable>,
    scenario: impl FnOnce(&Path),
) {
    let _watchdog = watch(test);
    let directory = Directory::new(test).unwrap();
    let at = directory.path().join("mounted");
    std::fs::create_dir(&at).unwrap();
    let image = directory.sparse_file("image", FILE_SYSTEM_BYTES).unwrap();
    let device = match LoopDevice::attach(&image, LoopOptions::default()) {
        Ok(device) => device,
        Err(why) => return skip(test, &why),
    };
    match mount(Path::new(device.node()), &at) {
        Ok(mount) => scenario(mount.path()),
        Err(why) => skip(test, &why),
    }
}

/// What a file has of its file system.
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

#[test]
fn a_pool_on_ext3_has_all_of_its_space() {
    on_file_system(
        "a_pool_on_ext3_has_all_of_its_space",
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
        |device, at| Mount::made_by(&["mkfs.vfat"], device, at),
        makes_pools_whose_space_is_there,
    );
}

#[test]
fn a_pool_on_a_file_system_by_fuse_has_all_of_its_space() {
    on_file_system(
        "a_pool_on_a_file_system_by_fuse_has_all_of_its_space",
        Mount::by_fuse,
        makes_pools_whose_space_is_there,
    );
}
