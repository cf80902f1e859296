//! What moving parts of storages brings.

use crate::plan::PlannedBytes;
use crate::report::text::{bytes, time};
use crate::simulate::Simulation;
use crate::units::Nanos;
use serde::Serialize;
use std::fmt;

/// What the best plan is with whole storages, or with parts of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PartsAnswer {
    /// What it is called.
    pub parts: &'static str,
    /// How many storages move in parts.
    pub storages_in_parts: usize,
    /// In how many parts these are.
    pub parts_of_storages: usize,
    /// The length of the step.
    #[serde(rename = "time_ns")]
    pub time: Nanos,
    /// The bytes that move.
    pub bytes: PlannedBytes,
}

impl PartsAnswer {
    /// What a plan leads to that moves so many storages in so many parts.
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
