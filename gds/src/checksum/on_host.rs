//! The kernel's source, compiled for the host and run there: what is tested is no copy of it.

use std::os::raw::c_uint;
use std::path::Path;
use std::process::Command;
use std::ptr;

use libloading::os::unix::Library;
use tidelog_tests::machine::skip;

use super::parts_of;

/// `crc32c.cu` as a library of the host's.
struct OnHost(Library);

impl OnHost {
    /// None, said aloud, where there is no C++ compiler.
    fn build(test: &str) -> Option<Self> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/checksum/on_host.cpp");
        let program = std::env::current_exe().unwrap();
        let place = program.with_file_name(format!("libcrc32c-{test}-{}.so", std::process::id()));
        let output = Command::new("c++")
            .args(["-std=c++14", "-O2", "-fno-strict-aliasing", "-Wall", "-Werror"])
            .args(["-Wno-unknown-pragmas", "-shared", "-fPIC", "-o"])
            .args([&place, &source])
            .output();
        let output = output.map_err(|why| skip(test, &format!("no C++ compiler: {why}"))).ok()?;
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        // SAFETY: our own library, whose initialisers make a table.
        let library = unsafe { Library::open(Some(&place), libloading::os::unix::RTLD_NOW) };
        std::fs::remove_file(&place).unwrap();
        Some(Self(library.unwrap()))
    }

    /// The checksums of the units of `data`, each as the exclusive or of its parts. Threads run in
    /// the order of their numbers and, as if in another run, against it.
    fn checksums(&self, data: &[u8], unit: u32, parts: u32) -> Vec<u32> {
        let forward = self.run(data, unit, parts, false);
        assert_eq!(forward, self.run(data, unit, parts, true), "the order of threads matters");
        forward
            .chunks(parts as usize)
            .map(|parts| parts.iter().fold(0, |sum, part| sum ^ part))
            .collect()
    }

    fn run(&self, data: &[u8], unit: u32, parts: u32, backward: bool) -> Vec<u32> {
        type Run = unsafe extern "C" fn(*const u8, u64, c_uint, c_uint, *mut c_uint, bool) -> bool;
        let units = data.len().div_ceil(unit as usize);
        let mut words = vec![0xdead_beef; units * parts as usize];
        // SAFETY: the function has this type; the kernel reads `data`, and writes a word for each
        // part of each unit.
        let met = unsafe {
            let run = self.0.get::<Run>(b"run_on_host").unwrap();
            run(data.as_ptr(), data.len() as u64, unit, parts, words.as_mut_ptr(), backward)
        };
        assert!(met, "the threads of a block came to different barriers");
        words
    }

    /// Compares each unit's checksum with that of the crate.
    fn check(&self, data: &[u8], unit: u32, parts: u32) {
        let found = self.checksums(data, unit, parts);
        for (at, (unit_of, found)) in data.chunks(unit as usize).zip(found).enumerate() {
            let (length, start) = (data.len(), data.as_ptr() as usize % 16);
            assert_eq!(
                found,
                crc32c::crc32c(unit_of),
                "unit {at} of {length} bytes from {start} behind an aligned place, in units of {unit}, in {parts} parts"
            );
        }
    }
}

/// Bytes between two pages that cannot be read.
struct Fenced {
    base: *mut u8,
    length: usize,
}

const PAGE: usize = 64 << 10;

impl Fenced {
    fn new(length: usize) -> Self {
        assert_eq!(length % PAGE, 0);
        // SAFETY: a mapping of our own, whose inner part is made accessible.
        let base = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let base =
                libc::mmap(ptr::null_mut(), length + 2 * PAGE, libc::PROT_NONE, flags, -1, 0);
            assert_ne!(base, libc::MAP_FAILED);
            let inner = base.byte_add(PAGE);
            assert_eq!(libc::mprotect(inner, length, libc::PROT_READ | libc::PROT_WRITE), 0);
            inner.cast::<u8>()
        };
        let mut fenced = Self { base, length };
        let mut state = 1_u32;
        for byte in fenced.bytes_mut() {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *byte = (state >> 24) as u8;
        }
        fenced
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the inner part of the mapping, which lives as long as this.
        unsafe { std::slice::from_raw_parts(self.base, self.length) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and nobody else has it.
        unsafe { std::slice::from_raw_parts_mut(self.base, self.length) }
    }

    /// The first bytes of it, and the last: whoever reads on either side of them faults.
    fn ends(&self, length: usize) -> [&[u8]; 2] {
        let bytes = self.bytes();
        [&bytes[..length], &bytes[bytes.len() - length..]]
    }
}

impl Drop for Fenced {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with these bounds, unmapped once.
        unsafe { libc::munmap(self.base.sub(PAGE).cast(), self.length + 2 * PAGE) };
    }
}

#[test]
fn the_kernel_takes_crc32c_of_every_length() {
    let Some(kernel) = OnHost::build("every_length") else { return };
    assert_eq!(kernel.checksums(b"123456789", 9, 1), [0xE306_9283], "the check value of CRC32C");
    let fenced = Fenced::new(PAGE);
    let row = 128 * 16;
    let lengths = (1..=70).chain(row - 20..=row + 20).chain(2 * row - 2..=2 * row + 2);
    for length in lengths.chain([3 * row + 1, 8 * row, 9 * row - 1, 17 * row + 5, PAGE]) {
        for data in fenced.ends(length) {
            kernel.check(data, length as u32, 1);
        }
    }
}

#[test]
fn the_kernel_takes_crc32c_from_every_address() {
    let Some(kernel) = OnHost::build("every_address") else { return };
    let fenced = Fenced::new(PAGE);
    for start in 0..16 {
        for length in [1, 2, 3, 4, 5, 15, 16, 17, 2032, 2048, 2050, 4096, 4100] {
            kernel.check(&fenced.bytes()[start..start + length], length as u32, 1);
        }
        // The last unit is short, and each begins elsewhere.
        kernel.check(&fenced.bytes()[start..start + 7001], 1001, 1);
    }
}

#[test]
fn the_kernel_takes_crc32c_in_as_many_parts_as_it_is_asked_for() {
    let Some(kernel) = OnHost::build("parts") else { return };
    let fenced = Fenced::new(9 << 16);
    for parts in [2, 3, 5, 8] {
        for length in [1, 2047, 2048, 6143, 6145, 40_000] {
            for data in fenced.ends(length) {
                kernel.check(data, length as u32, parts);
            }
        }
    }
    // As they are launched: units of the usual size, one of them short, and what the tier in host
    // memory takes.
    for unit in [256 << 10, 64 << 10, 4 << 10] {
        kernel.check(&fenced.bytes()[..(9 << 16) - 13], unit, parts_of(unit));
    }
}

#[test]
fn the_kernel_takes_crc32c_of_more_rows_than_one_digit_counts() {
    let Some(kernel) = OnHost::build("rows") else { return };
    let fenced = Fenced::new(3 << 20);
    kernel.check(&fenced.bytes()[5..], (3 << 20) - 5, 64);
}
