//! `repair`: whole copies over damaged ones; lost tensors only by name.

use std::fmt::Write;

use serde_json::{Value, json};
use tidelog_command_line::{FormatExit, printable};
use tidelog_device_safety::System;
use tidelog_engine::pool::inspect::{
    AcceptError, LostShare, OverwrittenStart, accept_lost_commits, accept_older_copies,
    accept_overwritten_start, lost_commits, repair,
};

use super::{advance, check, progress_bar, specs};
use crate::cli::RepairArgs;
use crate::outcome::{CommandReport, FormatFailure};

pub(super) fn run(args: &RepairArgs, system: &System) -> Result<CommandReport, FormatFailure> {
    super::wipe::refuse_users(&args.pool.devices, system)?;
    if args.accept_lost_commits && !args.yes {
        return Ok(dry_run(&lost(args)?));
    }
    let overwritten = if args.accept_overwritten_start {
        accept_overwritten_start(&specs(&args.pool.devices), args.pool.buffered)?
    } else {
        Vec::new()
    };
    let accepted = if args.accept_older_copies {
        let accepted = accept_older_copies(&specs(&args.pool.devices), args.pool.buffered);
        accepted.map_err(not_accepted)?
    } else {
        Vec::new()
    };
    let lost = if args.accept_lost_commits { lost(args)? } else { Vec::new() };
    accept_lost_commits(&specs(&args.pool.devices), args.pool.buffered, &lost)
        .map_err(not_accepted)?;
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
    text.push_str(&lost_text(&lost));
    let dropped: Vec<String> = report.dropped.iter().map(ToString::to_string).collect();
    for what in &repaired {
        let _ = writeln!(text, "repaired: {}", printable(what));
    }
    for what in &dropped {
        let _ = writeln!(text, "dropped: {}", printable(what));
    }
    text.push_str(&check::text(&report.after));
    text.push_str(&check::how_to_drop(&report.after));
    let was_clean =
        before.is_empty() && accepted.is_empty() && overwritten.is_empty() && lost.is_empty();
    let exit = match (was_clean, after.is_empty()) {
        (true, true) => FormatExit::Clean,
        (_, true) => FormatExit::Repaired,
        (_, false) => FormatExit::Damaged,
    };
    let json = json!({
        "overwritten": overwritten.iter().map(|it| json!({"device": it.device, "found": it.found})).collect::<Vec<_>>(),
        "accepted": accepted.iter().map(|(share, older)| json!({"share": share, "device": older.device, "why": older.why})).collect::<Vec<_>>(),
        "lost": lost.iter().map(lost_json).collect::<Vec<_>>(),
        "repaired": repaired,
        "dropped": dropped,
        "before": check::json(&report.before),
        "after": check::json(&report.after),
    });
    Ok(CommandReport::new(text, json, exit))
}

fn not_accepted(error: AcceptError) -> FormatFailure {
    match error {
        AcceptError::Open(error) => error.into(),
        AcceptError::Close(error) => FormatFailure::new(FormatExit::Failed, error.to_string(), ""),
    }
}

fn lost(args: &RepairArgs) -> Result<Vec<LostShare>, FormatFailure> {
    let bar = progress_bar("verifying");
    let lost = lost_commits(&specs(&args.pool.devices), args.pool.buffered, &mut |progress| {
        advance(&bar, progress.done, progress.total);
    });
    bar.finish_and_clear();
    Ok(lost?)
}

fn dry_run(lost: &[LostShare]) -> CommandReport {
    let mut text = lost_text(lost);
    text.push_str(if lost.is_empty() {
        "no share has lost commits; nothing was written\n"
    } else {
        "Nothing was written. Add --yes to go on without these commits.\n"
    });
    let exit = if lost.is_empty() { FormatExit::Clean } else { FormatExit::Damaged };
    let json = json!({ "written": false, "lost": lost.iter().map(lost_json).collect::<Vec<_>>() });
    CommandReport::new(text, json, exit)
}

/// Describes the lost commits, and what is left.
fn lost_text(lost: &[LostShare]) -> String {
    let mut text = String::new();
    for LostShare { share, commits, tensors, damaged } in lost {
        let (from, to) = (commits.kept, commits.last);
        let _ = writeln!(text, "share {share}: {}", printable(&commits.why.to_string()));
        let _ = writeln!(
            text,
            "  lost: every commit after record {} of epoch {}, as far as is known up to record {} of epoch {}",
            from.sequence, from.epoch, to.sequence, to.epoch
        );
        for change in &commits.changes {
            let _ = writeln!(text, "  lost: {}", printable(change));
        }
        if commits.changes.is_empty() {
            text.push_str("  nothing of what they changed can be decoded\n");
        }
        let _ = writeln!(text, "  left: {tensors} durable tensor(s) as they were before");
        for tensor in damaged {
            let _ = writeln!(text, "  damaged in what is left: {}", printable(&tensor.to_string()));
        }
    }
    text
}

fn lost_json(LostShare { share, commits, tensors, damaged }: &LostShare) -> Value {
    let (kept, last) = (commits.kept, commits.last);
    json!({
        "share": share,
        "why": commits.why.to_string(),
        "kept": { "epoch": kept.epoch, "record": kept.sequence },
        "last": { "epoch": last.epoch, "record": last.sequence },
        "changes": commits.changes,
        "tensors": tensors,
        "damaged": damaged.iter().map(ToString::to_string).collect::<Vec<_>>(),
    })
}
