//! A window in a GPU's memory: chunks that devices read and write themselves, and that requests
//! pass through, each in one chunk, taken through copy and I/O in the one order that is right. What
//! moves bytes between chunks and devices is whoever has the window: cuFile's batches in the crate
//! `tidelog-gds`, commands of a controller by peer DMA here ([`Windowed`]).
//!
//! The rules, because devices are not ordered with a GPU's streams and nothing else keeps them:
//!
//! - A write: what copies waits for the caller's event `after` (the bytes are there), copies them
//!   to a chunk, and tells when that is done. Only when the host has seen that does the device get
//!   to read the chunk. Only when the device is done is the chunk anybody else's.
//! - A read: the device fills a chunk. When the host has seen that, what copies waits for `after`
//!   (nobody uses the destination any more), copies, and tells. Only when that is done is the chunk
//!   anybody else's.
//! - The checksum of what lies in GPU memory is taken of what the device gets, or has brought:
//!   between the copy and the device, in the order of that copy. It is in the answer.
//! - Memory that is registered, and aligned, is read and written in place. The host sees `after`
//!   happen first.
//! - An answer means that no device touches the caller's memory any more. Where that cannot be
//!   known there is no answer, and the memory is leaked. A chunk in that state is never used again.

mod active;
mod passage;
mod path;
mod ring;

use std::collections::VecDeque;
use std::ops::Range;

use super::operation::{Action, Operation, Refusal, Status};
use crate::memory::{GpuCopies, GpuSlice, WindowSize};
use crate::units::DeviceIndex;

use active::WindowTable;
pub use path::Windowed;
use ring::ChunkRing;

/// Direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DmaDirection {
    /// Transfer from the device to memory.
    Read,
    /// Transfer from memory to the device.
    Write,
}

/// One transfer that is asked for.
#[derive(Clone, Copy, Debug)]
pub struct WindowRequest {
    /// The caller's name for it.
    pub tag: u64,
    /// The device.
    pub device: DeviceIndex,
    /// Offset on the device: a multiple of 4 KiB.
    pub offset: u64,
    /// Length: a multiple of 4 KiB, and no more than a chunk.
    pub length: u32,
    /// Direction of the transfer.
    pub direction: DmaDirection,
    /// Memory of the transfer. What is written, and not in it, is zeroes.
    pub memory: GpuSlice,
}

impl WindowRequest {
    /// Makes the request of an operation on a GPU's memory, under the slot that keeps the
    /// operation.
    pub fn of(slot: u32, operation: &Operation, memory: GpuSlice) -> Self {
        let direction = match operation.action {
            Action::Write { .. } => DmaDirection::Write,
            _ => DmaDirection::Read,
        };
        let Operation { device, extent, .. } = *operation;
        let (offset, length) = (extent.offset.0, extent.length.0 as u32);
        Self { tag: slot.into(), device, offset, length, direction, memory }
    }
}

/// The end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowCompletion {
    /// The request's tag.
    pub tag: u64,
    /// Result for all of its bytes.
    pub result: Result<(), Status>,
    /// True if a failure was the device's, and neither the GPU's nor the window's.
    pub by_device: bool,
    /// The CRC32C of what was moved.
    pub checksum: Option<u32>,
}

/// A request, as its device is to move it.
#[derive(Clone, Copy, Debug)]
pub struct WindowTransfer {
    /// Slot in the window, by which it is identified at its end.
    pub slot: u32,
    /// The tag of the request.
    pub tag: u64,
    /// The device.
    pub device: DeviceIndex,
    /// Offset on the device.
    pub offset: u64,
    /// Length in bytes.
    pub length: u32,
    /// Direction of the transfer.
    pub direction: DmaDirection,
    /// Place of the bytes.
    pub place: TransferPlace,
}

/// Place of a request's bytes for its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferPlace {
    /// Chunk of the window.
    Chunk(u32),
    /// Caller's own memory: the region that it is registered in, and how far into it.
    Direct {
        /// The region.
        region: usize,
        /// Offset in the region.
        offset: u64,
    },
}

/// Result of starting a transfer.
#[derive(Clone, Copy, Debug)]
pub enum TransferStatus {
    /// The device has taken the transfer.
    Taken,
    /// The device moved this number of its bytes, and is done with its memory.
    Moved(u32),
    /// The transfer failed, and no device uses its memory.
    Failed(Status),
    /// The transfer failed, and a device may use its memory at any time from now on.
    Lost(Status),
}

#[derive(Clone, Copy)]
struct Failure {
    status: Status,
    by_device: bool,
}

impl Failure {
    fn of_device(status: Status) -> Self {
        Self { status, by_device: true }
    }

    fn of_gpu(status: Status) -> Self {
        Self { status, by_device: false }
    }

    /// Returns the result of a transfer that was aborted before its device had it.
    fn cancelled() -> Self {
        Self { status: Status::Errno(libc::ECANCELED), by_device: false }
    }
}

/// Requests by way of one GPU's memory, driven by one thread.
pub struct Window {
    copies: Box<dyn GpuCopies>,
    /// Address of the chunks for the GPU.
    base: u64,
    /// Memory of the caller's that devices reach.
    regions: Vec<Range<u64>>,
    /// Requests that may be there at once.
    depth: usize,
    /// Requests that have no place yet.
    waiting: VecDeque<WindowRequest>,
    ring: ChunkRing,
    /// Failure of the GPU by which chunks were lost.
    gpu_failure: Option<Failure>,
    active: WindowTable,
    completions: Vec<WindowCompletion>,
}

impl Window {
    /// Returns the number of slots that `copies` of a window of this size need.
    pub fn slots(size: WindowSize) -> u32 {
        WindowTable::count(size.chunks)
    }

    /// Makes a window that begins at `base` of the GPU's memory, with space for `depth` requests of
    /// `devices` devices, of which none gets all chunks. `copies` has as many
    /// [`slots`](Self::slots) as it takes.
    pub fn new(
        copies: Box<dyn GpuCopies>,
        base: u64,
        size: WindowSize,
        (devices, depth): (usize, u32),
    ) -> Self {
        let depth = depth.max(1) as usize;
        Self {
            copies,
            base,
            regions: Vec::new(),
            depth,
            waiting: VecDeque::with_capacity(depth),
            ring: ChunkRing::new(size, devices),
            gpu_failure: None,
            active: WindowTable::new(size.chunks, devices),
            completions: Vec::with_capacity(depth),
        }
    }

    /// Returns the size of the window.
    pub fn size(&self) -> WindowSize {
        self.ring.size()
    }

    /// Returns the offset of a chunk in the window.
    pub fn offset_of(&self, chunk: u32) -> u64 {
        u64::from(chunk) * u64::from(self.size().chunk)
    }

    /// Requests that have not been answered, and completions that were not handed out.
    pub fn in_flight(&self) -> usize {
        self.unanswered() + self.completions.len()
    }

    fn unanswered(&self) -> usize {
        self.waiting.len() + self.active.len()
    }

    /// Returns whether nothing is on its way, not even what was answered.
    pub fn is_idle(&self) -> bool {
        self.in_flight() == 0
    }

    /// Returns whether the GPU is at work, which wakes nobody when it is done.
    pub fn is_copying(&self) -> bool {
        self.active.is_any_copied()
    }

    /// Returns whether devices have transfers, or may still use their memory.
    pub fn is_any_in_flight(&self) -> bool {
        self.active.is_any_in_flight() || self.ring.is_any_lost()
    }

    /// Adds memory of the caller's that devices reach: aligned transfers of it need no copy.
    ///
    /// # Safety
    /// It stays allocated, and within their reach, for as long as the window.
    pub unsafe fn add_region(&mut self, region: Range<u64>) {
        self.regions.push(region);
    }

    /// Takes a request.
    ///
    /// # Errors
    /// The window is full, or the request longer than a chunk of it.
    ///
    /// # Safety
    /// The request lies within its device. Its memory is as long as it says, and until its answer
    /// it stays allocated; nobody writes it meanwhile, nor reads what a read writes.
    pub unsafe fn submit(&mut self, request: WindowRequest) -> Result<(), Refusal> {
        if request.length > self.size().chunk {
            return Err(Refusal::Invalid("the extent is longer than a chunk of the GPU's window"));
        }
        if self.unanswered() >= self.depth {
            return Err(Refusal::Full);
        }
        self.waiting.push_back(request);
        Ok(())
    }

    /// Moves everything on that the GPU can move on. What is ready for its device afterwards is to
    /// be
    /// [given](Self::ready) to it.
    pub fn advance(&mut self) {
        self.look_at_copies();
        self.begin_waiting();
    }

    /// Hands out an answer, in whatever order.
    pub fn next_answer(&mut self) -> Option<WindowCompletion> {
        self.completions.pop()
    }

    /// Returns whether there are completions to hand out.
    pub fn has_completions(&self) -> bool {
        !self.completions.is_empty()
    }

    /// Asks that requests end soon: the one with this tag, or all. What has not reached a device
    /// does not.
    pub fn abort(&mut self, tag: Option<u64>) {
        for _ in 0..self.waiting.len() {
            let Some(request) = self.waiting.pop_front() else { break };
            if tag.is_none_or(|tag| request.tag == tag) {
                self.answer(request, Err(Failure::cancelled()));
            } else {
                self.waiting.push_back(request);
            }
        }
        self.cancel_ready(tag);
    }

    /// Waits for the GPU. Returns whether nothing of it runs any more.
    pub fn stop(&mut self) -> bool {
        self.copies.stop()
    }

    /// Completes a request that is over, by its checksum or by what is wrong.
    fn answer(&mut self, request: WindowRequest, result: Result<u32, Failure>) {
        self.completions.push(WindowCompletion {
            tag: request.tag,
            result: result.map(drop).map_err(|failure| failure.status),
            by_device: result.is_err_and(|failure| failure.by_device),
            checksum: result.ok(),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{CopyError, GpuCopy, GpuEvent};

    const CHUNK: u32 = 8192;

    /// A GPU that is done at once, and copies nothing.
    struct AtOnce;

    // SAFETY: nothing is ever touched.
    unsafe impl GpuCopies for AtOnce {
        unsafe fn begin(&mut self, _: u32, _: &GpuCopy) -> Result<(), CopyError> {
            Ok(())
        }

        fn is_done(&mut self, _: u32) -> Result<bool, CopyError> {
            Ok(true)
        }

        fn checksum(&self, _: u32) -> u32 {
            0
        }

        fn record(&mut self, _: GpuEvent, _: Option<GpuEvent>) -> Result<(), CopyError> {
            Ok(())
        }

        fn stop(&mut self) -> bool {
            true
        }
    }

    fn window(chunks: u32, devices: usize) -> Window {
        Window::new(Box::new(AtOnce), 0, WindowSize { chunk: CHUNK, chunks }, (devices, 24))
    }

    fn submit(window: &mut Window, device: u8, tag: u64, direction: DmaDirection, length: u32) {
        let device = DeviceIndex(device);
        // SAFETY: nothing ever touches the memory.
        let memory = unsafe { GpuSlice::new(4096, 0..length, length, None) };
        let request = WindowRequest { tag, device, offset: 0, length, direction, memory };
        // SAFETY: as above.
        unsafe { window.submit(request) }.unwrap();
    }

    fn ready(window: &Window) -> Vec<WindowTransfer> {
        let mut list = Vec::new();
        window.ready(&mut list);
        list
    }

    /// Cancels a request that waits for a chunk, whose chunk is being filled, or that is ready.
    #[test]
    fn what_is_cancelled_before_a_device_has_it_is_no_failure_of_the_device_and_never_gets_there() {
        for rounds in 0..3 {
            let mut window = window(1, 1);
            submit(&mut window, 0, 7, DmaDirection::Write, CHUNK);
            (0..rounds).for_each(|_| window.advance());
            submit(&mut window, 0, 8, DmaDirection::Write, CHUNK);
            window.abort(Some(7));
            window.advance();
            let answer = window.next_answer().unwrap();
            assert_eq!((answer.tag, answer.result), (7, Err(Status::Errno(libc::ECANCELED))));
            assert!(!answer.by_device && !window.has_completions());
            (0..2).for_each(|_| window.advance());
            let tags: Vec<u64> = ready(&window).iter().map(|transfer| transfer.tag).collect();
            assert_eq!(tags, [8], "after {rounds} rounds");
        }
    }

    #[test]
    fn what_a_device_has_ends_as_it_ends_there() {
        let mut window = window(1, 1);
        submit(&mut window, 0, 7, DmaDirection::Write, CHUNK);
        (0..2).for_each(|_| window.advance());
        let slot = ready(&window)[0].slot;
        window.tell(slot, TransferStatus::Taken);
        window.abort(None);
        assert!(!window.has_completions());
        window.tell(slot, TransferStatus::Moved(CHUNK));
        assert_eq!(window.next_answer().unwrap().result, Ok(()));
    }

    #[test]
    fn what_is_longer_than_a_chunk_is_refused() {
        let mut window = window(4, 1);
        // SAFETY: nothing ever touches the memory.
        let memory = unsafe { GpuSlice::new(4096, 0..CHUNK + 1, CHUNK + 1, None) };
        let (device, direction, length) = (DeviceIndex(0), DmaDirection::Write, CHUNK + 4096);
        let request = WindowRequest { tag: 1, device, offset: 0, length, direction, memory };
        // SAFETY: as above.
        let refused = unsafe { window.submit(request) };
        assert!(matches!(refused, Err(Refusal::Invalid(why)) if why.contains("than a chunk")));
        assert!(window.is_idle());
    }

    /// A device that does not answer keeps what it has; the others go on with their part of the
    /// ring.
    #[test]
    fn a_device_that_keeps_its_chunks_leaves_some_to_the_others() {
        const REQUESTS: u64 = 16;
        let mut window = window(8, 3);
        (0..REQUESTS).for_each(|tag| submit(&mut window, 0, tag, DmaDirection::Read, CHUNK));
        for tag in 0..2 {
            submit(&mut window, tag as u8 + 1, REQUESTS + tag, DmaDirection::Read, CHUNK);
        }
        let mut answered = Vec::new();
        for _ in 0..8 {
            window.advance();
            for transfer in ready(&window) {
                window.tell(transfer.slot, TransferStatus::Taken);
                if transfer.device != DeviceIndex(0) {
                    window.tell(transfer.slot, TransferStatus::Moved(transfer.length));
                }
            }
            answered.extend(std::iter::from_fn(|| window.next_answer()).map(|it| it.tag));
        }
        answered.sort_unstable();
        assert_eq!(answered, [REQUESTS, REQUESTS + 1]);
    }
}
