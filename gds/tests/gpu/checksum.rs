//! The checksum kernel against the host's, and how fast it is beside an SSD.

use tidelog_tests::machine::Directory;

use super::common::checksums::{Rates, STRIPE_UNIT, agree};
use super::common::ssd::Ssd;
use super::{gpu, pattern};

#[test]
fn the_checksum_kernel_agrees_with_the_host_bit_for_bit() {
    const WHOLE: usize = 16 << 20;
    let Some(gpu) = gpu("the_checksum_kernel_agrees_with_the_host_bit_for_bit") else { return };
    let mut cases = vec![
        (0, 1 << 20, 65_536),
        (0, WHOLE, STRIPE_UNIT),
        (0, WHOLE - 13, STRIPE_UNIT),
        (5, WHOLE - 5, WHOLE),
        (7, 1_000_001, 1001),
    ];
    // Where rows and vectors begin and end, from every address.
    for length in [1, 3, 4, 5, 15, 16, 17, 2047, 2048, 2049, 4096, 16_384, 40_000] {
        cases.extend((0..17).map(|first| (first, length, length)));
    }
    agree(&gpu, &pattern(WHOLE), &cases);
}

#[test]
fn the_checksum_kernel_is_measured_beside_the_ssd() {
    const WHOLE: usize = 1 << 30;
    let Some(gpu) = gpu("the_checksum_kernel_is_measured_beside_the_ssd") else { return };
    let rates = Rates::measure(&gpu, WHOLE);
    let directory = Directory::new("gpu-checksum").unwrap();
    let ssd = match Ssd::measure(directory.path(), WHOLE) {
        Ok(ssd) => format!(
            "the device under {} writes {} and reads {}: by a launch each checksums are {:.2} x that, all at once {:.2} x",
            directory.path().display(),
            ssd.written,
            ssd.read,
            rates.one_by_one.rate() / ssd.rate(),
            rates.at_once.rate() / ssd.rate(),
        ),
        Err(why) => format!("the device under {}: {why}", directory.path().display()),
    };
    println!("FACT checksums on the GPU, launches included: {rates}; {ssd}");
}
