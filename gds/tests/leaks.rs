//! What is leaked on purpose, in a process of its own: there, nobody counts what is given back.
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
