//! Devices that lose their end, their permission to write, or their file, under load.

use std::collections::BTreeSet;

use tidelog_engine::layout::TensorId;
use tidelog_engine::memory::{Destination, Source};
use tidelog_engine::path::DeviceSpec;
use tidelog_engine::pool::{OpenError, Pool, PutOptions};
use tidelog_engine::schedule::Urgency;
use tidelog_engine::units::DeviceIndex;
use tidelog_tests::load::{Ledger, Load, LoadOptions};
use tidelog_tests::machine::{LoopDevice, LoopOptions, skip};

use super::rig::{
    DEVICE_BYTES, Kind, Rig, TIMEOUT, close_after_faults, only_honest_errors, open_options, watch,
};

const SECTORS: [u32; 2] = [512, 4096];

/// The scenario on loop devices with either sector size; it says so where there are none.
fn on_loops(test: &str, scenario: impl Fn(Rig, LoopOptions)) {
    for sector in SECTORS {
        let options = LoopOptions { sector, ..LoopOptions::default() };
        match Rig::new(&format!("{test}-{sector}"), Kind::Loops(options)) {
            Ok(rig) => scenario(rig, options),
            Err(why) => return skip(test, &why),
        }
    }
}

#[test]
fn a_device_whose_end_is_cut_off_under_load_loses_what_lay_there_and_nothing_else() {
    let test = "a_device_whose_end_is_cut_off_under_load_loses_what_lay_there_and_nothing_else";
    let _watchdog = watch(test);
    lose_the_end(&Rig::new("cut-file", Kind::Files).unwrap());
    on_loops("cut", |rig, _| lose_the_end(&rig));
    let cached = LoopOptions { direct: false, ..LoopOptions::default() };
    // Through the page cache a loop device returns zeroes for what its file has lost.
    match Rig::new("cut-cached", Kind::Loops(cached)) {
        Ok(rig) => lose_the_end(&rig),
        Err(why) => skip("cut-cached", &why),
    }
}

/// Durable tensors that fill half of the pool and are never written again.
const BALLAST: u128 = 120;
const BALLAST_BYTES: usize = 120_000;

fn ballast(id: TensorId) -> Vec<u8> {
    vec![id.0 as u8; BALLAST_BYTES]
}

fn lose_the_end(rig: &Rig) {
    let pool = rig.open();
    let mut batch = pool.batch();
    let ids: Vec<TensorId> = (0..BALLAST).map(TensorId).collect();
    for id in &ids {
        batch.put(*id, Source::from(ballast(*id)), PutOptions::default()).unwrap();
    }
    batch.commit().unwrap();
    let ledger = Ledger::new(LoadOptions { longest: 60_000, ..LoadOptions::default() });
    let load = Load::start(&pool, &ledger);
    load.run(100, TIMEOUT);
    let left = DEVICE_BYTES / 4;
    rig.set_length(1, left);
    load.run(100, TIMEOUT);
    load.stop();
    only_honest_errors(&ledger, &["device 1"]);
    pool.audit().unwrap();
    close_after_faults(&pool);

    if rig.loops.is_empty() {
        match Pool::open(&rig.specs, &open_options()) {
            Err(OpenError::Shrunk { device, .. }) => assert!(device.contains("device1")),
            Err(other) => panic!("refused for another reason: {other}"),
            // The load may have written to the file's end again.
            Ok(pool) => pool.close().unwrap(),
        }
    }
    rig.set_length(1, DEVICE_BYTES);
    let pool = rig.open();
    let report = pool.scrub().unwrap();
    assert!(!report.damaged.is_empty(), "a quarter was left, and nothing was lost");
    for tensor in &report.damaged {
        for bad in &tensor.bad {
            assert_eq!(bad.device, DeviceIndex(1), "{bad:?}");
            assert!(bad.offset.0 + bad.length.0 > left, "what was not cut off is bad: {bad:?}");
            assert!(rig.specs[1].to_string().contains(&bad.path), "{bad:?}");
        }
    }
    let damaged: BTreeSet<TensorId> = report.damaged.iter().map(|tensor| tensor.id).collect();
    ledger.verify_durable(&pool, |id, _| damaged.contains(&id)).unwrap();
    for id in ids {
        let length = pool.length(id).unwrap();
        let memory = Destination::buffer(length as usize);
        let ticket = pool.get(id, 0..length, memory, Urgency::Urgent, None).unwrap();
        assert_eq!(ticket.wait().is_err(), damaged.contains(&id), "{id}");
        if !damaged.contains(&id) {
            assert!(ticket.take_bytes().unwrap() == ballast(id), "{id}");
        }
    }
    pool.audit().unwrap();
    pool.close().unwrap();
}

#[test]
fn a_device_that_refuses_writes_under_load_is_still_read_and_loses_nothing() {
    let test = "a_device_that_refuses_writes_under_load_is_still_read_and_loses_nothing";
    let _watchdog = watch(test);
    on_loops("read-only", |rig, _| {
        let pool = rig.open();
        let ledger = Ledger::new(LoadOptions::default());
        let load = Load::start(&pool, &ledger);
        load.run(100, TIMEOUT);
        rig.loops[1].set_read_only(true).unwrap();
        let reads = ledger.record().reads();
        load.run(1_000_000, std::time::Duration::from_millis(500));
        load.stop();
        let errors = only_honest_errors(&ledger, &["device 1"]);
        assert!(errors > 0, "writes to a read-only device went well");
        assert!(ledger.record().reads() > reads, "nothing could be read any more");
        pool.audit().unwrap();
        ledger.verify_scratch(&pool).unwrap();
        close_after_faults(&pool);

        let Err(error) = Pool::open(&rig.specs, &open_options()) else {
            panic!("a share was opened on a device that takes no writes");
        };
        let node = rig.loops[1].node().to_owned();
        assert!(error.to_string().contains(&node), "{error}");
        rig.loops[1].set_read_only(false).unwrap();
        let pool = rig.open();
        ledger.verify_durable(&pool, |_, _| false).unwrap();
        pool.audit().unwrap();
        pool.close().unwrap();
    });
}

#[test]
fn a_device_that_is_detached_under_load_stays_until_the_close_and_loses_nothing() {
    let test = "a_device_that_is_detached_under_load_stays_until_the_close_and_loses_nothing";
    let _watchdog = watch(test);
    on_loops("detached", |mut rig, options| {
        let pool = rig.open();
        let ledger = Ledger::new(LoadOptions::default());
        let load = Load::start(&pool, &ledger);
        load.run(50, TIMEOUT);
        // The kernel waits for the last user.
        rig.loops[1].detach().unwrap();
        load.run(50, TIMEOUT);
        load.stop();
        assert_eq!(only_honest_errors(&ledger, &[]), 0);
        pool.audit().unwrap();
        pool.close().unwrap();
        assert!(rig.loops[1].wait_until_detached(), "the pool's close has left the device open");

        let Err(error) = Pool::open(&rig.specs, &open_options()) else {
            panic!("a pool was opened without one of its devices");
        };
        let node = rig.loops[1].node().to_owned();
        assert!(error.to_string().contains(&node), "{error}");
        let file = rig.files[1].clone();
        rig.loops[1] = LoopDevice::attach(&file, options).unwrap();
        rig.specs[1] = DeviceSpec::new(rig.loops[1].node());
        let pool = rig.open();
        ledger.verify_durable(&pool, |_, _| false).unwrap();
        pool.audit().unwrap();
        pool.close().unwrap();
    });
}
