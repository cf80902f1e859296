//! Tests of the tool's output on a step: explanations, trace events, wear, machines.

mod common;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use common::{BENCH, MACHINE, RACK, TRACE, file, json, run, text};

#[test]
fn a_step_is_explained_in_words_and_as_json() {
    let (trace, machine) =
        (file("explain-trace.json", TRACE), file("explain-machine.json", MACHINE));
    let said = text(&run(&["explain", &trace, &machine, "--drives", "3"]));
    for part in ["The longest waits", "waits for", "4 SSDs instead of 3", "64 GiB more GPU memory"]
    {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(!said.contains("host memory"), "the machine has none: {said}");
    let found = json(&run(&["explain", &trace, &machine, "--output", "json", "--drives", "3"]));
    let waits: u64 = ["reads_ns", "full_ns", "late_ns", "room_ns"]
        .iter()
        .map(|cause| found["waited"][cause].as_u64().unwrap())
        .sum();
    assert_eq!(found["stall_ns"].as_u64(), Some(waits));
    assert_eq!(found["what_if"].as_array().unwrap().len(), 3);
    assert_eq!(found["what_if"][0]["change"]["ssds"]["wanted"], 4);
}

#[test]
fn a_question_about_one_tensor_and_one_op_is_answered_alone() {
    let (trace, machine) = (file("one-trace.json", TRACE), file("one-machine.json", MACHINE));
    let said = text(&run(&["explain", &trace, &machine, "--storage", "a", "--op", "1"]));
    assert!(said.contains("a: 976.5 KiB, parameters, used once a step"), "{said}");
    assert!(said.contains("op 1 (two) waits"), "{said}");
    assert!(!said.contains("With other hardware"), "{said}");
    let nothing = run(&["explain", &trace, &machine, "--storage", "c"]);
    assert_eq!(nothing.status.code(), Some(3));
    assert_eq!(run(&["explain", &trace, &machine, "--op", "9"]).status.code(), Some(3));
}

#[test]
fn a_step_becomes_trace_events() {
    let (trace, machine) = (file("events-trace.json", TRACE), file("events-machine.json", MACHINE));
    let found = json(&run(&["export", &trace, &machine]));
    let events = found["traceEvents"].as_array().unwrap();
    let count = |category: &str| events.iter().filter(|event| event["cat"] == category).count();
    assert_eq!((count("kernel"), count("transfer")), (2, 2));
}

#[test]
fn a_session_on_a_gpu_takes_longer_than_kernels_and_links() {
    let (trace, machine) = (file("gpu-trace.json", TRACE), file("gpu-machine.json", MACHINE));
    let time = |words: &[&str]| {
        let said = json(&run(&[&["plan", &trace, &machine][..], words].concat()));
        said["expects"]["time_ns"].as_u64().unwrap()
    };
    assert!(time(&["--gpu-session"]) > time(&[]));
    for refused in [&["--policy", "algorithm1"][..], &["--write-budget", "1"]] {
        let words = [&["plan", &trace, &machine, "--gpu-session"][..], refused].concat();
        assert_eq!(run(&words).status.code(), Some(64), "{refused:?}");
    }
}

#[test]
fn drives_are_worn_by_what_is_written() {
    let trace =
        file("wear-trace.json", &TRACE.replace("\"access\": \"read\"", "\"access\": \"update\""));
    let machine = file("wear-machine.json", MACHINE);
    assert_eq!(run(&["endurance", &trace, &machine]).status.code(), Some(64), "which drives?");
    let drives = ["--drive", "990 PRO 2TB", "--count", "2"];
    let found =
        json(&run(&[&["endurance", &trace, &machine, "--output", "json"][..], &drives].concat()));
    // A gigabyte a second, nearly: out, then in, in turn.
    let per_day = found["wear"]["written_per_day"].as_u64().unwrap();
    assert!((30_000_000_000_000..90_000_000_000_000).contains(&per_day), "{found:#}");
    let hours = found["wear"]["lifetime_hours"].as_u64().unwrap();
    assert_eq!(
        hours,
        u64::try_from(u128::from(2_u64 * 1_200_000_000_000_000) * 24 / u128::from(per_day))
            .unwrap()
    );
    assert!(found["curve"].as_array().unwrap().len() > 3);
    let said = text(&run(&[&["endurance", &trace, &machine][..], &drives].concat()));
    assert!(said.contains("A drive is rated for 1200 TB"), "{said}");
    let planned = run(&["plan", &trace, &machine, "--write-budget", "10"]);
    assert!(planned.status.success());
    assert!(
        String::from_utf8_lossy(&planned.stderr).contains("pause"),
        "nothing can be left out here"
    );
}

#[test]
fn a_rack_is_a_machine_and_a_benchmark_measures_its_drives() {
    let (trace, rack) = (file("rack-trace.json", TRACE), file("rack.json", RACK));
    assert!(run(&["simulate", &trace, &rack]).status.success());
    let bench = file("bench.json", BENCH);
    let measured = json(&run(&["calibrate", &bench, "--base", &rack, "--drive", "990 PRO 4TB"]));
    assert_eq!(measured["drives"]["read"], 4_000_000_000_u64);
    assert_eq!(measured["drives"]["mixed"][0]["write"], 1_000_000_000_u64);
    let measured = file("measured.json", &measured.to_string());
    let wear = text(&run(&["endurance", &trace, &measured]));
    assert!(wear.contains("2 x 990 PRO 4TB, shared by 2 GPUs"), "{wear}");
    assert_eq!(run(&["calibrate", &trace, "--memory", "80GiB"]).status.code(), Some(1));
    assert_eq!(run(&["calibrate", &bench]).status.code(), Some(64), "how much memory?");
}

#[test]
fn a_gpu_s_link_is_the_limit_that_the_kernel_shows() {
    let (bench, rack) = (file("link-bench.json", BENCH), file("link-rack.json", RACK));
    let sysfs = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("sysfs");
    // What a run before has left, if there was one.
    let _ = fs::remove_dir_all(&sysfs);
    let gpu = sysfs.join("devices/pci0000:3a/0000:3b:00.0");
    fs::create_dir_all(&gpu).unwrap();
    fs::create_dir_all(sysfs.join("bus/pci/devices")).unwrap();
    for (name, text) in [("class", "0x030200"), ("vendor", "0x10de"), ("device", "0x2335")] {
        fs::write(gpu.join(name), text).unwrap();
    }
    symlink(&gpu, sysfs.join("bus/pci/devices/0000:3b:00.0")).unwrap();
    let sysfs = sysfs.to_str().unwrap();
    let calibrate =
        |gpu| run(&["calibrate", &bench, "--base", &rack, "--gpu-at", gpu, "--sysfs", sysfs]);
    assert_eq!(calibrate("0000:99:00.0").status.code(), Some(3), "there is none");
    assert_eq!(calibrate("0000:3b:00.0").status.code(), Some(3), "no link is told");
    fs::write(gpu.join("max_link_width"), "16").unwrap();
    fs::write(gpu.join("max_link_speed"), "32.0 GT/s PCIe").unwrap();
    let machine = json(&calibrate("0000:3b:00.0"));
    assert_eq!(machine["pcie"]["read"], 63_015_384_615_u64);
    assert_eq!(machine["pcie"]["write"], machine["pcie"]["read"]);
}

#[test]
fn a_recorder_that_is_not_there_is_said_with_what_to_do() {
    let missing = run(&["record", "gpt2-xl", "--python", "/nonexistent/python"]);
    assert_eq!(missing.status.code(), Some(4));
    let said = String::from_utf8(missing.stderr).unwrap();
    assert!(said.contains("/nonexistent/python") && said.contains("--python"), "{said}");
    let bare = file("bare-python", "#!/bin/sh\necho torch tidelog\n");
    std::fs::set_permissions(&bare, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let bare = run(&["record", "gpt2-xl", "--python", &bare]);
    let said = String::from_utf8(bare.stderr).unwrap();
    assert_eq!(bare.status.code(), Some(4));
    assert!(said.contains("pip install torch") && said.contains("PYTHONPATH"), "{said}");
}

#[test]
fn output_that_cannot_be_written_is_an_error_of_its_own() {
    let bench = file("full-bench.json", BENCH);
    let full = run(&["calibrate", &bench, "--memory", "1GiB", "-o", "/dev/full"]);
    assert_eq!(full.status.code(), Some(74));
    let small = MACHINE.replace("\"budget\": 1000000", "\"budget\": 1000");
    let (trace, small) = (file("small-trace.json", TRACE), file("small-machine.json", &small));
    assert_eq!(run(&["simulate", &trace, &small]).status.code(), Some(2), "an op does not fit");
}
