//! The job files that come with fio: those about files and disks run here, or are refused for a
//! reason that is named.
//!
//! They are fio's, and under its license, so they are read from where its package put them:
//! Debian's `fio-examples`, or `TIDELOG_FIO_EXAMPLES`. What they work on is made small, and their
//! engines become ours; everything else stays.

mod common;

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use common::temporary;
use tidelog_tests::machine::{Directory, Ran, skip};

/// Every example about files and disks, and what its refusal says; nothing if it runs.
const EXAMPLES: [(&str, &str); 47] = [
    ("1mbs_clients", ""),
    ("aio-read", ""),
    ("backwards-read", ""),
    ("basic-verify", ""),
    ("butterfly", ""),
    ("cmdprio-bssplit", "cmdprio_bssplit: priorities do not depend on the size"),
    ("cmdprio-percentage", ""),
    ("cross-stripe-verify", ""),
    ("dedupe-global", ""),
    ("disk-zone-profile", ""),
    ("e4defrag", "ioengine=e4defrag: "),
    ("e4defrag2", "ioengine=e4defrag: "),
    ("enospc-pressure", "the first operation that fails ends its job"),
    ("exitwhat", ""),
    ("falloc", "ioengine=falloc: "),
    ("filecreate-ioengine", "create_on_open=1: files are made"),
    ("filedelete-ioengine", "ioengine=filedelete: "),
    ("filestat-ioengine", "ioengine=filestat: "),
    ("fio-rand-RW", ""),
    ("fio-rand-read", ""),
    ("fio-rand-write", ""),
    ("fio-seq-RW", ""),
    ("fio-seq-read", ""),
    ("fio-seq-write", ""),
    ("fixed-rate-submission", ""),
    ("flow", ""),
    ("fsx", ""),
    ("ftruncate", "ioengine=ftruncate: "),
    ("iometer-file-access-server", "a multiple of 4096 bytes"),
    ("jesd219", "a multiple of 4096 bytes"),
    ("latency-profile", ""),
    ("numa", ""),
    ("poisson-rate-submission", ""),
    ("rand-zones", ""),
    ("ssd-steadystate", ""),
    ("ssd-test", ""),
    ("steadystate", ""),
    ("surface-scan", "fill_device: it would fill the file system"),
    ("tiobench-example", ""),
    ("uring-cmd-ng", ""),
    ("uring-cmd-zoned", ""),
    ("waitfor", ""),
    ("xnvme-compare", ""),
    ("xnvme-zoned", ""),
    ("zbd-rand-write", ""),
    ("zbd-seq-read", ""),
    ("zipf", ""),
];

/// Returns the folder of fio's examples; `None`, said out loud, where they are not.
fn examples(test: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("TIDELOG_FIO_EXAMPLES")
        .map_or_else(|| PathBuf::from("/usr/share/doc/fio/examples"), PathBuf::from);
    if folder.join("basic-verify.fio").exists() {
        return Some(folder);
    }
    skip(test, "fio's examples are not installed (Debian's package fio-examples)");
    None
}

/// An example that works on little, in this directory, through our data paths.
fn scaled(text: &str, directory: &Directory) -> String {
    // Threads of its own that submit has one data path alone.
    let engine = if text.contains("io_submit_mode=offload") { "posix" } else { "uring" };
    let line = |line: &str| {
        let Some((key, value)) = line.split_once('=') else { return line.to_owned() };
        let number = || value.split([';', ' ', '\t']).next().unwrap_or_default();
        // In a directory that is named itself a file's own name is enough.
        let within = |name: &str| {
            if text.contains("directory=") { name.to_owned() } else { directory.at(name) }
        };
        let small = match key.trim() {
            "ioengine" => match value.trim() {
                "libaio" | "sync" | "psync" | "null" => format!("tidelog-{engine}"),
                // Its own commands need a whole namespace.
                "io_uring_cmd" => "tidelog-uring".to_owned(),
                own => own.to_owned(),
            },
            "filename" => within(number().rsplit('/').next().unwrap_or_default()),
            "directory" => directory.at(""),
            "size" | "filesize" | "offset_increment" => "1m".to_owned(),
            "offset" if number().len() > 9 => "1m".to_owned(),
            // A rate of 20 ms is enough here, as a second is where time is not short.
            "ss_dur" => "200ms\nss_interval=20ms".to_owned(),
            "zonesize" if text.contains("zonemode=zbd") => "512k".to_owned(),
            // Most machines have no second node.
            "numa_cpu_nodes" | "numa_mem_policy" => value.replace("0-1", "0"),
            "runtime" | "timeout" => "1".to_owned(),
            "zonesize" => "64k".to_owned(),
            "zoneskip" | "io_size" => "512k".to_owned(),
            "latency_window" => "20ms".to_owned(),
            "ramp_time" | "ss_ramp" => "100ms".to_owned(),
            "startdelay" => format!("{}ms", number()),
            "loops" => "3".to_owned(),
            // Of bytes a second that are so few that a block takes hours.
            "rate" => {
                number().split(',').map(|rate| format!("{rate}k")).collect::<Vec<_>>().join(",")
            }
            _ => return line.to_owned(),
        };
        format!("{key}={small}")
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn every_example_about_files_and_disks_runs_or_is_refused_by_name() {
    const TEST: &str = "every_example_about_files_and_disks_runs_or_is_refused_by_name";
    let Some(folder) = examples(TEST) else { return };
    let mut wrong = Vec::new();
    let mut runs = 0;
    for (name, refusal) in EXAMPLES {
        let directory = temporary(&format!("example-{name}"));
        let text = fs::read_to_string(folder.join(format!("{name}.fio"))).unwrap();
        let file = directory.at("job.fio");
        fs::write(&file, scaled(&text, &directory)).unwrap();
        // What an example leaves to fio's defaults, or to whoever runs it.
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidelog-bench"));
        command.current_dir(directory.at("")).args(["--ioengine=tidelog-uring", "--size=1m"]);
        if name == "xnvme-compare" {
            fs::write(directory.at("device"), vec![1; 1 << 20]).unwrap();
            command.arg(format!("--filename={}", directory.at("device")));
        }
        if name == "xnvme-zoned" {
            // It asks for a device that is there, for its zones, and for one of its sections.
            fs::write(directory.at("device"), vec![0; 1 << 20]).unwrap();
            command.args([&format!("--filename={}", directory.at("device"))]);
            command.args(["--zonesize=64k", "--section=default"]);
        }
        if name == "uring-cmd-zoned" {
            // It asks the device.
            command.arg("--zonesize=512k");
        }
        let environment = [("FIO_RW", "randread"), ("FIO_IODEPTH", "4"), ("FIO_BS", "8k")];
        let ran = Ran::of(command.envs(environment).arg(&file));
        let expected = if refusal.is_empty() { 0 } else { 64 };
        if ran.code != expected || !ran.err.contains(refusal) {
            wrong.push(format!("{name}: {} instead of {expected}: {}", ran.code, ran.err));
        }
        runs += u32::from(refusal.is_empty());
    }
    println!("{runs} of {} run", EXAMPLES.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_page_names_every_example_that_is_refused_and_counts_those_that_run() {
    let page = include_str!("../README.md");
    let refused = EXAMPLES.iter().filter(|(_, refusal)| !refusal.is_empty());
    for (name, _) in refused.clone() {
        assert!(page.contains(name), "{name}");
    }
    let refused = refused.count();
    assert!(page.contains(&format!("{} of them run", EXAMPLES.len() - refused)), "{refused}");
    assert!(page.contains(&format!("and {refused} are refused")), "{refused}");
}
