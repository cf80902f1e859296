//! Outcome of a command: what to print, for people or for programs, and the exit code.

use std::fmt::Write;

use serde_json::{Value, json};
use tidelog_command_line::{FormatExit, error_document, printable};
use tidelog_device_safety::DeviceRefusal;
use tidelog_engine::layout::SuperblockError;
use tidelog_engine::path::{DeviceOpenError, DeviceSpec};
use tidelog_engine::pool::inspect::RepairError;
use tidelog_engine::pool::{CalibrateError, FormatError, OpenError, ReshapeError};

use crate::cli::FormatOutput;

/// Report of a command that succeeded.
#[derive(Debug)]
pub struct CommandReport {
    /// Text for people.
    pub text: String,
    /// JSON for programs.
    pub json: Value,
    /// Text of other formats, if the command has them.
    pub others: Option<OtherFormats>,
    /// The exit code.
    pub exit: FormatExit,
}

/// Texts for monitoring.
#[derive(Debug)]
pub struct OtherFormats {
    /// Metrics in the text format of Prometheus.
    pub prometheus: String,
    /// Events, one a line, as JSON.
    pub events: String,
}

impl CommandReport {
    /// Makes the report of a command that has no other formats.
    pub const fn new(text: String, json: Value, exit: FormatExit) -> Self {
        Self { text, json, others: None, exit }
    }

    fn in_format(&self, output: FormatOutput) -> &str {
        match (output, &self.others) {
            (FormatOutput::Prometheus, Some(others)) => &others.prometheus,
            (FormatOutput::Events, Some(others)) => &others.events,
            _ => &self.text,
        }
    }
}

/// The reason why a command did not do what it was asked for.
#[derive(Debug)]
pub struct FormatFailure {
    /// The exit code.
    pub exit: FormatExit,
    /// Description of the error, and its place.
    pub message: String,
    /// Advice on the error.
    pub help: String,
    /// Every device that was refused, and why.
    pub refusals: Vec<DeviceRefusal>,
}

impl FormatFailure {
    /// A failure without refused devices.
    pub fn new(exit: FormatExit, message: impl Into<String>, help: impl Into<String>) -> Self {
        Self { exit, message: message.into(), help: help.into(), refusals: Vec::new() }
    }

    /// Devices were refused; nothing was written.
    pub fn refused(refusals: Vec<DeviceRefusal>) -> Self {
        let message = match refusals.len() {
            1 => "1 reason against it; nothing was written".to_owned(),
            count => format!("{count} reasons against it; nothing was written"),
        };
        Self { refusals, ..Self::new(FormatExit::Refused, message, "") }
    }
}

/// Outcome of a command.
#[derive(Debug)]
pub struct CommandOutcome(pub Result<CommandReport, FormatFailure>);

impl CommandOutcome {
    /// The exit code.
    pub fn exit(&self) -> FormatExit {
        self.0.as_ref().map_or_else(|failure| failure.exit, |report| report.exit)
    }

    /// Returns the texts for standard output and for standard error.
    pub fn rendered(&self, output: FormatOutput) -> (String, String) {
        match (&self.0, output) {
            (Ok(report), FormatOutput::Json) => (lines(&report.json), String::new()),
            (Err(failure), FormatOutput::Json) => (lines(&failure_json(failure)), String::new()),
            (Ok(report), other) => (report.in_format(other).to_owned(), String::new()),
            (Err(failure), _) => (String::new(), failure_text(failure)),
        }
    }
}

fn lines(json: &Value) -> String {
    format!("{json:#}\n")
}

fn failure_text(failure: &FormatFailure) -> String {
    let mut text = String::new();
    for refusal in &failure.refusals {
        let reason = printable(&format!("{}: {}", refusal.device, refusal.reason));
        let help = printable(&refusal.reason.help(&refusal.device));
        let _ = writeln!(text, "refused: {reason}\n         {help}");
    }
    let _ = writeln!(text, "tidelog-format: {}", printable(&failure.message));
    if !failure.help.is_empty() {
        let _ = writeln!(text, "{}", failure.help);
    }
    text
}

fn failure_json(failure: &FormatFailure) -> Value {
    let refusals: Vec<Value> = failure
        .refusals
        .iter()
        .map(|refusal| {
            json!({
                "device": refusal.device,
                "kind": refusal.reason.kind(),
                "reason": refusal.reason.to_string(),
                "overridable": refusal.reason.may_be_overridden(),
                "help": refusal.reason.help(&refusal.device),
            })
        })
        .collect();
    let mut document = error_document(&failure.message, &failure.help, failure.exit.into());
    document["refusals"] = refusals.into();
    document
}

const OWNED_ELSEWHERE: &str =
    "close the pool there; only if that host is gone for good: tidelog-format take-over";

/// Advice on a device that somebody else has reserved.
const RESERVED: &str = "have that reservation given back there; only if that host is gone for good: nvme resv-acquire \
     and resv-release";

/// Advice on a device on which something else was made.
pub(crate) const OVERWRITTEN_HELP: &str = "to keep what was made there: tidelog-format wipe removes the rest of the pool; to keep \
     the pool, and lose that: tidelog-format repair --accept-overwritten-start";

/// `list` looks at what the kernel shows.
const NOT_IN_A_LIST: &str = "name every controller of one pool; `inspect` says what each has, `list` shows only the kernel's devices";

/// Returns whether this begins with the name of a controller.
fn is_of_spdk(device: &str) -> bool {
    DeviceSpec::new(device).controller().is_some()
}

/// Returns advice on a controller that is not to be had. The error says why.
fn help_for_controller(name: &str) -> &'static str {
    let name = DeviceSpec::new(name).controller();
    match name.filter(|name| name.meaningless().is_none()).map(|name| name.pci_address().is_some())
    {
        Some(true) => {
            "`tidelog-doctor check` shows the controllers and their drivers, `tidelog-doctor bind` takes one from the kernel"
        }
        Some(false) => "check that its target runs and allows this host (hostnqn: in the name)",
        None => "",
    }
}

impl From<OpenError> for FormatFailure {
    fn from(error: OpenError) -> Self {
        let (exit, help) = match &error {
            OpenError::ShareHeld { .. } => (
                FormatExit::Refused,
                "end that process, or use `inspect`, which only reads and needs no lock",
            ),
            OpenError::OwnedElsewhere { .. } => (FormatExit::Refused, OWNED_ELSEWHERE),
            OpenError::Reserved { .. } => (FormatExit::Refused, RESERVED),
            OpenError::Superblock { device, source: SuperblockError::Absent }
                if is_of_spdk(device) =>
            {
                (FormatExit::NotAPool, NOT_IN_A_LIST)
            }
            OpenError::NotOnePool(what) if is_of_spdk(what) => {
                (FormatExit::NotAPool, NOT_IN_A_LIST)
            }
            OpenError::Device(DeviceOpenError::Controller { name, .. }) => {
                (FormatExit::Failed, help_for_controller(name))
            }
            OpenError::Superblock { source: SuperblockError::Unfinished, .. } => (
                FormatExit::NotAPool,
                "`format` takes it, with the others of that format, as if blank; `check` says whether a pool is left on it",
            ),
            OpenError::Superblock { source: SuperblockError::Absent, .. }
            | OpenError::Device(DeviceOpenError::Missing { .. }) => {
                (FormatExit::NotAPool, "`list` shows which devices carry pools")
            }
            OpenError::Superblock {
                source: SuperblockError::Version(_) | SuperblockError::Features(_),
                ..
            } => (
                FormatExit::Refused,
                "use the version of Tidelog that made the pool, or a newer one",
            ),
            OpenError::Superblock { source: SuperblockError::Disagree { .. }, .. } => (
                FormatExit::Damaged,
                "name every device of the pool: the others may tell; if you know which one was copied here, \
                 `inspect` says where each stands",
            ),
            OpenError::Superblock { .. } => (
                FormatExit::Damaged,
                "neither copy of the superblock can be used; check the device, or format it again",
            ),
            OpenError::Shrunk { .. } => (
                FormatExit::Damaged,
                "the device is smaller than its pool: a wrong device, or a truncated file or volume",
            ),
            OpenError::NotOnePool(_) | OpenError::Devices(_) => (
                FormatExit::NotAPool,
                "name every device of one pool; `list` shows which belong together",
            ),
            OpenError::OlderCopy { .. } => (
                FormatExit::Damaged,
                "only if the newer copies are lost for good: tidelog-format repair --accept-older-copies",
            ),
            OpenError::Missing { .. } => (
                FormatExit::NotAPool,
                "what can be read without it: tidelog-format check --degraded",
            ),
            OpenError::Stale { .. }
            | OpenError::Unreplaced { .. }
            | OpenError::Removed { .. }
            | OpenError::Unadded { .. } => (
                FormatExit::Refused,
                "`inspect` of the other devices says what the pool has gone on without",
            ),
            OpenError::OverwrittenStart { .. } => (FormatExit::Refused, OVERWRITTEN_HELP),
            OpenError::Recovery { .. } => (
                FormatExit::Damaged,
                "`check` says what is damaged; `repair --accept-lost-commits` shows what is lost and what is left",
            ),
            OpenError::Device(DeviceOpenError::InUse { .. } | DeviceOpenError::Used { .. }) => {
                (FormatExit::Refused, "unmount it, or stop what holds it")
            }
            OpenError::Device(DeviceOpenError::NoDirect { .. }) => {
                (FormatExit::Failed, "add --buffered to go through the page cache")
            }
            _ => (FormatExit::Failed, ""),
        };
        Self::new(exit, error.to_string(), help)
    }
}

impl From<FormatError> for FormatFailure {
    fn from(error: FormatError) -> Self {
        let (exit, help) = match &error {
            FormatError::SizeNeeded(_) => {
                (FormatExit::Usage, "add --size, for example --size 100GiB")
            }
            FormatError::Devices(_) | FormatError::Geometry(_) => (FormatExit::Usage, ""),
            FormatError::OwnedElsewhere { .. } => (FormatExit::Refused, OWNED_ELSEWHERE),
            FormatError::Reserved { .. } => (FormatExit::Refused, RESERVED),
            FormatError::InUse { .. }
            | FormatError::SameDevice(..)
            | FormatError::HoldsPool { .. }
            | FormatError::HoldsData { .. }
            | FormatError::Device(
                DeviceOpenError::InUse { .. }
                | DeviceOpenError::Used { .. }
                | DeviceOpenError::Missing { .. },
            ) => (FormatExit::Refused, "it was free a moment ago; check it before you continue"),
            FormatError::Device(DeviceOpenError::NoDirect { .. }) => {
                (FormatExit::Failed, "add --buffered to go through the page cache")
            }
            FormatError::Device(DeviceOpenError::Controller { name, .. }) => {
                (FormatExit::Failed, help_for_controller(name))
            }
            _ => (FormatExit::Failed, ""),
        };
        Self::new(exit, error.to_string(), help)
    }
}

impl From<ReshapeError> for FormatFailure {
    fn from(error: ReshapeError) -> Self {
        match error {
            ReshapeError::Open(error) => error.into(),
            ReshapeError::New(error) => error.into(),
            ReshapeError::Geometry(_)
            | ReshapeError::NoneMissing
            | ReshapeError::TooSmall { .. }
            | ReshapeError::NoPlace { .. } => Self::new(FormatExit::Usage, error.to_string(), ""),
            ReshapeError::Gone(_)
            | ReshapeError::TooFew { .. }
            | ReshapeError::NoSpace { .. }
            | ReshapeError::NoRoom(_)
            | ReshapeError::Shares(_)
            | ReshapeError::Lost(_) => Self::new(FormatExit::Refused, error.to_string(), ""),
            _ => Self::new(
                FormatExit::Failed,
                error.to_string(),
                "once that is mended, the same command finishes it; nothing is lost meanwhile, and the pool opens \
                 without a device that is not ready",
            ),
        }
    }
}

impl From<CalibrateError> for FormatFailure {
    fn from(error: CalibrateError) -> Self {
        match error {
            CalibrateError::Open(error) => error.into(),
            CalibrateError::NoRoom => Self::new(
                FormatExit::Refused,
                error.to_string(),
                "delete tensors, or format the pool again with --calibrate",
            ),
            _ => Self::new(FormatExit::Failed, error.to_string(), "the pool is as it was"),
        }
    }
}

impl From<RepairError> for FormatFailure {
    fn from(error: RepairError) -> Self {
        match error {
            RepairError::Open(error) => error.into(),
            RepairError::Drop(_) => Self::new(
                FormatExit::Usage,
                error.to_string(),
                "`check` lists what can be dropped, and how each is named",
            ),
            _ => Self::new(
                FormatExit::Failed,
                error.to_string(),
                "run `check` to see what is damaged now",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_for_a_controller_is_about_controllers() {
        let help = |error: OpenError| FormatFailure::from(error).help;
        let absent = |device: &str| {
            help(OpenError::Superblock { device: device.into(), source: SuperblockError::Absent })
        };
        assert!(absent("spdk:0000:01:00.0").contains("`inspect`"));
        assert!(absent("/dev/nvme0n1").contains("`list` shows which"));
        let refused = |name: &str| {
            let (name, why) = (name.into(), "it is not there".into());
            help(OpenError::Device(DeviceOpenError::Controller { name, why }))
        };
        assert!(refused("spdk:0000:01:00.0").contains("tidelog-doctor bind"));
        assert!(refused("spdk:trtype:TCP traddr:10.0.0.1").contains("hostnqn:"));
    }
}
