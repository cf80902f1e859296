//! `calibrate`: the depth at which a pool's devices are fast, and which of them are slow. `format
//! --calibrate` shows its measurements as this does.

use std::fmt::Write;

use indicatif::ProgressBar;
use serde_json::{Value, json};
use tidelog_command_line::FormatExit;
use tidelog_device_safety::{NamedDevice, System};
use tidelog_engine::path::DeviceSpec;
use tidelog_engine::pool::inspect::inspect;
use tidelog_engine::pool::{CalibrateProgress, Calibration, DeviceRate, Measurement, Pool};

use super::table::TextTable;
use super::wipe::refuse_users;
use super::{bar_of, inspect as show};
use crate::cli::WipeArgs;
use crate::outcome::{CommandReport, FormatFailure};

pub(super) fn run(args: &WipeArgs, system: &System) -> Result<CommandReport, FormatFailure> {
    let write = args.intent.yes;
    let targets = refuse_users(&args.pool.devices, system)?;
    let specs: Vec<DeviceSpec> = targets.iter().map(NamedDevice::spec).collect();
    if !write {
        let view = inspect(&specs)?;
        let mut text = show::text(&view);
        text.push_str("\nNothing was written. Add --yes to measure in free segments, and to store the depth.\n");
        let json = json!({ "written": false, "pool": show::json(&view), "calibration": null });
        return Ok(CommandReport::new(text, json, FormatExit::Clean));
    }
    let bar = progress_bar();
    let found = Pool::calibrate(&specs, args.pool.buffered, &mut |step| advance(&bar, step));
    bar.finish_and_clear();
    let found = found?;
    let json = json!({ "written": true, "pool": null, "calibration": self::json(&found) });
    Ok(CommandReport::new(text(&found), json, FormatExit::Clean))
}

pub(super) fn progress_bar() -> ProgressBar {
    bar_of("measuring", "{prefix:12} [{bar:40}] {pos}/{len} {eta}")
}

pub(super) fn advance(bar: &ProgressBar, CalibrateProgress { done, total }: CalibrateProgress) {
    bar.set_length(total as u64);
    bar.set_position(done as u64);
}

pub(super) fn text(found: &Calibration) -> String {
    let mut table = TextTable::new(&[">bs", ">depth", ">write GB/s", ">read GB/s"]);
    for &Measurement { chunk, depth, write, read } in &found.measurements {
        let rate = |rate: f64| format!("{:.3}", rate / 1e9);
        table.row(&[chunk.to_string(), depth.to_string(), rate(write), rate(read)]);
    }
    let mut text = table.render(0);
    let slow = found.slow();
    for (place, DeviceRate { write, read }) in found.devices.iter().enumerate() {
        let how = if slow.contains(&place) { ": SLOW beside the others" } else { "" };
        let [write, read] = [write, read].map(|rate| rate / 1e9);
        let _ = writeln!(text, "device {place}: {write:.3} GB/s written, {read:.3} read{how}");
    }
    let (unit, depth) = (found.stripe_unit, found.depth);
    let _ = writeln!(
        text,
        "stripe unit {unit}, depth {depth}: the smallest that reach 97 % of the best; the depth was stored"
    );
    if found.is_shared_out() {
        text.push_str(
            "new segments are shared out by these rates: faster devices get more of them\n",
        );
    }
    text
}

pub(super) fn json(found: &Calibration) -> Value {
    let measurements = found.measurements.iter().map(|it| {
        json!({
            "bs": it.chunk.0,
            "depth": it.depth,
            "write_bytes_per_second": it.write,
            "read_bytes_per_second": it.read,
        })
    });
    let devices = found
        .devices
        .iter()
        .map(|it| json!({ "write_bytes_per_second": it.write, "read_bytes_per_second": it.read }));
    json!({
        "stripe_unit": found.stripe_unit.0,
        "depth": found.depth,
        "devices": devices.collect::<Vec<_>>(),
        "slow": found.slow(),
        "measurements": measurements.collect::<Vec<_>>(),
    })
}
