//! The commands from end to end on files, their exit codes, and devices that lie.

mod common;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{Loop, open, pool, program, put, sparse, temporary, tool};
use serde_json::Value;
use tidelog_engine::layout::TensorKey;
use tidelog_engine::memory::Source;
use tidelog_engine::pool::PutOptions;
use tidelog_tests::machine::Directory;

const MIB: u64 = 1 << 20;

fn two(directory: &Directory) -> [String; 2] {
    ["a", "b"].map(|name| directory.at(name))
}

/// Turns one byte around.
fn rot(file: &str, offset: u64) {
    let file = File::options().read(true).write(true).open(file).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[!byte[0]], offset).unwrap();
}

#[test]
fn nothing_is_written_before_it_is_asked_for() {
    let directory = temporary("dry");
    let [a, b] = two(&directory);
    let plan = ["format", a.as_str(), b.as_str(), "--size", "16MiB"];
    // A script's run without a word is as dry as a person's.
    for shown in [tool(&plan), tool(&[&plan[..], &["--dry-run"]].concat())] {
        let shown = shown.expect(0);
        for word in [
            "superblock A",
            "superblock B",
            "change log",
            "Nothing was written",
            "losing one device",
        ] {
            assert!(shown.out.contains(word), "no {word:?} in {shown}");
        }
    }
    assert!(fs::read_dir(directory.path()).unwrap().next().is_none());
    tool(&[&plan[..], &["--yes", "--dry-run"]].concat()).expect(64);
}

#[test]
fn on_a_terminal_a_command_without_yes_shows_and_writes_nothing() {
    let directory = temporary("terminal");
    let device = directory.at("device");
    // `script` gives the tool a terminal.
    let on_terminal = |arguments: &str| {
        let command = format!("{} {arguments}", env!("CARGO_BIN_EXE_tidelog-format"));
        program("terminal", "script", &["--quiet", "--return", "--command", &command, "/dev/null"])
    };
    if on_terminal(&format!("format {device} --size 16MiB")).is_none() {
        return;
    }
    assert!(fs::read_dir(directory.path()).unwrap().next().is_none());
    on_terminal(&format!("format {device} --size 16MiB --yes"));
    on_terminal(&format!("wipe {device}"));
    tool(&["check", &device]).expect(0);
}

#[test]
fn a_pool_is_made_as_shown_readable_by_its_owner_alone() {
    let directory = temporary("made");
    let inside = directory.path().join("inside");
    fs::create_dir(&inside).unwrap();
    let (a, b) = (directory.at("a"), inside.display().to_string());
    let options = ["--size", "32MiB", "--stripe-unit", "64KiB", "--shares", "2"];
    let more = ["--over-provision", "10", "--output", "json"];
    let run = |last: &str| {
        tool(&[&["format", &a, &b], &options[..], &more[..], &[last]].concat()).expect(0).json()
    };
    let planned = run("--dry-run");
    let made = run("--yes");
    for key in ["geometry", "devices", "capacity_bytes"] {
        assert_eq!(planned[key], made[key], "{key}");
    }
    assert_eq!((&planned["written"], &made["written"]), (&Value::from(false), &Value::from(true)));
    for file in [directory.path().join("a"), inside.join("tidelog.device")] {
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
    let seen = tool(&["inspect", &b, &a, "--output", "json"]).expect(0).json();
    assert_eq!((&seen["geometry"], &seen["pool"]), (&made["geometry"], &made["pool"]));
    assert_eq!(seen["shares"].as_array().unwrap().len(), 2);
    // Of the segments that fit before superblock B, a tenth was left out.
    let geometry = &seen["geometry"];
    let read = |key: &str| geometry[key].as_u64().unwrap();
    let all = (read("device_bytes") - 4096 - read("data_offset")) / read("segment_bytes");
    assert_eq!(read("segments"), all * 9 / 10);
}

#[test]
fn a_pool_is_looked_at_in_whole_and_in_part() {
    let directory = temporary("inspect");
    let [a, b] = two(&directory);
    tool(&["format", &a, &b, "--size", "16MiB", "--yes"]).expect(0);
    put(&[&a, &b], &["layer.0.weight"]);
    let shown = tool(&["inspect", &a, &b]).expect(0);
    for word in ["layer.0.weight", "superblock A", "live 100 KiB", "last opened by process"] {
        assert!(shown.out.contains(word), "no {word:?} in {shown}");
    }
    let part = tool(&["inspect", &b, "--output", "json"]).expect(0).json();
    assert_eq!(part["missing"], serde_json::json!([0]));
    tool(&["check", &b]).expect(3);
    tool(&["inspect", &a, &a]).expect(3);
}

#[test]
fn a_newest_checkpoint_that_is_damaged_is_found_though_the_one_before_gives_the_same_and_repaired()
{
    let directory = temporary("checkpoint");
    let device = pool(&directory, "device", &["kept"]);
    // The tensor is in the first checkpoint's change log; opening writes the second checkpoint.
    drop(common::open(&[&device]));
    tool(&["check", &device]).expect(0);
    let specs = [tidelog_engine::path::DeviceSpec::new(&device)];
    let view = tidelog_engine::pool::inspect::inspect(&specs).unwrap();
    let share = view.superblock.geometry.share(0).unwrap();
    rot(&device, share.slots[1].checkpoint_offset + 70);
    let found = tool(&["check", &device]).expect(2);
    assert!(found.out.contains("epoch 2"), "{found}");
    tool(&["repair", &device]).expect(1);
    tool(&["check", &device]).expect(0);
    assert!(tool(&["inspect", &device]).expect(0).out.contains("kept"));
}

#[test]
fn damage_is_found_repaired_and_only_dropped_by_name() {
    let directory = temporary("repair");
    let device = pool(&directory, "device", &["kept", "lost"]);
    tool(&["check", &device]).expect(0);
    tool(&["repair", &device]).expect(0);

    rot(&device, 4096 + 100);
    let found = tool(&["check", &device]).expect(2);
    assert!(found.out.contains("superblock copy A") && found.out.contains("1 of these"), "{found}");
    let repaired = tool(&["repair", &device, "--output", "json"]).expect(1).json();
    assert_eq!(repaired["after"]["clean"], true);
    tool(&["check", &device]).expect(0);

    // The tensors stand one after the other at the start of the data, 25 blocks each.
    let view = tool(&["inspect", &device, "--output", "json"]).expect(0).json();
    let data = view["geometry"]["data_offset"].as_u64().unwrap();
    rot(&device, data + 30 * 4096);
    let found = tool(&["check", &device, "--output", "json"]).expect(2).json();
    assert_eq!(found["damage"][0]["tensor"], "lost");
    assert_eq!(found["damage"].as_array().unwrap().len(), 1);
    let kept = tool(&["repair", &device]).expect(2);
    assert!(kept.out.contains("LOST") && kept.out.contains("--drop-damaged tensor:lost"), "{kept}");
    assert!(!kept.out.contains("every checksum is right"), "{kept}");
    tool(&["repair", &device, "--drop-damaged", "kept"]).expect(64);
    let dropped = tool(&["repair", &device, "--drop-damaged", "lost"]).expect(1);
    assert!(dropped.out.contains("dropped: tensor \"lost\""), "{dropped}");
    let view = tool(&["inspect", &device, "--output", "json"]).expect(0).json();
    let tensors = view["shares"][0]["index"]["tensors"].as_array().unwrap().clone();
    assert_eq!(tensors.len(), 1);
    assert_eq!(tensors[0]["name"], "kept");
}

#[test]
fn an_older_copy_of_a_device_is_named_by_every_command_until_it_is_accepted() {
    let directory = temporary("older");
    let [a, b] = two(&directory);
    let format = ["format", &a, &b, "--size", "16MiB", "--yes"];
    tool(&format).expect(0);
    put(&[&a, &b], &["one"]);
    let older = fs::read(&b).unwrap();
    put(&[&a, &b], &["two"]);
    fs::write(&b, older).unwrap();
    let inspected = tool(&["inspect", &b, &a]).expect(2);
    assert!(inspected.out.contains(&format!("{b} is an OLDER COPY of itself")), "{inspected}");
    let checked = tool(&["check", &a, &b]).expect(2);
    assert!(checked.out.contains(&format!("OLDER: {b}: an older copy of itself")), "{checked}");
    let before = fs::read(&a).unwrap();
    let refused = tool(&["repair", &a, &b]).expect(2);
    assert!(format!("{refused}").contains("older copy"), "{refused}");
    assert!(fs::read(&a).unwrap() == before, "nothing is written beside an older copy");
    let accepted = tool(&["repair", &a, &b, "--accept-older-copies"]);
    assert!(accepted.out.contains(&format!("accepted as it is: {b}")), "{accepted}");
    let inspected = tool(&["inspect", &a, &b]).expect(0);
    assert!(inspected.out.contains("one") && inspected.out.contains("two"), "{inspected}");
}

#[test]
fn an_index_that_is_lost_is_said_by_every_command_and_nothing_is_made_up() {
    let directory = temporary("index");
    let device = pool(&directory, "device", &["one"]);
    put(&[&device], &["two"]);
    let view = tool(&["inspect", &device, "--output", "json"]).expect(0).json();
    let slot = view["geometry"]["slot_bytes"].as_u64().unwrap();
    for slot in [256 << 10, (256 << 10) + slot] {
        rot(&device, slot + 8);
    }
    let checked = tool(&["check", &device]).expect(2);
    assert!(checked.out.contains("the index of share 0"), "{checked}");
    assert!(checked.out.contains("no tensor could be verified"), "{checked}");
    assert!(!checked.out.contains("0 durable") && !checked.out.contains("checksum"), "{checked}");
    tool(&["inspect", &device]).expect(2);
    let before = fs::read(&device).unwrap();
    tool(&["repair", &device]).expect(2);
    assert!(fs::read(&device).unwrap() == before, "nothing could be repaired");
}

#[test]
fn lost_commits_are_shown_and_given_up_only_with_yes() {
    let directory = temporary("lost");
    let [a, b] = two(&directory);
    tool(&["format", &a, &b, "--size", "16MiB", "--yes"]).expect(0);
    put(&[&a, &b], &["one"]);
    put(&[&a, &b], &["two"]);
    let view = tool(&["inspect", &a, &b, "--output", "json"]).expect(0).json();
    // The second opening wrote the first commit as a checkpoint; the second one continues it.
    let slot = view["geometry"]["slot_bytes"].as_u64().unwrap();
    let record = (256 << 10) + slot + slot / 4 * 3;
    rot(&a, record + 70);
    tool(&["check", &a, &b]).expect(2);
    rot(&b, record + 70);
    let checked = tool(&["check", &a, &b]).expect(2);
    assert!(checked.out.contains("change record 1 of epoch 2 is damaged"), "{checked}");
    assert!(checked.out.contains("repair --accept-lost-commits"), "{checked}");
    tool(&["repair", &a, &b, "--yes"]).expect(64);
    let before = fs::read(&a).unwrap();
    let shown = tool(&["repair", &a, &b, "--accept-lost-commits"]).expect(2);
    assert!(shown.out.contains("Nothing was written"), "{shown}");
    let shown = tool(&["repair", &a, &b, "--accept-lost-commits", "--dry-run"]).expect(2);
    assert!(shown.out.contains("after record 0 of epoch 2"), "{shown}");
    assert!(shown.out.contains("left: 1 durable tensor(s)"), "{shown}");
    assert!(shown.out.contains("Nothing was written"), "{shown}");
    assert!(fs::read(&a).unwrap() == before);
    let arguments = ["repair", &a, &b, "--accept-lost-commits", "--yes", "--output", "json"];
    let repaired = tool(&arguments).expect(1).json();
    assert_eq!(repaired["lost"][0]["kept"]["record"], 0);
    assert_eq!(repaired["after"]["clean"], true);
    let inspected = tool(&["inspect", &a, &b]).expect(0);
    assert!(inspected.out.contains("one") && !inspected.out.contains("two"), "{inspected}");
    let none = tool(&["repair", &a, &b, "--accept-lost-commits", "--yes"]).expect(0);
    assert!(!none.out.contains("lost:"), "{none}");
}

#[test]
fn a_wiped_pool_is_none_any_more() {
    let directory = temporary("wipe");
    let [a, b] = two(&directory);
    tool(&["format", &a, &b, "--size", "16MiB", "--yes"]).expect(0);
    put(&[&a, &b], &["doomed"]);
    let shown = tool(&["wipe", &a, &b]).expect(0);
    assert!(shown.out.contains("doomed") && shown.out.contains("Nothing was written"), "{shown}");
    tool(&["check", &a, &b]).expect(0);
    let wiped = tool(&["wipe", &a, &b, "--yes", "--output", "json"]).expect(0).json();
    assert_eq!(wiped["wiped"].as_array().unwrap().len(), 4);
    for command in ["inspect", "check", "repair"] {
        tool(&[command, &a, &b]).expect(3);
    }
    tool(&["wipe", &a, "--yes"]).expect(3);
    let spare = temporary("wipe-foreign");
    let whole = pool(&spare, "whole", &[]);
    let foreign = sparse(&spare, "foreign", 16 * MIB);
    rot(&foreign, 4096);
    tool(&["wipe", &whole, &foreign, "--yes"]).expect(3);
    tool(&["check", &whole]).expect(0);
    // As a wipe leaves it that was killed between two devices.
    tool(&["wipe", &whole, &a, "--yes"]).expect(0);
    tool(&["check", &whole]).expect(3);
    tool(&["check", &directory.at("never-there")]).expect(3);
}

#[test]
fn pools_are_listed_with_what_is_missing() {
    let directory = temporary("list");
    let [a, b] = two(&directory);
    tool(&["format", &a, &b, "--size", "16MiB", "--yes"]).expect(0);
    let of = |paths: &[&str]| {
        let arguments = [&["list", "--output", "json"], paths].concat();
        let json = tool(&arguments).expect(0).json();
        let mut pools = json["pools"].as_array().unwrap().clone();
        pools.retain(|pool| pool["devices"].to_string().contains(a.as_str()));
        assert_eq!(pools.len(), 1);
        pools.remove(0)
    };
    assert_eq!(of(&[&b, &a])["complete"], true);
    assert_eq!(of(&[&a])["missing"], serde_json::json!(["1"]));
}

#[test]
fn help_and_completions_are_there_and_tell_the_exit_codes() {
    let help = tool(&["--help"]).expect(0);
    for word in ["Exit codes", "64", "Examples", "repair", "--output"] {
        assert!(help.out.contains(word), "no {word:?} in {help}");
    }
    assert!(tool(&["format", "--help"]).expect(0).out.contains("--overwrite /dev/nvme1n1"));
    for shell in ["bash", "zsh", "fish"] {
        assert!(tool(&["completions", shell]).expect(0).out.contains("tidelog-format"));
    }
}

#[test]
fn a_command_line_that_makes_no_sense_is_64_and_changes_nothing() {
    let directory = temporary("usage");
    let new = directory.at("new");
    for arguments in [
        &["format"][..],
        &["format", &new, "--yes"],
        &["format", &new, "--yes", "--size", "100GX"],
        &["format", &new, "--yes", "--size", "16MiB", "--stripe-unit", "5000"],
        &["format", &new, "--yes", "--size", "16MiB", "--shares", "33"],
        &["format", &new, "--yes", "--size", "16MiB", "--over-provision", "91"],
        &["format", &new, "--yes", "--size", "64KiB"],
        &["frobnicate"],
        &[],
    ] {
        tool(arguments).expect(64);
        assert!(fs::read_dir(directory.path()).unwrap().next().is_none());
    }
}

#[test]
fn an_index_in_json_is_one_document_on_errors_too() {
    let directory = temporary("json");
    let file = sparse(&directory, "device", 16 * MIB);
    let ran = tool(&["inspect", &file, "--output", "json"]).expect(3);
    assert_eq!(ran.json()["exit"], 3);
    assert!(ran.err.is_empty(), "{ran}");
}

#[test]
fn names_on_the_media_cannot_write_to_the_terminal() {
    let directory = temporary("escape");
    let device = pool(&directory, "device", &["\u{1b}[2Jevil\u{7}"]);
    let shown = tool(&["inspect", &device]).expect(0);
    assert!(shown.out.contains("evil") && !shown.out.contains('\u{1b}'), "{shown}");
}

/// Writes a value into both superblocks and makes their checksums right again.
fn forge(device: &str, offset: u64, value: &[u8]) {
    let file = File::options().read(true).write(true).open(device).unwrap();
    let end = file.metadata().unwrap().len() - 4096;
    for at in [4096, end] {
        let mut block = vec![0; 4096];
        file.read_exact_at(&mut block, at).unwrap();
        block[offset as usize..][..value.len()].copy_from_slice(value);
        block[12..16].fill(0);
        let checksum = crc32c::crc32c(&block);
        block[12..16].copy_from_slice(&checksum.to_le_bytes());
        file.write_all_at(&block, at).unwrap();
    }
}

#[test]
fn superblocks_with_right_checksums_and_hostile_numbers_are_refused_by_every_command() {
    let directory = temporary("hostile");
    let whole = fs::read(pool(&directory, "whole", &["tensor"])).unwrap();
    let huge: [u64; 7] = [0, 1, 4095, 4097, 1 << 40, 1 << 63, u64::MAX];
    let device = directory.at("device");
    // Offsets of docs/format.md: devices, device_bytes, stripe_unit, segment_bytes, data_offset,
    // slot_bytes, segments, shares.
    let wide = [56, 64, 72, 80, 88].map(|offset| (offset, 8));
    let narrow = [48, 52, 96, 100].map(|offset| (offset, 4));
    for (offset, bytes) in wide.into_iter().chain(narrow) {
        for value in huge {
            let value = &value.to_le_bytes()[..bytes];
            if whole[4096 + offset as usize..][..bytes] == *value {
                continue;
            }
            fs::write(&device, &whole).unwrap();
            forge(&device, offset, value);
            for command in ["inspect", "check", "repair"] {
                let ran = tool(&[command, &device]);
                assert!([2, 3].contains(&ran.code), "{command}, {value:?} at {offset}: {ran}");
                assert!(!ran.err.contains("panicked"), "{ran}");
            }
            tool(&["list", &device]).expect(0);
            tool(&["format", &device, "--dry-run"]).expect(4);
        }
    }
    // A pool of a later version is not touched.
    fs::write(&device, &whole).unwrap();
    forge(&device, 8, &2_u32.to_le_bytes());
    tool(&["repair", &device]).expect(4);
}

#[test]
fn an_index_with_right_checksums_and_hostile_numbers_is_damage_and_nothing_is_read_by_it() {
    let directory = temporary("hostile-index");
    let whole = fs::read(pool(&directory, "whole", &["tensor"])).unwrap();
    let device = directory.at("device");
    // The commit is the first record of the log of slot 0, behind three quarters of it: a head of
    // 64 bytes, then the entry. Its length, its own bytes, its runs and checksums, then the run
    // itself.
    let record = (256 << 10) + (192 << 10);
    let payload = u32::from_le_bytes(whole[record + 12..][..4].try_into().unwrap()) as usize;
    let wide = [16].map(|offset| (offset, 8));
    let narrow = [24, 28, 32, 48, 52, 56].map(|offset| (offset, 4));
    for (offset, bytes) in wide.into_iter().chain(narrow) {
        for value in [0_u64, 1 << 20, 0x7FFF_FFFF, u64::MAX] {
            let mut forged = whole.clone();
            let value = &value.to_le_bytes()[..bytes];
            let place = record + 64 + offset;
            if forged[place..][..bytes] == *value {
                continue;
            }
            forged[place..][..bytes].copy_from_slice(value);
            forged[record + 8..][..4].fill(0);
            let checksum = crc32c::crc32c(&forged[record..][..64 + payload]);
            forged[record + 8..][..4].copy_from_slice(&checksum.to_le_bytes());
            fs::write(&device, &forged).unwrap();
            for command in ["inspect", "check", "repair"] {
                let ran = tool(&[command, &device]).expect(2);
                assert!(!ran.err.contains("panicked"), "{ran}");
            }
            assert!(fs::read(&device).unwrap() == forged, "it was written");
        }
    }
}

#[test]
fn a_truncated_device_is_damaged_and_not_read_past_its_end() {
    let directory = temporary("truncated");
    let device = pool(&directory, "device", &["tensor"]);
    File::options().write(true).open(&device).unwrap().set_len(8 * MIB).unwrap();
    for command in ["inspect", "check", "repair"] {
        let ran = tool(&[command, &device]).expect(2);
        assert!(ran.err.contains("was formatted for"), "{ran}");
    }
    for bytes in [0, 1, 4095, 4096, 8192] {
        File::options().write(true).open(&device).unwrap().set_len(bytes).unwrap();
        let ran = tool(&["check", &device]);
        assert!([2, 3].contains(&ran.code), "{bytes} bytes: {ran}");
    }
}

#[test]
fn formatting_measures_the_devices_and_the_pool_remembers() {
    let directory = temporary("calibrated");
    let [a, b] = two(&directory);
    let format = ["format", &a, &b, "--size", "64MiB", "--calibrate", "--output", "json"];
    let planned = tool(&[&format[..], &["--dry-run"]].concat()).expect(0).json();
    assert_eq!(planned["written"], false);
    assert!(fs::read_dir(directory.path()).unwrap().next().is_none());
    let made = tool(&[&format[..], &["--yes"]].concat()).expect(0).json();
    let found = &made["calibration"];
    assert_eq!(found["stripe_unit"], made["geometry"]["stripe_unit"]);
    for measured in found["measurements"].as_array().unwrap() {
        let rate = |what: &str| measured[what].as_f64().unwrap();
        assert!(rate("write_bytes_per_second") > 0.0 && rate("read_bytes_per_second") > 0.0);
    }
    let seen = tool(&["inspect", &b, &a, "--output", "json"]).expect(0).json();
    assert_eq!((&seen["depth"], &seen["geometry"]), (&found["depth"], &made["geometry"]));
    tool(&["check", &a, &b]).expect(0);
    tool(&["format", &a, "--calibrate", "--stripe-unit", "64KiB", "--yes"]).expect(64);
}

#[test]
fn a_pool_with_tensors_is_calibrated_and_one_in_use_is_refused() {
    let directory = temporary("calibrate");
    let [a, b] = two(&directory);
    tool(&["format", &a, &b, "--size", "64MiB", "--yes"]).expect(0);
    put(&[&a, &b], &["layer.0.weight"]);
    let before = fs::read(&a).unwrap();
    let shown = tool(&["calibrate", &a, &b]).expect(0);
    assert!(shown.out.contains("Nothing was written"), "{shown}");
    assert!(fs::read(&a).unwrap() == before);
    tool(&["calibrate", &a, "--yes"]).expect(3);
    tool(&["calibrate", &directory.at("missing"), "--yes"]).expect(3);
    {
        let _held = open(&[&a, &b]);
        tool(&["calibrate", &a, &b, "--yes"]).expect(4);
    }
    let table = tool(&["calibrate", &b, &a, "--yes"]).expect(0);
    assert!(table.out.contains("read GB/s") && table.out.contains("stored"), "{table}");
    let seen = tool(&["inspect", &a, &b, "--output", "json"]).expect(0).json();
    assert!(seen["depth"].as_u64().is_some_and(|depth| depth >= 1), "{seen}");
    tool(&["check", &a, &b]).expect(0);
}

#[test]
fn block_devices_are_measured_before_and_after_they_are_a_pool() {
    let loops = ["calibrate-a", "calibrate-b"].map(|name| Loop::new(name, 64 * MIB));
    let [Some(a), Some(b)] = &loops else { return };
    let (a, b) = (a.node(), b.node());
    tool(&["format", a, b, "--calibrate", "--yes"]).expect(0);
    put(&[a, b], &["layer.0.weight"]);
    tool(&["calibrate", a, b, "--yes"]).expect(0);
    tool(&["check", a, b]).expect(0);
}

#[test]
fn a_calibration_that_is_killed_leaves_the_pool_whole() {
    let directory = temporary("killed");
    let [a, b] = two(&directory);
    tool(&["format", &a, &b, "--size", "64MiB", "--yes"]).expect(0);
    put(&[&a, &b], &["layer.0.weight", "layer.1.weight"]);
    for wait in [100, 400, 1500] {
        let mut running = Command::new(env!("CARGO_BIN_EXE_tidelog-format"))
            .args(["calibrate", &a, &b, "--yes"])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(wait));
        assert_eq!(running.try_wait().unwrap(), None, "it was to be killed while it measures");
        running.kill().unwrap();
        running.wait().unwrap();
        // As after any crash: who opens the pool makes a copy of the index whole that was being
        // written.
        drop(open(&[&a, &b]));
        tool(&["check", &a, &b]).expect(0);
        let seen = tool(&["inspect", &a, &b, "--output", "json"]).expect(0).json();
        assert_eq!(seen["depth"], Value::Null, "what was not measured whole is not stored");
    }
}

#[test]
fn what_check_names_can_be_given_to_repair_as_it_is() {
    let directory = temporary("names");
    let names = ["plain", "with space", "it's", "tensor:odd", "two\nlines", "sealed"];
    let device = pool(&directory, "device", &[]);
    {
        let held = open(&[&device]);
        let mut batch = held.pool.batch();
        for name in names {
            let source = Source::from(vec![7; 100_000]);
            batch.put(name, source, PutOptions::default()).unwrap();
        }
        batch.seal("a seal", [TensorKey::from("sealed")]).unwrap();
        batch.commit().unwrap();
    }
    let view = tool(&["inspect", &device, "--output", "json"]).expect(0).json();
    let data = view["geometry"]["data_offset"].as_u64().unwrap();
    for tensor in 0..names.len() as u64 {
        rot(&device, data + (25 * tensor + 3) * 4096);
    }
    let checked = tool(&["check", &device]).expect(2);
    for named in [
        "tensor:plain",
        "'tensor:with space'",
        "'tensor:it'\\''s'",
        "tensor:tensor:odd",
        "'seal:a seal'",
    ] {
        assert!(checked.out.contains(&format!("  --drop-damaged {named}\n")), "{named}: {checked}");
    }
    let found = tool(&["check", &device, "--output", "json"]).expect(2).json();
    let damage = found["damage"].as_array().unwrap();
    assert_eq!(damage.len(), names.len());
    let drop = damage.iter().flat_map(|it| it["drop"].as_array().unwrap());
    let drop: Vec<&str> = drop.map(|name| name.as_str().unwrap()).collect();
    let options = drop.iter().flat_map(|name| ["--drop-damaged", name]);
    let arguments: Vec<&str> = ["repair", &device].into_iter().chain(options).collect();
    let repaired = tool(&arguments).expect(1);
    assert!(repaired.out.contains("dropped: seal \"a seal\" of share 0"), "{repaired}");
    assert!(!repaired.out.contains("LOST") && !repaired.out.contains("repaired:"), "{repaired}");
    tool(&["check", &device]).expect(0);
}
