//! `take-over`: a host that owned remote namespaces is gone.

use std::fmt::Write;

use serde_json::{Value, json};
use tidelog_command_line::{FormatExit, printable};
use tidelog_engine::layout::Owner;
use tidelog_engine::pool::inspect::probe;
use tidelog_engine::pool::take_over;

use super::specs;
use crate::cli::WipeArgs;
use crate::outcome::{CommandReport, FormatFailure};

pub(super) fn run(args: &WipeArgs) -> Result<CommandReport, FormatFailure> {
    let write = args.intent.yes;
    let specs = specs(&args.pool.devices);
    let owned: Vec<(String, Owner)> = if write {
        take_over(&specs)?
    } else {
        let views = specs.iter().map(probe).collect::<Result<Vec<_>, _>>()?;
        views.into_iter().filter_map(|view| Some((view.name, view.owner?))).collect()
    };
    let mut text = String::new();
    for (device, owner) in &owned {
        let verb = if write { "was taken from" } else { "is owned by" };
        let _ = writeln!(text, "{} {verb} {}", printable(device), printable(&owner.to_string()));
    }
    if owned.is_empty() {
        text.push_str("no host owns any of these devices\n");
    } else if !write {
        text.push_str("\nNothing was written. Add --yes if that host is gone for good.\n");
    }
    let owners: Vec<Value> = owned
        .iter()
        .map(
            |(device, owner)| json!({ "device": device, "host": owner.host, "since": owner.since }),
        )
        .collect();
    let json = json!({ "written": write, "owners": owners });
    Ok(CommandReport::new(text, json, FormatExit::Clean))
}
