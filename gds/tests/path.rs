//! The engine over cuFile: its conformance suite, and what only this path does.
#![allow(unsafe_code)]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::device;
use tidelog_engine::memory::{DmaPool, GpuSlice, WindowSize};
use tidelog_engine::path::checked::CheckedProvider;
use tidelog_engine::path::{
    Action, Backend, Completion, DataPath, Device, DeviceSpec, Extent, Feature, OpenMode,
    Operation, PathError, PathKind, PathProvider, Refusal, Status,
};
use tidelog_engine::units::{ByteCount, DeviceIndex};
use tidelog_gds::cuda::{DeviceMemory, Event, Gpu, Stream};
use tidelog_gds::cufile::{CUFILE, Compat, CuFileLibrary, Driver, DriverOpenError, Mode};
use tidelog_gds::queue::CuFileQueue;
use tidelog_gds::{GdsBackend, GdsOptions, HostTier, StagedGpu};
use tidelog_tests::conformance::{ROWS, Stage};
use tidelog_tests::machine::{Directory, FakeGpu, LoopDevice, LoopOptions, skip};

const BLOCK: u64 = 4096;
const WINDOW: WindowSize = WindowSize { chunk: 32 << 10, chunks: 8 };

fn options(fake: &FakeGpu) -> GdsOptions {
    GdsOptions { library: Some(fake.library_path().into()), ..GdsOptions::default() }
}

/// A backend whose path is watched while it is used.
#[derive(Debug)]
struct Watched(GdsBackend);

impl Backend for Watched {
    fn provider(&self, devices: Vec<Device>) -> Box<dyn PathProvider> {
        Box::new(CheckedProvider(self.0.provider(devices)))
    }
}

fn open(fake: &FakeGpu, devices: Vec<Device>) -> Box<dyn DataPath> {
    let provider = Watched(GdsBackend(options(fake))).provider(devices);
    provider.open(8).unwrap().path
}

/// Makes a path that moves the memory of the fake's GPU.
fn reaching(fake: &FakeGpu, devices: Vec<Device>) -> Box<dyn DataPath> {
    let mut path = open(fake, devices);
    let reached = path.reach_gpu(&StagedGpu(fake.gpu()), WINDOW).unwrap();
    assert_eq!(reached, Feature::On);
    path
}

/// A few blocks on the GPU.
fn tensor(fake: &FakeGpu, byte: u8) -> DeviceMemory {
    common::tensors::on_gpu(fake, &vec![byte; 8 * BLOCK as usize])
}

/// Returns a slice of `blocks` blocks.
fn part_of(tensor: &DeviceMemory, blocks: u64) -> GpuSlice {
    common::on_gpu(tensor.base(), (blocks * BLOCK) as usize, None)
}

fn run(path: &mut dyn DataPath, extent: Extent, action: Action) -> Completion {
    path.submit(Operation::new(1, DeviceIndex(0), extent, action)).unwrap();
    let mut completions = Vec::new();
    let end = Instant::now() + Duration::from_secs(20);
    while path.poll(&mut completions) == 0 {
        assert!(Instant::now() < end, "it never completes");
        path.wait(Some(Duration::from_secs(1))).unwrap();
    }
    completions.remove(0)
}

/// Returns the reason why a path does not open, or does not reach the fake's GPU.
fn refusal(options: GdsOptions) -> String {
    let directory = Directory::new("gds-refusal").unwrap();
    let device = device(directory.path(), "a", 16 * BLOCK);
    let opened = GdsBackend(options).provider(vec![device]).open(8);
    let reached = opened
        .and_then(|mut opened| opened.path.reach_gpu(&StagedGpu(Gpu::open(0).unwrap()), WINDOW));
    match reached {
        Err(PathError::Unavailable { kind: PathKind::Gds, reason }) => reason,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it reaches the GPU"),
    }
}

fn conform(specs: Vec<DeviceSpec>, fake: &FakeGpu) {
    let backend: Arc<dyn Backend> = Arc::new(Watched(GdsBackend(options(fake))));
    let stage = Stage { specs, path: PathKind::Gds, backend: Some(backend), elsewhere: None };
    for (name, row) in ROWS {
        row(&stage).unwrap_or_else(|why| panic!("{name}: {why}"));
    }
    fake.assert_lawful();
    assert_eq!(fake.count("submitted"), 0, "the host's bytes go the way of posix");
}

#[test]
fn the_engine_conforms_on_files() {
    let fake = FakeGpu::start(17, 1);
    let directory = Directory::new("gds-conformance").unwrap();
    let files = ["a", "b"].map(|name| directory.sparse_file(name, 64 << 20).unwrap());
    conform(files.iter().map(DeviceSpec::new).collect(), &fake);
    let left = ["handles", "buffers", "batches", "allocated"].map(|what| fake.count(what));
    assert_eq!(left, [0; 4], "everything is given back");
}

#[test]
fn the_engine_conforms_on_block_devices() {
    let fake = FakeGpu::start(18, 1);
    let directory = Directory::new("gds-loops").unwrap();
    let file = directory.sparse_file("a", 64 << 20).unwrap();
    match LoopDevice::attach(&file, LoopOptions { sector: 4096, ..LoopOptions::default() }) {
        Ok(device) => conform(vec![DeviceSpec::new(device.node())], &fake),
        Err(why) => skip("the_engine_conforms_on_block_devices", &why),
    }
}

#[test]
fn the_mode_in_force_is_told_and_compat_runs_only_when_it_was_named() {
    let fake = FakeGpu::start(1, 0);
    let driver = fake.open_driver();
    assert_eq!(driver.facts().mode, Mode::NvidiaFs { major: 2, minor: 17 });
    assert_eq!(driver.facts().version, Some((1, 17)));
    drop(driver);
    fake.driver(0, 1 << 1, 0, 128, 1);
    let refused = refusal(options(&fake));
    assert!(
        refused.contains("error 5001, DRIVER_NOT_INITIALIZED: nvidia-fs is not loaded"),
        "{refused}"
    );
    assert!(refused.contains("ask for compat mode by name"), "{refused}");
    let named = Driver::open(&fake.gpu(), fake.library(), Compat::Named).unwrap();
    assert_eq!(named.facts().mode, Mode::Compat);
    drop(named);
    fake.configure(true, 1);
    assert_eq!(fake.open_driver().facts().mode, Mode::PeerToPeer);
    assert_eq!(fake.count("driver_opens"), fake.count("driver_closes"));
}

#[test]
fn what_keeps_the_driver_from_a_direct_way_is_told_with_what_to_do() {
    let fake = FakeGpu::start(1, 0);
    for code in [5001, 5004, 5005, 5007, 5010, 5033, 5048] {
        fake.plan("driver_open", 0, code, 1);
        let refused = refusal(options(&fake));
        assert!(refused.contains(&format!("error {code}, ")), "{refused}");
        assert!(refused.contains("load nvidia-fs, or turn on PCI peer-to-peer DMA"), "{refused}");
        assert!(refused.contains("ask for compat mode by name"), "{refused}");
    }
    fake.plan("driver_open", 0, 5025, 1);
    let refused = refusal(options(&fake));
    assert!(
        refused.contains("cuFile could not open its driver: error 5025 (PERMISSION_DENIED)"),
        "{refused}"
    );
    assert_eq!(fake.count("driver_closes"), 0);
}

#[test]
fn batches_are_tried_and_not_believed_of_a_bit() {
    let fake = FakeGpu::start(1, 0);
    fake.driver(1 << 4, 0, 2, 128, 1);
    drop(fake.open_driver());
    fake.plan("batch_set_up", 0, 5039, 1);
    let error = Driver::open(&fake.gpu(), fake.library(), Compat::Forbidden).unwrap_err();
    assert!(matches!(error, DriverOpenError::NoBatches(_)), "{error}");
    let told = error.to_string();
    assert!(told.contains("error 5039 (INTERNAL_BATCH_SETUP_ERROR)"), "{told}");
    assert_eq!(fake.count("driver_opens"), fake.count("driver_closes"));
    assert_eq!(fake.count("batches"), 0);
}

#[test]
fn compat_mode_that_somebody_else_allowed_is_refused_with_who_and_what_to_do() {
    let fake = FakeGpu::start(1, 0);
    let refused = || {
        let error = Driver::open(&fake.gpu(), fake.library(), Compat::Forbidden).unwrap_err();
        assert!(matches!(error, DriverOpenError::CompatAllowed { .. }), "{error}");
        error.to_string()
    };
    // Another user of this process.
    let named = Driver::open(&fake.gpu(), fake.library(), Compat::Named).unwrap();
    let told = refused();
    assert!(
        told.contains("another user in this process") && told.contains("close that one"),
        "{told}"
    );
    drop(named);
    drop(fake.open_driver());

    // A framework, which keeps it open.
    // SAFETY: declared so in cufile.c.
    let (open, close) = unsafe {
        type Call = unsafe extern "C" fn() -> [i32; 2];
        let (open, close) =
            (fake.get::<Call>("cuFileDriverOpen"), fake.get::<Call>("cuFileDriverClose_v2"));
        fake.go_to(0);
        assert_eq!(open(), [0, 0]);
        (open, close)
    };
    let told = refused();
    assert!(told.contains("another library in this process opened cuFile first"), "{told}");
    assert!(told.contains("set allow_compat_mode to false in cufile.json"), "{told}");
    drop(Driver::open(&fake.gpu(), fake.library(), Compat::Named).unwrap());
    // SAFETY: as above.
    unsafe { close() };
    fake.configure(false, 0);
    fake.go_to(0);
    // SAFETY: as above.
    unsafe { open() };
    drop(fake.open_driver());
    // SAFETY: as above.
    unsafe { close() };
}

#[test]
fn an_older_library_does_without_what_it_lacks_and_names_it() {
    let fake = FakeGpu::start(1, 0);
    let older = CuFileLibrary::open(Some(&fake.older_library())).unwrap();
    let names = |library: &CuFileLibrary| library.missing().join(" ");
    assert_eq!((older.version(), fake.library().version()), (Some((1, 11)), Some((1, 17))));
    assert_eq!(names(&older), "cuFileDriverGetP2PFlags cuFileSetParameterBool");
    assert_eq!(names(&fake.library()), "");
    let error =
        Driver::open(&fake.gpu(), Arc::clone(&older), Compat::Forbidden).unwrap_err().to_string();
    assert!(
        error.contains("too old to be told otherwise") && error.contains("cufile.json"),
        "{error}"
    );
    drop(Driver::open(&fake.gpu(), older, Compat::Named).unwrap());
}

#[test]
fn a_device_is_taken_once_whatever_is_moved() {
    let fake = FakeGpu::start(5, 1);
    let directory = Directory::new("gds-once").unwrap();
    let devices = ["a", "b"].map(|name| device(directory.path(), name, 64 * BLOCK));
    let mut path = reaching(&fake, devices.into());
    let (pool, tensor) = (DmaPool::new(ByteCount::kib(64), false).unwrap(), tensor(&fake, 7));
    for round in 0..4 {
        let extent = Extent::new(round * BLOCK, BLOCK);
        let buffer = pool.take(4096).unwrap();
        run(path.as_mut(), extent, Action::write(buffer, false)).result.unwrap();
        run(path.as_mut(), extent, Action::write(part_of(&tensor, 1), false)).result.unwrap();
    }
    assert_eq!((fake.count("handles"), fake.count("handles_made")), (2, 2));
    drop(path);
    assert_eq!(fake.count("handles"), 0);
}

#[test]
fn callers_threads_stay_with_the_gpu_that_they_are_with() {
    let fake = FakeGpu::start(5, 1);
    fake.driver(1 << 4, 1 << 1, 2, 128, 2);
    let mine = fake.gpu();
    for (gpu, place) in [(0, 1_usize), (1, 2)] {
        fake.go_to(gpu);
        for ordinal in [0, 1] {
            let other = Gpu::open(ordinal).unwrap();
            let mut memory = DeviceMemory::new(&other, 4096).unwrap();
            memory.write(0, &[7; 4096]).unwrap();
            let (stream, event) = (Stream::new(&other).unwrap(), Event::new(&other).unwrap());
            event.record(&stream).unwrap();
            stream.wait_for(&event).unwrap();
            stream.synchronize().unwrap();
            assert!(event.has_happened().unwrap());
            other.synchronize().unwrap();
            let tier = HostTier::open(&other, ByteCount::kib(64)).unwrap();
            drop((tier, memory, stream, event));
            let directory = Directory::new("gds-context").unwrap();
            let file = device(directory.path(), "a", 64 * BLOCK);
            drop(CuFileQueue::open(&other, &fake.open_driver(), vec![file], WINDOW, 4).unwrap());
            assert_eq!(fake.context() as usize, place, "GPU {ordinal}");
        }
    }
    // One that was with none is with none, and calls work all the same.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            drop(DeviceMemory::new(&mine, 4096).unwrap());
            assert!(fake.context().is_null());
        });
    });
    fake.assert_lawful();
}

/// Checks that cuFile is opened in a current context: without one, `cuFileDriverOpen` and
/// `cuFileBatchIOSetUp` fail, and the first leaves its thread in none.
#[test]
fn cufile_is_opened_in_the_gpus_context_which_the_thread_gives_back() {
    let fake = FakeGpu::start(1, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let driver = Driver::open(&fake.gpu(), fake.library(), Compat::Forbidden).unwrap();
            assert!(fake.context().is_null(), "the thread was with no GPU before");
            drop(driver);
        });
    });
    fake.driver(1 << 4, 1 << 1, 2, 128, 2);
    for (with, gpu) in [(0, 0), (0, 1), (1, 0)] {
        fake.go_to(with);
        let gpu = Gpu::open(gpu).unwrap();
        drop(Driver::open(&gpu, fake.library(), Compat::Forbidden).unwrap());
        assert_eq!(fake.context() as usize, with + 1);
    }
    fake.assert_lawful();
}

#[test]
fn the_driver_is_opened_once_and_one_that_a_framework_opened_is_left_open() {
    let fake = FakeGpu::start(1, 0);
    let (one, two) = (fake.open_driver(), fake.open_driver());
    assert_eq!(fake.count("driver_opens"), 1);
    drop(one);
    assert_eq!(fake.count("driver_closes"), 0, "somebody still uses it");
    drop(two);
    assert_eq!(fake.count("driver_closes"), 1);
    fake.plan("driver_open", 0, 5026, 1);
    drop(fake.open_driver());
    assert_eq!(fake.count("driver_closes"), 1, "it was not ours to close");
}

#[test]
fn what_is_missing_is_named() {
    let fake = FakeGpu::start(1, 0);
    fake.driver(1 << 4, 1 << 1, 2, 128, 0);
    assert!(refusal(options(&fake)).contains("there is no GPU 0; CUDA shows 0"));
    fake.driver(1 << 4, 1 << 1, 2, 128, 1);
    let nowhere = GdsOptions { library: Some("/nowhere/libcufile.so".into()), ..options(&fake) };
    assert!(refusal(nowhere).contains("/nowhere/libcufile.so"));
    fake.plan("handle_register", 0, 5008, 1);
    let reason = refusal(options(&fake));
    assert!(reason.contains("error 5008 (IO_NOT_SUPPORTED)") && reason.contains("/a"), "{reason}");
    fake.plan("probe", 0, 5030, 1);
    let reason = refusal(options(&fake));
    assert!(reason.contains("could not read its first block: cuFile error 5030"), "{reason}");
    fake.plan("buffer_register", 0, 2, 1);
    let reason = refusal(options(&fake));
    assert!(reason.contains("CUDA error 2 (CUDA_ERROR_OUT_OF_MEMORY)"), "{reason}");
    // The driver knows more names than anybody would write down.
    fake.plan("buffer_register", 0, 226, 1);
    let reason = refusal(options(&fake));
    assert!(reason.contains("CUDA error 226 (CUDA_ERROR_CONTAINED)"), "{reason}");
    fake.plan("buffer_register", 0, 4000, 1);
    let reason = refusal(options(&fake));
    assert!(reason.contains("CUDA error 4000 (see CUresult in CUDA's documentation)"), "{reason}");
    assert_eq!(fake.count("allocated"), 0);
}

#[test]
fn a_write_that_must_be_on_the_medium_is_flushed_and_zeroes_go_through_the_kernel() {
    let fake = FakeGpu::start(4, 2);
    let directory = Directory::new("gds-fua").unwrap();
    let mut path = reaching(&fake, vec![device(directory.path(), "a", 64 * BLOCK)]);
    let extent = Extent::new(0, 4 * BLOCK);
    let (written, read) = (tensor(&fake, 9), tensor(&fake, 1));
    run(path.as_mut(), extent, Action::write(part_of(&written, 4), true)).result.unwrap();
    run(path.as_mut(), Extent::new(BLOCK, BLOCK), Action::WriteZeroes).result.unwrap();
    run(path.as_mut(), Extent::NOTHING, Action::Flush).result.unwrap();
    run(path.as_mut(), extent, Action::read(part_of(&read, 4))).result.unwrap();
    let mut bytes = [0; 4 * BLOCK as usize];
    read.read(0, &mut bytes).unwrap();
    assert!(bytes[4096..8192].iter().all(|byte| *byte == 0));
    assert!(bytes[..4096].iter().chain(&bytes[8192..]).all(|byte| *byte == 9));
}

#[test]
fn the_hosts_memory_and_the_gpus_lie_in_the_same_places() {
    let fake = FakeGpu::start(6, 2);
    let directory = Directory::new("gds-both").unwrap();
    let mut path = reaching(&fake, vec![device(directory.path(), "a", 64 * BLOCK)]);
    let pool = DmaPool::new(ByteCount::kib(64), false).unwrap();
    path.register(&pool);
    let extent = Extent::new(8 * BLOCK, 4 * BLOCK);
    let (written, read) = (tensor(&fake, 3), tensor(&fake, 1));
    let before = fake.count("host_bytes");
    run(path.as_mut(), extent, Action::write(part_of(&written, 4), false)).result.unwrap();
    let buffer = pool.take(4 * BLOCK as usize).unwrap();
    let done = run(path.as_mut(), extent, Action::read(buffer));
    let mut buffer = done.into_buffer().unwrap();
    assert!(buffer.iter().all(|byte| *byte == 3));
    buffer.fill(5);
    run(path.as_mut(), extent, Action::write(buffer, true)).result.unwrap();
    run(path.as_mut(), extent, Action::read(part_of(&read, 4))).result.unwrap();
    assert_eq!(fake.count("host_bytes"), before, "the host's bytes went through the GPU");
    let mut bytes = [0; 4 * BLOCK as usize];
    read.read(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 5));
}

#[test]
fn a_failed_write_latches_its_device_with_cufiles_code_and_reads_go_on() {
    let fake = FakeGpu::start(4, 2);
    let directory = Directory::new("gds-latch").unwrap();
    let mut path = reaching(&fake, vec![device(directory.path(), "a", 64 * BLOCK)]);
    let (pool, tensor) = (DmaPool::new(ByteCount::kib(64), false).unwrap(), tensor(&fake, 1));
    fake.plan("write", 0, 5044, 1);
    let write = || Action::write(part_of(&tensor, 1), false);
    let extent = Extent::new(0, BLOCK);
    let error = run(path.as_mut(), extent, write()).result.unwrap_err();
    let status = Status::ErrorLibrary { library: &CUFILE, code: 5044 };
    assert_eq!(error.status, status);
    assert!(error.to_string().ends_with("cuFile error 5044 (IO_ERROR)"), "{error}");
    let host = || Action::write(pool.take(4096).unwrap(), false);
    for action in [write(), host(), Action::Flush] {
        let extent = if matches!(action, Action::Flush) { Extent::NOTHING } else { extent };
        let again = Operation::new(2, DeviceIndex(0), extent, action);
        assert_eq!(path.submit(again).unwrap_err().reason, Refusal::Latched(error));
    }
    run(path.as_mut(), extent, Action::read(part_of(&tensor, 1))).result.unwrap();
    run(path.as_mut(), extent, Action::read(pool.take(4096).unwrap())).result.unwrap();
}

#[test]
fn the_page_cache_is_refused_by_name() {
    let fake = FakeGpu::start(4, 2);
    let directory = Directory::new("gds-buffered").unwrap();
    drop(device(directory.path(), "a", 16 * BLOCK));
    let mode = OpenMode { buffered: true, ..OpenMode::default() };
    let device = Device::open(&DeviceSpec::new(directory.path().join("a")), mode).unwrap();
    let refused = GdsBackend(options(&fake)).provider(vec![device]).open(8);
    let reason = refused.err().expect("it is refused").to_string();
    assert!(reason.contains("page cache"), "{reason}");
}
