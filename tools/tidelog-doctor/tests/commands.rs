//! What the doctor says, and what it never does.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;

use common::{Machine, command, doctor, ran};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use tidelog_engine::layout::TensorId;
use tidelog_engine::memory::Source;
use tidelog_engine::path::DeviceSpec;
use tidelog_engine::pool::{FormatOptions, OpenOptions, Pool, PutOptions};
use tidelog_tests::machine::{Directory, skip};

#[test]
fn every_path_on_a_scratch_area_is_proven_or_says_why_not() {
    let directory = Directory::new("doctor-check").unwrap();
    let scratch = directory.path().to_str().unwrap();
    let told = doctor(&["check", "--scratch", scratch, "--size", "4MiB", "--output", "json"]);
    let page = told.json();
    let rows = page["paths"].as_array().unwrap();
    let of = |path: &str| rows.iter().find(|row| row["path"] == path).unwrap();
    assert_eq!(of("posix")["verdict"], "works", "{page:#}");
    assert!(of("posix")["read_bytes_per_second"].as_u64().unwrap() > 0);
    assert!(of("posix")["read_latency_nanoseconds"].as_u64().unwrap() > 0);
    // Where there is no GPU the reason is told; where there is one the path is tried.
    let gds = of("gds");
    assert!(gds["verdict"] == "works" || !gds["why"].as_str().unwrap().is_empty(), "{gds:#}");
    assert_eq!(told.code, 0, "{page:#}");
    assert_eq!(page["exit"], 0);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "the scratch file is removed");
}

#[test]
fn the_page_for_people_fits_on_one_and_names_the_next_command() {
    let machine = Machine::new("page");
    let told = machine.doctor(&["check"]);
    assert_eq!(told.code, 3, "nothing was tried: {}", told.out);
    assert!(told.out.lines().count() <= 60, "{}", told.out);
    for expected in [
        "kernel          5.10.0-test",
        "io_uring as Tidelog uses it needs 5.15 or newer",
        "0 of 12 reserved ones free",
        "sysctl vm.nr_hugepages=64",
        "nvme0n1         0000:3e:00.0, driver nvme, x2 at 16.0 GT/s, could be x4 at 16.0 GT/s, NUMA node 0",
        "tidelog-format format /dev/nvme0n1 for uring; tidelog-doctor bind 0000:3e:00.0 for SPDK",
        "0000:3d:00.0: PIX (one switch)",
        "0000:3d:00.0    a GPU of NVIDIA's, driver nvidia, link x2 at 16.0 GT/s, could be x4 at 16.0 GT/s, BAR1 unknown, NUMA node 0",
        "served best by nvme0n1",
        "tidelog-doctor check --scratch DIRECTORY",
    ] {
        assert!(told.out.contains(expected), "{expected:?} is not in\n{}", told.out);
    }
}

#[test]
fn nothing_is_written_to_what_is_no_directory_or_was_not_given() {
    let directory = Directory::new("doctor-file").unwrap();
    let file = directory.path().join("precious");
    fs::write(&file, "precious").unwrap();
    let told = doctor(&["check", "--scratch", file.to_str().unwrap()]);
    assert_eq!(told.code, 5);
    assert!(
        told.err.contains("is no directory; a device that holds data is never a scratch area"),
        "{}",
        told.err
    );
    assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
    let nowhere = doctor(&["check", "--scratch", "/nowhere/at/all", "--output", "json"]);
    assert_eq!((nowhere.code, nowhere.json()["exit"].as_u64()), (5, Some(5)));
}

#[test]
fn a_named_pool_is_tried_by_every_path_and_keeps_its_tensors() {
    let directory = Directory::new("doctor-pool").unwrap();
    let files = ["a", "b"].map(|name| directory.sparse_file(name, 64 << 20).unwrap());
    let specs = files.each_ref().map(DeviceSpec::new);
    Pool::format(&specs, &FormatOptions { overwrite: true, ..FormatOptions::default() }).unwrap();
    let pool = Pool::open(&specs, &OpenOptions::default()).unwrap();
    let mut batch = pool.batch();
    batch.put(TensorId(7), Source::from(vec![9; 5000]), PutOptions::default()).unwrap();
    batch.commit().unwrap();
    let names = files.map(|file| file.display().to_string()).join(",");
    let held = doctor(&["check", "--pool", &names]);
    assert_eq!(held.code, 1, "{}", held.out);
    assert!(held.out.contains("not on") && held.out.contains("share 0"), "{}", held.out);
    pool.close().unwrap();
    let told = doctor(&["check", "--pool", &names, "--size", "4MiB", "--output", "json"]);
    let page = told.json();
    assert_eq!(told.code, 0, "{page:#}");
    let works = |path: &str| {
        let rows = page["paths"].as_array().unwrap();
        rows.iter().any(|row| row["path"] == path && row["verdict"] == "works")
    };
    assert!(works("posix"), "{page:#}");
    let pool = Pool::open(&specs, &OpenOptions::default()).unwrap();
    assert!(pool.contains(TensorId(7)));
    assert_eq!(pool.stats().unwrap().tensors, 1, "the trial's tensor is gone");
}

#[test]
fn another_user_is_told_what_that_user_may_do() {
    const NOBODY: u32 = 65_534;
    let directory = Directory::new("doctor-user").unwrap();
    // The tool must be reachable by that user, too.
    let tool = directory.path().join("tidelog-doctor");
    fs::copy(env!("CARGO_BIN_EXE_tidelog-doctor"), &tool).unwrap();
    let run = |arguments: &[&str]| {
        let mut command = std::process::Command::new(&tool);
        command.args(arguments).uid(NOBODY).gid(NOBODY);
        let silent = || std::process::Stdio::null();
        match command.stdout(silent()).stderr(silent()).spawn() {
            Ok(mut child) => {
                child.wait().unwrap();
            }
            Err(why) => {
                skip("another_user_is_told_what_that_user_may_do", &why.to_string());
                return None;
            }
        }
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        Some(ran(command))
    };
    let scratch = directory.path().to_str().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let Some(refused) = run(&["check", "--scratch", scratch]) else { return };
    assert_eq!(refused.code, 5);
    assert!(
        refused.err.contains("Permission denied") && refused.err.contains(scratch),
        "{}",
        refused.err
    );
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let Some(told) = run(&["check", "--scratch", scratch, "--size", "2MiB"]) else { return };
    assert_eq!(told.code, 0, "{}{}", told.out, told.err);
    assert!(told.out.contains("posix           works on"), "{}", told.out);
}

#[test]
fn a_filter_that_forbids_io_uring_is_named_and_the_other_path_is_proven() {
    let rules: BTreeMap<i64, _> = [(libc::SYS_io_uring_setup, Vec::new())].into();
    let refuse = SeccompAction::Errno(libc::EPERM.cast_unsigned());
    let architecture = std::env::consts::ARCH.try_into().unwrap();
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, architecture).unwrap();
    let program: BpfProgram = filter.try_into().unwrap();
    // The filter holds for the thread and for the processes that it starts.
    let thread = std::thread::spawn(move || {
        seccompiler::apply_filter(&program).unwrap();
        let directory = Directory::new("doctor-seccomp").unwrap();
        let scratch = directory.path().to_str().unwrap();
        let told = doctor(&["check", "--scratch", scratch, "--size", "2MiB"]);
        assert_eq!(told.code, 0, "{}", told.out);
        let uring = told.out.lines().find(|line| line.starts_with("  uring")).unwrap();
        assert!(
            uring.contains("not on") && uring.contains("io_uring is forbidden here"),
            "{uring}"
        );
        assert!(told.out.contains("posix           works on"), "{}", told.out);
        assert!(told.out.contains("  io_uring        refused: "), "{}", told.out);
    });
    thread.join().unwrap();
}

#[test]
fn help_lists_the_exit_codes_and_completions_are_written() {
    let help = doctor(&["--help"]);
    assert_eq!(help.code, 0);
    assert!(
        help.out.contains("Exit codes:")
            && help.out.contains("neither --scratch nor --pool was given")
    );
    for shell in ["bash", "zsh", "fish"] {
        let completions = doctor(&["completions", shell]);
        assert!(completions.code == 0 && completions.out.contains("tidelog-doctor"), "{shell}");
    }
    assert_eq!(doctor(&["frobnicate"]).code, 64);
    assert_eq!(ran(command(&["check", "--size", "many"])).code, 64);
}
