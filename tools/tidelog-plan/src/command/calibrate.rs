//! `calibrate`: what was measured becomes a machine.

use crate::cli::CalibrateArgs;
use crate::failure::PlanFailure;
use crate::inputs::{read_machine, text_of};
use std::path::Path;
use tidelog_gds::topology::Sysfs;
use tidelog_planner::hardware::{Hardware, Mix, PcieLink, calibrate::drives};
use tidelog_planner::units::{Bandwidth, Bytes};

/// Memory against checksums, until somebody measures it: one core's.
const VERIFY: Bandwidth = Bandwidth(8_000_000_000);

pub(crate) fn calibrate(arguments: &CalibrateArgs) -> Result<String, PlanFailure> {
    let runs = arguments.runs.iter().map(|path| text_of(path)).collect::<Result<Vec<_>, _>>()?;
    let runs: Vec<&str> = runs.iter().map(String::as_str).collect();
    let files: Vec<String> = arguments.runs.iter().map(|path| path.display().to_string()).collect();
    let measured = drives(&arguments.drive, &runs)
        .map_err(|source| PlanFailure::Calibrate { file: files.join(", "), source })?;
    let mut hardware = match &arguments.base {
        Some(path) => {
            let base = read_machine(path)?.hardware.ok_or_else(|| {
                let file = path.display();
                PlanFailure::Usage(format!(
                    "{file} describes no drives: --base needs a machine with \"drives\""
                ))
            })?;
            base.with_measured(measured)
        }
        None => Hardware {
            name: String::new(),
            gpus: 1,
            memory: arguments.memory.unwrap_or(Bytes(0)),
            staging: Bytes(0),
            verify: VERIFY,
            drives: measured,
            pcie: None,
            host: None,
        },
    };
    if let Some(address) = &arguments.gpu_at {
        hardware.pcie = Some(link_of(address, &arguments.sysfs)?);
    }
    // What nobody could plan for is not written.
    hardware.machine(Mix::default())?;
    let text =
        serde_json::to_string_pretty(&hardware).expect("names and numbers always serialize") + "\n";
    super::write_or_print(arguments.output_file.as_deref(), text)
}

/// Returns the fastest link of a GPU.
fn link_of(address: &str, sysfs: &Path) -> Result<PcieLink, PlanFailure> {
    let sysfs = Sysfs(sysfs.to_owned());
    let device = sysfs.pci_device(address).ok_or_else(|| {
        PlanFailure::NotFound(format!(
            "there is no PCI device {address}; tidelog-doctor lists the GPUs"
        ))
    })?;
    let rate = sysfs.bandwidth_to_host(&[&device]).ok_or_else(|| {
        PlanFailure::NotFound(format!("the kernel does not say how wide the link of {address} is"))
    })?;
    Ok(PcieLink { read: Bandwidth(rate), write: Bandwidth(rate) })
}
