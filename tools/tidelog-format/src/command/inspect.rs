//! `inspect`: a pool's superblocks, geometry, shares, holders, tensors and space.

use std::fmt::Write;

use serde_json::{Value, json};
use tidelog_command_line::{FormatExit, printable};
use tidelog_engine::layout::{DeviceTable, Geometry, LifetimeClass, TensorEntry, utc};
use tidelog_engine::pool::inspect::{CopyState, IndexView, PoolView, ShareView, inspect};
use tidelog_engine::pool::{Copies, SealDescription};
use tidelog_engine::units::{ByteCount, DeviceIndex, DeviceSet};

use super::specs;
use super::table::TextTable;
use crate::cli::PoolArgs;
use crate::outcome::{CommandReport, FormatFailure};

pub(super) fn run(args: &PoolArgs) -> Result<CommandReport, FormatFailure> {
    let view = inspect(&specs(&args.devices))?;
    let unreadable = view.shares.iter().any(|share| !share.held && share.index.is_err());
    let older = view.shares.iter().any(|share| !share.older.is_empty());
    let overwritten = view.devices.iter().any(|(_, device)| device.overwritten.is_some());
    let exit = if older || overwritten || unreadable && view.missing.is_empty() {
        FormatExit::Damaged
    } else {
        FormatExit::Clean
    };
    Ok(CommandReport::new(text(&view), json(&view), exit))
}

pub(super) fn text(view: &PoolView) -> String {
    let geometry = &view.superblock.geometry;
    let mut text = format!(
        "pool {:032x}, formatted {}, generation {}\n\
         {} device(s), stripe unit {}, {} segments of {} on each device, {} share(s)\n\n",
        view.superblock.pool,
        utc(view.superblock.formatted_at),
        view.superblock.generation,
        geometry.devices,
        ByteCount(geometry.stripe_unit),
        geometry.segments,
        ByteCount(geometry.segment_bytes),
        geometry.shares,
    );
    if let Some(depth) = view.superblock.depth {
        let _ = writeln!(text, "calibrated: {depth} operations in flight on each device\n");
    }
    if view.superblock.default_copies() == Copies::Two {
        text.push_str("durable tensors are put in two copies, on two devices\n\n");
    }
    let mut devices =
        TextTable::new(&[">place", "device", ">size", "superblock A", "superblock B", "MBR"]);
    for (place, device) in &view.devices {
        let [first, second] = device.copies.each_ref().map(|copy| match &copy.state {
            Ok(_) => format!("good, byte {}", copy.offset.0),
            Err(why) => format!("BAD, byte {}: {why}", copy.offset.0),
        });
        let mbr = match (device.block_device, device.protective_mbr) {
            (false, _) => "none (file)",
            (true, true) => "protective",
            (true, false) => "MISSING",
        };
        let name = printable(&device.name);
        devices.row(&[place.to_string(), name, device.size.to_string(), first, second, mbr.into()]);
    }
    text.push_str(&devices.render(0));
    for (_, device) in &view.devices {
        if let Some(found) = &device.overwritten {
            let what = format!("the start of {} is OVERWRITTEN: it has {found}", device.name);
            let _ = writeln!(text, "{}", printable(&what));
        }
    }
    for place in &view.missing {
        let gone = view.superblock.missing.iter().any(|it| u32::from(it.0) == *place);
        let what =
            if gone { "is MISSING: the pool has gone on without it" } else { "was not named" };
        let _ = writeln!(text, "device {place} {what}");
    }
    text.push_str(&table_text(view));
    view.shares.iter().for_each(|share| text.push_str(&share_text(share)));
    text
}

/// Says what devices are for, where they are not all for the same.
fn table_text(view: &PoolView) -> String {
    let table = view.superblock.device_table();
    let mut text = String::new();
    for place in (0..view.superblock.geometry.devices as u8).map(DeviceIndex) {
        let what = if table.removed.contains(place) {
            "was removed"
        } else if !table.used().contains(place) {
            "is empty: it may be removed, or added again"
        } else if !table.current_set().contains(place) {
            "is being evacuated: new segments do not use it"
        } else {
            continue;
        };
        let _ = writeln!(text, "device {} {what}", place.0);
    }
    text
}

fn share_text(share: &ShareView) -> String {
    let mut text = format!(
        "\nshare {}: segments {} to {}, ",
        share.share,
        share.area.first_segment,
        share.area.first_segment + share.area.segments
    );
    text.push_str(match (share.held, &share.holder) {
        (true, _) => "open now",
        (false, Some(_)) => "closed",
        (false, None) => "never opened",
    });
    if let Some(holder) = &share.holder {
        let last = if share.held { " by" } else { ", last opened by" };
        let _ = write!(text, "{last} {}", printable(&holder.to_string()));
    }
    text.push('\n');
    for older in &share.older {
        let older = format!("{} is an OLDER COPY of itself: {}", older.device, older.why);
        let _ = writeln!(text, "  {}", printable(&older));
    }
    let index = match &share.index {
        Ok(index) => index,
        Err(why) => {
            let _ = writeln!(text, "  its index cannot be read: {why}");
            return text;
        }
    };
    let space = &index.space;
    let _ = writeln!(
        text,
        "  space {}: live {}, dead {}, free {}, index {}; index epoch {}",
        space.capacity, space.live, space.dead, space.free, space.index, index.epoch
    );
    for copy in &index.copies {
        let what = match &copy.state {
            CopyState::Whole => continue,
            CopyState::Behind(what) => format!("of device {}: {what}", copy.device),
            CopyState::Damaged(why) => format!("of device {} is BAD: {why}", copy.device),
        };
        let _ = writeln!(text, "  the index copy {what}");
    }
    if !index.seals.is_empty() {
        let alone = index.seal_use.alone;
        let _ = writeln!(text, "  of the live space seals alone hold {alone}");
        text.push_str(&seals_table(&index.seals).render(2));
    }
    if index.tensors.is_empty() {
        text.push_str("  no durable tensors\n");
        return text;
    }
    let mut tensors =
        TextTable::new(&["durable tensor", ">size", "class", ">copies", ">runs", "id"]);
    for tensor in &index.tensors {
        tensors.row(&[
            printable(tensor.name.as_deref().unwrap_or("(no name)")),
            ByteCount(tensor.length).to_string(),
            class(tensor).to_owned(),
            copies_of(tensor).to_string(),
            tensor.runs.len().to_string(),
            format!("{:032x}", tensor.id.0),
        ]);
    }
    text.push_str(&tensors.render(2));
    text
}

/// Returns the table of seals, for `list`, too.
pub(super) fn seals_table(seals: &[SealDescription]) -> TextTable {
    let mut table = TextTable::new(&["seal", ">tensors", ">size", ">alone", "made"]);
    for seal in seals {
        table.row(&[
            printable(&seal.name),
            seal.tensors.to_string(),
            seal.bytes.to_string(),
            seal.alone.to_string(),
            utc(seal.sealed_at),
        ]);
    }
    table
}

pub(super) fn seals_json(seals: &[SealDescription]) -> Value {
    let seals = seals.iter().map(|seal| {
        json!({
            "name": seal.name,
            "sealed_at": seal.sealed_at,
            "order": seal.order,
            "tensors": seal.tensors,
            "bytes": seal.bytes.0,
            "alone_bytes": seal.alone.0,
        })
    });
    Value::Array(seals.collect())
}

/// Returns the number of copies. What has no bytes has one.
fn copies_of(tensor: &TensorEntry) -> Copies {
    tensor.runs.first().map_or(Copies::One, |run| run.copies)
}

fn class(tensor: &TensorEntry) -> &'static str {
    match tensor.class {
        LifetimeClass::Transient => "transient",
        LifetimeClass::Step => "step",
        LifetimeClass::Persistent => "persistent",
    }
}

pub(super) fn json(view: &PoolView) -> Value {
    let devices: Vec<Value> = view
        .devices
        .iter()
        .map(|(place, device)| {
            let copies = device.copies.each_ref().map(|copy| {
                json!({
                    "copy": copy.copy.to_string(),
                    "offset": copy.offset.0,
                    "good": copy.state.is_ok(),
                    "why": copy.state.as_ref().err().map(ToString::to_string),
                })
            });
            json!({
                "place": place,
                "device": device.name,
                "bytes": device.size.0,
                "block_device": device.block_device,
                "protective_mbr": device.protective_mbr,
                "overwritten": device.overwritten,
                "superblocks": copies,
            })
        })
        .collect();
    let shares: Vec<Value> = view.shares.iter().map(share_json).collect();
    json!({
        "pool": format!("{:032x}", view.superblock.pool),
        "formatted_at": view.superblock.formatted_at,
        "generation": view.superblock.generation,
        "depth": view.superblock.depth,
        "copies": view.superblock.default_copies().count(),
        "geometry": geometry_json(&view.superblock.geometry),
        "devices": devices,
        "missing": view.missing,
        "table": table_json(&view.superblock.device_table()),
        "gone_on_without": view.superblock.missing.iter().map(|it| it.0).collect::<Vec<_>>(),
        "shares": shares,
    })
}

fn table_json(table: &DeviceTable) -> Value {
    let places = |set: DeviceSet| set.iter().map(|it| it.0).collect::<Vec<_>>();
    json!({
        "striped_over": places(table.current_set()),
        "used": places(table.used()),
        "metadata": places(table.metadata),
        "removed": places(table.removed),
    })
}

pub(super) fn geometry_json(geometry: &Geometry) -> Value {
    json!({
        "devices": geometry.devices,
        "device_bytes": geometry.device_bytes,
        "stripe_unit": geometry.stripe_unit,
        "segment_bytes": geometry.segment_bytes,
        "segments": geometry.segments,
        "data_offset": geometry.data_offset,
        "shares": geometry.shares,
        "slot_bytes": geometry.slot_bytes,
    })
}

fn share_json(share: &ShareView) -> Value {
    let holder = share.holder.as_ref().map(|holder| {
        json!({ "process": holder.process, "command": holder.command, "since": holder.since })
    });
    json!({
        "share": share.share,
        "first_segment": share.area.first_segment,
        "segments": share.area.segments,
        "held": share.held,
        "holder": holder,
        "index": share.index.as_ref().ok().map(index_json),
        "index_error": share.index.as_ref().err(),
        "older_copies": share.older.iter().map(|it| &it.device).collect::<Vec<_>>(),
    })
}

fn index_json(index: &IndexView) -> Value {
    let copies: Vec<Value> = index
        .copies
        .iter()
        .map(|copy| {
            let (state, why) = match &copy.state {
                CopyState::Whole => ("whole", None),
                CopyState::Behind(what) => ("behind", Some(what)),
                CopyState::Damaged(why) => ("damaged", Some(why)),
            };
            json!({ "device": copy.device, "good": state != "damaged", "state": state, "why": why })
        })
        .collect();
    let tensors: Vec<Value> = index
        .tensors
        .iter()
        .map(|tensor| {
            json!({
                "id": format!("{:032x}", tensor.id.0),
                "name": tensor.name,
                "bytes": tensor.length,
                "class": class(tensor),
                "copies": copies_of(tensor).count(),
                "runs": tensor.runs.len(),
                "checksums": tensor.checksums.len(),
            })
        })
        .collect();
    json!({
        "epoch": index.epoch,
        "capacity_bytes": index.space.capacity.0,
        "live_bytes": index.space.live.0,
        "sealed_bytes": index.space.sealed.0,
        "dead_bytes": index.space.dead.0,
        "free_bytes": index.space.free.0,
        "index_bytes": index.space.index.0,
        "copies": copies,
        "tensors": tensors,
        "seals": seals_json(&index.seals),
    })
}
