//! The page: for people, and for programs.

use std::cmp::Reverse;
use std::fmt::Write;

use serde::Serialize;
use tidelog_command_line::{DoctorExit, printable};
use tidelog_engine::units::ByteCount;
use tidelog_gds::topology::NvmlUnavailable;

use crate::devices::DeviceRow;
use crate::facts::Fact;
use crate::gpus::GpuRow;
use crate::next::TRY;
use crate::paths::{MemoryOwner, Row, Verdict};
use crate::ways::By;

/// Page of all findings.
#[derive(Debug)]
pub struct DoctorPage {
    /// Facts that the kernel shows.
    pub facts: Vec<Fact>,
    /// The GPUs.
    pub gpus: Vec<GpuRow>,
    /// The reason why NVML says nothing of them.
    pub nvml_why_not: Option<NvmlUnavailable>,
    /// The SSDs.
    pub devices: Vec<DeviceRow>,
    /// Rows of the trials.
    pub rows: Vec<Row>,
    /// Commands by which SPDK's driver gets an SSD.
    pub spdk_next: String,
}

/// Note on parts that no file can show: said on every page, so that its absence is no riddle.
const SPDK: &str =
    "needs a whole SSD that was taken from the kernel (see `bind`); then `--pool spdk:ADDRESS`";

/// Command for the next better path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NextStep {
    /// Name of the path.
    pub path: String,
    /// Command to type.
    pub command: String,
}

impl DoctorPage {
    /// Returns the exit code.
    pub fn exit(&self) -> DoctorExit {
        let any = |verdict| self.rows.iter().any(|row| row.verdict == verdict);
        match () {
            () if self.rows.is_empty() => DoctorExit::Untried,
            () if any(Verdict::WrongBytes) => DoctorExit::WrongBytes,
            () if any(Verdict::Failed) || !any(Verdict::Works) => DoctorExit::NothingWorks,
            () => DoctorExit::Works,
        }
    }

    /// The command of the nearest path that is better than all that work from the same memory; of
    /// paths as good, the one from a GPU's, for which the others are a way round.
    pub fn next(&self) -> Option<NextStep> {
        if self.rows.is_empty() {
            return Some(NextStep { path: "all".into(), command: TRY.into() });
        }
        let working = |memory| self.rows.iter().filter(move |row| row.is_proven_from(memory));
        let best = |memory| working(memory).map(|row| row.path).max();
        let offers = self.rows.iter().map(|row| (row.path, row.memory, row.name(), &row.next));
        let spdk = (By::Spdk, MemoryOwner::Host, By::Spdk.to_string(), &self.spdk_next);
        let better = offers.chain([spdk]).filter(|(path, memory, _, command)| {
            !command.is_empty() && best(*memory).is_none_or(|best| *path > best)
        });
        let nearest = better.min_by_key(|(path, memory, ..)| (*path, Reverse(*memory)));
        nearest.map(|(_, _, path, command)| NextStep { path, command: command.clone() })
    }

    /// Returns the page for people.
    pub fn text(&self) -> String {
        let mut out = String::from("This machine\n");
        for fact in &self.facts {
            line(&mut out, fact.name, &fact.found, &fact.next);
        }
        out.push_str("\nGPUs\n");
        match &self.nvml_why_not {
            _ if self.gpus.is_empty() => line(&mut out, "none", "no GPU of NVIDIA's is shown", ""),
            Some(why) => line(&mut out, "little known", &why.to_string(), ""),
            None => {}
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
            line(&mut out, "not tried", "nothing is written without leave", TRY);
        }
        // Where there is no GPU, one line above says so.
        let is_told = |row: &&Row| {
            row.memory == MemoryOwner::Host || row.gpu.is_some() || !self.gpus.is_empty()
        };
        for row in self.rows.iter().filter(is_told) {
            row_lines(&mut out, row);
        }
        if !self.devices.is_empty() {
            line(&mut out, "spdk", SPDK, &self.spdk_next);
        }
        if let Some(next) = self.next() {
            out.push_str("\nNext\n");
            line(&mut out, &next.path, &next.command, "");
        }
        out
    }

    /// Returns the page for programs.
    pub fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "machine": self.facts,
            "gpus": self.gpus,
            "gpus_why_not": self.nvml_why_not.as_ref().map(ToString::to_string),
            "devices": self.devices,
            "paths": self.rows,
            "spdk": SPDK,
            "spdk_next": self.spdk_next,
            "next": self.next(),
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
    line(out, &row.name(), &found, &row.next);
}

#[cfg(test)]
mod tests {
    use super::*;
    use MemoryOwner::{Gpu, Host};
    use Verdict::{Absent, Failed, Works};

    fn row(path: By, memory: MemoryOwner, verdict: Verdict, next: &str) -> Row {
        Row {
            path,
            memory,
            gpu: (memory == Gpu).then_some(0),
            scratch: "/mnt".into(),
            verdict,
            why: "because".into(),
            next: next.into(),
            write_bytes_per_second: None,
            read_bytes_per_second: None,
            read_latency_nanoseconds: None,
        }
    }

    fn page(rows: Vec<Row>, spdk_next: &str) -> DoctorPage {
        let spdk_next = spdk_next.into();
        let (gpus, nvml_why_not) = (Vec::new(), None);
        DoctorPage { facts: Vec::new(), gpus, nvml_why_not, devices: Vec::new(), rows, spdk_next }
    }

    #[track_caller]
    fn is_next(page: &DoctorPage, expected: Option<(&str, &str)>) {
        let next = page.next();
        let found = next.as_ref().map(|next| (next.path.as_str(), next.command.as_str()));
        assert_eq!(found, expected);
        let command = expected.map(|(_, command)| command);
        assert_eq!(page.json()["next"]["command"].as_str(), command);
        assert_eq!(page.text().contains("\nNext\n"), expected.is_some());
    }

    #[test]
    fn the_next_command_is_of_the_nearest_path_that_is_better_than_what_works() {
        let mut rows = vec![
            row(By::Uring, Host, Absent, "allow io_uring"),
            row(By::Posix, Host, Works, ""),
            row(By::Uring, Gpu, Works, ""),
            row(By::Posix, Gpu, Absent, "no better one"),
            row(By::Gds, Gpu, Absent, "load nvidia-fs"),
            row(By::Gdrcopy, Gpu, Failed, "load gdrdrv"),
        ];
        is_next(&page(rows.clone(), "bind"), Some(("uring", "allow io_uring")));
        rows[0].verdict = Works;
        is_next(&page(rows.clone(), "bind"), Some(("gds GPU 0", "load nvidia-fs")));
        rows[4].verdict = Works;
        is_next(&page(rows.clone(), "bind"), Some(("spdk", "bind")));
        is_next(&page(rows.clone(), ""), Some(("gdrcopy GPU 0", "load gdrdrv")));
        rows[5].next.clear();
        is_next(&page(rows, ""), None);
    }

    #[test]
    fn where_nothing_was_tried_that_is_next() {
        is_next(&page(Vec::new(), "bind"), Some(("all", TRY)));
    }

    #[test]
    fn a_row_that_does_not_work_is_followed_by_what_to_type() {
        let told = page(vec![row(By::Gds, Gpu, Absent, "load nvidia-fs")], "bind").text();
        let expected =
            "  gds GPU 0       not on /mnt: because\n                  -> load nvidia-fs\n";
        assert!(told.contains(expected), "{told}");
    }
}
