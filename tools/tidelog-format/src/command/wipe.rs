//! `wipe`: no pool any more.

use std::fmt::Write;

use serde_json::{Value, json};
use tidelog_command_line::{FormatExit, printable};
use tidelog_device_safety::{
    DeviceRefusal, NamedDevice, Reason, System, TargetKind, refusals, same_or_overlapping,
};
use tidelog_engine::path::DeviceSpec;
use tidelog_engine::pool::inspect::{DeviceView, inspect, probe, wipe};

use super::{inspect as show, resolve};
use crate::cli::WipeArgs;
use crate::outcome::{CommandReport, FormatFailure};

pub(super) fn run(args: &WipeArgs, system: &System) -> Result<CommandReport, FormatFailure> {
    let write = args.intent.yes;
    let targets = refuse_users(&args.pool.devices, system)?;
    let specs: Vec<DeviceSpec> = targets.iter().map(NamedDevice::spec).collect();
    // A pool that is damaged cannot be shown as one; its devices can.
    let (mut text, pool) = match inspect(&specs) {
        Ok(view) => (show::text(&view), show::json(&view)),
        Err(error) => {
            let devices = specs.iter().map(probe).collect::<Result<Vec<_>, _>>()?;
            (devices_text(&devices, &error.to_string()), Value::Null)
        }
    };
    if !write {
        text.push_str(
            "\nNothing was written. Add --yes to remove both superblocks of each device.\n",
        );
        let json = json!({ "written": false, "pool": pool, "wiped": [] });
        return Ok(CommandReport::new(text, json, FormatExit::Clean));
    }
    let wiped = wipe(&specs, args.pool.buffered)?;
    text.push('\n');
    for signature in &wiped {
        let (device, what, at) = (&signature.device, signature.what, signature.offset.0);
        let _ = writeln!(text, "wiped: {} at byte {at} of {}", what, printable(device));
    }
    let wiped: Vec<Value> = wiped
        .iter()
        .map(|it| json!({ "device": it.device, "what": it.what, "offset": it.offset.0 }))
        .collect();
    let json = json!({ "written": true, "pool": pool, "wiped": wiped });
    Ok(CommandReport::new(text, json, FormatExit::Clean))
}

fn devices_text(devices: &[DeviceView], why: &str) -> String {
    let mut text = format!("the pool cannot be shown: {why}\n");
    for device in devices {
        let good = device.copies.iter().filter(|copy| copy.state.is_ok()).count();
        let _ = writeln!(
            text,
            "{}: {}, {good} of 2 superblock copies are good",
            printable(&device.name),
            device.size
        );
    }
    text
}

/// Refuses devices that somebody uses. That they hold a pool is what they are named for.
pub(super) fn refuse_users(
    names: &[String],
    system: &System,
) -> Result<Vec<NamedDevice>, FormatFailure> {
    let targets = resolve(names, system).map_err(|failure| match failure.exit {
        // As for every command that takes a pool.
        FormatExit::Refused => FormatFailure { exit: FormatExit::NotAPool, ..failure },
        _ => failure,
    })?;
    let missing = targets.iter().find(|target| target.kind == TargetKind::NewFile);
    if let Some(target) = missing {
        let what = format!("{} does not exist", target.path.display());
        return Err(FormatFailure::new(
            FormatExit::NotAPool,
            what,
            "`list` shows which devices carry pools",
        ));
    }
    let mut found = same_or_overlapping(&targets);
    for target in &targets {
        let reasons = refusals(target, system, &[], &[]).map_err(|error| {
            FormatFailure::new(FormatExit::Failed, format!("{}: {error}", target.given), "")
        })?;
        found.extend(reasons.into_iter().filter(against_changing_a_pool));
    }
    if found.is_empty() { Ok(targets) } else { Err(FormatFailure::refused(found)) }
}

fn against_changing_a_pool(refusal: &DeviceRefusal) -> bool {
    // A partition table in use means that the pool's superblock is a leftover.
    !refusal.reason.may_be_overridden() || matches!(refusal.reason, Reason::Partitioned { .. })
}
