//! Gain by other orders of the same ops: planned again, simulated again.

use super::SimulateFn;
use crate::cost::Machine;
use crate::order::OpOrder;
use crate::plan::PlannedBytes;
use crate::report::text::{bytes, time};
use crate::simulate::SimulateError;
use crate::trace::Trace;
use crate::units::Nanos;
use serde::Serialize;
use std::fmt;

/// Result of an order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OrderAnswer {
    /// Name of the order.
    pub order: &'static str,
    /// Description of the order.
    #[serde(skip)]
    pub words: &'static str,
    /// The length of the step; `None` if there is no such order, or it cannot run.
    #[serde(rename = "time_ns")]
    pub time: Option<Nanos>,
    /// The bytes that move.
    pub bytes: Option<PlannedBytes>,
    /// The reason why there is none.
    pub why_not: Option<String>,
}

/// Plans and simulates a step in each order.
///
/// # Errors
/// If a step cannot be simulated for another reason than a lack of memory.
pub fn orders(
    program: &Trace,
    machine: &Machine,
    simulator: SimulateFn<'_>,
) -> Result<Vec<OrderAnswer>, SimulateError> {
    let answer = |order: OpOrder| {
        let (name, words) = (order.name(), order.words());
        let none = |why_not| OrderAnswer { order: name, words, time: None, bytes: None, why_not };
        let trace = match order.of(program) {
            Ok(reordered) => reordered.trace,
            Err(error) => return Ok(none(Some(error.to_string()))),
        };
        match simulator(&trace, machine) {
            Ok(found) => {
                Ok(OrderAnswer { time: Some(found.time), bytes: Some(found.bytes), ..none(None) })
            }
            Err(error @ SimulateError::Refused { .. }) => Ok(none(Some(error.to_string()))),
            Err(other) => Err(other),
        }
    };
    OpOrder::ALL.into_iter().map(answer).collect()
}

impl fmt::Display for OrderAnswer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:16} ({}): ", self.order, self.words)?;
        match (self.time, self.bytes, &self.why_not) {
            (Some(length), Some(moved), _) => write!(
                out,
                "{}, {} written, {} read",
                time(length),
                bytes(moved.ssd_written),
                bytes(moved.ssd_read)
            ),
            (_, _, Some(why)) => out.write_str(why),
            _ => out.write_str("not possible"),
        }
    }
}
