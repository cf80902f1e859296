//! One eviction or fetch, from the residency machine's decision to its end.

use std::time::Instant;

use tidelog_engine::schedule::Urgency;
use tidelog_planner::migration::Target;
use tidelog_planner::residency::CopyKind;
use tidelog_planner::trace::StorageKind;

use super::storages::Label;
use crate::memory::RequestedBytes;

/// Direction of a transfer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum TransferDirection {
    Out(CopyKind),
    In,
}

impl TransferDirection {
    /// Returns whether memory is compared with the copy that is there, and nothing is written.
    pub(super) fn compares(self) -> bool {
        matches!(self, Self::Out(CopyKind::Verify | CopyKind::Recheck))
    }
}

/// A transfer. It knows its storage as that was when the machine decided: the storage may be gone
/// when the transfer ends.
pub(super) struct StorageTransfer {
    pub(super) label: Label,
    /// Bytes that the caller is asked for.
    pub(super) of: RequestedBytes,
    pub(super) kind: StorageKind,
    pub(super) bytes: u64,
    pub(super) direction: TransferDirection,
    /// Tier of the other end.
    pub(super) target: Target,
    pub(super) urgency: Urgency,
    /// Time at which the machine decided.
    pub(super) asked: Instant,
    /// Time at which the caller had passed the memory and a device could begin; `None` before.
    pub(super) submitted: Option<Instant>,
    /// True if the storage transfer is complete for the host once it is submitted, and for the GPU
    /// in its order.
    pub(super) is_ordered: bool,
}

impl StorageTransfer {
    /// A transfer that the machine asks for now.
    pub(super) fn new(
        (label, of): (Label, RequestedBytes),
        kind: StorageKind,
        bytes: u64,
        (direction, target): (TransferDirection, Target),
        urgency: Urgency,
    ) -> Self {
        let asked = Instant::now();
        let (submitted, is_ordered) = (None, false);
        Self { label, of, kind, bytes, direction, target, urgency, asked, submitted, is_ordered }
    }
}
