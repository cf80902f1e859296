//! `rate_min=`: a job that is too slow ends.

use std::time::{Duration, Instant};

use crate::option::JobOptions;

/// The beginning of a job does not count, as in fio.
const SETTLING: Duration = Duration::from_secs(2);

/// Floor of a job's throughput.
#[derive(Clone, Debug)]
pub(super) struct Floor {
    least: [Option<u64>; 3],
    cycle: Duration,
    begun: Option<Instant>,
    /// Start of the cycle, and what had been moved by then.
    last: Option<(Instant, [u64; 3])>,
}

impl Floor {
    /// Makes the floor that a job asks for, in the directions that it goes.
    pub(super) fn new(job: &JobOptions) -> Self {
        let load = job.load;
        let mut least = job.rate_min;
        for (least, goes) in least.iter_mut().zip([load.reads, load.writes, load.trims]) {
            *least = least.filter(|_| goes);
        }
        Self { least, cycle: job.rate_cycle, begun: None, last: None }
    }

    /// Returns whether there is anything to look at.
    pub(super) fn is_any(&self) -> bool {
        self.least.iter().any(Option::is_some)
    }

    /// Describes the throughput that was too slow, if a cycle is over and anything was.
    pub(super) fn missed(&mut self, moved: [u64; 3], now: Instant) -> Option<String> {
        if now - *self.begun.get_or_insert(now) < SETTLING {
            return None;
        }
        let (since, before) = *self.last.get_or_insert((now, moved));
        if now - since < self.cycle {
            return None;
        }
        self.last = Some((now, moved));
        let nanos = (now - since).as_nanos().max(1);
        let ways = ["read", "written", "trimmed"].into_iter().zip(self.least);
        ways.zip(moved.into_iter().zip(before)).find_map(|((way, least), (moved, before))| {
            let rate = u128::from(moved - before) * 1_000_000_000 / nanos;
            let least = least.filter(|least| rate < u128::from(*least))?;
            Some(format!("rate_min: {rate} bytes a second were {way}, and {least} are asked for"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cycle_that_is_too_slow_is_told_once_the_job_has_settled() {
        let job = JobOptions { rate_min: [Some(1000); 3], ..JobOptions::default() };
        let mut floor = Floor::new(&job);
        let begun = Instant::now();
        let mut missed =
            |millis, read| floor.missed([read, 0, 0], begun + Duration::from_millis(millis));
        assert_eq!(missed(0, 0), None);
        assert_eq!(missed(1900, 0), None, "it settles");
        assert_eq!(missed(2000, 0), None, "the first cycle begins");
        assert_eq!(missed(3000, 1000), None, "just enough; nothing is written, and need not be");
        assert_eq!(missed(3900, 1000), None, "the cycle is not over");
        let said = missed(4000, 1900).unwrap();
        assert_eq!(said, "rate_min: 900 bytes a second were read, and 1000 are asked for");
    }
}
