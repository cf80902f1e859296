//! Power cuts at any moment of a recorded disk: `tidelog-powercut rebuild`.

use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Parser, Subcommand};
use tidelog_engine::path::{Backend, DeviceSpec};
use tidelog_engine::pool::{FormatOptions, OpenOptions, Pool};
use tidelog_engine::units::ByteCount;
use tidelog_tests::power::{Layout, Rebuilder, Unflushed, WriteLog};
use tidelog_tests::sim::Random;
use tidelog_tests::victim::{self, Failure, open_options};

/// A machine whose disk records every write and flush commits durable tensors; then images are
/// rebuilt that a power cut could have left at any moment, with any part of what no flush had
/// covered. In each, every commit that had returned must be there whole. `make nvme-vm` does both.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    part: Part,
}

#[derive(Subcommand)]
enum Part {
    /// Run in the machine: formats the devices, which lose what they hold, and commits.
    Commit {
        /// The devices of the pool, separated by commas.
        devices: String,
        /// A device on the same disk, where each commit is noted once it has returned.
        notes: PathBuf,
        /// Number of commits.
        #[arg(long, default_value_t = 150)]
        commits: u64,
        /// The engine's flushes do not reach the devices: then images must lose tensors.
        #[arg(long)]
        skip_flushes: bool,
        /// Allow losing what the devices and the notes hold.
        #[arg(long)]
        overwrite: bool,
    },
    /// Run on the host: rebuilds images and looks at each.
    Rebuild {
        /// Log of QEMU's blklogwrites driver.
        log: PathBuf,
        /// Ranges of the pool's devices on the disk: START+LENGTH in bytes, separated by commas.
        #[arg(long)]
        devices: String,
        /// Range of the notes.
        #[arg(long)]
        notes: String,
        /// Number of moments.
        #[arg(long, default_value_t = 1000)]
        images: usize,
        /// Decides the moments and what survives.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Directory of the images. It must not exist, and is removed in the end.
        #[arg(long, default_value = "target/powercut")]
        directory: PathBuf,
        /// Ignores flushes, as a disk that lies does: then something must be lost, or the test sees
        /// nothing.
        #[arg(long)]
        blind: bool,
        /// The engine skipped its flushes: then something must be lost, too.
        #[arg(long)]
        lossy: bool,
    },
}

fn main() -> ExitCode {
    let ended = match Arguments::parse().part {
        Part::Commit { overwrite: false, .. } => {
            Err("the devices would lose what they hold; pass --overwrite if they may".into())
        }
        Part::Commit { devices, notes, commits, skip_flushes, .. } => {
            commit(&devices, &notes, commits, skip_flushes)
        }
        Part::Rebuild { log, devices, notes, images, seed, directory, blind, lossy } => {
            let loses = Loses { blind, lossy };
            layout(&devices, &notes).and_then(|layout| {
                in_new(&directory, || rebuild(&log, &layout, images, seed, &directory, loses))
            })
        }
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tidelog-powercut: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Notes are blocks: what a device writes at once.
#[repr(align(4096))]
struct Block([u8; 4096]);

/// The reason why images must have lost something, if they must.
#[derive(Clone, Copy)]
struct Loses {
    blind: bool,
    lossy: bool,
}

fn commit(devices: &str, notes: &Path, commits: u64, skip_flushes: bool) -> Result<(), Failure> {
    let specs = DeviceSpec::parse_list(devices)?;
    let options = FormatOptions {
        stripe_unit: ByteCount::kib(16),
        overwrite: true,
        ..FormatOptions::default()
    };
    // Before anything is formatted: a device that is in use is refused.
    let flags = libc::O_DIRECT | libc::O_DSYNC | libc::O_EXCL;
    let notes = File::options().write(true).custom_flags(flags).open(notes)?;
    Pool::format(&specs, &options)?;
    let backend = skip_flushes.then(|| Arc::new(Unflushed) as Arc<dyn Backend>);
    let options = OpenOptions { backend, ..open_options(false) };
    victim::commit(&specs, &options, 1, |commit| {
        let mut block = Box::new(Block([0; 4096]));
        block.0[..8].copy_from_slice(&commit.to_le_bytes());
        notes.write_all_at(&block.0, 0)?;
        Ok(commit < commits)
    })?;
    println!("{commits} commits");
    Ok(())
}

fn layout(devices: &str, notes: &str) -> Result<Layout, Failure> {
    let range = |text: &str| -> Result<Range<u64>, Failure> {
        let (start, length) = text.split_once('+').ok_or("a place is START+LENGTH")?;
        let start: u64 = start.parse()?;
        Ok(start..start + length.parse::<u64>()?)
    };
    let devices = devices.split(',').map(range).collect::<Result<Vec<_>, _>>()?;
    Ok(Layout { devices, notes: range(notes)? })
}

/// Makes the directory and removes it in the end, however the work ends; says what that says.
fn in_new(directory: &Path, work: impl FnOnce() -> Result<String, Failure>) -> Result<(), Failure> {
    if let Some(parent) = directory.parent() {
        std::fs::create_dir_all(parent)?;
    }
    // Only what was made here is removed in the end.
    std::fs::create_dir(directory).map_err(|error| {
        format!("{}: {error}; name a directory that is to be made", directory.display())
    })?;
    let done = work();
    std::fs::remove_dir_all(directory)?;
    println!("{}", done?);
    Ok(())
}

/// The pool as the next process finds it: a check finds no damage, and no commit is lost.
fn look(specs: &[DeviceSpec], returned: u64) -> Result<u64, Failure> {
    victim::verdict(specs)?;
    victim::verify(specs, &open_options(true), returned, 0)
}

/// Says how many images there were, or which of them should not be as they are.
fn rebuild(
    log: &Path,
    layout: &Layout,
    images: usize,
    seed: u64,
    directory: &Path,
    Loses { blind, lossy }: Loses,
) -> Result<String, Failure> {
    let log = WriteLog::open(log)?;
    let mut rebuilder = Rebuilder::new(&log, layout, blind);
    let notes = rebuilder.notes()?;
    let &(first, _) = notes.first().ok_or("no commit was noted")?;
    let mut random = Random::new(seed);
    let moments = (log.entries.len() - first) as u64;
    let mut cuts: Vec<usize> =
        (0..images).map(|_| first + 1 + random.below(moments) as usize).collect();
    cuts.sort_unstable();
    let (mut bad, mut shown) = (0, 0);
    for (image, cut) in cuts.into_iter().enumerate() {
        let returned =
            notes.iter().rev().find(|(at, _)| *at < cut).map_or(0, |(_, number)| *number);
        let paths = rebuilder.cut(cut, &mut random, directory)?;
        let specs: Vec<DeviceSpec> = paths.iter().map(DeviceSpec::new).collect();
        if let Err(what) = look(&specs, returned) {
            bad += 1;
            if shown < 3 {
                shown += 1;
                eprintln!("cut before entry {cut} of {} (seed {seed}): {what}", log.entries.len());
            }
        }
        if image % 100 == 99 {
            eprint!("\r{} of {images} images", image + 1);
            std::io::stderr().flush()?;
        }
    }
    eprintln!();
    let flushes = log.entries.iter().filter(|entry| entry.flush).count();
    let forced = log.entries.iter().filter(|entry| entry.fua).count();
    let what = format!(
        "{images} images of {} requests, {flushes} flushes, {forced} forced writes, {} commits: {bad} with a loss",
        log.entries.len(),
        notes.len(),
    );
    match (bad, blind || lossy) {
        (0, true) => {
            Err(format!("{what}, although flushes were skipped: the test sees nothing").into())
        }
        (1.., false) => Err(what.into()),
        _ => Ok(what),
    }
}
