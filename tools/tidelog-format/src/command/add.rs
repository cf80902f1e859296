//! `add`: a pool gets another device.

use std::fmt::Write;

use serde_json::json;
use tidelog_command_line::{FormatExit, printable};
use tidelog_device_safety::{NamedDevice, System};
use tidelog_engine::path::DeviceSpec;
use tidelog_engine::pool::inspect::{PoolView, inspect, probe};
use tidelog_engine::pool::{ReshapeOptions, Reshaped, add};
use tidelog_engine::units::{ByteCount, DeviceIndex};

use super::wipe::refuse_users;
use super::{advance, check_overwrite_names, progress_bar, refuse, resolve};
use crate::cli::AddArgs;
use crate::outcome::{CommandReport, FormatFailure};

pub(super) fn run(args: &AddArgs, system: &System) -> Result<CommandReport, FormatFailure> {
    check_overwrite_names(&args.overwrite, std::slice::from_ref(&args.new))?;
    let others = refuse_users(&args.others, system)?;
    let others: Vec<DeviceSpec> = others.iter().map(NamedDevice::spec).collect();
    let view = inspect(&others)?;
    let targets = resolve(std::slice::from_ref(&args.new), system)?;
    let is_its = is_the_pools(&args.new, &view);
    // What an earlier try has left there is the pool's.
    refuse(&targets, &args.overwrite, system, |reason| !(is_its && reason.may_be_overridden()))?;
    let [target] = &targets[..] else {
        return Err(FormatFailure::new(FormatExit::Usage, "name one new device", ""));
    };
    let mut text = plan(args, &view, target);
    let pool = format!("{:032x}", view.superblock.pool);
    if !args.intent.yes {
        text.push_str("\nNothing was written. Add --yes to do this.\n");
        let json = json!({ "written": false, "pool": pool, "new": args.new });
        return Ok(CommandReport::new(text, json, FormatExit::Clean));
    }
    let twice = args.overwrite.contains(&target.given);
    let options = ReshapeOptions {
        buffered: args.buffered,
        // Only of the device that was named, which the engine knows by its identity.
        overwrite: false,
        overwrite_devices: target.identity.filter(|_| twice).into_iter().collect(),
        rate: ByteCount::ZERO,
    };
    let bar = progress_bar("moving");
    let done = add(&target.spec(), &others, &options, &mut |progress| {
        advance(&bar, progress.done, progress.total);
    });
    bar.finish_and_clear();
    let Reshaped { place, devices, moved, was_done } = done?;
    let how = if was_done { " already" } else { "; name it with the others from now on" };
    let _ = writeln!(text, "\nIt is device {place} of the pool{how}.");
    let json = json!({
        "written": true,
        "pool": pool,
        "place": place,
        "devices": devices,
        "bytes": moved.0,
        "was_done": was_done,
    });
    Ok(CommandReport::new(text, json, FormatExit::Clean))
}

/// Returns whether a device is the pool's, or what an earlier try has made of it.
fn is_the_pools(name: &str, view: &PoolView) -> bool {
    let spec = DeviceSpec::new(name);
    let found = spec.exists().then(|| probe(&spec).ok()).flatten();
    let removed = view.superblock.device_table().removed;
    found.and_then(|it| it.newest.ok()).is_some_and(|it| {
        it.is_of_the_same_pool(&view.superblock) && !removed.contains(DeviceIndex(it.device as u8))
    })
}

fn plan(args: &AddArgs, view: &PoolView, target: &NamedDevice) -> String {
    let geometry = &view.superblock.geometry;
    let mut text = format!("pool {:032x}:\n", view.superblock.pool);
    let size = ByteCount(target.size.0.max(geometry.device_bytes));
    let used = ByteCount(geometry.device_bytes);
    let new = printable(&args.new);
    let _ = writeln!(text, "  {new} ({size}, of which {used} are used) joins these:");
    if args.overwrite.contains(&args.new) {
        text.push_str("  WHAT IT HOLDS NOW IS LOST\n");
    }
    for (place, device) in &view.devices {
        let _ = writeln!(text, "    device {place}: {}", printable(&device.name));
    }
    text
}
