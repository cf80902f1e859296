//! The command line: fio's `--name=value`, in the order in which it was given.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Command, ValueHint, value_parser};
use clap_complete::Shell;
use tidelog_command_line::BenchExit;

use crate::exit::BenchError;
use crate::jobfile;
use crate::live::Eta;
use crate::option::value::time;
use crate::option::{JobOptions, OPTIONS, SETTLED, apply, no_option};

const ABOUT: &str = "Measures Tidelog's data paths and its log, in fio's words";

const ABOUT_RUNS: &str = "\
Options before the first --name apply to all jobs. --name=NAME begins a job, and the options after it
are its own. Job files have a [global] section and one section for each job, as in fio.

A device or file in use is never written. One that holds anything is written only if it is named
twice, in filename and in overwrite. Reading needs no such permission. A file that does not exist is
made. Only the data path that ioengine names is used: if it does not work here, the run ends.

ioengine=tidelog-spdk, in builds with the feature spdk, takes controllers that the kernel does not
drive, by PCI address or transport id: filename=spdk\\:0000\\:01\\:00.0. Such a controller belongs to
one process, and at the raw level to one job at a time.

At the log level filename names the devices of a pool; of blank devices a pool is made. Jobs put and
get scratch tensors under names of their own, and delete them at the end: the pool's tensors stay.

A run locks the devices that it writes raw until its end. Another run or pool that wants one is
refused, and the error names the process. Files for which the file system lacks space are refused
before any is made.

verify=crc32c stamps each block with its place, the run, the job and the pass, so that a flipped,
misplaced, old or lost block is found. If jobs share blocks, it is not known which job wrote last.

A plan (workload and trace, as tidelog-plan reads and writes them) is replayed at the log level. Each
op takes the time that the trace says, transfers begin with their op, and an op waits for those that
must be complete before it. The report compares lateness and waiting with what the plan expects.
Evictions of clean tensors, and transfers to host memory, need no device and are left out.

Latencies: slat lasts from the decision to do an operation until all operations that go to the kernel
together are ready. One system call then submits them and waits; it is a part of clat.";

const EXAMPLES: &str = "\
Examples:
  tidelog-bench --name=read --ioengine=tidelog-uring --rw=read --bs=1m --iodepth=32 \\
      --filename=/dev/nvme0n1:/dev/nvme1n1 --runtime=10 --time_based
  tidelog-bench --name=write --ioengine=tidelog-uring --rw=write --bs=1m --iodepth=32 --size=4g \\
      --filename=/mnt/nvme/bench --verify=crc32c
  tidelog-bench --name=log --level=log --ioengine=tidelog-uring --rw=write --bssplit=64k/50:1m/50 \\
      --iodepth=32 --size=2g --filename=/mnt/nvme0/tide:/mnt/nvme1/tide
  tidelog-bench --name=commits --level=log --ioengine=tidelog-uring --rw=write --bs=1m --fsync=64 --size=1g \\
      --filename=/mnt/nvme0/tide --rate=500m --status-interval=10
  tidelog-bench --name=plan --level=log --ioengine=tidelog-uring --workload=plan.json --trace=trace.json \\
      --filename=/mnt/nvme0/tide --loops=3
  tidelog-bench jobs.fio --output-format=json --output=result.json";

/// Returns the text behind the options in the help.
fn after_help() -> String {
    [ABOUT_RUNS, &BenchExit::help(), EXAMPLES].join("\n\n")
}

/// Format of results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Text for people.
    #[default]
    Normal,
    /// One line of numbers for each job.
    Terse,
    /// fio's JSON.
    Json,
    /// JSON with every latency that occurred.
    JsonPlus,
}

/// Request of the command line.
#[derive(Debug)]
pub struct BenchRequest {
    /// The jobs, in order.
    pub jobs: Vec<JobOptions>,
    /// Options of all jobs.
    pub global: JobOptions,
    /// Formats of the results, one form after the other.
    pub formats: Vec<Format>,
    /// The job files that were read.
    pub jobfiles: Vec<PathBuf>,
    /// Output file; to standard output if this is not given.
    pub output: Option<PathBuf>,
    /// Display of the status line.
    pub eta: Eta,
    /// Interval at which results so far are written; only in the end if this is not given.
    pub status_interval: Option<Duration>,
    /// True to stop after everything was checked, before anything is opened.
    pub parse_only: bool,
    /// True if jobs that write are refused.
    pub readonly: bool,
    /// Write completions for this shell, and do nothing else.
    pub completions: Option<Shell>,
}

/// The command line as clap knows it.
pub fn command() -> Command {
    let run = "Run";
    let own = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).help(help).help_heading(run)
    };
    let mut command = Command::new("tidelog-bench")
        .version(env!("CARGO_PKG_VERSION"))
        .about(ABOUT)
        .after_help(after_help())
        .arg(
            Arg::new("jobfile")
                .help("Job files")
                .num_args(0..)
                .value_parser(value_parser!(PathBuf))
                .value_hint(ValueHint::FilePath),
        )
        .arg(own("name", "Begins a job of this name").value_name("NAME").action(ArgAction::Append))
        .arg(
            own(
                "output-format",
                "How results are written: normal, terse, json, json+, or several of them [normal]",
            )
            .value_name("FORMAT[,FORMAT]")
            .value_parser(formats),
        )
        .arg(own("minimal", "The same as --output-format=terse").action(ArgAction::SetTrue))
        .arg(own("append-terse", "Also write terse lines").action(ArgAction::SetTrue))
        .arg(
            own("output", "Write results to this file")
                .value_name("FILE")
                .value_parser(value_parser!(PathBuf))
                .value_hint(ValueHint::FilePath),
        )
        .arg(
            own("eta", "Show the status line: on a terminal (auto), always, never [auto]")
                .value_name("WHEN")
                .value_parser(["auto", "always", "never"]),
        )
        .arg(
            own("status-interval", "Also write the results so far, at this interval: 5, 500ms")
                .value_name("TIME")
                .value_parser(time),
        )
        .arg(
            own("section", "Run only this section of the job files; may be given several times")
                .value_name("NAME")
                .action(ArgAction::Append),
        )
        .arg(
            own("parse-only", "Check options and job files, and do nothing")
                .action(ArgAction::SetTrue),
        )
        .arg(own("readonly", "Refuse jobs that write or trim").action(ArgAction::SetTrue))
        .arg(
            own("completions", "Write completions for a shell to standard output")
                .value_name("SHELL")
                .value_parser(value_parser!(Shell)),
        );
    // What changes nothing here is taken, as it often stands on fio's command lines.
    let unused = ["eta-newline", "eta-interval"].map(|name| Arg::new(name).long(name).hide(true));
    command = command
        .args(unused)
        .arg(Arg::new("terse-version").long("terse-version").hide(true).value_parser(["3"]));
    for (name, ..) in SETTLED {
        let arg = Arg::new(*name).long(*name).hide(true).action(ArgAction::Append);
        command = command.arg(arg.num_args(0..=1).require_equals(true).default_missing_value("1"));
    }
    for spec in OPTIONS {
        let arg = Arg::new(spec.name)
            .long(spec.name)
            .visible_aliases(spec.aliases.iter().copied())
            .help(spec.help)
            .help_heading(spec.group.heading())
            .action(ArgAction::Append);
        command = command.arg(if spec.value.is_empty() {
            // A switch may stand alone.
            arg.value_name("0|1").num_args(0..=1).require_equals(true).default_missing_value("1")
        } else {
            arg.value_name(spec.value)
        });
    }
    command
}

/// One form, or several.
fn formats(text: &str) -> Result<Vec<Format>, String> {
    let format = |word: &str| match word.trim() {
        "normal" => Ok(Format::Normal),
        "terse" | "minimal" => Ok(Format::Terse),
        "json" => Ok(Format::Json),
        "json+" => Ok(Format::JsonPlus),
        _ => Err("there are normal, terse, json and json+".to_owned()),
    };
    text.split(',').map(format).collect()
}

fn formats_of(matches: &ArgMatches) -> Vec<Format> {
    let given = matches.get_one::<Vec<Format>>("output-format").cloned();
    let mut formats = match given {
        None if matches.get_flag("minimal") => vec![Format::Terse],
        None => vec![Format::Normal],
        Some(given) => given,
    };
    if matches.get_flag("append-terse") && !formats.contains(&Format::Terse) {
        formats.push(Format::Terse);
    }
    formats
}

/// All options of a command line that there are not, if that is why clap refuses it.
pub fn unknown(
    refused: &clap::Error,
    arguments: impl Iterator<Item = String>,
) -> Option<BenchError> {
    if refused.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let known = command();
    let is_known = |name: &str| {
        let mut all = known.get_arguments().filter_map(Arg::get_long_and_visible_aliases);
        ["help", "version"].contains(&name) || all.any(|them| them.contains(&name))
    };
    let names = arguments.filter_map(|argument| {
        let name = argument.strip_prefix("--")?.split('=').next()?.to_owned();
        (!name.is_empty() && !is_known(&name)).then_some(name)
    });
    let told: Vec<String> = names.map(|name| no_option(&name)).collect();
    (!told.is_empty()).then(|| BenchError::usage(told.join("\n  ")))
}

/// Parses the request.
///
/// # Errors
/// It makes no sense.
pub fn request(matches: &ArgMatches) -> Result<BenchRequest, BenchError> {
    let (global, mut jobs) = from_options(matches)?;
    let sections: Vec<String> =
        matches.get_many("section").into_iter().flatten().cloned().collect();
    for path in matches.get_many::<PathBuf>("jobfile").into_iter().flatten() {
        let place = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|source| match source.kind() {
            std::io::ErrorKind::InvalidData => {
                let what = "this is no text; a job file has [sections] and lines of option=value";
                BenchError::usage(what).within(&place)
            }
            _ => BenchError::System { what: place.clone(), source },
        })?;
        let directory = path.parent().unwrap_or(Path::new(""));
        let parsed = jobfile::parse(&text, &global, &sections, directory);
        jobs.extend(parsed.map_err(|error| error.within(&place))?);
    }
    let word = |name: &str| matches.get_one::<String>(name).map(String::as_str);
    Ok(BenchRequest {
        jobs,
        global,
        formats: formats_of(matches),
        jobfiles: matches.get_many("jobfile").into_iter().flatten().cloned().collect(),
        output: matches.get_one("output").cloned(),
        eta: match word("eta") {
            Some("always") => Eta::Always,
            Some("never") => Eta::Never,
            _ => Eta::Auto,
        },
        status_interval: matches
            .get_one("status-interval")
            .copied()
            .filter(|it: &Duration| !it.is_zero()),
        parse_only: matches.get_flag("parse-only"),
        readonly: matches.get_flag("readonly"),
        completions: matches.get_one("completions").copied(),
    })
}

/// Returns the options of all jobs, and the jobs, of the options in their order.
fn from_options(matches: &ArgMatches) -> Result<(JobOptions, Vec<JobOptions>), BenchError> {
    let mut given: Vec<(usize, &str, &String)> = Vec::new();
    for name in
        OPTIONS.iter().map(|spec| spec.name).chain(SETTLED.iter().map(|it| it.0)).chain(["name"])
    {
        let indices = matches.indices_of(name).into_iter().flatten();
        let values = matches.get_many::<String>(name).into_iter().flatten();
        given.extend(indices.zip(values).map(|(index, value)| (index, name, value)));
    }
    given.sort_unstable_by_key(|(index, ..)| *index);
    let mut global = JobOptions::default();
    let mut jobs: Vec<JobOptions> = Vec::new();
    let mut in_global = true;
    let mut wrong: Vec<BenchError> = Vec::new();
    for (_, name, value) in given {
        if name == "name" {
            in_global = value == "global";
            if !in_global {
                jobs.push(JobOptions { name: value.clone(), ..global.clone() });
            }
            continue;
        }
        let set = match jobs.last_mut() {
            Some(job) if !in_global => {
                let place = job.name.clone();
                apply(job, name, value).map_err(|error| error.within(&place))
            }
            _ => apply(&mut global, name, value),
        };
        wrong.extend(set.err());
    }
    match wrong.len() {
        0 => Ok((global, jobs)),
        1 => Err(wrong.remove(0)),
        _ => {
            let told: Vec<String> = wrong.iter().map(ToString::to_string).collect();
            Err(BenchError::usage(told.join("\n  ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::option::Sizes;

    fn parse(arguments: &[&str]) -> Result<BenchRequest, BenchError> {
        let line = ["tidelog-bench"].iter().chain(arguments);
        request(&command().try_get_matches_from(line).unwrap())
    }

    #[test]
    fn the_help_has_sentences_only() {
        let help = after_help();
        assert!(help.lines().all(|line| line.is_empty() || line.contains([' ', ':'])), "{help}");
    }

    #[test]
    fn the_table_makes_a_command_line() {
        command().debug_assert();
    }

    #[test]
    fn options_belong_to_the_job_named_before_them() {
        let request = parse(&[
            "--bs=8k",
            "--name=a",
            "--rw=write",
            "--time_based",
            "--name",
            "b",
            "--bs",
            "1m",
            "--name=global",
            "--iodepth=4",
            "--name=c",
            "--time_based=0",
        ])
        .unwrap();
        let [a, b, c] = &request.jobs[..] else { panic!("{:?}", request.jobs) };
        assert_eq!((a.name.as_str(), &a.sizes, a.load.writes), ("a", &Sizes::One(8192), true));
        assert!(a.time_based && !b.time_based && !c.time_based);
        assert_eq!((&b.sizes, b.load.writes, b.iodepth), (&Sizes::One(1 << 20), false, 1));
        assert_eq!((c.iodepth, &c.sizes), (4, &Sizes::One(8192)));
    }

    #[test]
    fn a_mistake_names_its_job() {
        let error = parse(&["--name=first", "--bs=4k", "--name=second", "--bs=big"]).unwrap_err();
        assert!(error.to_string().starts_with("second: bs=big: "), "{error}");
    }
}
