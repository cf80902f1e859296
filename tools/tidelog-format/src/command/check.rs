//! `check`: is everything as it was written?

use std::fmt::Write;

use serde_json::{Value, json};
use tidelog_command_line::{FormatExit, printable};
use tidelog_engine::pool::inspect::{CheckReport, Damage, check};

use super::{advance, progress_bar, specs};
use crate::cli::PoolArgs;
use crate::outcome::{CommandReport, FormatFailure};

pub(super) fn run(args: &PoolArgs) -> Result<CommandReport, FormatFailure> {
    let bar = progress_bar("verifying");
    let report = check(&specs(&args.devices), args.buffered, &mut |progress| {
        advance(&bar, progress.done, progress.total);
    });
    bar.finish_and_clear();
    let report = report?;
    let mut text = text(&report);
    let repairable = report.damage.iter().filter(|it| it.is_repairable()).count();
    if report.damage.iter().any(|it| matches!(it, Damage::OlderCopy { .. })) {
        text.push_str(
            "put back what was used last; only if that is lost for good, or if nothing is LOST here: \
             tidelog-format repair --accept-older-copies\n",
        );
    }
    if repairable > 0 {
        let _ = writeln!(text, "{repairable} of these can be written again: tidelog-format repair");
    }
    let exit = if report.damage.is_empty() { FormatExit::Clean } else { FormatExit::Damaged };
    Ok(CommandReport { text, json: json(&report), exit })
}

/// What was verified, and what is not as it should be.
pub(super) fn text(report: &CheckReport) -> String {
    let mut text = format!(
        "pool {:032x}: {} durable tensor(s){}, {}, every checksum verified over the {} path\n",
        report.pool,
        report.tensors - report.sealed,
        sealed(report),
        report.bytes,
        report.path
    );
    if report.damage.is_empty() {
        text.push_str("clean\n");
    }
    for what in &report.unsettled {
        let _ = writeln!(text, "note: {}", printable(&what.to_string()));
    }
    for damage in &report.damage {
        let kind = match damage {
            Damage::OlderCopy { .. } => "OLDER",
            damage if damage.is_repairable() => "damaged",
            _ => "LOST",
        };
        let _ = writeln!(text, "{kind}: {}", printable(&damage.to_string()));
    }
    text
}

fn sealed(report: &CheckReport) -> String {
    match report.sealed {
        0 => String::new(),
        sealed => format!(" and {sealed} older version(s) that seals hold"),
    }
}

pub(super) fn json(report: &CheckReport) -> Value {
    let damage: Vec<Value> = report.damage.iter().map(damage_json).collect();
    let unsettled: Vec<String> = report.unsettled.iter().map(ToString::to_string).collect();
    json!({
        "pool": format!("{:032x}", report.pool),
        "devices": report.devices,
        "clean": report.damage.is_empty(),
        "tensors": report.tensors - report.sealed,
        "sealed": report.sealed,
        "bytes": report.bytes.0,
        "path": report.path,
        "damage": damage,
        "unsettled": unsettled,
    })
}

fn damage_json(damage: &Damage) -> Value {
    let (kind, name, id) = match damage {
        Damage::Superblock { .. } => ("superblock", None, None),
        Damage::OverwrittenStart { .. } => ("overwritten-start", None, None),
        Damage::ProtectiveMbr { .. } => ("protective-mbr", None, None),
        Damage::IndexCopy { .. } => ("index-copy", None, None),
        Damage::Index { .. } => ("index", None, None),
        Damage::OlderCopy { .. } => ("older-copy", None, None),
        Damage::Holder { .. } => ("holder-block", None, None),
        Damage::Tensor(tensor) => {
            ("tensor", tensor.name.clone(), Some(format!("{:032x}", tensor.id.0)))
        }
    };
    json!({
        "kind": kind,
        "repairable": damage.is_repairable(),
        "what": damage.to_string(),
        "tensor": name,
        "id": id,
    })
}
