//! Handing SSDs over: what is done, and what is refused. The machines are trees of files, their
//! namespaces loop devices.

mod common;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::mpsc;
use std::time::Duration;

use common::{CARD, Machine, Ran, SSD, TWIN, loop_device};
use nix::fcntl::{FcntlArg, fcntl};
use tidelog_engine::path::DeviceSpec;
use tidelog_engine::path::device::lock_of_bytes;
use tidelog_engine::pool::{FormatOptions, Pool};
use tidelog_tests::machine::LoopDevice;

fn is_refused(machine: &Machine, arguments: &[&str], words: &[&str]) -> Ran {
    let before = (machine.driver(), machine.overridden());
    let refused = machine.doctor(arguments);
    assert_eq!(refused.code, 4, "{}{}", refused.out, refused.err);
    for words in words {
        assert!(refused.err.contains(words), "{words:?} is not in\n{}", refused.err);
    }
    assert_eq!((machine.driver(), machine.overridden()), before, "nothing was done");
    refused
}

#[test]
fn binding_shows_its_steps_and_takes_them_only_when_told_to() {
    let machine = Machine::new("bind");
    machine.remove_disk();
    let shown = machine.doctor(&["bind", SSD]);
    assert_eq!(shown.code, 0, "{}", shown.err);
    for words in ["echo \"vfio-pci\" > ", "drivers/nvme/unbind", "drivers/vfio-pci/bind", "--yes"] {
        assert!(shown.out.contains(words), "{words:?} is not in\n{}", shown.out);
    }
    assert_eq!(
        (machine.driver().as_deref(), machine.overridden().as_str()),
        (Some("nvme"), "(null)\n")
    );

    let kernel = machine.follow("nvme", "drivers/vfio-pci/bind", Some("vfio-pci"), || ());
    let done = machine.doctor(&["bind", SSD, "--yes"]);
    assert_eq!(done.code, 0, "{}", done.err);
    kernel.join().unwrap();
    assert!(done.out.ends_with(&format!("vfio-pci has {SSD} now\n")), "{}", done.out);
    assert!(machine.overridden().starts_with("vfio-pci"), "{}", machine.overridden());
    let again = machine.doctor(&["bind", SSD]);
    assert!(again.code == 0 && again.out.contains("nothing to do"), "{}", again.out);

    let kernel = machine.follow("vfio-pci", "drivers_probe", Some("nvme"), || ());
    let back = machine.doctor(&["unbind", SSD, "--yes", "--output", "json"]);
    assert_eq!(back.code, 0, "{}", back.out);
    kernel.join().unwrap();
    assert_eq!((&back.json()["done"], &back.json()["driver"]), (&true.into(), &"nvme".into()));
    assert!(machine.overridden().starts_with('\n'), "the kernel chooses again");
    assert_eq!(machine.driver().as_deref(), Some("nvme"));
}

#[test]
fn a_driver_that_does_not_take_the_device_is_told() {
    let machine = Machine::new("not-taken");
    machine.remove_disk();
    machine.turn_iommu_off();
    let kernel = machine.follow("nvme", "drivers/uio_pci_generic/bind", None, || ());
    let failed = machine.doctor(&["bind", SSD, "--yes"]);
    assert_eq!(failed.code, 5, "{}", failed.out);
    kernel.join().unwrap();
    for words in ["uio_pci_generic did not take", "INTx", &format!("unbind {SSD} undoes them")] {
        assert!(failed.err.contains(words), "{words:?} is not in\n{}", failed.err);
    }
    // A device that no driver has goes back, too.
    machine.write("bus/pci/drivers_probe", "");
    let back = machine.doctor(&["unbind", SSD]);
    assert!(back.code == 0 && back.out.contains("drivers_probe"), "{}{}", back.out, back.err);
    assert!(!back.out.contains("/unbind"), "{}", back.out);
}

#[test]
fn the_driver_follows_from_the_iommu_or_is_named() {
    let machine = Machine::new("driver");
    machine.remove_disk();
    let uio = ["bind", SSD, "--driver", "uio_pci_generic"];
    is_refused(&machine, &uio, &["behind an IOMMU", "--driver vfio-pci"]);
    machine.write("kernel/iommu_groups/2/type", "identity\n");
    let passing = machine.doctor(&uio);
    assert!(
        passing.code == 0 && passing.out.contains("drivers/uio_pci_generic/bind"),
        "{}",
        passing.err
    );

    machine.turn_iommu_off();
    let vfio = ["bind", SSD, "--driver", "vfio-pci"];
    is_refused(
        &machine,
        &vfio,
        &["has no IOMMU group", "intel_iommu=on", "--driver uio_pci_generic"],
    );
    let auto = machine.doctor(&["bind", SSD, "--output", "json"]);
    assert_eq!(auto.code, 0, "{}", auto.out);
    assert_eq!(auto.json()["driver"], "uio_pci_generic");
    let notes = auto.json()["notes"].to_string();
    assert!(notes.contains("nothing checks where the device writes"), "{notes}");
    // What user space has stays as it is, unless another driver is named.
    machine.set_driver(SSD, "vfio-pci");
    assert!(machine.doctor(&["bind", SSD]).out.contains("nothing to do"));
    assert!(machine.doctor(&uio).out.contains("drivers/vfio-pci/unbind"));
    machine.set_driver(SSD, "nvme");
    fs::remove_dir_all(machine.sysfs().join("bus/pci/drivers/uio_pci_generic")).unwrap();
    let none = machine.doctor(&["bind", SSD]);
    assert_eq!(none.code, 5, "{}", none.out);
    assert!(none.err.contains("modprobe uio_pci_generic, or turn the IOMMU on"), "{}", none.err);
}

#[test]
fn what_is_in_use_or_no_ssd_is_never_handed_over() {
    let machine = Machine::new("refused");
    machine.mount("/srv/data");
    let bind = ["bind", SSD, "--yes"];
    is_refused(
        &machine,
        &bind,
        &["of nvme0n1, nvme0n1 is mounted at /srv/data", "umount /srv/data"],
    );
    machine.mount("/");
    is_refused(&machine, &bind, &["it holds the root file system"]);
    machine.write_proc("self/mountinfo", "");
    is_refused(&machine, &["bind", CARD, "--yes"], &["is no NVMe controller (class 020000)"]);
    machine.remove_disk();
    machine.set_group(CARD, 2);
    is_refused(&machine, &bind, &[&format!("shares IOMMU group 2 with {CARD}")]);
    assert_eq!(machine.doctor(&["bind", "0000:ff:00.0"]).code, 64);
}

#[test]
fn a_namespace_that_cannot_be_looked_at_is_not_handed_over() {
    let machine = Machine::new("no-node");
    let bind = ["bind", SSD, "--yes"];
    is_refused(&machine, &bind, &["cannot find out who uses nvme0n1", "outside of containers"]);
    machine.node_is("/nowhere/at/all");
    is_refused(&machine, &bind, &["cannot find out who uses nvme0n1", "broken symbolic link"]);
    let file = machine.root("file");
    fs::write(&file, "no disk").unwrap();
    machine.node_is(file.to_str().unwrap());
    is_refused(&machine, &bind, &["cannot find out who uses nvme0n1", "is something else"]);
}

#[test]
fn the_root_disk_is_found_behind_multipath() {
    let machine = Machine::new("multipath");
    machine.share_disk();
    machine.mount("/");
    for address in [SSD, TWIN] {
        is_refused(&machine, &["bind", address, "--yes"], &["it holds the root file system"]);
    }
    let several = machine.doctor(&["bind", "nvme0n1", "--yes"]);
    assert_eq!(several.code, 64);
    assert!(
        several.err.contains(&format!("several controllers: {SSD}, {TWIN}")),
        "{}",
        several.err
    );
    let page = machine.doctor(&["check"]).out;
    assert!(page.contains("it holds the root file system"), "{page}");
    // The kernel shows no namespace to a path: nobody knows whose it is.
    fs::remove_file(machine.sysfs().join("class/block/nvme0n1")).unwrap();
    let words = ["cannot find out who uses nvme0n1", "the kernel shows no such block device"];
    is_refused(&machine, &["bind", SSD, "--yes"], &words);
}

#[test]
fn one_controller_of_two_is_handed_over_with_a_word_about_the_other() {
    let machine = Machine::new("twin");
    machine.share_disk();
    let Some(device) = loop_device("twin", &machine) else { return };
    machine.disk_is(&device);
    let shown = machine.doctor(&["bind", SSD]);
    assert_eq!(shown.code, 0, "{}", shown.err);
    let words = format!("the kernel still has it through {TWIN}");
    assert!(shown.out.contains(&words), "{}", shown.out);
}

#[test]
fn what_would_be_refused_is_not_suggested() {
    let machine = Machine::new("suggested");
    let Some(device) = loop_device("suggested", &machine) else { return };
    machine.disk_is(&device);
    let next = || {
        let page = machine.doctor(&["check", "--output", "json"]).json();
        page["devices"][0]["next"].as_str().unwrap().to_owned()
    };
    let both =
        "tidelog-format format /dev/nvme0n1 for uring; tidelog-doctor bind 0000:3e:00.0 for SPDK";
    assert_eq!(next(), both, "it is blank");
    // A pool that nobody has open: it is handed over as it is, and not overwritten.
    Pool::format(&[DeviceSpec::new(device.node())], &FormatOptions::default()).unwrap();
    assert_eq!(next(), "tidelog-doctor bind 0000:3e:00.0 for SPDK");
    let held = claim(&device).unwrap();
    let found = next();
    assert!(found.starts_with("can be neither formatted nor bound as it is"), "{found}");
    drop(held);
}

fn claim(device: &LoopDevice) -> std::io::Result<File> {
    OpenOptions::new().read(true).custom_flags(nix::libc::O_EXCL).open(device.node())
}

#[test]
fn a_namespace_that_is_claimed_or_held_is_refused() {
    let machine = Machine::new("claimed");
    let Some(device) = loop_device("claimed", &machine) else { return };
    machine.disk_is(&device);
    let held = claim(&device).unwrap();
    is_refused(&machine, &["bind", SSD, "--yes"], &["another program has claimed it exclusively"]);
    drop(held);
    let holder = fs::canonicalize(machine.sysfs().join("class/block/nvme0n1")).unwrap();
    fs::create_dir_all(holder.join("holders/dm-0")).unwrap();
    is_refused(&machine, &["bind", SSD, "--yes"], &["nvme0n1 is held by dm-0"]);
}

#[test]
fn nobody_can_mount_a_namespace_until_its_device_is_gone() {
    let machine = Machine::new("held");
    let Some(device) = loop_device("held", &machine) else { return };
    machine.disk_is(&device);
    let (tell, told) = mpsc::channel();
    let node = device.node().to_owned();
    let kernel = machine.follow("nvme", "drivers/vfio-pci/bind", Some("vfio-pci"), move || {
        let mount = OpenOptions::new().read(true).custom_flags(nix::libc::O_EXCL).open(node);
        tell.send(mount.map(drop).map_err(|error| error.kind())).unwrap();
    });
    let done = machine.doctor(&["bind", "nvme0n1", "--yes"]);
    assert_eq!(done.code, 0, "{}", done.err);
    kernel.join().unwrap();
    assert_eq!(told.recv().unwrap(), Err(std::io::ErrorKind::ResourceBusy));
    claim(&device).unwrap();
}

#[test]
fn a_pool_is_handed_over_with_a_word_but_not_while_it_is_open() {
    let machine = Machine::new("pool");
    let Some(device) = loop_device("pool", &machine) else { return };
    machine.disk_is(&device);
    let specs = [DeviceSpec::new(device.node())];
    Pool::format(&specs, &FormatOptions { overwrite: true, ..FormatOptions::default() }).unwrap();
    let options = tidelog_engine::pool::OpenOptions::default();
    let pool = Pool::open(&specs, &options).unwrap();
    let process = format!("process {}", std::process::id());
    is_refused(&machine, &["bind", SSD, "--yes"], &["its Tidelog pool is open by", &process]);
    pool.close().unwrap();
    drop(pool);
    // SPDK's path opens the pools that the kernel's made. A tool that another test starts just now
    // has our descriptors, and locks, until it executes.
    let mut shown = machine.doctor(&["bind", SSD]);
    for _ in 0..100 {
        if shown.code == 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
        shown = machine.doctor(&["bind", SSD]);
    }
    assert_eq!(shown.code, 0, "{}", shown.err);
    assert!(shown.out.contains("nvme0n1: it belongs to Tidelog pool"), "{}", shown.out);
}

#[test]
fn what_a_program_drives_is_not_taken_from_it() {
    let machine = Machine::new("driven");
    machine.remove_disk();
    let unbind = ["unbind", SSD, "--yes"];
    machine.set_driver(SSD, "vfio-pci");
    // `/dev/null` stands in for the nodes.
    machine.write("class/vfio/2/dev", "1:3\n");
    machine.open_in(4242, "idle", "/dev/zero");
    machine.open_in(4243, "spdk_nvme_perf", "/dev/null");
    let words = ["in use: process 4243 (spdk_nvme_perf) has /dev/vfio/2 open", "kill 4243"];
    is_refused(&machine, &unbind, &words);
    fs::remove_dir_all(machine.sysfs().join("class/vfio")).unwrap();
    let uio = machine.device(SSD).join("uio/uio5");
    fs::create_dir_all(&uio).unwrap();
    fs::write(uio.join("dev"), "1:5\n").unwrap();
    machine.set_driver(SSD, "uio_pci_generic");
    is_refused(&machine, &unbind, &["process 4242 (idle) has /dev/uio5 open"]);
    // Another driver is no way around it.
    is_refused(&machine, &["bind", SSD, "--driver", "vfio-pci", "--yes"], &["is in use: process"]);
    // What the kernel has again is not refused for what a program has left open.
    machine.set_driver(SSD, "nvme");
    assert!(machine.doctor(&unbind).out.contains("nothing to do"));
}

#[test]
fn what_spdk_has_locked_is_not_taken_from_it() {
    let machine = Machine::new("locked");
    machine.remove_disk();
    machine.set_driver(SSD, "uio_pci_generic");
    let lock = machine.root("claims").join(format!("spdk_pci_lock_{SSD}"));
    let file = File::create(&lock).unwrap();
    let unbind = ["unbind", SSD];
    assert_eq!(machine.doctor(&unbind).code, 0, "what a process that died has left");
    let whole = lock_of_bytes(nix::libc::F_WRLCK, 0, 0);
    fcntl(&file, FcntlArg::F_SETLK(&whole)).unwrap();
    machine.write_proc(&format!("{}/comm", std::process::id()), "nvmf_tgt\n");
    let who = format!("process {} (nvmf_tgt) holds SPDK's lock", std::process::id());
    is_refused(&machine, &unbind, &[&who, lock.to_str().unwrap()]);
    drop(file);
    // A link that somebody has put there leads nowhere.
    fs::remove_file(&lock).unwrap();
    std::os::unix::fs::symlink("/dev/null", &lock).unwrap();
    assert_eq!(machine.doctor(&unbind).code, 5);
}
