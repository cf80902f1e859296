//! Rows that hold on the data path spdk alone, on controllers of one's own: `tidelog-spdk`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tidelog_engine::memory::peer::PciBar;
use tidelog_engine::path::spdk::{EnvironmentOptions, Pages, configure};
use tidelog_engine::path::{DeviceSpec, PathKind};
use tidelog_tests::conformance::{Failure, Stage, exit_code, told};
use tidelog_tests::load::{Ledger, Load, LoadOptions};
use tidelog_tests::machine::{Watchdog, read_behind_the_end};
use tidelog_tests::peer as tensors;
use tidelog_tests::spdk::{
    COMMAND_TIMEOUT, OF_TWO, ON_EVERY_CONTROLLER, Row, WHERE_COMMANDS_COME_BACK,
    WHERE_READS_ARE_SLOW, path_to, peer,
};

/// Peer DMA, errors and time-outs, with a line for each. THE CONTROLLERS LOSE WHAT THEY HOLD. Ends
/// with 1 where a row fails.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// The pages of SPDK's memory: huge or plain.
    #[arg(long, default_value = "huge")]
    pages: String,
    #[command(subcommand)]
    part: Part,
}

#[derive(Subcommand)]
enum Part {
    /// Errors, aborts and time-outs of single commands, by SPDK's own error injection.
    Commands {
        /// Controllers, separated by commas, such as spdk:0000:01:00.0.
        devices: String,
    },
    /// One of two controllers on the bus is reset, and the other one is read meanwhile.
    Beside {
        /// The controllers, separated by a comma.
        devices: String,
    },
    /// Ends by a fault (SIGBUS), once it has said that it has the controller.
    Fault {
        /// The controller.
        device: String,
    },
    /// Controllers write out of another device's memory, striped, and read back into it.
    Peer {
        /// Controllers, separated by commas.
        devices: String,
        /// The PCI address of the other device.
        #[arg(long)]
        address: String,
        /// BAR of the device.
        #[arg(long)]
        bar: u8,
    },
    /// Fill the memory, on its other side, before the row.
    PeerFill {
        /// The file behind it.
        file: PathBuf,
        /// Decides the bytes.
        #[arg(long)]
        seed: u64,
    },
    /// Compare every byte of the memory, on its other side, after the row.
    PeerVerify {
        /// The file behind it.
        file: PathBuf,
        /// The seed that it was filled by.
        #[arg(long)]
        seed: u64,
    },
    /// Tensors in another device's memory go through the log, striped, and come back into it.
    Tensors {
        /// Controllers, separated by commas.
        devices: String,
        /// The PCI address of the other device.
        #[arg(long)]
        address: String,
        /// BAR of the device.
        #[arg(long)]
        bar: u8,
    },
    /// Fill the memory, on its other side, before the row.
    TensorsFill {
        /// The file behind it.
        file: PathBuf,
        /// Decides the bytes.
        #[arg(long)]
        seed: u64,
    },
    /// Compare every byte of the memory, on its other side, after the row.
    TensorsVerify {
        /// The file behind it.
        file: PathBuf,
        /// The seed that it was filled by.
        #[arg(long)]
        seed: u64,
    },
    /// Opens a pool and keeps it until standard input ends.
    Own {
        /// Controllers, separated by commas.
        devices: String,
        /// Makes the pool first. THE CONTROLLERS LOSE WHAT THEY HOLD.
        #[arg(long)]
        format: bool,
    },
    /// Abort a read on a controller that completes a read each second: an abort of the next one
    /// reaches it.
    Slow {
        /// The controller.
        device: String,
    },
    /// Ends the process with a pool under load, as a program that closes nothing does. THE
    /// CONTROLLERS LOSE WHAT THEY HOLD.
    Leave {
        /// Controllers, separated by commas.
        devices: String,
    },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    exit_code("tidelog-spdk", run(&arguments))
}

/// Returns whether all rows are as they must be.
fn run(arguments: &Arguments) -> Result<bool, Failure> {
    let _watchdog = Watchdog::watch("the rows of spdk", COMMAND_TIMEOUT * 120);
    let pages = match arguments.pages.as_str() {
        "huge" => Pages::Huge,
        "plain" => Pages::Plain,
        other => return Err(format!("{other:?} are no pages; there are huge and plain").into()),
    };
    configure(EnvironmentOptions {
        pages,
        timeout: COMMAND_TIMEOUT,
        ..EnvironmentOptions::default()
    })?;
    match &arguments.part {
        Part::Commands { devices } => {
            all_told(devices, ON_EVERY_CONTROLLER.iter().chain(WHERE_COMMANDS_COME_BACK))
        }
        Part::Beside { devices } => all_told(devices, OF_TWO),
        Part::Fault { device } => {
            let path = path_to(&DeviceSpec::parse_list(device)?, 4)?;
            println!("it has {device}");
            println!("{:?}", read_behind_the_end());
            drop(path);
            Ok(false)
        }
        Part::Peer { devices, address, bar } => {
            let specs = DeviceSpec::parse_list(devices)?;
            let moved = peer::move_through(&specs, address, *bar);
            Ok(told("another device's memory is written from and read into", &moved))
        }
        Part::PeerFill { file, seed } => {
            Ok(told("the other side of a BAR is filled", &peer::fill(file, *seed)))
        }
        Part::PeerVerify { file, seed } => {
            Ok(told("every byte is right from the other side of a BAR", &peer::verify(file, *seed)))
        }
        Part::Tensors { devices, address, bar } => {
            let moved = tensors(DeviceSpec::parse_list(devices)?, address, *bar);
            Ok(told("tensors go through the log from another device's memory and into it", &moved))
        }
        Part::TensorsFill { file, seed } => {
            Ok(told("the other side of a GPU's BAR is filled", &tensors::fill(file, *seed)))
        }
        Part::TensorsVerify { file, seed } => {
            let verified = tensors::verify(file, *seed);
            Ok(told("every byte of the tensors is right from the other side of a BAR", &verified))
        }
        Part::Own { devices, format } => own(DeviceSpec::parse_list(devices)?, *format),
        Part::Slow { device } => all_told(device, WHERE_READS_ARE_SLOW),
        Part::Leave { devices } => {
            let left = leave(DeviceSpec::parse_list(devices)?);
            Ok(told("a pool is under load as the process ends", &left))
        }
    }
}

/// Runs rows on these controllers, and tells of each how it ended.
fn all_told<'a>(devices: &str, rows: impl IntoIterator<Item = &'a Row>) -> Result<bool, Failure> {
    let specs = DeviceSpec::parse_list(devices)?;
    Ok(rows.into_iter().fold(true, |good, (name, row)| told(name, &row(&specs)) && good))
}

fn tensors(specs: Vec<DeviceSpec>, address: &str, bar: u8) -> Result<String, Failure> {
    let stage = Stage { specs, path: PathKind::Spdk, backend: None, elsewhere: None };
    stage.format()?;
    let memory = Box::new(PciBar::open(address, bar)?);
    tensors::through_the_log(memory, &|gpu| stage.open_for(gpu))
}

fn own(specs: Vec<DeviceSpec>, format: bool) -> Result<bool, Failure> {
    let stage = Stage { specs, path: PathKind::Spdk, backend: None, elsewhere: None };
    let open = || {
        if format {
            stage.format()?;
        }
        stage.open()
    };
    let pool = match open() {
        Ok(pool) => pool,
        Err(why) => return Ok(told("the pool is open", &Err(why))),
    };
    told("the pool is open", &Ok(String::new()));
    std::io::stdin().lines().for_each(drop);
    pool.close()?;
    Ok(true)
}

fn leave(specs: Vec<DeviceSpec>) -> Result<String, Failure> {
    const WRITES: u64 = 20;
    let stage = Stage { specs, path: PathKind::Spdk, backend: None, elsewhere: None };
    stage.format()?;
    let pool = stage.open()?;
    let ledger = Ledger::new(LoadOptions::default());
    let load = Load::start(&pool, &ledger);
    load.run(WRITES, COMMAND_TIMEOUT * 10);
    std::mem::forget((pool, load));
    Ok(format!("{} writes went well", ledger.record().writes()))
}
