//! `add`: a pool gets another device.

use std::fmt::Write;

use serde_json::json;
use tidelog_command_line::printable;
use tidelog_device_safety::{NamedDevice, System};
use tidelog_engine::path::DeviceSpec;
use tidelog_engine::pool::inspect::{PoolView, inspect};
use tidelog_engine::pool::{ReshapeOptions, add};
use tidelog_engine::units::{ByteCount, DeviceIndex};

use super::wipe::refuse_users;
use super::{
    advance, check_overwrite_names, new_device, not_written, overwritten, progress_bar, reshaped,
    superblock_of,
};
use crate::cli::AddArgs;
use crate::outcome::{CommandReport, FormatFailure};

pub(super) fn run(args: &AddArgs, system: &System) -> Result<CommandReport, FormatFailure> {
    check_overwrite_names(&args.overwrite, std::slice::from_ref(&args.new))?;
    let others = refuse_users(&args.others, system)?;
    let others: Vec<DeviceSpec> = others.iter().map(NamedDevice::spec).collect();
    let view = inspect(&others)?;
    let is_its = is_the_pools(&args.new, &view);
    let target = new_device(&args.new, &args.overwrite, is_its, system)?;
    let mut text = plan(args, &view, &target);
    let pool = format!("{:032x}", view.superblock.pool);
    if !args.intent.yes {
        let json = json!({ "written": false, "pool": pool, "new": args.new });
        return Ok(not_written(text, json));
    }
    let options = ReshapeOptions {
        buffered: args.buffered,
        // Only of the device that was named, which the engine knows by its identity.
        overwrite: false,
        overwrite_devices: overwritten(&target, &args.overwrite),
        rate: ByteCount::ZERO,
    };
    let bar = progress_bar("moving");
    let done = add(&target.spec(), &others, &options, &mut |progress| {
        advance(&bar, progress.done, progress.total);
    });
    bar.finish_and_clear();
    let done = done?;
    let how = if done.was_done { " already" } else { "; name it with the others from now on" };
    let _ = writeln!(text, "\nIt is device {} of the pool{how}.", done.place);
    Ok(reshaped(text, &pool, &done))
}

/// Returns whether a device is the pool's, or what an earlier try has made of it.
fn is_the_pools(name: &str, view: &PoolView) -> bool {
    let removed = view.superblock.device_table().removed;
    superblock_of(name).is_some_and(|it| {
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
