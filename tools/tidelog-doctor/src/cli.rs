//! The command line. Help and completions come from here.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use tidelog_command_line::{DoctorExit, OutputFormat, parse_size};
use tidelog_engine::units::ByteCount;

use crate::bind::DriverChoice;

const EXAMPLES: &str = "\
Examples:
  tidelog-doctor check
      looks only: it writes nothing, and tries nothing
  tidelog-doctor check --scratch /mnt/nvme0 --scratch /mnt/nvme1
      tries every path on a file that it makes there and removes
  tidelog-doctor check --scratch /mnt/nvme0 --output json
  tidelog-doctor bind 0000:3b:00.0
      shows the steps that take the SSD from the kernel; add --yes to do them
  tidelog-doctor unbind 0000:3b:00.0 --yes
      returns the SSD to the kernel, once no program uses it";

/// Returns the text behind the options in the help.
fn after_help() -> String {
    [&DoctorExit::help(), EXAMPLES].join("\n\n")
}

/// Says which data paths work on this machine, and exactly why the others do not.
#[derive(Debug, Parser)]
#[command(name = "tidelog-doctor", version, after_help = after_help())]
pub struct DoctorCli {
    /// Format of output, errors included
    #[arg(long, global = true, value_enum, default_value_t, value_name = "FORM")]
    pub output: OutputFormat,
    /// Directory of the kernel's device tables.
    #[arg(long, global = true, hide = true, default_value = "/sys")]
    pub sysfs: PathBuf,
    /// Directory of the kernel's process tables.
    #[arg(long, global = true, hide = true, default_value = "/proc")]
    pub procfs: PathBuf,
    /// Directory of the kernel's configuration.
    #[arg(long, global = true, hide = true, default_value = "/boot")]
    pub boot: PathBuf,
    /// Directory of udev's database.
    #[arg(long, global = true, hide = true, default_value = "/run/udev/data")]
    pub udev: PathBuf,
    /// Directory of device nodes.
    #[arg(long, global = true, hide = true, default_value = "/dev")]
    pub devfs: PathBuf,
    /// Directory in which SPDK locks a file for each controller.
    #[arg(long, global = true, hide = true, default_value = "/var/tmp")]
    pub claims: PathBuf,
    /// Command to run.
    #[command(subcommand)]
    pub command: DoctorCommand,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum DoctorCommand {
    /// Look at the machine, and try every path in each scratch directory; writes nowhere else
    Check(CheckArgs),
    /// Take an SSD from the kernel, for SPDK in user space
    Bind(BindArgs),
    /// Return an SSD to the kernel
    Unbind(HandOverArgs),
    /// Write shell completions to standard output
    Completions {
        /// The shell
        shell: Shell,
    },
}

/// Arguments of `check`.
#[derive(Args, Clone, Debug)]
pub struct CheckArgs {
    /// A directory in which to make a test file, which is removed afterwards
    #[arg(long, value_name = "DIRECTORY")]
    pub scratch: Vec<PathBuf>,
    /// A pool's devices, separated by commas: a tensor is put, read back and deleted by every path
    #[arg(long, value_name = "DEVICE,DEVICE")]
    pub pool: Vec<String>,
    /// Bytes to write and read in each trial
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "64MiB")]
    pub size: ByteCount,
    /// The library of cuFile, if it is not found by itself
    #[arg(long, value_name = "FILE")]
    pub cufile: Option<PathBuf>,
    /// Try cuFile through host memory too, if there is no direct path
    #[arg(long)]
    pub compat: bool,
}

/// Arguments of `bind`.
#[derive(Args, Clone, Debug)]
pub struct BindArgs {
    /// The driver to bind it to
    #[arg(long, value_enum, default_value_t)]
    pub driver: DriverChoice,
    /// Arguments that `unbind` takes, too.
    #[command(flatten)]
    pub rebind: HandOverArgs,
}

/// Arguments of `bind` and `unbind`.
#[derive(Args, Clone, Debug)]
pub struct HandOverArgs {
    /// A PCI address, as in 0000:3b:00.0, or a namespace, as in nvme0n1
    #[arg(value_name = "DEVICE")]
    pub device: String,
    /// Execute the steps; without this only the steps are shown
    #[arg(long)]
    pub yes: bool,
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_help_has_sentences_only() {
        let help = super::after_help();
        assert!(help.lines().all(|line| line.is_empty() || line.contains([' ', ':'])), "{help}");
    }
}
