//! Device of a framework's storages: on the heap, or on a GPU whose stream writes them some time
//! later.

use std::ffi::c_void;
use std::sync::{Arc, Mutex};

use tidelog_gds::Gpu;
use tidelog_gds::cuda::{DeviceMemory, Event, Stream};

use super::Memory;
use super::memory::content;

/// The device that has a framework's storages.
pub(super) enum ComputeDevice {
    Host,
    Gpu(Arc<Compute>),
}

/// A GPU's stream that "kernels" run in, and what they still read.
pub(super) struct Compute {
    gpu: Arc<Gpu>,
    stream: Stream,
    inputs: Mutex<Vec<Vec<u8>>>,
}

/// The memory of a storage.
pub(super) enum Room {
    Host(Memory),
    Gpu { memory: DeviceMemory, compute: Arc<Compute> },
}

impl ComputeDevice {
    pub(super) fn of(gpu: bool) -> Self {
        if !gpu {
            return Self::Host;
        }
        let gpu = Gpu::open(0).expect("a GPU was asked for");
        let stream = Stream::new(&gpu).unwrap();
        Self::Gpu(Arc::new(Compute { gpu, stream, inputs: Mutex::default() }))
    }

    pub(super) fn room(&self, size: usize, byte: u8) -> Room {
        match self {
            Self::Host => Room::Host(Memory::new(size, byte)),
            Self::Gpu(compute) => {
                // No allocation is empty; the storage may be.
                let memory = DeviceMemory::new(&compute.gpu, size.max(1)).unwrap();
                Room::Gpu { memory, compute: Arc::clone(compute) }
            }
        }
    }

    /// Returns an event behind all work that was given to the GPU so far.
    pub(super) fn now(&self) -> Option<Event> {
        let Self::Gpu(compute) = self else { return None };
        let event = Event::new(&compute.gpu).unwrap();
        event.record(&compute.stream).unwrap();
        Some(event)
    }

    /// Makes later work of the GPU wait for an event.
    pub(super) fn wait_for(&self, event: Option<&Event>) {
        if let (Self::Gpu(compute), Some(event)) = (self, event) {
            compute.stream.wait_for(event).unwrap();
        }
    }
}

/// An event as the C ABI takes it.
pub(super) fn raw(event: Option<&Event>) -> *mut c_void {
    event.map_or(std::ptr::null_mut(), Event::as_raw)
}

impl Compute {
    fn synchronize(&self) {
        self.stream.synchronize().unwrap();
        self.inputs.lock().unwrap().clear();
    }
}

impl Room {
    pub(super) fn address(&self) -> u64 {
        match self {
            Self::Host(memory) => memory.address as u64,
            Self::Gpu { memory, .. } => memory.base().0,
        }
    }

    /// Fills the storage with the bytes of `seed`, on a GPU some time before what is asked of its
    /// stream next. No transfer may be using it.
    pub(super) fn fill(&mut self, seed: u64, size: usize) {
        match self {
            Self::Host(memory) => memory.fill(seed),
            Self::Gpu { memory, compute } => {
                let bytes = content(seed, size);
                // SAFETY: the memory stays until the stream was waited for (`drop`), as do the
                // bytes.
                unsafe { compute.stream.copy_in(bytes.as_ptr(), memory.base(), size) }.unwrap();
                compute.inputs.lock().unwrap().push(bytes);
            }
        }
    }

    /// Gives a part of it other bytes. For the host's memory.
    pub(super) fn spoil(&mut self, begin: usize, size: usize) {
        let Self::Host(memory) = self else { panic!("parts are of host memory") };
        assert!(begin + size <= memory.size);
        // SAFETY: within the memory, which is ours; no transfer uses that part.
        unsafe { memory.address.add(begin).write_bytes(0xEE, size) };
    }

    /// Panics unless it has the bytes of `seed`. No transfer may be writing it.
    pub(super) fn check(&self, seed: u64, size: usize, whose: u32) {
        match self {
            Self::Host(memory) => memory.check(seed, whose),
            Self::Gpu { memory, compute } => {
                compute.synchronize();
                let mut bytes = vec![0; size];
                memory.read(0, &mut bytes).unwrap();
                let right = bytes == content(seed, size);
                assert!(right, "storage {whose} ({size} bytes) came back with other bytes");
            }
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if let Self::Gpu { compute, .. } = self {
            compute.synchronize();
        }
    }
}
