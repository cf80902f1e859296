//! Every data path for every device and scratch area, with a verdict: proven, or exactly why not.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use tidelog_engine::path::{
    Backend, Device, DeviceSpec, KernelDevices, OpenMode, PathChoice, PathProvider,
};
use tidelog_engine::units::ByteCount;
use tidelog_format::device::System;
use tidelog_gds::cuda::gpu_count;
use tidelog_gds::cufile::{Compat, Library};
use tidelog_gds::topology::{Acs, Distance, PciDevice, Sysfs, distance};
use tidelog_gds::{GdsBackend, GdsOptions};

use crate::cli::CheckArgs;
use crate::trial::{Measured, TrialError, pool_round_trip, round_trip};
use crate::wear::{Wear, wear_of};

/// What is known of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// A round trip came back whole.
    Works,
    /// It does not open here.
    Absent,
    /// It opened, and an operation failed.
    Failed,
    /// It opened, and other bytes came back.
    WrongBytes,
}

/// A path on a scratch area.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The data path.
    pub path: &'static str,
    /// Where it was tried.
    pub scratch: PathBuf,
    /// The GPU that it went through.
    pub gpu: Option<i32>,
    /// What came out.
    pub verdict: Verdict,
    /// Why it does not work, or what the path says of itself.
    pub why: String,
    /// Bytes written in a second.
    pub write_bytes_per_second: Option<u64>,
    /// Bytes read in a second.
    pub read_bytes_per_second: Option<u64>,
    /// The median of reads of 4 KiB, one at a time, in nanoseconds.
    pub read_latency_nanoseconds: Option<u64>,
}

/// Tries every path on every scratch area.
///
/// # Errors
/// A scratch area in which no file can be made: nothing was tried then.
pub fn try_all(arguments: &CheckArgs) -> io::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for directory in &arguments.scratch {
        let scratch = Scratch::new(directory, arguments.size)?;
        for (path, choice) in [("uring", PathChoice::Uring), ("posix", PathChoice::Posix)] {
            let provider = |device| -> Box<dyn PathProvider> {
                Box::new(KernelDevices::new(vec![device], choice))
            };
            rows.push(try_one(path, &scratch, None, arguments.size, provider));
        }
        rows.extend(try_gds(&scratch.directory, arguments, |gpu, backend| {
            let provider = |device| backend.provider(vec![device]);
            try_one("gds", &scratch, Some(gpu), arguments.size, provider)
        }));
    }
    for pool in &arguments.pool {
        let area = Path::new(pool);
        let by = |choice, backend| pool_round_trip(pool, choice, backend, arguments.size);
        rows.push(row("uring", area, None, by(PathChoice::Uring, None)));
        rows.push(row("posix", area, None, by(PathChoice::Posix, None)));
        rows.extend(try_gds(area, arguments, |gpu, backend| {
            row("gds", area, Some(gpu), by(PathChoice::Auto, Some(Arc::new(backend))))
        }));
    }
    Ok(rows)
}

/// cuFile through every GPU; one row with the reason where there is none.
fn try_gds(
    area: &Path,
    arguments: &CheckArgs,
    attempt: impl Fn(i32, GdsBackend) -> Row,
) -> Vec<Row> {
    let absent = |why: String| vec![row("gds", area, None, Err(TrialError::Unavailable(why)))];
    let library = Library::open(arguments.cufile.as_deref()).map_err(|error| error.to_string());
    let count = match (gpu_count(), &library) {
        (Ok(0), _) => return absent("CUDA shows no GPU (CUDA_VISIBLE_DEVICES hides them)".into()),
        (Ok(count), Ok(_)) => count,
        (Ok(_), Err(why)) => return absent(why.clone()),
        (Err(cuda), Ok(_)) => return absent(cuda.to_string()),
        (Err(cuda), Err(why)) => return absent(format!("{cuda}; and {why}")),
    };
    let compat = if arguments.compat { Compat::Named } else { Compat::Forbidden };
    let backend = |gpu| {
        let library = arguments.cufile.clone();
        GdsBackend(GdsOptions { gpu, library, compat, ..GdsOptions::default() })
    };
    (0..count).map(|gpu| attempt(gpu, backend(gpu))).collect()
}

fn try_one(
    path: &'static str,
    scratch: &Scratch,
    gpu: Option<i32>,
    size: ByteCount,
    provider: impl FnOnce(Device) -> Box<dyn PathProvider>,
) -> Row {
    let device = Device::open(&DeviceSpec::new(&scratch.file), OpenMode::default());
    let result = match device {
        Ok(device) => round_trip(provider(device), size),
        Err(error) => Err(TrialError::Unavailable(error.to_string())),
    };
    row(path, &scratch.directory, gpu, result)
}

fn row(
    path: &'static str,
    area: &Path,
    gpu: Option<i32>,
    result: Result<Measured, TrialError>,
) -> Row {
    let (verdict, why) = match &result {
        Ok(measured) => (Verdict::Works, measured.notes.join("; ")),
        Err(error @ TrialError::Unavailable(_)) => (Verdict::Absent, error.to_string()),
        Err(error @ TrialError::Failed(_)) => (Verdict::Failed, error.to_string()),
        Err(error @ TrialError::WrongBytes { .. }) => (Verdict::WrongBytes, error.to_string()),
    };
    let measured = result.ok();
    let measured = measured.as_ref();
    Row {
        path,
        scratch: area.to_path_buf(),
        gpu,
        verdict,
        why,
        write_bytes_per_second: measured.map(|it| it.write.0),
        read_bytes_per_second: measured.map(|it| it.read.0),
        read_latency_nanoseconds: measured.map(|it| it.latency.as_nanos() as u64),
    }
}

/// A file of our own in a directory that was given, removed at the end.
struct Scratch {
    directory: PathBuf,
    file: PathBuf,
}

impl Scratch {
    fn new(directory: &Path, size: ByteCount) -> io::Result<Self> {
        let named = |error: io::Error| {
            io::Error::new(
                error.kind(),
                format!("cannot make a scratch file in {}: {error}", directory.display()),
            )
        };
        if !fs::metadata(directory).map_err(named)?.is_dir() {
            let what = format!(
                "{} is no directory; a device that holds data is never a scratch area",
                directory.display()
            );
            return Err(io::Error::new(io::ErrorKind::NotADirectory, what));
        }
        let file = directory.join(format!(".tidelog-doctor-{}", std::process::id()));
        // Fails where something of that name is there: nothing that exists is written.
        let made =
            fs::OpenOptions::new().write(true).create_new(true).open(&file).map_err(named)?;
        let scratch = Self { directory: directory.to_path_buf(), file };
        // At least one transfer, and whole ones.
        let size = size.0.max(crate::trial::TRANSFER).next_multiple_of(crate::trial::TRANSFER);
        made.set_len(size).map_err(named)?;
        Ok(scratch)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.file);
    }
}

/// A device, what it is, and why paths to it may not be open: found without writing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceRow {
    /// As in `nvme0n1`, or a PCI address where the kernel has no namespace of it.
    pub name: String,
    /// Where it is on PCI Express.
    pub pci_address: Option<String>,
    /// Who drives it.
    pub driver: Option<String>,
    /// Its NUMA node.
    pub numa_node: Option<u32>,
    /// Its link.
    pub link: Option<String>,
    /// Who uses it: what would have to end before a pool is made on it.
    pub users: Vec<String>,
    /// For each GPU, how far it is.
    pub gpus: Vec<String>,
    /// What it says of its wear.
    pub wear: Option<Wear>,
    /// Why it does not.
    pub wear_why_not: Option<String>,
    /// What stands in the way of the next better path, and what to type.
    pub next: String,
}

/// Every `NVMe` controller and its namespaces.
pub fn devices(sysfs: &Sysfs, system: &System, programs: &[PathBuf]) -> Vec<DeviceRow> {
    let all = sysfs.pci_devices();
    let gpus: Vec<&PciDevice> = all.iter().filter(|device| device.is_gpu()).collect();
    let mut rows = Vec::new();
    for controller in all.iter().filter(|device| device.is_nvme()) {
        let namespaces = sysfs.namespaces(controller);
        if namespaces.is_empty() {
            rows.push(device_row(sysfs, controller, &gpus, controller.address.clone()));
        }
        for name in namespaces {
            let mut row = device_row(sysfs, controller, &gpus, name.clone());
            let users = system.named(&name).map(|device| system.users(&device)).unwrap_or_default();
            row.users = users.iter().map(ToString::to_string).collect();
            match wear_of(&Path::new("/dev").join(&name), programs) {
                Ok(wear) => (row.wear, row.wear_why_not) = (Some(wear), None),
                Err(why) => row.wear_why_not = Some(why),
            }
            row.next = next_for(&row, controller);
            rows.push(row);
        }
    }
    rows
}

fn device_row(
    sysfs: &Sysfs,
    controller: &PciDevice,
    gpus: &[&PciDevice],
    name: String,
) -> DeviceRow {
    let near = |gpu: &&PciDevice| {
        let far = distance(gpu, controller);
        let redirects = matches!(far, Distance::Switch { .. })
            && controller.bridges.iter().any(|bridge| sysfs.acs(bridge) == Acs::Redirects);
        let acs = if redirects { ", but ACS sends peer traffic up to the CPU" } else { "" };
        format!("{}: {far}{acs}", gpu.address)
    };
    let mut row = DeviceRow {
        name,
        pci_address: Some(controller.address.clone()),
        driver: controller.driver.clone(),
        numa_node: controller.numa_node,
        link: controller.link_text(),
        users: Vec::new(),
        gpus: gpus.iter().map(near).collect(),
        wear: None,
        wear_why_not: Some("the kernel has no namespace of it".into()),
        next: String::new(),
    };
    row.next = next_for(&row, controller);
    row
}

fn next_for(row: &DeviceRow, controller: &PciDevice) -> String {
    match row.driver.as_deref() {
        Some("vfio-pci" | "uio_pci_generic") => {
            format!(
                "in user space; back to the kernel: tidelog-doctor unbind {} --yes",
                controller.address
            )
        }
        Some(_) if !row.users.is_empty() => "in use: only its users' files can be a pool".into(),
        Some(_) => format!(
            "tidelog-format format /dev/{} for uring; tidelog-doctor bind {} for SPDK",
            row.name, controller.address
        ),
        None => format!("no driver has it: tidelog-doctor unbind {} --yes", controller.address),
    }
}
