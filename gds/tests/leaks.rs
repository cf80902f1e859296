//! Leaks on purpose, in a process of its own: there, nobody counts what is given back.
#![allow(unsafe_code)]

mod common;

use std::time::{Duration, Instant};

use common::{device, finish, on_gpu, pool_by_cufile, small_queue};
use tidelog_engine::layout::TensorId;
use tidelog_engine::memory::{GpuSlice, GpuSource, Source, WindowSize};
use tidelog_engine::path::{Action, Backend, Extent, Feature, Operation, Status};
use tidelog_engine::pool::PutOptions;
use tidelog_engine::units::DeviceIndex;
use tidelog_gds::cuda::{DeviceMemory, Stream};
use tidelog_gds::queue::{CuFileQueue, DmaDirection, WindowRequest};
use tidelog_gds::{GdsBackend, GdsOptions, StagedGpu};
use tidelog_tests::machine::{Directory, FakeGpu};

const BLOCK: usize = 4096;
const SIZE: usize = 64 * BLOCK;

fn read(queue: &mut CuFileQueue, length: usize, memory: GpuSlice) {
    let (device, length) = (DeviceIndex(0), length as u32);
    let direction = DmaDirection::Read;
    let request = WindowRequest { tag: 1, device, offset: 0, length, direction, memory };
    // SAFETY: the tests keep the memory that they name until the answer, or for good.
    unsafe { queue.submit(request) }.unwrap();
}

#[test]
fn a_chunk_that_an_ssd_may_still_write_is_never_used_again() {
    let fake = FakeGpu::start(9, 0);
    let directory = Directory::new("gds-timeout").unwrap();
    let size = WindowSize { chunk: 4 << 10, chunks: 2 };
    let memory = DeviceMemory::new(&fake.gpu(), BLOCK).unwrap();
    let mut queue = fake.queue(vec![device(directory.path(), "a", SIZE as u64)], size, 4);
    for (round, expected) in
        [libc::ETIMEDOUT, libc::ETIMEDOUT, libc::ENOMEM].into_iter().enumerate()
    {
        fake.plan("read", 0, libc::ETIMEDOUT, 1);
        read(&mut queue, BLOCK, on_gpu(memory.base(), BLOCK, None));
        let answer = finish(&mut queue)[0];
        assert_eq!(
            answer.result,
            Err(Status::Errno(expected)),
            "round {round}: the ring has two chunks"
        );
    }
    drop(queue);
    fake.assert_lawful();
    assert!(fake.count("buffers") > 0, "the window stays with the SSD");
}

#[test]
fn where_the_gpu_failed_for_good_each_request_says_how() {
    let fake = FakeGpu::start(9, 0);
    let directory = Directory::new("gds-broken").unwrap();
    let size = WindowSize { chunk: 4 << 10, chunks: 2 };
    let memory = DeviceMemory::new(&fake.gpu(), BLOCK).unwrap();
    let mut queue = fake.queue(vec![device(directory.path(), "a", SIZE as u64)], size, 4);
    fake.plan("query", 0, 700, -1);
    for round in 0..3 {
        read(&mut queue, BLOCK, on_gpu(memory.base(), BLOCK, None));
        let found = finish(&mut queue)[0].result;
        let Err(Status::ErrorLibrary { code: 700, .. }) = found else {
            panic!("round {round}, with two chunks: {found:?}")
        };
    }
}

/// Checks a batch that reports nothing after a cancel, as cuFile is free to do, and `KvikIO`'s
/// example has it: `GetStatus` tells of nothing after a cancel.
#[test]
fn what_cufile_tells_nothing_of_after_a_cancel_ends_as_cancelled_and_its_memory_is_lost() {
    let fake = FakeGpu::start(9, 0);
    let directory = Directory::new("gds-silent").unwrap();
    let size = WindowSize { chunk: 4 << 10, chunks: 4 };
    let memory = DeviceMemory::new(&fake.gpu(), BLOCK).unwrap();
    let mut queue = fake.queue(vec![device(directory.path(), "a", SIZE as u64)], size, 4);
    let file = directory.path().join("a");
    for left in [2, 0] {
        fake.hang(Some(&file));
        (0..2).for_each(|_| read(&mut queue, BLOCK, on_gpu(memory.base(), BLOCK, None)));
        let before = fake.count("submitted");
        while fake.count("submitted") < before + 2 {
            queue.advance().unwrap();
        }
        fake.plan("silent_cancel", 0, 1, -1);
        queue.abort(None);
        let ends = finish_within(&mut queue, Duration::from_secs(600));
        assert_eq!(ends, [Err(Status::Errno(libc::ECANCELED)); 2]);
        fake.hang(None);
        // The chunks that are left serve on: none of the others is ever used again.
        for _ in 0..8 {
            read(&mut queue, BLOCK, on_gpu(memory.base(), BLOCK, None));
            let expected = if left > 0 { Ok(()) } else { Err(Status::Errno(libc::ENOMEM)) };
            assert_eq!(finish_within(&mut queue, Duration::from_secs(600)), [expected]);
        }
        fake.assert_lawful();
    }
    drop(queue);
    fake.assert_lawful();
    assert!(fake.count("buffers") > 0, "the window stays with the SSD");
}

/// The first half of a batch is on its way, and the call fails.
#[test]
fn a_batch_that_is_submitted_in_part_fails_as_a_whole_and_loses_what_nobody_tells_of() {
    for (silent, code) in [(0, 5040), (1, 5040), (0, 5030), (0, 719)] {
        let fake = FakeGpu::start(5, 1);
        let directory = Directory::new("gds-part").unwrap();
        let size = WindowSize { chunk: 4 << 10, chunks: 16 };
        let memory: Vec<_> =
            (0..4).map(|_| DeviceMemory::new(&fake.gpu(), BLOCK).unwrap()).collect();
        let mut queue = fake.queue(vec![device(directory.path(), "a", SIZE as u64)], size, 16);
        fake.plan("batch_submit_part", 0, code, 1);
        fake.plan("silent_cancel", 0, silent, 1);
        for one in &memory {
            read(&mut queue, BLOCK, on_gpu(one.base(), BLOCK, None));
        }
        let ends = finish_within(&mut queue, Duration::from_secs(600));
        let failed = |end: &&Result<(), Status>| matches!(end, Err(Status::ErrorLibrary { code: found, .. }) if *found == code);
        assert_eq!(fake.count("submitted"), 2);
        // What was on its way may have got there before it was cancelled.
        let fewest = if silent == 1 { 4 } else { 2 };
        assert!(ends.iter().filter(failed).count() >= fewest, "{ends:?}");
        assert!(ends.iter().all(|end| end.is_ok() || failed(&end)), "{ends:?}");
        read(&mut queue, BLOCK, on_gpu(memory[0].base(), BLOCK, None));
        assert_eq!(finish_within(&mut queue, Duration::from_secs(600)), [Ok(())]);
        drop(queue);
        fake.assert_lawful();
    }
}

/// Returns the results of all requests.
fn finish_within(queue: &mut CuFileQueue, most: Duration) -> Vec<Result<(), Status>> {
    let (begun, mut ends) = (Instant::now(), Vec::new());
    while queue.in_flight() > 0 {
        assert!(begun.elapsed() < most, "{} requests were never answered", queue.in_flight());
        queue.advance().unwrap();
        ends.extend(queue.completions().map(|end| end.result));
    }
    ends
}

#[test]
fn memory_in_place_that_an_ssd_may_still_write_is_never_answered_for() {
    let fake = FakeGpu::start(9, 0);
    let directory = Directory::new("gds-lost").unwrap();
    let mut queue = small_queue(&fake, vec![device(directory.path(), "a", SIZE as u64)]);
    let region = DeviceMemory::in_pages(&fake.gpu(), BLOCK).unwrap();
    // SAFETY: dropped after the queue.
    unsafe { queue.register(region.base(), region.len()) }.unwrap();
    fake.plan("read", 0, libc::ETIMEDOUT, 1);
    read(&mut queue, BLOCK, on_gpu(region.base(), BLOCK, None));
    for _ in 0..10_000 {
        queue.advance().unwrap();
        assert_eq!(queue.completions().count(), 0);
    }
    assert_eq!(queue.in_flight(), 1);
    drop(queue);
    assert!(fake.count("buffers") > 0, "the registration is leaked, not taken back under the SSD");
    std::mem::forget(region);
}

#[test]
fn a_queue_dropped_with_transfers_on_their_way_leaks_what_the_ssd_uses() {
    for seed in 0..20 {
        let fake = FakeGpu::start(seed, 1_000_000);
        let directory = Directory::new("gds-dropped").unwrap();
        let memory = DeviceMemory::new(&fake.gpu(), 8 * BLOCK).unwrap();
        let mut queue = small_queue(&fake, vec![device(directory.path(), "a", SIZE as u64)]);
        read(&mut queue, 8 * BLOCK, on_gpu(memory.base(), 8 * BLOCK, None));
        for _ in 0..3 {
            queue.advance().unwrap();
        }
        assert!(fake.count("submitted") > 0);
        drop(queue);
        fake.assert_lawful();
    }
}

#[test]
fn the_fake_sees_a_race() {
    let fake = FakeGpu::start(1, 1_000_000);
    let gpu = fake.gpu();
    let (memory, stream) = (DeviceMemory::new(&gpu, BLOCK).unwrap(), Stream::new(&gpu).unwrap());
    let bytes = [1_u8; BLOCK];
    // SAFETY: the bytes outlive the stream's work, which dropping the stream waits for.
    unsafe { stream.copy_in(bytes.as_ptr(), memory.base(), BLOCK) }.unwrap();
    drop(memory);
    drop(stream);
    let (count, first) = fake.violations();
    assert_eq!(count, 1);
    assert!(first.contains("writes freed memory"), "{first}");
}

#[test]
fn a_library_that_answers_no_more_ends_the_path_and_not_the_process() {
    let fake = FakeGpu::start(4, 2);
    let directory = Directory::new("gds-dead").unwrap();
    let options = GdsOptions { library: Some(fake.library_path().into()), ..GdsOptions::default() };
    let devices = vec![device(directory.path(), "a", SIZE as u64)];
    let mut path = GdsBackend(options).provider(devices).open(8).unwrap().path;
    let window = WindowSize::new(0, BLOCK as u32);
    assert_eq!(path.reach_gpu(&StagedGpu(fake.gpu()), window).unwrap(), Feature::On);
    let memory = DeviceMemory::new(&fake.gpu(), BLOCK).unwrap();
    fake.plan("batch_status", 0, 5041, -1);
    let action = Action::read(on_gpu(memory.base(), BLOCK, None));
    let extent = Extent::new(0, BLOCK as u64);
    path.submit(Operation::new(1, DeviceIndex(0), extent, action)).unwrap();
    let error = loop {
        if let Err(error) = path.wait(Some(Duration::from_millis(100))) {
            break error;
        }
    };
    assert!(error.to_string().contains("error 5041"), "{error}");
    let mut completions = Vec::new();
    assert_eq!(path.drain(Instant::now(), &mut completions), 1, "nobody says that it has ended");
    std::mem::forget(memory);
}

#[test]
fn a_tensor_that_a_device_may_still_use_is_never_released() {
    let fake = FakeGpu::start(4, 2);
    let (_directory, pool) = pool_by_cufile("gds-unreleased", &fake, fake.gpu(), Vec::new());
    let tensor = DeviceMemory::new(&fake.gpu(), 100_000).unwrap();
    fake.plan("batch_status", 0, 5041, -1);
    // SAFETY: the memory is leaked.
    let source = unsafe { GpuSource::new(tensor.base().0, tensor.len(), None) };
    let id = TensorId::from_name("weight");
    let ticket = pool.put(id, Source::Gpu(source), PutOptions::default()).unwrap();
    let told = ticket.wait().unwrap_err().to_string();
    assert!(told.contains("its data path died") && told.contains("5041"), "{told}");
    assert!(!ticket.released());
    std::mem::forget(tensor);
}
