//! A short storm; `make storm` runs a million operations.

use tidelog_engine::path::sim::{SimDisk, SimProfile};
use tidelog_engine::pool::{FormatOptions, OpenOptions, Pool};
use tidelog_engine::units::ByteCount;
use tidelog_tests::storm::{StormOptions, storm};

#[test]
fn no_ticket_of_sixteen_threads_is_lost_and_every_byte_is_right() {
    let profile = SimProfile { volatile_cache: false, ..SimProfile::default() };
    let disk = || SimDisk::with_profile(ByteCount::mib(128), profile);
    let disks = [disk(), disk()];
    Pool::format(&disks, &FormatOptions::default()).unwrap();
    let options = OpenOptions { buffers: ByteCount::mib(2), ..OpenOptions::default() };
    let pool = Pool::open(&disks, &options).unwrap();
    let options = StormOptions { threads: 16, operations: 20_000, in_flight: 8, seed: 7 };
    let figures = storm(&pool, options).unwrap();
    assert_eq!(figures.operations(), options.operations);
    assert!(figures.puts > 5000 && figures.gets > 5000, "{figures:?}");
    assert!(figures.verifications > 100 && figures.deletions > 100, "{figures:?}");
}
