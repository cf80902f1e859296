//! Devices and queues for tests on the fake.
#![allow(dead_code, unreachable_pub, unsafe_code)]

pub mod checksums;
pub mod cost;
pub mod ssd;
pub mod tensors;

use std::path::Path;
use std::sync::Arc;

use tidelog_engine::memory::{GpuEvent, GpuSlice, WindowSize};
use tidelog_engine::path::{Device, DeviceSpec, OpenMode};
use tidelog_engine::pool::{FormatOptions, OpenOptions, Pool};
use tidelog_engine::units::ByteCount;
use tidelog_gds::cuda::{DevicePointer, Event, Gpu};
use tidelog_gds::queue::CuFileQueue;
use tidelog_gds::{CallerRegion, GdsBackend, GdsOptions, StagedGpu};
use tidelog_tests::machine::{Directory, FakeGpu};

/// A file of zeroes as a device.
pub fn device(directory: &Path, name: &str, bytes: u64) -> Device {
    let path = directory.join(name);
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(bytes).unwrap();
    Device::open(&DeviceSpec::new(&path), OpenMode::default()).unwrap()
}

/// A pool on one file that was made a moment ago, and the folder that it is in.
pub fn one_file(name: &str) -> (Directory, [DeviceSpec; 1]) {
    let directory = Directory::new(name).unwrap();
    let file = [DeviceSpec::new(directory.path().join("a"))];
    let device_size = Some(ByteCount::mib(16));
    Pool::format(&file, &FormatOptions { device_size, ..FormatOptions::default() }).unwrap();
    (directory, file)
}

/// Makes a pool that is open by cuFile, for tensors of a GPU; those in these regions are read and
/// written in place.
pub fn pool_by_cufile(
    name: &str,
    fake: &FakeGpu,
    gpu: Arc<Gpu>,
    registered: Vec<CallerRegion>,
) -> (Directory, Pool) {
    let (directory, file) = one_file(name);
    let pool = Pool::open(&file, &by_cufile(fake, gpu, registered)).unwrap();
    (directory, pool)
}

/// Returns the options by which such a pool is opened.
pub fn by_cufile(fake: &FakeGpu, gpu: Arc<Gpu>, registered: Vec<CallerRegion>) -> OpenOptions {
    let library = Some(fake.library_path().into());
    let how = GdsOptions { library, registered, ..GdsOptions::default() };
    OpenOptions {
        backend: Some(Arc::new(GdsBackend(how))),
        gpu: Some(Arc::new(StagedGpu(gpu))),
        ..OpenOptions::default()
    }
}

/// GPU memory of a request, from `after` on. Whoever submits it keeps it, and the event, until the
/// answer.
pub fn on_gpu(pointer: DevicePointer, length: usize, after: Option<&Event>) -> GpuSlice {
    let (length, after) =
        (length as u32, after.and_then(|event| GpuEvent::from_raw(event.as_raw())));
    // SAFETY: passed on to `submit`, of which it is the condition as well.
    unsafe { GpuSlice::new(pointer.0, 0..length, length, after) }
}

/// A queue with a small window, so that it runs out, of chunks of eight blocks.
pub fn small_queue(fake: &FakeGpu, devices: Vec<Device>) -> CuFileQueue {
    fake.queue(devices, WindowSize { chunk: 32 << 10, chunks: 8 }, 16)
}

/// Advances until everything in flight has completed; the completions are in the order they came.
pub fn finish(queue: &mut CuFileQueue) -> Vec<tidelog_gds::queue::WindowCompletion> {
    let mut completions = Vec::new();
    for _ in 0..1_000_000 {
        queue.advance().unwrap();
        completions.extend(queue.completions());
        if queue.in_flight() == 0 {
            return completions;
        }
    }
    panic!("{} requests were never answered", queue.in_flight());
}
