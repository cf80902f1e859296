//! `evacuate` and `remove`: a device is emptied, and taken out of its pool.

use std::fmt::Write;

use serde_json::json;
use tidelog_command_line::{FormatExit, printable};
use tidelog_device_safety::{NamedDevice, System};
use tidelog_engine::path::DeviceSpec;
use tidelog_engine::pool::inspect::{PoolView, inspect, probe};
use tidelog_engine::pool::{ReshapeOptions, ReshapeProgress, evacuate, remove};

use super::wipe::refuse_users;
use super::{advance, not_written, progress_bar, reshaped};
use crate::cli::RemoveArgs;
use crate::outcome::{CommandReport, FormatFailure};

/// Extent of a removal.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Removal {
    /// Evacuation alone.
    Evacuate,
    /// Evacuation, after which it is no more the pool's.
    Remove,
}

pub(super) fn run(
    args: &RemoveArgs,
    removal: Removal,
    system: &System,
) -> Result<CommandReport, FormatFailure> {
    let said: Option<u32> = args.old.parse().ok();
    let mut names = args.others.clone();
    if said.is_none() {
        names.insert(0, args.old.clone());
    }
    let devices = refuse_users(&names, system)?;
    let devices: Vec<DeviceSpec> = devices.iter().map(NamedDevice::spec).collect();
    let view = inspect(&devices)?;
    let place = match said {
        Some(place) => place,
        None => probe(&devices[0])?.newest.map(|it| it.device).map_err(|error| {
            FormatFailure::new(FormatExit::Damaged, format!("{}: {error}", args.old), "")
        })?,
    };
    let mut text = plan(args, &view, (place, removal));
    let pool = format!("{:032x}", view.superblock.pool);
    if !args.intent.yes {
        let json = json!({ "written": false, "pool": pool, "place": place });
        return Ok(not_written(text, json));
    }
    let (buffered, rate) = (args.buffered, args.rate.unwrap_or_default());
    let options = ReshapeOptions { buffered, rate, ..ReshapeOptions::default() };
    let bar = progress_bar("moving");
    let mut progress = |it: ReshapeProgress| advance(&bar, it.done, it.total);
    let done = match removal {
        Removal::Evacuate => evacuate(&devices, place, &options, &mut progress),
        Removal::Remove => remove(&devices, place, &options, &mut progress),
    };
    bar.finish_and_clear();
    let done = done?;
    let moved = done.moved;
    let end = match (removal, done.was_done) {
        (Removal::Evacuate, true) => "it is empty already".to_owned(),
        (Removal::Evacuate, false) => format!("{moved} were moved; nothing of the pool is on it"),
        (Removal::Remove, true) => "it was removed before".to_owned(),
        (Removal::Remove, false) => {
            format!("{moved} were moved; it is no more the pool's: leave it out from now on")
        }
    };
    let _ = writeln!(text, "\nDevice {}: {end}.", done.place);
    Ok(reshaped(text, &pool, &done))
}

fn plan(args: &RemoveArgs, view: &PoolView, (place, removal): (u32, Removal)) -> String {
    let mut text = format!("pool {:032x}, device {place}:\n", view.superblock.pool);
    let old = printable(&args.old);
    let _ = writeln!(text, "  what is on {old} moves to the others:");
    for (_, device) in view.devices.iter().filter(|(other, _)| *other != place) {
        let _ = writeln!(text, "    {}", printable(&device.name));
    }
    if removal == Removal::Remove {
        let _ = writeln!(text, "  {old} is refused by the pool from then on, for ever");
    }
    text
}
