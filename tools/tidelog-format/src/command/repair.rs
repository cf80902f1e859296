//! `repair`: whole copies over damaged ones; lost tensors only by name.

use std::fmt::Write;

use serde_json::json;
use tidelog_command_line::{FormatExit, printable};
use tidelog_device_safety::System;
use tidelog_engine::pool::inspect::{
    AcceptError, OverwrittenStart, accept_older_copies, accept_overwritten_start, repair,
};

use super::{advance, check, progress_bar, specs};
use crate::cli::RepairArgs;
use crate::outcome::{CommandReport, FormatFailure};

pub(super) fn run(args: &RepairArgs, system: &System) -> Result<CommandReport, FormatFailure> {
    super::wipe::refuse_users(&args.pool.devices, system)?;
    let overwritten = if args.accept_overwritten_start {
        accept_overwritten_start(&specs(&args.pool.devices), args.pool.buffered)?
    } else {
        Vec::new()
    };
    let accepted = if args.accept_older_copies {
        let accepted = accept_older_copies(&specs(&args.pool.devices), args.pool.buffered);
        accepted.map_err(|error| match error {
            AcceptError::Open(error) => error.into(),
            AcceptError::Close(error) => {
                FormatFailure::new(FormatExit::Failed, error.to_string(), "")
            }
        })?
    } else {
        Vec::new()
    };
    let bar = progress_bar("verifying");
    let report = repair(
        &specs(&args.pool.devices),
        &args.drop_damaged,
        args.pool.buffered,
        &mut |progress| advance(&bar, progress.done, progress.total),
    );
    bar.finish_and_clear();
    let report = report?;
    let (before, after) = (&report.before.damage, &report.after.damage);
    let repaired = before.iter().filter(|it| it.is_repairable() && !after.contains(it));
    let repaired: Vec<String> = repaired.map(ToString::to_string).collect();
    let mut text = String::new();
    for OverwrittenStart { device, found } in &overwritten {
        let what = format!("{device}: it had {found}");
        let _ = writeln!(text, "start written again: {}", printable(&what));
    }
    for (share, older) in &accepted {
        let what = format!("{} (share {share}): {}", older.device, older.why);
        let _ = writeln!(text, "accepted as it is: {}", printable(&what));
    }
    let dropped: Vec<String> = report.dropped.iter().map(ToString::to_string).collect();
    for what in &repaired {
        let _ = writeln!(text, "repaired: {}", printable(what));
    }
    for what in &dropped {
        let _ = writeln!(text, "dropped: {}", printable(what));
    }
    text.push_str(&check::text(&report.after));
    text.push_str(&check::how_to_drop(&report.after));
    let was_clean = before.is_empty() && accepted.is_empty() && overwritten.is_empty();
    let exit = match (was_clean, after.is_empty()) {
        (true, true) => FormatExit::Clean,
        (_, true) => FormatExit::Repaired,
        (_, false) => FormatExit::Damaged,
    };
    let json = json!({
        "overwritten": overwritten.iter().map(|it| json!({"device": it.device, "found": it.found})).collect::<Vec<_>>(),
        "accepted": accepted.iter().map(|(share, older)| json!({"share": share, "device": older.device, "why": older.why})).collect::<Vec<_>>(),
        "repaired": repaired,
        "dropped": dropped,
        "before": check::json(&report.before),
        "after": check::json(&report.after),
    });
    Ok(CommandReport { text, json, exit })
}
