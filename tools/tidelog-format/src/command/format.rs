//! `format`: refuse, plan, show, and write only if that was asked for.

use std::fmt::Write;

use serde_json::{Value, json};
use tidelog_command_line::FormatExit;
use tidelog_device_safety::{DeviceRefusal, NamedDevice, Reason, System, TargetKind};
use tidelog_engine::layout::{BLOCK_BYTES, Geometry};
use tidelog_engine::path::DeviceSpec;
use tidelog_engine::pool::{Copies, FormatOptions, FormatProgress, Pool};
use tidelog_engine::units::ByteCount;

use super::regions::regions;
use super::table::TextTable;
use super::{advance, calibrate, check_overwrite_names, progress_bar, refuse, resolve};
use crate::cli::FormatArgs;
use crate::outcome::{CommandReport, FormatFailure};

/// Returns what losing a device costs.
fn redundancy(copies: Copies) -> &'static str {
    match copies {
        Copies::One => {
            "Tensors have no redundancy: losing one device loses those of the whole pool."
        }
        Copies::Two => {
            "Durable tensors have two copies, on two devices, and take twice their space. Scratch has one."
        }
    }
}

pub(super) fn run(args: &FormatArgs, system: &System) -> Result<CommandReport, FormatFailure> {
    let write = args.intent.yes;
    check_overwrite_names(&args.overwrite, &args.devices)?;
    let targets = resolve(&args.devices, system)?;
    if args.must_exist {
        refuse_missing(&targets)?;
    }
    refuse(&targets, &args.overwrite, system, |_| true)?;
    let options = options(args, &targets);
    let specs: Vec<DeviceSpec> = targets.iter().map(NamedDevice::spec).collect();
    let sizes: Vec<ByteCount> = targets.iter().map(|target| target.size).collect();
    let geometry = Pool::plan_format(&specs, &sizes, &options)?;
    let plan = Plan { args, targets: &targets, geometry };
    if !write {
        let mut text = plan.text();
        if args.calibrate {
            text.push_str(
                "\nThe stripe unit shown is the default: it is measured once this is written.\n",
            );
        }
        text.push_str("\nNothing was written. Add --yes to write this.\n");
        return Ok(CommandReport::new(text, plan.json(None), FormatExit::Clean));
    }
    let filling = progress_bar("filling");
    let bar = progress_bar("deallocating");
    let measuring = calibrate::progress_bar();
    let mut calibration = None;
    let made = Pool::format_with(&specs, &options, &mut |progress| match progress {
        FormatProgress::Filling { done, total, .. } => advance(&filling, done, total),
        FormatProgress::Deallocating { done, total, .. } => advance(&bar, done, total),
        FormatProgress::Measuring(step) => calibrate::advance(&measuring, step),
        FormatProgress::Calibrated(found) => calibration = Some(found),
    });
    filling.finish_and_clear();
    bar.finish_and_clear();
    measuring.finish_and_clear();
    let made = made?;
    let plan = Plan { geometry: made.geometry, ..plan };
    let mut text = plan.text();
    if let Some(found) = &calibration {
        let _ = write!(text, "\n{}", calibrate::text(found));
    }
    let _ = writeln!(text, "\nPool {:032x} was written.", made.pool);
    for target in targets.iter().filter(|target| target.has_partitions()) {
        let _ = writeln!(
            text,
            "The kernel may still show the old partitions of {0}: blockdev --rereadpt {0}",
            target.given
        );
    }
    let mut json = plan.json(Some(made.pool));
    json["calibration"] = calibration.as_ref().map_or(Value::Null, calibrate::json);
    Ok(CommandReport::new(text, json, FormatExit::Clean))
}

/// Refuses names for which a file would have to be made.
fn refuse_missing(targets: &[NamedDevice]) -> Result<(), FormatFailure> {
    let missing = targets.iter().filter(|target| target.kind == TargetKind::NewFile);
    let refusal = |target: &NamedDevice| {
        let why = format!("{} does not exist: is its file system mounted?", target.path.display());
        DeviceRefusal { device: target.given.clone(), reason: Reason::Missing { why } }
    };
    let refusals: Vec<DeviceRefusal> = missing.map(refusal).collect();
    if refusals.is_empty() { Ok(()) } else { Err(FormatFailure::refused(refusals)) }
}

fn options(args: &FormatArgs, targets: &[NamedDevice]) -> FormatOptions {
    let twice = || targets.iter().filter(|target| args.overwrite.contains(&target.given));
    FormatOptions {
        device_size: args.size,
        stripe_unit: args.stripe_unit,
        calibrate: args.calibrate,
        segment_size: args.segment_size,
        share_count: args.shares,
        must_exist: args.must_exist,
        // Never for all: the engine looks again under its own claim, and permits only what was
        // named.
        overwrite: false,
        overwrite_devices: twice().filter_map(|target| target.identity).collect(),
        overwrite_controllers: twice().filter_map(|target| target.spec().controller()).collect(),
        over_provision_percent: args.over_provision,
        discard: args.discard,
        buffered: args.buffered,
        sparse: args.sparse,
        pool_id: None,
        copies: args.copies,
        rates: None,
    }
}

/// Plan of the writes and their places.
struct Plan<'a> {
    args: &'a FormatArgs,
    targets: &'a [NamedDevice],
    geometry: Geometry,
}

impl Plan<'_> {
    fn capacity(&self) -> ByteCount {
        let blocks = u64::from(self.geometry.segments) * self.geometry.segment_blocks();
        ByteCount(blocks * BLOCK_BYTES)
    }

    fn size_of(&self, target: &NamedDevice) -> u64 {
        target.size.0.max(self.geometry.device_bytes)
    }

    fn text(&self) -> String {
        let Geometry { devices, stripe_unit, segment_bytes, segments, shares, .. } = self.geometry;
        let mut text = format!(
            "A pool of {devices} device(s) with {} for tensors: stripe unit {}, {segments} segments of {} \
             on each device, {shares} share(s).\n{}\n",
            self.capacity(),
            ByteCount(stripe_unit),
            ByteCount(segment_bytes),
            redundancy(self.args.copies),
        );
        for (place, target) in self.targets.iter().enumerate() {
            let size = ByteCount(self.size_of(target));
            let _ = write!(text, "\ndevice {place}: {} (", target.given);
            if target.path.as_os_str() != target.given.as_str() {
                let _ = write!(text, "{}; ", target.path.display());
            }
            let _ = write!(text, "{}, {size}", target.scope);
            if let Some(model) = target.model() {
                let _ = write!(text, ", {model}");
            }
            let _ = writeln!(text, ")");
            for what in self.preparations(target) {
                let _ = writeln!(text, "  {what}");
            }
            let mut table = TextTable::new(&[">from byte", ">to byte", ">size", "", "region"]);
            for region in regions(&self.geometry, place as u32, size.0, target.is_block_device()) {
                table.row(&[
                    region.start.to_string(),
                    region.end.to_string(),
                    ByteCount(region.end - region.start).to_string(),
                    if region.written { "written" } else { "" }.to_owned(),
                    region.what,
                ]);
            }
            text.push_str(&table.render(2));
        }
        text
    }

    /// Returns the preparations of a device before its regions are written.
    fn preparations(&self, target: &NamedDevice) -> Vec<String> {
        let mut what = Vec::new();
        let sparse = self.args.sparse;
        what.push(match (&target.kind, target.size) {
            (TargetKind::NewFile, _) if sparse => {
                "the file is made, readable by its owner alone, and left sparse".to_owned()
            }
            (TargetKind::NewFile, _) => {
                "the file is made, readable by its owner alone, with every byte reserved".to_owned()
            }
            (_, ByteCount::ZERO) => "the empty file is filled up to that size".to_owned(),
            _ => "the first and the last MiB are cleared".to_owned(),
        });
        if self.args.overwrite.contains(&target.given) {
            what.push("WHAT IT HOLDS NOW IS LOST".to_owned());
        }
        if self.args.discard {
            what.push(if target.is_block_device() {
                "all of it is deallocated first".to_owned()
            } else {
                "--discard does nothing here: the bytes of a file stay reserved".to_owned()
            });
        }
        what
    }

    fn json(&self, written: Option<u128>) -> Value {
        let geometry = &self.geometry;
        let devices: Vec<Value> = self
            .targets
            .iter()
            .enumerate()
            .map(|(place, target)| {
                let size = self.size_of(target);
                let regions = regions(geometry, place as u32, size, target.is_block_device());
                let regions: Vec<Value> = regions
                    .into_iter()
                    .map(|region| {
                        json!({
                            "what": region.what,
                            "start": region.start,
                            "end": region.end,
                            "written": region.written,
                        })
                    })
                    .collect();
                json!({
                    "device": target.given,
                    "path": target.path.display().to_string(),
                    "place": place,
                    "scope": target.scope.to_string(),
                    "model": target.model(),
                    "bytes": size,
                    "overwritten": self.args.overwrite.contains(&target.given),
                    "deallocated": self.args.discard && target.is_block_device(),
                    "regions": regions,
                })
            })
            .collect();
        json!({
            "written": written.is_some(),
            "pool": written.map(|pool| format!("{pool:032x}")),
            "capacity_bytes": self.capacity().0,
            "copies": self.args.copies.count(),
            "geometry": super::inspect::geometry_json(geometry),
            "redundancy": redundancy(self.args.copies),
            "devices": devices,
        })
    }
}
