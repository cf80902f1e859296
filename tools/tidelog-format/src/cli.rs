//! The command line. Help and completions come from here, and from the help the man page.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use tidelog_command_line::{FormatExit, parse_size};
use tidelog_engine::pool::Copies;
use tidelog_engine::pool::inspect::DropName;
use tidelog_engine::units::ByteCount;

const EXAMPLES: &str = "\
Examples:
  tidelog-format format --size 100GiB /mnt/nvme0/tide /mnt/nvme1/tide
      shows what would be written where; add --yes to do it
  tidelog-format format --discard --over-provision 7 /dev/nvme1n1 /dev/nvme2n1 --yes
  tidelog-format inspect /dev/nvme1n1 /dev/nvme2n1 --output json
  tidelog-format format --calibrate /dev/nvme1n1 /dev/nvme2n1 --yes
  tidelog-format check /dev/nvme1n1 /dev/nvme2n1
  tidelog-format replace /dev/nvme2n1 /dev/nvme3n1 /dev/nvme1n1
      has nvme3n1 take the place of nvme2n1 in a pool with nvme1n1; add --yes to do it
  tidelog-format add /dev/nvme4n1 /dev/nvme1n1 /dev/nvme3n1
      gives that pool another device; evacuate and remove take one out again
  tidelog-format list";

/// Returns the text behind the options in the help.
fn after_help() -> String {
    [&FormatExit::help(), EXAMPLES].join("\n\n")
}

const FORMAT_HELP: &str = "\
Nothing is written without --yes; it shows what would be written where.

Devices that are mounted, held by another device, swap in use, claimed or part of the root disk are
never written. A device that holds a file system, RAID, LVM, a partition table, another Tidelog pool
or anything else that is not blank is written only if it is named twice:
  tidelog-format format /dev/nvme1n1 --overwrite /dev/nvme1n1 --yes

What an interrupted format has left counts as blank.

Tensors have no redundancy but by --copies 2, which durable ones have then: what one device has lost is
read from another. Scratch has none.";

const LBA_HELP: &str = "\
An LBA format says how a namespace is divided into blocks. Most drives are delivered with blocks of
512 bytes, and many are faster with 4096; Tidelog reads and writes 4096 anyway. Only formats without
metadata are chosen. Of several with the same block size, the one is chosen that is the fastest
according to the drive.

  tidelog-format lba /dev/nvme1n1                  lists them; reads only
  tidelog-format lba /dev/nvme1n1 --lba 4096       says what would be done; add --yes to do it

The drive erases the whole namespace, which may take minutes. `lba` refuses the devices that `format`
refuses.";

const CALIBRATE_HELP: &str = "\
Measures writes and reads with 1 to 64 operations in flight on each device, on all devices at once,
and stores the smallest depth that reaches 97 % of the best in both. A program that opens the pool
without naming a depth gets this one. It takes some seconds; the pool must not be open.

Where a device is slower than others, the rates are stored, too, and new segments are shared out by them:
a part of them is striped over the faster devices alone, as long as more than a quarter of a share is free.
So a slow device does not set the pace. The pool then has the feature device-table, which older software
refuses. What is in the pool stays where it is. A device that is added later counts once all are measured
again.

No tensor is overwritten: only segments that are free in the log are written, at most 256 MiB of each
device. A pool without free segments is refused. After an interruption all tensors are there, and the
depth is the old one.

The stripe unit of a pool cannot be changed; `format --calibrate` measures both before it makes the
pool.";

const TAKE_OVER_HELP: &str = "\
A namespace that is reached over a fabric (NVMe over TCP, RDMA, Fibre Channel) has an owner: the host
that has a pool on it open. Other hosts are refused until the owner closes the pool. A host that died
never closes it; `take-over` makes this host the owner, until it has opened and closed the pool.

Where the target has reservations the owner holds one, and `take-over` moves it to this host: what the
other one still writes is refused. Elsewhere, and over the data path spdk, MAKE SURE THAT THE HOST IS
GONE: nothing stops it from writing, and two writers destroy a pool. What was taken over says which.

The name of a host is TIDELOG_HOST_ID in its environment, else the content of /etc/nvme/hostid, else
of /etc/machine-id.";

const REPLACE_HELP: &str = "\
For pools whose durable tensors have two copies (format --copies 2). OLD is the name of the device that
is lost or is to go, or its place in the pool (0, 1, ...) where it has no name any more; `inspect` of the
others says which place is missing. OTHER are all other devices. The pool must not be open; with --begin it
is opened afterwards, and NEW is made while it is used.

OLD is stale from the first write on, and is refused for ever. NEW is written and not read until all is
on it that should be; then the pool is whole, and any device may be lost again. Whatever ends the command
on its way, the same command finishes it; until then the pool opens without NEW, by --degraded. Durable
tensors with one copy that was on OLD, and scratch, are not made again; the former are named.

A device that comes back stale may take its own place: name it as OLD and NEW, and with --overwrite.";

const ADD_HELP: &str = "\
OTHER are all devices of the pool, which must not be open. NEW is a file, which is made, a block device or a
partition, at least as large as what the pool uses of each device. Segments that are taken from now on
are striped over it, too; nothing that is there moves. From then on it is named with the others, wherever
the pool is opened.

A device that was evacuated is taken back by the same command. What was removed is a new device, and needs
--overwrite. A pool has 64 places in its life, and never gives one of a removed device to another.

Whatever ends the command on its way, the same command finishes it; until then the pool opens without NEW,
or says that it needs it.";

const EVACUATE_HELP: &str = "\
For a device that wears out or is to go. OLD is its name, or its place in the pool (0, 1, ...); OTHER are
all other devices. The pool must not be open. From the first write on new segments keep clear of OLD; then all
that is on it moves to the others, and with it the parts that its segments have there. In the end nothing
of the pool is on OLD: `remove` takes it out, `add` takes it back.

Before anything is written it is checked that the others have the space; a pool whose tensors may have two
copies keeps two devices at least. A device that is lost may be evacuated by its place: what has another
copy gets two again on the others.

Whatever ends the command on its way, the same command finishes it; meanwhile the pool opens with all of
its devices.";

const REMOVE_HELP: &str = "\
OLD is the name of the device, or its place in the pool (0, 1, ...) where it is lost; OTHER are all other
devices. The pool must not be open. What is on OLD is moved to the others first, as `evacuate` does. Then all
superblocks say that OLD was removed, its own last of all: it is refused for ever, and can be formatted or
given to a pool by --overwrite. Its place is never given to another device.

Whatever ends the command on its way, the same command finishes it.";

const STATS_HELP: &str = "\
Reads only, needs no lock, and may be run while the pool is in use: then the figures of its shares are of a
moment ago. Wear is what the devices report (SMART), which mostly takes root; days left are what is left of
their rated life at the pace of all their life until now. Files have none.

  tidelog-format stats DEVICE... --output prometheus > /var/lib/node_exporter/tidelog.prom
  tidelog-format stats DEVICE... --output events
      one line of JSON for each thing that needs attention, and nothing where all is well

The exit code is 2 where something needs attention now, whatever the format.";

const SCRUB_HELP: &str = "\
Reads every byte of every durable tensor, in all copies, and compares it with its checksum. A copy that is bad
is written again from the other one. Takes each share while it is read, so programs cannot open the pool
meanwhile; `check` only reads. docs/how-to/health.md has a systemd timer for it.";

/// Format of this tool's output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum FormatOutput {
    /// Text and tables for people
    #[default]
    #[value(alias = "table")]
    Text,
    /// JSON documents for programs, errors included
    Json,
    /// Metrics for Prometheus, of `stats`; text of other commands
    Prometheus,
    /// Events as lines of JSON, of `stats`; text of other commands
    Events,
}

/// Makes, inspects, checks, repairs and wipes Tidelog pools.
#[derive(Debug, Parser)]
#[command(name = "tidelog-format", version, after_help = after_help())]
pub struct FormatCli {
    /// Format of output, errors included
    #[arg(long, global = true, value_enum, default_value_t, value_name = "FORM")]
    pub output: FormatOutput,
    /// Command to run.
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
    Check(PoolCheckArgs),
    /// Show health: devices and their wear, copies, space; as metrics or events, too
    #[command(after_help = STATS_HELP)]
    Stats(PoolArgs),
    /// Read every copy of every durable tensor, and write bad ones again from the other
    #[command(after_help = SCRUB_HELP)]
    Scrub(ScrubArgs),
    /// Check, replace damaged copies by the good ones, and check again
    Repair(RepairArgs),
    /// Have a new device take the place of one that is lost, and make again what that had
    #[command(after_help = REPLACE_HELP)]
    Replace(ReplaceArgs),
    /// Give a pool another device, which new segments use
    #[command(after_help = ADD_HELP)]
    Add(AddArgs),
    /// Move all that a device has to the others, so that it can go
    #[command(after_help = EVACUATE_HELP)]
    Evacuate(RemoveArgs),
    /// Take a device out of its pool for ever, and what is on it to the others before
    #[command(after_help = REMOVE_HELP)]
    Remove(RemoveArgs),
    /// Remove Tidelog's own signatures, and nothing else
    Wipe(WipeArgs),
    /// Show the LBA formats of an `NVMe` namespace; give it another one
    #[command(after_help = LBA_HELP)]
    Lba(LbaArgs),
    /// Measure which depth a pool's devices need, and store it
    #[command(after_help = CALIBRATE_HELP)]
    Calibrate(WipeArgs),
    /// Take over remote namespaces from a host that owned them and is gone
    #[command(after_help = TAKE_OVER_HELP)]
    TakeOver(WipeArgs),
    /// Find pools among the block devices and the given paths
    List(ListArgs),
    /// Write shell completions to standard output
    ///
    /// For example: tidelog-format completions bash > /etc/bash_completion.d/tidelog-format
    Completions {
        /// The shell
        shell: Shell,
    },
}

/// Intent to write, or only to show what would be written.
#[derive(Args, Clone, Copy, Debug)]
pub struct Intent {
    /// Write; without it nothing is written
    #[arg(long, conflicts_with = "dry_run")]
    pub yes: bool,
    /// Show only what would be written where, as without --yes
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
    /// Intent to write.
    #[command(flatten)]
    pub intent: Intent,
    /// Make no files: refuse a DEVICE that does not exist, such as a file on a file system that is
    /// not mounted
    #[arg(long)]
    pub must_exist: bool,
    /// Allow this device to lose what it holds; repeat its name exactly as in DEVICE
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
    /// Parts into which the pool is divided; each may be owned by one process
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    pub shares: u32,
    /// Copies of each durable tensor, on as many devices: with 2 any one device may lose what it
    /// holds, and tensors take twice the space
    #[arg(long, value_name = "COUNT", default_value = "1", value_parser = parse_copies)]
    pub copies: Copies,
    /// Percentage of every device that is never written, so that the drives wear less (0 to 90)
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=90))]
    pub over_provision: u8,
    /// Discard (TRIM) whole block devices first
    #[arg(long)]
    pub discard: bool,
    /// Go through the page cache.
    #[arg(long, help = "Go through the page cache, for file systems without O_DIRECT")]
    pub buffered: bool,
    /// Leave files sparse: reserve no space, so that writes fail once the file system is full.
    /// Otherwise all of it is reserved, with zeroes where the file system cannot reserve (ext3,
    /// vfat)
    #[arg(long)]
    pub sparse: bool,
}

/// Reads a number of copies.
fn parse_copies(text: &str) -> Result<Copies, String> {
    let copies = Copies::ALL.into_iter().find(|copies| copies.to_string() == text);
    copies.ok_or_else(|| "tensors have 1 or 2 copies".to_owned())
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

/// Arguments of `check`.
#[derive(Args, Clone, Debug)]
pub struct PoolCheckArgs {
    /// The pool.
    #[command(flatten)]
    pub pool: PoolArgs,
    /// Go on where one device is missing, of a pool whose tensors have two copies
    #[arg(long)]
    pub degraded: bool,
}

/// Arguments of `scrub`.
#[derive(Args, Clone, Debug)]
pub struct ScrubArgs {
    /// The pool.
    #[command(flatten)]
    pub pool: PoolArgs,
    /// Tensor bytes to read in a second, at most; otherwise as many as the devices give
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub rate: Option<ByteCount>,
}

/// Arguments of `replace`.
#[derive(Args, Clone, Debug)]
pub struct ReplaceArgs {
    /// The device that is replaced: its name, or its place in the pool
    #[arg(value_name = "OLD")]
    pub old: String,
    /// The device that takes its place: a file, which is made, a block device or a partition
    #[arg(value_name = "NEW")]
    pub new: String,
    /// All other devices of the pool
    #[arg(required = true, value_name = "OTHER")]
    pub others: Vec<String>,
    /// Intent to write.
    #[command(flatten)]
    pub intent: Intent,
    /// Tensor bytes to write in a second, at most; otherwise as many as the devices move
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub rate: Option<ByteCount>,
    /// Begin only: whoever opens the pool degraded with NEW among its devices makes the rest again
    /// while it is used. For pools of one share
    #[arg(long, conflicts_with_all = ["rate", "accept_loss"])]
    pub begin: bool,
    /// Go on without durable tensors that no other device has; otherwise they are named, and
    /// nothing is given up
    #[arg(long)]
    pub accept_loss: bool,
    /// Allow NEW to lose what it holds; repeat its name exactly
    #[arg(long, value_name = "DEVICE")]
    pub overwrite: Vec<String>,
    /// Go through the page cache.
    #[arg(long, help = "Go through the page cache, for file systems without O_DIRECT")]
    pub buffered: bool,
}

/// Arguments of `repair`.
#[derive(Args, Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches")]
pub struct RepairArgs {
    /// The pool.
    #[command(flatten)]
    pub pool: PoolArgs,
    /// Drop what has lost bytes: tensor:NAME, id:HEX or seal:NAME, as `check` prints them; what is
    /// not named stays, damaged as it is. A seal goes without the tensors that stand, a tensor
    /// without the seals that hold it, and both in every share in which they are damaged. A name
    /// without a word before it must mean one thing
    #[arg(long, value_name = "WHAT", value_parser = DropName::parse)]
    pub drop_damaged: Vec<DropName>,
    /// Accept devices that are older copies of themselves; only if the newer copies are lost for
    /// good
    #[arg(long)]
    pub accept_older_copies: bool,
    /// Take back devices whose start was overwritten since, for example by a new file system, which
    /// is lost then
    #[arg(long)]
    pub accept_overwritten_start: bool,
    /// Show which commits a share has lost that cannot be opened; with --yes go on without them
    #[arg(long)]
    pub accept_lost_commits: bool,
    /// Give up what --accept-lost-commits shows
    #[arg(long, requires = "accept_lost_commits", conflicts_with = "dry_run")]
    pub yes: bool,
    /// Show only what --accept-lost-commits would give up, as without --yes
    #[arg(long, requires = "accept_lost_commits")]
    pub dry_run: bool,
}

/// Arguments of `wipe`, `calibrate` and `take-over`.
#[derive(Args, Clone, Debug)]
pub struct WipeArgs {
    /// The pool.
    #[command(flatten)]
    pub pool: PoolArgs,
    /// Intent to write.
    #[command(flatten)]
    pub intent: Intent,
}

/// Arguments of `lba`.
#[derive(Args, Clone, Debug)]
pub struct LbaArgs {
    /// A whole NVMe namespace that the kernel drives
    #[arg(value_name = "DEVICE")]
    pub device: String,
    /// Choose a format with blocks of this size
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub lba: Option<ByteCount>,
    /// Intent to write.
    #[command(flatten)]
    pub intent: Intent,
    /// Allow the device to lose what it holds; repeat its name exactly as in DEVICE
    #[arg(long, value_name = "DEVICE")]
    pub overwrite: Vec<String>,
}

/// Arguments of `list`.
#[derive(Args, Clone, Debug)]
pub struct ListArgs {
    /// Files and directories to search, in addition to all block devices
    #[arg(value_name = "PATH")]
    pub paths: Vec<PathBuf>,
}

/// Arguments of `add`.
#[derive(Args, Clone, Debug)]
pub struct AddArgs {
    /// The device that the pool gets: a file, which is made, a block device or a partition
    #[arg(value_name = "NEW")]
    pub new: String,
    /// All devices of the pool
    #[arg(required = true, value_name = "OTHER")]
    pub others: Vec<String>,
    /// Intent to write.
    #[command(flatten)]
    pub intent: Intent,
    /// Allow NEW to lose what it holds; repeat its name exactly
    #[arg(long, value_name = "DEVICE")]
    pub overwrite: Vec<String>,
    /// Go through the page cache.
    #[arg(long, help = "Go through the page cache, for file systems without O_DIRECT")]
    pub buffered: bool,
}

/// Arguments of `evacuate` and `remove`.
#[derive(Args, Clone, Debug)]
pub struct RemoveArgs {
    /// The device that is emptied: its name, or its place in the pool
    #[arg(value_name = "OLD")]
    pub old: String,
    /// All other devices of the pool
    #[arg(required = true, value_name = "OTHER")]
    pub others: Vec<String>,
    /// Intent to write.
    #[command(flatten)]
    pub intent: Intent,
    /// Tensor bytes to move in a second, at most; otherwise as many as the devices move
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub rate: Option<ByteCount>,
    /// Go through the page cache.
    #[arg(long, help = "Go through the page cache, for file systems without O_DIRECT")]
    pub buffered: bool,
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_help_has_sentences_only() {
        let help = super::after_help();
        assert!(help.lines().all(|line| line.is_empty() || line.contains([' ', ':'])), "{help}");
    }
}
