//! Memory of a GPU out of an arena, for a framework's tensors.
//!
//! Memory is the driver's until it is first wanted, and the arena's from then on: what is freed
//! stays mapped, with an event behind its last use in each stream. Who gets it next has its stream
//! wait for those of others. So the driver is asked for nothing once a training step has been seen,
//! and the host waits only where free memory has to be mapped elsewhere that is in use still.
//!
//! Whoever asks is declined where there is no room, and after an error of the driver's: it asks
//! another allocator then. What it has stays, and is freed here, also when the arena was
//! closed.

mod timelines;

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use rustc_hash::FxHashMap;
use serde::Serialize;
use tidelog_engine::memory::process::PerProcess;
use tidelog_gds::Gpu;
use tidelog_gds::cuda::{
    ArenaMemory, CudaError, CudaUnavailable, ForeignStream, Stream, VirtualMemory,
};
use tidelog_planner::arena::{ArenaAddress, ArenaPlacement, ArenaRange, GpuArena, Granules, Remap};

use timelines::Timelines;

/// The arenas of live memory, by its address. A child of fork has none of it.
static LIVE: PerProcess<RwLock<FxHashMap<u64, Arc<GpuMemoryArena>>>> =
    PerProcess::new(RwLock::default);

/// The arena of memory that begins at an address.
pub(crate) fn gpu_arena_at(address: u64) -> Option<Arc<GpuMemoryArena>> {
    LIVE.get_if_used()?.read().unwrap_or_else(PoisonError::into_inner).get(&address).cloned()
}

/// Returns whether a GPU has memory of an arena that is in use.
pub(crate) fn has_gpu_arena(ordinal: u8) -> bool {
    let Some(live) = LIVE.get_if_used() else { return false };
    let live = live.read().unwrap_or_else(PoisonError::into_inner);
    live.values().any(|arena| arena.gpu.ordinal() == i32::from(ordinal))
}

/// Arena of one GPU's memory.
#[derive(Debug)]
pub(crate) struct GpuMemoryArena {
    gpu: Arc<Gpu>,
    granule: u64,
    state: Mutex<State>,
}

/// Figures of an arena, as they cross the ABI.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct GpuArenaFigures {
    /// Bytes that it may have.
    capacity: u64,
    /// Bytes that it has of the driver's.
    reserved: u64,
    /// Bytes of whole granules that are allocated, and the bytes that were asked for of them.
    allocated: u64,
    requested: u64,
    /// Allocations, and those that were declined, since it was opened.
    allocations: u64,
    declined: u64,
    /// Bytes that were made since it was opened, and that were mapped elsewhere.
    made: u64,
    remapped: u64,
    /// Uses that a stream was told to wait for, and that the host waited for.
    stream_waits: u64,
    host_waits: u64,
    /// Error after which everything is declined.
    error: Option<String>,
}

#[derive(Debug)]
struct State {
    arena: GpuArena,
    memory: ArenaMemory,
    timelines: Timelines,
    /// Stream that waits for events of others, so that they are in an order.
    departures: Stream,
    /// Allocations by their places.
    live: BTreeMap<u32, Allocation>,
    places: FxHashMap<u64, ArenaAddress>,
    /// Allocations that were freed while a stream that uses them is captured: nothing may be asked
    /// of that.
    deferred: BTreeMap<u32, Allocation>,
    is_closed: bool,
    figures: GpuArenaFigures,
}

#[derive(Debug)]
struct Allocation {
    bytes: u64,
    length: Granules,
    /// Streams that use it.
    streams: Vec<ForeignStream>,
    /// Granules of its parts that have given their memory back, and the bytes that were theirs.
    parts_out: (Granules, u64),
}

impl Allocation {
    /// Returns the bytes of it that are in memory: those of whole granules, and those asked for.
    fn present(&self, granule: u64) -> (u64, u64) {
        let (granules, bytes) = self.parts_out;
        (u64::from(self.length.0 - granules.0) * granule, self.bytes - bytes)
    }
}

impl GpuMemoryArena {
    /// Opens an arena of at most this memory, and no more than the GPU has.
    pub(crate) fn open(ordinal: u8, bytes: u64) -> Result<Arc<Self>, CudaUnavailable> {
        let gpu = Gpu::open(ordinal.into())?;
        let granule = VirtualMemory::granule(&gpu)? as u64;
        let bytes = bytes.min(gpu.memory()?.1);
        let granules = u32::try_from(bytes.div_ceil(granule)).unwrap_or(u32::MAX);
        let arena = GpuArena::new(Granules(granules));
        let figures = GpuArenaFigures {
            capacity: u64::from(arena.free().0) * granule,
            ..GpuArenaFigures::default()
        };
        let state = State {
            memory: ArenaMemory::new(&gpu, arena.addresses().0 as usize)?,
            arena,
            timelines: Timelines::new(&gpu),
            departures: Stream::new(&gpu)?,
            live: BTreeMap::new(),
            places: FxHashMap::default(),
            deferred: BTreeMap::new(),
            is_closed: false,
            figures,
        };
        Ok(Arc::new(Self { gpu, granule, state: Mutex::new(state) }))
    }

    /// The size below which memory would be rounded up by more than itself.
    pub(crate) fn bytes_min(&self) -> u64 {
        self.granule / 2
    }

    /// Allocates memory, which may be written once `waits` has reached what is there now, and is
    /// used by `uses` from then on. `None`: it is declined.
    ///
    /// # Safety
    /// The streams are open, and of this GPU.
    pub(crate) unsafe fn allocate(
        self: &Arc<Self>,
        bytes: u64,
        waits: ForeignStream,
        uses: ForeignStream,
    ) -> Option<u64> {
        let mut state = self.lock();
        if state.is_closed || state.figures.error.is_some() {
            return None;
        }
        let length = Granules(u32::try_from(bytes.div_ceil(self.granule)).unwrap_or(u32::MAX));
        // SAFETY: by this function's contract.
        let Some(at) = state.or_fail(|state| unsafe { state.place(length, waits) }).flatten()
        else {
            state.figures.declined += 1;
            return None;
        };
        let address = state.memory.address(at.0 as usize).0;
        state.live.insert(
            at.0,
            Allocation { bytes, length, streams: vec![uses], parts_out: (Granules(0), 0) },
        );
        state.places.insert(address, at);
        state.figures.allocations += 1;
        state.figures.requested += bytes;
        state.figures.allocated += u64::from(length.0) * self.granule;
        LIVE.get()
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(address, Arc::clone(self));
        Some(address)
    }

    /// Notes that a stream uses an allocation, too.
    pub(crate) fn add_use(&self, address: u64, stream: ForeignStream) {
        let mut state = self.lock();
        let Some(at) = state.places.get(&address).copied() else { return };
        let Some(allocation) = state.live.get_mut(&at.0) else { return };
        if !allocation.streams.contains(&stream) {
            allocation.streams.push(stream);
        }
    }

    /// Frees an allocation. All that was put into the streams that use it counts as its last use,
    /// but for those that are `covered`: what uses it there comes before the event `behind`. Null:
    /// no stream is covered.
    ///
    /// # Safety
    /// The event is null or open, and the streams are; nobody uses the memory but what is in them.
    pub(crate) unsafe fn free(&self, address: u64, covered: &[ForeignStream], behind: *mut c_void) {
        // Nobody finds it any more before somebody else can have the address.
        LIVE.get().write().unwrap_or_else(PoisonError::into_inner).remove(&address);
        let mut state = self.lock();
        let Some(at) = state.places.remove(&address) else { return };
        let Some(mut allocation) = state.live.remove(&at.0) else { return };
        let (allocated, requested) = allocation.present(self.granule);
        state.figures.requested -= requested;
        state.figures.allocated -= allocated;
        if state.figures.error.is_some() {
            return; // it is never used again
        }
        if !behind.is_null() {
            allocation.streams.retain(|stream| !covered.contains(stream));
        }
        // SAFETY: by this function's contract.
        state.or_fail(|state| unsafe { state.take_back(at, allocation, behind) });
    }

    /// Frees the memory of a part of an allocation, which keeps its addresses. What uses it comes
    /// before the event `behind`; null: nothing does any more.
    ///
    /// # Safety
    /// The event is null or open; nobody uses the part's memory but what comes before it.
    pub(crate) unsafe fn free_part(&self, address: u64, part: Range<u64>, behind: *mut c_void) {
        let mut state = self.lock();
        let Some((at, range)) = self.part(&state, address, &part) else { return };
        if state.figures.error.is_some() {
            return; // it is never used again
        }
        // SAFETY: by this function's contract.
        let freed = state.or_fail(|state| unsafe { state.take_part_back(range, behind) });
        state.part_changed(at, freed.unwrap_or_default(), (self.granule, &part), true);
    }

    /// Allocates memory for a part of an allocation that has freed it; it may be written once
    /// `waits` has reached what is there now. Returns whether it has memory.
    ///
    /// # Safety
    /// The stream is open, and of this GPU.
    pub(crate) unsafe fn allocate_part(
        &self,
        address: u64,
        part: Range<u64>,
        waits: ForeignStream,
    ) -> bool {
        let mut state = self.lock();
        let Some((at, range)) = self.part(&state, address, &part) else { return false };
        if state.figures.error.is_some() {
            return false;
        }
        if state.is_closed {
            // All tensors come back by now, whatever their budget was, and no other allocator has
            // memory for these addresses.
            let grown = state.arena.grow_for_part(range);
            state.figures.capacity += u64::from(grown.0) * self.granule;
        }
        let before = state.arena.free();
        // SAFETY: by this function's contract.
        let placed = state.or_fail(|state| unsafe { state.place_part(range, waits) });
        let taken = Granules(before.0 - state.arena.free().0);
        state.part_changed(at, taken, (self.granule, &part), false);
        placed.unwrap_or(false)
    }

    /// Returns where a part of an allocation is; `None`: no live allocation has it.
    fn part(
        &self,
        state: &State,
        address: u64,
        part: &Range<u64>,
    ) -> Option<(ArenaAddress, ArenaRange)> {
        let at = *state.places.get(&address)?;
        let bytes = state.live.get(&at.0)?.bytes;
        let is_part = part.start < part.end && part.end <= bytes;
        // The last granule is the allocation's to its end, whatever is asked for of it.
        let is_whole = part.start.is_multiple_of(self.granule)
            && (part.end.is_multiple_of(self.granule) || part.end == bytes);
        if !is_part || !is_whole {
            return None;
        }
        let (first, end) = (part.start / self.granule, part.end.div_ceil(self.granule));
        let (begin, length) = (ArenaAddress(at.0 + first as u32), Granules((end - first) as u32));
        Some((at, ArenaRange { begin, length }))
    }

    /// Closes the arena: it declines everything from here on, and gives to the driver what is
    /// free, now and later. It waits for what uses that still.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        if !std::mem::replace(&mut state.is_closed, true) {
            state.trim();
        }
    }

    /// Gives what is free back to the driver, as nothing uses it any more: it waits for that.
    pub(crate) fn trim(&self) {
        self.lock().trim();
    }

    /// Returns what it has, and what it has done.
    pub(crate) fn figures(&self) -> GpuArenaFigures {
        let state = self.lock();
        let reserved = state.memory.made() as u64 * self.granule;
        let (made, remapped) =
            (state.figures.made * self.granule, state.figures.remapped * self.granule);
        GpuArenaFigures { reserved, made, remapped, ..state.figures.clone() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Does what the driver may refuse. After that, nothing is asked of the arena any more: what is
    /// mapped is not what it believes.
    fn or_fail<T>(&mut self, act: impl FnOnce(&mut Self) -> Result<T, CudaError>) -> Option<T> {
        let done = act(self);
        if let Err(error) = &done {
            self.figures.error.get_or_insert_with(|| error.to_string());
        }
        done.ok()
    }

    /// Finds a place, whose memory is made, mapped and in order. `None`: there is no room.
    ///
    /// # Safety
    /// The stream is open.
    unsafe fn place(
        &mut self,
        length: Granules,
        waits: ForeignStream,
    ) -> Result<Option<ArenaAddress>, CudaError> {
        // SAFETY: by this function's contract.
        if unsafe { waits.is_captured(self.memory.gpu()) }? {
            return Ok(None); // a graph has memory of its own
        }
        self.take_back_deferred()?;
        self.timelines.look()?;
        let stream = self.timelines.number_of(waits);
        let timelines = &self.timelines;
        let taken = self.arena.take(length, stream, |one| timelines.has_happened(one));
        let Ok(placement) = taken else { return Ok(None) };
        let address = placement.address;
        // SAFETY: by this function's contract.
        if unsafe { self.carry_out(placement, length, waits) }? {
            return Ok(Some(address));
        }
        self.arena.give(address, &[]);
        Ok(None)
    }

    /// Gives a part of an allocation memory again. Returns whether it has some.
    ///
    /// # Safety
    /// The stream is open.
    unsafe fn place_part(
        &mut self,
        part: ArenaRange,
        waits: ForeignStream,
    ) -> Result<bool, CudaError> {
        self.take_back_deferred()?;
        self.timelines.look()?;
        let stream = self.timelines.number_of(waits);
        let timelines = &self.timelines;
        let taken = self.arena.take_part(part, stream, |one| timelines.has_happened(one));
        let Ok(placement) = taken else { return Ok(false) };
        // SAFETY: by this function's contract.
        let has_memory = unsafe { self.carry_out(placement, part.length, waits) }?;
        if !has_memory {
            self.arena.give_part(part, &[]);
        }
        Ok(has_memory)
    }

    /// Makes, maps and orders the memory of a placement. False: the GPU has none left.
    ///
    /// # Safety
    /// The stream is open.
    unsafe fn carry_out(
        &mut self,
        placement: ArenaPlacement,
        length: Granules,
        waits: ForeignStream,
    ) -> Result<bool, CudaError> {
        let ArenaPlacement { address, waits: uses, host_waits, remaps } = placement;
        while self.memory.addresses() < self.arena.addresses().0 as usize {
            self.memory.reserve()?;
        }
        for one in host_waits {
            self.figures.host_waits += u64::from(self.timelines.wait_for(one)?);
        }
        for Remap { from, to, length } in remaps {
            let (from, to, count) = (from.0 as usize, to.0 as usize, length.0 as usize);
            // SAFETY: it is free, and what used it has happened.
            self.figures.remapped += unsafe { self.memory.remap(from, to, count) }? as u64;
        }
        let Some(made) = self.memory.make(granules(address, length))? else { return Ok(false) };
        self.figures.made += made as u64;
        for one in uses {
            if let Some(event) = self.timelines.event_behind(one) {
                // SAFETY: by this function's contract.
                unsafe { event.block(waits) }?;
                self.figures.stream_waits += 1;
            }
        }
        Ok(true)
    }

    /// Takes the memory of a part back, and returns how much that is.
    ///
    /// # Safety
    /// The event is null or open.
    unsafe fn take_part_back(
        &mut self,
        part: ArenaRange,
        behind: *mut c_void,
    ) -> Result<Granules, CudaError> {
        let mut uses = Vec::new();
        // SAFETY: by this function's contract.
        if unsafe { self.is_used_before(behind) }? {
            // SAFETY: the stream is ours.
            uses.push(unsafe { self.timelines.mark(self.departures.foreign()) }?);
        }
        Ok(self.arena.give_part(part, &uses))
    }

    /// Has the departures wait for an event. Returns whether it is one that has not happened.
    ///
    /// # Safety
    /// The event is null or open.
    unsafe fn is_used_before(&mut self, event: *mut c_void) -> Result<bool, CudaError> {
        // SAFETY: by this function's contract.
        if event.is_null() || unsafe { self.departures.has_happened_raw(event) }? {
            return Ok(false);
        }
        // SAFETY: as above.
        unsafe { self.departures.wait_for_raw(event) }?;
        Ok(true)
    }

    /// Notes that a part of an allocation has lost memory, or got some.
    fn part_changed(
        &mut self,
        at: ArenaAddress,
        by: Granules,
        (granule, part): (u64, &Range<u64>),
        is_out: bool,
    ) {
        let Some(allocation) = self.live.get_mut(&at.0) else { return };
        if by == Granules(0) {
            return;
        }
        let bytes = (u64::from(by.0) * granule).min(part.end - part.start);
        let (granules, out) = &mut allocation.parts_out;
        if is_out {
            (granules.0, *out) = (granules.0 + by.0, *out + bytes);
            self.figures.allocated -= u64::from(by.0) * granule;
            self.figures.requested -= bytes;
        } else {
            (granules.0, *out) = (granules.0 - by.0, *out - bytes);
            self.figures.allocated += u64::from(by.0) * granule;
            self.figures.requested += bytes;
        }
    }

    /// Takes an allocation back.
    ///
    /// # Safety
    /// The streams are open, and the event is null or open.
    unsafe fn take_back(
        &mut self,
        at: ArenaAddress,
        mut allocation: Allocation,
        behind: *mut c_void,
    ) -> Result<(), CudaError> {
        // SAFETY: by this function's contract.
        if unsafe { self.is_used_before(behind) }? {
            allocation.streams.push(self.departures.foreign());
        }
        self.deferred.insert(at.0, allocation);
        if self.is_closed { self.release_all_free() } else { self.take_back_deferred() }
    }

    /// Gives the arena what was freed, but for what a captured stream uses.
    fn take_back_deferred(&mut self) -> Result<(), CudaError> {
        for (at, allocation) in std::mem::take(&mut self.deferred) {
            let mut are_captured = false;
            for stream in &allocation.streams {
                // SAFETY: whoever freed the memory has the stream open, as long as there is work.
                are_captured |= unsafe { stream.is_captured(self.memory.gpu()) }?;
            }
            if are_captured {
                self.deferred.insert(at, allocation);
                continue;
            }
            let mut uses = Vec::with_capacity(allocation.streams.len());
            for stream in allocation.streams {
                // SAFETY: as above.
                uses.push(unsafe { self.timelines.mark(stream) }?);
            }
            self.arena.give(ArenaAddress(at), &uses);
        }
        Ok(())
    }

    /// Gives to the driver all that nobody has, unless it has refused something.
    fn trim(&mut self) {
        if self.figures.error.is_none() {
            self.or_fail(Self::release_all_free);
        }
    }

    /// Gives to the driver all that nobody has.
    fn release_all_free(&mut self) -> Result<(), CudaError> {
        self.take_back_deferred()?;
        self.timelines.wait_for_all()?;
        let taken: Vec<_> =
            self.arena.allocated().map(|each| granules(each.begin, each.length)).collect();
        let (end, mut free_from) = (self.memory.addresses(), 0);
        for taken in taken.into_iter().chain(std::iter::once(end..end)) {
            // SAFETY: it is free, and what used it has happened.
            unsafe { self.memory.release(free_from..taken.start) }?;
            free_from = taken.end;
        }
        Ok(())
    }
}

impl Drop for GpuMemoryArena {
    /// Waits for what uses the memory, which goes then.
    fn drop(&mut self) {
        // A failure is one for good, and nothing runs any more then.
        let _ = self.gpu.synchronize();
    }
}

fn granules(at: ArenaAddress, length: Granules) -> Range<usize> {
    at.0 as usize..(at.0 + length.0) as usize
}
