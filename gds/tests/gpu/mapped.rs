//! Memory of which parts are unmapped and mapped again.

use std::time::Instant;

use cudarc::driver::result;
use tidelog_gds::Gpu;
use tidelog_gds::cuda::VirtualMemory;

use super::{gpu, pattern};

const BYTES: usize = 256 << 20;
const PART: usize = 64 << 20;

#[test]
fn parts_of_a_gpus_memory_go_and_come_back_at_their_addresses() {
    let test = "parts_of_a_gpus_memory_go_and_come_back_at_their_addresses";
    let Some(gpu) = gpu(test) else { return };
    let granule = VirtualMemory::granule(&gpu).unwrap();
    let mut memory = VirtualMemory::new(&gpu, BYTES).unwrap().expect("it has as much memory");
    let bytes = pattern(BYTES);
    write(&gpu, &memory, 0, &bytes);
    let (free, _) = gpu.memory().unwrap();
    let begun = Instant::now();
    // SAFETY: the copy is over, and nothing else uses the memory.
    unsafe { memory.unmap(PART..2 * PART) }.unwrap();
    let unmapped = begun.elapsed();
    let (more, _) = gpu.memory().unwrap();
    assert!(more >= free + PART as u64, "{more} bytes are free, before {free}: others use the GPU");
    let begun = Instant::now();
    assert!(memory.map(PART..2 * PART).unwrap());
    let mapped = begun.elapsed();
    write(&gpu, &memory, PART, &bytes[PART..2 * PART]);
    let mut found = vec![0; BYTES];
    let _entered = gpu.enter().unwrap();
    // SAFETY: all of it is mapped; the call returns when the bytes are there.
    unsafe { result::memcpy_dtoh_sync(&mut found, memory.base().0) }.unwrap();
    assert!(found == bytes, "other bytes came back");
    let rate =
        |elapsed: std::time::Duration| PART as f64 / f64::from(1 << 30) / elapsed.as_secs_f64();
    println!(
        "FACT mapped in pieces of {granule} bytes: unmapped at {:.1} GiB/s, mapped at {:.1} GiB/s",
        rate(unmapped),
        rate(mapped)
    );
}

fn write(gpu: &Gpu, memory: &VirtualMemory, offset: usize, bytes: &[u8]) {
    let _entered = gpu.enter().unwrap();
    // SAFETY: the range is mapped; the stream is waited for.
    unsafe { result::memcpy_htod_sync(memory.base().offset(offset as u64).0, bytes) }.unwrap();
    gpu.synchronize().unwrap();
}
