//! Constants of the model of a GPU's step: each figure with its range and its source.

use crate::simulate::{CopyRates, GpuCosts};
use crate::trace::{Op, Trace};
use crate::units::{Bandwidth, Bytes, Nanos};
use serde::{Deserialize, Serialize};

/// The figures, as data.
const KNOWN: &str = include_str!("../../gpu-costs.json");

/// Source of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConstantSource {
    /// Measured, on what the table says.
    Measured,
    /// Published by others.
    Published,
    /// Assumption: nobody has measured it.
    Assumed,
}

/// End of a constant's range, or its likeliest figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RangeEnd {
    /// The end of its range with which a step is fastest.
    Fast,
    /// The likeliest figure.
    Value,
    /// The end with which it is slowest.
    Slow,
}

/// A figure that the model takes for given.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Constant {
    /// Name of the constant.
    pub name: String,
    /// Unit of the figures.
    pub unit: String,
    /// The end of its range with which a step is fastest.
    pub fast: f64,
    /// The likeliest figure.
    pub value: f64,
    /// The end with which it is slowest.
    pub slow: f64,
    /// Source of the figures.
    pub source: ConstantSource,
    /// The measurement or the publication; what was assumed.
    #[serde(rename = "where")]
    pub reference: String,
}

/// All constants, each at the end of its range that was asked for.
#[derive(Clone, Debug)]
pub struct Constants {
    all: Vec<(Constant, RangeEnd)>,
}

/// The language that the bridge's part of each op is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpsIn {
    /// No bridge: torch alone.
    Torch,
    /// The hook's.
    Python,
    /// The kernels' in C++.
    Native,
}

impl Constants {
    /// The constants of the table, all at one end of their ranges.
    ///
    /// # Panics
    /// Never: a test reads the table.
    pub fn at(end: RangeEnd) -> Self {
        let known: Vec<Constant> = serde_json::from_str(KNOWN).expect("a test reads it");
        Self { all: known.into_iter().map(|constant| (constant, end)).collect() }
    }

    /// Returns the constants with one at another end.
    #[must_use]
    pub fn with(mut self, name: &str, end: RangeEnd) -> Self {
        for (constant, taken) in &mut self.all {
            if constant.name == name {
                *taken = end;
            }
        }
        self
    }

    /// The table.
    pub fn table(&self) -> impl Iterator<Item = &Constant> {
        self.all.iter().map(|(constant, _)| constant)
    }

    /// The GPU's link, one way at a time.
    pub fn link(&self) -> CopyRates {
        let rate = |name| gigabytes(self.figure(name));
        CopyRates { out: rate("link_out"), back: rate("link_back") }
    }

    /// Returns the costs of calls, copies and checks, where the bridge's part is in this language.
    pub fn costs(&self, ops: OpsIn) -> GpuCosts {
        let (dispatch, request) = match ops {
            OpsIn::Torch => ("dispatch_plain", "request_native"),
            OpsIn::Python => ("dispatch_python", "request_python"),
            OpsIn::Native => ("dispatch_native", "request_native"),
        };
        let micros = |name| Nanos(whole(self.figure(name) * 1e3));
        let alone = self.link();
        let part = |rate: Bandwidth, name| Bandwidth(scaled(rate.0, self.figure(name)));
        GpuCosts {
            dispatch: micros(dispatch),
            launch: micros("launch"),
            launches_ahead: u32::try_from(whole(self.figure("launches_ahead"))).unwrap_or(u32::MAX),
            request: micros(request),
            wake_up: micros("wake_up"),
            copy: micros("copy"),
            both_ways: Some(CopyRates {
                out: part(alone.out, "both_ways_out"),
                back: part(alone.back, "both_ways_back"),
            }),
            checksum: gigabytes(self.figure("checksum")),
            allocation: micros("allocation"),
            release: micros("release"),
            remap: micros("remap"),
            slack: Bytes(whole(self.figure("slack") * f64::from(1 << 30))),
        }
    }

    /// A trace of a roofline's kernel times with those that kernels take.
    pub fn kernels_of(&self, trace: &Trace) -> Trace {
        let factor = self.figure("kernels");
        let with_time = |op: &Op| {
            let duration = Nanos(scaled(op.duration.0, factor));
            Op { duration, ..op.clone() }
        };
        Trace { ops: trace.ops.iter().map(with_time).collect(), ..trace.clone() }
    }

    fn figure(&self, name: &str) -> f64 {
        let found = self.all.iter().find(|(constant, _)| constant.name == name);
        let (constant, end) = found.unwrap_or_else(|| panic!("gpu-costs.json has no {name}"));
        match end {
            RangeEnd::Fast => constant.fast,
            RangeEnd::Value => constant.value,
            RangeEnd::Slow => constant.slow,
        }
    }
}

fn gigabytes(figure: f64) -> Bandwidth {
    Bandwidth(whole(figure * 1e9))
}

#[allow(clippy::cast_precision_loss, reason = "less than 2^53 in any step")]
fn scaled(count: u64, factor: f64) -> u64 {
    whole(count as f64 * factor)
}

#[allow(
    clippy::cast_sign_loss,
    clippy::cast_possible_truncation,
    reason = "all figures are positive"
)]
fn whole(figure: f64) -> u64 {
    figure.round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_constant_lies_in_its_range_and_names_its_source() {
        let constants = Constants::at(RangeEnd::Value);
        assert!(constants.table().count() > 10);
        for Constant { name, fast, value, slow, reference, .. } in constants.table() {
            let (least, most) = (fast.min(*slow), fast.max(*slow));
            assert!(least > 0.0 && (least..=most).contains(value), "{name}");
            assert!(reference.len() > 10, "{name}");
        }
    }

    #[test]
    fn one_constant_is_varied_alone() {
        let at = |constants: &Constants| constants.costs(OpsIn::Python);
        let value = Constants::at(RangeEnd::Value);
        let varied = value.clone().with("wake_up", RangeEnd::Slow);
        let (before, after) = (at(&value), at(&varied));
        assert!(after.wake_up > before.wake_up);
        assert_eq!(GpuCosts { wake_up: before.wake_up, ..after }, before);
    }

    #[test]
    fn the_slow_end_of_each_costs_more() {
        let [fast, slow] = [RangeEnd::Fast, RangeEnd::Slow].map(Constants::at);
        for ops in [OpsIn::Torch, OpsIn::Python, OpsIn::Native] {
            let (fast, slow) = (fast.costs(ops), slow.costs(ops));
            assert!(fast.dispatch < slow.dispatch && fast.request < slow.request);
            assert!(fast.wake_up < slow.wake_up && fast.checksum > slow.checksum);
        }
        assert!(fast.link().out > slow.link().out && fast.link().back > slow.link().back);
    }
}
