//! Runtime on a GPU, and its costs: with it a simulation has two clocks, the program's thread and
//! the GPU.

use super::Runtime;
use crate::units::{Bandwidth, Bytes, Nanos};

/// Runtime that carries a plan out on a GPU. The thread launches ahead of the GPU, and each call
/// takes it time; [`super::simulate_on_gpu`] tells where a step's time went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuRuntime {
    /// Number of ops ahead for which storages are fetched ([`Runtime::lookahead`]).
    pub lookahead: u32,
    /// Dependences of transfers.
    pub behaviour: GpuBehaviour,
    /// Costs of calls, copies and checks.
    pub costs: GpuCosts,
}

/// Dependences when a storage of a GPU leaves and comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuBehaviour {
    /// Completion of a transfer for the session.
    pub completion: CompletionRule,
    /// Dependence of an eviction's copy.
    pub eviction_after: EvictionAfter,
    /// Memory that a fetch gets.
    pub memory: GpuAllocator,
    /// Stream of checksums.
    pub checksums: ChecksumStream,
    /// True if what was written is checked again by the host before its memory goes
    /// ([`crate::residency::Config::recheck`]).
    pub recheck: bool,
    /// True if the program waits for the GPU at the end of each step, as one that reads its loss.
    pub loss_is_read: bool,
}

/// Completion of a transfer for the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionRule {
    /// Time at which the host has seen its end.
    SeenByHost,
    /// Time at which a write is in its stream; all else completes when the host has seen its end.
    WritesEnqueued,
    /// Time at which it is in its stream: whoever uses the memory next waits for its event on the
    /// GPU.
    Enqueued,
}

/// Dependence of an eviction's copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvictionAfter {
    /// All work that has been launched.
    AllLaunched,
    /// Last op that used the storage, for writes; for a comparison with a copy, all that has been
    /// launched.
    LastUseOfWrites,
    /// The last op that used the storage.
    LastUse,
}

/// Allocator of tensors' memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuAllocator {
    /// Nobody: it is there, takes no time, and nothing waits for it.
    Free,
    /// torch's caching allocator, trimmed when it keeps too much. A copy into memory of it waits
    /// for all that has been launched.
    Caching,
    /// Caching allocator in which what is given up while it is copied out serves the next fetch of
    /// its size, whose copy waits for that alone; where room is needed the oldest of it goes back,
    /// and kernels wait.
    CachingInOrder,
    /// One arena of the budget's size ([`crate::arena`]): what takes memory waits for the event of
    /// who had it, and what is free in pieces is mapped together.
    Arena,
}

/// Stream of the GPU that computes checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumStream {
    /// Nowhere: they take nothing ([`crate::cost::Machine::verify`] holds for checks).
    Free,
    /// Stream of the copy: behind the kernel that runs, and the next copy waits.
    CopyStream,
    /// Streams of their own for writes, two: before the copy, and behind the copy and all that had
    /// been launched. Of all else in the stream that copies, checks apart. All go before kernels.
    BesideWrites,
    /// Stream of its own that goes before kernels.
    OwnStream,
}

/// Bytes per second of the GPU's link, each way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyRates {
    /// Rate from the GPU.
    pub out: Bandwidth,
    /// Rate to the GPU.
    pub back: Bandwidth,
}

/// Costs of calls, copies and checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuCosts {
    /// One call of the dispatcher, on the program's thread.
    pub dispatch: Nanos,
    /// Time from a launch until the kernel can begin.
    pub launch: Nanos,
    /// Kernels that are launched and not complete, at most; 0: the thread waits for each.
    pub launches_ahead: u32,
    /// One thing that the session asks of the bridge (to evict, to fetch, to release), on the
    /// program's thread.
    pub request: Nanos,
    /// Time from an event on the GPU until a thread that was blocked goes on.
    pub wake_up: Nanos,
    /// Time of a copy in its stream beyond its bytes.
    pub copy: Nanos,
    /// The link's rates when bytes go both ways at once; `None`: those of the machine, which each
    /// has alone.
    pub both_ways: Option<CopyRates>,
    /// Bytes that a checksum covers in a second of the GPU's time.
    pub checksum: Bandwidth,
    /// A `cudaMalloc`.
    pub allocation: Nanos,
    /// A `cudaFree`, beside the wait for all that has been launched.
    pub release: Nanos,
    /// A granule of 2 MiB that is unmapped and mapped at another address.
    pub remap: Nanos,
    /// GPU memory beyond the budget that torch's allocator may take.
    pub slack: Bytes,
}

impl GpuBehaviour {
    /// The host waits for every transfer, checks what was written again, and works in torch's
    /// allocator.
    pub const HOST_WAITS: Self = Self {
        completion: CompletionRule::SeenByHost,
        eviction_after: EvictionAfter::AllLaunched,
        memory: GpuAllocator::Caching,
        checksums: ChecksumStream::CopyStream,
        recheck: true,
        loss_is_read: true,
    };

    /// Native behaviour in which writes are copied behind the last op that used the storage.
    pub const WRITES_AFTER_LAST_USE: Self =
        Self { eviction_after: EvictionAfter::LastUseOfWrites, ..Self::HOST_WAITS };

    /// Native behaviour in which writes are ordered by events: their memory may be used, behind the
    /// last look at it, once it is in its stream.
    pub const WRITES_ORDERED: Self = Self {
        completion: CompletionRule::WritesEnqueued,
        memory: GpuAllocator::CachingInOrder,
        checksums: ChecksumStream::BesideWrites,
        recheck: false,
        ..Self::WRITES_AFTER_LAST_USE
    };

    /// Writes that are ordered by events, in an arena.
    pub const WRITES_ORDERED_IN_ARENA: Self =
        Self { memory: GpuAllocator::Arena, ..Self::WRITES_ORDERED };

    /// Streams wait for events, and memory is an arena's.
    pub const EVENT_ORDERED: Self = Self {
        completion: CompletionRule::Enqueued,
        eviction_after: EvictionAfter::LastUse,
        memory: GpuAllocator::Arena,
        checksums: ChecksumStream::OwnStream,
        recheck: false,
        loss_is_read: true,
    };
}

impl GpuRuntime {
    /// A runtime that takes no time and whose thread waits for each kernel: both clocks show the
    /// same, and it simulates what `runtime` does without a GPU, its handling of transfers apart.
    pub fn in_step(runtime: Runtime) -> Self {
        let behaviour = GpuBehaviour {
            completion: CompletionRule::SeenByHost,
            eviction_after: EvictionAfter::AllLaunched,
            memory: GpuAllocator::Free,
            checksums: ChecksumStream::Free,
            recheck: false,
            loss_is_read: false,
        };
        Self { lookahead: runtime.lookahead, behaviour, costs: GpuCosts::free() }
    }
}

impl GpuCosts {
    /// Makes costs of nothing; the thread waits for each kernel.
    pub fn free() -> Self {
        Self {
            dispatch: Nanos(0),
            launch: Nanos(0),
            launches_ahead: 0,
            request: Nanos(0),
            wake_up: Nanos(0),
            copy: Nanos(0),
            both_ways: None,
            checksum: Bandwidth(u64::MAX),
            allocation: Nanos(0),
            release: Nanos(0),
            remap: Nanos(0),
            slack: Bytes(0),
        }
    }
}
