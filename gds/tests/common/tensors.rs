//! Tensors of a GPU that is not there, and pools that they go to.

use std::sync::Arc;

use tidelog_engine::layout::TensorId;
use tidelog_engine::memory::{Destination, GpuDestination, GpuEvent, GpuSource, Source};
use tidelog_engine::path::sim::{SimDisk, SimProfile};
use tidelog_engine::path::{DeviceSpec, PathChoice};
use tidelog_engine::pool::{FormatOptions, OpenOptions, Pool, PutOptions};
use tidelog_engine::schedule::{Ticket, Urgency};
use tidelog_engine::units::ByteCount;
use tidelog_gds::cuda::{DeviceMemory, Event};
use tidelog_gds::{GdsBackend, GdsOptions, StagedGpu};
use tidelog_tests::machine::{Directory, FakeGpu};

pub const UNIT: ByteCount = ByteCount::kib(16);
pub const NAME: &str = "layer.0.weight";

/// Route of GPU memory to the devices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TensorRoute {
    /// Staging in page-locked memory, over a data path of the kernel's.
    Staged(PathChoice),
    /// Direct route by cuFile, past the host.
    Gds,
    /// Peer DMA of simulated controllers, past the host, through a window that gdrcopy maps.
    Peer,
}

/// One of each kind.
pub const WAYS: [TensorRoute; 3] =
    [TensorRoute::Staged(PathChoice::Auto), TensorRoute::Gds, TensorRoute::Peer];
/// Routes on which no byte comes to the host.
pub const PAST_THE_HOST: [TensorRoute; 2] = [TensorRoute::Gds, TensorRoute::Peer];

/// Media of a pool.
pub struct Media {
    /// The folder of its two files.
    pub directory: Directory,
    /// The disks, where they are simulated.
    pub disks: [SimDisk; 2],
}

impl Media {
    /// Two empty devices.
    fn new() -> Self {
        let (size, profile) = (ByteCount::mib(16), SimProfile::default());
        let disk = |seed| SimDisk::with_profile(size, SimProfile { seed, ..profile });
        Self { directory: Directory::new("gpu-log").unwrap(), disks: [disk(1), disk(2)] }
    }

    fn files(&self) -> [DeviceSpec; 2] {
        ["a", "b"].map(|name| DeviceSpec::new(self.directory.path().join(name)))
    }
}

/// A pool on two devices, and those. Its staging memory is `chunks` chunks, on the GPU as well.
pub fn pool(fake: &FakeGpu, chunks: u64, way: TensorRoute) -> (Media, Pool) {
    let media = Media::new();
    let format = FormatOptions {
        device_size: Some(ByteCount::mib(16)).filter(|_| way != TensorRoute::Peer),
        stripe_unit: UNIT,
        ..FormatOptions::default()
    };
    match way {
        TensorRoute::Peer => Pool::format(&media.disks, &format).map(drop).unwrap(),
        _ => Pool::format(&media.files(), &format).map(drop).unwrap(),
    }
    let pool = open(fake, &media, chunks, way);
    (media, pool)
}

/// Opens an existing pool.
pub fn open(fake: &FakeGpu, media: &Media, chunks: u64, way: TensorRoute) -> Pool {
    let staging = ByteCount(chunks * UNIT.0);
    let library = Some(fake.library_path().into());
    let gds = GdsBackend(GdsOptions { library, ..GdsOptions::default() });
    let options = OpenOptions {
        path: if let TensorRoute::Staged(path) = way { path } else { PathChoice::Auto },
        backend: if way == TensorRoute::Gds { Some(Arc::new(gds)) } else { None },
        staging,
        depth: Some(4),
        gpu: Some(Arc::new(StagedGpu(fake.gpu()))),
        ..OpenOptions::default()
    };
    match way {
        TensorRoute::Peer => Pool::open(&media.disks, &options).unwrap(),
        _ => Pool::open(&media.files(), &options).unwrap(),
    }
}

/// Returns the number of bytes between the GPU and the host while `body` ran.
pub fn host_bytes(fake: &FakeGpu, body: impl FnOnce()) -> u64 {
    let before = fake.count("host_bytes");
    body();
    fake.count("host_bytes") - before
}

pub fn id() -> TensorId {
    TensorId::from_name(NAME)
}

pub fn pattern(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 / 7 + at / 4093 + seed) as u8).collect()
}

pub fn on_gpu(fake: &FakeGpu, bytes: &[u8]) -> DeviceMemory {
    let mut memory = DeviceMemory::new(&fake.gpu(), bytes.len()).unwrap();
    memory.write(0, bytes).unwrap();
    memory
}

pub fn bytes_of(memory: &DeviceMemory) -> Vec<u8> {
    let mut bytes = vec![0; memory.len()];
    memory.read(0, &mut bytes).unwrap();
    bytes
}

pub fn raw(event: Option<&Event>) -> Option<GpuEvent> {
    event.and_then(|event| GpuEvent::from_raw(event.as_raw()))
}

pub fn source(memory: &DeviceMemory, after: Option<&Event>) -> Source {
    // SAFETY: the tests keep the memory, unwritten, until the ticket ends.
    Source::Gpu(unsafe { GpuSource::new(memory.base().0, memory.len(), raw(after)) })
}

pub fn put(pool: &Pool, memory: &DeviceMemory, after: Option<&Event>) -> Ticket {
    pool.put(id(), source(memory, after), PutOptions::default()).unwrap()
}

pub fn get(
    pool: &Pool,
    start: u64,
    memory: &DeviceMemory,
    after: Option<&Event>,
    landed: Option<&Event>,
) -> Ticket {
    let length = memory.len();
    // SAFETY: the tests keep the memory, untouched, until the ticket ends and `landed` has
    // happened.
    let destination =
        unsafe { GpuDestination::new(memory.base().0, length, raw(after), raw(landed)) };
    let range = start..start + length as u64;
    pool.get(id(), range, Destination::Gpu(destination), Urgency::Urgent, None).unwrap()
}

pub fn from_host(pool: &Pool, length: usize) -> Vec<u8> {
    let destination = Destination::buffer(length);
    let ticket = pool.get(id(), 0..length as u64, destination, Urgency::Urgent, None).unwrap();
    ticket.wait().unwrap();
    ticket.take_bytes().unwrap()
}
