//! The parts of requests: each a chunk's worth, taken through its stages.

use std::sync::Arc;

use tidelog_engine::memory::ALIGNMENT;
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
    /// Bytes are being copied to its chunk.
    Filling,
    /// The caller's memory is not free yet.
    Waiting,
    /// It may go to the SSD.
    Ready,
    /// The SSD has it.
    Flying,
    /// Bytes are being copied out of its chunk.
    Draining,
    /// cuFile gave up on it without saying that the SSD did: it stays as it is for good.
    Lost,
}

/// One part.
#[derive(Debug)]
pub(super) struct Part {
    /// The request, unless that was answered already.
    owner: Option<u32>,
    /// Where in the request it begins.
    pub(super) start: u32,
    pub(super) length: u32,
    pub(super) place: Place,
    pub(super) stage: Stage,
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
            self.begin_part(
                slot,
                Part { owner: Some(slot), start, length, place, stage: Stage::Ready },
            );
        }
    }

    /// Where the SSD may reach the caller's own memory, if it may.
    fn in_place(&self, request: &Request, start: u32, length: u32) -> Option<Place> {
        let End::Device { pointer, .. } = &request.end else { return None };
        let pointer = pointer.offset(u64::from(start));
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
        let (end, direction) = (active.request.end.clone(), active.request.direction);
        match (&part.place, direction) {
            (Place::Direct { .. }, _) => part.stage = Stage::Waiting,
            (Place::Chunk(_), Direction::Read) => {}
            (Place::Chunk(chunk), Direction::Write) => {
                let to = self.ring.pointer(self.registered().ring.base(), chunk);
                part.stage = Stage::Filling;
                if let Err(error) = self.fill(slot, &end, to, &part) {
                    self.parts.slots[slot as usize] = Some(part);
                    return self.end_copy(slot, Err(error));
                }
            }
        }
        self.parts.slots[slot as usize] = Some(part);
    }

    /// Has a part's bytes copied to its chunk.
    fn fill(&self, slot: u32, end: &End, to: DevicePointer, part: &Part) -> Result<(), CudaError> {
        let (stream, length) = (&self.copies_in, part.length as usize);
        match end {
            End::Host(from) => {
                // SAFETY: the caller's memory is valid until the answer (`submit`), the chunk is this part's alone.
                unsafe { stream.copy_in(from.as_ptr().add(part.start as usize), to, length) }?;
            }
            End::Device { pointer, after, .. } => {
                after.as_ref().map_or(Ok(()), |after| stream.wait_for(after))?;
                // SAFETY: as above.
                unsafe { stream.copy(pointer.offset(u64::from(part.start)), to, length) }?;
            }
        }
        self.parts.events[slot as usize].record(stream)
    }

    /// Has a part's bytes copied out of its chunk.
    fn drain(
        &self,
        slot: u32,
        end: &End,
        from: DevicePointer,
        part: &Part,
    ) -> Result<(), CudaError> {
        let (stream, length) = (&self.copies_out, part.length as usize);
        match end {
            End::Host(to) => {
                // SAFETY: as in `fill`.
                unsafe { stream.copy_out(from, to.as_ptr().add(part.start as usize), length) }?;
            }
            End::Device { pointer, after, .. } => {
                after.as_ref().map_or(Ok(()), |after| stream.wait_for(after))?;
                // SAFETY: as in `fill`.
                unsafe { stream.copy(from, pointer.offset(u64::from(part.start)), length) }?;
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
                Stage::Waiting => {
                    self.after_of(part).map_or(Ok(true), |after| after.has_happened())
                }
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

    fn after_of(&self, part: &Part) -> Option<Arc<Event>> {
        match &self.requests[part.owner? as usize].as_ref()?.request.end {
            End::Device { after, .. } => after.clone(),
            End::Host(_) => None,
        }
    }

    /// Whether the request that a part belongs to has failed already.
    fn is_doomed(&self, part: &Part) -> bool {
        let owner = part.owner.and_then(|owner| self.requests[owner as usize].as_ref());
        owner.is_some_and(|owner| owner.failure.is_some())
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
        part.stage = Stage::Ready;
        let Some(owner) = part.owner else { return self.end_part(slot, result) };
        let Some(active) = &self.requests[owner as usize] else { return };
        let read = active.request.direction == Direction::Read;
        let end = active.request.end.clone();
        let Some(part) = self.parts.get(slot) else { return };
        match (&part.place, result) {
            (Place::Chunk(chunk), Ok(())) if read => {
                let from = self.ring.pointer(self.registered().ring.base(), chunk);
                let begun = self.drain(slot, &end, from, part);
                let Some(part) = self.parts.get_mut(slot) else { return };
                part.stage = Stage::Draining;
                match begun {
                    Err(error) => self.end_copy(slot, Err(error)),
                    // The caller's event tells it of the copy: the request need not wait, only the chunk must.
                    Ok(()) if matches!(end, End::Device { landed: Some(_), .. }) => {
                        part.owner = None;
                        self.count_part(owner, Ok(()));
                    }
                    Ok(()) => {}
                }
            }
            (_, result) => self.end_part(slot, result),
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
                part.owner.into_iter().for_each(|owner| self.count_part(owner, Err(status)));
            }
            // The caller's own memory: an answer would say that it is free.
            Place::Direct { .. } => part.stage = Stage::Lost,
        }
    }

    /// Ends a part whose memory no device uses any more.
    pub(super) fn end_part(&mut self, slot: u32, result: Result<(), Status>) {
        let Some(part) = self.parts.slots[slot as usize].take() else { return };
        self.parts.free.push(slot);
        if let Place::Chunk(chunk) = part.place {
            self.ring.give_back(chunk);
        }
        part.owner.into_iter().for_each(|owner| self.count_part(owner, result));
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
            let owner = part.owner.and_then(|owner| self.requests[owner as usize].as_ref());
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
        let request = &self.requests[part.owner? as usize].as_ref()?.request;
        let offset = request.offset + u64::from(part.start);
        Some((usize::from(request.device.0), offset, request.direction == Direction::Write))
    }
}

fn synchronized(stream: &Stream) -> bool {
    stream.synchronize().is_ok()
}
