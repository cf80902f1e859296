//! A GPU that is only memory: a device's, mapped here, which the processor copies within and takes
//! checksums of. It is as late as a GPU is: nothing that it is asked to do has happened before
//! somebody has looked once.
//!
//! It counts what passes between that memory and the host's, and shows whether anything did.
#![allow(unsafe_code)]

use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tidelog_engine::library::ErrorLibrary;
use tidelog_engine::memory::peer::PeerMemory;
use tidelog_engine::memory::{
    ChunkPlace, CopyError, DmaPool, GpuBytes, GpuCopies, GpuCopy, GpuDestination, GpuDirection,
    GpuError, GpuEvent, GpuMemory, GpuSource, OpenedCopies, OpenedWindow, WindowSize, checksum,
};
use tidelog_engine::path::backend::Window;

/// Address of the memory for the GPU, so that nobody takes an address of it for one of the host's.
const BASE: u64 = 0x7000_0000_0000;
/// Byte with which the host's staging memory is filled.
const POISON: u8 = 0xA5;

/// The GPU. Its memory is `memory` up to `tensors`, and behind that, the window.
#[derive(Debug)]
pub struct StandIn {
    memory: Arc<Mapping>,
    tensors: usize,
    /// Bytes that went between its memory and the host's.
    to_host: Arc<AtomicU64>,
    staging: Mutex<Option<DmaPool>>,
}

/// Memory of a device, by offsets.
#[derive(Debug)]
struct Mapping(Box<dyn PeerMemory>);

impl Mapping {
    /// Returns the address of a mapped range.
    fn at(&self, offset: usize, length: usize) -> *mut u8 {
        let (base, size) = self.0.span();
        let end = offset.checked_add(length);
        assert!(end.is_some_and(|end| end <= size), "{length} bytes at {offset} of {size}");
        base.as_ptr().wrapping_add(offset)
    }

    fn of_gpu(&self, address: u64, length: usize) -> *mut u8 {
        self.at((address - BASE) as usize, length)
    }
}

/// Reads mapped memory that [`Mapping::at`] has found.
fn read(at: *const u8, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    // SAFETY: mapped, as `at` was found by `Mapping::at`; the vector is new. Whoever asks knows
    // that no device writes it.
    unsafe { std::ptr::copy_nonoverlapping(at, bytes.as_mut_ptr(), length) };
    bytes
}

impl StandIn {
    /// A GPU of this memory, of which the first `tensors` bytes, whole huge pages, are for tensors.
    pub fn new(memory: Box<dyn PeerMemory>, tensors: usize) -> Self {
        let memory = Arc::new(Mapping(memory));
        Self { memory, tensors, to_host: Arc::default(), staging: Mutex::default() }
    }

    /// Memory for a put: these bytes of it.
    pub fn source(&self, offset: usize, length: usize) -> GpuSource {
        self.memory.at(offset, length);
        // SAFETY: the mapping outlives the pool, which the GPU is given to; tests leave the bytes
        // until the ticket ends.
        unsafe { GpuSource::new(BASE + offset as u64, length, None) }
    }

    /// Memory for a get: these bytes of it.
    pub fn destination(&self, offset: usize, length: usize) -> GpuDestination {
        self.memory.at(offset, length);
        // SAFETY: as in `source`.
        unsafe { GpuDestination::new(BASE + offset as u64, length, None, None) }
    }

    /// Returns a range of bytes; no transfer is under way.
    pub fn bytes(&self, offset: usize, length: usize) -> Vec<u8> {
        read(self.memory.at(offset, length), length)
    }

    /// Makes these bytes of it something; no transfer is under way.
    pub fn fill(&self, offset: usize, length: usize, byte: u8) {
        // SAFETY: mapped (`Mapping::at`), and no transfer's.
        unsafe { std::ptr::write_bytes(self.memory.at(offset, length), byte, length) };
    }

    /// Returns the number of bytes of tensors that went between its memory and the host's since it
    /// was opened.
    pub fn to_host(&self) -> u64 {
        self.to_host.load(Ordering::Relaxed)
    }

    /// Poisons all staging memory of the pool that was opened with it. Nothing is under way there.
    pub fn poison(&self) {
        self.with_staging(|base, length| {
            // SAFETY: the pool is kept, so the memory is mapped; its buffers are idle, and their
            // contents mean nothing.
            unsafe { std::ptr::write_bytes(base, POISON, length) };
        });
    }

    /// Returns the number of bytes of staging memory that differ from the poison. Nothing is under
    /// way there.
    pub fn touched(&self) -> usize {
        let mut touched = 0;
        self.with_staging(|base, length| {
            let mut bytes = vec![0_u8; length];
            // SAFETY: as in `poison`.
            unsafe { std::ptr::copy_nonoverlapping(base, bytes.as_mut_ptr(), length) };
            touched = bytes.iter().filter(|&&byte| byte != POISON).count();
        });
        touched
    }

    fn copies(&self, slots: u32) -> ChunkCopies {
        ChunkCopies {
            memory: Arc::clone(&self.memory),
            to_host: Arc::clone(&self.to_host),
            begun: vec![None; slots as usize],
            sums: vec![0; slots as usize],
        }
    }

    fn with_staging(&self, body: impl FnOnce(*mut u8, usize)) {
        let staging = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pool) = &*staging {
            let (base, length) = pool.span();
            body(base, length);
        }
    }
}

impl GpuMemory for StandIn {
    fn name(&self) -> String {
        format!("a stand-in for a GPU, {}", self.memory.0.describe())
    }

    fn open(&self, slots: u32, staging: &DmaPool) -> Result<OpenedCopies, GpuError> {
        *self.staging.lock().unwrap_or_else(PoisonError::into_inner) = Some(staging.clone());
        let (copies, why_unlocked) =
            (Box::new(self.copies(slots)), Some("the processor copies".into()));
        Ok(OpenedCopies { copies, why_no_checksums: None, why_unlocked, lock: None })
    }

    fn open_window(&self, size: WindowSize) -> Result<OpenedWindow, GpuError> {
        let (offset, length) = (self.tensors, size.bytes());
        if offset + length > self.memory.0.span().1 {
            let left = self.memory.0.span().1 - offset;
            return Err(GpuError(format!("a window of {length} bytes in {left} bytes of memory")));
        }
        let copies = self.copies(Window::slots(size));
        let memory = Part { memory: Arc::clone(&self.memory), offset, length };
        let base = BASE + offset as u64;
        Ok(OpenedWindow { memory: Box::new(memory), base, copies: Box::new(copies) })
    }
}

/// Part of the memory that controllers reach: the window.
struct Part {
    memory: Arc<Mapping>,
    offset: usize,
    length: usize,
}

// SAFETY: a part of memory that is mapped as long as this keeps it, which only the window uses; it
// has no gaps, as the whole has none.
unsafe impl PeerMemory for Part {
    fn span(&self) -> (NonNull<u8>, usize) {
        let start = NonNull::new(self.memory.at(self.offset, self.length));
        (start.unwrap_or(NonNull::dangling()), self.length)
    }

    fn bus_address(&self) -> Option<u64> {
        Some(self.memory.0.bus_address()? + self.offset as u64)
    }

    fn describe(&self) -> String {
        format!("{} bytes at {} of {}", self.length, self.offset, self.memory.0.describe())
    }
}

impl fmt::Debug for Part {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.describe())
    }
}

/// Copies between the memory and chunks, in staging memory or in the window.
struct ChunkCopies {
    memory: Arc<Mapping>,
    to_host: Arc<AtomicU64>,
    begun: Vec<Option<GpuCopy>>,
    sums: Vec<u32>,
}

// SAFETY: the addresses are those of the engine's memory, which whoever began a copy keeps for it,
// whatever thread drives it.
unsafe impl Send for ChunkCopies {}

impl ChunkCopies {
    fn carry_out(&mut self, slot: usize, copy: GpuCopy) {
        let GpuCopy { direction, memory, chunk, zeroes, checked } = copy;
        let length = memory.length;
        if length > 0 {
            let tensor = self.memory.of_gpu(memory.address, length);
            let chunk = match chunk {
                ChunkPlace::Host(place) => {
                    self.to_host.fetch_add(length as u64, Ordering::Relaxed);
                    place.as_ptr()
                }
                ChunkPlace::Gpu(address) => self.memory.of_gpu(address, length),
            };
            let (from, to) = match direction {
                GpuDirection::Fill => (tensor, chunk),
                GpuDirection::Drain => (chunk, tensor),
            };
            // SAFETY: the GPU's ends are mapped (`Mapping::at`), another is the engine's, and all
            // are the copy's until it is done (`GpuCopies::begin`).
            unsafe { std::ptr::copy(from, to, length) };
        }
        let bytes = |GpuBytes { address, length }| {
            let length = length as usize;
            (self.memory.of_gpu(address, length), length)
        };
        if zeroes.length > 0 {
            let (at, length) = bytes(zeroes);
            // SAFETY: as above.
            unsafe { std::ptr::write_bytes(at, 0, length) };
        }
        if checked.length > 0 {
            let (at, length) = bytes(checked);
            self.sums[slot] = checksum(&read(at, length));
        }
    }

    fn finish(&mut self, slot: usize) -> bool {
        let begun = self.begun[slot].take();
        if let Some(copy) = begun {
            self.carry_out(slot, copy);
        }
        begun.is_some()
    }
}

/// Library whose only error is that it knows no events.
static STAND_IN: ErrorLibrary =
    ErrorLibrary { name: "the stand-in", describe: |_| "it has no events" };

fn no_events() -> CopyError {
    CopyError { library: &STAND_IN, what: "wait", code: libc::EOPNOTSUPP }
}

// SAFETY: a copy touches memory only while it is carried out, which is before it is told to be
// done; the processor's own writes are seen by devices that are told of them afterwards.
unsafe impl GpuCopies for ChunkCopies {
    unsafe fn begin(&mut self, slot: u32, copy: &GpuCopy) -> Result<(), CopyError> {
        if copy.memory.after.is_some() {
            return Err(no_events());
        }
        self.begun[slot as usize] = Some(*copy);
        Ok(())
    }

    fn is_done(&mut self, slot: u32) -> Result<bool, CopyError> {
        Ok(!self.finish(slot as usize))
    }

    fn checksum(&self, slot: u32) -> u32 {
        self.sums[slot as usize]
    }

    fn record(&mut self, _: GpuEvent, _: Option<GpuEvent>) -> Result<(), CopyError> {
        Err(no_events())
    }

    fn stop(&mut self) -> bool {
        for slot in 0..self.begun.len() {
            self.finish(slot);
        }
        true
    }
}
