//! The caller's memory: where it is, what the library asks of it, and what the caller passes.
#![allow(unsafe_code)]

mod arena;
mod extents;
mod gpu_arena;
mod mapped;
pub(crate) mod small;

use std::ffi::c_void;

use tidelog_engine::memory::{
    Destination, ForeignDestination, ForeignSource, GpuDestination, GpuEvent, GpuSource, Source,
};
use tidelog_planner::residency::CopyKind;

use crate::error::Failure;

pub(crate) use arena::{Arena, arena, arena_of_this_process};
pub(crate) use gpu_arena::{GpuMemoryArena, gpu_arena_at, has_gpu_arena};
pub(crate) use mapped::mapped_storages;

/// The most bytes of all storages together. No machine has as many, and sums cannot overflow.
pub(crate) const BYTES_MAX: u64 = 1 << 60;

/// Place of storages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryPlace {
    /// Host memory.
    Host,
    /// Memory of the GPU with this number of CUDA's.
    Gpu(u8),
}

/// Action on a storage's memory that only the caller can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryAction {
    /// Lend the memory: its bytes are about to be copied out.
    Evict,
    /// Free the memory: its bytes are elsewhere.
    Release,
    /// Allocate memory and pass it: its bytes are about to be copied in.
    Allocate,
    /// Take the memory back: the storage is resident, and no transfer touches it.
    Settle {
        /// True if there is a copy of the same bytes.
        clean: bool,
    },
    /// Take a part of it back: no transfer touches that part.
    SettlePart {
        /// State of all of the storage's parts then.
        state: PartState,
    },
}

/// State of a storage's parts: the last of these that holds for one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PartState {
    /// Bytes in memory.
    Resident,
    /// Bytes in memory, of which a copy exists.
    Copied,
    /// Bytes in memory, and on the way out.
    Leaving,
    /// Absent from memory, or its bytes are not yet there.
    Away,
}

/// Bytes of a request: a storage, or a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RequestedBytes {
    /// The caller's number of the storage.
    pub(crate) storage: u32,
    /// Start of the part; `None`: all of it.
    pub(crate) part: Option<u64>,
}

/// A request to the caller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryRequest {
    /// Counted from 1: the answer names it.
    pub(crate) sequence: u64,
    pub(crate) action: MemoryAction,
    pub(crate) of: RequestedBytes,
    /// Number of bytes.
    pub(crate) size: u64,
}

/// The caller's answer to one request: where the memory is, or that there is none.
pub(crate) struct CallerMemory {
    sequence: u64,
    address: u64,
    after: Option<GpuEvent>,
    landed: Option<GpuEvent>,
    last_use: Option<GpuEvent>,
}

impl CallerMemory {
    /// The memory for request `sequence`, which may be touched once `after` has happened, if that
    /// is not null.
    ///
    /// # Safety
    /// `address` is 0, or that of as many bytes as that request says, on the host or on the GPU, as
    /// the session was opened. They stay alive, and for an allocation untouched by anybody else
    /// after `after`, until the request's storage is released or settled. `after` is null or an
    /// event of CUDA that is open as long.
    pub(crate) unsafe fn new(sequence: u64, address: u64, after: *mut c_void) -> Self {
        let after = GpuEvent::from_raw(after);
        Self { sequence, address, after, landed: None, last_use: None }
    }

    /// Adds an event behind the bytes of an allocation that may be settled while they are in
    /// flight. For what is copied out: it may be released, or settled, once it is in its stream,
    /// and this event is then behind the last look at it; it is recorded before, behind all that
    /// has been launched. Null: once they are there.
    ///
    /// # Safety
    /// As for `new`, and nobody else touches the memory, whatever becomes of the storage, before
    /// the event has happened. It is null or open as long as `after`, and may be the same.
    pub(crate) unsafe fn with_landed(self, landed: *mut c_void) -> Self {
        Self { landed: GpuEvent::from_raw(landed), ..self }
    }

    /// Adds an event behind the last known use of the bytes of memory that is copied out, which may
    /// come before `after`. Null: it is not.
    ///
    /// # Safety
    /// It is null or open as long as `after`.
    pub(crate) unsafe fn with_last_use(self, last_use: *mut c_void) -> Self {
        Self { last_use: GpuEvent::from_raw(last_use), ..self }
    }

    /// The request that this completes.
    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Returns whether the caller declined.
    pub(crate) fn is_none(&self) -> bool {
        self.address == 0
    }

    /// Returns the event behind which it may be used again, where the caller has that ordered on
    /// the GPU. It is recorded, behind all that has been launched.
    pub(crate) fn released(&self) -> Option<GpuEvent> {
        self.landed
    }

    /// Refuses an event where there is no GPU that it could be of.
    pub(crate) fn check(&self, place: MemoryPlace) -> Result<(), Failure> {
        let events = [("after", self.after), ("landed", self.landed), ("last_use", self.last_use)];
        match events.into_iter().find(|(_, event)| event.is_some()) {
            Some((name, _)) if place == MemoryPlace::Host => Err(Failure::invalid(format!(
                "{name} is an event, and the session was opened without a GPU: pass null"
            ))),
            _ => Ok(()),
        }
    }

    /// The memory as what a write reads, or a check. The session asks for the storage's release or
    /// settlement only after its completion.
    pub(crate) fn source(
        &self,
        place: MemoryPlace,
        request: &MemoryRequest,
        copy: CopyKind,
    ) -> Source {
        match place {
            MemoryPlace::Host => {
                let size = self.size(request);
                // SAFETY: by the contract of `new` the request's bytes live and stay as they are
                // until release or settlement, and that comes after the transfer's end.
                unsafe { ForeignSource::new(self.address as *const u8, size) }.into()
            }
            MemoryPlace::Gpu(_) => Source::Gpu(self.gpu_source(request, copy)),
        }
    }

    /// Returns the source in a GPU's memory. What is written is checked once more before its memory
    /// goes, so it waits for those uses alone that are known; a check finds the others.
    pub(crate) fn gpu_source(&self, request: &MemoryRequest, copy: CopyKind) -> GpuSource {
        let after = match copy {
            CopyKind::Write => self.last_use.or(self.after),
            CopyKind::Verify | CopyKind::Recheck => self.after,
        };
        // SAFETY: as in `source`, and the events are open as long.
        unsafe { GpuSource::new(self.address, self.size(request), after) }
    }

    /// The memory as what a read fills.
    pub(crate) fn destination(&self, place: MemoryPlace, request: &MemoryRequest) -> Destination {
        match place {
            MemoryPlace::Host => {
                let size = self.size(request);
                // SAFETY: as for `source`; and nobody else touches the bytes of an allocation
                // meanwhile.
                unsafe { ForeignDestination::new(self.address as *mut u8, size) }.into()
            }
            MemoryPlace::Gpu(_) => Destination::Gpu(self.gpu_destination(request)),
        }
    }

    /// Returns the destination in a GPU's memory.
    pub(crate) fn gpu_destination(&self, request: &MemoryRequest) -> GpuDestination {
        // SAFETY: as in `destination`, and the events are open as long; before `landed` has
        // happened nobody else touches the bytes, as the contract of `with_landed` says.
        unsafe { GpuDestination::new(self.address, self.size(request), self.after, self.landed) }
    }

    /// Returns the size of a request; the caller's promise holds for this size only.
    fn size(&self, request: &MemoryRequest) -> usize {
        assert_eq!(self.sequence, request.sequence, "memory of one request serves another");
        assert!(self.address != 0 || request.size == 0, "no memory was lent");
        request.size as usize
    }
}
