//! State that jobs share that run side by side: which are over, whom that ends, and how the
//! operations of a flow are shared.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::interrupt::is_interrupted;
use crate::load::Zones;
use crate::option::{ExitWhat, JobOptions};
use crate::stats::Steady;

/// Interval at which a waiting job checks whether its beginning has come.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Jobs that run side by side.
#[derive(Debug)]
pub(super) struct Beside {
    /// Number of running threads of each name.
    running: BTreeMap<String, AtomicU32>,
    flows: BTreeMap<u64, Flow>,
    /// Checks for steady runs, by group that is reported as one.
    steady: BTreeMap<usize, Arc<Steady>>,
    /// Groups of the report that shall end.
    ended_groups: BTreeMap<usize, AtomicBool>,
    ended: AtomicBool,
    /// True if the whole run shall.
    ended_all: Arc<AtomicBool>,
}

/// Jobs that share their operations by weight.
#[derive(Debug, Default)]
struct Flow {
    operations: AtomicU64,
    weight: AtomicU64,
}

impl Beside {
    /// Makes the state of these jobs.
    pub(super) fn new(jobs: &[JobOptions], ended_all: &Arc<AtomicBool>) -> Self {
        let mut beside = Self {
            running: BTreeMap::new(),
            flows: BTreeMap::new(),
            steady: BTreeMap::new(),
            ended_groups: BTreeMap::new(),
            ended: AtomicBool::new(false),
            ended_all: Arc::clone(ended_all),
        };
        for job in jobs {
            let running = beside.running.entry(job.name.clone()).or_default();
            running.fetch_add(job.numjobs, Ordering::Relaxed);
            beside.ended_groups.entry(job.group).or_default();
            if let Some(wanted) = job.steady.filter(|_| job.group_reporting) {
                let steady = || Arc::new(Steady::new(wanted));
                beside.steady.entry(job.group).or_insert_with(steady);
            }
            if job.flow > 0 {
                let flow = beside.flows.entry(job.flow_id).or_default();
                flow.weight.fetch_add(job.flow * u64::from(job.numjobs), Ordering::Relaxed);
            }
        }
        beside
    }
}

/// One thread among them, and what it shares with others. It is over when this is dropped.
#[derive(Debug)]
pub(super) struct RunThread {
    beside: Arc<Beside>,
    name: String,
    group: usize,
    ends: Option<ExitWhat>,
    flow: Option<(u64, u64)>,
    /// Check for a steady run, alone or with the jobs that are reported with it.
    steady: Option<Arc<Steady>>,
    /// The operations of the flow.
    operations: AtomicU64,
    /// The zones of each file, with `zbd`, for all jobs that work on it.
    pub(super) zones: Vec<Arc<Zones>>,
}

impl RunThread {
    /// A thread of this job, whose files have these zones.
    pub(super) fn new(beside: &Arc<Beside>, job: &JobOptions, zones: Vec<Arc<Zones>>) -> Self {
        Self {
            beside: Arc::clone(beside),
            name: job.name.clone(),
            group: job.group,
            ends: job.exitall.then_some(job.exit_what),
            flow: (job.flow > 0).then_some((job.flow_id, job.flow)),
            steady: job.steady.map(|wanted| {
                let shared = beside.steady.get(&job.group).filter(|_| job.group_reporting);
                shared.map_or_else(|| Arc::new(Steady::new(wanted)), Arc::clone)
            }),
            operations: AtomicU64::new(0),
            zones,
        }
    }

    /// Returns the check for a steady run, if there is one.
    pub(super) fn steady(&self) -> Option<&Steady> {
        self.steady.as_deref()
    }

    /// Waits until the job may begin, or shall not any more.
    pub(super) fn wait_for_beginning(&self, job: &JobOptions) {
        let waited_for = job.wait_for.as_ref().and_then(|name| self.beside.running.get(name));
        let is_running = || waited_for.is_some_and(|it| it.load(Ordering::Acquire) > 0);
        while is_running() && !self.is_over() {
            thread::sleep(LOOK_EVERY);
        }
        let (from, to) = job.startdelay;
        let begins = Instant::now() + from + to.saturating_sub(from).mul_f64(fastrand::f64());
        while let Some(rest) = begins.checked_duration_since(Instant::now())
            && !rest.is_zero()
            && !self.is_over()
        {
            thread::sleep(rest.min(LOOK_EVERY));
        }
    }

    /// Returns whether another job's end is this one's, too.
    pub(super) fn is_stopped(&self) -> bool {
        let Beside { ended_groups, ended, ended_all, .. } = &*self.beside;
        ended.load(Ordering::Relaxed)
            || ended_all.load(Ordering::Relaxed)
            || self.steady.as_ref().is_some_and(|steady| steady.is_attained())
            || ended_groups.get(&self.group).is_some_and(|it| it.load(Ordering::Relaxed))
    }

    fn is_over(&self) -> bool {
        self.is_stopped() || is_interrupted()
    }

    /// Takes one operation of the flow; not if the job has had more than its part.
    pub(super) fn takes_turn(&self) -> bool {
        let Some((id, weight)) = self.flow else { return true };
        let Some(flow) = self.beside.flows.get(&id) else { return true };
        let own = u128::from(self.operations.load(Ordering::Relaxed));
        let all = u128::from(flow.operations.load(Ordering::Relaxed));
        if own * u128::from(flow.weight.load(Ordering::Relaxed)) > all * u128::from(weight) {
            return false;
        }
        flow.operations.fetch_add(1, Ordering::Relaxed);
        self.operations.fetch_add(1, Ordering::Relaxed);
        true
    }
}

impl Drop for RunThread {
    fn drop(&mut self) {
        if let Some((id, weight)) = self.flow
            && let Some(flow) = self.beside.flows.get(&id)
        {
            // The others share what is left by what they have done.
            flow.weight.fetch_sub(weight, Ordering::Relaxed);
            let own = self.operations.load(Ordering::Relaxed);
            flow.operations.fetch_sub(own, Ordering::Relaxed);
        }
        let groups = &self.beside.ended_groups;
        match (self.ends, groups.get(&self.group)) {
            (Some(ExitWhat::All), _) => self.beside.ended_all.store(true, Ordering::Relaxed),
            (Some(ExitWhat::Stonewall), _) => self.beside.ended.store(true, Ordering::Relaxed),
            (Some(ExitWhat::Group), Some(group)) => group.store(true, Ordering::Relaxed),
            (Some(ExitWhat::Group), None) | (None, _) => {}
        }
        if let Some(running) = self.beside.running.get(&self.name) {
            running.fetch_sub(1, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(name: &str, flow: u64) -> JobOptions {
        JobOptions { name: name.to_owned(), flow, ..JobOptions::default() }
    }

    #[test]
    fn operations_of_a_flow_are_shared_by_weight_until_one_is_over() {
        let jobs = [job("light", 1), job("heavy", 8)];
        let beside = Arc::new(Beside::new(&jobs, &Arc::default()));
        let members = jobs.each_ref().map(|job| RunThread::new(&beside, job, Vec::new()));
        let mut taken = [0_u32; 2];
        for _ in 0..9000 {
            for (member, taken) in members.iter().zip(&mut taken) {
                *taken += u32::from(member.takes_turn());
            }
        }
        let [light, heavy] = taken;
        assert!((heavy / 8).abs_diff(light) <= 2 && light > 900, "{taken:?}");
        let [light, heavy] = members;
        drop(heavy);
        assert!((0..100).all(|_| light.takes_turn()), "nobody is left to wait for");
    }

    #[test]
    fn a_job_ends_those_that_it_says() {
        let all = Arc::<AtomicBool>::default();
        for (what, ended) in [
            (ExitWhat::Group, [true, false, false]),
            (ExitWhat::Stonewall, [true, true, false]),
            (ExitWhat::All, [true, true, true]),
        ] {
            let first = JobOptions { exitall: true, exit_what: what, ..job("first", 0) };
            let jobs = [first, job("same", 0), JobOptions { group: 1, ..job("other", 0) }];
            let beside = Arc::new(Beside::new(&jobs, &all));
            let [first, same, other] =
                jobs.each_ref().map(|job| RunThread::new(&beside, job, Vec::new()));
            assert!(!same.is_stopped());
            drop(first);
            assert_eq!(
                [same.is_stopped(), other.is_stopped(), all.load(Ordering::Relaxed)],
                ended,
                "{what:?}"
            );
        }
    }
}
