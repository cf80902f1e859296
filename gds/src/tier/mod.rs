//! Host memory as a tier for a GPU's tensors: page-locked, as large as it was asked to be, all of
//! it from the start.
//!
//! Two threads take tensors out and back, each with a stream of its own, so that both of the GPU's
//! copy engines work at once. Where the caller has it ordered by events, no thread takes tensors
//! out: they are put into streams when they are given (`ordered`). The GPU takes the CRC32C of what
//! leaves and of what has come back, and the two are compared: what host memory or the link changed
//! is an error, never other bytes. Its kernels go before others, as what waits for them is short of
//! memory. Whoever sends tensors here counts their bytes: as many as the tier has fit, in whatever
//! order they come and go.
#![allow(unsafe_code)]

mod copies;
mod host_copy;
mod line;
mod ordered;
mod space;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidelog_engine::layout::TensorId;
use tidelog_engine::memory::{GpuDestination, GpuEvent, GpuRange, GpuSource};
use tidelog_engine::schedule::{Done, Notify, TransferOutcome, Urgency};
use tidelog_engine::units::ByteCount;

use crate::cuda::{CudaError, Gpu, HostMemory};
use copies::TierCopies;
use host_copy::HostCopy;
use line::TierQueue;
pub use line::TierTicket;
use ordered::OrderedPuts;
use space::{Room, TierSpace};

/// The reason why the tier does not do something.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostTierError {
    /// The GPU has not as much page-locked memory, or lacks what the tier needs.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// A thread could not be started.
    #[error("a thread for copies could not be started: {0}")]
    Thread(String),
    /// The put has more bytes than are free.
    #[error("{wanted} do not fit into the {free} that are free in host memory")]
    NoRoom {
        /// The tensor's size.
        wanted: ByteCount,
        /// Free bytes.
        free: ByteCount,
    },
    /// No copy of that name.
    #[error("host memory has no copy of it")]
    Unknown,
    /// A copy of another size.
    #[error("host memory has a copy of {held}, not of {asked}")]
    Length {
        /// The copy's size.
        held: ByteCount,
        /// The size that was asked for.
        asked: ByteCount,
    },
    /// The tier was closed.
    #[error("the host tier is closed")]
    Closed,
}

/// Statistics of the tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostTierStats {
    /// Page-locked bytes for tensors.
    pub capacity: ByteCount,
    /// Bytes of copies, those on their way included.
    pub used: ByteCount,
    /// The most that they ever took.
    pub peak: ByteCount,
    /// Copied from the GPU.
    pub bytes_out: ByteCount,
    /// Copied to the GPU.
    pub bytes_back: ByteCount,
    /// Copies from the GPU whose time is known.
    pub out: TimedCopies,
    /// Copies to the GPU whose time is known.
    pub back: TimedCopies,
}

/// Copies of one direction that are done, and what they took by the GPU's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimedCopies {
    /// Bytes copied.
    pub bytes: u64,
    /// Time that the link was busy with them.
    pub time: Duration,
}

/// Page-locked host memory that holds tensors of one GPU.
#[derive(Debug)]
pub struct HostTier {
    // Fields drop in this order: all copies are waited for, then the memory goes. Those that take
    // tensors back may wait for those that take them out, so these end first.
    ordered: OrderedPuts,
    out: TierQueue,
    back: TierQueue,
    books: Arc<Books>,
    space: TierSpace,
    memory: Arc<HostMemory>,
}

/// The copies, and what was moved for them.
#[derive(Debug, Default)]
struct Books {
    copies: Mutex<HashMap<TensorId, Arc<HostCopy>>>,
    bytes_out: AtomicU64,
    bytes_back: AtomicU64,
    out: TimedLink,
    back: TimedLink,
}

/// Copies of one direction, as they end.
#[derive(Debug, Default)]
struct TimedLink(Mutex<TimedCopies>);

impl TimedLink {
    fn add(&self, bytes: u64, took: Option<Duration>) {
        let Some(took) = took else { return };
        let mut copies = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        copies.bytes += bytes;
        copies.time += took;
    }

    fn so_far(&self) -> TimedCopies {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Work on a tensor.
enum Work {
    Put { source: GpuSource, id: TensorId, room: Room, books: Arc<Books> },
    Get { destination: GpuDestination, held: Arc<HostCopy>, books: Arc<Books> },
    Verify { source: GpuSource, held: Arc<HostCopy> },
}

impl HostTier {
    /// Page-locks `capacity` bytes for tensors of `gpu`, and starts the threads.
    pub fn open(gpu: &Arc<Gpu>, capacity: ByteCount) -> Result<Self, HostTierError> {
        let bytes = usize::try_from(capacity.0).unwrap_or(usize::MAX);
        let memory = Arc::new(HostMemory::new(gpu, bytes)?);
        let line = |name| TierQueue::start(name, TierCopies::new(gpu, &memory)?);
        let (out, back) = (line("tidelog-tier-out")?, line("tidelog-tier-in")?);
        let (books, space) = (Arc::<Books>::default(), TierSpace::new(bytes));
        let ordered = OrderedPuts::start(gpu, &memory, &books)?;
        Ok(Self { ordered, out, back, books, space, memory })
    }

    /// Copies a tensor here, which then has its name; a copy that had it is replaced. The memory is
    /// the caller's again when the end is told.
    pub fn put(
        &self,
        id: TensorId,
        source: GpuSource,
        urgency: Urgency,
        notify: Notify,
    ) -> Result<TierTicket, HostTierError> {
        let room = self.room_for(&source)?;
        let books = Arc::clone(&self.books);
        self.out.submit(Work::Put { source, id, room, books }, urgency, notify)
    }

    /// Puts ordered by events alone: the tensor has its copy when this returns, and whoever uses
    /// the memory next waits, on the GPU, for `released`. That event is recorded already, behind
    /// all that may write the memory without anybody's having said so, and is moved behind the last
    /// look at it; the memory stays, and the event open, until it has happened. `notify` hears when
    /// the host has seen that: an error where such a kernel has written the memory meanwhile, or
    /// the GPU failed. Whoever asks for the tensor gets that error, too.
    pub fn put_ordered(
        &self,
        id: TensorId,
        source: &GpuSource,
        released: GpuEvent,
        notify: Notify,
    ) -> Result<(), HostTierError> {
        let room = self.room_for(source)?;
        let held = self.ordered.put(source, released, room, notify)?;
        let bytes = source.range().length as u64;
        self.books.bytes_out.fetch_add(bytes, Ordering::Relaxed);
        self.books.lock().insert(id, held);
        Ok(())
    }

    /// Room for a tensor. A copy that is not needed any more has its room as long as its bytes are
    /// on their way, so that is waited for.
    fn room_for(&self, source: &GpuSource) -> Result<Room, HostTierError> {
        let length = source.range().length;
        loop {
            if let Some(room) = self.space.take(length) {
                return Ok(room);
            }
            if !self.ordered.wait_for_one() {
                let free = ByteCount(self.space.free().0 as u64);
                return Err(HostTierError::NoRoom { wanted: ByteCount(length as u64), free });
            }
        }
    }

    /// Copies a tensor back, whole, and compares it with its checksums; the copy stays. The memory
    /// is the caller's again when the end is told.
    pub fn get(
        &self,
        id: TensorId,
        destination: GpuDestination,
        urgency: Urgency,
        notify: Notify,
    ) -> Result<TierTicket, HostTierError> {
        let held = self.books.find(id, destination.range().length)?;
        let books = Arc::clone(&self.books);
        self.back.submit(Work::Get { destination, held, books }, urgency, notify)
    }

    /// Compares memory of the GPU with the checksums of a tensor's copy; nothing is copied.
    pub fn verify(
        &self,
        id: TensorId,
        source: GpuSource,
        notify: Notify,
    ) -> Result<TierTicket, HostTierError> {
        let held = self.books.find(id, source.range().length)?;
        self.out.submit(Work::Verify { source, held }, Urgency::Ahead, notify)
    }

    /// Gives a copy's memory to others, once no job uses it. Whether there was one.
    pub fn delete(&self, id: TensorId) -> bool {
        self.books.lock().remove(&id).is_some()
    }

    /// Cancels what has not begun, and waits for the rest: afterwards nothing touches a caller's
    /// memory. What comes is refused.
    pub fn close(&self) {
        self.ordered.close();
        self.out.close();
        self.back.close();
    }

    /// Returns the statistics.
    pub fn stats(&self) -> HostTierStats {
        let capacity = self.memory.len() as u64;
        let (free, least) = self.space.free();
        let moved = |count: &AtomicU64| ByteCount(count.load(Ordering::Relaxed));
        HostTierStats {
            capacity: ByteCount(capacity),
            used: ByteCount(capacity - free as u64),
            peak: ByteCount(capacity - least as u64),
            bytes_out: moved(&self.books.bytes_out),
            bytes_back: moved(&self.books.bytes_back),
            out: self.books.out.so_far(),
            back: self.books.back.so_far(),
        }
    }
}

impl Books {
    fn find(&self, id: TensorId, length: usize) -> Result<Arc<HostCopy>, HostTierError> {
        let held = self.lock().get(&id).cloned().ok_or(HostTierError::Unknown)?;
        let bytes = held.room().bytes();
        if bytes == length {
            return Ok(held);
        }
        let (held, asked) = (ByteCount(bytes as u64), ByteCount(length as u64));
        Err(HostTierError::Length { held, asked })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<TensorId, Arc<HostCopy>>> {
        self.copies.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Work {
    /// The GPU's end of it.
    fn range(&self) -> GpuRange {
        match self {
            Self::Put { source, .. } | Self::Verify { source, .. } => source.range(),
            Self::Get { destination, .. } => destination.range(),
        }
    }

    fn landed(&self) -> Option<GpuEvent> {
        if let Self::Get { destination, .. } = self { destination.landed() } else { None }
    }

    /// The copies are done, took so long, and these are the checksums of the bytes on the GPU.
    fn conclude(self, sums: Vec<u32>, took: Option<Duration>) -> TransferOutcome {
        let bytes = self.range().length as u64;
        let mut matched = true;
        match self {
            Self::Put { id, room, books, .. } => {
                books.bytes_out.fetch_add(bytes, Ordering::Relaxed);
                books.out.add(bytes, took);
                books.lock().insert(id, Arc::new(HostCopy::complete(room, sums)));
            }
            Self::Get { held, books, .. } => {
                books.bytes_back.fetch_add(bytes, Ordering::Relaxed);
                books.back.add(bytes, took);
                held.compare(&sums)?;
            }
            Self::Verify { held, .. } => matched = held.sums().is_ok_and(|left| left == sums),
        }
        Ok(Done { bytes, matched, waited: Duration::ZERO, healed: 0 })
    }
}
