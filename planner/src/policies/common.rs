//! Parts of the published policies: reads that follow each other as late as their uses allow, and
//! whether what they leave in memory fits.

use crate::cost::Timeline;
use crate::lifetime::{Lifetimes, Period, sum_over_ops};
use crate::units::{Bandwidth, Bytes, Nanos, OpIndex};

/// Error of a policy that leaves more in memory than there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("with all out that the policy moves, op {} still needs {needed} of {capacity}", op.0)]
pub struct DoesNotFit {
    /// Op that needs the most.
    pub op: OpIndex,
    /// Bytes that it needs.
    pub needed: Bytes,
    /// Capacity of memory.
    pub capacity: Bytes,
}

/// A storage out of memory in `from..to`, unrolled.
pub(super) type Away = (u32, u32, Bytes);

/// Returns the op that needs the most memory while all of these are away, and how much.
pub(super) fn worst(lifetimes: &Lifetimes, away: impl Iterator<Item = Away>) -> (OpIndex, Bytes) {
    let out = sum_over_ops(lifetimes.memory.len() as u32, away);
    let left = lifetimes.memory.iter().zip(&out).map(|(all, out)| all.0.saturating_sub(out.0));
    let (op, bytes) = left.enumerate().max_by_key(|(_, bytes)| *bytes).unwrap_or_default();
    (OpIndex(op as u32), Bytes(bytes))
}

/// An error where that is more than `capacity`.
pub(super) fn fits((op, needed): (OpIndex, Bytes), capacity: Bytes) -> Result<(), DoesNotFit> {
    if needed > capacity { Err(DoesNotFit { op, needed, capacity }) } else { Ok(()) }
}

/// The op before which each period's read begins: it ends before its use and before the next one
/// begins. Sorts the periods by their uses, the last one first.
pub(super) fn latest_reads(
    periods: &mut [Period],
    read: Bandwidth,
    timeline: &Timeline,
) -> Vec<u32> {
    periods.sort_by_key(|period| (std::cmp::Reverse(period.to), period.storage));
    let mut free_until = u64::MAX;
    let back = periods.iter().map(|period| {
        let end = timeline.begin(period.to).0.min(free_until);
        free_until = end.saturating_sub(read.time_for(period.size).0);
        let op = timeline.last_beginning_by(Nanos(free_until), period.from, period.to);
        op.max(period.from + 1).min(period.to)
    });
    back.collect()
}
