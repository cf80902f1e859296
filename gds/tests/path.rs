//! The engine over cuFile: its conformance suite, and what only this path does.
#![allow(unsafe_code)]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::device;
use tidelog_engine::memory::DmaPool;
use tidelog_engine::path::checked::CheckedProvider;
use tidelog_engine::path::{
    Action, Backend, Completion, DataPath, Device, DeviceSpec, Extent, Feature, OpenMode,
    Operation, PathError, PathKind, PathProvider, Refusal, Status,
};
use tidelog_engine::units::{ByteCount, DeviceIndex};
use tidelog_gds::cufile::{CUFILE, Compat, Driver, Mode, OpenError};
use tidelog_gds::queue::QueueOptions;
use tidelog_gds::{GdsBackend, GdsOptions};
use tidelog_tests::conformance::{ROWS, Stage};
use tidelog_tests::machine::{Directory, FakeGpu, LoopDevice, LoopOptions, skip};

const BLOCK: u64 = 4096;

fn options(fake: &FakeGpu) -> GdsOptions {
    let queue = QueueOptions { staging: ByteCount::kib(256), chunk: ByteCount::kib(32), depth: 0 };
    GdsOptions { library: Some(fake.library_path().into()), queue, ..GdsOptions::default() }
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

fn run(path: &mut dyn DataPath, extent: Extent, action: Action) -> Completion {
    path.submit(Operation { tag: 1, device: DeviceIndex(0), extent, action, placement: None })
        .unwrap();
    let mut completions = Vec::new();
    let end = Instant::now() + Duration::from_secs(20);
    while path.poll(&mut completions) == 0 {
        assert!(Instant::now() < end, "it never completes");
        path.wait(Some(Duration::from_secs(1))).unwrap();
    }
    completions.remove(0)
}

fn refusal(options: GdsOptions) -> String {
    let directory = Directory::new("gds-refusal").unwrap();
    let device = device(directory.path(), "a", 16 * BLOCK);
    match GdsBackend(options).provider(vec![device]).open(8) {
        Err(PathError::Unavailable { kind: PathKind::Gds, reason }) => reason,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it opened"),
    }
}

fn conform(specs: Vec<DeviceSpec>, fake: &FakeGpu) {
    let backend: Arc<dyn Backend> = Arc::new(Watched(GdsBackend(options(fake))));
    let stage = Stage { specs, path: PathKind::Gds, backend: Some(backend), elsewhere: None };
    for (name, row) in ROWS {
        row(&stage).unwrap_or_else(|why| panic!("{name}: {why}"));
    }
    fake.assert_lawful();
    assert!(fake.count("submitted") > 1000, "the bytes went another way");
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
    assert_eq!(driver.facts().version, Some((1, 15)));
    drop(driver);
    fake.driver(0, 1 << 1, 0, 128, 1);
    let refused = refusal(options(&fake));
    assert!(refused.contains("nvidia-fs is not loaded"), "{refused}");
    assert!(refused.contains("ask for compat mode by name"), "{refused}");
    let named = Driver::open(fake.library(), Compat::Named).unwrap();
    assert_eq!(named.facts().mode, Mode::Compat);
    drop(named);
    fake.driver(1 << 11, 1 << 1, 0, 128, 1);
    assert_eq!(fake.open_driver().facts().mode, Mode::PeerToPeer);
    fake.driver(1 << 4, 0, 2, 128, 1);
    let error = Driver::open(fake.library(), Compat::Forbidden).unwrap_err();
    assert_eq!(error, OpenError::NoBatches);
    assert_eq!(fake.count("driver_opens"), fake.count("driver_closes"));
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
    assert_eq!(fake.count("allocated"), 0);
}

#[test]
fn a_write_that_must_be_on_the_medium_is_flushed_and_zeroes_go_through_the_kernel() {
    let fake = FakeGpu::start(4, 2);
    let directory = Directory::new("gds-fua").unwrap();
    let mut path = open(&fake, vec![device(directory.path(), "a", 64 * BLOCK)]);
    let pool = DmaPool::new(ByteCount::kib(64), false).unwrap();
    path.register(&pool);
    assert_eq!(path.capabilities().registered_buffers, Feature::On);
    let mut buffer = pool.take(4 * BLOCK as usize).unwrap();
    buffer.fill(9);
    let extent = Extent::new(0, 4 * BLOCK);
    let completion = run(path.as_mut(), extent, Action::Write { buffer, fua: true });
    completion.result.unwrap();
    run(path.as_mut(), Extent::new(BLOCK, BLOCK), Action::WriteZeroes).result.unwrap();
    run(path.as_mut(), Extent::NOTHING, Action::Flush).result.unwrap();
    let read = run(path.as_mut(), extent, Action::Read(completion.buffer.unwrap()));
    read.result.unwrap();
    let bytes = read.buffer.unwrap();
    assert!(bytes[4096..8192].iter().all(|byte| *byte == 0));
    assert!(bytes[..4096].iter().chain(&bytes[8192..]).all(|byte| *byte == 9));
}

#[test]
fn a_failed_write_latches_its_device_with_cufiles_code_and_reads_go_on() {
    let fake = FakeGpu::start(4, 2);
    let directory = Directory::new("gds-latch").unwrap();
    let mut path = open(&fake, vec![device(directory.path(), "a", 64 * BLOCK)]);
    let pool = DmaPool::new(ByteCount::kib(64), false).unwrap();
    fake.plan("write", 0, 5044, 1);
    let write = || Action::Write { buffer: pool.take(4096).unwrap(), fua: false };
    let extent = Extent::new(0, BLOCK);
    let error = run(path.as_mut(), extent, write()).result.unwrap_err();
    let status = Status::Library { library: &CUFILE, code: 5044 };
    assert_eq!(error.status, status);
    assert!(error.to_string().ends_with("cuFile error 5044 (IO_ERROR)"), "{error}");
    let again =
        Operation { tag: 2, device: DeviceIndex(0), extent, action: write(), placement: None };
    assert_eq!(path.submit(again).unwrap_err().reason, Refusal::Latched(error));
    run(path.as_mut(), extent, Action::Read(pool.take(4096).unwrap())).result.unwrap();
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
