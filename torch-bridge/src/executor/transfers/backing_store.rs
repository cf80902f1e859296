//! Store of evicted storages: in the pool, or in host memory in front of it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tidelog_engine::layout::{LifetimeClass, TensorId, TensorKey};
use tidelog_engine::memory::Source;
use tidelog_engine::path::Endurance;
use tidelog_engine::pool::{Pool, PoolStats, PutOptions};
use tidelog_engine::schedule::{CompletionQueue, Ticket, TransferOutcome, Urgency};
use tidelog_engine::units::ByteCount;
use tidelog_gds::{Gpu, HostTier, HostTierStats, tier};
use tidelog_planner::migration::Target;
use tidelog_planner::residency::{CopyKind, StorageId, TransferId};
use tidelog_planner::trace::StorageKind;

use crate::error::Failure;
use crate::executor::storages::Label;
use crate::executor::transfer::{StorageTransfer, TransferDirection};
use crate::memory::{CallerMemory, MemoryPlace, MemoryRequest};
use crate::pool::SharedPool;

/// The pool and the host memory of one session.
pub(in crate::executor) struct BackingStore {
    pool: SharedPool,
    /// Host memory in front of the pool, where storages are a GPU's.
    tier: Option<HostTier>,
    /// Completions of transfers of both.
    completions: CompletionQueue,
    place: MemoryPlace,
    /// High half of the ids under which this session's storages lie in the log.
    log_prefix: u64,
}

/// A transfer that ended.
pub(in crate::executor) struct TransferEnd {
    pub(in crate::executor) transfer: TransferId,
    pub(in crate::executor) outcome: TransferOutcome,
    /// Time at which the device had ended it, which is before anybody looked.
    pub(in crate::executor) at: Instant,
}

/// The handle of a transfer that has begun.
pub(super) enum TransferTicket {
    Pool(Ticket),
    HostTier(tier::TierTicket),
    /// Completion of a transfer that is ordered on the GPU: it is complete for the host.
    Ordered,
}

impl TransferTicket {
    /// Asks the transfer to stop. It still completes.
    pub(super) fn cancel(&self) {
        match self {
            Self::Pool(ticket) => ticket.cancel(),
            Self::HostTier(ticket) => ticket.cancel(),
            Self::Ordered => {}
        }
    }

    /// An op waits for the transfer now.
    pub(super) fn expedite(&self) {
        match self {
            Self::Pool(ticket) => ticket.expedite(),
            Self::HostTier(ticket) => ticket.expedite(),
            Self::Ordered => {}
        }
    }

    /// Waits for the end of a transfer of the pool. The tier waits for its own when it is closed.
    pub(super) fn wait(&self) {
        if let Self::Pool(ticket) = self {
            let _ = ticket.wait();
        }
    }
}

impl BackingStore {
    pub(in crate::executor) fn new(
        pool: SharedPool,
        tier: Option<HostTier>,
        place: MemoryPlace,
    ) -> Self {
        let completions = CompletionQueue::timed();
        Self { pool, tier, completions, place, log_prefix: unique_prefix() }
    }

    pub(in crate::executor) fn place(&self) -> MemoryPlace {
        self.place
    }

    /// The address of a number that is not 0 while completions wait.
    pub(in crate::executor) fn attention_address(&self) -> *const u32 {
        self.completions.attention_address()
    }

    /// The oldest completion that nobody has seen.
    pub(in crate::executor) fn completion(&self) -> Option<TransferEnd> {
        let at = self.completions.oldest_end()?;
        let (tag, outcome) = self.completions.try_pop()?;
        Some(TransferEnd { transfer: TransferId(tag), outcome, at })
    }

    /// Waits for a completion at most `timeout`.
    pub(in crate::executor) fn wait_completion(&self, timeout: Duration) -> Option<TransferEnd> {
        let ended = self.completions.oldest_end();
        let (tag, outcome) = self.completions.wait_pop(timeout)?;
        let at = ended.unwrap_or_else(Instant::now);
        Some(TransferEnd { transfer: TransferId(tag), outcome, at })
    }

    pub(in crate::executor) fn pool_stats(&self) -> Option<PoolStats> {
        self.pool.stats().ok()
    }

    /// Bytes that went to the pool's devices since it was opened: with padding, metadata,
    /// checkpoints and what reclamation copies.
    pub(in crate::executor) fn bytes_written(&self) -> u64 {
        let stats = self.pool.device_stats().unwrap_or_default();
        stats.iter().map(|device| device.bytes_written).sum()
    }

    pub(in crate::executor) fn endurance(&self) -> Option<Vec<Result<Endurance, String>>> {
        self.pool.endurance().ok()
    }

    /// Returns the notice on a pool that was made for this session.
    pub(in crate::executor) fn made(&self) -> Option<&str> {
        self.pool.made.as_deref()
    }

    pub(in crate::executor) fn tier_stats(&self) -> Option<HostTierStats> {
        self.tier.as_ref().map(HostTier::stats)
    }

    pub(in crate::executor) fn release(&self) -> Result<(), Failure> {
        self.pool.release()
    }

    /// Waits for the transfers of the host memory.
    pub(super) fn close_tier(&self) {
        if let Some(tier) = &self.tier {
            tier.close();
        }
    }

    /// Begins a transfer, or returns why that cannot be.
    pub(super) fn begin(
        &self,
        id: TransferId,
        transfer: &StorageTransfer,
        request: &MemoryRequest,
        memory: &CallerMemory,
    ) -> Result<TransferTicket, String> {
        match (transfer.target, &self.tier) {
            (Target::Ssd, _) => {
                self.begin_in_pool(id, transfer, request, memory).map(TransferTicket::Pool)
            }
            (Target::Host, Some(tier)) => self.begin_in_tier(tier, id, transfer, request, memory),
            (Target::Host, None) => Err("the session has no host memory".to_owned()),
        }
    }

    fn begin_in_pool(
        &self,
        id: TransferId,
        transfer: &StorageTransfer,
        request: &MemoryRequest,
        memory: &CallerMemory,
    ) -> Result<Ticket, String> {
        let (key, urgency) = (self.log_key(&transfer.label), transfer.urgency);
        let notify = Some((self.completions.clone(), id.0));
        let source = |copy| memory.source(self.place, request, copy);
        match transfer.direction {
            TransferDirection::Out(copy @ CopyKind::Write) => {
                let lifetime = lifetime_of(transfer.kind);
                let options = PutOptions { lifetime, urgency, notify, copies: None };
                self.pool.put(key, source(copy), options).map_err(|error| error.to_string())
            }
            TransferDirection::Out(copy @ (CopyKind::Verify | CopyKind::Recheck)) => {
                self.pool.verify(key, source(copy), notify).map_err(|error| error.to_string())
            }
            TransferDirection::In => {
                let destination = memory.destination(self.place, request);
                let begun = self.pool.get(key, 0..request.size, destination, urgency, notify);
                begun.map_err(|error| error.to_string())
            }
        }
    }

    fn begin_in_tier(
        &self,
        tier: &HostTier,
        id: TransferId,
        transfer: &StorageTransfer,
        request: &MemoryRequest,
        memory: &CallerMemory,
    ) -> Result<TransferTicket, String> {
        let (tensor, urgency) = (self.log_id(transfer.label.storage), transfer.urgency);
        let notify = (self.completions.clone(), id.0);
        let begun = match transfer.direction {
            TransferDirection::Out(copy @ CopyKind::Write) => {
                let source = memory.gpu_source(request, copy);
                if let Some(released) = memory.released() {
                    let begun = tier.put_ordered(tensor, &source, released, notify);
                    return begun
                        .map(|()| TransferTicket::Ordered)
                        .map_err(|error| error.to_string());
                }
                tier.put(tensor, source, urgency, notify)
            }
            TransferDirection::Out(copy @ (CopyKind::Verify | CopyKind::Recheck)) => {
                tier.verify(tensor, memory.gpu_source(request, copy), notify)
            }
            TransferDirection::In => {
                tier.get(tensor, memory.gpu_destination(request), urgency, notify)
            }
        };
        begun.map(TransferTicket::HostTier).map_err(|error| error.to_string())
    }

    /// A copy is not needed any more.
    pub(super) fn forget(&self, storage: StorageId, target: Target) {
        let id = self.log_id(storage);
        // Unknown where a first write never finished: nothing to forget.
        match target {
            Target::Ssd => drop(self.pool.delete(id)),
            Target::Host => drop(self.tier.as_ref().map(|tier| tier.delete(id))),
        }
    }

    /// Begins to write a storage's bytes to where its copies lie in the log, though it stays.
    pub(in crate::executor) fn put_copy(
        &self,
        label: &Label,
        kind: StorageKind,
        memory: Source,
    ) -> Result<Ticket, Failure> {
        let lifetime = lifetime_of(kind);
        let options = PutOptions { lifetime, urgency: Urgency::Urgent, ..PutOptions::default() };
        Ok(self.pool.put(self.log_key(label), memory, options)?)
    }

    /// Deletes a copy that is not needed.
    pub(in crate::executor) fn forget_copy(&self, storage: StorageId) {
        self.forget(storage, Target::Ssd);
    }

    /// The storage's id in the log, with the name that errors call it by.
    fn log_key(&self, label: &Label) -> TensorKey {
        TensorKey { id: self.log_id(label.storage), name: Some(label.text().into()) }
    }

    pub(in crate::executor) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The id under which a storage lies in the log, or in host memory.
    pub(in crate::executor) fn log_id(&self, storage: StorageId) -> TensorId {
        TensorId(u128::from(self.log_prefix) << 64 | u128::from(storage.0))
    }
}

/// Page-locks the host memory that was asked for.
pub(in crate::executor) fn open_tier(
    place: MemoryPlace,
    host_memory: u64,
) -> Result<Option<HostTier>, Failure> {
    let wanted = ByteCount(host_memory);
    if wanted.0 == 0 {
        return Ok(None);
    }
    let MemoryPlace::Gpu(number) = place else {
        return Err(Failure::invalid(format!(
            "host_memory of {wanted} is for the tensors of a GPU; the tensors of this session are \
             in host memory already: leave host_memory out, and raise the budget"
        )));
    };
    let gpu = Gpu::open(number.into()).map_err(Failure::pool)?;
    let tier = HostTier::open(&gpu, wanted).map_err(|error| {
        Failure::invalid(format!(
            "host_memory of {wanted} cannot be had as page-locked memory: {error}; ask for less"
        ))
    })?;
    Ok(Some(tier))
}

/// Tells sessions of one process on one pool apart; scratch tensors never outlive the process.
fn unique_prefix() -> u64 {
    static SESSIONS: AtomicU64 = AtomicU64::new(1);
    SESSIONS.fetch_add(1, Ordering::Relaxed)
}

/// Returns the lifetime class of a kind. Tensors that die together share segments: activations
/// within a step, gradients and what the optimizer rewrites once a step, and the rest, which may
/// stay for the whole run.
fn lifetime_of(kind: StorageKind) -> LifetimeClass {
    match kind {
        StorageKind::Activation => LifetimeClass::Transient,
        StorageKind::Gradient | StorageKind::Parameter | StorageKind::OptimizerState => {
            LifetimeClass::Step
        }
        StorageKind::Other => LifetimeClass::Persistent,
    }
}
