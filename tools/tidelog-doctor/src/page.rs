//! The page: for people, and for programs.

use std::fmt::Write;

use tidelog_engine::units::ByteCount;
use tidelog_format::outcome::printable;
use tidelog_gds::topology::NvmlUnavailable;

use crate::facts::Fact;
use crate::gpus::GpuRow;
use crate::outcome::Exit;
use crate::paths::{DeviceRow, Row, Verdict};

/// Everything that was found.
#[derive(Debug)]
pub struct Page {
    /// What the kernel shows.
    pub facts: Vec<Fact>,
    /// The GPUs.
    pub gpus: Vec<GpuRow>,
    /// Why NVML says nothing of them.
    pub nvml_why_not: Option<NvmlUnavailable>,
    /// The SSDs.
    pub devices: Vec<DeviceRow>,
    /// What was tried.
    pub rows: Vec<Row>,
}

/// What nothing here can try: said on every page, so that its absence is no riddle.
const SPDK: &str =
    "not tried by this tool: it takes a whole SSD that was handed to user space (see `bind`)";

impl Page {
    /// How it ends.
    pub fn exit(&self) -> Exit {
        let any = |verdict| self.rows.iter().any(|row| row.verdict == verdict);
        match () {
            () if self.rows.is_empty() => Exit::Untried,
            () if any(Verdict::WrongBytes) => Exit::WrongBytes,
            () if any(Verdict::Failed) || !any(Verdict::Works) => Exit::NothingWorks,
            () => Exit::Works,
        }
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut out = String::from("This machine\n");
        for fact in &self.facts {
            line(&mut out, fact.name, &fact.found, &fact.next);
        }
        out.push_str("\nGPUs\n");
        if let Some(why) = &self.nvml_why_not {
            let name = if self.gpus.is_empty() { "none" } else { "little known" };
            line(&mut out, name, &why.to_string(), "");
        }
        for gpu in &self.gpus {
            line(&mut out, &gpu.pci_address, &gpu.text(), &gpu.next);
            gpu.ssds_text().iter().for_each(|text| line(&mut out, "", text, ""));
        }
        out.push_str("\nNVMe SSDs\n");
        if self.devices.is_empty() {
            line(
                &mut out,
                "none",
                "no NVMe controller on PCI Express; files on other disks work all the same",
                "",
            );
        }
        for device in &self.devices {
            device_lines(&mut out, device);
        }
        out.push_str("\nData paths\n");
        if self.rows.is_empty() {
            line(
                &mut out,
                "not tried",
                "nothing is written without leave",
                "tidelog-doctor check --scratch DIRECTORY",
            );
        }
        for row in &self.rows {
            row_lines(&mut out, row);
        }
        line(&mut out, "spdk", SPDK, "");
        out
    }

    /// For programs.
    pub fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "machine": self.facts,
            "gpus": self.gpus,
            "gpus_why_not": self.nvml_why_not.as_ref().map(ToString::to_string),
            "devices": self.devices,
            "paths": self.rows,
            "spdk": SPDK,
            "exit": self.exit() as u8,
        })
    }
}

fn line(out: &mut String, name: &str, found: &str, next: &str) {
    let _ = writeln!(out, "  {:<16}{}", printable(name), printable(found));
    if !next.is_empty() {
        let _ = writeln!(out, "  {:<16}-> {}", "", printable(next));
    }
}

fn device_lines(out: &mut String, device: &DeviceRow) {
    let node = device.numa_node.map_or_else(String::new, |node| format!(", NUMA node {node}"));
    let found = format!(
        "{}, driver {}, {}{node}",
        device.pci_address.as_deref().unwrap_or("not on PCI Express"),
        device.driver.as_deref().unwrap_or("none"),
        device.link.as_deref().unwrap_or("link unknown"),
    );
    line(out, &device.name, &found, &device.next);
    for text in device.users.iter().chain(&device.gpus) {
        line(out, "", text, "");
    }
    if let Some(wear) = &device.wear {
        line(out, "", &format!("{} % of its rated life is used", wear.used_percent), "");
    }
    if let Some(why) = &device.wear_why_not {
        line(out, "", &format!("wear unknown: {why}"), "");
    }
}

fn row_lines(out: &mut String, row: &Row) {
    let gpu = row.gpu.map_or_else(String::new, |gpu| format!(" GPU {gpu}"));
    let name = format!("{}{gpu}", row.path);
    let at = row.scratch.display();
    let rate = |bytes: Option<u64>| format!("{}/s", ByteCount(bytes.unwrap_or(0)));
    let found = match row.verdict {
        Verdict::Works => format!(
            "works on {at}: write {}, read {}, 4 KiB read {} us, checksums equal",
            rate(row.write_bytes_per_second),
            rate(row.read_bytes_per_second),
            row.read_latency_nanoseconds.unwrap_or(0) / 1000,
        ),
        Verdict::Absent => format!("not on {at}: {}", row.why),
        Verdict::Failed => format!("FAILED on {at}: {}", row.why),
        Verdict::WrongBytes => format!("WRONG BYTES on {at}: {}", row.why),
    };
    line(out, &name, &found, "");
}
