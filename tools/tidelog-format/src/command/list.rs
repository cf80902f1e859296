//! `list`: which devices belong together, and which seals are on them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;

use serde_json::{Value, json};
use tidelog_command_line::{FormatExit, is_root, printable};
use tidelog_device_safety::System;
use tidelog_engine::layout::{Superblock, SuperblockError};
use tidelog_engine::path::DeviceSpec;
use tidelog_engine::pool::SealDescription;
use tidelog_engine::pool::inspect::{DeviceView, inspect, probe};
use tidelog_engine::units::{ByteCount, DeviceIndex};

use super::inspect::{seals_json, seals_table};
use super::table::TextTable;
use crate::cli::ListArgs;
use crate::outcome::CommandReport;

/// Devices of one pool that were found, by their place.
type Found = Vec<(Superblock, DeviceView)>;

pub(super) fn run(args: &ListArgs, system: &System) -> CommandReport {
    let mut pools: BTreeMap<u128, Found> = BTreeMap::new();
    let (mut damaged, mut unreadable) = (Vec::new(), Vec::new());
    let nodes = system.block_devices().into_iter().map(|it| PathBuf::from("/dev").join(it.name));
    for path in nodes.chain(args.paths.iter().cloned()) {
        let spec = DeviceSpec::new(&path);
        if !spec.exists() {
            continue;
        }
        let Ok(view) = probe(&spec) else {
            unreadable.push(path.display().to_string());
            continue;
        };
        match view.newest.clone() {
            Ok(superblock) => pools.entry(superblock.pool).or_default().push((superblock, view)),
            Err(SuperblockError::Absent | SuperblockError::Unfinished) => (),
            Err(why) => damaged.push(json!({ "device": view.name, "why": why.to_string() })),
        }
    }
    for found in pools.values_mut() {
        found.sort_by_key(|(superblock, _)| superblock.device);
    }
    let text = text(&pools, &damaged, &unreadable);
    let pools: Vec<Value> = pools.iter().map(|(pool, found)| pool_json(*pool, found)).collect();
    let json = json!({ "pools": pools, "damaged": damaged, "unreadable": unreadable });
    CommandReport::new(text, json, FormatExit::Clean)
}

fn text(pools: &BTreeMap<u128, Found>, damaged: &[Value], unreadable: &[String]) -> String {
    let mut text = String::new();
    for (pool, found) in pools {
        let missing = missing(found);
        let expected = found.len() + missing.len();
        let state = match &missing[..] {
            [] => "complete".to_owned(),
            missing => format!("device {} not found", missing.join(", ")),
        };
        let _ = writeln!(text, "pool {pool:032x}: {expected} device(s), {state}");
        let mut table = TextTable::new(&[">place", "device", ">size"]);
        for (superblock, view) in found {
            let size = ByteCount(view.size.0).to_string();
            table.row(&[superblock.device.to_string(), printable(&view.name), size]);
        }
        text.push_str(&table.render(2));
        for (share, seals) in seals(found) {
            let _ = writeln!(text, "  seals of share {share}:");
            text.push_str(&seals_table(&seals).render(2));
        }
    }
    if pools.is_empty() {
        text.push_str("no Tidelog pool was found\n");
    }
    for device in damaged {
        let what = |key: &str| printable(device[key].as_str().unwrap_or_default());
        let _ = writeln!(text, "{}: {}", what("device"), what("why"));
    }
    if !unreadable.is_empty() {
        let hint = if is_root() { "" } else { " (try as root)" };
        let _ = writeln!(text, "not readable{hint}: {}", unreadable.join(", "));
    }
    text
}

/// The seals of a pool that has any, by share; none where a device is missing. What cannot be read
/// is for `inspect` to say.
fn seals(found: &Found) -> Vec<(u32, Vec<SealDescription>)> {
    let has_some = found.iter().any(|(superblock, _)| superblock.seals);
    if !has_some || !missing(found).is_empty() {
        return Vec::new();
    }
    let specs: Vec<DeviceSpec> =
        found.iter().map(|(_, view)| DeviceSpec::new(&view.name)).collect();
    let shares = inspect(&specs).map(|view| view.shares).unwrap_or_default();
    let seals = shares.into_iter().filter_map(|share| Some((share.share, share.index.ok()?.seals)));
    seals.filter(|(_, seals)| !seals.is_empty()).collect()
}

fn missing(found: &Found) -> Vec<String> {
    let newest = found.iter().map(|(superblock, _)| superblock);
    let newest = newest.max_by_key(|it| (it.generation, it.geometry.devices));
    let expected = newest.map_or(0, |it| it.geometry.devices);
    let removed = newest.map(|it| it.device_table().removed).unwrap_or_default();
    (0..expected)
        .filter(|place| !removed.contains(DeviceIndex(*place as u8)))
        .filter(|place| found.iter().all(|(superblock, _)| superblock.device != *place))
        .map(|place| place.to_string())
        .collect()
}

fn pool_json(pool: u128, found: &Found) -> Value {
    let devices: Vec<Value> = found
        .iter()
        .map(|(superblock, view)| {
            json!({ "place": superblock.device, "device": view.name, "bytes": view.size.0 })
        })
        .collect();
    let seals: Vec<Value> = seals(found)
        .iter()
        .map(|(share, seals)| json!({ "share": share, "seals": seals_json(seals) }))
        .collect();
    let missing = missing(found);
    json!({
        "pool": format!("{pool:032x}"),
        "complete": missing.is_empty(),
        "missing": missing,
        "devices": devices,
        "seals": seals,
    })
}
