//! The queue against a fake CUDA and cuFile that are late, fail, and reorder.
#![allow(unsafe_code)]

mod common;

use std::fs;

use common::tensors::on_gpu as holding;
use common::{device, finish, on_gpu, small_queue};
use tidelog_engine::memory::{GpuSlice, WindowSize};
use tidelog_engine::path::{Device, DeviceSpec, OpenMode, Status};
use tidelog_engine::units::DeviceIndex;
use tidelog_gds::cuda::{CUDA, DeviceMemory, Event, Stream};
use tidelog_gds::cufile::CUFILE;
use tidelog_gds::queue::{CuFileQueue, DmaDirection, WindowRequest};
use tidelog_tests::machine::{Directory, FakeGpu};

const BLOCK: usize = 4096;
const SIZE: usize = 64 * BLOCK;

/// xorshift, for decisions of the tests themselves.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % limit
    }
}

fn request(
    tag: u64,
    direction: DmaDirection,
    offset: usize,
    length: usize,
    memory: GpuSlice,
) -> WindowRequest {
    let (offset, length) = (offset as u64, length as u32);
    WindowRequest { tag, device: DeviceIndex(0), offset, length, direction, memory }
}

/// Asks for pieces of all of this memory, to or from the same places of the device.
fn submit_pieces(
    queue: &mut CuFileQueue,
    direction: DmaDirection,
    memory: &DeviceMemory,
    piece: usize,
) {
    for (tag, offset) in (0..memory.len()).step_by(piece).enumerate() {
        let part = on_gpu(memory.base().offset(offset as u64), piece, None);
        submit(queue, request(tag as u64, direction, offset, piece, part));
    }
}

fn submit(queue: &mut CuFileQueue, request: WindowRequest) {
    // SAFETY: the tests keep the memory that they name until the answer, and touch it only after.
    unsafe { queue.submit(request) }.unwrap();
}

fn pattern(salt: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 / 7 + salt * 13) as u8).collect()
}

#[test]
fn whatever_is_late_or_out_of_order_every_byte_arrives_and_nothing_races() {
    for seed in 0..40 {
        let fake = FakeGpu::start(seed, (seed % 7) as u32);
        let directory = Directory::new(&format!("gds-{seed}")).unwrap();
        let mut chance = Chance(seed * 2 + 1);
        let mut model = vec![0_u8; SIZE];
        {
            let mut queue = small_queue(&fake, vec![device(directory.path(), "a", SIZE as u64)]);
            for round in 0..6 {
                // Each round writes disjoint ranges, then reads what it likes.
                let mut memory: Vec<(usize, Vec<u8>, DeviceMemory)> = Vec::new();
                let mut start = 0;
                while start < SIZE {
                    let length = (1 + chance.below(8)) * BLOCK;
                    let length = length.min(SIZE - start);
                    let bytes = pattern(round * 100 + start, length);
                    model[start..start + length].copy_from_slice(&bytes);
                    let tensor = holding(&fake, &bytes);
                    memory.push((start, bytes, tensor));
                    start += length;
                }
                run_all(&mut queue, DmaDirection::Write, &mut memory);
                assert!(fs::read(directory.path().join("a")).unwrap() == model, "seed {seed}");
                for (_, bytes, tensor) in &mut memory {
                    bytes.fill(0xEE);
                    tensor.write(0, bytes).unwrap();
                }
                run_all(&mut queue, DmaDirection::Read, &mut memory);
                for (start, bytes, tensor) in &mut memory {
                    tensor.read(0, bytes).unwrap();
                    let expected = &model[*start..*start + bytes.len()];
                    assert!(bytes == expected, "seed {seed}, {} bytes at {start}", bytes.len());
                }
            }
            assert!(fake.count("batch_longest") > 1, "one transfer at a time is no batch");
        }
        fake.assert_lawful();
        let left: Vec<u64> =
            ["handles", "buffers", "batches", "allocated"].map(|what| fake.count(what)).to_vec();
        assert_eq!(left, [0, 0, 0, 0], "everything is given back");
    }
}

fn run_all(
    queue: &mut CuFileQueue,
    direction: DmaDirection,
    memory: &mut [(usize, Vec<u8>, DeviceMemory)],
) {
    let mut left = memory.len();
    let mut next = 0;
    while left > 0 {
        while next < memory.len() {
            let (start, bytes, tensor) = &memory[next];
            let length = bytes.len();
            let part = on_gpu(tensor.base(), length, None);
            let request = request(next as u64, direction, *start, length, part);
            // SAFETY: the memory outlives this call and is not touched in it.
            if unsafe { queue.submit(request) }.is_err() {
                break;
            }
            next += 1;
        }
        queue.advance().unwrap();
        for answer in queue.completions() {
            assert_eq!(answer.result, Ok(()));
            left -= 1;
        }
    }
}

/// cuFile takes files and block devices, open past the page cache, and no others.
#[test]
fn a_descriptor_that_cufile_refuses_is_named_with_its_code() {
    let fake = FakeGpu::start(12, 0);
    let directory = Directory::new("gds-descriptors").unwrap();
    drop(device(directory.path(), "a", SIZE as u64));
    let spec = DeviceSpec::new(directory.path().join("a"));
    let mode = OpenMode { buffered: true, ..OpenMode::default() };
    let buffered = Device::open(&spec, mode).unwrap();
    let size = WindowSize { chunk: 32 << 10, chunks: 8 };
    let refused = CuFileQueue::open(&fake.gpu(), &fake.open_driver(), vec![buffered], size, 4);
    let why = refused.err().unwrap().to_string();
    assert!(why.contains("/a: error 5020 (DIO_NOT_SET)"), "{why}");
    assert_eq!(["handles", "buffers", "allocated"].map(|what| fake.count(what)), [0; 3]);
}

#[test]
fn an_event_that_is_used_after_it_was_destroyed_is_seen() {
    let fake = FakeGpu::start(13, 3);
    let gpu = fake.gpu();
    let (stream, event) = (Stream::new(&gpu).unwrap(), Event::new(&gpu).unwrap());
    event.record(&stream).unwrap();
    stream.wait_for(&event).unwrap();
    let handle = event.as_raw();
    drop(event);
    stream.synchronize().unwrap();
    fake.assert_lawful();
    // SAFETY: the fake keeps what it has destroyed, to tell of its use.
    let error = unsafe { stream.wait_for_raw(handle) }.unwrap_err();
    assert_eq!(error.code, 400, "{error}");
    assert!(fake.violations().1.starts_with("an event is used that was destroyed"));
}

/// Each request of the first device has a batch of its own, as long as there are any.
#[test]
fn a_device_that_hangs_keeps_its_batches_and_the_other_goes_on() {
    const HANGING: usize = 12;
    let fake = FakeGpu::start(11, 0);
    let directory = Directory::new("gds-hangs").unwrap();
    let devices = ["a", "b"].map(|name| device(directory.path(), name, SIZE as u64));
    let mut queue = small_queue(&fake, devices.into());
    fake.hang(Some(&directory.path().join("a")));
    let mut memory: Vec<_> =
        (0..16).map(|_| DeviceMemory::new(&fake.gpu(), BLOCK).unwrap()).collect();
    for (tag, tensor) in memory.iter_mut().enumerate() {
        tensor.write(0, &pattern(5, BLOCK)).unwrap();
        let part = on_gpu(tensor.base(), BLOCK, None);
        let write = request(tag as u64, DmaDirection::Write, tag * BLOCK, BLOCK, part);
        let device = DeviceIndex((tag >= HANGING).into());
        submit(&mut queue, WindowRequest { device, ..write });
        for _ in 0..4 {
            queue.advance().unwrap();
        }
    }
    let mut completions = Vec::new();
    for _ in 0..1000 {
        queue.advance().unwrap();
        completions.extend(queue.completions());
    }
    let mut tags: Vec<u64> = completions.iter().map(|answer| answer.tag).collect();
    tags.sort_unstable();
    assert_eq!(tags, (HANGING as u64..16).collect::<Vec<_>>());
    fake.hang(None);
    completions.extend(finish(&mut queue));
    assert_eq!(completions.len(), 16);
    assert!(completions.iter().all(|answer| answer.result == Ok(())));
    drop(queue);
    fake.assert_lawful();
}

#[test]
fn a_write_waits_for_its_bytes_and_a_read_for_its_destination() {
    let fake = FakeGpu::start(3, 6);
    let directory = Directory::new("gds-after").unwrap();
    let mut queue = small_queue(&fake, vec![device(directory.path(), "a", SIZE as u64)]);
    let gpu = fake.gpu();
    let stream = Stream::new(&gpu).unwrap();
    let (mut source, tensor) =
        (DeviceMemory::new(&gpu, BLOCK).unwrap(), DeviceMemory::new(&gpu, BLOCK).unwrap());
    source.write(0, &pattern(1, BLOCK)).unwrap();
    let after = Event::new(&gpu).unwrap();
    // A kernel that computes the tensor, as far as the queue is concerned.
    // SAFETY: both allocations outlive the stream's work, which the completions below wait for.
    unsafe { stream.copy(source.base(), tensor.base(), BLOCK) }.unwrap();
    after.record(&stream).unwrap();
    let end = on_gpu(tensor.base(), BLOCK, Some(&after));
    submit(&mut queue, request(1, DmaDirection::Write, 0, BLOCK, end));
    assert_eq!(finish(&mut queue)[0].result, Ok(()));
    assert!(fs::read(directory.path().join("a")).unwrap()[..BLOCK] == pattern(1, BLOCK));

    // Something on the GPU still reads the tensor (into `source`) when a read of new bytes into it
    // is asked for.
    fs::write(directory.path().join("b"), pattern(2, BLOCK)).unwrap();
    fs::copy(directory.path().join("b"), directory.path().join("c")).unwrap();
    let mut other = small_queue(&fake, vec![open(&directory, "c")]);
    let used = Event::new(&gpu).unwrap();
    // SAFETY: as above.
    unsafe { stream.copy(tensor.base(), source.base(), BLOCK) }.unwrap();
    used.record(&stream).unwrap();
    let end = on_gpu(tensor.base(), BLOCK, Some(&used));
    submit(&mut other, request(2, DmaDirection::Read, 0, BLOCK, end));
    assert_eq!(finish(&mut other)[0].result, Ok(()));
    let mut bytes = vec![0; BLOCK];
    source.read(0, &mut bytes).unwrap();
    assert!(bytes == pattern(1, BLOCK), "the old bytes were read before the new ones came");
    tensor.read(0, &mut bytes).unwrap();
    assert!(bytes == pattern(2, BLOCK));
    drop((queue, other));
    fake.assert_lawful();
}

fn open(directory: &Directory, name: &str) -> Device {
    Device::open(&DeviceSpec::new(directory.path().join(name)), OpenMode::default()).unwrap()
}

#[test]
fn the_checksum_is_that_of_the_whole_whatever_of_it_is_wanted() {
    for seed in 0..30 {
        let fake = FakeGpu::start(seed, (seed % 9) as u32);
        let directory = Directory::new("gds-checksum").unwrap();
        let mut queue = small_queue(&fake, vec![device(directory.path(), "a", SIZE as u64)]);
        let mut chance = Chance(seed * 2 + 1);
        for round in 0..8 {
            let extent = (1 + chance.below(8)) * BLOCK;
            let checked = extent - chance.below(BLOCK);
            let bytes = pattern(round, checked);
            let sum = Some(crc32c::crc32c(&bytes));
            let mut tensor = DeviceMemory::new(&fake.gpu(), checked).unwrap();
            tensor.write(0, &bytes).unwrap();
            let all = on_gpu(tensor.base(), checked, None);
            submit(&mut queue, request(1, DmaDirection::Write, 0, extent, all));
            let written = finish(&mut queue)[0];
            assert_eq!((written.result, written.checksum), (Ok(()), sum), "{checked} bytes");
            let file = fs::read(directory.path().join("a")).unwrap();
            assert!(
                file[..checked] == bytes && file[checked..extent].iter().all(|&byte| byte == 0)
            );

            let start = chance.below(checked);
            let end = start + 1 + chance.below(checked - start);
            let mut part = DeviceMemory::new(&fake.gpu(), end - start).unwrap();
            part.write(0, &vec![0xEE; end - start]).unwrap();
            let held = start as u32..end as u32;
            // SAFETY: the memory stays until the answer.
            let wanted = unsafe { GpuSlice::new(part.base().0, held, checked as u32, None) };
            submit(&mut queue, request(2, DmaDirection::Read, 0, extent, wanted));
            let read = finish(&mut queue)[0];
            assert_eq!((read.result, read.checksum), (Ok(()), sum), "{start}..{end} of {checked}");
            let mut found = vec![0; end - start];
            part.read(0, &mut found).unwrap();
            assert!(found == bytes[start..end]);
        }
        assert_eq!(fake.count("kernels"), 16, "one for each request");
        drop(queue);
        fake.assert_lawful();
    }
}

#[test]
fn registered_and_aligned_memory_is_moved_in_place_and_other_memory_is_not() {
    let fake = FakeGpu::start(1, 3);
    let directory = Directory::new("gds-direct").unwrap();
    let mut queue = small_queue(&fake, vec![device(directory.path(), "a", SIZE as u64)]);
    let gpu = fake.gpu();
    let mut region = DeviceMemory::in_pages(&gpu, 16 * BLOCK).unwrap();
    region.write(0, &pattern(7, 16 * BLOCK)).unwrap();
    // SAFETY: the region is dropped after the queue.
    unsafe { queue.register(region.base(), region.len()) }.unwrap();
    fake.plan("buffer_register", 0, 5013, 1);
    // SAFETY: as above.
    let refused = unsafe { queue.register(region.base(), BLOCK) }.unwrap_err().to_string();
    assert!(refused.contains("expandable segments") && refused.contains("5013"), "{refused}");
    submit(
        &mut queue,
        request(
            1,
            DmaDirection::Write,
            0,
            8 * BLOCK,
            on_gpu(region.base().offset(BLOCK as u64), 8 * BLOCK, None),
        ),
    );
    let written = finish(&mut queue)[0];
    let expected = crc32c::crc32c(&pattern(7, 16 * BLOCK)[BLOCK..9 * BLOCK]);
    assert_eq!((written.result, written.checksum), (Ok(()), Some(expected)));
    submit(
        &mut queue,
        request(3, DmaDirection::Read, 0, 8 * BLOCK, on_gpu(region.base(), 8 * BLOCK, None)),
    );
    assert_eq!(finish(&mut queue)[0].checksum, Some(expected));
    assert_eq!(fake.count("copies"), 0, "it was copied");
    assert!(
        fs::read(directory.path().join("a")).unwrap()[..8 * BLOCK]
            == pattern(7, 16 * BLOCK)[BLOCK..9 * BLOCK]
    );
    let askew = on_gpu(region.base().offset(512), BLOCK, None);
    submit(&mut queue, request(2, DmaDirection::Write, 0, BLOCK, askew));
    assert_eq!(finish(&mut queue)[0].result, Ok(()));
    assert_eq!(fake.count("copies"), 1, "what lies askew goes through the ring");
    drop(queue);
    fake.assert_lawful();
}

#[test]
fn a_failed_part_fails_its_request_with_the_code_it_had_and_no_other() {
    let cuda = |code| Status::ErrorLibrary { library: &CUDA, code };
    let cufile = |code| Status::ErrorLibrary { library: &CUFILE, code };
    let cases = [
        (DmaDirection::Write, "write", libc::EIO, Status::Errno(libc::EIO)),
        (DmaDirection::Write, "write", 5030, cufile(5030)),
        (DmaDirection::Read, "read", libc::ENODEV, Status::Errno(libc::ENODEV)),
        (DmaDirection::Read, "read", -1, Status::Short { moved: 4096 }),
        (DmaDirection::Write, "copy", 719, cuda(719)),
        (DmaDirection::Read, "copy", 700, cuda(700)),
        (DmaDirection::Write, "record", 2, cuda(2)),
        (DmaDirection::Read, "query", 214, cuda(214)),
    ];
    for (direction, what, code, status) in cases {
        let fake = FakeGpu::start(11, 2);
        let directory = Directory::new("gds-failed").unwrap();
        let memory = holding(&fake, &vec![1; 16 * BLOCK]);
        let mut queue = small_queue(&fake, vec![device(directory.path(), "a", SIZE as u64)]);
        fake.plan(what, 0, code, 1);
        submit_pieces(&mut queue, direction, &memory, 2 * BLOCK);
        let completions = finish(&mut queue);
        assert_eq!(completions.len(), 8);
        let failed: Vec<_> = completions.iter().filter_map(|answer| answer.result.err()).collect();
        assert_eq!(failed, [status], "{what} {code}");
        drop((queue, memory));
        fake.assert_lawful();
        assert_eq!(fake.count("allocated"), 0, "{what}: nothing is leaked");
    }
}

#[test]
fn a_refused_batch_fails_what_was_in_it_and_the_next_one_works() {
    let fake = FakeGpu::start(5, 1);
    let directory = Directory::new("gds-refused").unwrap();
    let memory = holding(&fake, &[1; BLOCK]);
    let mut queue = small_queue(&fake, vec![device(directory.path(), "a", SIZE as u64)]);
    fake.plan("batch_submit", 0, 5034, 1);
    submit_pieces(&mut queue, DmaDirection::Read, &memory, BLOCK);
    let failed = finish(&mut queue)[0].result.unwrap_err();
    assert!(matches!(failed, Status::ErrorLibrary { code: 5034, .. }), "{failed}");
    submit_pieces(&mut queue, DmaDirection::Read, &memory, BLOCK);
    assert_eq!(finish(&mut queue)[0].result, Ok(()));
    drop((queue, memory));
    fake.assert_lawful();
    assert_eq!(fake.count("allocated"), 0, "nothing was taken, so nothing is lost");
}

#[test]
fn a_full_library_is_tried_again_and_loses_nothing() {
    let fake = FakeGpu::start(6, 3);
    let directory = Directory::new("gds-full").unwrap();
    let memory = holding(&fake, &vec![7; SIZE]);
    let mut queue = small_queue(&fake, vec![device(directory.path(), "a", SIZE as u64)]);
    fake.plan("batch_submit", 1, 5037, 3);
    submit_pieces(&mut queue, DmaDirection::Write, &memory, 4 * BLOCK);
    let completions = finish(&mut queue);
    assert!(completions.iter().all(|answer| answer.result.is_ok()), "{completions:?}");
    assert!(fs::read(directory.path().join("a")).unwrap() == vec![7; SIZE]);
    drop(queue);
    fake.assert_lawful();
}

#[test]
fn no_batch_is_longer_than_the_driver_allows() {
    for (allowed, longest) in [(4, 4), (1, 1), (1000, 128)] {
        let fake = FakeGpu::start(8, 0);
        fake.driver(1 << 4, 1 << 1, 2, allowed, 1);
        let directory = Directory::new("gds-limit").unwrap();
        let size = WindowSize { chunk: 4 << 10, chunks: 512 };
        let memory = DeviceMemory::new(&fake.gpu(), 300 * BLOCK).unwrap();
        let devices = vec![device(directory.path(), "a", (300 * BLOCK) as u64)];
        let mut queue = fake.queue(devices, size, 300);
        submit_pieces(&mut queue, DmaDirection::Read, &memory, BLOCK);
        assert!(finish(&mut queue).iter().all(|answer| answer.result.is_ok()));
        assert_eq!(fake.count("batch_longest"), longest);
        drop(queue);
        fake.assert_lawful();
    }
}

#[test]
fn what_has_not_reached_the_ssd_is_aborted_and_the_rest_comes_back() {
    for seed in 0..30 {
        let fake = FakeGpu::start(seed, 5);
        let directory = Directory::new("gds-abort").unwrap();
        let memory = holding(&fake, &vec![1; SIZE]);
        let mut queue = small_queue(&fake, vec![device(directory.path(), "a", SIZE as u64)]);
        submit_pieces(&mut queue, DmaDirection::Write, &memory, 4 * BLOCK);
        for _ in 0..seed {
            queue.advance().unwrap();
        }
        queue.abort(Some(15));
        queue.advance().unwrap();
        queue.abort(None);
        let completions = finish(&mut queue);
        assert_eq!(completions.len(), 16);
        let aborted = |answer: &&tidelog_gds::queue::WindowCompletion| {
            answer.result == Err(Status::Errno(libc::ECANCELED))
        };
        assert!(completions.iter().filter(aborted).count() > 0, "seed {seed}");
        assert!(
            completions.iter().all(|answer| answer.result.is_ok() || aborted(&answer)),
            "{completions:?}"
        );
        drop(queue);
        fake.assert_lawful();
    }
}
