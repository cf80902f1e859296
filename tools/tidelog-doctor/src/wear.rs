//! Wear of an SSD by its own log. Reading that takes root, and a program that knows the command.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Serialize;
use serde_json::Value;
use tidelog_command_line::is_root;

/// Wear that an SSD reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SsdWear {
    /// Percent of its rated life that is used; may exceed 100.
    pub used_percent: u64,
    /// Spare blocks left, in percent.
    pub spare_percent: Option<u64>,
    /// Bytes written by the host.
    pub bytes_written: Option<u64>,
    /// Media errors.
    pub media_errors: Option<u64>,
}

/// Asks `nvme` or `smartctl`, whichever there is. Returns why not, and what to type, where neither
/// tells.
///
/// # Errors
/// In words.
pub fn wear_of(node: &Path, programs: &[PathBuf]) -> Result<SsdWear, String> {
    let find = |name: &str| programs.iter().map(|it| it.join(name)).find(|it| it.is_file());
    let node_name = node.display().to_string();
    let attempts: [(&str, &[&str]); 2] =
        [("nvme", &["smart-log", "--output-format=json"]), ("smartctl", &["--json", "--all"])];
    let mut why = Vec::new();
    for (name, arguments) in attempts {
        let Some(program) = find(name) else {
            why.push(format!("{name} is not installed"));
            continue;
        };
        let output = Command::new(program).args(arguments).arg(node).stdin(Stdio::null()).output();
        let parsed = output.ok().and_then(|output| serde_json::from_slice(&output.stdout).ok());
        if let Some(wear) = parsed.as_ref().and_then(read) {
            return Ok(wear);
        }
        let hint = if is_root() { "to see why" } else { "as root" };
        let line = arguments.join(" ");
        why.push(format!("{name} cannot read it ({hint}: {name} {line} {node_name})"));
    }
    Err(why.join("; "))
}

/// Reads the log in both programs' words.
fn read(json: &Value) -> Option<SsdWear> {
    let log = json.get("nvme_smart_health_information_log").unwrap_or(json);
    let number = |names: &[&str]| {
        let found = names.iter().find_map(|name| log.get(name))?;
        found.as_u64().or_else(|| found.as_str()?.parse().ok())
    };
    Some(SsdWear {
        used_percent: number(&["percentage_used", "percent_used"])?,
        spare_percent: number(&["available_spare", "avail_spare"]),
        // Units of a thousand blocks of 512 bytes.
        bytes_written: number(&["data_units_written"]).map(|units| units.saturating_mul(512_000)),
        media_errors: number(&["media_errors"]),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn both_programs_are_understood() {
        let expected = SsdWear {
            used_percent: 3,
            spare_percent: Some(100),
            bytes_written: Some(1_024_000),
            media_errors: Some(0),
        };
        let nvme = json!({"percent_used": 3, "avail_spare": 100, "data_units_written": "2", "media_errors": 0});
        assert_eq!(read(&nvme), Some(expected.clone()));
        let log = json!({"percentage_used": 3, "available_spare": 100, "data_units_written": 2, "media_errors": 0});
        assert_eq!(read(&json!({"nvme_smart_health_information_log": log})), Some(expected));
        assert_eq!(read(&json!({"smartctl": {"exit_status": 2}})), None);
    }

    #[test]
    fn where_no_program_is_the_reason_says_which_to_install() {
        let why = wear_of(Path::new("/dev/nvme0n1"), &[]).unwrap_err();
        assert_eq!(why, "nvme is not installed; smartctl is not installed");
    }
}
