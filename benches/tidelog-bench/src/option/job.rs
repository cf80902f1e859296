//! One job's options, with fio's defaults where fio has the option.

use std::num::NonZero;
use std::sync::Arc;
use std::time::Duration;

use tidelog_engine::path::PathKind;
use tidelog_engine::units::ByteCount;

use super::content::BufferPattern;
use super::distribution::Distribution;
use super::kernel::Kernel;
use super::load::Load;
use super::logs::LogOptions;
use super::sizes::Sizes;
use super::steady::SteadyState;
use super::value::{Amount, KbBase, Nodes};
use crate::workload::Workload;

/// Level that a job's operations address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Bytes of devices.
    Raw,
    /// Tensors of a pool.
    Log,
}

/// Jobs that end with a job of `exitall`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitWhat {
    /// Jobs that are reported with it.
    Group,
    /// Jobs that run beside it.
    Stonewall,
    /// Jobs that run, and later ones.
    All,
}

/// Number of operations that are handed over and waited for together; 0: as many as there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Queueing {
    /// Limit of operations that go to the kernel together.
    pub submit: u32,
    /// Number of operations that are waited for, and the limit of those processed.
    pub complete: [u32; 2],
    /// A queue that was full is filled again when no more than this are in flight.
    pub low: u32,
}

/// One job.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches, as in fio")]
pub struct JobOptions {
    /// The name.
    pub name: String,
    /// Description for people.
    pub description: String,
    /// The data path. There is no default: what is measured is named.
    pub engine: Option<PathKind>,
    /// Devices or tensors.
    pub level: Level,
    /// Load of the job.
    pub load: Load,
    /// Sizes of its operations, or tensors.
    pub sizes: Sizes,
    /// Operations in flight.
    pub iodepth: u32,
    /// Number of copies that run side by side.
    pub numjobs: u32,
    /// Bytes that it works on, over all its files.
    pub size: Option<Amount>,
    /// Bytes that it moves; as many as `size` where this is not given.
    pub io_size: Option<Amount>,
    /// Offset at which it begins in each file.
    pub offset: Amount,
    /// Distance between the offsets of `numjobs` in a row.
    pub offset_increment: ByteCount,
    /// Number of repetitions.
    pub loops: u64,
    /// A plan to replay, and the trace that it was made from.
    pub workload: Option<String>,
    /// See `workload`.
    pub trace: Option<String>,
    /// Plan and trace, once they were read.
    pub plan: Option<Arc<Workload>>,
    /// Limit of the run time.
    pub runtime: Option<Duration>,
    /// True if the job runs for all of `runtime`.
    pub time_based: bool,
    /// Time before anything is counted.
    pub ramp_time: Duration,
    /// The devices.
    pub filename: Vec<String>,
    /// Devices that may lose what they hold, named a second time.
    pub overwrite: Vec<String>,
    /// True if the page cache is bypassed.
    pub direct: bool,
    /// Part of a mix that reads, in percent.
    pub rwmixread: u8,
    /// Bytes in a second at least, of reads, writes and trims, averaged over `rate_cycle`.
    pub rate_min: [Option<u64>; 3],
    /// See `rate_min`.
    pub rate_cycle: Duration,
    /// True if operations that are held back come as chance has it, and not at even distances.
    pub poisson: bool,
    /// Pause after each `thinktime_blocks` operations.
    pub thinktime: Duration,
    /// See `thinktime`.
    pub thinktime_blocks: u64,
    /// Weight in the operations of all jobs with its `flow_id`; 0 if it does not look at them.
    pub flow: u64,
    /// See `flow`.
    pub flow_id: u64,
    /// Pause when it is ahead of its part.
    pub flow_sleep: Duration,
    /// The latency at which the largest depth is looked for, up to `iodepth`.
    pub latency_target: Option<Duration>,
    /// Time for which each depth is tried.
    pub latency_window: Duration,
    /// Share of operations that keep to the target, in percent.
    pub latency_percentile: f64,
    /// True if other threads shall submit; `None` if it does not matter.
    pub offload: Option<bool>,
    /// Distribution of random operations.
    pub distribution: Distribution,
    /// True if random blocks come in the order of a shift register.
    pub lfsr: bool,
    /// True if random numbers are those of `randseed`, and not others each time.
    pub randrepeat: bool,
    /// Pattern of its writes.
    pub content: BufferPattern,
    /// Criterion of a steady run, with which it ends.
    pub steady: Option<SteadyState>,
    /// Directory of the names.
    pub directory: Option<String>,
    /// Number of files where none is named.
    pub nrfiles: u32,
    /// Bytes of each file: at least, at most.
    pub filesize: Option<(u64, u64)>,
    /// The bytes of each, once they were drawn, where they are not alike.
    pub filesizes: Vec<u64>,
    /// True if files that do not exist are made.
    pub allow_file_create: bool,
    /// True if only a part of each zone is worked on.
    pub strided: bool,
    /// True if zones are written from their beginning on.
    pub zbd: bool,
    /// Limit of open zones; 0: all.
    pub max_open_zones: usize,
    /// True if what was not written is read.
    pub read_beyond_wp: bool,
    /// Size of that part.
    pub zonesize: u64,
    /// The zone; as large as that part where it is 0.
    pub zonerange: u64,
    /// Size of the gap between zones.
    pub zoneskip: u64,
    /// Limit of its operations.
    pub number_ios: Option<u64>,
    /// Delay of its beginning after the jobs beside it: from, to.
    pub startdelay: (Duration, Duration),
    /// The job that it waits for.
    pub wait_for: Option<String>,
    /// True if others end with it.
    pub exitall: bool,
    /// Jobs that end with it.
    pub exit_what: ExitWhat,
    /// True if the job is reported apart from the jobs before it.
    pub new_group: bool,
    /// The group that it is reported in.
    pub group: usize,
    /// Index of its first copy among `numjobs`: more than 0 where each has files of its own.
    pub first_clone: u32,
    /// Bytes in a second at most, of reads, writes and trims.
    pub rate: [Option<u64>; 3],
    /// Operations in a second at most, of each.
    pub rate_iops: [Option<u64>; 3],
    /// Writes, and then a flush. At the log level: puts for each commit; without one, tensors are
    /// scratch.
    pub fsync: Option<u64>,
    /// True if a flush is a part of the job's end.
    pub end_fsync: bool,
    /// True if each write is on the medium when it completes.
    pub sync: bool,
    /// True if the page cache forgets the job's files before it begins.
    pub invalidate: bool,
    /// Queueing of operations.
    pub queue: Queueing,
    /// Alignment of random places; of the block size if this is 0.
    pub blockalign: u64,
    /// Share of random operations in a random load, in percent, by direction.
    pub percentage_random: [u8; 3],
    /// True if each of `numjobs` has one of the processors.
    pub cpus_split: bool,
    /// True if what the disks did is reported.
    pub disk_util: bool,
    /// Decides everything random.
    pub randseed: u64,
    /// True if random blocks may repeat before all have had their turn.
    pub norandommap: bool,
    /// True if the jobs of a group are reported as one.
    pub group_reporting: bool,
    /// True if the job waits for the jobs before it.
    pub stonewall: bool,
    /// True if blocks carry, or are compared with, a checksum.
    pub verify: bool,
    /// True if a job that writes reads everything back in the end.
    pub do_verify: bool,
    /// True if the first bad block ends the job.
    pub verify_fatal: bool,
    /// Number of blocks that are written before they are read back; 0: all.
    pub verify_backlog: u64,
    /// Number of blocks that are read back then.
    pub verify_backlog_batch: Option<u64>,
    /// True if bad blocks are written to files, beside what they should be.
    pub verify_dump: bool,
    /// The processors that it may run on.
    pub cpus_allowed: Vec<usize>,
    /// The NUMA nodes whose processors it may run on.
    pub numa_cpu_nodes: Option<Nodes>,
    /// Requests to the kernel.
    pub kernel: Kernel,
    /// The percentiles to report.
    pub percentiles: Vec<f64>,
    /// True if those of completion latencies are.
    pub clat_percentiles: bool,
    /// True if those of total latencies are.
    pub lat_percentiles: bool,
    /// True if the engine compares checksums on reads, at the log level.
    pub checksums: bool,
    /// Size of the staging memory, at the log level: memory between the caller's and the devices.
    pub staging: ByteCount,
    /// Threads that move tensors, at most, at the log level; as many as the engine takes if it is
    /// left to it.
    pub reactors: Option<NonZero<usize>>,
    /// Stripe unit at the log level: bytes on one device before the next takes over, where a pool
    /// is made.
    pub stripe_unit: ByteCount,
    /// True if memory is registered with the devices. At the log level the engine copies from and
    /// to memory that is not.
    pub fixedbufs: bool,
    /// Logs over time.
    pub logs: LogOptions,
    /// Base of `k` from here on.
    pub kb_base: KbBase,
    /// The options as they were given, in order.
    pub given: Vec<(String, String)>,
}

impl JobOptions {
    /// Returns whether each pass goes on with the generator, and does not begin it again: as in fio
    /// where time decides, and where no run repeats another's numbers.
    pub fn passes_differ(&self) -> bool {
        self.time_based || !self.randrepeat
    }
}

/// Percentiles that fio reports by default.
const PERCENTILES: [f64; 17] = [
    1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95,
    99.99,
];

impl Default for JobOptions {
    fn default() -> Self {
        Self {
            name: "tidelog-bench".to_owned(),
            description: String::new(),
            engine: None,
            level: Level::Raw,
            load: Load::default(),
            sizes: Sizes::One(4096),
            iodepth: 1,
            numjobs: 1,
            size: None,
            io_size: None,
            offset: Amount::Bytes(0),
            offset_increment: ByteCount::ZERO,
            loops: 1,
            workload: None,
            trace: None,
            plan: None,
            runtime: None,
            time_based: false,
            ramp_time: Duration::ZERO,
            filename: Vec::new(),
            overwrite: Vec::new(),
            direct: true,
            rwmixread: 50,
            rate_min: [None; 3],
            rate_cycle: Duration::from_secs(1),
            poisson: false,
            thinktime: Duration::ZERO,
            thinktime_blocks: 1,
            flow: 0,
            flow_id: 0,
            flow_sleep: Duration::ZERO,
            latency_target: None,
            latency_window: Duration::ZERO,
            latency_percentile: 100.0,
            offload: None,
            distribution: Distribution::Even,
            lfsr: false,
            randrepeat: true,
            content: BufferPattern::default(),
            steady: None,
            directory: None,
            nrfiles: 1,
            filesize: None,
            filesizes: Vec::new(),
            allow_file_create: true,
            strided: false,
            zbd: false,
            max_open_zones: 0,
            read_beyond_wp: false,
            zonesize: 0,
            zonerange: 0,
            zoneskip: 0,
            number_ios: None,
            startdelay: (Duration::ZERO, Duration::ZERO),
            wait_for: None,
            exitall: false,
            exit_what: ExitWhat::Group,
            new_group: false,
            group: 0,
            first_clone: 0,
            rate: [None; 3],
            rate_iops: [None; 3],
            fsync: None,
            end_fsync: false,
            sync: false,
            invalidate: true,
            queue: Queueing::default(),
            blockalign: 0,
            percentage_random: [100; 3],
            cpus_split: false,
            disk_util: true,
            randseed: 0,
            norandommap: false,
            group_reporting: false,
            stonewall: false,
            verify: false,
            do_verify: true,
            verify_fatal: false,
            verify_backlog: 0,
            verify_backlog_batch: None,
            verify_dump: false,
            cpus_allowed: Vec::new(),
            numa_cpu_nodes: None,
            kernel: Kernel::default(),
            percentiles: PERCENTILES.to_vec(),
            clat_percentiles: true,
            lat_percentiles: false,
            checksums: true,
            staging: ByteCount::mib(16),
            reactors: None,
            stripe_unit: ByteCount::kib(256),
            fixedbufs: true,
            logs: LogOptions::default(),
            kb_base: KbBase::default(),
            given: Vec::new(),
        }
    }
}
