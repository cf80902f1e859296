//! Requests that have a place: a chunk, or the caller's own memory. Each is taken through its
//! stages.

use super::ring::Chunk;
use super::{
    DmaDirection, Failure, TransferPlace, TransferStatus, Window, WindowRequest, WindowTransfer,
};
use crate::memory::{ALIGNMENT, GpuCopy};
use crate::path::Status;
use crate::path::shares::Shares;
use crate::units::DeviceIndex;

/// Requests that may be moved in place at once, besides those that have a chunk.
const DIRECT_MAX: u32 = 64;

/// Place of a request's bytes for the device.
#[derive(Debug)]
pub(super) enum WindowPlace {
    /// Chunk of the ring.
    Chunk(Chunk),
    /// Caller's own memory: the region that it is registered in, and how far into it.
    Direct { region: usize, offset: u64 },
}

/// Progress of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Bytes are being copied to its chunk, or its memory is not free yet.
    Filling,
    /// The request may go to the device.
    Ready,
    /// The device has it.
    InFlight,
    /// The request drains: its checksum is being taken, and bytes are being copied out of its
    /// chunk.
    Draining,
    /// The request is lost: nobody knows whether the device has let go of it: it stays as it is for
    /// good.
    Lost,
}

/// A request with its place.
#[derive(Debug)]
pub(super) struct WindowEntry {
    pub(super) request: WindowRequest,
    pub(super) place: WindowPlace,
    stage: Stage,
    /// True if the request was to be aborted while its chunk was being filled.
    aborted: bool,
}

impl WindowEntry {
    fn is_named(&self, tag: Option<u64>) -> bool {
        tag.is_none_or(|tag| self.request.tag == tag)
    }

    /// Returns the transfer that the device executes, or is to.
    fn transfer(&self, slot: u32) -> WindowTransfer {
        let WindowRequest { tag, device, offset, length, direction, .. } = self.request;
        let place = match &self.place {
            WindowPlace::Chunk(chunk) => TransferPlace::Chunk(chunk.number()),
            &WindowPlace::Direct { region, offset } => TransferPlace::Direct { region, offset },
        };
        WindowTransfer { slot, tag, device, offset, length, direction, place }
    }
}

/// Table of all requests, of fixed size.
pub(super) struct WindowTable {
    slots: Vec<Option<WindowEntry>>,
    free: Vec<u32>,
    shares: Shares,
}

impl WindowTable {
    /// Returns the largest number of requests.
    pub(super) fn count(chunks: u32) -> u32 {
        chunks + DIRECT_MAX
    }

    pub(super) fn new(chunks: u32, devices: usize) -> Self {
        let count = Self::count(chunks);
        Self {
            slots: std::iter::repeat_with(|| None).take(count as usize).collect(),
            free: (0..count).rev().collect(),
            shares: Shares::new(count as usize, devices),
        }
    }

    /// Returns whether a device may have one more.
    fn has_room(&self, device: DeviceIndex) -> bool {
        self.shares.left_for(device) > 0
    }

    /// Keeps one that there is room for. Returns its slot.
    fn keep(&mut self, active: WindowEntry) -> Option<u32> {
        let slot = self.free.pop()?;
        self.shares.take(active.request.device);
        self.slots[slot as usize] = Some(active);
        Some(slot)
    }

    fn take(&mut self, slot: u32) -> Option<WindowEntry> {
        let active = self.slots[slot as usize].take()?;
        self.shares.release(active.request.device);
        self.free.push(slot);
        Some(active)
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn is_any_in_flight(&self) -> bool {
        self.all().any(|(_, active)| matches!(active.stage, Stage::InFlight | Stage::Lost))
    }

    pub(super) fn is_any_copied(&self) -> bool {
        self.all().any(|(_, active)| matches!(active.stage, Stage::Filling | Stage::Draining))
    }

    fn get(&self, slot: u32) -> Option<&WindowEntry> {
        self.slots[slot as usize].as_ref()
    }

    fn get_mut(&mut self, slot: u32) -> Option<&mut WindowEntry> {
        self.slots[slot as usize].as_mut()
    }

    /// Iterates over the requests, with their slots.
    fn all(&self) -> impl Iterator<Item = (u32, &WindowEntry)> {
        (0..).zip(&self.slots).filter_map(|(slot, active)| Some((slot, active.as_ref()?)))
    }

    fn at(&self, stage: Stage) -> impl Iterator<Item = (u32, &WindowEntry)> {
        self.all().filter(move |(_, active)| active.stage == stage)
    }
}

impl Window {
    /// Puts what may go to its device into a list.
    pub fn ready(&self, list: &mut Vec<WindowTransfer>) {
        list.clear();
        list.extend(self.active.at(Stage::Ready).map(|(slot, active)| active.transfer(slot)));
    }

    /// Returns the transfer of the request in a slot, which a device executes, or is to.
    pub fn transfer(&self, slot: u32) -> Option<WindowTransfer> {
        Some(self.active.get(slot)?.transfer(slot))
    }

    /// The slots of the requests with this tag, or of all, that devices have.
    pub fn requests_on_devices(&self, tag: Option<u64>) -> impl Iterator<Item = u32> + '_ {
        let in_flight =
            self.active.at(Stage::InFlight).filter(move |(_, active)| active.is_named(tag));
        in_flight.map(|(slot, _)| slot)
    }

    /// Processes what became of a transfer.
    pub fn tell(&mut self, slot: u32, told: TransferStatus) {
        let Some(active) = self.active.get_mut(slot) else { return };
        match told {
            TransferStatus::Taken => active.stage = Stage::InFlight,
            TransferStatus::Moved(moved) if moved < active.request.length => {
                self.end(slot, Err(Failure::of_device(Status::Short { moved })));
            }
            TransferStatus::Moved(_) => self.complete(slot),
            TransferStatus::Failed(status) => self.end(slot, Err(Failure::of_device(status))),
            TransferStatus::Lost(status) => self.lose(slot, Failure::of_device(status)),
        }
    }

    /// Begins the requests that wait, as long as there is room: first come first served, but that a
    /// device which has all that it may have is passed.
    pub(super) fn begin_waiting(&mut self) {
        for _ in 0..self.waiting.len() {
            let Some(request) = self.waiting.pop_front() else { return };
            if !self.begin(request) {
                self.waiting.push_back(request);
            }
        }
    }

    /// Begins a request. Returns false where it has to wait.
    fn begin(&mut self, request: WindowRequest) -> bool {
        if !self.active.has_room(request.device) {
            return false;
        }
        let place = match self.in_place(&request) {
            Some(place) => place,
            None if self.ring.is_exhausted() => {
                // Every chunk is in doubt: nothing could ever be begun again.
                let why = self.gpu_failure.unwrap_or(Failure::of_gpu(Status::Errno(libc::ENOMEM)));
                self.answer(request, Err(why));
                return true;
            }
            None => match self.ring.take(request.device) {
                Some(chunk) => WindowPlace::Chunk(chunk),
                None => return false,
            },
        };
        let fills =
            request.direction == DmaDirection::Write || matches!(place, WindowPlace::Direct { .. });
        let stage = if fills { Stage::Filling } else { Stage::Ready };
        let active = WindowEntry { request, place, stage, aborted: false };
        let copy = fills.then(|| self.filling(&active));
        if let (Some(slot), Some(copy)) = (self.active.keep(active), copy) {
            self.begin_copy(slot, &copy);
        }
        true
    }

    /// Returns the place at which the device may reach the caller's own memory, if it may.
    fn in_place(&self, request: &WindowRequest) -> Option<WindowPlace> {
        let (first, length) = (request.memory.address(), request.length);
        if request.memory.held() != (0..length) {
            return None;
        }
        let end = first + u64::from(length);
        let region = self.regions.iter().position(|it| first >= it.start && end <= it.end)?;
        let offset = first - self.regions[region].start;
        first.is_multiple_of(ALIGNMENT as u64).then_some(WindowPlace::Direct { region, offset })
    }

    fn begin_copy(&mut self, slot: u32, copy: &GpuCopy) {
        // SAFETY: the caller's memory is valid until the answer (`submit`), and the event open; the
        // chunk is this request's alone. The request stays in its slot until the copy is done, or
        // until nobody can tell (`end_copy`).
        if let Err(error) = unsafe { self.copies.begin(slot, copy) } {
            self.end_copy(slot, Err(error.into()));
        }
    }

    /// Moves on the requests with which the GPU is done.
    pub(super) fn look_at_copies(&mut self) {
        for slot in 0..self.active.slots.len() as u32 {
            let Some(active) = self.active.get_mut(slot) else { continue };
            if !matches!(active.stage, Stage::Filling | Stage::Draining) {
                continue;
            }
            match self.copies.is_done(slot) {
                Ok(false) => {}
                Ok(true) if active.stage == Stage::Draining => self.end_copy(slot, Ok(())),
                Ok(true) if active.aborted => self.end(slot, Err(Failure::cancelled())),
                Ok(true) => active.stage = Stage::Ready,
                Err(error) => self.end_copy(slot, Err(error.into())),
            }
        }
    }

    /// A device has moved all of a request.
    fn complete(&mut self, slot: u32) {
        let Some(active) = self.active.get_mut(slot) else { return };
        if active.request.direction == DmaDirection::Write {
            return self.end(slot, Ok(()));
        }
        active.stage = Stage::Draining;
        if let Some(copy) = self.active.get(slot).map(|active| self.draining(active)) {
            self.begin_copy(slot, &copy);
        }
    }

    /// A request's copy ended, or could not be begun, or not be followed.
    fn end_copy(&mut self, slot: u32, result: Result<(), Status>) {
        let Err(status) = result else { return self.end(slot, Ok(())) };
        let failure = Failure::of_gpu(status);
        // Nobody says how much of it is still under way.
        if self.copies.stop() {
            self.end(slot, Err(failure));
        } else {
            self.lose(slot, failure);
        }
    }

    /// Ends a request of which nobody knows whether a device still uses its place.
    fn lose(&mut self, slot: u32, failure: Failure) {
        let Some(active) = self.active.get_mut(slot) else { return };
        if let WindowPlace::Direct { .. } = active.place {
            // The caller's own memory: an answer would say that it is free.
            active.stage = Stage::Lost;
            return;
        }
        let Some(WindowEntry { request, place, .. }) = self.active.take(slot) else { return };
        if let WindowPlace::Chunk(chunk) = place {
            self.ring.quarantine(request.device, chunk);
            if !failure.by_device {
                self.gpu_failure = Some(failure);
            }
        }
        self.answer(request, Err(failure));
    }

    /// Ends a request whose place no device uses any more.
    fn end(&mut self, slot: u32, result: Result<(), Failure>) {
        let Some(WindowEntry { request, place, .. }) = self.active.take(slot) else { return };
        if let WindowPlace::Chunk(chunk) = place {
            self.ring.release(request.device, chunk);
        }
        self.answer(request, result.map(|()| self.copies.checksum(slot)));
    }

    /// Ends what could go to a device and has not, of the request with this tag or of all, now or
    /// when its chunk is filled.
    pub(super) fn cancel_ready(&mut self, tag: Option<u64>) {
        for slot in 0..self.active.slots.len() as u32 {
            let named = self.active.get_mut(slot).filter(|active| active.is_named(tag));
            match named.map(|active| (active.stage, &mut active.aborted)) {
                Some((Stage::Ready, _)) => self.end(slot, Err(Failure::cancelled())),
                Some((Stage::Filling, aborted)) => *aborted = true,
                _ => {}
            }
        }
    }
}
