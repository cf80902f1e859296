//! Storages and tensors on a GPU through the C ABI, on a GPU whose copies are late, and which the
//! other tests must not find in their process.
#![allow(unsafe_code, missing_docs)]
#![allow(clippy::wildcard_imports)]

use std::ptr::null_mut;

use tidelog::abi::*;
use tidelog_gds::cuda::{DeviceMemory, Event, Stream};
use tidelog_tests::abi::{
    CallerBehaviour, Choices, Delivery, Folder, last_error, pool_options, try_open_pool,
    try_open_pool_with, walk_session,
};
use tidelog_tests::machine::FakeGpu;

const NAME: &std::ffi::CStr = c"layer.0.weight";
const BYTES: usize = 1 << 20;

/// Host memory of a walk, which is too little for all that leaves.
const HOST_MEMORY: u64 = 192 << 10;

fn walk(seed: u64, manners: CallerBehaviour) {
    let fake = FakeGpu::start(seed, (seed % 8) as u32);
    let before = fake.count("host_memory");
    let name = format!("gpu-walk-{seed}");
    let manners = CallerBehaviour { gpu: true, ..manners };
    let stats = walk_session(&name, Choices::of_seed(seed), 300, manners);
    let gpu = stats["gpu"].as_str().unwrap();
    assert!(gpu.starts_with("GPU 0 (Fake GPU) at 0000:3b:00.0"), "{gpu}");
    assert_eq!(gpu.contains("no byte of it passes through the host"), manners.gds, "{gpu}");
    let mut counters = vec!["evictions", "fetches", "bytes_written", "bytes_read"];
    if manners.host_memory > 0 {
        counters.extend(["bytes_to_host", "bytes_from_host"]);
        let tier = &stats["host_memory"];
        assert_eq!(tier["capacity"], HOST_MEMORY);
        assert!(tier["peak"].as_u64() <= Some(HOST_MEMORY), "{tier}");
        assert!(tier["bytes_out"].as_u64() >= stats["totals"]["bytes_to_host"].as_u64(), "{tier}");
    }
    for counter in counters {
        assert!(stats["totals"][counter].as_u64() > Some(0), "the walk tried no {counter}");
    }
    assert_eq!(fake.count("host_memory"), before, "page-locked memory was kept");
    assert!(fake.context().is_null(), "the caller's thread was left in a context");
    fake.assert_lawful();
    assert!(fake.count("copies") > 0, "the bytes went another way");
}

#[test]
fn no_byte_of_a_storage_on_a_gpu_is_lost_whatever_is_called() {
    for seed in 0..8 {
        walk(seed, CallerBehaviour { gds: seed % 2 == 1, ..CallerBehaviour::default() });
    }
}

#[test]
fn no_byte_of_a_storage_on_a_gpu_is_lost_with_callbacks() {
    let faithful = CallerBehaviour { delivery: Delivery::Callbacks, ..CallerBehaviour::default() };
    for seed in 400..404 {
        let host_memory = if seed % 4 < 2 { 0 } else { HOST_MEMORY };
        walk(seed, CallerBehaviour { gds: seed % 2 == 1, host_memory, nested: 10, ..faithful });
    }
}

#[test]
fn no_byte_of_a_storage_on_a_gpu_is_lost_when_ops_run_inside_ops_and_requests() {
    for seed in 300..308 {
        let host_memory = if seed % 4 < 2 { 0 } else { HOST_MEMORY };
        let gds = seed % 2 == 1;
        walk(seed, CallerBehaviour { gds, host_memory, nested: 15, ..CallerBehaviour::default() });
    }
}

#[test]
fn no_byte_is_lost_where_host_memory_takes_a_part() {
    for seed in 200..208 {
        let careless = CallerBehaviour {
            redelivered: 20,
            refused: 15,
            misreported: 20,
            ..CallerBehaviour::default()
        };
        let manners = if seed % 2 == 0 { CallerBehaviour::default() } else { careless };
        walk(seed, CallerBehaviour { gds: seed % 4 > 1, host_memory: HOST_MEMORY, ..manners });
    }
}

#[test]
fn no_byte_is_lost_when_requests_come_twice_are_refused_or_misreported() {
    for seed in 100..108 {
        let gds = seed % 2 == 1;
        let careless = CallerBehaviour {
            redelivered: 20,
            refused: 15,
            misreported: 20,
            ..CallerBehaviour::default()
        };
        let manners = CallerBehaviour { gds, ..careless };
        walk(seed, manners);
    }
}

#[test]
fn the_callers_gpu_stays_the_one_that_it_is_with() {
    let fake = FakeGpu::start(3, 4);
    fake.driver(1 << 4, 1 << 1, 2, 128, 2);
    let folder = Folder::new("gpu-current");
    for data_path in [c"auto", c"gds"] {
        fake.go_to(1);
        let theirs = fake.context();
        let pool = try_open_pool(&folder, 64 << 20, 1, data_path).unwrap();
        let memory = DeviceMemory::new(&fake.gpu(), BYTES).unwrap();
        let mut ticket = 0;
        // SAFETY: the memory stays until the put has ended.
        let put = unsafe {
            let (address, length) = (memory.base().0, BYTES as u64);
            tide_put_gpu(pool, NAME.as_ptr(), address, length, null_mut(), 0, &raw mut ticket)
        };
        assert_eq!(put, TIDE_READY, "{}", last_error());
        wait(ticket);
        assert_eq!(tide_ticket_drop(ticket), TIDE_READY);
        assert_eq!(tide_pool_close(pool), TIDE_READY);
        drop(memory);
        assert_eq!(fake.context(), theirs);
    }
    fake.assert_lawful();
}

fn open(folder: &Folder, gpu: u8) -> Result<u64, i32> {
    try_open_pool(folder, 64 << 20, gpu, c"auto")
}

fn wait(ticket: u64) {
    assert_eq!(tide_ticket_wait(ticket, 20_000), TIDE_READY, "{}", last_error());
    assert_eq!(tide_ticket_released(ticket), 1);
}

#[test]
fn puts_and_gets_are_ordered_with_kernels_by_events_alone() {
    for seed in 0..6 {
        let fake = FakeGpu::start(seed, 10);
        let (gpu, folder) = (fake.gpu(), Folder::new("gpu-events"));
        let data_path = [c"auto", c"gds"][seed as usize % 2];
        let pool = try_open_pool(&folder, 64 << 20, 1, data_path).unwrap();
        let bytes: Vec<u8> = (0..BYTES).map(|at| (at * 31 / 7 + at / 4093) as u8).collect();
        let (mut made, tensor, seen) = (
            DeviceMemory::new(&gpu, BYTES).unwrap(),
            DeviceMemory::new(&gpu, BYTES).unwrap(),
            DeviceMemory::new(&gpu, BYTES).unwrap(),
        );
        made.write(0, &bytes).unwrap();
        let kernels = Stream::new(&gpu).unwrap();
        let [after, free, landed] = [(); 3].map(|()| Event::new(&gpu).unwrap());
        let mut ticket = 0;
        // SAFETY: all memory and events stay until the stream has been waited for; copies of a
        // stream are in order.
        unsafe {
            kernels.copy(made.base(), tensor.base(), BYTES).unwrap();
            after.record(&kernels).unwrap();
            let (name, address, length) = (NAME.as_ptr(), tensor.base().0, BYTES as u64);
            let put = tide_put_gpu(pool, name, address, length, after.as_raw(), 0, &raw mut ticket);
            assert_eq!(put, TIDE_READY, "{}", last_error());
            wait(ticket);
            // What is there now is still looked at when the bytes are asked for again.
            kernels.copy(tensor.base(), seen.base(), BYTES).unwrap();
            free.record(&kernels).unwrap();
            let (free, landed) = (free.as_raw(), landed.as_raw());
            let get =
                tide_get_gpu(pool, name, 0, address, length, free, landed, 1, &raw mut ticket);
            assert_eq!(get, TIDE_READY, "{}", last_error());
            wait(ticket);
            kernels.wait_for_raw(landed).unwrap();
            kernels.copy(tensor.base(), made.base(), BYTES).unwrap();
        }
        kernels.synchronize().unwrap();
        for (what, memory) in [("seen", &seen), ("come back", &made)] {
            let mut found = vec![0; BYTES];
            memory.read(0, &mut found).unwrap();
            assert!(found == bytes, "seed {seed}: other bytes were {what}");
        }
        assert_eq!(tide_pool_close(pool), TIDE_READY);
        fake.assert_lawful();
    }
}

#[test]
fn durable_tensors_leave_a_gpu_through_staging_and_its_memory_is_free_when_the_call_returns() {
    for (seed, data_path) in [c"auto", c"gds"].into_iter().enumerate() {
        let fake = FakeGpu::start(seed as u64, 6);
        let (gpu, folder) = (fake.gpu(), Folder::new("gpu-durable"));
        let pool = try_open_pool(&folder, 64 << 20, 1, data_path).unwrap();
        let bytes: Vec<u8> = (0..BYTES).map(|at| (at * 31 / 7 + at / 4093) as u8).collect();
        let mut memory = DeviceMemory::new(&gpu, BYTES).unwrap();
        let (mut batch, mut ticket) = (0, 0);
        memory.write(0, &bytes).unwrap();
        let (name, address, length) = (NAME.as_ptr(), memory.base().0, BYTES as u64);
        // SAFETY: the memory stays until each call has returned, and until the read has ended.
        unsafe {
            assert_eq!(tide_batch_begin(pool, &raw mut batch), TIDE_READY);
            let put = tide_batch_put_gpu(batch, name, address, length, null_mut());
            assert_eq!(put, TIDE_READY, "{}", last_error());
            let too_long = tide_batch_put_gpu(batch, name, 1 << 40, 1 << 50, null_mut());
            assert_eq!(too_long, TIDE_FULL);
            assert!(last_error().contains("full"), "{}", last_error());
            memory.write(0, &vec![0; BYTES]).unwrap();
            assert_eq!(tide_batch_commit(batch), TIDE_READY, "{}", last_error());
            let none = null_mut();
            let get = tide_get_gpu(pool, name, 0, address, length, none, none, 1, &raw mut ticket);
            assert_eq!(get, TIDE_READY, "{}", last_error());
        }
        wait(ticket);
        let mut found = vec![0; BYTES];
        memory.read(0, &mut found).unwrap();
        assert!(found == bytes, "other bytes have come back");
        assert_eq!(tide_pool_close(pool), TIDE_READY);
        fake.assert_lawful();
    }
}

#[test]
fn what_lies_in_the_arena_goes_by_cufile_without_a_copy() {
    let fake = FakeGpu::start(2, 3);
    let folder = Folder::new("gpu-arena");
    let mut arena = DeviceMemory::in_pages(&fake.gpu(), BYTES).unwrap();
    let bytes: Vec<u8> = (0..BYTES).map(|at| (at * 31 / 7 + at / 4093) as u8).collect();
    arena.write(0, &bytes).unwrap();
    let devices = folder.text();
    let (address, length) = (arena.base().0, BYTES as u64);
    let options = tide_pool_options {
        arena: address,
        arena_bytes: length,
        ..pool_options(&devices, 64 << 20, 1, c"gds")
    };
    // SAFETY: the texts live across the call, and the arena is dropped behind the pool.
    let pool = unsafe { try_open_pool_with(&options) }.unwrap();
    let (mut ticket, before) = (0, fake.count("copies"));
    // SAFETY: the arena stays untouched until each ticket has ended.
    unsafe {
        let (name, length) = (NAME.as_ptr(), length / 2);
        let put = tide_put_gpu(pool, name, address, length, null_mut(), 0, &raw mut ticket);
        assert_eq!(put, TIDE_READY, "{}", last_error());
        wait(ticket);
        let (to, none) = (address + length, null_mut());
        let get = tide_get_gpu(pool, name, 0, to, length, none, none, 1, &raw mut ticket);
        assert_eq!(get, TIDE_READY, "{}", last_error());
        wait(ticket);
    }
    assert_eq!(fake.count("copies"), before);
    let mut found = vec![0; BYTES];
    arena.read(0, &mut found).unwrap();
    assert!(found[BYTES / 2..] == bytes[..BYTES / 2]);
    assert_eq!(tide_pool_close(pool), TIDE_READY);
    fake.assert_lawful();
}

#[test]
fn what_makes_no_sense_is_refused_with_its_reason() {
    let fake = FakeGpu::start(1, 0);
    let folder = Folder::new("gpu-refused");
    let devices = folder.text();
    let options = pool_options(&devices, 64 << 20, 1, c"auto");
    let nowhere = tide_pool_options { arena: 4096, arena_bytes: 4096, ..options };
    // SAFETY: the texts live across the call, which refuses the arena before it is looked at.
    assert_eq!(unsafe { try_open_pool_with(&nowhere) }, Err(TIDE_POOL_FAILED));
    assert!(last_error().contains("only the data paths gds and gds-compat"), "{}", last_error());
    assert_eq!(open(&folder, 3), Err(TIDE_POOL_FAILED));
    assert!(last_error().contains("there is no GPU 2; CUDA shows 1"), "{}", last_error());
    assert_eq!(try_open_pool(&folder, 64 << 20, 0, c"gds"), Err(TIDE_POOL_FAILED));
    assert!(last_error().contains("name the GPU"), "{}", last_error());
    let memory = DeviceMemory::new(&fake.gpu(), 4096).unwrap();
    let (mut ticket, address) = (0, memory.base().0);
    let mut put = |pool, address, length| {
        // SAFETY: every one of these is refused before its memory is touched.
        unsafe {
            tide_put_gpu(pool, NAME.as_ptr(), address, length, null_mut(), 0, &raw mut ticket)
        }
    };
    let without = open(&folder, 0).unwrap();
    assert_eq!(put(without, address, 4096), TIDE_POOL_FAILED);
    assert!(last_error().contains("opened without a GPU"), "{}", last_error());
    assert_eq!(tide_pool_close(without), TIDE_READY);
    let pool = open(&folder, 1).unwrap();
    for (address, length) in [(0, 1), (address, u64::MAX), (1, u64::MAX - 1)] {
        assert_eq!(put(pool, address, length), TIDE_INVALID_ARGUMENT, "{length} at {address}");
    }
    assert_eq!(tide_pool_close(pool), TIDE_READY);
}

/// `DLManagedTensor`, as `DLPack`'s header has it.
#[repr(C)]
struct Managed {
    data: u64,
    device: [i32; 2],
    dimensions: i32,
    kind: [u8; 4],
    shape: *const i64,
    strides: *const i64,
    offset: u64,
    context: *const std::ffi::c_void,
    deleter: unsafe extern "C" fn(*mut Self),
}

fn allocate_mapped(size: u64) -> *mut Managed {
    let mut managed = null_mut();
    // SAFETY: one pointer of ours.
    let status = unsafe { tide_gpu_memory_allocate(1, size, 2, &raw mut managed) };
    assert_eq!(status, TIDE_READY, "{}", last_error());
    managed.cast()
}

fn delete(managed: *mut Managed) {
    // SAFETY: made above, and deleted once.
    unsafe { ((*managed).deleter)(managed) };
}

#[test]
fn memory_of_which_parts_can_be_given_back_is_the_frameworks_until_it_is_deleted() {
    const PART: u64 = 2 << 20;
    let fake = FakeGpu::start(3, 1);
    let mapped = || fake.count("mapped_bytes") / PART;
    let mut granule = 0;
    // SAFETY: one u64 of ours.
    assert_eq!(unsafe { tide_gpu_memory_granule(1, &raw mut granule) }, TIDE_READY);
    assert_eq!(granule, PART);
    let first = allocate_mapped(3 * PART + 1);
    // SAFETY: it lives until it is deleted.
    let address = unsafe {
        let Managed { data, device, dimensions, kind, shape, strides, offset, .. } = &*first;
        assert_eq!((*device, *dimensions, *kind, *offset), ([2, 0], 1, [1, 8, 1, 0], 0));
        assert!(strides.is_null() && **shape == 3 * PART.cast_signed() + 1);
        *data
    };
    assert_eq!((tide_gpu_memory_is_live(address), tide_gpu_memory_is_live(address + 1)), (1, 0));
    assert_eq!(mapped(), 4);
    for _ in 0..2 {
        // A call that comes twice does no harm.
        // SAFETY: nothing was launched.
        assert_eq!(unsafe { tide_gpu_memory_decommit(address + PART, 2 * PART) }, TIDE_READY);
    }
    assert_eq!(mapped(), 2);
    fake.plan("create", 1, 2, 1);
    assert_eq!(tide_gpu_memory_recommit(address + PART, 2 * PART), 0, "there is no memory");
    assert_eq!(mapped(), 2);
    for _ in 0..2 {
        assert_eq!(tide_gpu_memory_recommit(address + PART, 2 * PART), 1);
        assert_eq!(mapped(), 4);
    }
    // While somebody takes care it is freed by that one alone.
    assert_eq!((tide_gpu_memory_take_care(1), tide_gpu_memory_take_dead()), (TIDE_READY, 0));
    delete(first);
    assert_eq!((tide_gpu_memory_is_live(address), mapped()), (0, 4));
    let (taken, again) = (tide_gpu_memory_take_dead(), tide_gpu_memory_take_dead());
    assert!(taken > 0 && again == 0 && mapped() == 4);
    // SAFETY: it is dead, and nothing was launched.
    assert_eq!(unsafe { tide_gpu_memory_decommit(address, PART) }, TIDE_READY);
    // SAFETY: nothing was launched.
    assert_eq!((unsafe { tide_gpu_memory_free(taken) }, mapped()), (TIDE_READY, 0));
    let [second, third, last] = [PART, PART, PART].map(allocate_mapped);
    delete(second);
    assert!(tide_gpu_memory_take_dead() > 0);
    delete(third);
    assert_eq!((mapped(), tide_gpu_memory_take_care(0)), (3, TIDE_READY));
    assert_eq!(mapped(), 1, "what was dead");
    delete(last);
    assert_eq!(mapped(), 0);
    fake.plan("create", 0, 2, 1);
    assert!(allocate_mapped(PART).is_null(), "there is no memory");
    fake.assert_lawful();
}

#[test]
fn wrong_arguments_for_memory_of_a_gpu_are_refused() {
    let _fake = FakeGpu::start(3, 1);
    let (mut granule, mut managed) = (0, null_mut());
    // SAFETY: places of ours, or null, which the functions must withstand; no memory is named.
    let statuses = unsafe {
        [
            tide_gpu_memory_granule(0, &raw mut granule),
            tide_gpu_memory_granule(1, null_mut()),
            tide_gpu_memory_allocate(0, 1, 2, &raw mut managed),
            tide_gpu_memory_allocate(1, 1, 2, null_mut()),
            tide_gpu_memory_allocate(1, u64::MAX, 2, &raw mut managed),
            tide_gpu_memory_decommit(0, u64::MAX),
            tide_gpu_memory_recommit(0, u64::MAX),
        ]
    };
    assert_eq!(statuses, [TIDE_INVALID_ARGUMENT; 7]);
    // SAFETY: as above.
    assert_eq!(unsafe { tide_gpu_memory_granule(9, &raw mut granule) }, TIDE_POOL_FAILED);
}
