//! Coverage: which fault met which state. What was never exercised proves nothing.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

/// Fault of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[allow(missing_docs, reason = "the names say it")]
pub enum FaultSeen {
    ReadError,
    ReadShort,
    ReadCorrupt,
    ReadMisdirected,
    ReadSlow,
    WriteError,
    WriteShort,
    WriteLost,
    WriteMisdirected,
    WriteSlow,
    FlushError,
    RotInData,
    RotInMetadata,
    RotInIndex,
    Vanished,
    StartOverwritten,
    Stale,
    OlderInOneRun,
    Stalled,
    PowerDropped,
    PowerKept,
    PowerTorn,
    LostInData,
    LostInMetadata,
    RefusedUnread,
    LastRecordLost,
    HurtLastRecord,
    HurtLog,
    UnreadableLog,
    HurtCheckpoint,
    UnreadableCheckpoint,
    HurtSuperblock,
    UnreadableSuperblock,
    SuperblockOfAnotherDevice,
    SuperblockOfAnotherPool,
    HurtHolder,
    UnreadableHolder,
    HurtTensor,
    HurtCopy,
    UnreadableTensor,
    HurtElsewhere,
}

/// State of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Under {
    /// Rest: the caller waited for nothing; writes and reads may have been in flight.
    Rest,
    /// A read.
    Get,
    /// A batch and its commit.
    Commit,
    /// Copying a segment forward.
    Reclaim,
    /// Two commits in flight, or more; counted besides what else was under way.
    Flight,
    /// Recovery.
    Open,
}

const STRUCK: [FaultSeen; 41] = [
    FaultSeen::ReadError,
    FaultSeen::ReadShort,
    FaultSeen::ReadCorrupt,
    FaultSeen::ReadMisdirected,
    FaultSeen::ReadSlow,
    FaultSeen::WriteError,
    FaultSeen::WriteShort,
    FaultSeen::WriteLost,
    FaultSeen::WriteMisdirected,
    FaultSeen::WriteSlow,
    FaultSeen::FlushError,
    FaultSeen::RotInData,
    FaultSeen::RotInMetadata,
    FaultSeen::RotInIndex,
    FaultSeen::Vanished,
    FaultSeen::StartOverwritten,
    FaultSeen::Stale,
    FaultSeen::OlderInOneRun,
    FaultSeen::Stalled,
    FaultSeen::PowerDropped,
    FaultSeen::PowerKept,
    FaultSeen::PowerTorn,
    FaultSeen::LostInData,
    FaultSeen::LostInMetadata,
    FaultSeen::RefusedUnread,
    FaultSeen::LastRecordLost,
    FaultSeen::HurtLastRecord,
    FaultSeen::HurtLog,
    FaultSeen::UnreadableLog,
    FaultSeen::HurtCheckpoint,
    FaultSeen::UnreadableCheckpoint,
    FaultSeen::HurtSuperblock,
    FaultSeen::UnreadableSuperblock,
    FaultSeen::SuperblockOfAnotherDevice,
    FaultSeen::SuperblockOfAnotherPool,
    FaultSeen::HurtHolder,
    FaultSeen::UnreadableHolder,
    FaultSeen::HurtTensor,
    FaultSeen::HurtCopy,
    FaultSeen::UnreadableTensor,
    FaultSeen::HurtElsewhere,
];
const UNDER: [Under; 6] =
    [Under::Rest, Under::Get, Under::Commit, Under::Reclaim, Under::Flight, Under::Open];

/// Counts of each fault in each state.
#[derive(Clone, Debug, Default)]
pub struct Coverage(BTreeMap<(FaultSeen, Under), u64>);

impl Coverage {
    /// A fault struck.
    pub fn count(&mut self, struck: FaultSeen, under: Under) {
        *self.0.entry((struck, under)).or_default() += 1;
    }

    /// Adds another run's.
    pub fn add(&mut self, other: &Self) {
        for (cell, count) in &other.0 {
            *self.0.entry(*cell).or_default() += count;
        }
    }

    /// The meetings that can happen and never did.
    pub fn missing(&self) -> Vec<(FaultSeen, Under)> {
        let cells = STRUCK.iter().flat_map(|&struck| UNDER.map(|under| (struck, under)));
        cells.filter(|cell| can_meet(cell.0, cell.1) && !self.0.contains_key(cell)).collect()
    }

    /// Every meeting, for programs.
    pub fn rows(&self) -> impl Iterator<Item = (FaultSeen, Under, u64)> + '_ {
        self.0.iter().map(|(&(struck, under), &count)| (struck, under, count))
    }
}

/// Returns whether a fault can happen in a state at all.
fn can_meet(struck: FaultSeen, under: Under) -> bool {
    match struck {
        FaultSeen::RotInIndex | FaultSeen::LostInData | FaultSeen::LostInMetadata => {
            under == Under::Rest
        }
        // It takes a torn record beside what cannot be read.
        FaultSeen::RefusedUnread => false,
        // The pool is closed where a disk comes back.
        FaultSeen::StartOverwritten
        | FaultSeen::Stale
        | FaultSeen::OlderInOneRun
        | FaultSeen::LastRecordLost
        | FaultSeen::HurtLastRecord
        | FaultSeen::HurtLog
        | FaultSeen::UnreadableLog
        | FaultSeen::HurtCheckpoint
        | FaultSeen::UnreadableCheckpoint
        | FaultSeen::HurtSuperblock
        | FaultSeen::UnreadableSuperblock
        | FaultSeen::SuperblockOfAnotherDevice
        | FaultSeen::SuperblockOfAnotherPool
        | FaultSeen::HurtHolder
        | FaultSeen::UnreadableHolder
        | FaultSeen::HurtTensor
        | FaultSeen::HurtCopy
        | FaultSeen::UnreadableTensor
        | FaultSeen::HurtElsewhere => under == Under::Open,
        // Commits have ended before a disk stalls, so that nothing but the stall holds up what is
        // read.
        FaultSeen::Stalled => under == Under::Get,
        _ if under == Under::Flight => true,
        // Rot and removal come upon a pool between its calls.
        FaultSeen::RotInData | FaultSeen::RotInMetadata | FaultSeen::Vanished => {
            under == Under::Rest
        }
        FaultSeen::PowerDropped | FaultSeen::PowerKept | FaultSeen::PowerTorn => true,
        // A fault that was planned is called off before the pool is opened again.
        _ => under != Under::Open,
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:26}", "fault")?;
        for under in UNDER {
            write!(out, "{:>9}", format!("{under:?}").to_lowercase())?;
        }
        for struck in STRUCK {
            write!(out, "\n{:26}", format!("{struck:?}"))?;
            for under in UNDER {
                match self.0.get(&(struck, under)) {
                    Some(count) => write!(out, "{count:>9}")?,
                    None if can_meet(struck, under) => write!(out, "{:>9}", "NEVER")?,
                    None => write!(out, "{:>9}", "-")?,
                }
            }
        }
        Ok(())
    }
}
