//! cuFile itself: that it is whole, the queue over it, and the engine's rules beside it.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidelog_engine::memory::{GpuSlice, WindowSize};
use tidelog_engine::path::{Device, DeviceSpec, OpenMode, PathKind};
use tidelog_engine::units::DeviceIndex;
use tidelog_gds::cuda::DeviceMemory;
use tidelog_gds::cufile::{Compat, CuFileLibrary};
use tidelog_gds::queue::{CuFileQueue, DmaDirection, WindowRequest};
use tidelog_gds::{GdsBackend, GdsOptions};
use tidelog_tests::conformance::{ROWS, Stage};
use tidelog_tests::machine::{Directory, skip};

use super::common::on_gpu;
use super::{Cost, cost, driver, gpu, pattern};

#[test]
fn the_cufile_that_is_installed_has_every_function() {
    match CuFileLibrary::open(None) {
        Ok(library) => {
            // Of 1.17; before, a bit tells what it does.
            let newer = "cuFileDriverGetP2PFlags";
            let lacking: Vec<_> = library.missing().into_iter().filter(|it| *it != newer).collect();
            assert_eq!(lacking, [""; 0], "{}", library.path().display());
            println!("FACT cuFile {:?} at {}", library.version(), library.path().display());
        }
        Err(why) => skip("the_cufile_that_is_installed_has_every_function", &why.to_string()),
    }
}

#[test]
fn tensors_on_the_gpu_go_to_a_file_and_come_back() {
    let test = "tensors_on_the_gpu_go_to_a_file_and_come_back";
    const BYTES: usize = 1 << 30;
    const PIECE: usize = 4 << 20;
    let Some(gpu) = gpu(test) else { return };
    let Some(driver) = driver(test, &gpu, Compat::Named) else { return };
    let directory = Directory::new("gpu-queue").unwrap();
    let file = directory.sparse_file("a", BYTES as u64).unwrap();
    let device = Device::open(&DeviceSpec::new(&file), OpenMode::default()).unwrap();
    let size = WindowSize::new(256 << 20, PIECE as u32);
    let depth = (BYTES / PIECE) as u32;
    let mut queue = CuFileQueue::open(&gpu, &driver, vec![device], size, depth).unwrap();
    let bytes = pattern(PIECE);
    let mut tensor = DeviceMemory::new(&gpu, PIECE).unwrap();
    tensor.write(0, &bytes).unwrap();
    let memory = on_gpu(tensor.base(), PIECE, None);
    let write = run(&mut queue, DmaDirection::Write, BYTES, PIECE, memory);
    let back: Vec<DeviceMemory> = (0..2).map(|_| DeviceMemory::new(&gpu, PIECE).unwrap()).collect();
    let memory = on_gpu(back[0].base(), PIECE, None);
    let read = run(&mut queue, DmaDirection::Read, BYTES, PIECE, memory);
    let mut found = vec![0; PIECE];
    back[0].read(0, &mut found).unwrap();
    assert!(found == bytes, "other bytes came back to the GPU");
    println!("FACT cuFile {}: 1 GiB from the GPU at {write}, to it at {read}", driver.facts().mode);
}

/// Checks the error where no context is current, which ours never lets happen. cudf #14140 works
/// around an open that fails then.
#[test]
fn cufile_is_opened_where_no_context_is_current() {
    let test = "cufile_is_opened_where_no_context_is_current";
    if gpu(test).is_none() {
        return;
    }
    let library = match CuFileLibrary::open(None) {
        Ok(library) => library,
        Err(why) => return skip(test, &why.to_string()),
    };
    // SAFETY: it is open already; nothing new is loaded.
    let library = unsafe { libloading::Library::new(library.path()) }.unwrap();
    type Call = unsafe extern "C" fn() -> [i32; 2];
    // SAFETY: both are declared so in cufile.h: no arguments, and two ints as the answer.
    let answer = unsafe {
        let (open, close) = (
            library.get::<Call>(b"cuFileDriverOpen").unwrap(),
            library.get::<Call>(b"cuFileDriverClose_v2").unwrap(),
        );
        let answer = open();
        if answer == [0, 0] {
            close();
        }
        answer
    };
    println!("FACT without a context it opens with {} (CUDA: {})", answer[0], answer[1]);
}

/// Pools in memory are the fastest that a machine without an NVMe SSD has.
#[test]
fn tensors_on_the_gpu_go_to_a_file_in_memory() {
    let test = "tensors_on_the_gpu_go_to_a_file_in_memory";
    let Some(gpu) = gpu(test) else { return };
    let Some(driver) = driver(test, &gpu, Compat::Named) else { return };
    let Ok(directory) = Directory::new_in(Path::new("/dev/shm"), "gpu-tmpfs") else {
        return skip(test, "/dev/shm is not there");
    };
    let file = directory.sparse_file("a", 16 << 20).unwrap();
    let device = match Device::open(&DeviceSpec::new(&file), OpenMode::default()) {
        Ok(device) => device,
        Err(why) => return skip(test, &why.to_string()),
    };
    let size = WindowSize { chunk: 1 << 20, chunks: 8 };
    let mut queue = match CuFileQueue::open(&gpu, &driver, vec![device], size, 16) {
        Ok(queue) => queue,
        Err(why) => return skip(test, &why.to_string()),
    };
    let mut tensor = DeviceMemory::new(&gpu, 1 << 20).unwrap();
    tensor.write(0, &pattern(1 << 20)).unwrap();
    let memory = on_gpu(tensor.base(), 1 << 20, None);
    let write = run(&mut queue, DmaDirection::Write, 16 << 20, 1 << 20, memory);
    println!("FACT cuFile {}: to a file in memory at {write}", driver.facts().mode);
}

/// Checks whether `GetStatus` reports the entries of a batch that was cancelled.
#[test]
fn a_cancelled_batch_is_told_of_or_given_up() {
    let test = "a_cancelled_batch_is_told_of_or_given_up";
    const PIECE: usize = 1 << 20;
    let Some(gpu) = gpu(test) else { return };
    let Some(driver) = driver(test, &gpu, Compat::Named) else { return };
    let directory = Directory::new("gpu-cancel").unwrap();
    let file = directory.sparse_file("a", 64 << 20).unwrap();
    let device = Device::open(&DeviceSpec::new(&file), OpenMode::default()).unwrap();
    let size = WindowSize { chunk: PIECE as u32, chunks: 64 };
    let mut queue = CuFileQueue::open(&gpu, &driver, vec![device], size, 64).unwrap();
    let tensor = DeviceMemory::new(&gpu, PIECE).unwrap();
    for tag in 0..64_u64 {
        let memory = on_gpu(tensor.base(), PIECE, None);
        let (offset, length, direction) = (tag * PIECE as u64, PIECE as u32, DmaDirection::Read);
        let request =
            WindowRequest { tag, device: DeviceIndex(0), offset, length, direction, memory };
        // SAFETY: the tensor outlives the queue; nobody reads it.
        unsafe { queue.submit(request) }.unwrap();
    }
    queue.advance().unwrap();
    queue.abort(None);
    let (begun, mut ended, mut cancelled) = (Instant::now(), 0, 0);
    while queue.in_flight() > 0 {
        assert!(begun.elapsed() < Duration::from_secs(10), "{} never end", queue.in_flight());
        queue.advance().unwrap();
        for end in queue.completions() {
            *(if end.result.is_ok() { &mut ended } else { &mut cancelled }) += 1;
        }
    }
    let time = begun.elapsed();
    println!("FACT a cancel: {ended} had ended, {cancelled} were cancelled, after {time:?}");
    drop(queue);
    // What an SSD may still write stays registered; whatever comes, this process ends.
    std::mem::forget(tensor);
}

/// Moves `bytes` in pieces to or from the same memory.
fn run(
    queue: &mut CuFileQueue,
    direction: DmaDirection,
    bytes: usize,
    piece: usize,
    memory: GpuSlice,
) -> Cost {
    cost(bytes, || {
        for (tag, offset) in (0..bytes).step_by(piece).enumerate() {
            let (tag, offset, length) = (tag as u64, offset as u64, piece as u32);
            let request =
                WindowRequest { tag, device: DeviceIndex(0), offset, length, direction, memory };
            // SAFETY: the memory outlives the loop below. Reads write the same bytes to the same
            // place.
            unsafe { queue.submit(request) }.unwrap();
        }
        while queue.in_flight() > 0 {
            queue.advance().unwrap();
            for answer in queue.completions() {
                answer.result.unwrap();
            }
        }
    })
}

#[test]
fn the_engine_conforms_by_way_of_the_gpu() {
    let test = "the_engine_conforms_by_way_of_the_gpu";
    let Some(gpu) = gpu(test) else { return };
    let Some(_) = driver(test, &gpu, Compat::Named) else { return };
    let directory = Directory::new("gpu-conformance").unwrap();
    let files = ["a", "b"].map(|name| directory.sparse_file(name, 64 << 20).unwrap());
    let options = GdsOptions { compat: Compat::Named, ..GdsOptions::default() };
    let backend = Arc::new(GdsBackend(options));
    let specs = files.iter().map(DeviceSpec::new).collect();
    let stage = Stage { specs, path: PathKind::Gds, backend: Some(backend), elsewhere: None };
    for (name, row) in ROWS {
        row(&stage).unwrap_or_else(|why| panic!("{name}: {why}"));
    }
}
