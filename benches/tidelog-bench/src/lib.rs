//! Measures Tidelog's data paths and its log, in fio's words.
//!
//! One table of options ([`option`]) makes the command line ([`cli`]) and job files ([`jobfile`]).
//! What may be written is decided first ([`target`]); then the jobs run ([`run`]), each on a thread
//! that drives a data path, or puts and gets tensors, in the order that [`load`] decides, and
//! counts ([`stats`]) what is then reported ([`report`]) as fio reports it.

pub mod cli;
pub mod direction;
pub mod disks;
pub mod exit;
pub mod figures;
pub mod holder;
pub mod jobfile;
pub mod live;
pub mod load;
pub mod option;
pub mod output;
pub mod permutation;
pub mod report;
pub mod run;
pub mod stats;
pub mod target;
pub mod workload;

use std::cell::RefCell;
use std::sync::Arc;

use cli::{BenchRequest, Format};
use disks::Disks;
use exit::BenchError;
use live::Live;
use option::value::Amount;
use option::{JobOptions, Level};
use output::{LogFiles, OutputTarget};
use report::GroupReport;
use run::{JobEnd, RunStatus};
use target::{FoundTarget, Targets};
use tidelog_command_line::{BenchExit, complain, completions_of};
use tidelog_engine::path::PathKind;
use workload::Workload;

/// Does what was asked for, and returns how it went.
///
/// # Errors
/// Nothing, or not everything, could be measured.
pub fn execute(request: &BenchRequest) -> Result<BenchExit, BenchError> {
    if let Some(shell) = request.completions {
        output::say(&completions_of(&mut cli::command(), shell))?;
        return Ok(BenchExit::Clean);
    }
    if request.jobs.is_empty() {
        return Err(BenchError::usage(
            "there is no job: give --name=NAME and options, or a job file; --help shows examples",
        ));
    }
    let jobs = option::with_content(option::with_files(&request.jobs)?)?;
    jobs.iter().try_for_each(JobOptions::check)?;
    if let Some(job) = jobs.iter().find(|job| request.readonly && job.load.changes()) {
        return Err(BenchError::usage("readonly: this job writes").within(&job.name));
    }
    option::check_zones(&jobs)?;
    option::check_steady(&jobs)?;
    let jobs = jobs.iter().map(with_plan).collect::<Result<Vec<_>, _>>()?;
    if request.parse_only {
        return Ok(BenchExit::Clean);
    }
    // Before anything is claimed: who sees the claim may send a signal.
    run::take_signals()
        .map_err(|source| BenchError::System { what: "cannot take signals".to_owned(), source })?;
    // Lives until the end: it holds what may be written open, and block devices claimed.
    let mut targets = Targets::default();
    targets.look_at(&jobs)?;
    let output = OutputTarget::open(request)?;
    let mut logs = LogFiles::open(&jobs, request)?;
    jobs.iter().try_for_each(|job| admit(job, &mut targets))?;
    let groups = groups(&jobs);
    if request.formats.contains(&Format::Normal) {
        for job in groups.iter().flatten() {
            output::say(&report::introduction(job, job.group))?;
        }
    }
    let disks = Disks::under(&jobs);
    let output = RefCell::new(output);
    let tell =
        |results| write(request, &report::reports(results), &disks, &mut output.borrow_mut());
    let status = RunStatus { every: request.status_interval, tell: &tell };
    let results = run::run(&groups, &targets, &Live::new(request.eta), &status)?;
    let logged = logs.write(&results);
    let reports = report::reports(results);
    let told = write(request, &reports, &disks, &mut output.borrow_mut()).and(logged);
    match (verdict(&reports), told) {
        (BenchExit::Clean, Err(error)) => Err(error),
        (BenchExit::Clean, Ok(())) if run::is_interrupted() => Ok(BenchExit::Interrupted),
        (exit, told) => {
            // How the jobs went says more than where the results are.
            told.unwrap_or_else(|error| complain(&error.to_string()));
            Ok(exit)
        }
    }
}

/// A job with the plan that it is to replay, and room for that.
fn with_plan(job: &JobOptions) -> Result<JobOptions, BenchError> {
    let mut job = job.clone();
    if let (Some(workload), Some(trace)) = (&job.workload, &job.trace) {
        let plan = Workload::read(workload, trace).map_err(|error| error.within(&job.name))?;
        job.size = Some(Amount::Bytes(plan.bytes()));
        job.plan = Some(Arc::new(plan));
    }
    Ok(job)
}

/// Makes sure that a job may use its devices; makes the pool of a log job whose devices hold
/// nothing.
fn admit(job: &JobOptions, targets: &mut Targets) -> Result<(), BenchError> {
    match (job.level, job.engine()?) {
        (_, PathKind::Sim) => Ok(()),
        (Level::Raw, _) => targets.admit_raw(job),
        (Level::Log, _) => match targets.admit_log(job)? {
            FoundTarget::Pool => Ok(()),
            FoundTarget::Free { named_twice } => run::make_pool(job, &named_twice),
        },
    }
}

/// Jobs that run side by side; one that waits for those before it begins a group.
fn groups(jobs: &[JobOptions]) -> Vec<Vec<JobOptions>> {
    let mut groups: Vec<Vec<JobOptions>> = Vec::new();
    for job in jobs {
        match groups.last_mut() {
            Some(group) if !job.stonewall => group.push(job.clone()),
            _ => groups.push(vec![job.clone()]),
        }
    }
    groups
}

fn write(
    request: &BenchRequest,
    reports: &[GroupReport],
    disks: &Disks,
    output: &mut OutputTarget,
) -> Result<(), BenchError> {
    let is_wanted = request.jobs.iter().all(|job| job.disk_util);
    let disks = if is_wanted { disks.since() } else { Vec::new() };
    let json = |plus| format!("{:#}\n", report::document(reports, &request.global, &disks, plus));
    let text = |format: &Format| match format {
        Format::Normal => report::text(reports, &disks),
        Format::Terse => report::lines(reports),
        Format::Json => json(false),
        Format::JsonPlus => json(true),
    };
    output.write(&request.formats.iter().map(text).collect::<String>())
}

/// The exit code, and a line on standard error for each job that went wrong, whatever the format.
fn verdict(reports: &[GroupReport]) -> BenchExit {
    let mut exit = BenchExit::Clean;
    for report in reports {
        let GroupReport { options, ended, .. } = report;
        if !options.ramp_time.is_zero() && report.stats.iter().all(|stats| stats.ios == 0) {
            let what = "ramp_time was not over when the job ended: nothing was counted";
            complain(&format!("{}: {what}", options.name));
        }
        if let Some(bad) = &ended.first_bad {
            complain(&format!("{}: {bad}", options.name));
            let JobEnd { bad, verified, .. } = ended;
            complain(&format!("{}: {bad} of {verified} blocks are bad", options.name));
            exit = BenchExit::BadData;
        }
        if let Some(failure) = &ended.failure {
            complain(&format!("{}: {failure}", options.name));
            exit = if exit == BenchExit::Clean { BenchExit::Failed } else { exit };
        }
    }
    exit
}
