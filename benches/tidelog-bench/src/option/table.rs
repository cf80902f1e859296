//! The options: names, help, and what each sets.

use std::num::NonZero;
use std::time::Duration;

use tidelog_engine::path::{DEVICES_MAX, SubmissionThread};
use tidelog_engine::units::ByteCount;

use super::distribution::Distribution;
use super::engine::engine_named;
use super::job::JobOptions;
use super::kernel::{
    for_reads_and_writes, memory_policy, percentages, priority_class, priority_level,
};
use super::load::Load;
use super::refused::{no_option, settled};
use super::sizes::Sizes;
use super::steady::SteadyState;
use super::value::{
    amount, bytes, colon_list, delay, nodes, number, percent, processors, switch, time, time_in,
};
use super::words::{
    always, at_most, dedupe_mode, directory, exit_what, for_directions, for_each_direction,
    generator, kb_base, kind_of_verify, level, nvme_commands, overwrite, percentage, percentiles,
    policy, rate_process, size_range, submit_mode, sync, zonemode,
};
use crate::exit::BenchError;

/// Group of options: a heading of the help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionGroup {
    /// Options on the load.
    Load,
    /// Options on the target.
    Target,
    /// Options on the time.
    Time,
    /// Verification of what was read.
    Verify,
    /// Options on the report.
    Report,
}

impl OptionGroup {
    /// The heading.
    pub fn heading(self) -> &'static str {
        match self {
            Self::Load => "Load",
            Self::Target => "Devices",
            Self::Time => "How much and how long",
            Self::Verify => "Verification",
            Self::Report => "Reports",
        }
    }
}

/// Sets an option from its value.
type Apply = fn(&mut JobOptions, &str) -> Result<(), BenchError>;

/// One option of a job.
#[derive(Debug)]
pub struct OptionSpec {
    /// Name of the option, fio's where fio has it.
    pub name: &'static str,
    /// Alternative names.
    pub aliases: &'static [&'static str],
    /// Placeholder of its value in the help. Empty for a switch, whose value may be left out.
    pub value: &'static str,
    /// Group of the option.
    pub group: OptionGroup,
    /// Description in a line.
    pub help: &'static str,
    /// Function that sets the option.
    pub apply: Apply,
}

macro_rules! option {
    ($group:ident, $name:literal $(, [$($alias:literal),*])?, $value:literal, $help:literal, |$job:ident, $text:ident| $set:expr) => {
        OptionSpec {
            name: $name,
            aliases: &[$($($alias),*)?],
            value: $value,
            group: OptionGroup::$group,
            help: $help,
            apply: |$job, $text| {
                let set = || -> Result<(), String> {
                    $set;
                    Ok(())
                };
                named($name, $text, set)
            },
        }
    };
}

/// Says which option a value was given to.
fn named(
    name: &str,
    text: &str,
    set: impl FnOnce() -> Result<(), String>,
) -> Result<(), BenchError> {
    set().map_err(|what| BenchError::usage(format!("{name}={text}: {what}")))
}

/// Every option of a job.
#[rustfmt::skip] // Two lines for each option, so that it reads as the table that it is.
pub const OPTIONS: &[OptionSpec] = &[
    option!(Load, "rw", ["readwrite"], "LOAD", "read, write, rw, trim, trimwrite (each block \
        trimmed, then written), or the same with rand before it [read]. read:-8k and write:64k \
        add this many bytes between operations. Only block devices are trimmed",
        |job, text| job.load = Load::named(text, job.kb_base)?),
    OptionSpec {
        name: "ioengine",
        aliases: &[],
        value: "PATH",
        group: OptionGroup::Load,
        help: "The data path: tidelog-uring, tidelog-uring-cmd (NVMe commands to whole \
        namespaces), tidelog-posix, tidelog-spdk (controllers without the kernel) or \
        tidelog-sim. No other one is used",
        apply: |job, text| {
            job.engine = Some(engine_named(text)?);
            Ok(())
        },
    },
    option!(Load, "level", "LEVEL", "raw: bytes of devices; log: puts and gets of tensors of a pool [raw]",
        |job, text| job.level = level(text)?),
    option!(Load, "bs", ["blocksize"], "SIZE[,SIZE,SIZE]", "Bytes of an operation, or of a tensor; several values are for reads, writes and trims [4k]",
        |job, text| job.sizes = Sizes::one(text, job.kb_base)?),
    option!(Load, "bsrange", ["blocksize_range"], "SIZE-SIZE", "Operations or tensors of every multiple of the first up to the second",
        |job, text| job.sizes = Sizes::range(text, job.kb_base)?),
    option!(Load, "bssplit", "SIZE/PERCENT:...", "Operations or tensors of several sizes, by weight: 4k/10:64k/50:1m/40",
        |job, text| job.sizes = Sizes::split(text, job.kb_base)?),
    option!(Load, "iodepth", "COUNT", "Operations, or transfers of tensors, in flight [1]",
        |job, text| job.iodepth = at_most(text, 1, 8192)?),
    option!(Load, "iodepth_batch", ["iodepth_batch_submit"], "COUNT", "Operations that go to the kernel together [0: all that can begin; fio: 1]",
        |job, text| job.queue.submit = at_most(text, 0, 8192)?),
    option!(Load, "iodepth_batch_complete_min", ["iodepth_batch_complete"], "COUNT", "Operations that are waited for before any is taken as complete [1]",
        |job, text| job.queue.complete[0] = at_most(text, 0, 8192)?),
    option!(Load, "iodepth_batch_complete_max", "COUNT", "Operations that are taken as complete together, at most [0: all that are]",
        |job, text| job.queue.complete[1] = at_most(text, 0, 8192)?),
    option!(Load, "iodepth_low", "COUNT", "A full queue is filled again when no more than this are in flight [iodepth: at once]",
        |job, text| job.queue.low = at_most(text, 0, 8192)?),
    option!(Load, "numjobs", "COUNT", "Runs the job this many times side by side, each on a thread with a queue of its own [1]",
        |job, text| job.numjobs = at_most(text, 1, 1024)?),
    option!(Load, "blockalign", ["ba"], "SIZE", "Random operations begin at multiples of this; as norandommap [bs]",
        |job, text| job.blockalign = bytes(text, job.kb_base)?),
    option!(Load, "percentage_random", "PERCENT[,PERCENT,PERCENT]", "How many operations of a random load are random, the others \
        follow the one before; below 100 as norandommap [100]",
        |job, text| job.percentage_random = for_directions(text, percent)?),
    option!(Load, "workload", "PLAN", "At the log level: replay this plan's puts and gets, and report how late they were. An op only takes its time",
        |job, text| job.workload = Some(text.to_owned())),
    option!(Load, "trace", "TRACE", "The trace that the plan of workload was made from",
        |job, text| job.trace = Some(text.to_owned())),
    option!(Load, "rwmixread", "PERCENT", "Part of a mix that reads [50]",
        |job, text| job.rwmixread = percent(text)?),
    option!(Load, "rwmixwrite", "PERCENT", "Part of a mix that writes [50]",
        |job, text| job.rwmixread = 100 - percent(text)?),
    option!(Load, "rate", "SIZE[,SIZE,SIZE]", "At most this many bytes a second; several values are for reads, writes and trims",
        |job, text| job.rate = for_each_direction(text, |text| bytes(text, job.kb_base))?),
    option!(Load, "rate_iops", "COUNT[,COUNT,COUNT]", "At most this many operations a second; several values are for reads, writes and trims",
        |job, text| job.rate_iops = for_each_direction(text, |text| number(text, 0))?),
    option!(Load, "rate_min", ["ratemin"], "SIZE[,SIZE,SIZE]", "End the job if it moves fewer bytes a second than this over a ratecycle, after its first 2 s",
        |job, text| job.rate_min = for_each_direction(text, |text| bytes(text, job.kb_base))?),
    option!(Load, "ratecycle", ["rate_cycle"], "MILLISECONDS", "How long rate_min averages [1000]",
        |job, text| job.rate_cycle = Duration::from_millis(number(text, 1)?)),
    option!(Load, "rate_process", "KIND", "How operations under rate or rate_iops follow each other: linear, at even distances, or poisson [linear]",
        |job, text| job.poisson = rate_process(text)?),
    option!(Load, "thinktime", "TIME", "After thinktime_blocks operations, wait for those in flight, then for this time; microseconds without a unit [0]",
        |job, text| job.thinktime = time_in(text, 1)?),
    option!(Load, "thinktime_blocks", "COUNT", "How many operations come before each thinktime [1]",
        |job, text| job.thinktime_blocks = number(text, 1)?),
    option!(Load, "flow", "WEIGHT", "Jobs that run side by side with the same flow_id do as many operations as these weights say [0: as fast as they can]",
        |job, text| job.flow = number(text, 0)?),
    option!(Load, "flow_id", "NUMBER", "Which jobs flow belongs to [0]",
        |job, text| job.flow_id = number(text, 0)?),
    option!(Load, "flow_sleep", "MICROSECONDS", "How long a job that is ahead of its flow waits, with nothing in flight, before it checks again [0: it polls]",
        |job, text| job.flow_sleep = Duration::from_micros(number(text, 0)?)),
    option!(Load, "latency_target", "TIME", "Find the largest depth up to iodepth at which \
        latencies stay below this, measure it, and end; microseconds without a unit",
        |job, text| job.latency_target = Some(time_in(text, 1)?).filter(|time| !time.is_zero())),
    option!(Load, "latency_window", "TIME", "How long each depth is tried; microseconds without a unit",
        |job, text| job.latency_window = time_in(text, 1)?),
    option!(Load, "latency_percentile", "PERCENT", "How many operations stay below latency_target [100]",
        |job, text| job.latency_percentile = percentage(text)?),
    option!(Load, "io_submit_mode", "MODE", "inline, or, where the data path has threads that submit (tidelog-posix), offload [as the data path does]",
        |job, text| job.offload = Some(submit_mode(text)?)),
    option!(Load, "random_distribution", "KIND", "Where random operations go: random, \
        zipf:THETA, pareto:POWER, normal:PERCENT, zoned:ACCESSES/SPACE:..., \
        zoned_abs:ACCESSES/SIZE:... [random]",
        |job, text| job.distribution = Distribution::read(text, job.kb_base)?),
    option!(Load, "random_generator", "KIND", "lfsr: random blocks come in the order of a linear feedback shift register. The default has no name in fio",
        |job, text| job.lfsr = generator(text)?),
    option!(Load, "randrepeat", ["allrandrepeat"], "", "The same random numbers in each run [1]; 0: different ones in each run",
        |job, text| job.randrepeat = switch(text)?),
    option!(Load, "randseed", "NUMBER", "Decides everything random; the same seed gives the same run [0]",
        |job, text| job.randseed = number(text, 0)?),
    option!(Load, "norandommap", "", "A random block may be taken again before all others were taken",
        |job, text| job.norandommap = switch(text)?),
    option!(Load, "refill_buffers", "", "Fill buffers again before each write [0: they are filled once, and written again and again]",
        |job, text| job.content.refill = switch(text)?),
    option!(Load, "zero_buffers", "", "Write zeros [0]",
        |job, text| job.content.compress = if switch(text)? { 100 } else { 0 }),
    option!(Load, "dedupe_percentage", "PERCENT", "How many of the blocks written are copies of another block; fills buffers before each write [0]",
        |job, text| job.content.dedupe = percent(text)?),
    option!(Load, "dedupe_mode", "MODE", "Copies of which block: the one before (repeat), or one of the working set (working_set) [repeat]",
        |job, text| job.content.working_set = dedupe_mode(text)?),
    option!(Load, "dedupe_working_set_percentage", "PERCENT", "The size of the working set, as a part of size [5]",
        |job, text| job.content.working_set_percentage = percent(text)?),
    option!(Load, "dedupe_global", "", "Jobs with this option share one working set [0]",
        |job, text| job.content.global = switch(text)?),
    option!(Load, "buffer_compress_percentage", "PERCENT", "How much each block compresses: random bytes, then zeros; fills buffers before each write [0]",
        |job, text| job.content.compress = percent(text)?),
    option!(Load, "cpus_allowed", "SET", "Processors to run on: 0-3,8",
        |job, text| job.cpus_allowed = processors(text)?),
    option!(Load, "cpus_allowed_policy", "POLICY", "shared: all of numjobs run on any of cpus_allowed; split: each on one of them [shared]",
        |job, text| job.cpus_split = policy(text)?),
    option!(Load, "numa_cpu_nodes", "SET", "Run on the processors of these NUMA nodes: 0,2-3, or all",
        |job, text| job.numa_cpu_nodes = Some(nodes(text)?)),
    option!(Load, "numa_mem_policy", "POLICY", "Which NUMA nodes the job's memory comes from: \
        default, local, prefer:NODE, bind:NODES, interleave:NODES [default]",
        |job, text| job.kernel.memory = Some(memory_policy(text)?)),
    option!(Load, "prioclass", "CLASS", "With tidelog-uring, the priority class of operations in \
        the kernel: 1, real time; 2, best effort; 3, idle [the thread's]",
        |job, text| job.kernel.priorities.class = priority_class(text)?),
    option!(Load, "prio", "LEVEL", "The priority within prioclass: 0 (highest) to 7 [0]",
        |job, text| job.kernel.priorities.level = priority_level(text)?),
    option!(Load, "cmdprio_percentage", "PERCENT[,PERCENT]", "How many operations have the \
        priority of cmdprio_class and cmdprio; two values are for reads and writes [0]",
        |job, text| job.kernel.priorities.percentage = percentages(text)?),
    option!(Load, "cmdprio_class", "CLASS[,CLASS]", "The class of these operations, as for prioclass [1]",
        |job, text| job.kernel.priorities.other_class = for_reads_and_writes(text, priority_class)?),
    option!(Load, "cmdprio", "LEVEL[,LEVEL]", "The priority of these operations, as for prio [0]",
        |job, text| job.kernel.priorities.other_level = for_reads_and_writes(text, priority_level)?),
    option!(Load, "sqthread_poll", "", "With tidelog-uring and tidelog-uring-cmd, a thread of the kernel polls for submissions [0]",
        |job, text| job.kernel.submission = switch(text)?.then(|| job.kernel.submission.unwrap_or_default())),
    option!(Load, "sqthread_poll_cpu", "PROCESSOR", "The processor on which the thread of sqthread_poll runs [any]",
        |job, text| job.kernel.submission = Some(SubmissionThread { processor: Some(at_most(text, 0, 4095)?) })),
    option!(Target, "filename", "NAME:NAME", "Devices or files, separated by colons (a colon in \
        a name is \\:, as in spdk\\:0000\\:01\\:00.0). Operations go to them in turn",
        |job, text| job.filename = colon_list(text)),
    option!(Target, "directory", "NAME", "The directory of the files, of those in filename too",
        |job, text| job.directory = Some(directory(text)?)),
    option!(Target, "nrfiles", "COUNT", "Files of a job without filename, which are called JOB.NUMBER.FILE as in fio [1]",
        |job, text| job.nrfiles = at_most(text, 1, DEVICES_MAX as u32)?),
    option!(Target, "filesize", "SIZE[-SIZE]", "Bytes of each file, as chance has it within a range; \
        size, if it is given too, then says how many bytes are moved",
        |job, text| job.filesize = Some(size_range(text, job.kb_base)?)),
    option!(Target, "allow_file_create", "", "Make files that do not exist [1]",
        |job, text| job.allow_file_create = switch(text)?),
    option!(Target, "overwrite", "NAME:NAME", "Devices or files that may lose what they hold: names of filename, repeated letter for letter",
        |job, text| job.overwrite = overwrite(text)?),
    option!(Target, "direct", "", "Bypass the page cache [1; fio: 0]. A file system that cannot is refused unless 0 is given",
        |job, text| job.direct = switch(text)?),
    option!(Target, "buffered", "", "The opposite of direct [0]",
        |job, text| job.direct = !switch(text)?),
    option!(Target, "zonemode", "MODE", "none; strided: zones of zonesize are used, the bytes \
        between them are skipped; or zbd: zones, empty at first, are written from their \
        beginning on [none]",
        |job, text| (job.strided, job.zbd) = zonemode(text)?),
    option!(Target, "max_open_zones", "COUNT", "With zbd, at most this many zones of all jobs are neither empty nor full [0: any number]",
        |job, text| job.max_open_zones = at_most(text, 0, u32::MAX)? as usize),
    option!(Target, "read_beyond_wp", "", "With zbd, also read blocks that were not written [0]",
        |job, text| job.read_beyond_wp = switch(text)?),
    option!(Target, "zonesize", "SIZE", "Bytes used in each zone; with zbd, the size of a zone",
        |job, text| job.zonesize = bytes(text, job.kb_base)?),
    option!(Target, "zonerange", "SIZE", "Bytes of a zone, of which the first zonesize are used [zonesize]",
        |job, text| job.zonerange = bytes(text, job.kb_base)?),
    option!(Target, "zoneskip", "SIZE", "Bytes between one zone and the next [0]",
        |job, text| job.zoneskip = bytes(text, job.kb_base)?),
    option!(Target, "checksums", "", "At the log level: compare checksums on every read [1]",
        |job, text| job.checksums = switch(text)?),
    option!(Target, "fsync", ["fdatasync"], "COUNT", "Flush all files after this many writes, before the next; at the log level: puts are durable, \
        with a commit after this many [0: no flushes; scratch, no commits]",
        |job, text| job.fsync = Some(number(text, 0)?).filter(|count| *count > 0)),
    option!(Target, "end_fsync", ["fsync_on_close"], "", "Flush all files when everything is written, which is a part of the job's time [0]",
        |job, text| job.end_fsync = switch(text)?),
    option!(Target, "sync", "KIND", "sync, dsync or 1: each write is on the medium when it completes; none or 0 [none]",
        |job, text| job.sync = sync(text)?),
    option!(Target, "invalidate", "", "With direct=0, let the page cache forget the files before the job begins [1]",
        |job, text| job.invalidate = switch(text)?),
    option!(Target, "stripe_unit", "SIZE", "At the log level: bytes on one device before the next takes over, if a pool is made [256k]",
        |job, text| job.stripe_unit = ByteCount(bytes(text, job.kb_base)?)),
    option!(Target, "fixedbufs", "", "Register buffers if the locked-memory limit allows it [1]. \
        0, at the log level: use memory from and to which the engine copies",
        |job, text| job.fixedbufs = switch(text)?),
    option!(Target, "staging", "SIZE", "At the log level: staging memory between the caller's memory and the devices [16m]",
        |job, text| job.staging = ByteCount(bytes(text, job.kb_base)?)),
    option!(Target, "reactors", "COUNT", "At the log level: threads that move tensors, at most, which devices and staging memory are shared out to \
        [one for each processor, and 4]",
        |job, text| job.reactors = NonZero::new(at_most(text, 1, 256)? as usize)),
    option!(Time, "size", "SIZE", "Bytes to read or write in all files together, or a percentage of them [all of each that exists]",
        |job, text| job.size = Some(amount(text, job.kb_base)?)),
    option!(
        Time,
        "io_size",
        ["io_limit"],
        "SIZE",
        "Bytes to move, or a percentage of size, if not as many as size",
        |job, text| job.io_size = Some(amount(text, job.kb_base)?)
    ),
    option!(Time, "loops", "COUNT", "How many times to do this, or to replay the plan [1]",
        |job, text| job.loops = number(text, 1)?),
    option!(Time, "offset", "SIZE", "Where to begin in each file, in bytes or percent [0]",
        |job, text| job.offset = amount(text, job.kb_base)?),
    option!(Time, "offset_increment", "SIZE", "How much farther each of numjobs begins than the one before [0]",
        |job, text| job.offset_increment = ByteCount(bytes(text, job.kb_base)?)),
    option!(Time, "number_ios", "COUNT", "End after this many operations, if the job does not end before",
        |job, text| job.number_ios = Some(number(text, 0)?).filter(|count| *count > 0)),
    option!(Time, "startdelay", "TIME[-TIME]", "Begin this much later than the other jobs; with a range each of numjobs begins at a time of its own [0]",
        |job, text| job.startdelay = delay(text)?),
    option!(Time, "wait_for", "JOB", "Begin when this job has ended; it must be named before",
        |job, text| job.wait_for = Some(text.trim().to_owned())),
    option!(Time, "exitall", "", "When this job ends, end the jobs that exit_what names",
        |job, text| job.exitall = switch(text)?),
    option!(Time, "exit_what", "WHICH", "What exitall ends: group (jobs reported with it), \
        stonewall (jobs that run at the same time), all (also later jobs) [group]",
        |job, text| job.exit_what = exit_what(text)?),
    option!(Time, "runtime", ["timeout"], "TIME", "Stop after this time: 30, 500ms, 2m; 0: when all of size was moved",
        |job, text| job.runtime = Some(time(text)?).filter(|time| !time.is_zero())),
    option!(Time, "time_based", "", "Repeat the job until runtime is over",
        |job, text| job.time_based = switch(text)?),
    option!(Time, "ramp_time", "TIME", "Run this long before anything is counted",
        |job, text| job.ramp_time = time(text)?),
    option!(Time, "ss", ["steadystate"], "KIND:LIMIT[%]", "End when rates are steady: iops or bw \
        compares the greatest deviation from the mean with LIMIT, iops_slope or bw_slope the slope",
        |job, text| job.steady = Some(SteadyState::read(text)?.with_times_of(job.steady))),
    option!(Time, "ss_dur", ["ss_duration", "steadystate_duration"], "TIME", "How long rates must be steady for ss",
        |job, text| job.steady.get_or_insert_default().window = time(text)?),
    option!(Time, "ss_ramp", ["ss_ramp_time", "steadystate_ramp_time"], "TIME", "How long ss ignores rates at first [0]",
        |job, text| job.steady.get_or_insert_default().ramp = time(text)?),
    option!(Time, "ss_interval", ["ss_check_interval", "steadystate_check_interval"], "TIME", "Over which time ss averages each rate [1s]",
        |job, text| job.steady.get_or_insert_default().interval = time(text)?),
    option!(Time, "stonewall", ["wait_for_previous"], "", "Wait for the jobs before this one",
        |job, text| job.stonewall = switch(text)?),
    option!(Verify, "verify", "KIND", "crc32c: writes stamp every block, reads check it; 0: nothing [0]",
        |job, text| job.verify = kind_of_verify(text)?),
    option!(Verify, "do_verify", "", "After writing, read everything back and check it [1]",
        |job, text| job.do_verify = switch(text)?),
    option!(Verify, "verify_fatal", "", "End the job at the first bad block [0: continue, and report the first one]",
        |job, text| job.verify_fatal = switch(text)?),
    option!(Verify, "verify_backlog", "COUNT", "Write this many blocks, then read them back, and so on [0: all are written first]",
        |job, text| job.verify_backlog = number(text, 0)?),
    option!(Verify, "verify_backlog_batch", "COUNT", "Read back this many blocks at a time [verify_backlog]",
        |job, text| job.verify_backlog_batch = Some(number(text, 1)?)),
    option!(Verify, "verify_dump", "", "Write a bad block as it is, and as it should be, to FILE.OFFSET.received and .expected in this directory [0]",
        |job, text| job.verify_dump = switch(text)?),
    option!(Report, "new_group", "", "Begin a group of its own for group_reporting and exitall; a stonewall does too",
        |job, text| job.new_group = switch(text)?),
    option!(Report, "group_reporting", "", "Report the jobs of a group as one",
        |job, text| job.group_reporting = switch(text)?),
    option!(Report, "percentile_list", "P:P", "Percentiles of latencies to report, up to 20",
        |job, text| job.percentiles = percentiles(text)?),
    option!(Report, "clat_percentiles", "", "Report percentiles of completion latencies [1]",
        |job, text| job.clat_percentiles = switch(text)?),
    option!(Report, "lat_percentiles", "", "Report percentiles of total latencies [0]",
        |job, text| job.lat_percentiles = switch(text)?),
    option!(Report, "write_bw_log", "PREFIX", "Write PREFIX_bw.N.log for the Nth job: bandwidth \
        over time, in fio's format. In a job file PREFIX may be left out: it is then the job's \
        name",
        |job, text| job.logs.bandwidth = Some(text.to_owned())),
    option!(Report, "write_lat_log", "PREFIX", "The same for latencies: PREFIX_slat, PREFIX_clat and PREFIX_lat",
        |job, text| job.logs.latency = Some(text.to_owned())),
    option!(Report, "write_iops_log", "PREFIX", "The same for operations per second: PREFIX_iops",
        |job, text| job.logs.iops = Some(text.to_owned())),
    option!(Report, "log_avg_msec", "MILLISECONDS", "One entry in these logs for this much time [0: one for each operation, kept in memory until the end]",
        |job, text| job.logs.window = Duration::from_millis(number(text, 0)?)),
    option!(Report, "log_offset", "", "Add a field with the operation's first byte to these logs, before the last field [0]",
        |job, text| job.logs.offsets = switch(text)?),
    option!(Report, "log_prio", "", "The operation's priority as the last field of these logs, as the kernel writes it [0: 1 in real time, else 0]",
        |job, text| job.logs.priorities = switch(text)?),
    option!(Report, "per_job_logs", "", "A log for each job, with its number in the name [1]",
        |job, text| job.logs.per_job = switch(text)?),
    option!(Report, "disk_util", "", "Report what the disks under the jobs did [1]",
        |job, text| job.disk_util = switch(text)?),
    option!(Report, "description", "TEXT", "What the job is for",
        |job, text| text .clone_into(&mut job.description)),
    option!(Report, "kb_base", "BASE", "For the options after it: 1024 (k is 1024, kib 1000, as in fio) or 1000 (k is 1000, kib 1024) [1024]",
        |job, text| job.kb_base = kb_base(text)?),
    // What job files made for fio often say, and what is so here in any case.
    option!(Report, "thread", ["threads"], "", "Jobs are threads [1, always]",
        |_job, text| always( text, "jobs are always threads")?),
    option!(Report, "registerfiles", "", "Register files [1, always]",
        |_job, text| always( text, "files are registered wherever that is possible")?),
    option!(Report, "nonvectored", "", "NVMe commands have one buffer each [1, always]",
        |_job, text| always(text, "commands are sent with one buffer, always")?),
    option!(Report, "cmd_type", "KIND", "nvme: what tidelog-uring-cmd sends [nvme, always]",
        |_job, text| nvme_commands(text)?),
];

/// The option of this name, or alias.
pub fn find(name: &str) -> Option<&'static OptionSpec> {
    OPTIONS.iter().find(|spec| spec.name == name || spec.aliases.contains(&name))
}

/// Sets one option, and remembers that it was given.
///
/// # Errors
/// There is none of this name, or its value cannot be read.
pub fn apply(job: &mut JobOptions, name: &str, value: &str) -> Result<(), BenchError> {
    if name == "name" {
        value.clone_into(&mut job.name);
    } else if let Some(settled) = settled(name, value) {
        settled?;
    } else {
        let spec = find(name).ok_or_else(|| BenchError::usage(no_option(name)))?;
        (spec.apply)(job, value)?;
    }
    job.given.retain(|(given, _)| given != name);
    job.given.push((name.to_owned(), value.to_owned()));
    Ok(())
}

#[cfg(test)]
mod tests;
