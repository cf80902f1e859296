//! The parts of requests: each a chunk's worth, taken through its stages.

use std::ops::Range;
use std::sync::Arc;

use tidelog_engine::memory::{ALIGNMENT, GpuSlice};
use tidelog_engine::path::Status;

use super::{Direction, End, Queue, Request, status_of};
use crate::cuda::{CudaError, DevicePointer, Event, Gpu, Stream};
use crate::cufile::CuFileError;
use crate::ring::Chunk;

/// Parts that may be moved in place at once, besides those that have a chunk.
const DIRECT_MAX: u32 = 64;

/// Where a part's bytes are for the SSD.
#[derive(Debug)]
pub(super) enum Place {
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
    /// It may go to the SSD.
    Ready,
    /// The SSD has it.
    Flying,
    /// Its checksum is being taken, and bytes are being copied out of its chunk.
    Draining,
    /// cuFile gave up on it without saying that the SSD did: it stays as it is for good.
    Lost,
}

/// One part.
#[derive(Debug)]
pub(super) struct Part {
    /// The request.
    owner: u32,
    /// Where in the request it begins.
    pub(super) start: u32,
    pub(super) length: u32,
    pub(super) place: Place,
    pub(super) stage: Stage,
}

impl Part {
    /// Which of the bytes in `range`, counted from the beginning of the request, it has; counted from there as well.
    fn overlap(&self, range: &Range<u32>) -> Range<u32> {
        let (start, end) = (self.start, self.start + self.length);
        range.start.clamp(start, end)..range.end.clamp(start, end)
    }
}

/// All parts: a fixed table, an event for each of its slots.
pub(super) struct Parts {
    slots: Vec<Option<Part>>,
    events: Vec<Event>,
    free: Vec<u32>,
    /// What has landed, until it is looked at.
    landed: Vec<(u32, Result<u32, Status>)>,
}

impl Parts {
    pub(super) fn new(gpu: &Arc<Gpu>, chunks: u32) -> Result<Self, CudaError> {
        let count = chunks + DIRECT_MAX;
        Ok(Self {
            slots: std::iter::repeat_with(|| None).take(count as usize).collect(),
            events: (0..count).map(|_| Event::new(gpu)).collect::<Result<_, _>>()?,
            free: (0..count).rev().collect(),
            landed: Vec::with_capacity(count as usize),
        })
    }

    /// How many there may be.
    pub(super) fn count(&self) -> u32 {
        self.slots.len() as u32
    }

    pub(super) fn is_empty(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    pub(super) fn is_any_flying(&self) -> bool {
        self.slots.iter().flatten().any(|part| matches!(part.stage, Stage::Flying | Stage::Lost))
    }

    pub(super) fn get(&self, slot: u32) -> Option<&Part> {
        self.slots[slot as usize].as_ref()
    }

    pub(super) fn get_mut(&mut self, slot: u32) -> Option<&mut Part> {
        self.slots[slot as usize].as_mut()
    }

    /// The slots of parts at this stage.
    pub(super) fn at(&self, stage: Stage) -> impl Iterator<Item = u32> + '_ {
        let slots = self.slots.iter().enumerate();
        slots
            .filter(move |(_, part)| part.as_ref().is_some_and(|part| part.stage == stage))
            .map(|(slot, _)| slot as u32)
    }
}

impl Queue {
    /// Begins parts of the requests that wait, first come first served, as long as there is room.
    pub(super) fn begin_parts(&mut self) {
        while let Some(&slot) = self.waiting.front() {
            let Some(active) = &self.requests[slot as usize] else {
                self.waiting.pop_front();
                continue;
            };
            if !active.has_more() {
                self.waiting.pop_front();
                continue;
            }
            if self.parts.free.is_empty() {
                return;
            }
            let (start, left) = (active.begun, active.request.length - active.begun);
            let length = left.min(self.ring.chunk());
            let place = match self.in_place(&active.request, start, length) {
                Some(place) => place,
                None if self.ring.is_exhausted() => {
                    // Every chunk is in doubt: nothing could ever be begun again.
                    self.fail(slot, Status::Errno(libc::ENOMEM));
                    continue;
                }
                None => match self.ring.take() {
                    Some(chunk) => Place::Chunk(chunk),
                    None => return,
                },
            };
            self.begin_part(slot, Part { owner: slot, start, length, place, stage: Stage::Ready });
        }
    }

    /// Where the SSD may reach the caller's own memory, if it may.
    fn in_place(&self, request: &Request, start: u32, length: u32) -> Option<Place> {
        let End::Device(memory) = &request.end else { return None };
        let held = memory.held();
        if start < held.start || start + length > held.end {
            return None;
        }
        let pointer = DevicePointer(memory.address()).offset(u64::from(start - held.start));
        let regions = &self.registered().regions;
        let region = regions.iter().position(|region| region.contains(pointer, length as usize))?;
        let offset = pointer.0 - regions[region].base().0;
        pointer.0.is_multiple_of(ALIGNMENT as u64).then_some(Place::Direct { region, offset })
    }

    fn begin_part(&mut self, owner: u32, mut part: Part) {
        let (Some(active), Some(slot)) =
            (&mut self.requests[owner as usize], self.parts.free.pop())
        else {
            return;
        };
        active.begun += part.length;
        active.parts += 1;
        let (end, direction) = (active.request.end, active.request.direction);
        if direction == Direction::Write || matches!(part.place, Place::Direct { .. }) {
            part.stage = Stage::Filling;
            let begun = self.fill(slot, end, direction, &part);
            self.parts.slots[slot as usize] = Some(part);
            if let Err(error) = begun {
                self.end_copy(slot, Err(error));
            }
        } else {
            self.parts.slots[slot as usize] = Some(part);
        }
    }

    /// Where a part's bytes are for the SSD.
    fn pointer_to(&self, part: &Part) -> DevicePointer {
        let registered = self.registered();
        match &part.place {
            Place::Chunk(chunk) => self.ring.pointer(registered.ring.base(), chunk),
            Place::Direct { region, offset } => registered.regions[*region].base().offset(*offset),
        }
    }

    /// Has a part made ready for the SSD: once its memory is free, what is written is copied to its chunk.
    fn fill(
        &self,
        slot: u32,
        end: End,
        direction: Direction,
        part: &Part,
    ) -> Result<(), CudaError> {
        let (stream, to) = (&self.copies_in, self.pointer_to(part));
        match end {
            End::Host(from) => {
                // SAFETY: the caller's memory is valid until the answer (`submit`), the chunk is this part's alone.
                unsafe {
                    let from = from.as_ptr().add(part.start as usize);
                    stream.copy_in(from, to, part.length as usize)
                }?;
            }
            End::Device(memory) => {
                wait_for(stream, memory)?;
                if direction == Direction::Write {
                    let held = part.overlap(&memory.held());
                    if let Place::Chunk(_) = part.place {
                        let rest = part.length as usize - held.len();
                        // SAFETY: as above. A write's memory holds the first bytes of the extent.
                        unsafe {
                            stream.copy(in_memory(memory, &held), to, held.len())?;
                            if rest > 0 {
                                stream.fill_with_zeroes(to.offset(held.len() as u64), rest)?;
                            }
                        }
                    }
                    // SAFETY: nobody writes the chunk, or the caller's memory, before the answer; the place is the part's.
                    unsafe { self.checksums.take(stream, to, held.len() as u32, slot) }?;
                }
            }
        }
        self.parts.events[slot as usize].record(stream)
    }

    /// Has a part taken from the SSD: its checksum, and its bytes out of its chunk.
    fn drain(&self, slot: u32, end: End, part: &Part) -> Result<(), CudaError> {
        let (stream, from) = (&self.copies_out, self.pointer_to(part));
        match end {
            End::Host(to) => {
                // SAFETY: as in `fill`.
                unsafe {
                    let to = to.as_ptr().add(part.start as usize);
                    stream.copy_out(from, to, part.length as usize)
                }?;
            }
            End::Device(memory) => {
                let checked = part.overlap(&(0..memory.checked()));
                // SAFETY: as in `fill`.
                unsafe { self.checksums.take(stream, from, checked.len() as u32, slot) }?;
                let held = part.overlap(&memory.held());
                if let Place::Chunk(_) = part.place
                    && !held.is_empty()
                {
                    wait_for(stream, memory)?;
                    let from = from.offset(u64::from(held.start - part.start));
                    // SAFETY: as in `fill`.
                    unsafe { stream.copy(from, in_memory(memory, &held), held.len()) }?;
                }
            }
        }
        self.parts.events[slot as usize].record(stream)
    }

    /// Moves on the parts whose event has happened.
    pub(super) fn look_at_events(&mut self) {
        for slot in 0..self.parts.slots.len() as u32 {
            let Some(part) = self.parts.get(slot) else { continue };
            let happened = match part.stage {
                Stage::Filling | Stage::Draining => self.parts.events[slot as usize].has_happened(),
                Stage::Ready | Stage::Flying | Stage::Lost => Ok(false),
            };
            match happened {
                Ok(false) => {}
                Ok(true) if part.stage == Stage::Draining => self.end_copy(slot, Ok(())),
                Ok(true) if self.is_doomed(part) => {
                    self.end_part(slot, Err(Status::Errno(libc::ECANCELED)));
                }
                Ok(true) => {
                    if let Some(part) = self.parts.get_mut(slot) {
                        part.stage = Stage::Ready;
                    }
                }
                Err(error) => self.end_copy(slot, Err(error)),
            }
        }
    }

    /// Whether the request that a part belongs to has failed already.
    fn is_doomed(&self, part: &Part) -> bool {
        self.requests[part.owner as usize].as_ref().is_some_and(|owner| owner.failure.is_some())
    }

    /// Takes in what the batches tell.
    pub(super) fn land_transfers(&mut self) -> Result<(), CuFileError> {
        let mut landed = std::mem::take(&mut self.parts.landed);
        let polled = self.batches.poll(|slot, result| landed.push((slot, result)));
        for (slot, result) in landed.drain(..) {
            self.land(slot, result);
        }
        self.parts.landed = landed;
        polled
    }

    fn land(&mut self, slot: u32, result: Result<u32, Status>) {
        let Some(part) = self.parts.get_mut(slot) else { return };
        if result == Err(Status::Errno(libc::ETIMEDOUT)) {
            // cuFile stopped waiting; nobody says that the SSD stopped writing.
            return self.lose(slot, Status::Errno(libc::ETIMEDOUT));
        }
        let result = match result {
            Ok(moved) if moved < part.length => Err(Status::Short { moved: part.start + moved }),
            other => other.map(|_| ()),
        };
        let Some(active) = &self.requests[part.owner as usize] else { return };
        let (end, direction) = (active.request.end, active.request.direction);
        if result.is_err() || direction == Direction::Write {
            return self.end_part(slot, result);
        }
        part.stage = Stage::Draining;
        let begun = self.parts.get(slot).map_or(Ok(()), |part| self.drain(slot, end, part));
        if let Err(error) = begun {
            self.end_copy(slot, Err(error));
        }
    }

    /// A part's copy ended, or could not be begun, or not be followed.
    fn end_copy(&mut self, slot: u32, result: Result<(), CudaError>) {
        let Err(error) = result else { return self.end_part(slot, Ok(())) };
        // Part of it may be under way all the same.
        let stopped = synchronized(&self.copies_in) && synchronized(&self.copies_out);
        if stopped {
            self.end_part(slot, Err(status_of(error)));
        } else {
            self.lose(slot, status_of(error));
        }
    }

    /// Ends a part of which nobody knows whether a device still uses its memory.
    pub(super) fn lose(&mut self, slot: u32, status: Status) {
        let Some(part) = self.parts.get_mut(slot) else { return };
        match part.place {
            Place::Chunk(_) => {
                let Some(part) = self.parts.slots[slot as usize].take() else { return };
                self.parts.free.push(slot);
                if let Place::Chunk(chunk) = part.place {
                    self.ring.quarantine(chunk);
                }
                self.count_part(part.owner, Err(status));
            }
            // The caller's own memory: an answer would say that it is free.
            Place::Direct { .. } => part.stage = Stage::Lost,
        }
    }

    /// Ends a part whose memory no device uses any more.
    pub(super) fn end_part(&mut self, slot: u32, result: Result<(), Status>) {
        let Some(part) = self.parts.slots[slot as usize].take() else { return };
        self.parts.free.push(slot);
        if result.is_ok() {
            self.add_checksum(&part, self.checksums.taken(slot));
        }
        if let Place::Chunk(chunk) = part.place {
            self.ring.give_back(chunk);
        }
        self.count_part(part.owner, result);
    }

    /// Adds a part's checksum to its request's: that of the whole is the sum of the parts', each moved past the bytes that
    /// follow it.
    fn add_checksum(&mut self, part: &Part, checksum: u32) {
        if let Some(active) = &mut self.requests[part.owner as usize]
            && let End::Device(memory) = active.request.end
        {
            let follow = memory.checked() - part.overlap(&(0..memory.checked())).end;
            active.checksum ^= crc32c::crc32c_combine(checksum, 0, follow as usize);
        }
    }

    fn count_part(&mut self, owner: u32, result: Result<(), Status>) {
        if let Some(active) = &mut self.requests[owner as usize] {
            active.parts -= 1;
        }
        match result {
            Ok(()) => self.settle(owner),
            Err(status) => self.fail(owner, status),
        }
    }

    /// Fails a request: nothing more of it is begun.
    fn fail(&mut self, owner: u32, status: Status) {
        if let Some(active) = &mut self.requests[owner as usize] {
            active.failure.get_or_insert(status);
        }
        self.settle(owner);
    }

    /// Ends the parts that could go to the SSD and have not, of the request with this tag or of all.
    pub(super) fn cancel_ready(&mut self, tag: Option<u64>) {
        let named = |part: &Part| {
            let owner = self.requests[part.owner as usize].as_ref();
            owner.is_some_and(|owner| tag.is_none_or(|tag| owner.request.tag == tag))
        };
        let ready: Vec<u32> = self
            .parts
            .at(Stage::Ready)
            .filter(|slot| self.parts.get(*slot).is_some_and(named))
            .collect();
        for slot in ready {
            self.end_part(slot, Err(Status::Errno(libc::ECANCELED)));
        }
    }

    /// What the SSD is to do for a part: the device, where on it, and whether to write.
    pub(super) fn target(&self, part: &Part) -> Option<(usize, u64, bool)> {
        let request = &self.requests[part.owner as usize].as_ref()?.request;
        let offset = request.offset + u64::from(part.start);
        Some((usize::from(request.device.0), offset, request.direction == Direction::Write))
    }
}

fn synchronized(stream: &Stream) -> bool {
    stream.synchronize().is_ok()
}

/// Has a stream wait until the caller's memory is free.
fn wait_for(stream: &Stream, memory: GpuSlice) -> Result<(), CudaError> {
    // SAFETY: the event stays open until the answer (`submit`).
    memory.after().map_or(Ok(()), |after| unsafe { stream.wait_for_raw(after.as_raw()) })
}

/// Where the caller's memory holds these bytes of its request.
fn in_memory(memory: GpuSlice, held: &Range<u32>) -> DevicePointer {
    DevicePointer(memory.address()).offset(u64::from(held.start - memory.held().start))
}
