//! On a real GPU, with the real cuFile. Each test says what it lacks where there is none. `tests/hardware/gpu.sh` runs
//! them; what they print is for its table.
#![allow(unsafe_code)]
#![allow(clippy::cast_precision_loss, reason = "rates for people")]
#![allow(clippy::items_after_statements, reason = "sizes stand in the test that they are of")]

mod common;
#[path = "gpu/tier.rs"]
mod tier;

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Instant;

use common::on_gpu;
use tidelog_engine::layout::TensorId;
use tidelog_engine::memory::{Destination, GpuDestination, GpuSource, Source};
use tidelog_engine::path::{Backend, Device, DeviceSpec, OpenMode};
use tidelog_engine::pool::{FormatOptions, OpenOptions, Pool, PutOptions};
use tidelog_engine::schedule::{Ticket, Urgency};
use tidelog_engine::units::{ByteCount, DeviceIndex};
use tidelog_gds::checksum::Crc32c;
use tidelog_gds::cuda::{DeviceMemory, Event, Stream, gpu_count};
use tidelog_gds::cufile::{Compat, Driver, Library};
use tidelog_gds::queue::{Direction, End, Queue, QueueOptions, Request};
use tidelog_gds::{GdsBackend, GdsOptions, Gpu, StagedGpu};
use tidelog_tests::conformance::{ROWS, Stage};
use tidelog_tests::machine::{Directory, skip};

fn gpu(test: &str) -> Option<Arc<Gpu>> {
    let found = gpu_count().and_then(|_| Gpu::open(0));
    found.map_err(|why| skip(test, &why.to_string())).ok()
}

fn cufile(test: &str) -> Option<Arc<Driver>> {
    let library = Library::open(None).map_err(|why| why.to_string());
    let driver = library.and_then(|library| {
        // Compat by name: that it works at all is shown everywhere; which mode it is, is told.
        Driver::open(library, Compat::Named).map_err(|why| why.to_string())
    });
    driver.map_err(|why| skip(test, &why)).ok()
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 / 7 + at / 4093) as u8).collect()
}

#[test]
fn the_cufile_that_is_installed_has_every_function() {
    match Library::open(None) {
        Ok(library) => {
            assert_eq!(library.missing(), [""; 0], "{}", library.path().display());
            println!("FACT cuFile {:?} at {}", library.version(), library.path().display());
        }
        Err(why) => skip("the_cufile_that_is_installed_has_every_function", &why.to_string()),
    }
}

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
    let sums = DeviceMemory::new(&gpu, 1024).unwrap();
    let begun = Instant::now();
    for _ in 0..10 {
        // SAFETY: as above.
        unsafe { kernel.launch(&stream, data.base(), 64 << 20, 262_144, sums.base()) }.unwrap();
    }
    stream.synchronize().unwrap();
    println!("FACT checksums on the GPU: {:.1} GB/s", 0.671_088_64 / begun.elapsed().as_secs_f64());
}

#[test]
fn staging_copies_reach_four_fifths_of_a_plain_copy() {
    let test = "staging_copies_reach_four_fifths_of_a_plain_copy";
    const WHOLE: usize = 512 << 20;
    const CHUNK: usize = 4 << 20;
    let Some(gpu) = gpu(test) else { return };
    let stream = Stream::new(&gpu).unwrap();
    let (from, to) =
        (DeviceMemory::new(&gpu, WHOLE).unwrap(), DeviceMemory::new(&gpu, WHOLE).unwrap());
    let event = Event::new(&gpu).unwrap();
    let time = |piece: usize| {
        let rounds = 8;
        let begun = Instant::now();
        for _ in 0..rounds {
            for at in (0..WHOLE).step_by(piece) {
                let at = at as u64;
                // SAFETY: both allocations outlive the synchronisation below.
                unsafe { stream.copy(from.base().offset(at), to.base().offset(at), piece) }
                    .unwrap();
                event.record(&stream).unwrap();
            }
        }
        stream.synchronize().unwrap();
        (rounds * WHOLE) as f64 / begun.elapsed().as_secs_f64() / 1e9
    };
    time(WHOLE);
    let (plain, staged) = (time(WHOLE), time(CHUNK));
    println!("FACT copies in chunks of 4 MiB: {staged:.0} GB/s, at once: {plain:.0} GB/s");
    assert!(staged >= 0.8 * plain, "{staged} of {plain} GB/s");
}

#[test]
fn tensors_on_the_gpu_go_to_a_file_and_come_back() {
    let test = "tensors_on_the_gpu_go_to_a_file_and_come_back";
    const BYTES: usize = 1 << 30;
    const PIECE: usize = 32 << 20;
    let (Some(gpu), Some(driver)) = (gpu(test), cufile(test)) else { return };
    let directory = Directory::new("gpu-queue").unwrap();
    let file = directory.sparse_file("a", BYTES as u64).unwrap();
    let device = Device::open(&DeviceSpec::new(&file), OpenMode::default()).unwrap();
    let options =
        QueueOptions { staging: ByteCount::mib(256), chunk: ByteCount::mib(4), depth: 64 };
    let mut queue = Queue::open(&gpu, &driver, vec![device], options).unwrap();
    let bytes = pattern(PIECE);
    let mut tensor = DeviceMemory::new(&gpu, PIECE).unwrap();
    tensor.write(0, &bytes).unwrap();
    let end = on_gpu(tensor.base(), PIECE, None);
    let write = run(&mut queue, Direction::Write, BYTES, PIECE, &end);
    let back: Vec<DeviceMemory> = (0..2).map(|_| DeviceMemory::new(&gpu, PIECE).unwrap()).collect();
    let end = on_gpu(back[0].base(), PIECE, None);
    let read = run(&mut queue, Direction::Read, BYTES, PIECE, &end);
    let mut found = vec![0; PIECE];
    back[0].read(0, &mut found).unwrap();
    assert!(found == bytes, "other bytes came back to the GPU");
    let mut host = vec![0_u8; PIECE];
    run(
        &mut queue,
        Direction::Read,
        PIECE,
        PIECE,
        &End::Host(NonNull::new(host.as_mut_ptr()).unwrap()),
    );
    assert!(host == bytes, "other bytes came back to the host");
    println!(
        "FACT cuFile {}: 1 GiB from the GPU at {write:.2} GB/s, to it at {read:.2} GB/s",
        driver.facts().mode
    );
}

#[test]
fn tensors_on_the_gpu_go_through_the_log_and_come_back() {
    let test = "tensors_on_the_gpu_go_through_the_log_and_come_back";
    let Some(gpu) = gpu(test) else { return };
    // Where a file system has no O_DIRECT the bytes are still right; which path it was is told.
    through_the_log(&gpu, &OpenOptions { buffered: true, ..OpenOptions::default() });
}

#[test]
fn tensors_on_the_gpu_go_through_the_log_by_cufile_and_come_back() {
    let test = "tensors_on_the_gpu_go_through_the_log_by_cufile_and_come_back";
    let (Some(gpu), Some(_)) = (gpu(test), cufile(test)) else { return };
    let queue = QueueOptions { staging: ByteCount::mib(64), ..QueueOptions::default() };
    let gds = GdsOptions { compat: Compat::Named, queue, ..GdsOptions::default() };
    let backend: Option<Arc<dyn Backend>> = Some(Arc::new(GdsBackend(gds)));
    through_the_log(&gpu, &OpenOptions { backend, ..OpenOptions::default() });
}

/// Tensors to a pool and back, with the GPU's own word on their checksums.
fn through_the_log(gpu: &Arc<Gpu>, options: &OpenOptions) {
    const TENSORS: usize = 16;
    const BYTES: usize = 64 << 20;
    let directory = Directory::new("gpu-log").unwrap();
    let file = [DeviceSpec::new(directory.path().join("a"))];
    let size = Some(ByteCount((3 * TENSORS * BYTES) as u64));
    Pool::format(&file, &FormatOptions { device_size: size, ..FormatOptions::default() }).unwrap();
    let options = OpenOptions {
        staging: ByteCount::mib(64),
        gpu: Some(Arc::new(StagedGpu(Arc::clone(gpu)))),
        ..options.clone()
    };
    let pool = Pool::open(&file, &options).unwrap();
    let bytes = pattern(BYTES);
    let mut memories: Vec<DeviceMemory> =
        (0..TENSORS).map(|_| DeviceMemory::new(gpu, BYTES).unwrap()).collect();
    let id = |number: usize| TensorId::from_name(&format!("tensor {number}"));
    let copied = timed(|| {
        for memory in &mut memories {
            memory.write(0, &bytes).unwrap();
        }
    });
    let written = timed(|| {
        let tickets: Vec<Ticket> = (0..TENSORS)
            .map(|number| {
                let base = memories[number].base().0;
                // SAFETY: the memory outlives the tickets, and nobody writes it meanwhile.
                let source = Source::Gpu(unsafe { GpuSource::new(base, BYTES, None) });
                pool.put(id(number), source, PutOptions::default()).unwrap()
            })
            .collect();
        for ticket in tickets {
            ticket.wait().unwrap();
        }
    });
    let blank = vec![0; BYTES];
    for memory in &mut memories {
        memory.write(0, &blank).unwrap();
    }
    let read = timed(|| {
        let tickets: Vec<Ticket> = (0..TENSORS)
            .map(|number| {
                let base = memories[number].base().0;
                // SAFETY: as above, and nobody reads it either.
                let destination = unsafe { GpuDestination::new(base, BYTES, None, None) };
                let destination = Destination::Gpu(destination);
                pool.get(id(number), 0..BYTES as u64, destination, Urgency::Urgent, None).unwrap()
            })
            .collect();
        for ticket in tickets {
            ticket.wait().unwrap();
        }
    });
    let mut found = vec![0; BYTES];
    for memory in &memories {
        memory.read(0, &mut found).unwrap();
        assert!(found == bytes, "other bytes came back to the GPU");
    }
    let verified = timed(|| {
        for (number, memory) in memories.iter().enumerate() {
            // SAFETY: as above.
            let source = Source::Gpu(unsafe { GpuSource::new(memory.base().0, BYTES, None) });
            assert!(pool.verify(id(number), source, None).unwrap().wait().unwrap().matched);
        }
    });
    let stats = pool.stats().unwrap().reactor;
    let gpu = stats.gpu.unwrap();
    let told = |(seconds, cpu): (f64, f64)| {
        let rate = (TENSORS * BYTES) as f64 / seconds / 1e9;
        format!("{rate:.2} GB/s with {:.0} % of a processor", 100.0 * cpu / seconds)
    };
    println!(
        "FACT the log by {}, reached {:?}, page-locked {:?}, checksums {:?}: 1 GiB from the GPU at {}, to it at {}, compared with its checksums at {}, a plain copy from pageable memory at {}",
        stats.capabilities.kind,
        gpu.reached,
        gpu.page_locked,
        gpu.checksums,
        told(written),
        told(read),
        told(verified),
        told(copied)
    );
}

/// What it takes: seconds, and seconds of processors.
fn timed(body: impl FnOnce()) -> (f64, f64) {
    let processors = || {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: it writes the one value that it is given.
        let answer = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
        assert_eq!(answer, 0);
        time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
    };
    let (begun, used) = (Instant::now(), processors());
    body();
    (begun.elapsed().as_secs_f64(), processors() - used)
}

/// Moves `bytes` in pieces to or from the same memory; answers GB/s.
fn run(queue: &mut Queue, direction: Direction, bytes: usize, piece: usize, end: &End) -> f64 {
    let begun = Instant::now();
    for (tag, offset) in (0..bytes).step_by(piece).enumerate() {
        let (tag, offset, length, end) = (tag as u64, offset as u64, piece as u32, *end);
        let request = Request { tag, device: DeviceIndex(0), offset, length, direction, end };
        // SAFETY: the memory outlives the loop below. Reads write the same bytes to the same place.
        unsafe { queue.submit(request) }.unwrap();
    }
    while queue.in_flight() > 0 {
        queue.advance().unwrap();
        for answer in queue.answers() {
            answer.result.unwrap();
        }
    }
    bytes as f64 / begun.elapsed().as_secs_f64() / 1e9
}

#[test]
fn the_engine_conforms_by_way_of_the_gpu() {
    let test = "the_engine_conforms_by_way_of_the_gpu";
    let (Some(_), Some(_)) = (gpu(test), cufile(test)) else { return };
    let directory = Directory::new("gpu-conformance").unwrap();
    let files = ["a", "b"].map(|name| directory.sparse_file(name, 64 << 20).unwrap());
    let options = GdsOptions { compat: Compat::Named, ..GdsOptions::default() };
    let backend = Arc::new(GdsBackend(options));
    let specs = files.iter().map(DeviceSpec::new).collect();
    let stage = Stage {
        specs,
        path: tidelog_engine::path::PathKind::Gds,
        backend: Some(backend),
        elsewhere: None,
    };
    for (name, row) in ROWS {
        row(&stage).unwrap_or_else(|why| panic!("{name}: {why}"));
    }
}
