//! `take-over`: a host that owned remote namespaces is gone, and this one owns them.

use std::fmt::Write;

use serde_json::{Value, json};
use tidelog_command_line::{FormatExit, printable};
use tidelog_engine::layout::Owner;
use tidelog_engine::pool::inspect::probe;
use tidelog_engine::pool::{TakenOver, take_over};

use super::specs;
use crate::cli::WipeArgs;
use crate::outcome::{CommandReport, FormatFailure};

pub(super) fn run(args: &WipeArgs) -> Result<CommandReport, FormatFailure> {
    let write = args.intent.yes;
    let specs = specs(&args.pool.devices);
    let taken: Vec<TakenOver> = if write {
        take_over(&specs)?
    } else {
        let views = specs.iter().map(probe).collect::<Result<Vec<_>, _>>()?;
        let owned = |(device, from): (String, Owner)| TakenOver { device, from, fenced: false };
        views.into_iter().filter_map(|view| Some((view.name, view.owner?))).map(owned).collect()
    };
    let mut text = String::new();
    for TakenOver { device, from, fenced } in &taken {
        let (device, from) = (printable(device), printable(&from.to_string()));
        let _ = match (write, fenced) {
            (false, _) => writeln!(text, "{device} is owned by {from}"),
            (true, true) => {
                writeln!(text, "{device} was taken from {from}; it refuses what that host writes")
            }
            (true, false) => {
                writeln!(
                    text,
                    "{device} was taken from {from}; NOTHING keeps that host from writing"
                )
            }
        };
    }
    if taken.is_empty() {
        text.push_str("no other host owns any of these devices\n");
    } else if write {
        text.push_str("\nThey are this host's until it has opened and closed the pool.\n");
    } else {
        text.push_str("\nNothing was written. Add --yes if that host is gone for good.\n");
    }
    let owner = |taken: &TakenOver| {
        let TakenOver { device, from, fenced } = taken;
        json!({ "device": device, "host": from.host, "since": from.since, "fenced": fenced })
    };
    let owners: Vec<Value> = taken.iter().map(owner).collect();
    let json = json!({ "written": write, "owners": owners });
    Ok(CommandReport::new(text, json, FormatExit::Clean))
}
