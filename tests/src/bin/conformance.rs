//! The engine's conformance suite on devices of one's own: `tidelog-conformance --overwrite
//! DEVICE,DEVICE`.

use std::process::ExitCode;
#[cfg(feature = "spdk")]
use std::time::Duration;

use clap::Parser;
use tidelog_engine::path::{DeviceSpec, PathChoice};
use tidelog_tests::conformance::{
    Failure, Fault, InjectedStatus, Noticed, PLACEMENT_ROWS, ROWS, Stage, WHERE_DISCARDS_FAIL,
    exit_code, find, told,
};

/// Runs the same rows on whatever devices and data path are named, and prints one line for each.
/// THE DEVICES LOSE WHAT THEY HOLD. With --begin, lets something happen to a device under load
/// instead. Ends with 1 where a row fails.
#[derive(Parser)]
#[command(version)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of the command line")]
struct Arguments {
    /// The devices, separated by commas: block devices, files that exist, or (for spdk)
    /// controllers.
    devices: String,
    /// The data path: uring, uring-cmd, posix or spdk.
    #[arg(long, default_value = "uring")]
    path: String,
    /// Kernel's names of the devices, if it has them as well.
    #[arg(long)]
    elsewhere: Option<String>,
    /// Allow losing what the devices hold.
    #[arg(long)]
    overwrite: bool,
    /// Check only whether what the rows left there, by whatever path, is found. Needs --row.
    #[arg(long, requires = "row")]
    find: bool,
    /// The rows of devices that place data by handles (FDP) instead.
    #[arg(long)]
    placement: bool,
    /// The rows of devices that fail every discard instead.
    #[arg(long, conflicts_with = "placement")]
    failing_discards: bool,
    /// The pages of SPDK's memory: huge, plain or auto.
    #[arg(long, default_value = "auto")]
    pages: String,
    /// Seconds that a command of SPDK's may take.
    #[arg(long)]
    timeout: Option<u64>,
    /// A shell command that makes something happen to a device under load.
    #[arg(long, requires = "end", requires = "row")]
    begin: Option<String>,
    /// A shell command that undoes it.
    #[arg(long, default_value = "true")]
    end: String,
    /// Notice that the pool takes of it.
    #[arg(long, value_enum, default_value = "always")]
    noticed: Noticed,
    /// Statuses that devices may return then, separated by commas: ENODEV, or type and code of an
    /// NVMe status, as in 2:80.
    #[arg(long, value_delimiter = ',')]
    statuses: Vec<InjectedStatus>,
    /// The name of what happens.
    #[arg(long)]
    row: Option<String>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    exit_code("tidelog-conformance", run(&arguments))
}

/// Returns whether all rows are as they must be.
fn run(arguments: &Arguments) -> Result<bool, Failure> {
    if !arguments.overwrite && !arguments.find {
        return Err("the devices would lose what they hold; pass --overwrite if they may".into());
    }
    let choice = arguments.path.parse::<PathChoice>().ok();
    let path = choice.and_then(PathChoice::kind).ok_or_else(|| {
        format!("{:?} is no data path; there are uring, uring-cmd, posix and spdk", arguments.path)
    })?;
    let elsewhere = arguments.elsewhere.as_deref().map(DeviceSpec::parse_list).transpose()?;
    let stage = Stage {
        specs: DeviceSpec::parse_list(&arguments.devices)?,
        path,
        backend: None,
        elsewhere,
    };
    configure_spdk(&arguments.pages, arguments.timeout)?;
    if let (true, Some(name)) = (arguments.find, &arguments.row) {
        return Ok(told(name, &find(&stage)));
    }
    if let (Some(begin), Some(name)) = (&arguments.begin, &arguments.row) {
        let fault = Fault {
            begin: begin.clone(),
            end: arguments.end.clone(),
            noticed: arguments.noticed,
            statuses: arguments.statuses.clone(),
        };
        return Ok(told(name, &fault.happen(&stage)));
    }
    let rows = match (arguments.placement, arguments.failing_discards) {
        (true, _) => PLACEMENT_ROWS,
        (_, true) => WHERE_DISCARDS_FAIL,
        _ => ROWS,
    };
    let mut good = true;
    for (name, row) in rows {
        good &= told(name, &row(&stage));
    }
    Ok(good)
}

#[cfg(feature = "spdk")]
fn configure_spdk(name: &str, timeout: Option<u64>) -> Result<(), Failure> {
    use tidelog_engine::path::spdk::{EnvironmentOptions, Pages, configure};
    let pages = match name {
        "auto" => Pages::Auto,
        "huge" => Pages::Huge,
        "plain" => Pages::Plain,
        other => {
            return Err(format!("{other:?} are no pages; there are auto, huge and plain").into());
        }
    };
    let default = EnvironmentOptions::default();
    let timeout = timeout.map_or(default.timeout, Duration::from_secs);
    Ok(configure(EnvironmentOptions { pages, timeout, ..default })?)
}

#[cfg(not(feature = "spdk"))]
fn configure_spdk(name: &str, timeout: Option<u64>) -> Result<(), Failure> {
    match (name, timeout) {
        ("auto", None) => Ok(()),
        _ => Err("this build has no data path spdk; build it with the feature spdk".into()),
    }
}
