//! The commands: parse, call the engine, say what happened.

mod add;
mod calibrate;
mod check;
mod format;
mod inspect;
mod lba;
mod list;
mod regions;
mod remove;
mod repair;
mod replace;
mod scrub;
mod stats;
mod table;
mod take_over;
mod wipe;

use std::io;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use remove::Removal;
use serde_json::{Value, json};
use tidelog_command_line::{FormatExit, completions};
use tidelog_device_safety::{
    DeviceRefusal, NamedDevice, Reason, System, program_directories, refusals, same_or_overlapping,
    unfinished_pool,
};
use tidelog_engine::layout::Superblock;
use tidelog_engine::path::{DeviceIdentity, DeviceSpec};
use tidelog_engine::pool::Reshaped;
use tidelog_engine::pool::inspect::probe;
use tidelog_engine::units::ByteCount;

use crate::cli::{FormatCli, FormatCommand};
use crate::outcome::{CommandOutcome, CommandReport, FormatFailure};

/// Carries a command out.
pub fn run(command: &FormatCommand) -> CommandOutcome {
    let system = System::default();
    CommandOutcome(match command {
        FormatCommand::Format(args) => format::run(args, &system),
        FormatCommand::Inspect(args) => inspect::run(args),
        FormatCommand::Check(args) => check::run(args),
        FormatCommand::Stats(args) => stats::run(args),
        FormatCommand::Scrub(args) => scrub::run(args),
        FormatCommand::Repair(args) => repair::run(args, &system),
        FormatCommand::Replace(args) => replace::run(args, &system),
        FormatCommand::Add(args) => add::run(args, &system),
        FormatCommand::Evacuate(args) => remove::run(args, Removal::Evacuate, &system),
        FormatCommand::Remove(args) => remove::run(args, Removal::Remove, &system),
        FormatCommand::Wipe(args) => wipe::run(args, &system),
        FormatCommand::Lba(args) => lba::run(args, &system),
        FormatCommand::Calibrate(args) => calibrate::run(args, &system),
        FormatCommand::TakeOver(args) => take_over::run(args),
        FormatCommand::List(args) => Ok(list::run(args, &system)),
        FormatCommand::Completions { shell } => Ok(page(completions::<FormatCli>(*shell))),
    })
}

fn page(text: String) -> CommandReport {
    let json = json!({ "text": text });
    CommandReport::new(text, json, FormatExit::Clean)
}

/// Resolves the names. Those that stand for nothing are refused, all of them.
fn resolve(names: &[String], system: &System) -> Result<Vec<NamedDevice>, FormatFailure> {
    let (mut targets, mut missing) = (Vec::new(), Vec::new());
    for name in names {
        match NamedDevice::resolve(name, system) {
            Ok(target) => targets.push(target),
            Err(error) if stands_for_nothing(&error) => {
                let reason = Reason::Missing { why: error.to_string() };
                missing.push(DeviceRefusal { device: name.clone(), reason });
            }
            Err(error) => {
                return Err(FormatFailure::new(
                    FormatExit::Failed,
                    format!("{name}: {error}"),
                    "name a directory, a file, a block device or a partition",
                ));
            }
        }
    }
    if missing.is_empty() { Ok(targets) } else { Err(FormatFailure::refused(missing)) }
}

/// Returns whether a name is wrong, and not the machine.
fn stands_for_nothing(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidFilename, InvalidInput, NotADirectory, NotFound};
    let is_circle = error.raw_os_error() == Some(nix::libc::ELOOP);
    is_circle || matches!(error.kind(), NotFound | NotADirectory | InvalidFilename | InvalidInput)
}

/// `--overwrite` repeats a name of DEVICE; anything else is a slip, and slips are what it is there
/// for.
fn check_overwrite_names(overwrite: &[String], devices: &[String]) -> Result<(), FormatFailure> {
    match overwrite.iter().find(|name| !devices.contains(name)) {
        None => Ok(()),
        Some(name) => Err(FormatFailure::new(
            FormatExit::Usage,
            format!("--overwrite {name}: no DEVICE is called exactly that"),
            "--overwrite must repeat a name of the device list, letter for letter",
        )),
    }
}

/// Refuses devices against which something speaks that `counts` and that naming them twice does not
/// set aside.
fn refuse(
    targets: &[NamedDevice],
    overwrite: &[String],
    system: &System,
    counts: impl Fn(&Reason) -> bool,
) -> Result<(), FormatFailure> {
    let mut found = same_or_overlapping(targets);
    let unfinished: Vec<u128> = targets.iter().filter_map(|it| unfinished_pool(&it.path)).collect();
    for target in targets {
        let reasons =
            refusals(target, system, &program_directories(), &unfinished).map_err(|error| {
                FormatFailure::new(
                    FormatExit::Failed,
                    format!("{}: cannot find out what it holds: {error}", target.given),
                    "block devices can usually be read by root alone",
                )
            })?;
        let named_twice = overwrite.contains(&target.given);
        let stands = |it: &DeviceRefusal| {
            counts(&it.reason) && !(named_twice && it.reason.may_be_overridden())
        };
        found.extend(reasons.into_iter().filter(stands));
    }
    if found.is_empty() { Ok(()) } else { Err(FormatFailure::refused(found)) }
}

/// Resolves the device that a pool gets, and refuses it where something speaks against it.
/// `is_the_pools`: what it holds is the pool's, from an earlier try.
fn new_device(
    new: &String,
    overwrite: &[String],
    is_the_pools: bool,
    system: &System,
) -> Result<NamedDevice, FormatFailure> {
    let targets = resolve(std::slice::from_ref(new), system)?;
    let counts = |reason: &Reason| !(is_the_pools && reason.may_be_overridden());
    refuse(&targets, overwrite, system, counts)?;
    <[NamedDevice; 1]>::try_from(targets)
        .map(|[target]| target)
        .map_err(|_| FormatFailure::new(FormatExit::Usage, "name one new device", ""))
}

/// Returns the device, if it was named twice: what it holds may be lost.
fn overwritten(target: &NamedDevice, overwrite: &[String]) -> Vec<DeviceIdentity> {
    let is_twice = overwrite.contains(&target.given);
    target.identity.filter(|_| is_twice).into_iter().collect()
}

/// Returns the newest superblock of a device, if it exists and has one.
fn superblock_of(name: &str) -> Option<Superblock> {
    let spec = DeviceSpec::new(name);
    let found = spec.exists().then(|| probe(&spec).ok()).flatten();
    found.and_then(|device| device.newest.ok())
}

/// Returns the result of a dry run, which `text` and `json` describe.
fn not_written(mut text: String, json: Value) -> CommandReport {
    text.push_str("\nNothing was written. Add --yes to do this.\n");
    CommandReport::new(text, json, FormatExit::Clean)
}

/// Returns the result of a change of a pool's devices.
fn reshaped(text: String, pool: &str, done: &Reshaped) -> CommandReport {
    let json = json!({
        "written": true,
        "pool": pool,
        "place": done.place,
        "devices": done.devices,
        "bytes": done.moved.0,
        "was_done": done.was_done,
    });
    CommandReport::new(text, json, FormatExit::Clean)
}

fn specs(names: &[String]) -> Vec<DeviceSpec> {
    names.iter().map(DeviceSpec::new).collect()
}

/// A bar on standard error, where that is a terminal.
fn progress_bar(what: &'static str) -> ProgressBar {
    bar_of(what, "{prefix:12} [{bar:40}] {bytes}/{total_bytes} {bytes_per_sec} {eta}")
}

fn bar_of(what: &'static str, template: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.with_prefix(what)
}

/// Moves the bar.
fn advance(bar: &ProgressBar, done: ByteCount, total: ByteCount) {
    bar.set_length(total.0);
    bar.set_position(done.0);
}
