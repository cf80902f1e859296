//! `replace`: a new device takes the place of one that is lost or is to go.

use std::fmt::Write;

use serde_json::{Value, json};
use tidelog_command_line::{FormatExit, printable};
use tidelog_device_safety::{NamedDevice, System};
use tidelog_engine::path::DeviceSpec;
use tidelog_engine::pool::inspect::{PoolView, inspect, probe};
use tidelog_engine::pool::{ReplaceOptions, Replaced, begin_replacement, replace};
use tidelog_engine::units::ByteCount;

use super::wipe::refuse_users;
use super::{
    advance, check_overwrite_names, new_device, not_written, overwritten, progress_bar,
    superblock_of,
};
use crate::cli::ReplaceArgs;
use crate::outcome::{CommandReport, FormatFailure};

const WHOLE: &str = "It has taken its place already; the pool is whole.\n";
const BEGUN: &str = "It is begun. Open the pool degraded with the new device: what that should have is made again \
                     while the pool is used.\n";

pub(super) fn run(args: &ReplaceArgs, system: &System) -> Result<CommandReport, FormatFailure> {
    check_overwrite_names(&args.overwrite, std::slice::from_ref(&args.new))?;
    let others = refuse_users(&args.others, system)?;
    let others: Vec<DeviceSpec> = others.iter().map(NamedDevice::spec).collect();
    let view = inspect(&others)?;
    let place = place_of(args, &view)?;
    let is_its = is_of_place(&args.new, &view, place);
    let target = new_device(&args.new, &args.overwrite, is_its, system)?;
    let mut text = plan(args, &view, place, &target);
    let pool = format!("{:032x}", view.superblock.pool);
    if !args.intent.yes {
        let json = json!({ "written": false, "pool": pool, "place": place, "new": args.new });
        return Ok(not_written(text, json));
    }
    let options = ReplaceOptions {
        buffered: args.buffered,
        // Only of the device that was named, which the engine knows by its identity.
        overwrite: false,
        overwrite_devices: overwritten(&target, &args.overwrite),
        rate: args.rate.unwrap_or_default(),
        accept_loss: args.accept_loss,
    };
    if args.begin {
        let (place, was_whole) = begin_replacement(&target.spec(), &others, &options)?;
        text.push_str(if was_whole { WHOLE } else { BEGUN });
        let json = json!({ "written": true, "pool": pool, "place": place, "was_whole": was_whole });
        return Ok(CommandReport::new(text, json, FormatExit::Clean));
    }
    let bar = progress_bar("rebuilding");
    let done = replace(&target.spec(), &others, &options, &mut |progress| {
        advance(&bar, progress.done, progress.total);
    });
    bar.finish_and_clear();
    let done = done?;
    text.push('\n');
    text.push_str(&outcome(&done));
    let exit = if done.lost.is_empty() { FormatExit::Clean } else { FormatExit::Damaged };
    Ok(CommandReport::new(text, json(&done, &pool), exit))
}

/// Returns the place that is to be filled: the one that is missing beside the others. What the old
/// device says of itself, if it still does, must be the same.
fn place_of(args: &ReplaceArgs, view: &PoolView) -> Result<u32, FormatFailure> {
    let [place] = view.missing[..] else {
        let count = view.missing.len();
        return Err(FormatFailure::new(
            FormatExit::Usage,
            format!("{count} devices of the pool are missing beside those that are named, not one"),
            "name all devices of the pool but the one that is replaced: OLD NEW OTHER...",
        ));
    };
    let said = match args.old.parse() {
        Ok(said) => Some((said, view.superblock.pool)),
        Err(_) if args.old == args.new => None,
        Err(_) => {
            let old = probe(&DeviceSpec::new(&args.old)).ok();
            let newest = old.and_then(|old| old.newest.ok());
            newest.map(|it| (it.device, it.pool))
        }
    };
    match said {
        Some(other) if other != (place, view.superblock.pool) => Err(FormatFailure::new(
            FormatExit::Refused,
            format!("{} is not device {place} of this pool, which is what is missing", args.old),
            "`inspect` says which device is which",
        )),
        _ => Ok(place),
    }
}

/// Returns whether a device is what an earlier try has made of it.
fn is_of_place(name: &str, view: &PoolView, place: u32) -> bool {
    superblock_of(name).is_some_and(|it| {
        it.is_of_the_same_pool(&view.superblock)
            && it.device == place
            && (it.missing.iter().any(|device| u32::from(device.0) == place)
                || view.superblock.missing.is_empty()
                || it.generation > view.superblock.generation)
    })
}

fn plan(args: &ReplaceArgs, view: &PoolView, place: u32, target: &NamedDevice) -> String {
    let geometry = &view.superblock.geometry;
    let mut text = format!("pool {:032x}, device {place}:\n", view.superblock.pool);
    let (old, new) = (printable(&args.old), printable(&args.new));
    let size = ByteCount(target.size.0.max(geometry.device_bytes));
    let _ = writeln!(text, "  {old} is stale from now on, whatever is still on it");
    let _ = writeln!(text, "  {new} ({size}) takes its place");
    if args.overwrite.contains(&args.new) {
        text.push_str("  WHAT IT HOLDS NOW IS LOST\n");
    }
    text.push_str("  what it should have of durable tensors is made again from these:\n");
    for (place, device) in &view.devices {
        let _ = writeln!(text, "    device {place}: {}", printable(&device.name));
    }
    text
}

fn outcome(done: &Replaced) -> String {
    if done.was_whole {
        return WHOLE.to_owned();
    }
    let mut text = format!("{} were written; the pool is whole.\n", done.bytes);
    for tensor in &done.lost {
        let _ = writeln!(text, "LOST: {}", printable(&tensor.to_string()));
    }
    if !done.lost.is_empty() {
        text.push_str("what is lost stays until it is dropped: tidelog-format check names it\n");
    }
    text
}

fn json(done: &Replaced, pool: &str) -> Value {
    let lost: Vec<String> = done.lost.iter().map(ToString::to_string).collect();
    json!({
        "written": true,
        "pool": pool,
        "place": done.place,
        "devices": done.devices,
        "bytes": done.bytes.0,
        "lost": lost,
        "was_whole": done.was_whole,
    })
}
