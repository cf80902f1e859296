//! The checksum kernel against the host's, and how fast it is.

use tidelog_gds::checksum::Crc32c;
use tidelog_gds::cuda::{DeviceMemory, Stream};

use super::{cost, gpu, pattern};

#[test]
fn the_checksum_kernel_agrees_with_the_host_bit_for_bit() {
    let test = "the_checksum_kernel_agrees_with_the_host_bit_for_bit";
    let Some(gpu) = gpu(test) else { return };
    let kernel = Crc32c::new(&gpu).unwrap();
    let stream = Stream::new(&gpu).unwrap();
    let bytes = pattern(64 << 20);
    let mut data = DeviceMemory::new(&gpu, bytes.len()).unwrap();
    data.write(0, &bytes).unwrap();
    for (length, unit) in [
        (1, 4096),
        (4096, 4096),
        (1 << 20, 65_536),
        (64 << 20, 262_144),
        ((64 << 20) - 13, 262_144),
    ] {
        let units = usize::div_ceil(length, unit);
        let sums = DeviceMemory::new(&gpu, units * 4).unwrap();
        // SAFETY: both outlive the synchronisation below, and nobody else touches them.
        unsafe { kernel.launch(&stream, data.base(), length as u64, unit as u32, sums.base()) }
            .unwrap();
        stream.synchronize().unwrap();
        let mut found = vec![0; units * 4];
        sums.read(0, &mut found).unwrap();
        for (at, (piece, sum)) in bytes[..length].chunks(unit).zip(found.chunks(4)).enumerate() {
            let sum = u32::from_le_bytes([sum[0], sum[1], sum[2], sum[3]]);
            assert_eq!(
                sum,
                crc32c::crc32c(piece),
                "unit {at} of {length} bytes in units of {unit}"
            );
        }
    }
}

#[test]
fn the_checksum_kernel_is_measured() {
    const WHOLE: usize = 1 << 30;
    let Some(gpu) = gpu("the_checksum_kernel_is_measured") else { return };
    let kernel = Crc32c::new(&gpu).unwrap();
    let stream = Stream::new(&gpu).unwrap();
    let data = DeviceMemory::new(&gpu, WHOLE).unwrap();
    let sums = DeviceMemory::new(&gpu, WHOLE >> 16 << 2).unwrap();
    // All at once, as a put of one large tensor would have it, and one unit at a time, as transfers come by.
    let rate = |unit: usize, at_once: usize| {
        let launches = WHOLE / at_once;
        let took = cost(WHOLE, || {
            for launch in 0..launches {
                let (at, sum) = ((launch * at_once) as u64, (launch * at_once / unit * 4) as u64);
                let (data, sums) = (data.base().offset(at), sums.base().offset(sum));
                // SAFETY: both outlive the synchronisation below, and nobody else touches them.
                unsafe { kernel.launch(&stream, data, at_once as u64, unit as u32, sums) }.unwrap();
            }
            stream.synchronize().unwrap();
        });
        took.rate()
    };
    rate(65_536, WHOLE); // loads it
    println!(
        "FACT checksums on the GPU of units of 256 KiB: {:.1} GB/s of 1 GiB at once, {:.1} of 4 MiB, {:.2} of one unit at a time; units of 64 KiB {:.1} at once",
        rate(262_144, WHOLE),
        rate(262_144, 4 << 20),
        rate(262_144, 262_144),
        rate(65_536, WHOLE),
    );
}
