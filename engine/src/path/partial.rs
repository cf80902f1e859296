//! A data path to some devices of a pool: what goes to one that is missing ends at once, with the
//! error that the kernel has for a device that is gone.

use std::io;
use std::time::Duration;

use super::choose::{OpenedPath, PathProvider};
use super::error::PathError;
use super::operation::{Completion, DeviceError, Operation, Refusal, Refused, Status};
use super::{
    Capabilities, DataPath, DeviceCapabilities, Feature, PeerReach, PeerUnreachable, Waker,
};
use crate::memory::peer::PeerRegion;
use crate::memory::{DmaPool, GpuMemory, MemoryError, WindowSize};
use crate::units::{ByteCount, DeviceIndex};

/// Opens the path to the devices that are there.
pub struct PartialProvider {
    /// The provider of the path to those that are there, in stripe order.
    pub present: Box<dyn PathProvider>,
    /// Every place of the pool: the name of the device if it is missing.
    pub places: Vec<Option<String>>,
}

impl PathProvider for PartialProvider {
    fn open(self: Box<Self>, depth: u32) -> Result<OpenedPath, PathError> {
        let Self { present, places } = *self;
        let OpenedPath { path, why_not } = present.open(depth)?;
        Ok(OpenedPath { path: Box::new(PartialPath::new(path, places, depth)), why_not })
    }
}

/// A queue to the devices that are there.
struct PartialPath {
    path: Box<dyn DataPath>,
    /// The name of each place's device if it is missing.
    places: Vec<Option<String>>,
    capabilities: Capabilities,
    /// Operations on missing devices that may be in flight.
    depth: u32,
    /// Operations on missing devices, which have failed.
    failed: Vec<Completion>,
}

impl PartialPath {
    fn new(path: Box<dyn DataPath>, places: Vec<Option<String>>, depth: u32) -> Self {
        let capabilities = capabilities(path.capabilities(), &places, depth);
        Self { path, places, capabilities, depth, failed: Vec::new() }
    }

    /// Takes over what has changed of the path's capabilities.
    fn refresh(&mut self) {
        self.capabilities = capabilities(self.path.capabilities(), &self.places, self.depth);
    }

    fn is_missing(&self, device: DeviceIndex) -> bool {
        self.places.get(usize::from(device.0)).is_some_and(Option::is_some)
    }

    /// Returns the device's place among those that are there.
    fn inner(&self, device: DeviceIndex) -> DeviceIndex {
        let before = self.places.iter().take(usize::from(device.0));
        DeviceIndex(before.filter(|it| it.is_none()).count() as u8)
    }

    /// Returns the place in the pool of one of those that are there.
    fn outer(&self, device: DeviceIndex) -> DeviceIndex {
        let present = (0..).zip(&self.places).filter(|(_, missing)| missing.is_none());
        present.map(|(place, _)| DeviceIndex(place)).nth(device.0.into()).unwrap_or(device)
    }

    /// Has failures name the place in the pool.
    fn relabel(&self, completions: &mut [Completion]) {
        for completion in completions {
            if let Err(error) = &mut completion.result {
                error.device = self.outer(error.device);
            }
        }
    }
}

// SAFETY: an operation on a device that is there is the inner path's from `submit` until the inner
// path completes it; one on a missing device has no device that could touch its memory, and fails.
unsafe impl DataPath for PartialPath {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn allocate(&mut self, bytes: ByteCount, huge_pages: bool) -> Result<DmaPool, MemoryError> {
        self.path.allocate(bytes, huge_pages)
    }

    fn register(&mut self, region: &DmaPool) {
        self.path.register(region);
        self.refresh();
    }

    fn unregister(&mut self) -> bool {
        self.path.unregister()
    }

    fn register_peer(&mut self, region: &PeerRegion) -> Result<PeerReach, PeerUnreachable> {
        let reach = self.path.register_peer(region);
        self.refresh();
        reach
    }

    fn reach_gpu(&mut self, gpu: &dyn GpuMemory, window: WindowSize) -> Result<Feature, PathError> {
        let reach = self.path.reach_gpu(gpu, window);
        self.refresh();
        reach
    }

    fn submit(&mut self, operation: Operation) -> Result<(), Refused> {
        let device = operation.device;
        if !self.is_missing(device) {
            let inner = Operation { device: self.inner(device), ..operation };
            return self.path.submit(inner).map_err(|Refused { reason, operation }| {
                let reason = match reason {
                    Refusal::Latched(error) => Refusal::Latched(DeviceError { device, ..error }),
                    other => other,
                };
                Refused { reason, operation: Operation { device, ..operation } }
            });
        }
        if self.failed.len() >= self.depth as usize {
            return Err(Refused { reason: Refusal::Full, operation });
        }
        let (kind, extent) = (operation.action.kind(), operation.extent);
        let error = DeviceError { device, kind, extent, status: Status::Errno(libc::ENODEV) };
        let (tag, memory) = (operation.tag, operation.action.into_memory());
        self.failed.push(Completion { tag, memory, checksum: None, result: Err(error) });
        Ok(())
    }

    fn ring(&mut self) -> io::Result<()> {
        self.path.ring()
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) -> usize {
        let failed = self.failed.len();
        completions.append(&mut self.failed);
        let before = completions.len();
        let polled = self.path.poll(completions);
        self.relabel(&mut completions[before..]);
        failed + polled
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        if self.failed.is_empty() { self.path.wait(timeout) } else { self.path.ring() }
    }

    fn waker(&self) -> Waker {
        self.path.waker()
    }

    fn abort(&mut self, tag: u64) {
        if self.failed.iter().all(|it| it.tag != tag) {
            self.path.abort(tag);
        }
    }

    fn in_flight(&self) -> usize {
        self.failed.len() + self.path.in_flight()
    }

    fn abort_all(&mut self) {
        self.path.abort_all();
    }
}

/// Returns the capabilities of all places, of which those that are there have the path's.
fn capabilities(inner: &Capabilities, places: &[Option<String>], depth: u32) -> Capabilities {
    let mut present = inner.devices.iter();
    let like = present.clone().next().cloned();
    let devices = places.iter().filter_map(|missing| match missing {
        None => present.next().cloned(),
        // As the others are, but for what would have to be asked of it.
        Some(name) => like.clone().map(|like| DeviceCapabilities {
            name: name.clone(),
            volatile_cache: false,
            deallocate: false,
            ..like
        }),
    });
    let mut notes = inner.notes.clone();
    for name in places.iter().flatten() {
        notes.push(format!("{name}: nothing is read or written"));
    }
    Capabilities {
        devices: devices.collect(),
        depth: inner.depth.saturating_add(depth),
        notes,
        ..inner.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memory;
    use crate::path::checked::Checked;
    use crate::path::sim::{Fault, SimDisk, SimDisks};
    use crate::path::{Action, Extent, OperationKind};

    fn path(disks: &[SimDisk]) -> Checked<dyn DataPath> {
        let present = Box::new(SimDisks(disks.to_vec()));
        let places = vec![None, Some("gone".to_owned()), None];
        let opened = Box::new(PartialProvider { present, places }).open(2).unwrap();
        Checked::new(opened.path)
    }

    fn run(path: &mut Checked<dyn DataPath>, device: u8, action: Action) -> Completion {
        let extent = Extent::new(4096, 4096);
        path.submit(Operation::new(7, DeviceIndex(device), extent, action)).unwrap();
        let mut completions = Vec::new();
        while path.poll(&mut completions) == 0 {
            path.wait(None).unwrap();
        }
        completions.remove(0)
    }

    #[test]
    fn a_missing_device_answers_that_it_is_gone_and_the_others_keep_their_places() {
        let disks = [SimDisk::new(ByteCount::mib(1)), SimDisk::new(ByteCount::mib(1))];
        let mut path = path(&disks);
        assert_eq!(path.capabilities().devices.len(), 3);
        assert_eq!(path.capabilities().devices[1].name, "gone");
        let memory = DmaPool::new(ByteCount::kib(4), false).unwrap();
        let mut buffer = memory.take(4096).unwrap();
        buffer.fill(0xAB);
        let failed = run(&mut path, 1, Action::write(buffer, false));
        let error = failed.result.unwrap_err();
        assert_eq!((error.device, error.kind), (DeviceIndex(1), OperationKind::Write));
        assert!(error.status.is_removal());
        let buffer = failed.memory.and_then(Memory::into_host).unwrap();
        let written = run(&mut path, 2, Action::write(buffer, false));
        assert!(written.result.is_ok());
        assert_eq!(disks[1].peek(4096, 4096), [0xAB; 4096]);
        assert_eq!(disks[0].peek(4096, 4096), [0; 4096]);
        // The disk's own failures are told of its place in the pool.
        disks[1].plan_fault(OperationKind::Read, 0, Fault::Errno(libc::EIO));
        let buffer = written.memory.and_then(Memory::into_host).unwrap();
        let failed = run(&mut path, 2, Action::read(buffer));
        assert_eq!(failed.result.unwrap_err().device, DeviceIndex(2));
    }
}
