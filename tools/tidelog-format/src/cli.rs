//! The command line. Help, man page and completions come from here.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use tidelog_command_line::{FormatExit, OutputFormat, parse_size};
use tidelog_engine::units::ByteCount;

const ABOUT_INPUTS: &str = "\
Format";

const EXAMPLES: &str = "\
Examples:
  tidelog-format format --size 100GiB /mnt/nvme0/tide /mnt/nvme1/tide
      shows where everything would lie; add --yes to do it
  tidelog-format format --discard --over-provision 7 /dev/nvme1n1 /dev/nvme2n1 --yes
  tidelog-format inspect /dev/nvme1n1 /dev/nvme2n1 --output json
  tidelog-format format --calibrate /dev/nvme1n1 /dev/nvme2n1 --yes
  tidelog-format check /dev/nvme1n1 /dev/nvme2n1
  tidelog-format list";

/// What follows the options in the help.
fn after_help() -> String {
    [ABOUT_INPUTS, &FormatExit::help(), EXAMPLES].join("\n\n")
}

const FORMAT_HELP: &str = "\
On a terminal nothing is written without --yes: what would be written where is shown instead. In a script
either --yes or --dry-run is needed.

Devices that are mounted, held by another device, swap in use, claimed or part of the root disk are never
written. A device that holds a file system, RAID, LVM, a partition table, another Tidelog pool or anything
else that is not blank is written only if it is named twice:
  tidelog-format format /dev/nvme1n1 --overwrite /dev/nvme1n1 --yes

A pool has no redundancy: losing one device loses the tensors of the whole pool.";

const LBA_HELP: &str = "\
A format is how a namespace is divided into blocks. Most drives are delivered with blocks of 512 bytes, and many are
faster with 4096, in which Tidelog reads and writes anyway. Only formats without metadata are chosen; of several with
blocks of that size the one that performs best, as the drive says.

  tidelog-format lba /dev/nvme1n1                  lists them; reads only
  tidelog-format lba /dev/nvme1n1 --lba 4096       says what would be done; add --yes to do it

The drive erases the whole namespace, which may take minutes. The same devices are refused as by format.";

const CALIBRATE_HELP: &str = "\
Reads and writes one after the other with 1 to 64 operations in flight on each device, all devices at once, and takes the
smallest depth that reaches 97 % of the best in both. Whoever opens the pool and names no depth gets this one. It takes some
seconds; nobody may have the pool open.

No tensor is written over: only segments that the log says are free are written, 256 MiB of each device at most, and a pool
without any is refused. If it is interrupted, all tensors are there, and the depth is the old one.

A stripe unit cannot be changed any more; `format --calibrate` measures both before the pool is made.";

const TAKE_OVER_HELP: &str = "\
A namespace that is reached over a fabric (NVMe over TCP, RDMA, Fibre Channel) has an owner: the host that has a pool on
it open. Other hosts are refused until the owner closes the pool. A host that died gives nothing back; this does it
in its place. MAKE SURE THAT THE HOST IS GONE: nothing keeps it from writing, and two writers destroy a pool.

A host is called by TIDELOG_HOST_ID in its environment, or by /etc/nvme/hostid, or by /etc/machine-id.";

/// Makes, inspects, checks, repairs and wipes Tidelog pools.
#[derive(Debug, Parser)]
#[command(name = "tidelog-format", version, after_help = after_help())]
pub struct FormatCli {
    /// How to write output, errors included
    #[arg(long, global = true, value_enum, default_value_t, value_name = "FORM")]
    pub output: OutputFormat,
    /// What to do.
    #[command(subcommand)]
    pub command: FormatCommand,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum FormatCommand {
    /// Make a pool of directories, files, block devices or partitions
    #[command(after_help = FORMAT_HELP)]
    Format(Box<FormatArgs>),
    /// Show superblocks, geometry, shares, holders, tensors and space; reads only, needs no lock
    Inspect(PoolArgs),
    /// Verify every structure and every byte of every durable tensor; reads only
    Check(PoolArgs),
    /// Check, write damaged copies again from the good ones, and check again
    Repair(RepairArgs),
    /// Remove Tidelog's own signatures, and nothing else
    Wipe(WipeArgs),
    /// Show the LBA formats of an `NVMe` namespace; give it another one
    #[command(after_help = LBA_HELP)]
    Lba(LbaArgs),
    /// Measure at which depth a pool's devices are fast, and store it
    #[command(after_help = CALIBRATE_HELP)]
    Calibrate(WipeArgs),
    /// Take remote namespaces away from a host that owned them and is gone
    #[command(after_help = TAKE_OVER_HELP)]
    TakeOver(WipeArgs),
    /// Find pools among the block devices and the given paths
    List(ListArgs),
    /// Say what to do instead: a pool's devices are fixed when it is formatted
    Add(AddArgs),
    /// Write shell completions to standard output
    ///
    /// For example: tidelog-format completions bash > /etc/bash_completion.d/tidelog-format
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Write the man page of the tool, or of one command, to standard output
    ///
    /// For example: tidelog-format man format | man -l -
    Man {
        /// The command
        command: Option<String>,
    },
}

/// Whether to write, or only to show what would be written.
#[derive(Args, Clone, Copy, Debug)]
pub struct Intent {
    /// Write; without it nothing is written
    #[arg(long, conflicts_with = "dry_run")]
    pub yes: bool,
    /// Only show what would be written where
    #[arg(long)]
    pub dry_run: bool,
}

/// Arguments of `format`.
#[derive(Args, Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches")]
pub struct FormatArgs {
    /// Directories (Tidelog makes its file there), files, block devices or partitions, in stripe
    /// order; in builds with the feature spdk, controllers too: spdk:0000:01:00.0
    #[arg(required = true, value_name = "DEVICE")]
    pub devices: Vec<String>,
    /// Whether to write.
    #[command(flatten)]
    pub intent: Intent,
    /// Make no files: refuse a DEVICE that is not there, such as Tidelog's file in a directory that
    /// nothing is mounted on
    #[arg(long)]
    pub must_exist: bool,
    /// This device may lose what it holds; repeat its name exactly as it is given in DEVICE
    #[arg(long, value_name = "DEVICE")]
    pub overwrite: Vec<String>,
    /// Bytes to use of each device; the size of files that are made
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub size: Option<ByteCount>,
    /// Bytes on one device before the next takes over: a power of two from 4KiB to 16MiB
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "256KiB")]
    pub stripe_unit: ByteCount,
    /// Measure for some seconds which stripe unit and how many operations in flight these devices
    /// need
    #[arg(long, conflicts_with = "stripe_unit")]
    pub calibrate: bool,
    /// One segment's slice of each device; by default 4MiB, less in small pools
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub segment_size: Option<ByteCount>,
    /// Parts of the pool that one process each may own
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    pub shares: u32,
    /// Percent of every device that is never written, to spare the drives (0 to 90)
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=90))]
    pub over_provision: u8,
    /// Deallocate block devices as a whole first
    #[arg(long)]
    pub discard: bool,
    /// Go through the page cache.
    #[arg(long, help = "Go through the page cache, for file systems without O_DIRECT")]
    pub buffered: bool,
    /// Reserve no space for files.
    #[arg(
        long,
        help = "Leave files sparse: reserve no space, so that writes fail once the file system is full"
    )]
    pub sparse: bool,
}

/// Arguments of commands that look at a pool.
#[derive(Args, Clone, Debug)]
pub struct PoolArgs {
    /// The pool's devices, in any order
    #[arg(required = true, value_name = "DEVICE")]
    pub devices: Vec<String>,
    /// Go through the page cache.
    #[arg(long, help = "Go through the page cache, for file systems without O_DIRECT")]
    pub buffered: bool,
}

/// Arguments of `repair`.
#[derive(Args, Clone, Debug)]
pub struct RepairArgs {
    /// The pool.
    #[command(flatten)]
    pub pool: PoolArgs,
    /// Drop this damaged tensor, by its name or id; tensors that are not named stay, damaged as
    /// they are
    #[arg(long, value_name = "TENSOR")]
    pub drop_damaged: Vec<String>,
    /// Take devices that are older copies of themselves as they are, where what was used last is
    /// lost for good
    #[arg(long)]
    pub accept_older_copies: bool,
    /// Write the start of devices anew where something else was made since they were the pool's,
    /// such as a file system: that is lost then
    #[arg(long)]
    pub accept_overwritten_start: bool,
}

/// Arguments of `wipe`, `calibrate` and `take-over`.
#[derive(Args, Clone, Debug)]
pub struct WipeArgs {
    /// The pool.
    #[command(flatten)]
    pub pool: PoolArgs,
    /// Whether to write.
    #[command(flatten)]
    pub intent: Intent,
}

/// Arguments of `lba`.
#[derive(Args, Clone, Debug)]
pub struct LbaArgs {
    /// A whole NVMe namespace that the kernel drives
    #[arg(value_name = "DEVICE")]
    pub device: String,
    /// Bytes in a block, of the format that it shall have
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub lba: Option<ByteCount>,
    /// Whether to write.
    #[command(flatten)]
    pub intent: Intent,
    /// The device may lose what it holds; repeat its name exactly as it is given in DEVICE
    #[arg(long, value_name = "DEVICE")]
    pub overwrite: Vec<String>,
}

/// Arguments of `list`.
#[derive(Args, Clone, Debug)]
pub struct ListArgs {
    /// Files and directories to look at, besides all block devices
    #[arg(value_name = "PATH")]
    pub paths: Vec<PathBuf>,
}

/// Arguments of `add`.
#[derive(Args, Clone, Debug)]
pub struct AddArgs {
    /// What the pool has and what was to come
    #[arg(value_name = "DEVICE")]
    pub devices: Vec<String>,
}
