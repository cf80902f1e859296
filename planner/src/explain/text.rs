//! The explanations as text.

use super::{
    Absence, Cause, ExplainedTransfer, KeptInMemory, MachineChange, OpAnswer, StorageAnswer,
    WaitTarget, WaitedTime, WhatIf,
};
use crate::migration::Target;
use crate::report::text::{bytes, count, percent, time};
use crate::units::{Nanos, OpIndex};
use std::fmt;

/// Limit of storages that made room and are named; more are counted.
const LEAVING_MAX: usize = 3;

impl fmt::Display for StorageAnswer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, kind, size, .. } = self;
        writeln!(out, "{name}: {}, {kind}, used {} a step", bytes(*size), times(self.uses))?;
        if !self.movable {
            return writeln!(
                out,
                "  It cannot leave: its memory cannot be taken away and given back."
            );
        }
        if self.absences.is_empty() {
            let idle = time(self.idle_longest);
            return writeln!(out, "  It never leaves. The longest time without a use is {idle}.");
        }
        for absence in &self.absences {
            write!(out, "{absence}")?;
        }
        for cleaned in &self.cleaned {
            let how = moved("out", cleaned);
            writeln!(out, "  It is written while it stays, to leave later without a write: {how}")?;
        }
        self.held.as_ref().map_or(Ok(()), |held| write!(out, "{held}"))
    }
}

impl fmt::Display for Absence {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let who = if self.planned { "as planned" } else { "on demand, memory was needed at once" };
        let after = self
            .last_use
            .map_or_else(|| "unused so far".to_owned(), |at| format!("after {}", op(at)));
        let until =
            self.next_use.map_or_else(|| "never again".to_owned(), |at| format!("by {}", op(at)));
        let idle = time(self.idle);
        writeln!(out, "  It leaves {after}, {who}; it is used again {until}, {idle} later.")?;
        if self.ops_over_capacity > 0 {
            let (ops, most) = (self.ops_over_capacity, bytes(self.over_capacity));
            let ops = count(ops as usize, "op");
            writeln!(
                out,
                "    Meanwhile {ops} would not fit if nothing left, the worst by {most}."
            )?;
        } else {
            writeln!(
                out,
                "    No op meanwhile needs more than there is: it makes room ahead for what comes next."
            )?;
        }
        match (self.better_left, self.out_already) {
            (0, 0) => writeln!(out, "    Nothing as large waits longer.")?,
            (0, gone) => {
                writeln!(
                    out,
                    "    Of what waits longer and is as large all is out already ({gone})."
                )?;
            }
            (left, gone) => writeln!(
                out,
                "    {left} as large wait longer and are in memory (they have a reason to stay: no \
                 write that pays, a transfer under way, or the plan missed them); {gone} are out already."
            )?,
        }
        writeln!(out, "    {}", moved("out", &self.out))?;
        self.back.as_ref().map_or(Ok(()), |back| writeln!(out, "    {}", moved("back", back)))
    }
}

impl fmt::Display for KeptInMemory {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.time, self.ssd_written, &self.refused) {
            (Some(length), Some(written), _) => writeln!(
                out,
                "  If it never left, the rest of the plan as it is: a step of {}, {} written (simulated).",
                time(length),
                bytes(written)
            ),
            (_, _, refused) => {
                let why = refused.as_deref().unwrap_or("an op does not fit");
                writeln!(out, "  It must leave: otherwise {why}.")
            }
        }
    }
}

impl fmt::Display for OpAnswer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = format!("{} ({})", op(self.op), self.name);
        let Some(cause) = &self.cause else {
            return writeln!(out, "{name} does not wait; it begins at {}.", time(self.begin));
        };
        let (uses, makes) = (bytes(self.uses), bytes(self.makes));
        writeln!(out, "{name} waits {}. It uses {uses} and makes {makes}.", time(self.waited))?;
        write!(out, "{cause}")
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reads { awaited } => {
                write!(out, "{awaited}")?;
                writeln!(
                    out,
                    "  Reading is the limit: faster or more SSDs, or more memory, make it shorter."
                )
            }
            Self::Full { awaited, least_room } => {
                write!(out, "{awaited}")?;
                writeln!(
                    out,
                    "  It could not come earlier: when it should have, there was room for {} only.",
                    bytes(*least_room)
                )
            }
            Self::Late { awaited, least_room } => {
                write!(out, "{awaited}")?;
                writeln!(
                    out,
                    "  It could have come earlier: there was room for {}, and the link had time. The plan is \
                     late here.",
                    bytes(*least_room)
                )
            }
            Self::Room { leaving, link_busy_per_mille } => {
                write!(out, "  It waits for memory")?;
                for (index, one) in leaving.iter().take(LEAVING_MAX).enumerate() {
                    let before = if index == 0 { "; what leaves meanwhile: " } else { ", " };
                    write!(out, "{before}{} ({})", one.name, bytes(one.size))?;
                }
                if leaving.len() > LEAVING_MAX {
                    write!(out, " and {} more", leaving.len() - LEAVING_MAX)?;
                }
                writeln!(
                    out,
                    ".\n  Writing moved bytes in {} of that time{}",
                    percent(*link_busy_per_mille, 1000),
                    if *link_busy_per_mille > 900 { ": it is the limit." } else { "." }
                )
            }
        }
    }
}

impl fmt::Display for WaitTarget {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "  It waits for {} ({}).", self.storage.name, bytes(self.storage.size))?;
        let needs = time(self.needs);
        if self.asked_before == Nanos(0) {
            let why = if self.planned {
                "the plan's turn for it had not come"
            } else {
                "the plan does not bring it"
            };
            writeln!(
                out,
                "  That was asked for when the op needed it ({why}), and takes {needs}."
            )?;
        } else {
            let before = time(self.asked_before);
            writeln!(out, "  That was asked for {before} before the op, and takes {needs} alone.")?;
        }
        if let Some(back) = &self.back {
            writeln!(out, "  {}", moved("back", back))?;
        }
        let (possible, busy) =
            (time(self.possible_before), percent(self.link_busy_per_mille, 1000));
        writeln!(
            out,
            "  It could have come since {possible} before the op (it was out, and memory not full); from then on the \
             link was busy {busy} of the time."
        )
    }
}

impl fmt::Display for WaitedTime {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            (self.reads, "because reading was the limit"),
            (self.full, "because memory was full when bytes should have come"),
            (self.late, "because the plan asked late"),
            (self.room, "for memory: what left was still being written"),
        ];
        for (length, why) in parts.into_iter().filter(|(length, _)| length.0 > 0) {
            writeln!(out, "  {:>9} {why}", time(length))?;
        }
        Ok(())
    }
}

impl fmt::Display for MachineChange {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ssds { present, wanted } => write!(out, "{wanted} SSDs instead of {present}"),
            Self::Memory(more) => write!(out, "{} more GPU memory", bytes(*more)),
            Self::HostMemory(more) => write!(out, "{} more host memory", bytes(*more)),
        }
    }
}

impl fmt::Display for WhatIf {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Some(length), Some(stall), Some(moved)) = (self.time, self.stall, self.bytes) else {
            return write!(out, "{}: it does not run", self.change);
        };
        let change = self.change.to_string();
        let (length, stall) = (time(length), time(stall));
        write!(
            out,
            "{change:32} {length:>9}, of that {stall:>9} waiting, {} written",
            bytes(moved.ssd_written)
        )
    }
}

fn op(index: OpIndex) -> String {
    format!("op {}", index.0)
}

fn times(number: u32) -> String {
    match number {
        1 => "once".to_owned(),
        _ => format!("{number} times"),
    }
}

fn moved(way: &str, one: &ExplainedTransfer) -> String {
    let target = match one.target {
        Target::Ssd => "SSD",
        Target::Host => "host memory",
    };
    if !one.moved {
        return format!("{way}: without a write, the copy on {target} is still good");
    }
    let queued = match one.queued {
        Nanos(0) => String::new(),
        queued => format!(", {} in the queue before", time(queued)),
    };
    format!(
        "{way}: {target}, {} moving{queued}, complete at {}",
        time(one.moving),
        time(one.complete)
    )
}
