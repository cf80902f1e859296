//! Opening the path: the GPU, cuFile, the mode, the devices; each refusal with its reason.

use std::path::PathBuf;
use std::sync::Arc;

use tidelog_engine::memory::WindowSize;
use tidelog_engine::path::backend::{Gate, Slots};
use tidelog_engine::path::posix::PosixPath;
use tidelog_engine::path::{
    Backend, Capabilities, DataPath, Device, DeviceCapabilities, Feature, MemoryKinds, OpenedPath,
    PathError, PathKind, PathProvider, stay_near,
};
use tidelog_engine::units::ByteCount;

use super::GdsPath;
use crate::cuda::{DevicePointer, Gpu};
use crate::cufile::{Compat, CuFileLibrary, Driver};
use crate::queue::CuFileQueue;
use crate::staged::StagedGpu;

/// GPU memory of the caller's, for cuFile to read and write in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallerRegion {
    base: DevicePointer,
    length: usize,
}

impl CallerRegion {
    /// Makes a region of `length` bytes from `base` on.
    ///
    /// # Safety
    /// They are the path's GPU's, and stay allocated until every pool that is opened with them is
    /// closed.
    pub unsafe fn new(base: DevicePointer, length: usize) -> Self {
        Self { base, length }
    }
}

/// Options of the path.
#[derive(Clone, Debug, Default)]
pub struct GdsOptions {
    /// CUDA's number of the GPU.
    pub gpu: i32,
    /// cuFile's library; looked for where it lives if it is not named.
    pub library: Option<PathBuf>,
    /// Permission to go through host memory.
    pub compat: Compat,
    /// Tensors in these, from multiples of 4 KiB on, are not copied through the ring. What cuFile
    /// refuses to register goes through it like other memory, and the path's notes say why.
    pub registered: Vec<CallerRegion>,
}

/// Opens pools by way of GPU memory: for `OpenOptions::backend`.
#[derive(Clone, Debug, Default)]
pub struct GdsBackend(
    /// Options of the path.
    pub GdsOptions,
);

impl Backend for GdsBackend {
    fn provider(&self, devices: Vec<Device>) -> Box<dyn PathProvider> {
        Box::new(GdsDevices { devices, options: self.0.clone() })
    }
}

/// Devices of the operating system, in stripe order, by way of GPU memory.
#[derive(Debug)]
pub struct GdsDevices {
    /// The devices.
    pub devices: Vec<Device>,
    /// Options of the path.
    pub options: GdsOptions,
}

impl PathProvider for GdsDevices {
    fn open(self: Box<Self>, depth: u32) -> Result<OpenedPath, PathError> {
        let Self { devices, options } = *self;
        let path = open(devices, &options, depth)?;
        Ok(OpenedPath { path: Box::new(path), why_not: Vec::new() })
    }
}

#[expect(clippy::needless_pass_by_value, reason = "it stands in map_err")]
fn unavailable<R: ToString>(reason: R) -> PathError {
    PathError::Unavailable { kind: PathKind::Gds, reason: reason.to_string() }
}

fn open(devices: Vec<Device>, options: &GdsOptions, depth: u32) -> Result<GdsPath, PathError> {
    let depth = depth.saturating_mul(devices.len() as u32).max(1);
    if let Some(device) = devices.iter().find(|device| !device.is_direct()) {
        let name = device.path().display();
        return Err(unavailable(format!(
            "{name} is open through the page cache, which cuFile goes past"
        )));
    }
    let gpu = Gpu::open(options.gpu).map_err(unavailable)?;
    // The thread that opens a path drives it: it is nobody's who counts on another GPU.
    gpu.stay().map_err(unavailable)?;
    let library = CuFileLibrary::open(options.library.as_deref()).map_err(unavailable)?;
    let driver = Driver::open(&gpu, library, options.compat).map_err(unavailable)?;
    let twins: Result<Vec<Device>, _> = devices.iter().map(Device::try_clone).collect();
    let twins = twins.map_err(|source| PathError::System {
        kind: PathKind::Gds,
        what: "open its devices once more",
        source,
    })?;
    let known: Vec<DeviceCapabilities> = devices.iter().map(DeviceCapabilities::of).collect();
    let count = devices.len();
    // This thread also first touches what CUDA tells it in page-locked memory.
    let near = stay_near(&devices, Some(&StagedGpu(Arc::clone(&gpu))));
    let kernel = PosixPath::new(twins, depth)?;
    let facts = driver.facts();
    let version =
        facts.version.map_or_else(String::new, |(major, minor)| format!(" {major}.{minor}"));
    let capabilities = Capabilities {
        kind: PathKind::Gds,
        memory: MemoryKinds::HOST,
        priorities: false,
        devices: known,
        depth,
        registered_buffers: kernel.capabilities().registered_buffers.clone(),
        registered_files: Feature::On,
        notes: [
            format!("mode: {}", facts.mode),
            gpu.to_string(),
            format!("cuFile{version}: {}", facts.library.display()),
        ]
        .into_iter()
        .chain(near)
        .collect(),
    };
    Ok(GdsPath {
        capabilities,
        gate: Gate::new(count),
        slots: Slots::new(depth),
        queue: None,
        devices,
        driver,
        registered: options.registered.clone(),
        kernel,
        checksums: vec![None; depth as usize],
        flushing: 0,
        gpu,
        dead: None,
    })
}

impl GdsPath {
    /// Opens the queue, with a window of this size, and notes what it is made of.
    pub(super) fn open_queue(&mut self, window: WindowSize) -> Result<(), PathError> {
        let devices = std::mem::take(&mut self.devices);
        let depth = self.capabilities.depth;
        let queue = CuFileQueue::open(&self.gpu, &self.driver, devices, window, depth);
        let mut queue = queue.map_err(unavailable)?;
        let notes = &mut self.capabilities.notes;
        notes.push(format!(
            "staging: {} of GPU memory in chunks of {}, batches of up to {}",
            queue.staging(),
            ByteCount(window.chunk.into()),
            self.driver.facts().batch_entries_max
        ));
        notes.extend(self.registered.iter().map(|region| register(&mut queue, *region)));
        self.capabilities.memory.gpu = true;
        self.queue = Some(queue);
        Ok(())
    }
}

/// Registers a region, and says what came of that.
fn register(queue: &mut CuFileQueue, region: CallerRegion) -> String {
    let CallerRegion { base, length } = region;
    let size = ByteCount(length as u64);
    // SAFETY: by the region's contract it stays for longer than the pool, and with it the queue.
    match unsafe { queue.register(base, length) } {
        Ok(()) => format!("{size} of GPU memory are read and written in place"),
        Err(why) => format!("{size} of GPU memory go through the staging ring: {why}"),
    }
}
