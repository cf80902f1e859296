//! GPU memory by way of the engine's staging memory: what works on every machine with a GPU, on
//! every data path.
//!
//! The engine's chunks are page-locked once, so that the GPU's copy engines reach them without the
//! driver's help. Copies from the GPU have a stream and copies to it another, beside each other and
//! beside everything that computes.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::Arc;

use tidelog_engine::memory::{
    DmaPool, GpuCopies, GpuCopy, GpuDirection, GpuError, GpuEvent, GpuMemory, GpuPlace,
    OpenedCopies,
};
use tidelog_engine::path::backend::{OpenedWindow, WindowSize};

use crate::checksum::Checksums;
use crate::cuda::{CudaError, DevicePointer, Event, Gpu, HostLock, Stream};
use crate::gdr;
use crate::topology::{GpuLocality, Sysfs};

/// The memory of a GPU as an end of puts and gets: for `OpenOptions::gpu`.
#[derive(Clone, Debug)]
pub struct StagedGpu(
    /// The GPU.
    pub Arc<Gpu>,
);

impl GpuMemory for StagedGpu {
    fn name(&self) -> String {
        self.0.to_string()
    }

    fn near(&self, devices: &[Option<u64>]) -> Option<GpuPlace> {
        let place = GpuLocality::of(&Sysfs::default(), self.0.pci_address(), devices)?;
        Some(GpuPlace { node: place.node as usize, why: format!("{} is{place}", self.0) })
    }

    fn open(&self, slots: u32, staging: &DmaPool) -> Result<OpenedCopies, GpuError> {
        let gpu = &self.0;
        // The thread that opens copies drives them.
        gpu.stay().map_err(told)?;
        let checksums = Checksums::new(gpu, slots);
        let why_no_checksums = checksums.as_ref().err().map(ToString::to_string);
        let copies = Copies {
            gpu: Arc::clone(gpu),
            out: Stream::new(gpu).map_err(told)?,
            into: Stream::new(gpu).map_err(told)?,
            done: (0..slots).map(|_| Event::new(gpu)).collect::<Result<_, _>>().map_err(told)?,
            checksums: checksums.ok(),
            places: vec![None; slots as usize],
        };
        let (base, length) = staging.span();
        // SAFETY: the mapping is kept beside the lock, and goes after it.
        let locked = unsafe { HostLock::new(gpu, base, length) };
        let (lock, why_unlocked) = match locked {
            Ok(lock) => (Some(Locked { _lock: lock, _memory: staging.clone() }), None),
            Err(error) => (None, Some(format!("{error}; ulimit -l bounds what may be locked"))),
        };
        let lock = lock.map(|lock| Box::new(lock) as Box<_>);
        Ok(OpenedCopies { copies: Box::new(copies), why_no_checksums, why_unlocked, lock })
    }

    fn open_window(&self, size: WindowSize) -> Result<OpenedWindow, GpuError> {
        gdr::open_window(&self.0, size).map_err(|error| GpuError(error.to_string()))
    }
}

/// Fields drop in this order.
struct Locked {
    _lock: HostLock,
    _memory: DmaPool,
}

struct Copies {
    gpu: Arc<Gpu>,
    out: Stream,
    into: Stream,
    /// For each slot, what happens behind its copy.
    done: Vec<Event>,
    checksums: Option<Checksums>,
    /// For each slot, where a checksum that is being taken goes in the end.
    places: Vec<Option<NonNull<u32>>>,
}

// SAFETY: the places are the engine's memory, which whoever began the copy keeps for it, whatever
// thread drives it.
unsafe impl Send for Copies {}

impl Copies {
    /// # Safety
    /// As for [`GpuCopies::begin`].
    unsafe fn enqueue(&self, slot: u32, copy: &GpuCopy) -> Result<(), CudaError> {
        let _entered = self.gpu.enter()?;
        let (pointer, length) = (DevicePointer(copy.gpu), copy.length);
        let stream = self.stream(copy.direction);
        // SAFETY: the caller keeps the event open and both ends as they are until the copy is done.
        unsafe {
            copy.after.map_or(Ok(()), |after| stream.wait_for_raw(after.as_raw()))?;
            match copy.direction {
                GpuDirection::Out => stream.copy_out(pointer, copy.staging.as_ptr(), length)?,
                GpuDirection::In => stream.copy_in(copy.staging.as_ptr(), pointer, length)?,
                GpuDirection::Checksum => {
                    let checksums = self.checksums.as_ref();
                    let taken =
                        checksums.map(|sums| sums.take(stream, pointer, length as u32, slot));
                    taken.unwrap_or_else(|| {
                        unreachable!("the engine was told that there is none")
                    })?;
                }
            }
        }
        self.done[slot as usize].record(stream).inspect_err(|_| {
            // The copy is under way, and nothing would tell when it is done. Where this fails too,
            // the context is lost and nothing runs in it.
            let _ = stream.synchronize();
        })
    }

    fn stream(&self, direction: GpuDirection) -> &Stream {
        match direction {
            GpuDirection::Out | GpuDirection::Checksum => &self.out,
            GpuDirection::In => &self.into,
        }
    }
}

// SAFETY: a copy that was put into its stream and could not be followed has been waited for; one is
// told to be done when the event behind it has happened, and `wait` waits for both streams.
unsafe impl GpuCopies for Copies {
    unsafe fn begin(&mut self, slot: u32, copy: &GpuCopy) -> Result<(), GpuError> {
        // SAFETY: passed on to the caller.
        unsafe { self.enqueue(slot, copy) }.map_err(told)?;
        let checksum = copy.direction == GpuDirection::Checksum;
        self.places[slot as usize] = checksum.then_some(copy.staging.cast());
        Ok(())
    }

    fn is_done(&mut self, slot: u32) -> Result<bool, GpuError> {
        let done = self.done[slot as usize].has_happened().map_err(told)?;
        if done
            && let Some(place) = self.places[slot as usize].take()
            && let Some(checksums) = &self.checksums
        {
            // SAFETY: four bytes of staging memory that are this copy's until it is told to be
            // done.
            unsafe { place.write_unaligned(checksums.taken(slot)) };
        }
        Ok(done)
    }

    fn record(&mut self, event: GpuEvent) -> Result<(), GpuError> {
        // SAFETY: who gave the event keeps it open until the transfer's release, which comes after
        // this.
        unsafe { self.into.record_raw(event.as_raw()) }.map_err(told)
    }

    fn wait(&mut self) {
        // A failure is that of the whole context, in which then nothing runs.
        for stream in [&self.out, &self.into] {
            let _ = stream.synchronize();
        }
    }
}

fn told(error: CudaError) -> GpuError {
    GpuError(error.to_string())
}
