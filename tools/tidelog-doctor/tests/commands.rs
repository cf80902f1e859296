//! Tests of the doctor's output, and of what it never does.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;

use common::{Machine, command, doctor, ran};
use tidelog_doctor::next::Advice;
use tidelog_doctor::ways::By;
use tidelog_engine::layout::TensorId;
use tidelog_engine::memory::Source;
use tidelog_engine::path::DeviceSpec;
use tidelog_engine::pool::{FormatOptions, OpenOptions, Pool, PutOptions};
use tidelog_tests::machine::{Directory, skip, without_io_uring};

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
    // Where there is no GPU the reason is told; where there is one its ways are tried.
    let from_gpus: Vec<_> = rows.iter().filter(|row| row["memory"] == "gpu").collect();
    for path in ["uring", "posix", "gds", "gdrcopy"] {
        let row = from_gpus.iter().find(|row| row["path"] == path).unwrap();
        assert!(row["verdict"] == "works" || !row["why"].as_str().unwrap().is_empty(), "{row:#}");
    }
    assert_eq!(told.code, 0, "{page:#}");
    assert_eq!(page["exit"], 0);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "the scratch file is removed");
}

#[test]
fn the_limit_of_a_container_is_shown_with_the_file_that_sets_it() {
    let machine = Machine::new("container");
    let groups = machine.root("groups");
    let mounted = format!("35 31 0:32 / {} rw - cgroup2 cgroup2 rw\n", groups.display());
    machine.write_proc("self/mountinfo", &mounted);
    machine.write_proc("self/cgroup", "0::/pod\n");
    fs::create_dir_all(groups.join("pod")).unwrap();
    fs::write(groups.join("pod/memory.max"), "4294967296\n").unwrap();
    fs::write(groups.join("pod/memory.current"), "1073741824\n").unwrap();
    let page = machine.doctor(&["check", "--output", "json"]).json();
    let facts = page["machine"].as_array().unwrap();
    let memory = facts.iter().find(|fact| fact["name"] == "memory").unwrap();
    assert_eq!(memory["found"], "32 GiB, 3 GiB available; this control group may use 4 GiB");
    let file = groups.join("pod/memory.max").display().to_string();
    assert!(memory["next"].as_str().unwrap().contains(&file), "{memory}");
}

/// Returns a fact as the doctor finds it for a process that a shell has prepared.
fn fact_after(script: &str, name: &str) -> serde_json::Value {
    let mut shell = std::process::Command::new("sh");
    let doctor = env!("CARGO_BIN_EXE_tidelog-doctor");
    shell.args(["-c", &format!("{script} && exec {doctor} check --output json")]);
    let page = ran(shell).json();
    page["machine"].as_array().unwrap().iter().find(|fact| fact["name"] == name).unwrap().clone()
}

#[test]
fn limits_of_a_container_are_shown_with_what_raises_them() {
    let locked = fact_after("ulimit -l 64", "locked memory");
    assert_eq!(locked["found"], "at most 64 KiB");
    assert!(locked["next"].as_str().unwrap().contains("ulimit -l unlimited"), "{locked}");
    let files = fact_after("ulimit -n 99", "open files");
    assert_eq!(files["found"], "at most 99");
    assert!(files["next"].as_str().unwrap().contains("--ulimit nofile=1024"), "{files}");
    assert_eq!(fact_after("ulimit -n 4096", "open files")["next"], "");
}

#[test]
fn little_shared_memory_and_a_cache_that_cannot_be_written_are_shown() {
    let directory = Directory::new("doctor-states").unwrap();
    let cache = directory.path().display();
    // In a mount namespace of its own, as a container is one.
    let Ok(tried) = std::process::Command::new("unshare").args(["--mount", "true"]).status() else {
        return skip("states", "there is no unshare");
    };
    if !tried.success() {
        return skip("states", "no mount namespace can be made here");
    }
    let script = format!(
        "unshare --mount --propagation private sh -c 'mount -t tmpfs -o size=1m none /dev/shm && \
         mount -t tmpfs -o ro none {cache} && XDG_CACHE_HOME={cache} exec {} check --output json'",
        env!("CARGO_BIN_EXE_tidelog-doctor")
    );
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", &script]);
    let page = ran(shell).json();
    let facts = page["machine"].as_array().unwrap();
    let of = |name: &str| facts.iter().find(|fact| fact["name"] == name).unwrap();
    let memory = of("shared memory");
    assert!(memory["found"].as_str().unwrap().starts_with("1 MiB, "), "{memory}");
    assert!(memory["next"].as_str().unwrap().contains("--shm-size 1g"), "{memory}");
    let module = of("module cache");
    assert!(module["found"].as_str().unwrap().contains("tidelog: EROFS"), "{module}");
    assert!(module["next"].as_str().unwrap().starts_with("XDG_CACHE_HOME="), "{module}");
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
        "memory          32 GiB, 24 GiB available",
        "0 of 12 reserved ones free",
        "sysctl vm.nr_hugepages=64",
        "nvme0n1         0000:3e:00.0, driver nvme, x2 at 16.0 GT/s, could be x4 at 16.0 GT/s, NUMA node 0",
        // Its namespace has no node: neither would take it.
        "can be neither formatted nor bound as it is; to see why: tidelog-format format /dev/nvme0n1; tidelog-doctor bind 0000:3e:00.0",
        "0000:3d:00.0: PIX (one switch)",
        "0000:3d:00.0    a GPU of NVIDIA's, driver nvidia, link x2 at 16.0 GT/s, could be x4 at 16.0 GT/s, BAR1 unknown, NUMA node 0",
        "served best by nvme0n1",
        "-> sudo modprobe nvidia-fs",
        "\nNext\n  all             tidelog-doctor check --scratch DIRECTORY\n",
    ] {
        assert!(told.out.contains(expected), "{expected:?} is not in\n{}", told.out);
    }
}

/// A fact's words and what to do, as the tool tells them of a machine.
fn told(machine: &Machine, name: &str) -> (String, String) {
    let page = machine.doctor(&["check", "--output", "json"]).json();
    let facts = page["machine"].as_array().unwrap();
    let fact = facts.iter().find(|fact| fact["name"] == name).unwrap();
    let text = |field: &str| fact[field].as_str().unwrap().to_owned();
    (text("found"), text("next"))
}

#[test]
fn what_the_kernel_was_built_with_is_read_from_either_place() {
    let name = "kernel config";
    let machine = Machine::new("config");
    let (found, next) = told(&machine, name);
    assert!(found.contains("no config-5.10.0-test in ") && next.is_empty(), "{found}");
    let packed = "CONFIG_IO_URING=y\nCONFIG_BLK_DEV_NVME=m\n# CONFIG_PCI_P2PDMA is not set\n";
    machine.write_proc("config", packed);
    let gzip = std::process::Command::new("gzip").arg(machine.root("proc/config")).status();
    assert!(gzip.unwrap().success());
    let (found, next) = told(&machine, name);
    assert_eq!(found, "IO_URING=y BLK_DEV_NVME=m PCI_P2PDMA=n VFIO_PCI=n");
    assert_eq!(next, "without PCI_P2PDMA the direct way needs nvidia-fs");
    // What lies beside the kernel counts first. A longer option is another one.
    let plain = "CONFIG_IO_URING=y\nCONFIG_PCI_P2PDMA=y\nCONFIG_VFIO_PCI_CORE=y\n";
    machine.write_boot("config-5.10.0-test", plain);
    let (found, next) = told(&machine, name);
    assert_eq!(found, "IO_URING=y BLK_DEV_NVME=n PCI_P2PDMA=y VFIO_PCI=n");
    assert_eq!(next, "");
}

#[test]
fn an_iommu_that_translates_is_told_from_one_that_passes_through() {
    let machine = Machine::new("iommu");
    assert_eq!(told(&machine, "IOMMU"), ("off, or there is none".into(), String::new()));
    machine.write("class/iommu/dmar0/name", "");
    for (group, kind) in [("1", "DMA-FQ\n"), ("2", "identity\n"), ("3", "DMA\n")] {
        machine.write(&format!("kernel/iommu_groups/{group}/type"), kind);
    }
    let (found, next) = told(&machine, "IOMMU");
    assert_eq!(found, "on, 2 of 3 groups translated");
    assert!(next.contains("iommu=pt on the kernel's command line"), "{next}");
    for group in ["1", "3"] {
        machine.write(&format!("kernel/iommu_groups/{group}/type"), "identity\n");
    }
    let passing = ("on, 0 of 3 groups translated".into(), String::new());
    assert_eq!(told(&machine, "IOMMU"), passing);
}

#[test]
fn a_switch_that_sends_peer_traffic_up_to_the_cpu_is_told() {
    const DETOUR: &str = "0000:3d:00.0: PIX (one switch), but ACS sends peer traffic up to the CPU";
    let machine = Machine::new("acs");
    let near = || {
        let page = machine.doctor(&["check", "--output", "json"]).json();
        page["devices"][0]["gpus"][0].as_str().unwrap().to_owned()
    };
    // Control of access control services, on the SSD's port of the switch: requests redirected, or
    // nothing.
    for (control, expected) in [(1 << 2, DETOUR), (0, "0000:3d:00.0: PIX (one switch)")] {
        let mut space = vec![0_u8; 4096];
        space[0x100..0x104].copy_from_slice(&0x0001_000d_u32.to_le_bytes());
        space[0x106] = control;
        machine.write_bytes("bus/pci/devices/0000:3c:01.0/config", &space);
        assert_eq!(near(), expected);
    }
    // What only root may read is not taken for either.
    machine.write_bytes("bus/pci/devices/0000:3c:01.0/config", &[0; 64]);
    assert_eq!(near(), "0000:3d:00.0: PIX (one switch)");
}

#[test]
fn io_uring_that_was_switched_off_has_a_command() {
    let machine = Machine::new("uring-off");
    let scratch = Directory::new("doctor-uring-off-area").unwrap();
    let roots = machine.roots();
    for (setting, command) in [
        (
            "1\n",
            "sudo sysctl kernel.io_uring_disabled=0  # or put the user into kernel.io_uring_group",
        ),
        ("2\n", "sudo sysctl kernel.io_uring_disabled=0"),
    ] {
        machine.write_proc("sys/kernel/io_uring_disabled", setting);
        let (roots, area) = (roots.clone(), scratch.path().to_path_buf());
        let next = without_io_uring(move || {
            let advice = Advice { roots: &roots, pci: &[], devices: &[] };
            advice.for_host(By::Uring, &area)
        });
        assert_eq!(next, command);
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
    without_io_uring(|| {
        let directory = Directory::new("doctor-seccomp").unwrap();
        let scratch = directory.path().to_str().unwrap();
        let told = doctor(&["check", "--scratch", scratch, "--size", "2MiB"]);
        assert_eq!(told.code, 0, "{}", told.out);
        let mut lines = told.out.lines().skip_while(|line| !line.starts_with("  uring  "));
        let uring = lines.next().unwrap();
        assert!(
            uring.contains("not on") && uring.contains("io_uring is forbidden here"),
            "{uring}"
        );
        let next =
            "-> allow io_uring_setup, io_uring_enter and io_uring_register in the container's";
        assert!(lines.next().unwrap().trim().starts_with(next), "{}", told.out);
        assert!(told.out.contains("posix           works on"), "{}", told.out);
        assert!(told.out.contains("  io_uring        refused: "), "{}", told.out);
        assert!(
            told.out.contains("\nNext\n  uring           allow io_uring_setup"),
            "{}",
            told.out
        );
    });
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
