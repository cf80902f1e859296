//! Option on the end of a job that runs steadily: `ss=`.

use std::time::Duration;

use super::job::JobOptions;
use crate::exit::BenchError;

/// Criterion that `ss=` and related options set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SteadyState {
    /// Bytes, or operations, a second.
    pub bandwidth: bool,
    /// The slope, or the greatest deviation from the mean.
    pub slope: bool,
    /// Limit below which the value stays.
    pub limit: f64,
    /// True if the limit is in percent of the mean.
    pub percent: bool,
    /// Length of the window.
    pub window: Duration,
    /// Time at the beginning that is left out.
    pub ramp: Duration,
    /// Interval over which each of the window's rates is averaged.
    pub interval: Duration,
}

impl SteadyState {
    /// Reads `iops:10%`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(text: &str) -> Result<Self, String> {
        let (kind, limit) = text
            .trim()
            .split_once(':')
            .ok_or("write KIND:LIMIT, as in iops:10% or bw_slope:1000")?;
        let (bandwidth, slope) = match kind {
            "iops" => (false, false),
            "iops_slope" => (false, true),
            "bw" => (true, false),
            "bw_slope" => (true, true),
            _ => return Err("there are iops, iops_slope, bw and bw_slope".to_owned()),
        };
        let (number, percent) =
            limit.trim().strip_suffix('%').map_or((limit.trim(), false), |number| (number, true));
        let limit = number.parse::<f64>().ok().filter(|it| it.is_finite() && *it > 0.0);
        let limit = limit.ok_or_else(|| format!("{number:?} is no limit above 0"))?;
        Ok(Self { bandwidth, slope, limit, percent, ..Self::default() })
    }

    /// Takes over the times that were set before.
    #[must_use]
    pub fn with_times_of(self, other: Option<Self>) -> Self {
        let Self { window, ramp, interval, .. } = other.unwrap_or_default();
        Self { window, ramp, interval, ..self }
    }

    /// Returns the number of rates in a window.
    pub fn intervals(&self) -> usize {
        (self.window.as_micros() / self.interval.as_micros().max(1)) as usize
    }

    /// Returns the name in fio.
    pub fn name(&self) -> String {
        let rate = if self.bandwidth { "bw" } else { "iops" };
        let slope = if self.slope { "_slope" } else { "" };
        let percent = if self.percent { "%" } else { "" };
        format!("{rate}{slope}:{:.6}{percent}", self.limit)
    }
}

impl Default for SteadyState {
    fn default() -> Self {
        let (bandwidth, slope, percent) = (false, false, false);
        let interval = Duration::from_secs(1);
        let (window, ramp) = (Duration::ZERO, Duration::ZERO);
        // Without a limit there are times alone, and nothing is looked at.
        Self { bandwidth, slope, limit: 0.0, percent, window, ramp, interval }
    }
}

/// Checks that what jobs say of it goes together; jobs that are reported as one have it in common,
/// as in fio.
///
/// # Errors
/// It does not.
pub fn check_steady(jobs: &[JobOptions]) -> Result<(), BenchError> {
    for job in jobs {
        let wrong = |what: &str| Err(BenchError::usage(what).within(&job.name));
        if let Some(steady) = job.steady {
            if steady.limit == 0.0 {
                return wrong("ss_dur, ss_ramp and ss_interval need ss, which is not given");
            }
            if steady.interval < Duration::from_millis(10) || steady.intervals() < 2 {
                return wrong(
                    "ss needs ss_dur, which is 2 s at least, or two of ss_interval (from 10 ms on)",
                );
            }
        }
        let is_with = |other: &&JobOptions| other.group == job.group && other.group_reporting;
        let differs = |other: &JobOptions| other.steady != job.steady;
        if job.group_reporting && jobs.iter().filter(is_with).any(differs) {
            return wrong(
                "ss is the same for all jobs that are reported as one: give new_group, or ss before all",
            );
        }
    }
    Ok(())
}
