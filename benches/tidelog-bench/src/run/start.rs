//! Starting jobs together, and collecting what became of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use tidelog_engine::path::{Capabilities, Feature, PathProvider};

use super::beside::{Beside, RunThread};
use super::interrupt::is_interrupted;
use super::log::{LogJob, Pools, Replay};
use super::processors::pin;
use super::raw::RawJob;
use super::usage::Usage;
use crate::exit::BenchError;
use crate::live::Live;
use crate::load::{BadBlock, Origin, Zones};
use crate::option::{JobOptions, engine_name};
use crate::stats::{Lateness, LiveCounters, Recorder, SteadyResult};
use crate::target::Targets;

/// End of a job.
#[derive(Clone, Debug, Default)]
pub struct JobEnd {
    /// The first operation that failed.
    pub failure: Option<String>,
    /// The first block that was not what had been written.
    pub first_bad: Option<BadBlock>,
    /// Number of bad blocks.
    pub bad: u64,
    /// Number of compared blocks.
    pub verified: u64,
    /// The depth that `latency_target` led to, if it did.
    pub depth: Option<usize>,
    /// Result of the check for a steady run, where that was asked for.
    pub steady: Option<Box<SteadyResult>>,
    /// Lateness of a plan's deadlines, where one was replayed.
    pub lateness: Option<Box<Lateness>>,
}

impl JobEnd {
    /// Remembers the first failure.
    pub(super) fn fail(&mut self, what: String) {
        self.failure.get_or_insert(what);
    }

    /// Counts a bad block, and remembers the first.
    pub(super) fn bad(&mut self, block: BadBlock) {
        self.bad += 1;
        self.first_bad.get_or_insert(block);
    }

    /// Adds how another job ended.
    pub fn merge(&mut self, other: &Self) {
        self.failure = self.failure.take().or_else(|| other.failure.clone());
        self.first_bad = self.first_bad.take().or_else(|| other.first_bad.clone());
        self.depth = self.depth.or(other.depth);
        self.steady = other.steady.clone().or_else(|| self.steady.take());
        self.lateness = self.lateness.take().or_else(|| other.lateness.clone());
        self.bad += other.bad;
        self.verified += other.verified;
    }

    /// Returns whether nothing more shall be begun.
    pub(super) fn is_over(&self, job: &JobOptions, member: &RunThread) -> bool {
        self.failure.is_some()
            || (job.verify_fatal && self.bad > 0)
            || is_interrupted()
            || member.is_stopped()
    }
}

/// One job's result; one of `numjobs`.
#[derive(Debug)]
pub struct JobResult {
    /// Options of the job.
    pub options: JobOptions,
    /// The group, counted from 0.
    pub group: usize,
    /// The counters.
    pub recorder: Recorder,
    /// End of the job.
    pub ended: JobEnd,
    /// The part of what the group cost.
    pub usage: Usage,
    /// Time that the group ran, from its first operation that was counted.
    pub elapsed: Duration,
    /// Data path, for people.
    pub path: Vec<String>,
}

/// Status while jobs run.
pub struct RunStatus<'a> {
    /// Interval of the status; never, if this is not given.
    pub every: Option<Duration>,
    /// Tells what the jobs of a group have done so far.
    pub tell: &'a dyn Fn(Vec<JobResult>) -> Result<(), BenchError>,
}

/// Runs the jobs, group after group.
///
/// # Errors
/// A job could not be made ready. Those of earlier groups ran, and their results are lost.
pub fn run(
    groups: &[Vec<JobOptions>],
    targets: &Targets,
    live: &Live,
    status: &RunStatus,
) -> Result<Vec<JobResult>, BenchError> {
    let run = fastrand::Rng::new().u64(1..);
    let mut results = Vec::new();
    let ended_all = Arc::default();
    let zones = zones_of(groups);
    for (index, jobs) in groups.iter().enumerate() {
        if is_interrupted() || AtomicBool::load(&ended_all, Ordering::Relaxed) {
            break;
        }
        let pools = Pools::open(jobs)?;
        let beside = Arc::new(Beside::new(jobs, &ended_all));
        results.extend(run_group(
            index,
            jobs,
            targets,
            &pools,
            (&beside, &zones),
            run,
            live,
            status,
        )?);
        pools.close()?;
    }
    Ok(results)
}

/// The zones of each file that has any.
type ZonesByFile = BTreeMap<String, Arc<Zones>>;

fn zones_of(groups: &[Vec<JobOptions>]) -> ZonesByFile {
    let mut all = ZonesByFile::new();
    for job in groups.iter().flatten().filter(|job| job.zbd) {
        for file in &job.filename {
            let zones = || Arc::new(Zones::new(job.zonesize, job.max_open_zones));
            all.entry(file.clone()).or_insert_with(zones);
        }
    }
    all
}

/// Result of a thread: its job, and what it counted unless it panicked.
type Run = (JobOptions, Option<(Recorder, JobEnd)>);

struct Thread {
    options: JobOptions,
    counters: Arc<LiveCounters>,
    ready: Receiver<Result<Vec<String>, BenchError>>,
    start: Sender<()>,
    handle: thread::JoinHandle<Option<(Recorder, JobEnd)>>,
}

#[expect(clippy::too_many_arguments, reason = "one call, and each is something else")]
fn run_group(
    group: usize,
    jobs: &[JobOptions],
    targets: &Targets,
    pools: &Pools,
    (beside, zones): (&Arc<Beside>, &ZonesByFile),
    run: u64,
    live: &Live,
    status: &RunStatus,
) -> Result<Vec<JobResult>, BenchError> {
    let mut threads = Vec::new();
    for job in jobs {
        let of_file = |file: &String| zones.get(file).filter(|_| job.zbd).cloned();
        for clone in job.first_clone..job.first_clone + job.numjobs {
            let zones = job.filename.iter().filter_map(of_file).collect();
            let member = Arc::new(RunThread::new(beside, job, zones));
            let provider = targets.provider(job)?;
            let counters = live.watch(group);
            let origin =
                Origin { run, writer: (group as u64) << 32 | threads.len() as u64, pass: 0 };
            threads.push(start_thread(job, clone, member, origin, provider, pools, counters)?);
        }
    }
    let mut paths = Vec::new();
    for thread in &threads {
        let gone = || Err(BenchError::usage("the job's thread ended before it began"));
        // Threads that are ready end when their starter is dropped.
        paths.push(thread.ready.recv().unwrap_or_else(|_| gone())?);
    }
    let ramp = jobs.iter().map(|job| job.ramp_time).max().unwrap_or_default();
    for thread in &threads {
        // One that is gone is missed when it is joined.
        let _ = thread.start.send(());
    }
    live.begin(group, jobs);
    let ramp_over = Instant::now() + ramp;
    let is_running = |thread: &Thread| !thread.handle.is_finished();
    while Instant::now() < ramp_over && threads.iter().any(is_running) {
        thread::sleep((ramp_over - Instant::now()).min(Duration::from_millis(20)));
    }
    let before = Usage::now();
    let begun = Instant::now();
    let count = threads.len() as u32;
    let mut told = begun;
    while let Some(every) = status.every
        && threads.iter().any(is_running)
    {
        thread::sleep(every.min(Duration::from_millis(20)));
        if told.elapsed() >= every {
            told = Instant::now();
            let usage = Usage::now().since(&before).shared_by(count);
            let so_far = |(thread, path): (&Thread, &Vec<String>)| JobResult {
                options: thread.options.clone(),
                group: thread.options.group,
                recorder: copy_of(thread),
                ended: JobEnd::default(),
                usage,
                elapsed: begun.elapsed(),
                path: path.clone(),
            };
            for thread in &threads {
                thread.counters.want_copy();
            }
            (status.tell)(threads.iter().zip(&paths).map(so_far).collect())?;
        }
    }
    let ended: Vec<_> = threads
        .into_iter()
        .map(|thread| (thread.options, thread.handle.join().unwrap_or_default()))
        .collect();
    let (usage, elapsed) = (Usage::now().since(&before).shared_by(count), begun.elapsed());
    live.end();

    let result = |((options, ended), path): (Run, Vec<String>)| {
        let (recorder, ended) = ended.unwrap_or_else(|| {
            let failure = Some("the job's thread panicked; this is a bug".to_owned());
            (Recorder::empty(), JobEnd { failure, ..JobEnd::default() })
        });
        let group = options.group;
        JobResult { options, group, recorder, ended, usage, elapsed, path }
    };
    Ok(ended.into_iter().zip(paths).map(result).collect())
}

fn start_thread(
    job: &JobOptions,
    clone: u32,
    member: Arc<RunThread>,
    origin: Origin,
    provider: Option<Box<dyn PathProvider>>,
    pools: &Pools,
    counters: Arc<LiveCounters>,
) -> Result<Thread, BenchError> {
    let (tell, ready) = channel();
    let (start, begin) = channel();
    let (options, seen) = (job.clone(), Arc::clone(&counters));
    let pool = pools.of(job);
    let body = move || {
        let made = pin(&options, clone).and_then(|()| match (provider, options.plan.clone()) {
            (Some(provider), _) => RawJob::prepare(&options, clone, &member, origin, provider)
                .map(|job| Job::Raw(Box::new(job))),
            (None, Some(plan)) => {
                Replay::prepare(&options, &member, plan, pool).map(|job| Job::Replay(Box::new(job)))
            }
            (None, None) => LogJob::prepare(&options, clone, &member, origin, pool)
                .map(|job| Job::Log(Box::new(job))),
        });
        let job = match made {
            Ok(job) => job,
            Err(error) => {
                let _ = tell.send(Err(error));
                return None;
            }
        };
        tell.send(Ok(job.path())).ok()?;
        begin.recv().ok()?;
        // This thread is the last to have it: the job is over when it is.
        member.wait_for_beginning(&options);
        let mut recorder = Recorder::new(options.ramp_time, options.lat_percentiles, counters);
        if options.logs.is_any() {
            recorder = recorder.with_timeline(options.logs.window);
        }
        let ended = match job {
            Job::Raw(job) => job.run(&mut recorder),
            Job::Log(job) => job.run(&mut recorder),
            Job::Replay(job) => job.run(&mut recorder),
        };
        recorder.leave_copy();
        Some((recorder, ended))
    };
    let handle = thread::Builder::new().name(format!("job-{}", job.name)).spawn(body);
    let handle = handle.map_err(|source| BenchError::System {
        what: "cannot start a thread".to_owned(),
        source,
    })?;
    Ok(Thread { options: job.clone(), counters: seen, ready, start, handle })
}

/// Copies the counters of a job. One that waits for an operation is waited for, but not long: what
/// it had counted before is told then.
fn copy_of(thread: &Thread) -> Recorder {
    let until = Instant::now() + Duration::from_millis(500);
    while thread.counters.awaits_copy() && !thread.handle.is_finished() && Instant::now() < until {
        thread::sleep(Duration::from_millis(1));
    }
    thread.counters.copy().unwrap_or_else(Recorder::empty)
}

enum Job {
    Raw(Box<RawJob>),
    Log(Box<LogJob>),
    Replay(Box<Replay>),
}

impl Job {
    fn path(&self) -> Vec<String> {
        match self {
            Self::Raw(job) => describe(&job.capabilities()),
            Self::Log(job) => describe(&job.capabilities()),
            Self::Replay(job) => describe(&job.capabilities()),
        }
    }
}

/// Describes a data path, in lines for people.
fn describe(capabilities: &Capabilities) -> Vec<String> {
    let feature = |name: &str, feature: &Feature| match feature {
        Feature::On => format!("{name}: registered"),
        Feature::Off(why) => format!("{name}: not registered, {why}"),
    };
    let mut lines = vec![
        engine_name(capabilities.kind),
        feature("buffers", &capabilities.registered_buffers),
        feature("files", &capabilities.registered_files),
    ];
    lines.extend(capabilities.notes.iter().cloned());
    lines
}
