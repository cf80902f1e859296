//! Files on a file system that has less room than they pretend to.

use std::path::Path;
use std::time::Duration;

use tidelog_engine::path::{DeviceOpenError, DeviceSpec};
use tidelog_engine::pool::inspect::inspect;
use tidelog_engine::pool::{FormatError, FormatOptions, Pool};
use tidelog_tests::load::{Failure, Ledger, Load, LoadOptions};
use tidelog_tests::machine::{Directory, LoopDevice, LoopOptions, Mount, skip};

use super::rig::{
    DEVICE_BYTES, TIMEOUT, close_after_faults, format_options, only_honest_errors, open_options,
    watch,
};

const FILE_SYSTEM_BYTES: u64 = 64 << 20;
/// Size of a file that fills the rest. The remaining space is less than the pool's devices, two
/// times [`DEVICE_BYTES`].
const OTHERS_BYTES: usize = 38 << 20;

#[test]
fn a_full_file_system_under_sparse_files_fails_writes_with_its_name_and_loses_nothing() {
    let test = "a_full_file_system_under_sparse_files_fails_writes_with_its_name_and_loses_nothing";
    let _watchdog = watch(test);
    let directory = Directory::new("full").unwrap();
    let at = directory.path().join("mounted");
    std::fs::create_dir(&at).unwrap();

    match Mount::memory(&at, FILE_SYSTEM_BYTES) {
        Ok(mount) => run_out_of_space(mount.path()),
        Err(why) => skip(test, &why),
    }
    let image = directory.sparse_file("image", FILE_SYSTEM_BYTES).unwrap();
    let device = match LoopDevice::attach(&image, LoopOptions::default()) {
        Ok(device) => device,
        Err(why) => return skip(test, &why),
    };
    match Mount::ext4(Path::new(device.node()), &at) {
        Ok(mount) => run_out_of_space(mount.path()),
        Err(why) => skip(test, &why),
    }
}

fn run_out_of_space(at: &Path) {
    let others = at.join("others");
    std::fs::write(&others, vec![1; OTHERS_BYTES]).unwrap();
    let files = [at.join("device0"), at.join("device1")];
    let specs: Vec<DeviceSpec> = files.iter().map(DeviceSpec::new).collect();
    let make_sparse = || {
        for file in &files {
            std::fs::File::create(file).unwrap().set_len(DEVICE_BYTES).unwrap();
        }
    };

    // Said at once, and not by the first write that finds no room, also of files that are there
    // already.
    make_sparse();
    let refused = Pool::format(&specs, &format_options()).unwrap_err();
    let FormatError::Device(DeviceOpenError::Reserve { path, .. }) = &refused else {
        panic!("refused for another reason: {refused}");
    };
    assert!(files.contains(path), "{refused}");
    assert!(inspect(&specs).is_err(), "a refused format has left a pool");

    make_sparse();
    Pool::format(&specs, &FormatOptions { sparse: true, ..format_options() }).unwrap();
    let pool = Pool::open(&specs, &open_options()).unwrap();
    let ledger = Ledger::new(LoadOptions::default());
    let load = Load::start(&pool, &ledger);
    for _ in 0..100 {
        load.run(1_000_000, Duration::from_millis(100));
        if !ledger.record().failures().is_empty() {
            break;
        }
    }
    let reads = ledger.record().reads();
    load.run(1_000_000, Duration::from_millis(300));
    load.stop();
    assert!(only_honest_errors(&ledger, &["device 0", "device 1"]) > 0, "there was room enough");
    let says_so = |failure: &Failure| failure.to_string().contains("No space left on device");
    assert!(ledger.record().failures().iter().all(says_so), "{:?}", ledger.record().failures());
    assert!(ledger.record().reads() > reads, "nothing could be read any more");
    ledger.verify_scratch(&pool).unwrap();
    pool.audit().unwrap();
    close_after_faults(&pool);

    std::fs::remove_file(others).unwrap();
    let pool = Pool::open(&specs, &open_options()).unwrap();
    ledger.verify_durable(&pool, |_, _| false).unwrap();
    let report = pool.scrub().unwrap();
    assert_eq!(report.damaged, []);
    let ledger = Ledger::new(LoadOptions { seed: 2, ..LoadOptions::default() });
    for (id, _) in pool.durable_tensors().unwrap() {
        let mut batch = pool.batch();
        batch.delete(id).unwrap();
        batch.commit().unwrap();
    }
    let load = Load::start(&pool, &ledger);
    load.run(100, TIMEOUT);
    load.stop();
    assert_eq!(only_honest_errors(&ledger, &[]), 0);
    pool.audit().unwrap();
    pool.close().unwrap();
    for file in files {
        std::fs::remove_file(file).unwrap();
    }
}
