//! The parts of requests: each a chunk's worth, taken through its stages.

use std::ops::Range;

use super::copies::WindowCopy;
use super::passage::in_memory;
use super::ring::Chunk;
use super::{
    Active, DmaDirection, Failure, PartStatus, PartTransfer, TransferPlace, Window, WindowRequest,
};
use crate::memory::ALIGNMENT;
use crate::path::Status;
use crate::path::shares::Shares;
use crate::units::DeviceIndex;

/// Parts that may be moved in place at once, besides those that have a chunk.
const DIRECT_MAX: u32 = 64;

/// Where a part's bytes are for the device.
#[derive(Debug)]
pub(super) enum PartMemory {
    /// In a chunk of the ring.
    Chunk(Chunk),
    /// In the caller's own memory: the region that it is registered in, and how far into it.
    Direct { region: usize, offset: u64 },
}

/// How far a part has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Bytes are being copied to its chunk, or its memory is not free yet.
    Filling,
    /// It may go to the device.
    Ready,
    /// The device has it.
    InFlight,
    /// Its checksum is being taken, and bytes are being copied out of its chunk.
    Draining,
    /// Nobody knows whether the device has let go of it: it stays as it is for good.
    Lost,
}

/// One part.
#[derive(Debug)]
pub(super) struct WindowPart {
    /// The request, and its device.
    owner: u32,
    device: DeviceIndex,
    /// Where in the request it begins.
    pub(super) start: u32,
    pub(super) length: u32,
    pub(super) place: PartMemory,
    stage: Stage,
}

impl WindowPart {
    /// Which of the bytes in `range`, counted from the beginning of the request, it has; counted
    /// from there as well.
    pub(super) fn overlap(&self, range: &Range<u32>) -> Range<u32> {
        let (start, end) = (self.start, self.start + self.length);
        range.start.clamp(start, end)..range.end.clamp(start, end)
    }
}

/// All parts: a fixed table.
pub(super) struct WindowParts {
    slots: Vec<Option<WindowPart>>,
    free: Vec<u32>,
    shares: Shares,
}

impl WindowParts {
    /// How many there may be.
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

    /// Whether a device may have one more.
    fn has_room(&self, device: DeviceIndex) -> bool {
        self.shares.left_for(device) > 0
    }

    /// Keeps a part that there is room for. Returns its slot.
    fn keep(&mut self, part: WindowPart) -> Option<u32> {
        let slot = self.free.pop()?;
        self.shares.take(part.device);
        self.slots[slot as usize] = Some(part);
        Some(slot)
    }

    fn take(&mut self, slot: u32) -> Option<WindowPart> {
        let part = self.slots[slot as usize].take()?;
        self.shares.release(part.device);
        self.free.push(slot);
        Some(part)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    pub(super) fn is_any_in_flight(&self) -> bool {
        self.slots.iter().flatten().any(|part| matches!(part.stage, Stage::InFlight | Stage::Lost))
    }

    pub(super) fn is_any_copied(&self) -> bool {
        let copied = |part: &WindowPart| matches!(part.stage, Stage::Filling | Stage::Draining);
        self.slots.iter().flatten().any(copied)
    }

    fn get(&self, slot: u32) -> Option<&WindowPart> {
        self.slots[slot as usize].as_ref()
    }

    fn get_mut(&mut self, slot: u32) -> Option<&mut WindowPart> {
        self.slots[slot as usize].as_mut()
    }

    /// Parts that may go to their devices, and their slots.
    fn ready(&self) -> impl Iterator<Item = (u32, &WindowPart)> {
        let slots = (0..).zip(&self.slots);
        let parts = slots.filter_map(|(slot, part)| Some((slot, part.as_ref()?)));
        parts.filter(|(_, part)| part.stage == Stage::Ready)
    }
}

impl Window {
    /// Puts what may go to its device into a list.
    pub fn ready(&self, list: &mut Vec<PartTransfer>) {
        list.clear();
        let ready = self.parts.ready().filter_map(|(slot, part)| self.transfer_of(slot, part));
        list.extend(ready);
    }

    /// What a device is doing with a part, or is to do.
    pub fn transfer(&self, part: u32) -> Option<PartTransfer> {
        self.transfer_of(part, self.parts.get(part)?)
    }

    /// The parts of a request that devices have, or of all.
    pub fn parts_on_devices(&self, tag: Option<u64>) -> impl Iterator<Item = u32> + '_ {
        (0..).zip(&self.parts.slots).filter_map(move |(slot, part)| {
            let part = part.as_ref().filter(|part| part.stage == Stage::InFlight)?;
            self.is_named(part, tag).then_some(slot)
        })
    }

    /// Processes what became of a part.
    pub fn tell(&mut self, slot: u32, told: PartStatus) {
        let Some(part) = self.parts.get_mut(slot) else { return };
        match told {
            PartStatus::Taken => part.stage = Stage::InFlight,
            PartStatus::Moved(moved) if moved < part.length => {
                let status = Status::Short { moved: part.start + moved };
                self.end_part(slot, Err(Failure::of_device(status)));
            }
            PartStatus::Moved(_) => self.complete(slot),
            PartStatus::Failed(status) => self.end_part(slot, Err(Failure::of_device(status))),
            PartStatus::Lost(status) => self.lose(slot, Failure::of_device(status)),
        }
    }

    fn transfer_of(&self, slot: u32, part: &WindowPart) -> Option<PartTransfer> {
        let request = &self.requests[part.owner as usize].as_ref()?.request;
        Some(PartTransfer {
            part: slot,
            tag: request.tag,
            device: request.device,
            offset: request.offset + u64::from(part.start),
            length: part.length,
            direction: request.direction,
            place: match &part.place {
                PartMemory::Chunk(chunk) => TransferPlace::Chunk(chunk.number()),
                &PartMemory::Direct { region, offset } => TransferPlace::Direct { region, offset },
            },
        })
    }

    /// Begins parts of the requests that wait, as long as there is room: first come first served,
    /// but that a device which has all that it may have is passed.
    pub(super) fn begin_parts(&mut self) {
        for _ in 0..self.waiting.len() {
            let Some(slot) = self.waiting.pop_front() else { return };
            while self.begin_next(slot) {}
            let active = self.requests[slot as usize].as_ref();
            if active.is_some_and(Active::has_more) {
                self.waiting.push_back(slot);
            }
        }
    }

    /// Begins the next part of a request. Returns whether it could.
    fn begin_next(&mut self, owner: u32) -> bool {
        let Some(active) = self.requests[owner as usize].as_ref().filter(|it| it.has_more()) else {
            return false;
        };
        let device = active.request.device;
        if !self.parts.has_room(device) {
            return false;
        }
        let (start, left) = (active.begun, active.request.length - active.begun);
        let length = left.min(self.size().chunk);
        let place = match self.in_place(&active.request, start, length) {
            Some(place) => place,
            None if self.ring.is_exhausted() => {
                // Every chunk is in doubt: nothing could ever be begun again.
                self.fail(owner, Failure::of_gpu(Status::Errno(libc::ENOMEM)));
                return false;
            }
            None => match self.ring.take(device) {
                Some(chunk) => PartMemory::Chunk(chunk),
                None => return false,
            },
        };
        self.begin_part(WindowPart { owner, device, start, length, place, stage: Stage::Ready });
        true
    }

    /// Where the device may reach the caller's own memory, if it may.
    fn in_place(&self, request: &WindowRequest, start: u32, length: u32) -> Option<PartMemory> {
        let memory = request.memory;
        let held = memory.held();
        if start < held.start || start + length > held.end {
            return None;
        }
        let first = in_memory(memory, start);
        let holds =
            |region: &Range<u64>| first >= region.start && first + u64::from(length) <= region.end;
        let region = self.regions.iter().position(holds)?;
        let offset = first - self.regions[region].start;
        first.is_multiple_of(ALIGNMENT as u64).then_some(PartMemory::Direct { region, offset })
    }

    fn begin_part(&mut self, mut part: WindowPart) {
        let Some(active) = &mut self.requests[part.owner as usize] else { return };
        active.begun += part.length;
        active.parts += 1;
        let WindowRequest { memory, direction, .. } = active.request;
        let fills =
            direction == DmaDirection::Write || matches!(part.place, PartMemory::Direct { .. });
        let filling = fills.then(|| self.filling(memory, direction, &part));
        if filling.is_some() {
            part.stage = Stage::Filling;
        }
        if let (Some(slot), Some(copy)) = (self.parts.keep(part), filling) {
            self.begin_copy(slot, &copy);
        }
    }

    fn begin_copy(&mut self, slot: u32, copy: &WindowCopy) {
        // SAFETY: the caller's memory is valid until the answer (`submit`), and the event open; the
        // chunk is this part's alone. The part stays in its slot until the copy is done, or until
        // nobody can tell (`end_copy`).
        if let Err(status) = unsafe { self.copies.begin(slot, copy) } {
            self.end_copy(slot, Err(status));
        }
    }

    /// Moves on the parts with which the GPU is done.
    pub(super) fn look_at_copies(&mut self) {
        for slot in 0..self.parts.slots.len() as u32 {
            let Some(part) = self.parts.get(slot) else { continue };
            let done = match part.stage {
                Stage::Filling | Stage::Draining => self.copies.is_done(slot),
                Stage::Ready | Stage::InFlight | Stage::Lost => Ok(false),
            };
            match done {
                Ok(false) => {}
                Ok(true) if part.stage == Stage::Draining => self.end_copy(slot, Ok(())),
                Ok(true) if self.is_doomed(part) => {
                    self.end_part(slot, Err(Failure::cancelled()));
                }
                Ok(true) => {
                    if let Some(part) = self.parts.get_mut(slot) {
                        part.stage = Stage::Ready;
                    }
                }
                Err(status) => self.end_copy(slot, Err(status)),
            }
        }
    }

    /// Whether the request that a part belongs to has failed already.
    fn is_doomed(&self, part: &WindowPart) -> bool {
        self.requests[part.owner as usize].as_ref().is_some_and(|owner| owner.failure.is_some())
    }

    /// A device has moved all of a part.
    fn complete(&mut self, slot: u32) {
        let Some(part) = self.parts.get(slot) else { return };
        let Some(active) = &self.requests[part.owner as usize] else { return };
        if active.request.direction == DmaDirection::Write {
            return self.end_part(slot, Ok(()));
        }
        let copy = self.draining(active.request.memory, part);
        if let Some(part) = self.parts.get_mut(slot) {
            part.stage = Stage::Draining;
        }
        self.begin_copy(slot, &copy);
    }

    /// A part's copy ended, or could not be begun, or not be followed.
    fn end_copy(&mut self, slot: u32, result: Result<(), Status>) {
        let Err(status) = result else { return self.end_part(slot, Ok(())) };
        let failure = Failure::of_gpu(status);
        // Part of it may be under way all the same.
        if self.copies.stop() {
            self.end_part(slot, Err(failure));
        } else {
            self.lose(slot, failure);
        }
    }

    /// Ends a part of which nobody knows whether a device still uses its memory.
    fn lose(&mut self, slot: u32, failure: Failure) {
        let Some(part) = self.parts.get_mut(slot) else { return };
        match part.place {
            PartMemory::Chunk(_) => {
                let Some(part) = self.parts.take(slot) else { return };
                if let PartMemory::Chunk(chunk) = part.place {
                    self.ring.quarantine(part.device, chunk);
                }
                self.count_part(part.owner, Err(failure));
            }
            // The caller's own memory: an answer would say that it is free.
            PartMemory::Direct { .. } => part.stage = Stage::Lost,
        }
    }

    /// Ends a part whose memory no device uses any more.
    fn end_part(&mut self, slot: u32, result: Result<(), Failure>) {
        let Some(part) = self.parts.take(slot) else { return };
        if result.is_ok() {
            self.add_checksum(&part, self.copies.checksum(slot));
        }
        if let PartMemory::Chunk(chunk) = part.place {
            self.ring.release(part.device, chunk);
        }
        self.count_part(part.owner, result);
    }

    /// Adds a part's checksum to its request's: that of the whole is the sum of the parts', each
    /// moved past the bytes that follow it.
    fn add_checksum(&mut self, part: &WindowPart, checksum: u32) {
        if let Some(active) = &mut self.requests[part.owner as usize] {
            let memory = active.request.memory;
            let follow = memory.checked() - part.overlap(&(0..memory.checked())).end;
            active.checksum ^= crc32c::crc32c_combine(checksum, 0, follow as usize);
        }
    }

    fn count_part(&mut self, owner: u32, result: Result<(), Failure>) {
        if let Some(active) = &mut self.requests[owner as usize] {
            active.parts -= 1;
        }
        match result {
            Ok(()) => self.settle(owner),
            Err(failure) => self.fail(owner, failure),
        }
    }

    /// Fails a request: nothing more of it is begun.
    fn fail(&mut self, owner: u32, failure: Failure) {
        if let Some(active) = &mut self.requests[owner as usize] {
            active.failure.get_or_insert(failure);
        }
        self.settle(owner);
    }

    /// Ends the parts that could go to a device and have not, of the request with this tag or of
    /// all.
    pub(super) fn cancel_ready(&mut self, tag: Option<u64>) {
        let named = self.parts.ready().filter(|(_, part)| self.is_named(part, tag));
        let slots: Vec<u32> = named.map(|(slot, _)| slot).collect();
        for slot in slots {
            self.end_part(slot, Err(Failure::cancelled()));
        }
    }

    /// Whether a part is of the request with this tag, or of any.
    fn is_named(&self, part: &WindowPart, tag: Option<u64>) -> bool {
        let owner = self.requests[part.owner as usize].as_ref();
        owner.is_some_and(|owner| tag.is_none_or(|tag| owner.request.tag == tag))
    }
}
