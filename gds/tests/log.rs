//! GPU tensors through the log, by way of page-locked staging memory, by cuFile and by peer DMA, on
//! a GPU whose copies are late.
#![allow(unsafe_code)]

mod common;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use common::tensors::{
    PAST_THE_HOST, TensorRoute, WAYS, bytes_of, from_host, get, host_bytes, id, on_gpu, pattern,
    pool, put, source,
};
use common::{by_cufile, one_file, pool_by_cufile};
use tidelog_engine::layout::TensorId;
use tidelog_engine::memory::GpuMemory;
use tidelog_engine::path::{Feature, PathChoice};
use tidelog_engine::pool::{OpenOptions, Pool, PutOptions};
use tidelog_engine::schedule::{DeviceStats, Ticket, TransferError};
use tidelog_gds::cuda::{DeviceMemory, Event, Stream};
use tidelog_gds::{CallerRegion, Gpu, StagedGpu};
use tidelog_tests::machine::FakeGpu;

#[test]
fn what_is_put_from_the_gpu_is_what_the_host_reads_and_what_comes_back() {
    for seed in 0..8 {
        let fake = FakeGpu::start(seed, 3);
        let (uring, posix) = (PathChoice::Uring, PathChoice::Posix);
        let ways = [
            TensorRoute::Staged(uring),
            TensorRoute::Gds,
            TensorRoute::Staged(posix),
            TensorRoute::Peer,
        ];
        let way = ways[seed as usize % ways.len()];
        let (_media, pool) = pool(&fake, 1 + seed, way);
        for length in [1, 4096, 16 << 10, (16 << 10) + 1, 300_001] {
            let bytes = pattern(length, seed as usize);
            let tensor = on_gpu(&fake, &bytes);
            let written = put(&pool, &tensor, None);
            assert_eq!(written.wait().unwrap().bytes, length as u64);
            assert!(written.released());
            assert!(from_host(&pool, length) == bytes, "{length} bytes for the host");
            let back = on_gpu(&fake, &vec![0xEE; length]);
            assert_eq!(get(&pool, 0, &back, None, None).wait().unwrap().bytes, length as u64);
            assert!(bytes_of(&back) == bytes, "{length} bytes for the GPU");
            let part = on_gpu(&fake, &vec![0xEE; length / 3 + 1]);
            let start = length / 2;
            get(&pool, start as u64, &part, None, None).wait().unwrap();
            assert!(bytes_of(&part) == bytes[start..start + part.len()], "a part of {length}");
            let host = pattern(length, 1 + seed as usize);
            pool.put(id(), host.clone().into(), PutOptions::default()).unwrap().wait().unwrap();
            get(&pool, 0, &back, None, None).wait().unwrap();
            assert!(bytes_of(&back) == host, "{length} bytes that came from the host");
        }
        pool.close().unwrap();
        fake.assert_lawful();
    }
}

#[test]
fn past_the_host_no_byte_of_a_tensor_passes_through_it_and_its_checksums_are_the_host_s() {
    for seed in 0..20 {
        let fake = FakeGpu::start(seed, (seed % 5) as u32);
        let (_media, pool) = pool(&fake, 3, PAST_THE_HOST[seed as usize % 2]);
        let bytes = pattern(100_001, seed as usize);
        let (tensor, back) = (on_gpu(&fake, &bytes), on_gpu(&fake, &vec![0xEE; bytes.len()]));
        let moved = host_bytes(&fake, || {
            put(&pool, &tensor, None).wait().unwrap();
            get(&pool, 0, &back, None, None).wait().unwrap();
            let part = on_gpu(&fake, &[0; 5000]);
            get(&pool, 30_000, &part, None, None).wait().unwrap();
            assert!(bytes_of(&part) == bytes[30_000..35_000]);
            let verified = pool.verify(id(), source(&back, None), None).unwrap();
            assert!(verified.wait().unwrap().matched);
        });
        assert_eq!(moved, 0, "seed {seed}");
        assert!(bytes_of(&back) == bytes);
        // The host takes its own checksums of what it reads, and compares them with the kernel's.
        assert!(from_host(&pool, bytes.len()) == bytes);
        let gpu = pool.stats().unwrap().reactor.gpu.unwrap();
        assert_eq!((gpu.reached, gpu.checksums), (Feature::On, Feature::On));
        pool.close().unwrap();
        fake.assert_lawful();
    }
}

#[test]
fn registered_memory_is_read_and_written_in_place_where_cufile_registers_it() {
    for refused in [false, true] {
        let fake = FakeGpu::start(4, 3);
        let bytes = pattern(512 << 10, 1);
        let mut memory = DeviceMemory::in_pages(&fake.gpu(), bytes.len()).unwrap();
        memory.write(0, &bytes).unwrap();
        // SAFETY: the memory is dropped behind the pool.
        let region = unsafe { CallerRegion::new(memory.base(), memory.len()) };
        if refused {
            // Behind that of the ring.
            fake.plan("buffer_register", 1, 5013, 1);
        }
        let (_directory, pool) = pool_by_cufile("gpu-in-place", &fake, fake.gpu(), vec![region]);
        let before = fake.count("copies");
        put(&pool, &memory, None).wait().unwrap();
        let written = fake.count("copies");
        memory.write(0, &vec![0xEE; bytes.len()]).unwrap();
        let between = fake.count("copies");
        get(&pool, 0, &memory, None, None).wait().unwrap();
        let copies = written - before + (fake.count("copies") - between);
        assert_eq!(copies == 0, !refused, "{copies} copies");
        assert!(bytes_of(&memory) == bytes && from_host(&pool, bytes.len()) == bytes);
        let notes = pool.stats().unwrap().reactor.capabilities.notes.join("; ");
        let told = if refused {
            "512 KiB of GPU memory go through the staging ring: "
        } else {
            "512 KiB of GPU memory are read and written in place"
        };
        assert!(notes.contains(told), "{notes}");
        assert_eq!(notes.contains("expandable segments"), refused, "{notes}");
        pool.close().unwrap();
        fake.assert_lawful();
    }
}

#[test]
fn the_window_of_cufile_is_as_large_as_the_staging_memory_and_no_pool_opens_without_it() {
    let fake = FakeGpu::start(4, 3);
    let (_media, pool) = pool(&fake, 3, TensorRoute::Gds);
    let notes = pool.stats().unwrap().reactor.capabilities.notes.join("; ");
    assert!(notes.contains("staging: 48 KiB of GPU memory in chunks of 16 KiB"), "{notes}");
    pool.close().unwrap();
    let (_directory, file) = one_file("gpu-no-window");
    fake.plan("buffer_register", 0, 2, 1);
    let why = Pool::open(&file, &by_cufile(&fake, fake.gpu(), Vec::new())).err().unwrap();
    let (why, told) = (why.to_string(), "CUDA error 2 (CUDA_ERROR_OUT_OF_MEMORY)");
    assert!(why.contains("gds") && why.contains(told), "{why}");
}

#[test]
fn a_tensor_that_comes_back_as_other_bytes_is_read_again_and_then_fails_by_name() {
    let fake = FakeGpu::start(1, 2);
    let (media, pool) = pool(&fake, 4, TensorRoute::Gds);
    let bytes = pattern(100_000, 1);
    put(&pool, &on_gpu(&fake, &bytes), None).wait().unwrap();
    let back = on_gpu(&fake, &vec![0; bytes.len()]);
    let counted = || {
        let devices = pool.stats().unwrap().reactor.devices;
        let sum = |count: fn(&DeviceStats) -> u64| devices.iter().map(count).sum::<u64>();
        (sum(|device| device.checksum_retries), sum(|device| device.checksum_failures))
    };
    // On the way, once.
    fake.plan("read", 2, -2, 1);
    get(&pool, 0, &back, None, None).wait().unwrap();
    assert!(bytes_of(&back) == bytes);
    assert_eq!(counted(), (1, 0));
    // On the medium.
    for name in ["a", "b"] {
        let path = media.directory.path().join(name);
        let mut file = fs::read(&path).unwrap();
        if let Some(block) = file.chunks(4096).position(|block| block == &bytes[..4096]) {
            file[block * 4096 + 9] ^= 4;
        }
        fs::write(&path, file).unwrap();
    }
    let told = get(&pool, 0, &back, None, None).wait().unwrap_err();
    assert!(matches!(told, TransferError::Checksum { tensor_offset: 0, .. }), "{told}");
    assert!(told.to_string().contains("the medium is damaged there"), "{told}");
    assert_eq!(counted(), (2, 1));
    pool.close().unwrap();
    fake.assert_lawful();
}

#[test]
fn a_tensor_on_the_gpu_is_compared_with_what_was_put_by_the_gpu_itself() {
    let fake = FakeGpu::start(5, 2);
    let (_media, pool) = pool(&fake, 3, TensorRoute::Staged(PathChoice::Auto));
    let moved = host_bytes(&fake, || compare(&fake, &pool));
    assert_eq!(moved, 200_000, "only what was put");
}

#[test]
fn where_the_gpu_takes_no_checksums_the_host_does_and_the_statistics_say_why() {
    // Of a GPU that no other test uses: a process loads the kernel once.
    let fake = FakeGpu::start(5, 2);
    fake.driver(1 << 4, 1 << 1, 2, 128, 8);
    fake.plan("module", 0, 222, 1);
    let (_directory, file) = one_file("gds-no-kernel");
    let gpu = Gpu::open(7).unwrap();
    let gpu: Option<Arc<dyn GpuMemory>> = Some(Arc::new(StagedGpu(gpu)));
    let pool = Pool::open(&file, &OpenOptions { gpu, ..OpenOptions::default() }).unwrap();
    compare(&fake, &pool);
    let Feature::Off(why) = pool.stats().unwrap().reactor.gpu.unwrap().checksums else {
        panic!("it was refused")
    };
    assert!(why.contains("load the checksum kernel") && why.contains("222"), "{why}");
}

/// The driver takes half a second to translate it.
#[test]
fn the_checksum_kernel_is_loaded_once_for_a_process_and_a_gpu() {
    let fake = FakeGpu::start(5, 2);
    drop(pool(&fake, 3, TensorRoute::Staged(PathChoice::Auto)));
    let before = fake.count("modules_loaded");
    for way in WAYS {
        let (_media, pool) = pool(&fake, 3, way);
        compare(&fake, &pool);
    }
    assert_eq!(fake.count("modules_loaded"), before);
}

/// A kernel that runs long is before it in its stream.
#[test]
fn what_waits_for_the_gpu_takes_no_staging_memory_and_holds_up_nobody() {
    let fake = FakeGpu::start(6, 1);
    let (_media, pool) = pool(&fake, 4, TensorRoute::Staged(PathChoice::Auto));
    let (late, lagging) = (Event::new(&fake.gpu()).unwrap(), Stream::new(&fake.gpu()).unwrap());
    fake.hold_event(Some(&late));
    late.record(&lagging).unwrap();
    let bytes = pattern(200_000, 1);
    let tensors: Vec<DeviceMemory> = (0..4).map(|_| on_gpu(&fake, &bytes)).collect();
    let put_as = |name: &str, tensor: &DeviceMemory, after: Option<&Event>| {
        let id = TensorId::from_name(name);
        pool.put(id, source(tensor, after), PutOptions::default()).unwrap()
    };
    let waiting: Vec<Ticket> =
        (0..3).map(|at| put_as(&format!("late {at}"), &tensors[at], Some(&late))).collect();
    let cancelled = put_as("cancelled", &tensors[0], Some(&late));
    let ready = put_as("ready", &tensors[3], None);
    let done = ready.wait_timeout(Duration::from_secs(20)).expect("it has waited for others");
    assert_eq!(done.unwrap().waited, Duration::ZERO);
    cancelled.cancel();
    let stopped = cancelled.wait_timeout(Duration::from_secs(20)).expect("it has waited");
    assert_eq!(stopped.unwrap_err(), TransferError::Cancelled);
    assert!(cancelled.released(), "nothing of it was begun");
    assert!(waiting.iter().all(|ticket| ticket.poll().is_none()));
    std::thread::sleep(Duration::from_millis(20));
    fake.hold_event(None);
    for ticket in waiting {
        let done = ticket.wait().unwrap();
        assert!(done.waited >= Duration::from_millis(20), "{done:?}");
    }
    pool.close().unwrap();
    fake.assert_lawful();
}

/// Naps of 20 microseconds would take 70 by default.
#[test]
fn the_thread_that_looks_at_copies_naps_as_long_as_it_means_to() {
    let fake = FakeGpu::start(6, 1);
    let (_media, _pool) = pool(&fake, 4, TensorRoute::Staged(PathChoice::Auto));
    let slacks = fs::read_dir("/proc/self/task").unwrap().map(|thread| {
        let thread = thread.unwrap().file_name();
        fs::read_to_string(Path::new("/proc").join(thread).join("timerslack_ns"))
    });
    let exact = slacks.flatten().filter(|slack| slack.trim() == "1").count();
    assert!(exact >= 1, "no thread of the pool has set it");
}

fn compare(fake: &FakeGpu, pool: &Pool) {
    let mut bytes = pattern(200_000, 0);
    put(pool, &on_gpu(fake, &bytes), None).wait().unwrap();
    let verify = |memory: &DeviceMemory| {
        let ended = pool.verify(id(), source(memory, None), None).unwrap().wait().unwrap();
        (ended.matched, ended.bytes)
    };
    assert_eq!(verify(&on_gpu(fake, &bytes)), (true, 200_000));
    for at in [0, 100_000, 199_999] {
        bytes[at] ^= 1;
        assert!(!verify(&on_gpu(fake, &bytes)).0, "byte {at} differs");
        bytes[at] ^= 1;
    }
}

#[test]
fn a_put_waits_for_the_event_after_which_its_bytes_are_there() {
    for seed in 0..10 {
        let fake = FakeGpu::start(seed, 20);
        let (_media, pool) = pool(&fake, 4, WAYS[seed as usize % WAYS.len()]);
        let bytes = pattern(100_000, 3);
        let (made, tensor) = (on_gpu(&fake, &bytes), on_gpu(&fake, &vec![0; bytes.len()]));
        let (kernel, ready) = (Stream::new(&fake.gpu()).unwrap(), Event::new(&fake.gpu()).unwrap());
        // SAFETY: both stay until the ticket ends.
        unsafe { kernel.copy(made.base(), tensor.base(), bytes.len()) }.unwrap();
        ready.record(&kernel).unwrap();
        put(&pool, &tensor, Some(&ready)).wait().unwrap();
        assert!(from_host(&pool, bytes.len()) == bytes, "seed {seed}: older bytes were put");
    }
}

#[test]
fn a_get_waits_for_whoever_used_the_memory_and_whoever_uses_it_next_for_the_get() {
    for seed in 0..10 {
        let fake = FakeGpu::start(seed, 20);
        let (_media, pool) = pool(&fake, 4, WAYS[seed as usize % WAYS.len()]);
        let (bytes, older) = (pattern(100_000, 3), pattern(100_000, 8));
        put(&pool, &on_gpu(&fake, &bytes), None).wait().unwrap();
        let gpu = fake.gpu();
        let memory = on_gpu(&fake, &older);
        let (before, behind) =
            (on_gpu(&fake, &vec![0; bytes.len()]), on_gpu(&fake, &vec![0; bytes.len()]));
        let kernel = Stream::new(&gpu).unwrap();
        let (free, landed) = (Event::new(&gpu).unwrap(), Event::new(&gpu).unwrap());
        // SAFETY: all memory stays until the synchronisation below.
        unsafe { kernel.copy(memory.base(), before.base(), bytes.len()) }.unwrap();
        free.record(&kernel).unwrap();
        let ticket = get(&pool, 0, &memory, Some(&free), Some(&landed));
        ticket.wait().unwrap();
        assert!(ticket.released());
        kernel.wait_for(&landed).unwrap();
        // SAFETY: as above.
        unsafe { kernel.copy(memory.base(), behind.base(), bytes.len()) }.unwrap();
        kernel.synchronize().unwrap();
        assert!(bytes_of(&before) == older, "seed {seed}: overwritten while it was in use");
        assert!(bytes_of(&behind) == bytes, "seed {seed}: used before it was there");
    }
}

#[test]
fn a_copy_that_the_driver_refuses_fails_its_transfer_by_name_and_no_other() {
    let fake = FakeGpu::start(2, 1);
    let (_media, pool) = pool(&fake, 2, TensorRoute::Staged(PathChoice::Auto));
    let tensor = on_gpu(&fake, &pattern(100_000, 0));
    put(&pool, &tensor, None).wait().unwrap();
    for (call, error) in [("copy_out", "copy from the GPU"), ("record", "record an event")] {
        for after in 0..3 {
            fake.plan(call, after, 719, 1);
            let ticket = put(&pool, &tensor, None);
            let told = ticket.wait().unwrap_err().to_string();
            assert!(told.contains(error) && told.contains("CUDA_ERROR_LAUNCH_FAILED"), "{told}");
            assert!(told.contains(&id().to_string()), "{told}");
            assert!(ticket.released());
        }
    }
    fake.plan("copy_in", 1, 719, 1);
    let back = on_gpu(&fake, &vec![0; 100_000]);
    assert!(matches!(get(&pool, 0, &back, None, None).wait(), Err(TransferError::Gpu { .. })));
    // Every chunk is there again: with one less, these would wait for ever.
    put(&pool, &tensor, None).wait().unwrap();
    get(&pool, 0, &back, None, None).wait().unwrap();
    assert!(bytes_of(&back) == pattern(100_000, 0));
}

#[test]
fn a_chunk_of_which_the_gpu_tells_nothing_more_is_never_used_again() {
    let fake = FakeGpu::start(2, 1);
    let (_media, pool) = pool(&fake, 2, TensorRoute::Staged(PathChoice::Auto));
    let tensor = on_gpu(&fake, &pattern(16 << 10, 0));
    for _ in 0..2 {
        fake.plan("query", 0, 700, 1);
        let told = put(&pool, &tensor, None).wait().unwrap_err().to_string();
        assert!(told.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{told}");
    }
    let told = put(&pool, &tensor, None).wait().unwrap_err().to_string();
    assert!(told.contains("all staging memory was left"), "{told}");
}

#[test]
fn a_transfer_that_is_cancelled_is_released_when_no_copy_touches_its_memory() {
    for seed in 0..10 {
        let fake = FakeGpu::start(seed, 3);
        let (_media, pool) = pool(&fake, 2, WAYS[seed as usize % WAYS.len()]);
        let tensor = on_gpu(&fake, &pattern(1 << 20, 0));
        put(&pool, &tensor, None).wait().unwrap();
        for ticket in [put(&pool, &tensor, None), get(&pool, 0, &tensor, None, None)] {
            ticket.cancel();
            let ended = ticket.wait();
            assert!(matches!(ended, Ok(_) | Err(TransferError::Cancelled)), "{ended:?}");
            assert!(ticket.released());
        }
        // The fake counts a copy that touches freed memory.
        drop(tensor);
        pool.close().unwrap();
        fake.assert_lawful();
    }
}

#[test]
fn what_a_cancelled_get_was_to_wait_for_is_waited_for_by_whoever_has_the_memory_next() {
    for way in WAYS {
        let fake = FakeGpu::start(7, 3);
        let (_media, pool) = pool(&fake, 2, way);
        let tensor = on_gpu(&fake, &pattern(1 << 20, 0));
        put(&pool, &tensor, None).wait().unwrap();
        let kernel = Stream::new(&fake.gpu()).unwrap();
        let free = Event::new(&fake.gpu()).unwrap();
        free.record(&kernel).unwrap();
        fake.hold_event(Some(&free));
        // The first has no room for the second, which has not begun when it is cancelled.
        let first = get(&pool, 0, &tensor, Some(&free), None);
        let landed = Event::new(&fake.gpu()).unwrap();
        landed.record(&kernel).unwrap();
        let second = get(&pool, 0, &tensor, Some(&landed), Some(&landed));
        second.cancel();
        assert!(matches!(second.wait(), Err(TransferError::Cancelled)));
        for _ in 0..1000 {
            assert!(!landed.has_happened().unwrap(), "nobody waited for what was before it");
        }
        fake.hold_event(None);
        first.wait().unwrap();
        kernel.synchronize().unwrap();
        pool.close().unwrap();
        assert!(landed.has_happened().unwrap());
        drop(tensor);
        fake.assert_lawful();
    }
}

#[test]
fn a_pool_that_is_closed_waits_for_copies_that_nobody_else_waits_for() {
    for seed in 0..10 {
        let fake = FakeGpu::start(seed, 30);
        let (_media, pool) = pool(&fake, 4, WAYS[seed as usize % WAYS.len()]);
        let tensor = on_gpu(&fake, &pattern(60_000, 0));
        put(&pool, &tensor, None).wait().unwrap();
        let landed = Event::new(&fake.gpu()).unwrap();
        get(&pool, 0, &tensor, None, Some(&landed)).wait().unwrap();
        pool.close().unwrap();
        assert!(landed.has_happened().unwrap());
        drop(tensor);
        fake.assert_lawful();
    }
}

#[test]
fn the_statistics_say_which_gpu_it_is_and_why_staging_memory_is_not_page_locked() {
    let fake = FakeGpu::start(1, 0);
    let (media, one) = pool(&fake, 2, TensorRoute::Staged(PathChoice::Auto));
    let gpu = one.stats().unwrap().reactor.gpu.unwrap();
    assert_eq!(gpu.name, "GPU 0 (Fake GPU) at 0000:3b:00.0");
    assert_eq!(gpu.page_locked, Feature::On);
    let Feature::Off(why) = gpu.reached else { panic!("the kernel reaches no GPU") };
    assert!(why.contains("by way of the host's memory"), "{why}");
    drop((media, one));
    fake.plan("lock", 0, 2, 1);
    let (_media, two) = pool(&fake, 2, TensorRoute::Staged(PathChoice::Auto));
    let Feature::Off(why) = two.stats().unwrap().reactor.gpu.unwrap().page_locked else {
        panic!("it was refused")
    };
    assert!(why.contains("error 2 (CUDA_ERROR_OUT_OF_MEMORY)") && why.contains("ulimit"), "{why}");
    let tensor = on_gpu(&fake, &pattern(60_000, 0));
    put(&two, &tensor, None).wait().unwrap();
}

#[test]
fn a_gpu_that_fails_a_piece_past_the_host_fails_its_transfer_and_no_device() {
    let calls = ["copy", "launch", "record", "query"];
    let cases = calls.iter().flat_map(|call| PAST_THE_HOST.map(|way| (*call, way)));
    for (seed, (call, way)) in cases.enumerate() {
        let fake = FakeGpu::start(seed as u64, 1);
        let (_media, pool) = pool(&fake, 4, way);
        let bytes = pattern(100_000, 0);
        let (tensor, back) = (on_gpu(&fake, &bytes), on_gpu(&fake, &vec![0; bytes.len()]));
        put(&pool, &tensor, None).wait().unwrap();
        for after in 0..4 {
            fake.plan(call, after, 719, 1);
            let ticket = put(&pool, &tensor, None);
            let told = ticket.wait().unwrap_err().to_string();
            assert!(told.contains("CUDA_ERROR_LAUNCH_FAILED"), "{told}");
            assert!(told.contains(&id().to_string()) && ticket.released(), "{told}");
            fake.plan(call, after, 719, 1);
            let ticket = get(&pool, 0, &back, None, None);
            let told = ticket.wait().unwrap_err().to_string();
            assert!(told.contains("CUDA_ERROR_LAUNCH_FAILED") && ticket.released(), "{told}");
        }
        // Every chunk is there again, and no device is latched.
        put(&pool, &tensor, None).wait().unwrap();
        get(&pool, 0, &back, None, None).wait().unwrap();
        assert!(bytes_of(&back) == bytes);
        pool.close().unwrap();
        fake.assert_lawful();
    }
}

#[test]
fn tensors_of_another_gpu_than_cufile_s_go_through_the_host_and_the_statistics_say_so() {
    let fake = FakeGpu::start(3, 3);
    fake.driver(1 << 4, 1 << 1, 2, 128, 2);
    let (_directory, pool) = pool_by_cufile("gpu-other", &fake, Gpu::open(1).unwrap(), Vec::new());
    let stats = pool.stats().unwrap().reactor;
    let gpu = stats.gpu.unwrap();
    // The path moves the host's memory by the kernel; what copies to the GPU has locked it.
    assert!(matches!(stats.capabilities.registered_buffers, Feature::Off(_)));
    assert_eq!(gpu.page_locked, Feature::On);
    let Feature::Off(why) = gpu.reached else { panic!("it is another GPU") };
    assert!(why.contains("goes by way of GPU 0 (Fake GPU) at 0000:3b:00.0"), "{why}");
    let bytes = pattern(100_001, 0);
    let back = on_gpu(&fake, &vec![0xEE; bytes.len()]);
    put(&pool, &on_gpu(&fake, &bytes), None).wait().unwrap();
    get(&pool, 0, &back, None, None).wait().unwrap();
    assert!(bytes_of(&back) == bytes);
    pool.close().unwrap();
    fake.assert_lawful();
}

#[test]
fn memory_of_a_gpu_is_refused_by_a_pool_without_one() {
    let fake = FakeGpu::start(1, 0);
    let (_directory, file) = one_file("gpu-none");
    let pool = Pool::open(&file, &OpenOptions::default()).unwrap();
    let tensor = on_gpu(&fake, &[1; 100]);
    let told = pool.put(id(), source(&tensor, None), PutOptions::default()).unwrap_err();
    assert!(told.to_string().contains("opened without a GPU"), "{told}");
}
