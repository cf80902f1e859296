//! A data path that watches another one keep the rules, for tests and for hunting a bug in a
//! backend.
//!
//! It panics at the first broken rule, which is a bug in the backend and never one of the caller.

use std::collections::HashMap;
use std::io;
use std::time::{Duration, Instant};

use super::operation::{Completion, Operation, OperationKind, Refused};
use super::{
    Capabilities, DataPath, Feature, OpenedPath, PathError, PathProvider, PeerReach,
    PeerUnreachable, Waker,
};
use crate::memory::peer::PeerRegion;
use crate::memory::{DmaPool, GpuMemory, Memory, MemoryError, MemoryKind, WindowSize};
use crate::units::{ByteCount, DeviceIndex};

/// Watches over the path inside.
pub struct Checked<P: DataPath + ?Sized> {
    in_flight: HashMap<u64, Watched>,
    path: Box<P>,
}

/// Watches over whatever path a provider opens.
pub struct CheckedProvider(
    /// The provider.
    pub Box<dyn PathProvider>,
);

impl PathProvider for CheckedProvider {
    fn open(self: Box<Self>, depth: u32) -> Result<OpenedPath, PathError> {
        let OpenedPath { path, why_not } = self.0.open(depth)?;
        Ok(OpenedPath { path: Box::new(Checked::new(path)), why_not })
    }
}

/// Operation that must come back with a tag.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Watched {
    device: DeviceIndex,
    kind: OperationKind,
    /// The memory: what it is, its address and its length.
    memory: Option<(MemoryKind, usize, usize)>,
}

impl Watched {
    fn of(operation: &Operation) -> Self {
        let memory = operation.action.memory().map(Memory::span);
        Self { device: operation.device, kind: operation.action.kind(), memory }
    }
}

impl<P: DataPath + ?Sized> Checked<P> {
    /// Watches over `path`, which has nothing in flight.
    pub fn new(path: Box<P>) -> Self {
        assert_eq!(path.in_flight(), 0, "a path is watched from its beginning or not at all");
        Self { in_flight: HashMap::new(), path }
    }

    fn check(&mut self, completion: &Completion) {
        let tag = completion.tag;
        let Some(watched) = self.in_flight.remove(&tag) else {
            panic!("tag {tag} completed and is not in flight");
        };
        let memory = completion.memory.as_ref().map(Memory::span);
        assert_eq!(memory, watched.memory, "tag {tag} came back with another buffer");
        // The path tells the checksum of what it moved in a GPU's memory.
        let is_gpu = watched.memory.is_some_and(|(kind, ..)| kind == MemoryKind::Gpu);
        let summed = is_gpu && completion.result.is_ok();
        assert_eq!(completion.checksum.is_some(), summed, "tag {tag}: a checksum of what?");
        if let Err(error) = completion.result {
            let named = (error.device, error.kind);
            assert_eq!(named, (watched.device, watched.kind), "tag {tag} failed as something else");
        }
    }
}

// SAFETY: every operation goes to the path inside and every completion comes from it, unchanged.
unsafe impl<P: DataPath + ?Sized> DataPath for Checked<P> {
    fn capabilities(&self) -> &Capabilities {
        self.path.capabilities()
    }

    fn allocate(&mut self, bytes: ByteCount, huge_pages: bool) -> Result<DmaPool, MemoryError> {
        self.path.allocate(bytes, huge_pages)
    }

    fn register(&mut self, region: &DmaPool) {
        self.path.register(region);
    }

    fn unregister(&mut self) -> bool {
        assert_eq!(self.path.in_flight(), 0, "memory is let go of that a device may touch");
        self.path.unregister()
    }

    fn register_peer(&mut self, region: &PeerRegion) -> Result<PeerReach, PeerUnreachable> {
        self.path.register_peer(region)
    }

    fn reach_gpu(&mut self, gpu: &dyn GpuMemory, window: WindowSize) -> Result<Feature, PathError> {
        self.path.reach_gpu(gpu, window)
    }

    fn submit(&mut self, operation: Operation) -> Result<(), Refused> {
        let (tag, watched) = (operation.tag, Watched::of(&operation));
        assert!(!self.in_flight.contains_key(&tag), "tag {tag} is in flight already");
        let answer = self.path.submit(operation);
        match &answer {
            Ok(()) => {
                self.in_flight.insert(tag, watched);
            }
            Err(refused) => {
                assert_eq!(refused.operation.tag, tag, "another operation came back");
                let back = Watched::of(&refused.operation);
                assert_eq!(back, watched, "the operation came back changed");
            }
        }
        assert_eq!(self.in_flight.len(), self.path.in_flight(), "the path cannot count");
        let depth = self.path.capabilities().depth as usize;
        assert!(self.in_flight.len() <= depth, "more than {depth} operations are in flight");
        answer
    }

    fn ring(&mut self) -> io::Result<()> {
        self.path.ring()
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) -> usize {
        let before = completions.len();
        let count = self.path.poll(completions);
        assert_eq!(completions.len(), before + count, "the path cannot count");
        for completion in &completions[before..] {
            self.check(completion);
        }
        assert_eq!(self.in_flight.len(), self.path.in_flight(), "the path cannot count");
        count
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.path.wait(timeout)
    }

    fn waker(&self) -> Waker {
        self.path.waker()
    }

    fn abort(&mut self, tag: u64) {
        self.path.abort(tag);
    }

    fn in_flight(&self) -> usize {
        self.path.in_flight()
    }

    fn drain(&mut self, deadline: Instant, completions: &mut Vec<Completion>) -> usize {
        let before = completions.len();
        let left = self.path.drain(deadline, completions);
        for completion in &completions[before..] {
            self.check(completion);
        }
        assert_eq!(left, self.in_flight.len(), "the path lost an operation while draining");
        left
    }

    fn abort_all(&mut self) {
        self.path.abort_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::sim::{SimDisk, SimPath};
    use crate::path::{Action, Extent, Status};
    use crate::units::ByteCount;

    /// Spoils the completions of the path inside.
    struct Spoiler(SimPath, fn(&mut Completion));

    // SAFETY: it spoils what completions say, not who owns their memory.
    unsafe impl DataPath for Spoiler {
        fn capabilities(&self) -> &Capabilities {
            self.0.capabilities()
        }
        fn register(&mut self, _region: &DmaPool) {}
        fn submit(&mut self, operation: Operation) -> Result<(), Refused> {
            self.0.submit(operation)
        }
        fn ring(&mut self) -> io::Result<()> {
            self.0.ring()
        }
        fn poll(&mut self, completions: &mut Vec<Completion>) -> usize {
            let before = completions.len();
            let count = self.0.poll(completions);
            completions[before..].iter_mut().for_each(self.1);
            count
        }
        fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
            self.0.wait(timeout)
        }
        fn waker(&self) -> Waker {
            self.0.waker()
        }
        fn abort(&mut self, tag: u64) {
            self.0.abort(tag);
        }
        fn in_flight(&self) -> usize {
            self.0.in_flight()
        }
        fn abort_all(&mut self) {
            self.0.abort_all();
        }
    }

    fn run(spoil: fn(&mut Completion)) -> Completion {
        let disk = SimDisk::new(ByteCount::mib(1));
        disk.plan_fault(OperationKind::Read, 0, crate::path::sim::Fault::Errno(libc::EIO));
        let mut path = Checked::new(Box::new(Spoiler(SimPath::new(vec![disk], 1).unwrap(), spoil)));
        let buffer = DmaPool::new(ByteCount::kib(4), false).unwrap().take(4096).unwrap();
        let (device, extent) = (DeviceIndex(0), Extent::new(0, 4096));
        let action = Action::read(buffer);
        path.submit(Operation::new(1, device, extent, action)).unwrap();
        let mut completions = Vec::new();
        assert_eq!(path.poll(&mut completions), 1);
        completions.remove(0)
    }

    #[test]
    fn an_honest_path_passes_unchanged() {
        let error = run(|_| ()).result.unwrap_err();
        assert_eq!(error.status, Status::Errno(libc::EIO));
    }

    #[test]
    #[should_panic(expected = "tag 2 completed and is not in flight")]
    fn a_tag_that_nobody_submitted_is_caught() {
        run(|completion| completion.tag = 2);
    }

    #[test]
    #[should_panic(expected = "came back with another buffer")]
    fn a_lost_buffer_is_caught() {
        run(|completion| completion.memory = None);
    }

    #[test]
    #[should_panic(expected = "failed as something else")]
    fn an_error_that_blames_another_operation_is_caught() {
        run(|completion| {
            if let Err(error) = &mut completion.result {
                error.kind = OperationKind::Flush;
            }
        });
    }
}
