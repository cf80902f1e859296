//! Tensors of a GPU by peer DMA: through a window that gdrcopy maps, to simulated controllers that
//! read and write it.
#![allow(unsafe_code)]

mod common;

use common::tensors::{
    TensorRoute, UNIT, bytes_of, from_host, get, host_bytes, on_gpu, open, pattern, pool, put,
    source,
};
use tidelog_engine::layout::TensorId;
use tidelog_engine::memory::peer::PeerMemory;
use tidelog_engine::memory::{Destination, GpuDestination};
use tidelog_engine::path::sim::Fault;
use tidelog_engine::path::{Feature, OperationKind};
use tidelog_engine::pool::{Pool, PutOptions};
use tidelog_engine::schedule::{DeviceStats, TransferError, Urgency};
use tidelog_gds::cuda::DeviceMemory;
use tidelog_gds::gdr::{GdrError, GdrLibrary, MappedMemory};
use tidelog_tests::machine::FakeGpu;

fn reached(pool: &Pool) -> Feature {
    pool.stats().unwrap().reactor.gpu.unwrap().reached
}

fn nothing_is_left(fake: &FakeGpu) {
    let left = ["pinned", "allocated"].map(|what| fake.count(what));
    assert_eq!(left, [0, 0], "mappings, allocations");
    fake.assert_lawful();
}

#[test]
fn what_keeps_the_window_from_being_opened_is_told_and_staging_serves() {
    let cases = [
        ("gdr_open", 1, "modprobe gdrdrv"),
        ("gdr_pin", libc::ENOMEM, "pin 64 KiB of GPU memory (its BAR may be too small, or full)"),
        ("gdr_map", libc::EPERM, "map 64 KiB of GPU memory: Operation not permitted"),
        ("gdr_info", libc::EIO, "tell what it has mapped: Input/output error"),
        ("gdr_info", -1, "gdrcopy mapped 65536 bytes from address"),
        (
            "attribute",
            801,
            "prepare memory for other devices: error 801 (CUDA_ERROR_NOT_SUPPORTED)",
        ),
    ];
    for (call, code, words) in cases {
        let fake = FakeGpu::start(1, 2);
        fake.plan(call, 0, code, 1);
        let (_media, pool) = pool(&fake, 3, TensorRoute::Peer);
        let Feature::Off(why) = reached(&pool) else { panic!("{call}: it was refused") };
        assert!(why.contains(words), "{call}: {why}");
        let bytes = pattern(100_001, 1);
        let back = on_gpu(&fake, &vec![0xEE; bytes.len()]);
        let moved = host_bytes(&fake, || {
            put(&pool, &on_gpu(&fake, &bytes), None).wait().unwrap();
            get(&pool, 0, &back, None, None).wait().unwrap();
        });
        assert_eq!(moved, 2 * 100_001, "{call}: it went through the host");
        assert!(bytes_of(&back) == bytes);
        drop(back);
        pool.close().unwrap();
        drop(pool);
        nothing_is_left(&fake);
    }
}

#[test]
fn a_gpu_that_cannot_order_what_devices_write_is_not_reached() {
    let fake = FakeGpu::start(1, 2);
    fake.remote_writes(0, 0);
    let (_media, pool) = pool(&fake, 3, TensorRoute::Peer);
    let Feature::Off(why) = reached(&pool) else { panic!("nothing orders the writes") };
    assert!(why.contains("GPU 0 (Fake GPU) at 0000:3b:00.0 does not order"), "{why}");
}

#[test]
fn what_devices_wrote_is_flushed_before_every_use_where_the_gpu_does_not_order_it() {
    for (ordering, flushes, expected) in [(0, 1, 7), (0, 3, 7), (100, 0, 0), (200, 1, 0)] {
        let fake = FakeGpu::start(3, 2);
        fake.remote_writes(ordering, flushes);
        let (_media, pool) = pool(&fake, 3, TensorRoute::Peer);
        assert_eq!(reached(&pool), Feature::On);
        let bytes = pattern(6 * UNIT.0 as usize + 1, 1);
        let back = on_gpu(&fake, &vec![0; bytes.len()]);
        put(&pool, &on_gpu(&fake, &bytes), None).wait().unwrap();
        assert_eq!(fake.count("flushes"), 0, "nothing was written to the GPU");
        get(&pool, 0, &back, None, None).wait().unwrap();
        assert!(bytes_of(&back) == bytes);
        assert_eq!(fake.count("flushes"), expected, "one for each stripe unit");
    }
}

#[test]
fn a_flush_that_fails_fails_its_read_and_no_other() {
    let fake = FakeGpu::start(3, 2);
    let (_media, pool) = pool(&fake, 3, TensorRoute::Peer);
    let bytes = pattern(100_000, 1);
    let back = on_gpu(&fake, &vec![0; bytes.len()]);
    put(&pool, &on_gpu(&fake, &bytes), None).wait().unwrap();
    fake.plan("flush", 2, 719, 1);
    let told = get(&pool, 0, &back, None, None).wait().unwrap_err().to_string();
    assert!(told.contains("CUDA_ERROR_LAUNCH_FAILED"), "{told}");
    get(&pool, 0, &back, None, None).wait().unwrap();
    assert!(bytes_of(&back) == bytes);
}

/// Tensors of many lengths, all at once, through a window of few chunks; overwritten, and found
/// again when the pool is opened anew.
#[test]
fn many_tensors_share_a_window_and_are_there_when_the_pool_is_opened_again() {
    const LENGTHS: [usize; 7] = [1, 4095, 4096, 16 << 10, 50_001, 131_072, 300_007];
    let id = |number: usize| TensorId::from_name(&format!("tensor {number}"));
    for seed in 0..12 {
        let fake = FakeGpu::start(seed, (seed % 6) as u32);
        let way = TensorRoute::Peer;
        let (media, pool) = pool(&fake, 1 + seed % 4, way);
        assert_eq!(reached(&pool), Feature::On);
        let of = |version: usize| {
            let bytes = |(at, length): (usize, &usize)| pattern(*length, 100 * version + at);
            LENGTHS.iter().enumerate().map(bytes).collect::<Vec<_>>()
        };
        let moved = host_bytes(&fake, || {
            for version in 0..2 {
                let tensors: Vec<DeviceMemory> =
                    of(version).iter().map(|bytes| on_gpu(&fake, bytes)).collect();
                let mut batch = pool.batch();
                let put = |(at, tensor): (usize, &DeviceMemory)| {
                    batch.put(id(at), source(tensor, None), PutOptions::default()).unwrap()
                };
                let tickets: Vec<_> = tensors.iter().enumerate().map(put).collect();
                for ticket in &tickets {
                    assert!(ticket.wait().is_ok());
                }
                batch.commit().unwrap();
                come_back(&fake, &pool, &of(version), id);
            }
        });
        assert_eq!(moved, 0);
        pool.close().unwrap();
        drop(pool);
        nothing_is_left(&fake);
        let pool = open(&fake, &media, 2, way);
        come_back(&fake, &pool, &of(1), id);
        pool.close().unwrap();
        drop(pool);
        nothing_is_left(&fake);
    }
}

/// Every tensor is what it should be, however many are fetched at once.
fn come_back(fake: &FakeGpu, pool: &Pool, expected: &[Vec<u8>], id: fn(usize) -> TensorId) {
    let back: Vec<DeviceMemory> =
        expected.iter().map(|bytes| on_gpu(fake, &vec![0xEE; bytes.len()])).collect();
    let get = |(at, memory): (usize, &DeviceMemory)| {
        // SAFETY: the memory stays, untouched, until the ticket ends.
        let destination = unsafe { GpuDestination::new(memory.base().0, memory.len(), None, None) };
        let range = 0..memory.len() as u64;
        pool.get(id(at), range, Destination::Gpu(destination), Urgency::Urgent, None).unwrap()
    };
    let tickets: Vec<_> = back.iter().enumerate().map(get).collect();
    for ticket in &tickets {
        assert!(ticket.wait().is_ok());
    }
    for (at, (memory, expected)) in back.iter().zip(expected).enumerate() {
        assert!(bytes_of(memory) == *expected, "tensor {at}");
        let verified = pool.verify(id(at), source(memory, None), None).unwrap();
        assert!(verified.wait().unwrap().matched, "tensor {at}");
    }
}

#[test]
fn a_device_that_fails_a_write_takes_no_more_and_still_gives_back_what_it_has() {
    let fake = FakeGpu::start(5, 2);
    let (media, pool) = pool(&fake, 3, TensorRoute::Peer);
    let bytes = pattern(100_000, 1);
    let tensor = on_gpu(&fake, &bytes);
    put(&pool, &tensor, None).wait().unwrap();
    media.disks[1].plan_fault(OperationKind::Write, 1, Fault::Errno(libc::EIO));
    let told = put(&pool, &tensor, None).wait().unwrap_err();
    assert!(matches!(told, TransferError::Device { .. }), "{told}");
    assert!(put(&pool, &tensor, None).wait().is_err(), "the device is latched");
    let back = on_gpu(&fake, &vec![0; bytes.len()]);
    get(&pool, 0, &back, None, None).wait().unwrap();
    assert!(bytes_of(&back) == bytes);
}

#[test]
fn bytes_that_changed_on_the_way_are_read_again() {
    let fake = FakeGpu::start(5, 2);
    let (media, pool) = pool(&fake, 3, TensorRoute::Peer);
    let bytes = pattern(100_000, 1);
    put(&pool, &on_gpu(&fake, &bytes), None).wait().unwrap();
    media.disks[0].plan_fault(OperationKind::Read, 1, Fault::Corrupt);
    let back = on_gpu(&fake, &vec![0; bytes.len()]);
    get(&pool, 0, &back, None, None).wait().unwrap();
    assert!(bytes_of(&back) == bytes);
    let count = |device: &DeviceStats| device.checksum_retries;
    let retries: u64 = pool.stats().unwrap().reactor.devices.iter().map(count).sum();
    assert_eq!(retries, 1);
    // The host finds the kernel's checksums right.
    assert!(from_host(&pool, bytes.len()) == bytes);
}

#[test]
fn a_mapping_is_the_gpu_s_memory_and_all_of_it_is_given_back() {
    let fake = FakeGpu::start(1, 0);
    let library = GdrLibrary::open(Some(fake.library_path())).unwrap();
    assert_eq!((library.version(), library.missing()), (Some((2, 5)), Vec::new()));
    let mapped = MappedMemory::new(&library, &fake.gpu(), 12 << 10).unwrap();
    assert_eq!((mapped.span().1, mapped.bus_address()), (12 << 10, None));
    assert_eq!(
        mapped.describe(),
        "12 KiB of GPU 0 (Fake GPU) at 0000:3b:00.0, mapped by gdrcopy 2.5,"
    );
    assert_eq!(fake.count("pinned"), 3, "a session, a pin and a mapping");
    drop(mapped);
    nothing_is_left(&fake);
    fake.plan("alloc", 0, 2, 1);
    let refused = MappedMemory::new(&library, &fake.gpu(), 12 << 10).unwrap_err();
    assert!(matches!(refused, GdrError::Cuda(_)), "{refused}");
    nothing_is_left(&fake);
}
