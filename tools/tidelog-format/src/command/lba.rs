//! `lba`: how a namespace is divided into blocks, and changing that.

use std::fmt::Write;
use std::fs::File;

use serde_json::{Value, json};
use tidelog_command_line::FormatExit;
use tidelog_device_safety::{NamedDevice, Reason, Scope, System, TargetKind};
use tidelog_engine::path::nvme::{
    AdminError, ControllerFacts, Formats, LbaFormat, Namespace, NamespaceFacts, UnusableNamespace,
};
use tidelog_engine::pool::{LbaError, set_lba_format};
use tidelog_engine::units::ByteCount;

use super::table::TextTable;
use super::{check_overwrite_names, refuse, resolve};
use crate::cli::LbaArgs;
use crate::outcome::{CommandReport, FormatFailure};

pub(super) fn run(args: &LbaArgs, system: &System) -> Result<CommandReport, FormatFailure> {
    let names = [args.device.clone()];
    check_overwrite_names(&args.overwrite, &names)?;
    let targets = resolve(&names, system)?;
    let drive = Drive::look(&targets[0])?;
    let Some(size) = args.lba else {
        return Ok(drive.report(drive.text(), false, None));
    };
    let write = args.intent.yes;
    drive.refuse_others()?;
    let chosen = drive.choose(size)?;
    if chosen == drive.facts.format() {
        let text = format!("{} has blocks of {size} already; nothing to do.\n", args.device);
        return Ok(drive.report(text, false, Some(chosen)));
    }
    // Metadata is a matter of the format that it is to lose.
    let counts = |reason: &Reason| !matches!(reason, Reason::Unsuitable { .. });
    refuse(&targets, &args.overwrite, system, counts)?;
    let mut text = drive.text();
    if !write {
        let _ = writeln!(
            text,
            "\nNothing was written. Add --yes to give it format {}: EVERYTHING IT HOLDS IS LOST.",
            chosen.index
        );
        return Ok(drive.report(text, false, Some(chosen)));
    }
    let may_be_lost: Vec<_> =
        if args.overwrite.is_empty() { None } else { targets[0].identity }.into_iter().collect();
    set_lba_format(&targets[0].spec(), chosen, &may_be_lost)?;
    let text = format!("{} has format {} now: blocks of {size}.\n", args.device, chosen.index);
    Ok(drive.report(text, true, Some(chosen)))
}

/// A namespace, and what it and its controller say of themselves.
struct Drive<'a> {
    target: &'a NamedDevice,
    facts: NamespaceFacts,
    controller: ControllerFacts,
    unusable: Option<UnusableNamespace>,
}

impl<'a> Drive<'a> {
    fn look(target: &'a NamedDevice) -> Result<Self, FormatFailure> {
        if target.scope != Scope::WholeNamespace {
            let what = format!("{} is a {}", target.given, target.scope);
            let help =
                "name a whole NVMe namespace, such as /dev/nvme1n1; nothing else has LBA formats";
            return Err(FormatFailure::new(FormatExit::Refused, what, help));
        }
        let failed = |error: AdminError| {
            let what = format!("{}: {error}", target.given);
            FormatFailure::new(
                FormatExit::Failed,
                what,
                "drives can usually be asked by root alone",
            )
        };
        let file = File::open(&target.path);
        let file = file.map_err(|error| failed(AdminError::NotNvme(error)))?;
        let namespace = Namespace::of(&file).map_err(failed)?;
        Ok(Self {
            target,
            facts: namespace.facts().map_err(failed)?,
            controller: namespace.controller().map_err(failed)?,
            unusable: namespace.unusable().map_err(failed)?,
        })
    }

    /// Refuses drives of which more than this namespace would change, or that Tidelog uses in no
    /// format.
    fn refuse_others(&self) -> Result<(), FormatFailure> {
        let device = &self.target.given;
        if let Some(why @ (UnusableNamespace::Zoned | UnusableNamespace::CommandSet(_))) =
            self.unusable
        {
            let what = format!("{device}: {why}; no format changes that");
            return Err(FormatFailure::new(FormatExit::Refused, what, "name another device"));
        }
        if self.controller.formats == Formats::Nothing {
            let what = format!("{device}: its controller cannot change formats");
            return Err(FormatFailure::new(FormatExit::Refused, what, "it stays as it is"));
        }
        let neighbours = match &self.target.kind {
            TargetKind::Block(device) => device.neighbours(),
            _ => Vec::new(),
        };
        if self.controller.formats == Formats::All && !neighbours.is_empty() {
            let what = format!(
                "{device}: its controller formats all namespaces at once, and there is {}",
                neighbours.join(", ")
            );
            return Err(FormatFailure::new(
                FormatExit::Refused,
                what,
                "delete the other namespaces first",
            ));
        }
        Ok(())
    }

    /// The format with blocks of this size that performs best.
    fn choose(&self, size: ByteCount) -> Result<LbaFormat, FormatFailure> {
        let of_size = || self.facts.formats.iter().filter(|it| u64::from(it.block) == size.0);
        let best = of_size().filter(|it| it.metadata == 0).min_by_key(|it| it.performance);
        best.copied().ok_or_else(|| {
            let why = match of_size().next() {
                None => format!("it has no format with blocks of {size}"),
                Some(found) => {
                    format!("blocks of {size} come with {} bytes of metadata", found.metadata)
                }
            };
            let what = format!("{}: {why}", self.target.given);
            let help = format!("tidelog-format lba {} lists its formats", self.target.given);
            FormatFailure::new(FormatExit::Refused, what, help)
        })
    }

    fn text(&self) -> String {
        let mut text = format!("{} ({}", self.target.given, self.target.size);
        if let Some(model) = self.target.model() {
            let _ = write!(text, ", {model}");
        }
        text.push_str(")\n");
        let mut table = TextTable::new(&[">format", ">bytes in a block", ">metadata", "", ""]);
        for format in &self.facts.formats {
            const PERFORMANCE: [&str; 4] = ["best", "better", "good", "degraded"];
            table.row(&[
                format.index.to_string(),
                format.block.to_string(),
                format.metadata.to_string(),
                PERFORMANCE[usize::from(format.performance & 3)].to_owned(),
                if *format == self.facts.format() { "in use" } else { "" }.to_owned(),
            ]);
        }
        text.push_str(&table.render(2));
        if let Some(why) = self.unusable {
            let _ = writeln!(text, "Tidelog does not use it: {why}");
        }
        text
    }

    fn report(&self, text: String, written: bool, chosen: Option<LbaFormat>) -> CommandReport {
        let formats: Vec<Value> = self
            .facts
            .formats
            .iter()
            .map(|format| {
                json!({
                    "format": format.index,
                    "block_bytes": format.block,
                    "metadata_bytes": format.metadata,
                    "performance": format.performance,
                })
            })
            .collect();
        let json = json!({
            "device": self.target.given,
            "written": written,
            "before": self.facts.format().index,
            "chosen": chosen.map(|format| format.index),
            "formats": formats,
            "unusable": self.unusable.map(|why| why.to_string()),
        });
        CommandReport::new(text, json, FormatExit::Clean)
    }
}

impl From<LbaError> for FormatFailure {
    fn from(error: LbaError) -> Self {
        match error {
            LbaError::Refused(error) => error.into(),
            LbaError::Admin { .. } => Self::new(
                FormatExit::Failed,
                error.to_string(),
                "look at it again: tidelog-format lba",
            ),
            LbaError::Unnoticed { .. } => Self::new(FormatExit::Failed, error.to_string(), ""),
        }
    }
}
