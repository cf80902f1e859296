//! The PTX that is checked in, carried out by an interpreter: what is tested is what GPUs get.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::ptx::{Module, Region};
use super::{PTX, THREADS, parts_of};

/// Address of the bytes in the GPU's memory; a launch may begin further on.
const DATA: u64 = 0x1_0000_0000;
const WORDS: u64 = 0x2_0000_0000;

struct Kernel(Module);

impl Kernel {
    fn new() -> Self {
        Self(Module::parse(PTX))
    }

    /// Returns the error message of a module in which `new` replaces `old` in the PTX that comes
    /// first.
    fn complaint(old: &str, new: &str) -> String {
        assert!(PTX.contains(old), "there is no {old}");
        let check = || {
            let data = bytes(10 * 2048 + 7);
            let kernel = Self(Module::parse(&PTX.replacen(old, new, 1)));
            kernel.check(&data, 1, data.len() as u32, 1);
        };
        let said = catch_unwind(AssertUnwindSafe(check)).expect_err("nothing was noticed");
        let text = said.downcast_ref::<String>().cloned();
        text.or_else(|| said.downcast_ref::<&str>().map(|text| (*text).into())).unwrap_or_default()
    }

    /// The checksums of units, as a launch gives them; threads run in either order. The bytes are
    /// all the memory that there is: to read before or behind them is an error.
    fn checksums(&self, data: &[u8], start: u64, unit: u32, parts: u32) -> Vec<u32> {
        let units = data.len().div_ceil(unit as usize);
        let blocks = units as u32 * parts;
        let run = |backward| {
            let data = Region { base: DATA + start, bytes: data.to_vec(), is_written: false };
            let words = vec![0xa5; blocks as usize * 4];
            let words = Region { base: WORDS, bytes: words, is_written: true };
            let parameters =
                [data.base, data.bytes.len() as u64, unit.into(), parts.into(), words.base];
            let mut memory = [data, words];
            self.0.launch((blocks, THREADS), &parameters, &mut memory, backward);
            let [_, words] = memory;
            words.bytes
        };
        let forward = run(false);
        assert_eq!(forward, run(true), "the order of threads matters");
        let words = forward.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap()));
        let words: Vec<u32> = words.collect();
        words
            .chunks(parts as usize)
            .map(|parts| parts.iter().fold(0, |sum, part| sum ^ part))
            .collect()
    }

    fn check(&self, data: &[u8], start: u64, unit: u32, parts: u32) {
        let found = self.checksums(data, start, unit, parts);
        let expected: Vec<u32> = data.chunks(unit as usize).map(crc32c::crc32c).collect();
        let length = data.len();
        assert_eq!(found, expected, "{length} bytes from {start}, units of {unit}, {parts} parts");
    }
}

fn bytes(length: usize) -> Vec<u8> {
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..length).map(|_| next()).collect()
}

#[test]
fn the_checked_in_ptx_takes_crc32c_of_lengths_around_its_borders() {
    let kernel = Kernel::new();
    assert_eq!(kernel.checksums(b"123456789", 0, 9, 1), [0xE306_9283], "the check value of CRC32C");
    let data = bytes(18 * 2048);
    let lengths = (1..=20).chain([2031, 2032, 2033, 2047, 2048, 2049, 2052, 4095, 4097]);
    for length in lengths.chain([3 * 2048 + 1, 8 * 2048, 9 * 2048 - 1, 17 * 2048 + 5]) {
        kernel.check(&data[..length], 0, length as u32, 1);
    }
}

#[test]
fn the_checked_in_ptx_takes_crc32c_from_every_address() {
    let kernel = Kernel::new();
    let data = bytes(7001);
    for start in 0..16 {
        for length in [1, 4, 17, 2050] {
            kernel.check(&data[..length], start, length as u32, 1);
        }
        // The last unit is short, and each begins elsewhere.
        kernel.check(&data, start, 3001, 1);
    }
}

#[test]
fn the_checked_in_ptx_takes_crc32c_in_parts() {
    let kernel = Kernel::new();
    let data = bytes((3 << 16) - 13);
    for parts in [2, 3, 5] {
        for length in [1, 2047, 6145, 40_000] {
            kernel.check(&data[..length], 7, length as u32, parts);
        }
    }
    for unit in [64 << 10, 4 << 10] {
        kernel.check(&data, 0, unit, parts_of(unit));
    }
    // More rows behind a part than one digit to the base 256 counts.
    let data = bytes((1 << 20) + 5);
    kernel.check(&data, 3, data.len() as u32, 64);
}

#[test]
fn a_fault_in_the_ptx_is_noticed() {
    for (old, new, expected) in [
        // Tables in shared memory are read before they are there.
        ("bar.sync 	0;", "", "without a barrier"),
        ("132, 105, 80, 247", "133, 105, 80, 247", "units of"),
        ("[%rd97+2048]", "[%rd97+4096]", "units of"),
        ("[%rd97+2048]", "[%rd97+2056]", "not aligned"),
        ("[%rd97+2048]", "[%rd97+1048576]", "read 16 bytes"),
        ("[%rd324+2048], {", "[%rd324], {", "units of"),
        ("shfl.sync.bfly.b32", "shfl.sync.down.b32", "PTX that is not known"),
    ] {
        let said = Kernel::complaint(old, new);
        assert!(said.contains(expected), "{old:?} to {new:?}: {said}");
    }
}
