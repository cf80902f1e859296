//! Which fault met which state. What was never exercised proves nothing.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

/// What went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Struck {
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
}

/// What was under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Under {
    /// Nothing that the caller waited for; writes and reads may have been in flight.
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

const STRUCK: [Struck; 22] = [
    Struck::ReadError,
    Struck::ReadShort,
    Struck::ReadCorrupt,
    Struck::ReadMisdirected,
    Struck::ReadSlow,
    Struck::WriteError,
    Struck::WriteShort,
    Struck::WriteLost,
    Struck::WriteMisdirected,
    Struck::WriteSlow,
    Struck::FlushError,
    Struck::RotInData,
    Struck::RotInMetadata,
    Struck::RotInIndex,
    Struck::Vanished,
    Struck::StartOverwritten,
    Struck::Stale,
    Struck::OlderInOneRun,
    Struck::Stalled,
    Struck::PowerDropped,
    Struck::PowerKept,
    Struck::PowerTorn,
];
const UNDER: [Under; 6] =
    [Under::Rest, Under::Get, Under::Commit, Under::Reclaim, Under::Flight, Under::Open];

/// How often each fault met each state.
#[derive(Clone, Debug, Default)]
pub struct Coverage(BTreeMap<(Struck, Under), u64>);

impl Coverage {
    /// A fault struck.
    pub fn count(&mut self, struck: Struck, under: Under) {
        *self.0.entry((struck, under)).or_default() += 1;
    }

    /// Adds another run's.
    pub fn add(&mut self, other: &Self) {
        for (cell, count) in &other.0 {
            *self.0.entry(*cell).or_default() += count;
        }
    }

    /// The meetings that can happen and never did.
    pub fn missing(&self) -> Vec<(Struck, Under)> {
        let cells = STRUCK.iter().flat_map(|&struck| UNDER.map(|under| (struck, under)));
        cells.filter(|cell| can_meet(cell.0, cell.1) && !self.0.contains_key(cell)).collect()
    }

    /// Every meeting, for programs.
    pub fn rows(&self) -> impl Iterator<Item = (Struck, Under, u64)> + '_ {
        self.0.iter().map(|(&(struck, under), &count)| (struck, under, count))
    }
}

/// Whether a fault can strike in a state at all.
fn can_meet(struck: Struck, under: Under) -> bool {
    match struck {
        Struck::RotInIndex => under == Under::Rest,
        // The pool is closed where a disk comes back.
        Struck::StartOverwritten | Struck::Stale | Struck::OlderInOneRun => under == Under::Open,
        // Commits have ended before a disk stalls, so that nothing but the stall holds up what is read.
        Struck::Stalled => under == Under::Get,
        _ if under == Under::Flight => true,
        // Rot and removal come upon a pool between its calls.
        Struck::RotInData | Struck::RotInMetadata | Struck::Vanished => under == Under::Rest,
        Struck::PowerDropped | Struck::PowerKept | Struck::PowerTorn => true,
        // A fault that was planned is called off before the pool is opened again.
        _ => under != Under::Open,
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:18}", "fault")?;
        for under in UNDER {
            write!(out, "{:>9}", format!("{under:?}").to_lowercase())?;
        }
        for struck in STRUCK {
            write!(out, "\n{:18}", format!("{struck:?}"))?;
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
