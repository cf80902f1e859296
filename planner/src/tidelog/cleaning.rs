//! Writes of what stays, put where a plan's links are idle: its storages leave later without one.
//!
//! A plan writes a storage when that leaves. Where a link out is idle before, and the storage has
//! the same contents by then, it can be written there and stay. Each stretch of idleness is filled
//! with what leaves soonest after it, and the filling is kept if the step is shorter with it.

use crate::lifetime::{At, uses_by_storage};
use crate::migration::{Ending, Migration, MigrationDirection, Target};
use crate::simulate::{SimulatedTransfer, Simulation};
use crate::trace::Trace;
use crate::units::{Nanos, OpIndex};
use std::collections::VecDeque;

/// Number of times that the links of the best plan so far are looked at.
const ROUNDS: u32 = 4;

/// Most stretches of idleness that are tried each by itself, the longest ones.
const STRETCHES_MAX: usize = 16;

const TARGETS: [Target; 2] = [Target::Ssd, Target::Host];

/// A plan that is being improved.
pub(super) struct CleaningLine {
    rows: Vec<Migration>,
    time: Nanos,
    /// Fillings that were not tried yet.
    fillings: VecDeque<Vec<Migration>>,
    rounds: u32,
}

/// Next thing to do with a plan.
pub(super) enum CleaningStep {
    /// Nothing: all was tried.
    Over,
    /// Simulation of these rows.
    Try(Vec<Migration>),
}

impl CleaningLine {
    pub(super) fn new(trace: &Trace, rows: Vec<Migration>, simulation: &Simulation) -> Self {
        let mut line = Self { rows, time: simulation.time, fillings: VecDeque::new(), rounds: 0 };
        line.look(trace, simulation);
        line
    }

    pub(super) fn next(&mut self) -> CleaningStep {
        let Some(filling) = self.fillings.pop_front() else { return CleaningStep::Over };
        let mut rows = self.rows.clone();
        rows.extend(filling.iter().filter(|row| !self.rows.contains(row)));
        CleaningStep::Try(rows)
    }

    /// Learns how long a step with these rows takes.
    pub(super) fn learn(&mut self, trace: &Trace, rows: Vec<Migration>, simulation: &Simulation) {
        if simulation.time < self.time {
            (self.rows, self.time) = (rows, simulation.time);
            if self.rounds < ROUNDS {
                self.look(trace, simulation);
            }
        }
    }

    fn look(&mut self, trace: &Trace, simulation: &Simulation) {
        self.rounds += 1;
        let mut fillings: Vec<(i128, Vec<Migration>)> = Vec::new();
        for target in TARGETS {
            fillings.extend(IdleLink { trace, simulation, target }.fillings(&self.rows));
        }
        fillings.sort_by_key(|(idle, _)| std::cmp::Reverse(*idle));
        let all = fillings.iter().flat_map(|(_, rows)| rows).copied().collect();
        let each = fillings.iter().take(STRETCHES_MAX).map(|(_, rows)| rows.clone());
        self.fillings =
            [all].into_iter().chain(each).filter(|rows: &Vec<_>| !rows.is_empty()).collect();
    }
}

/// A link out of memory in a simulated step.
struct IdleLink<'a> {
    trace: &'a Trace,
    simulation: &'a Simulation,
    target: Target,
}

/// A write of the step, on a line on which the step begins at 0, and the one before it ends there.
struct LateWrite {
    row: Migration,
    /// The op that makes the bytes as they are written, on two steps' line of ops, and its end.
    made_by: u32,
    ready: i128,
    begins: i128,
    length: i128,
}

impl IdleLink<'_> {
    /// Returns for each stretch of idleness how long it is, and what may be written in it.
    fn fillings(&self, rows: &[Migration]) -> Vec<(i128, Vec<Migration>)> {
        let step = i128::from(self.simulation.time.0);
        let mut writes = self.writes(rows);
        writes.sort_by_key(|write| write.begins);
        let mut found = Vec::new();
        for (begin, end) in self.idle() {
            let (mut at, mut filling) = (begin, Vec::new());
            // What is written after it in this step, then what is in the next one.
            for shift in [0, step] {
                writes.retain(|write| {
                    let (ready, begins) = (write.ready + shift, write.begins + shift);
                    let from = at.max(ready);
                    if begins < end || begins - step >= end || from + write.length / 2 > end {
                        return true;
                    }
                    let Some(row) = self.row(write, from - shift) else { return true };
                    filling.push(row);
                    at = from + write.length;
                    false
                });
            }
            found.push((end - begin, filling));
        }
        found
    }

    /// The stretches of the step in which nothing is written.
    fn idle(&self) -> Vec<(i128, i128)> {
        let step = i128::from(self.simulation.time.0);
        let mut spans: Vec<(i128, i128)> = self
            .moved()
            .map(|it| (i128::from(it.moved.0), i128::from(it.end.0).min(step)))
            .collect();
        spans.sort_unstable();
        let (mut idle, mut until) = (Vec::new(), 0);
        for (begin, end) in spans.into_iter().chain([(step, step)]) {
            if begin > until {
                idle.push((until, begin));
            }
            until = until.max(end);
        }
        idle
    }

    fn moved(&self) -> impl Iterator<Item = &SimulatedTransfer> {
        let of_link = |it: &&SimulatedTransfer| {
            let ended = matches!(it.ending, Ending::Moved | Ending::UnderWay);
            it.direction == MigrationDirection::Out && it.target == self.target && ended
        };
        self.simulation.transfers.iter().filter(of_link)
    }

    /// The writes of storages that leave by a row.
    fn writes(&self, rows: &[Migration]) -> Vec<LateWrite> {
        let (trace, begins) = (self.trace, &self.simulation.begins);
        let (ops, step) = (trace.ops.len() as u32, i128::from(self.simulation.time.0));
        let uses = uses_by_storage(trace);
        let mut writes = Vec::new();
        for it in self.moved().filter(|it| !it.stays && it.ending == Ending::Moved) {
            let of_it = rows.iter().filter(|row| row.storage == it.storage && row.leaves());
            let from = |row: &&Migration| {
                let begin = i128::from(begins[row.start.0 as usize].0) - i128::from(it.moved.0);
                begin.abs().min(step - begin.abs())
            };
            let Some(row) = of_it.min_by_key(from).copied() else { continue };
            // On a line of two steps the row's op is in the second one.
            let leaves = row.start.0 + ops;
            let Some(made_by) = last_change(&uses[it.storage.0 as usize], leaves, ops) else {
                continue;
            };
            let op = (made_by % ops) as usize;
            let ready = i128::from(begins[op].0 + trace.ops[op].duration.0);
            let ready = if made_by < ops { ready - step } else { ready };
            let begins = i128::from(it.moved.0);
            // A write whose row is at the step's end may be seen at its beginning.
            let ready = if ready > begins { ready - step } else { ready };
            let length = i128::from(it.end.0) - begins;
            writes.push(LateWrite { row, made_by, ready, begins, length });
        }
        writes
    }

    /// The row that begins a write at a moment, `None` where that is no earlier than it is.
    fn row(&self, write: &LateWrite, at: i128) -> Option<Migration> {
        let (ops, step) = (self.trace.ops.len() as u32, i128::from(self.simulation.time.0));
        let begins = &self.simulation.begins;
        let (shift, in_step) = if at < 0 { (0, at + step) } else { (ops, at) };
        let op_at = begins.partition_point(|begin| i128::from(begin.0) < in_step) as u32 + shift;
        let uses = |op: u32| {
            let of = &self.trace.ops[(op % ops) as usize];
            of.uses.iter().any(|used| used.storage == write.row.storage)
        };
        let leaves = write.row.start.0 + ops;
        let start = (op_at.max(write.made_by + 1)..leaves).find(|op| !uses(*op))?;
        let deadline = OpIndex(leaves % ops);
        let start = OpIndex(start % ops);
        let (target, awaited) = (self.target, false);
        Some(Migration { start, deadline, target, awaited, ..write.row }.staying())
    }
}

/// The op before `until` that makes or modifies the storage last, on a line of two steps; of a
/// storage that no op changes there is none.
fn last_change(uses: &[At], until: u32, ops: u32) -> Option<u32> {
    let changes = uses.iter().filter(|at| at.modifies).flat_map(|at| [at.op, at.op + ops]);
    changes.filter(|op| *op < until).max()
}
