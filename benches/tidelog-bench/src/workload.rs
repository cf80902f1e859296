//! `workload=`: what a plan moves, and when, as something that can be replayed without the model it
//! was made for.

use std::collections::BTreeMap;
use std::time::Duration;

use tidelog_planner::migration::{self, Migration, Target};
use tidelog_planner::plan::{Plan, PlanFile};
use tidelog_planner::trace::Trace;

use crate::direction::DataDirection;
use crate::exit::BenchError;

/// One iteration of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Duration of each op if it never waits.
    pub ops: Vec<Duration>,
    /// Moves that begin before each op, in the plan's order.
    pub moves: Vec<Vec<Move>>,
    /// The bytes of each storage that moves.
    pub storages: Vec<u64>,
    /// Expectation of the plan's maker for one iteration.
    pub expected: Expected,
    /// Rows that need no device: to and from host memory, and evictions of what a copy holds
    /// already.
    pub left_out: u64,
}

/// One row: a put or a get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Index of the storage.
    pub storage: usize,
    /// A put, or a get.
    pub direction: DataDirection,
    /// Number of ops after which it must be complete.
    pub ops_left: usize,
}

/// A plan's own figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// The length of the iteration.
    pub time: Duration,
    /// The part of it in which an op waits.
    pub stall: Duration,
}

impl Workload {
    /// Reads a plan and the trace that it was made from.
    ///
    /// # Errors
    /// A file cannot be read, or they do not belong together.
    pub fn read(plan: &str, trace: &str) -> Result<Self, BenchError> {
        let text = |path: &str| {
            std::fs::read_to_string(path)
                .map_err(|source| BenchError::System { what: path.to_owned(), source })
        };
        let wrong =
            |path: &str, why: &dyn std::error::Error| BenchError::usage(format!("{path}: {why}"));
        let (plan_text, trace_text) = (text(plan)?, text(trace)?);
        let file = PlanFile::from_json(&plan_text).map_err(|error| wrong(plan, &error))?;
        let from = Trace::from_json(&trace_text).map_err(|error| wrong(trace, &error))?;
        let made = file.numbered(&from).map_err(|error| wrong(plan, &error))?;
        Self::of(&made, &from).map_err(|what| BenchError::usage(format!("{plan}: {what}")))
    }

    /// Returns the moves of a plan in its trace.
    ///
    /// # Errors
    /// It moves nothing to or from SSDs.
    pub fn of(plan: &Plan, trace: &Trace) -> Result<Self, String> {
        let modified = modified(trace);
        let count = trace.ops.len();
        let mut numbers: BTreeMap<usize, usize> = BTreeMap::new();
        let mut workload = Self {
            ops: trace.ops.iter().map(|op| Duration::from_nanos(op.duration.0)).collect(),
            moves: vec![Vec::new(); count],
            storages: Vec::new(),
            expected: Expected {
                time: Duration::from_nanos(plan.expects.time.0),
                stall: Duration::from_nanos(plan.expects.stall.0),
            },
            left_out: 0,
        };
        for row in &plan.rows {
            let storage = row.storage.0 as usize;
            let (start, deadline) = (row.start.0 as usize, row.deadline.0 as usize);
            let before = || evicted_before(plan, row, count);
            let is_clean = row.direction == migration::MigrationDirection::Out
                && !modified[storage].iter().any(|op| is_within(*op, before(), start, count));
            if row.target == Target::Host || is_clean {
                workload.left_out += 1;
                continue;
            }
            let next = workload.storages.len();
            let number = *numbers.entry(storage).or_insert(next);
            if number == next {
                workload.storages.push(trace.storages[storage].size.0);
            }
            // A deadline that is not behind the start lies in the next iteration.
            let ops_left =
                if deadline > start { deadline - start } else { deadline + count - start };
            let direction = match row.direction {
                migration::MigrationDirection::Out => DataDirection::Write,
                migration::MigrationDirection::In => DataDirection::Read,
            };
            workload.moves[start].push(Move { storage: number, direction, ops_left });
        }
        if workload.storages.is_empty() {
            return Err("it moves nothing to or from SSDs".to_owned());
        }
        Ok(workload)
    }

    /// The bytes of all storages that move.
    pub fn bytes(&self) -> u64 {
        self.storages.iter().sum()
    }
}

/// The ops that change each storage, or make it.
fn modified(trace: &Trace) -> Vec<Vec<usize>> {
    let mut modified = vec![Vec::new(); trace.storages.len()];
    for (index, op) in trace.ops.iter().enumerate() {
        let used = op.uses.iter().filter(|it| it.access.modifies()).map(|it| it.storage);
        for storage in used.chain(op.births.iter().map(|it| it.storage)) {
            modified[storage.0 as usize].push(index);
        }
    }
    modified
}

/// The op before which the same storage was evicted the last time, in this iteration or the one
/// before.
fn evicted_before(plan: &Plan, row: &Migration, count: usize) -> usize {
    let others = plan.rows.iter().filter(|it| {
        it.storage == row.storage && it.direction == migration::MigrationDirection::Out
    });
    let distance = |start: usize| match (row.start.0 as usize + count - start) % count {
        0 => count,
        distance => distance,
    };
    let last = others.map(|it| it.start.0 as usize).min_by_key(|start| distance(*start));
    last.unwrap_or(row.start.0 as usize)
}

/// Returns whether an op runs from `from` on and before `to`, around the end of the iteration; of
/// equal ends, anywhere in it.
fn is_within(op: usize, from: usize, to: usize, count: usize) -> bool {
    let length = if from == to { count } else { (to + count - from) % count };
    (op + count - from) % count < length
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = r#"{"format": "tidelog-trace", "version": 1, "name": "two", "storages": [
      {"identity": {"name": "weight"}, "size": 1000, "kind": "parameter", "movable": true},
      {"identity": {"name": "state"}, "size": 2000, "kind": "optimizer_state", "movable": true}],
     "ops": [
      {"name": "one", "duration_ns": 10, "fingerprint": "01", "uses": [{"storage": 0, "access": "read"}]},
      {"name": "two", "duration_ns": 20, "fingerprint": "02", "uses": [{"storage": 1, "access": "update"}]},
      {"name": "three", "duration_ns": 30, "fingerprint": "03", "uses": []}]}"#;

    fn plan(rows: &str) -> Result<Workload, String> {
        let trace = Trace::from_json(TRACE).unwrap();
        let machine = r#"{"budget": 1, "staging": 0, "verify": 1, "ssd": {"read": 1, "write": 1, "latency_ns": 0}}"#;
        let machine = serde_json::from_str(machine).unwrap();
        let nothing = Plan::new("test", &trace, &machine, Vec::new(), <_>::default());
        let mut file = nothing.named(&trace);
        file.rows = serde_json::from_str(&format!("[{rows}]")).unwrap();
        file.rows.sort();
        Workload::of(&file.numbered(&trace).map_err(|error| error.to_string())?, &trace)
    }

    fn row(start: u32, deadline: u32, action: &str, target: &str, name: &str) -> String {
        format!(
            r#"{{"start": {start}, "deadline": {deadline}, "action": "{action}", "target": "{target}", "storage": {{"name": "{name}"}}}}"#
        )
    }

    #[test]
    fn rows_become_puts_and_gets_with_the_ops_that_are_left() {
        let rows =
            [row(2, 0, "evict", "ssd", "state"), row(0, 1, "prefetch", "ssd", "state")].join(",");
        let workload = plan(&rows).unwrap();
        assert_eq!(workload.storages, [2000]);
        assert_eq!(workload.ops.iter().sum::<Duration>(), Duration::from_nanos(60));
        let put = Move { storage: 0, direction: DataDirection::Write, ops_left: 1 };
        let get = Move { storage: 0, direction: DataDirection::Read, ops_left: 1 };
        assert_eq!(workload.moves, [vec![get], vec![], vec![put]]);
    }

    #[test]
    fn what_a_copy_holds_already_is_not_written_again() {
        // Nothing changes the weight, ever; the state is changed between its two evictions only
        // once.
        let rows = [
            row(1, 2, "evict", "ssd", "weight"),
            row(2, 0, "prefetch", "ssd", "weight"),
            row(0, 1, "evict", "ssd", "state"),
            row(2, 0, "evict", "ssd", "state"),
            row(0, 1, "prefetch", "host", "state"),
        ];
        let workload = plan(&rows.join(",")).unwrap();
        assert_eq!(
            workload.left_out, 3,
            "the weight, the second look at the state, and host memory"
        );
        let directions: Vec<DataDirection> =
            workload.moves.concat().iter().map(|it| it.direction).collect();
        assert_eq!(directions, [DataDirection::Write, DataDirection::Read], "evictions come first");
        assert!(plan(&rows[0]).unwrap_err().contains("moves nothing"));
        assert!(plan(&row(0, 1, "evict", "ssd", "nobody")).unwrap_err().contains("nobody"));
    }
}
