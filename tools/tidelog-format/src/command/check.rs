//! `check`: is everything as it was written?

use std::fmt::Write;

use serde_json::{Value, json};
use tidelog_command_line::{FormatExit, printable, shell_word};
use tidelog_engine::pool::inspect::{
    CheckReport, Damage, DamagedTensorCopy, DropName, check, check_degraded,
};

use super::{advance, progress_bar, specs};
use crate::cli::PoolCheckArgs;
use crate::outcome::{CommandReport, FormatFailure, OVERWRITTEN_HELP};

pub(super) fn run(args: &PoolCheckArgs) -> Result<CommandReport, FormatFailure> {
    let bar = progress_bar("verifying");
    let check = if args.degraded { check_degraded } else { check };
    let pool = &args.pool;
    let report = check(&specs(&pool.devices), pool.buffered, &mut |progress| {
        advance(&bar, progress.done, progress.total);
    });
    bar.finish_and_clear();
    let report = report?;
    let mut text = text(&report);
    let repairable = report.damage.iter().filter(|it| it.is_repairable()).count();
    if report.damage.iter().any(|it| matches!(it, Damage::OverwrittenStart { .. })) {
        let _ = writeln!(text, "{OVERWRITTEN_HELP}");
    }
    if report.damage.iter().any(|it| matches!(it, Damage::OlderCopy { .. })) {
        text.push_str(
            "put back what was used last; only if that is lost for good, or if nothing is LOST here: \
             tidelog-format repair --accept-older-copies\n",
        );
    }
    if report.damage.iter().any(|it| matches!(it, Damage::Missing { .. })) {
        text.push_str(
            "put it back, or have another device take its place: tidelog-format replace\n",
        );
    }
    if repairable > 0 {
        let _ = writeln!(text, "{repairable} of these can be written again: tidelog-format repair");
    }
    let exit = if report.damage.is_empty() { FormatExit::Clean } else { FormatExit::Damaged };
    text.push_str(&how_to_drop(&report));
    Ok(CommandReport::new(text, json(&report), exit))
}

/// Describes the verified objects, and those that are damaged.
pub(super) fn text(report: &CheckReport) -> String {
    let unread: Vec<String> = report.unread_shares().map(|share| share.to_string()).collect();
    let mut text = format!("pool {:032x}: ", report.pool);
    if unread.len() < report.geometry.shares as usize {
        let lost = report.damaged_tensors().count();
        let verdict = match lost {
            0 if report.damaged_copies().next().is_some() => {
                "whole, some in one of two copies alone".to_owned()
            }
            0 => "every checksum is right".to_owned(),
            lost => format!("{lost} of them have lost bytes"),
        };
        let _ = writeln!(
            text,
            "{} durable tensor(s){}, {}, all read over the {} path: {verdict}",
            report.tensors - report.sealed,
            sealed(report),
            report.bytes,
            report.path,
        );
    } else {
        text.push_str("no tensor could be verified\n");
    }
    if !unread.is_empty() {
        let unread = unread.join(", ");
        let _ = writeln!(
            text,
            "not verified: the tensors of share {unread}, whose index cannot be read"
        );
    }
    if report.damage.is_empty() {
        text.push_str("clean\n");
    }
    for what in &report.unsettled {
        let _ = writeln!(text, "note: {}", printable(&what.to_string()));
    }
    for damage in &report.damage {
        let kind = match damage {
            Damage::Missing { .. } => "MISSING",
            Damage::OlderCopy { .. } => "OLDER",
            Damage::OverwrittenStart { .. } => "OVERWRITTEN",
            damage if damage.is_repairable() => "damaged",
            _ => "LOST",
        };
        let _ = writeln!(text, "{kind}: {}", printable(&damage.to_string()));
    }
    if report.damage.iter().any(|it| matches!(it, Damage::Index { .. })) {
        text.push_str(
            "what is lost of it and what is left: tidelog-format repair --accept-lost-commits\n",
        );
    }
    text
}

/// Describes how lost objects can be dropped.
pub(super) fn how_to_drop(report: &CheckReport) -> String {
    let mut names: Vec<String> = Vec::new();
    for name in report.damaged_tensors().flat_map(DropName::of) {
        let name = shell_word(&name.to_string());
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let mut text = String::new();
    if !names.is_empty() {
        text.push_str("what is lost stays until it is dropped by tidelog-format repair with:\n");
    }
    for name in names {
        let _ = writeln!(text, "  --drop-damaged {}", printable(&name));
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
        "unread_shares": report.unread_shares().collect::<Vec<_>>(),
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
        Damage::Missing { .. } => ("missing", None, None),
        Damage::Superblock { .. } => ("superblock", None, None),
        Damage::OverwrittenStart { .. } => ("overwritten-start", None, None),
        Damage::ProtectiveMbr { .. } => ("protective-mbr", None, None),
        Damage::IndexCopy { .. } => ("index-copy", None, None),
        Damage::Index { .. } => ("index", None, None),
        Damage::OlderCopy { .. } => ("older-copy", None, None),
        Damage::Holder { .. } => ("holder-block", None, None),
        Damage::TensorCopy(DamagedTensorCopy { tensor, .. }) => {
            ("tensor-copy", tensor.name.clone(), Some(format!("{:032x}", tensor.id.0)))
        }
        Damage::Tensor(tensor) => {
            ("tensor", tensor.name.clone(), Some(format!("{:032x}", tensor.id.0)))
        }
    };
    let drop = match damage {
        Damage::Tensor(tensor) => DropName::of(tensor),
        _ => Vec::new(),
    };
    json!({
        "kind": kind,
        "repairable": damage.is_repairable(),
        "what": damage.to_string(),
        "tensor": name,
        "id": id,
        "drop": drop.iter().map(ToString::to_string).collect::<Vec<_>>(),
    })
}
