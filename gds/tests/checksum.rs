//! Tests of launching the checksum kernel, on a GPU that computes it its own way: the source of the
//! kernel has tests beside it.

mod common;

use common::checksums::{Rates, STRIPE_UNIT, agree};
use common::ssd::Ssd;
use tidelog_tests::machine::{Directory, FakeGpu, skip};

#[test]
fn checksums_are_launched_in_parts_and_added() {
    let fake = FakeGpu::start(1, 3);
    let bytes: Vec<u8> = (0..600_000_usize).map(|at| (at * 31 / 7 + at / 4093) as u8).collect();
    let cases = [(0, 1, 4096), (3, 70_001, 65_536), (0, 600_000, STRIPE_UNIT), (1, 599_999, 4096)];
    agree(&fake.gpu(), &bytes, &cases);
}

#[test]
fn what_is_measured_on_a_gpu_is_measured() {
    let fake = FakeGpu::start(2, 0);
    let rates = Rates::measure(&fake.gpu(), 4 * STRIPE_UNIT);
    // The first one, and all units again each time.
    assert_eq!(fake.count("kernels"), 4 + 4 + 16 + 4 + 4);
    for part in ["units of 256 KiB", "all at once", "us for one", "units of 64 KiB"] {
        assert!(rates.to_string().contains(part), "{rates}");
    }
}

#[test]
fn a_device_is_measured_by_bytes_that_get_there() {
    let directory = Directory::new("gds-ssd").unwrap();
    match Ssd::measure(directory.path(), 12 << 20) {
        Ok(ssd) => assert!(ssd.rate() > 0.0 && ssd.rate().is_finite()),
        Err(why) => skip("a_device_is_measured_by_bytes_that_get_there", &why.to_string()),
    }
}
