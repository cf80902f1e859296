//! Gain by moving parts of storages.

use crate::plan::PlannedBytes;
use crate::report::text::{bytes, time};
use crate::simulate::Simulation;
use crate::units::Nanos;
use serde::Serialize;
use std::fmt;

/// Result of the best plan with whole storages, or with parts of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PartsAnswer {
    /// Name of the variant.
    pub parts: &'static str,
    /// Number of storages that move in parts.
    pub storages_in_parts: usize,
    /// Number of their parts.
    pub parts_of_storages: usize,
    /// The length of the step.
    #[serde(rename = "time_ns")]
    pub time: Nanos,
    /// The bytes that move.
    pub bytes: PlannedBytes,
}

impl PartsAnswer {
    /// Makes the result of a plan by its counts of storages in parts, and of their parts.
    pub fn of(name: &'static str, simulation: &Simulation, counts: (usize, usize)) -> Self {
        let (storages_in_parts, parts_of_storages) = counts;
        let (time, bytes) = (simulation.time, simulation.bytes);
        Self { parts: name, storages_in_parts, parts_of_storages, time, bytes }
    }
}

impl fmt::Display for PartsAnswer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:6}", self.parts)?;
        match self.parts_of_storages {
            0 => out.write_str("(storages move whole): ")?,
            parts => write!(out, "({} storages in {parts} parts): ", self.storages_in_parts)?,
        }
        write!(
            out,
            "{}, {} written, {} read",
            time(self.time),
            bytes(self.bytes.ssd_written),
            bytes(self.bytes.ssd_read)
        )
    }
}
