//! A GPU's memory by every path, on a GPU that is not there: what works is proven, and what does
//! not says why.

mod common;

use std::path::Path;

use common::{Machine, command, ran};
use serde_json::Value;
use tidelog_device_safety::System;
use tidelog_doctor::cli::CheckArgs;
use tidelog_doctor::devices::devices;
use tidelog_doctor::next::Advice;
use tidelog_doctor::paths::{MemoryOwner, Row, Verdict, try_all};
use tidelog_doctor::trial::{Route, TrialError, options_of, round_trip_in};
use tidelog_doctor::ways::By;
use tidelog_engine::path::sim::SimDisk;
use tidelog_engine::path::{DeviceSpec, HAS_SPDK, PathChoice};
use tidelog_engine::pool::{FormatOptions, Pool};
use tidelog_engine::units::ByteCount;
use tidelog_tests::machine::{Directory, FakeGpu};

const SIZE: ByteCount = ByteCount::mib(2);

fn arguments(scratch: &Directory) -> CheckArgs {
    CheckArgs {
        scratch: vec![scratch.path().into()],
        pool: Vec::new(),
        size: SIZE,
        cufile: None,
        compat: false,
    }
}

/// Returns the tool's rows for these areas on that machine.
fn rows(machine: &Machine, arguments: &CheckArgs) -> Vec<Row> {
    let roots = machine.roots();
    let system = System { sysfs: roots.sysfs.clone(), procfs: roots.procfs.clone() };
    let sysfs = tidelog_gds::topology::Sysfs(roots.sysfs.clone());
    let pci = sysfs.pci_devices();
    let (nodes, claims) = (machine.root("dev"), machine.root("claims"));
    let tables = tidelog_doctor::bind::SystemPaths { sysfs, system, nodes, claims };
    let devices = devices(&pci, &tables, &[]);
    try_all(arguments, &Advice { roots: &roots, pci: &pci, devices: &devices }).unwrap()
}

fn of(rows: &[Row], path: By) -> &Row {
    rows.iter().find(|row| row.path == path && row.memory == MemoryOwner::Gpu).unwrap()
}

fn proven(row: &Row) {
    assert_eq!(row.verdict, Verdict::Works, "{row:?}");
    let measured =
        [row.write_bytes_per_second, row.read_bytes_per_second, row.read_latency_nanoseconds];
    assert!(measured.iter().all(|number| number.is_some_and(|number| number > 0)), "{row:?}");
    assert!(row.next.is_empty(), "{row:?}");
}

#[test]
fn every_way_from_every_gpu_is_proven_or_says_why_not() {
    let fake = FakeGpu::start(1, 2);
    fake.driver(1 << 4, 1 << 1, 2, 128, 2);
    let machine = Machine::new("gpu-rows");
    let scratch = Directory::new("doctor-gpu-rows-area").unwrap();
    let rows = rows(&machine, &arguments(&scratch));
    let gpus: Vec<&Row> = rows.iter().filter(|row| row.memory == MemoryOwner::Gpu).collect();
    let names: Vec<String> = gpus.iter().map(|row| row.name()).collect();
    let ways = ["uring", "posix", "gds", "gdrcopy"];
    let expected = [0, 1].map(|gpu| ways.map(|way| format!("{way} GPU {gpu}")));
    assert_eq!(names, expected.concat());
    for row in gpus {
        if row.path == By::Gdrcopy {
            assert_eq!(row.verdict, Verdict::Absent);
            let mapped = "mapped by gdrcopy 2.5, can be read by other devices";
            let drives = format!("the kernel drives that of {}", scratch.path().display());
            assert!(row.why.contains(mapped) && row.why.contains(&drives), "{row:?}");
            // SPDK would take none of the SSDs of this tree, so no build with it is advised.
            assert_eq!(row.next, "");
            continue;
        }
        proven(row);
        let way = match row.path {
            By::Gds => "the path reaches its memory itself",
            _ => "staged in page-locked host memory",
        };
        let name = format!("GPU {} (Fake GPU)", row.gpu.unwrap());
        assert!(row.why.contains(way) && row.why.contains(&name), "{row:?}");
    }
    fake.assert_lawful();
    assert_eq!(["pinned", "allocated"].map(|what| fake.count(what)), [0, 0], "it kept something");
}

#[test]
fn a_pool_keeps_its_tensors_and_is_tried_by_the_gpu_too() {
    let fake = FakeGpu::start(1, 2);
    let machine = Machine::new("gpu-pool");
    let directory = Directory::new("doctor-gpu-pool-area").unwrap();
    let file = directory.sparse_file("a", 64 << 20).unwrap();
    let specs = [DeviceSpec::new(&file)];
    Pool::format(&specs, &FormatOptions { overwrite: true, ..FormatOptions::default() }).unwrap();
    let pool = vec![file.display().to_string()];
    let rows = rows(&machine, &CheckArgs { scratch: Vec::new(), pool, ..arguments(&directory) });
    for path in [By::Uring, By::Posix, By::Gds] {
        proven(of(&rows, path));
    }
    let host =
        |by| rows.iter().find(|row| row.path == by && row.memory == MemoryOwner::Host).unwrap();
    assert!(host(By::UringCmd).why.contains("is a regular file"), "{:?}", host(By::UringCmd));
    let spdk = "the kernel drives these devices; name controllers, as spdk:0000:01:00.0";
    assert!(host(By::Spdk).why.contains(spdk), "{:?}", host(By::Spdk));
    fake.assert_lawful();
}

/// A pool of controllers goes by SPDK whatever is asked for besides: that is not to be taken for
/// another way.
#[test]
fn what_spdk_drives_is_no_other_path() {
    let fake = FakeGpu::start(1, 2);
    let machine = Machine::new("gpu-controller");
    let scratch = Directory::new("doctor-gpu-controller-area").unwrap();
    let pool = vec!["spdk:0000:3e:00.0".into()];
    let rows = rows(&machine, &CheckArgs { scratch: Vec::new(), pool, ..arguments(&scratch) });
    assert!(rows.iter().all(|row| row.verdict == Verdict::Absent), "{rows:?}");
    let gds = of(&rows, By::Gds);
    assert_eq!(gds.why, "cuFile takes the kernel's devices, and SPDK drives spdk:0000:3e:00.0");
    if !HAS_SPDK {
        let why = "this build has no data path spdk";
        assert!(of(&rows, By::Gdrcopy).why.contains(why), "{rows:?}");
    }
    fake.assert_lawful();
}

/// Checks gdrcopy's mapping on simulated controllers, which do peer DMA as SPDK's do.
#[test]
fn the_same_round_trip_proves_gdrcopys_mapping() {
    let fake = FakeGpu::start(3, 2);
    let try_it = || {
        let disks = [SimDisk::new(ByteCount::mib(32))];
        Pool::format(&disks, &FormatOptions::default()).unwrap();
        let gpu = Some(fake.gpu());
        let way = Route { path: PathChoice::Spdk, gpu, reaching: true, ..Route::default() };
        let pool = Pool::open(&disks, &options_of(&way)).unwrap();
        round_trip_in(&pool, &way, SIZE)
    };
    let measured = try_it().unwrap();
    let note = "GPU 0 (Fake GPU) at 0000:3b:00.0: the path reaches its memory itself";
    assert!(measured.notes.contains(&note.to_owned()), "{:?}", measured.notes);
    assert!(fake.count("flushes") > 0, "what devices wrote was flushed");
    // Where it is not mapped staging would serve; that is another way.
    fake.plan("gdr_pin", 0, libc::ENOMEM, 1);
    let refused = try_it().unwrap_err();
    assert!(
        matches!(&refused, TrialError::Unavailable(why) if why.contains("pin 16 MiB of GPU memory")),
        "{refused}"
    );
    fake.assert_lawful();
}

#[test]
fn one_failure_makes_one_row_say_exactly_why() {
    use Verdict::{Absent, Failed, WrongBytes};
    const NO_MEMORY: i32 = 2;
    let machine = Machine::new("gpu-failures");
    let scratch = Directory::new("doctor-gpu-failures-area").unwrap();
    let dmesg = "sudo dmesg | tail -n 50";
    let load_nvidia_fs = "sudo modprobe nvidia-fs";
    let look_at_its_memory = "nvidia-smi -q -d MEMORY";
    // A call, after how many of it, what it returns, and how often.
    let cases = [
        (
            ("alloc", 0, NO_MEMORY, 1),
            By::Uring,
            Failed,
            "CUDA could not allocate GPU memory",
            dmesg,
        ),
        // The first copy of all, from the GPU: the log has checksums of what came to it.
        (("flip", 0, 1, 1), By::Uring, WrongBytes, "wrong bytes came back: CRC32C 0x", dmesg),
        // After those that open the pool.
        (("read", 40, -2, -1), By::Gds, WrongBytes, "the medium is damaged there", dmesg),
        (("write", 40, libc::EIO, 1), By::Gds, Failed, "failed on", dmesg),
        (("driver_open", 0, 5001, -1), By::Gds, Absent, "nvidia-fs is not loaded", load_nvidia_fs),
        (("properties", 0, 5011, -1), By::Gds, Absent, "not read its properties", "gdscheck -p"),
        (("gdr_open", 0, 1, -1), By::Gdrcopy, Absent, "modprobe gdrdrv", "sudo modprobe gdrdrv"),
        (("gdr_pin", 0, libc::ENOMEM, -1), By::Gdrcopy, Absent, "pin 64 KiB", look_at_its_memory),
    ];
    for ((call, after, code, times), path, verdict, why, next) in cases {
        let fake = FakeGpu::start(1, 2);
        fake.plan(call, after, code, times);
        let rows = rows(&machine, &arguments(&scratch));
        let row = of(&rows, path);
        assert_eq!(row.verdict, verdict, "{call}: {row:?}");
        assert!(row.why.contains(why), "{call}: {row:?}");
        assert_eq!(row.next, next, "{call}: {row:?}");
        for other in [By::Uring, By::Posix, By::Gds].into_iter().filter(|by| *by != path) {
            proven(of(&rows, other));
        }
        fake.assert_lawful();
    }
}

#[test]
fn a_gpu_that_does_not_open_says_so_on_each_of_its_rows() {
    let machine = Machine::new("gpu-lost");
    machine.write("module/nvidia/version", "580.65.06\n");
    let scratch = Directory::new("doctor-gpu-lost-area").unwrap();
    let fake = FakeGpu::start(1, 2);
    fake.plan("retain", 0, 46, -1);
    for row in rows(&machine, &arguments(&scratch)) {
        if row.memory == MemoryOwner::Gpu {
            let told = (row.verdict, row.next.as_str());
            assert_eq!(told, (Verdict::Absent, "nvidia-smi"), "{row:?}");
            assert!(row.why.contains("CUDA could not open the GPU's context: error 46"), "{row:?}");
        } else {
            proven(&row);
        }
    }
}

#[test]
fn without_a_gpu_each_way_from_one_says_why() {
    let machine = Machine::new("gpu-none");
    let scratch = Directory::new("doctor-gpu-none-area").unwrap();
    let fake = FakeGpu::start(1, 2);
    fake.driver(1 << 4, 1 << 1, 2, 128, 0);
    let cufile = Some("/nowhere/libcufile.so".into());
    let rows = rows(&machine, &CheckArgs { cufile, ..arguments(&scratch) });
    let gpus: Vec<&Row> = rows.iter().filter(|row| row.memory == MemoryOwner::Gpu).collect();
    let paths: Vec<By> = gpus.iter().map(|row| row.path).collect();
    assert_eq!(paths, [By::Uring, By::Posix, By::Gds, By::Gdrcopy]);
    for row in gpus {
        assert_eq!((row.verdict, row.gpu), (Verdict::Absent, None));
        assert!(row.why.starts_with("CUDA shows no GPU"), "{row:?}");
        assert_eq!(row.next, "unset CUDA_VISIBLE_DEVICES");
        assert_eq!(row.why.contains("libcufile is not found"), row.path == By::Gds, "{row:?}");
    }
}

/// Checks a machine without CUDA's driver, where opening cuFile was seen not to return.
#[test]
fn where_no_gpu_opens_cufile_is_looked_for_and_never_opened() {
    let machine = Machine::new("gpu-no-cufile");
    let scratch = Directory::new("doctor-gpu-no-cufile-area").unwrap();
    let fake = FakeGpu::start(1, 2);
    fake.driver(1 << 4, 1 << 1, 2, 128, 0);
    let absent = |gds: &Row| assert_eq!(gds.verdict, Verdict::Absent, "{gds:?}");
    absent(of(&rows(&machine, &arguments(&scratch)), By::Gds));
    fake.driver(1 << 4, 1 << 1, 2, 128, 1);
    fake.plan("retain", 0, 46, -1);
    absent(of(&rows(&machine, &arguments(&scratch)), By::Gds));
    assert_eq!(fake.count("driver_open_calls"), 0);
}

/// The tool itself, which finds the fake as it would find the driver.
#[test]
fn the_page_has_the_rows_and_no_command_that_would_be_refused() {
    let fake = FakeGpu::start(1, 2);
    let machine = Machine::new("gpu-page");
    let scratch = Directory::new("doctor-gpu-page-area").unwrap();
    let libraries = Directory::new("doctor-gpu-libraries-area").unwrap();
    let cuda = libraries.path().join("libcuda.so");
    std::fs::copy(fake.library_path(), &cuda).unwrap();
    let run = |gdrcopy: &Path, form: &str| {
        let area = scratch.path().to_str().unwrap();
        let mut command =
            command(&["check", "--scratch", area, "--size", "2MiB", "--output", form]);
        machine.stands_in_for_this_one(&mut command);
        command.env("LD_LIBRARY_PATH", libraries.path()).current_dir(libraries.path());
        command.env_remove("CUFILE_LOGFILE_PATH").env("XDG_STATE_HOME", libraries.at("state"));
        command.env("TIDELOG_CUFILE", &cuda).env("TIDELOG_GDRAPI", gdrcopy);
        ran(command)
    };
    let told = run(&cuda, "text");
    assert_eq!(told.code, 0, "{}{}", told.out, told.err);
    for expected in
        ["  uring GPU 0     works on", "  posix GPU 0     works on", "  gds GPU 0       works on"]
    {
        assert!(told.out.contains(expected), "{expected:?} is not in\n{}", told.out);
    }
    assert!(told.out.lines().count() <= 60, "{}", told.out);
    assert!(!libraries.path().join("cufile.log").exists(), "in the current folder");
    assert!(libraries.path().join("state/tidelog/cufile.log").exists(), "cuFile was opened");
    assert!(!told.out.contains("\nNext\n"), "none that would not be refused: {}", told.out);
    let page = run(Path::new("/nowhere/libgdrapi.so"), "json").json();
    let rows = page["paths"].as_array().unwrap();
    let row = rows.iter().find(|row| row["path"] == "gdrcopy").unwrap();
    assert_eq!((&row["gpu"], &row["memory"]), (&Value::from(0), &Value::from("gpu")));
    assert!(row["why"].as_str().unwrap().contains("libgdrapi is not found"), "{row:#}");
    assert_eq!(row["next"], "sudo apt install libgdrapi gdrdrv-dkms");
    assert_eq!(page["next"]["path"], "gdrcopy GPU 0", "{page:#}");
}
