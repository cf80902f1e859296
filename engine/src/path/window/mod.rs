//! A window in a GPU's memory: chunks that devices read and write themselves, and that transfers
//! pass through, each taken through copy and I/O in the one order that is right. What moves bytes
//! between chunks and devices is whoever has the window: cuFile's batches in the crate
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

mod copies;
mod parts;
mod passage;
mod path;
mod ring;

use std::collections::VecDeque;
use std::ops::Range;

use super::operation::{Action, Operation, Status};
use crate::memory::GpuSlice;
use crate::units::DeviceIndex;

pub use copies::{Copied, OpenedWindow, WindowCopies, WindowCopy, WindowDirection, WindowSize};
use parts::WindowParts;
pub use path::Windowed;
use ring::ChunkRing;

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DmaDirection {
    /// From the device.
    Read,
    /// To the device.
    Write,
}

/// One transfer that is asked for.
#[derive(Clone, Debug)]
pub struct WindowRequest {
    /// The caller's name for it.
    pub tag: u64,
    /// The device.
    pub device: DeviceIndex,
    /// Where on it: a multiple of 4 KiB.
    pub offset: u64,
    /// How much: a multiple of 4 KiB.
    pub length: u32,
    /// Which way.
    pub direction: DmaDirection,
    /// From or to where. What is written, and not in it, is zeroes.
    pub memory: GpuSlice,
}

impl WindowRequest {
    /// What an operation of a GPU's memory asks for, under the slot that keeps the operation.
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
    /// Whether all of it was moved.
    pub result: Result<(), Status>,
    /// Whether a failure was the device's, and neither the GPU's nor the window's.
    pub by_device: bool,
    /// The CRC32C of what was moved.
    pub checksum: Option<u32>,
}

/// A part of a request, as a device is to move it.
#[derive(Clone, Copy, Debug)]
pub struct PartTransfer {
    /// The part's number, to tell the window by what became of it.
    pub part: u32,
    /// The tag of its request.
    pub tag: u64,
    /// The device.
    pub device: DeviceIndex,
    /// Where on it.
    pub offset: u64,
    /// How much.
    pub length: u32,
    /// Which way.
    pub direction: DmaDirection,
    /// From or to where.
    pub place: TransferPlace,
}

/// Where a part's bytes are for its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferPlace {
    /// In this chunk of the window.
    Chunk(u32),
    /// In the caller's own memory: the region that it is registered in, and how far into it.
    Direct {
        /// The region.
        region: usize,
        /// How far into it.
        offset: u64,
    },
}

/// What became of a part that was ready.
#[derive(Clone, Copy, Debug)]
pub enum PartStatus {
    /// Its device has it.
    Taken,
    /// The device moved so many of its bytes, and is done with its memory.
    Moved(u32),
    /// It failed, and no device uses its memory.
    Failed(Status),
    /// It failed, and a device may use its memory at any time from now on.
    Lost(Status),
}

/// A request that is being worked on.
struct Active {
    request: WindowRequest,
    /// Bytes of which parts were begun.
    begun: u32,
    /// Parts that have not ended.
    parts: u32,
    /// Of the parts that have ended, where each lies: what they bring to the checksum of the whole.
    checksum: u32,
    failure: Option<Failure>,
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

    /// It was to be aborted, and no device had heard of it.
    fn cancelled() -> Self {
        Self { status: Status::Errno(libc::ECANCELED), by_device: false }
    }
}

impl Active {
    fn has_more(&self) -> bool {
        self.failure.is_none() && self.begun < self.request.length
    }

    fn is_over(&self) -> bool {
        self.parts == 0 && !self.has_more()
    }
}

/// Requests by way of one GPU's memory, driven by one thread.
pub struct Window {
    copies: Box<dyn WindowCopies>,
    /// Where the chunks begin for the GPU.
    base: u64,
    /// Memory of the caller's that devices reach.
    regions: Vec<Range<u64>>,
    requests: Vec<Option<Active>>,
    free: Vec<u32>,
    /// Requests that have parts to begin.
    waiting: VecDeque<u32>,
    ring: ChunkRing,
    parts: WindowParts,
    completions: Vec<WindowCompletion>,
}

impl Window {
    /// How many slots `copies` of a window of this size need.
    pub fn slots(size: WindowSize) -> u32 {
        WindowParts::count(size.chunks)
    }

    /// A window that begins at `base` of the GPU's memory, with room for `depth` requests of so
    /// many devices, of which none gets all chunks. `copies` has as many [`slots`](Self::slots) as
    /// it takes.
    pub fn new(
        copies: Box<dyn WindowCopies>,
        base: u64,
        size: WindowSize,
        (devices, depth): (usize, u32),
    ) -> Self {
        let depth = depth.max(1);
        Self {
            copies,
            base,
            regions: Vec::new(),
            requests: std::iter::repeat_with(|| None).take(depth as usize).collect(),
            free: (0..depth).rev().collect(),
            waiting: VecDeque::with_capacity(depth as usize),
            ring: ChunkRing::new(size, devices),
            parts: WindowParts::new(size.chunks, devices),
            completions: Vec::with_capacity(depth as usize),
        }
    }

    /// What it is made of.
    pub fn size(&self) -> WindowSize {
        self.ring.size()
    }

    /// How far into the window a chunk begins.
    pub fn offset_of(&self, chunk: u32) -> u64 {
        u64::from(chunk) * u64::from(self.size().chunk)
    }

    /// Requests that have not been answered, and completions that were not handed out.
    pub fn in_flight(&self) -> usize {
        self.requests.len() - self.free.len() + self.completions.len()
    }

    /// Whether nothing is on its way, not even what was answered.
    pub fn is_idle(&self) -> bool {
        self.in_flight() == 0 && self.parts.is_empty()
    }

    /// Whether the GPU is at work, which wakes nobody when it is done.
    pub fn is_copying(&self) -> bool {
        self.parts.is_any_copied()
    }

    /// Whether devices have parts, or may still use their memory.
    pub fn is_any_in_flight(&self) -> bool {
        self.parts.is_any_in_flight()
    }

    /// Adds memory of the caller's that devices reach: aligned transfers of it need no copy.
    ///
    /// # Safety
    /// It stays allocated, and within their reach, for as long as the window.
    pub unsafe fn add_region(&mut self, region: Range<u64>) {
        self.regions.push(region);
    }

    /// Takes a request, or gives it back when the window is full.
    ///
    /// # Safety
    /// The request lies within its device. Its memory is as long as it says, and until its answer
    /// it stays allocated; nobody writes it meanwhile, nor reads what a read writes.
    pub unsafe fn submit(&mut self, request: WindowRequest) -> Result<(), WindowRequest> {
        let Some(slot) = self.free.pop() else { return Err(request) };
        let active = Active { request, begun: 0, parts: 0, checksum: 0, failure: None };
        self.requests[slot as usize] = Some(active);
        self.waiting.push_back(slot);
        Ok(())
    }

    /// Moves everything on that the GPU can move on. What is ready for its device afterwards is to
    /// be
    /// [given](Self::ready) to it.
    pub fn advance(&mut self) {
        self.look_at_copies();
        self.begin_parts();
    }

    /// Hands out an answer, in whatever order.
    pub fn next_answer(&mut self) -> Option<WindowCompletion> {
        self.completions.pop()
    }

    /// Whether there are completions to hand out.
    pub fn has_completions(&self) -> bool {
        !self.completions.is_empty()
    }

    /// Asks that requests end soon: the one with this tag, or all. What has not reached a device
    /// does not.
    pub fn abort(&mut self, tag: Option<u64>) {
        for slot in 0..self.requests.len() as u32 {
            let Some(active) = &mut self.requests[slot as usize] else { continue };
            if tag.is_none_or(|tag| active.request.tag == tag)
                && active.begun < active.request.length
            {
                active.failure.get_or_insert(Failure::cancelled());
                self.settle(slot);
            }
        }
        self.cancel_ready(tag);
    }

    /// Waits for the GPU. Returns whether nothing of it runs any more.
    pub fn stop(&mut self) -> bool {
        self.copies.stop()
    }

    /// Completes a request that is over.
    fn settle(&mut self, slot: u32) {
        let Some(active) = &self.requests[slot as usize] else { return };
        if !active.is_over() {
            return;
        }
        let Some(active) = self.requests[slot as usize].take() else { return };
        self.free.push(slot);
        let Active { request, checksum, failure, .. } = active;
        self.completions.push(WindowCompletion {
            tag: request.tag,
            result: failure.map_or(Ok(()), |failure| Err(failure.status)),
            by_device: failure.is_some_and(|failure| failure.by_device),
            checksum: failure.is_none().then_some(checksum),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A GPU that is done at once, and copies nothing.
    struct AtOnce;

    // SAFETY: nothing is ever touched.
    unsafe impl WindowCopies for AtOnce {
        unsafe fn begin(&mut self, _: u32, _: &WindowCopy) -> Result<(), Status> {
            Ok(())
        }

        fn is_done(&mut self, _: u32) -> Result<bool, Status> {
            Ok(true)
        }

        fn checksum(&self, _: u32) -> u32 {
            0
        }

        fn stop(&mut self) -> bool {
            true
        }
    }

    #[test]
    fn what_is_cancelled_before_a_device_has_it_is_no_failure_of_the_device() {
        let size = WindowSize { chunk: 4096, chunks: 1 };
        for taken in [false, true] {
            let mut window = Window::new(Box::new(AtOnce), 0, size, (1, 2));
            // SAFETY: nothing ever touches the memory.
            let memory = unsafe { GpuSlice::new(4096, 0..8192, 8192, None) };
            let (device, direction) = (DeviceIndex(0), DmaDirection::Write);
            let request =
                WindowRequest { tag: 7, device, offset: 0, length: 8192, direction, memory };
            // SAFETY: as above.
            unsafe { window.submit(request) }.unwrap();
            window.advance();
            window.advance();
            let mut ready = Vec::new();
            window.ready(&mut ready);
            assert_eq!(ready.len(), 1, "of two parts one has the only chunk");
            if taken {
                window.tell(ready[0].part, PartStatus::Taken);
            }
            window.abort(Some(7));
            if taken {
                window.tell(ready[0].part, PartStatus::Moved(4096));
            }
            let answer = window.next_answer().unwrap();
            assert_eq!(answer.result, Err(Status::Errno(libc::ECANCELED)));
            assert!(!answer.by_device);
        }
    }

    /// A device that does not answer keeps what it has; the others go on with their part of the
    /// ring.
    #[test]
    fn a_device_that_keeps_its_chunks_leaves_some_to_the_others() {
        const REQUESTS: u64 = 8;
        let size = WindowSize { chunk: 4096, chunks: 8 };
        let mut window = Window::new(Box::new(AtOnce), 0, size, (3, 3 * REQUESTS as u32));
        let submit = |window: &mut Window, device: u8, tag| {
            let (device, direction) = (DeviceIndex(device), DmaDirection::Read);
            // SAFETY: nothing ever touches the memory.
            let memory = unsafe { GpuSlice::new(4096, 0..8192, 8192, None) };
            let request = WindowRequest { tag, device, offset: 0, length: 8192, direction, memory };
            // SAFETY: as above.
            unsafe { window.submit(request) }.unwrap();
        };
        (0..REQUESTS).for_each(|tag| submit(&mut window, 0, tag));
        (0..2).for_each(|tag| submit(&mut window, tag as u8 + 1, REQUESTS + tag));
        let (mut ready, mut answered) = (Vec::new(), Vec::new());
        for _ in 0..8 {
            window.advance();
            window.ready(&mut ready);
            for part in &ready {
                window.tell(part.part, PartStatus::Taken);
                if part.device != DeviceIndex(0) {
                    window.tell(part.part, PartStatus::Moved(part.length));
                }
            }
            answered.extend(std::iter::from_fn(|| window.next_answer()).map(|it| it.tag));
        }
        answered.sort_unstable();
        assert_eq!(answered, [REQUESTS, REQUESTS + 1]);
    }
}
