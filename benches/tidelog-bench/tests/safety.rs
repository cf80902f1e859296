//! Ways in which a benchmark could come to overwrite what nobody gave it.

mod common;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use common::{bench, over, temporary};
use tidelog_tests::machine::Ran;

const WRITE: [&str; 5] =
    ["--name=job", "--ioengine=tidelog-posix", "--rw=write", "--bs=64k", "--output-format=json"];

fn write(more: &[&str]) -> Ran {
    bench(&[&WRITE[..], more].concat())
}

#[test]
fn data_far_from_both_ends_of_a_file_is_found() {
    let directory = temporary("middle");
    let path = directory.at("image");
    let file = File::create(&path).unwrap();
    file.set_len(1 << 30).unwrap();
    file.write_all_at(b"a photo", 500_000_001).unwrap();
    let name = format!("--filename={path}");
    // While it is open for writing here, it is refused for that.
    drop(file);
    write(&[&name, "--size=1m"]).expect(4).says("data at byte 500000001");
    let test = "data_far_from_both_ends_of_a_file_is_found";
    let Some(device) = over(test, &path, 0) else { return };
    // Of a device samples are looked at: a file system that lost its partition table lies at 1 MiB.
    let image = File::options().write(true).open(&path).unwrap();
    image.write_all_at(&vec![7; 32 << 20], 2 << 20).unwrap();
    image.sync_all().unwrap();
    write(&[&format!("--filename={}", device.node()), "--size=1m"]).expect(4).says("not blank");
}

#[test]
fn a_device_under_a_loop_device_is_in_use() {
    let directory = temporary("nested");
    let path = directory.at("disk");
    File::create(&path).unwrap().set_len(64 << 20).unwrap();
    let test = "a_device_under_a_loop_device_is_in_use";
    let Some(disk) = over(test, &path, 0) else { return };
    let Some(inner) = over(test, disk.node(), 2 << 20) else { return };
    let held = format!("is held by {}", inner.name());
    let (name, twice) =
        (format!("--filename={}", disk.node()), format!("--overwrite={}", disk.node()));
    write(&[&name, &twice, "--size=1m"]).expect(4).says(&held);
    // A file, by the name of another hard link.
    let link = directory.at("link");
    fs::hard_link(&path, &link).unwrap();
    let held = format!("is held by {}", disk.name());
    let (name, twice) = (format!("--filename={link}"), format!("--overwrite={link}"));
    write(&[&name, &twice, "--size=1m"]).expect(4).says(&held);
}

#[test]
fn a_name_that_becomes_another_file_while_earlier_jobs_run_is_refused() {
    let directory = temporary("exchange");
    let [blank, photo, link, jobs] =
        ["blank", "photo", "link", "jobs.fio"].map(|name| directory.at(name));
    File::create(&blank).unwrap().set_len(1 << 20).unwrap();
    fs::write(&photo, vec![7; 1 << 20]).unwrap();
    symlink(&blank, &link).unwrap();
    let text = format!(
        "[global]\nioengine=tidelog-posix\nrw=write\nbs=64k\nsize=1m\n\
         [first]\nfilename={}\ntime_based\nruntime=2\n[second]\nstonewall\nfilename={link}\n",
        directory.at("first")
    );
    fs::write(&jobs, text).unwrap();
    let running = Command::new(env!("CARGO_BIN_EXE_tidelog-bench"))
        .arg(&jobs)
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    // The first job's file is made once everything was looked at.
    let appeared = (0..200).any(|_| {
        thread::sleep(Duration::from_millis(5));
        fs::metadata(directory.at("first")).is_ok_and(|it| it.len() > 0)
    });
    assert!(appeared, "the first job did not begin");
    thread::sleep(Duration::from_millis(300));
    fs::remove_file(&link).unwrap();
    symlink(&photo, &link).unwrap();
    let output = running.wait_with_output().unwrap();
    assert_eq!(fs::read(&photo).unwrap(), vec![7; 1 << 20], "it was never looked at");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("became another device"), "{said}");
}

/// A run that writes this file until it is ended.
fn writer(file: &str, size: &str) -> std::process::Child {
    let name = format!("--filename={file}");
    let running = Command::new(env!("CARGO_BIN_EXE_tidelog-bench"))
        .args(WRITE)
        .args([size, &name, "--time_based", "--runtime=100"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let begins = |_| {
        thread::sleep(Duration::from_millis(10));
        let locks = fs::read_to_string("/proc/locks").unwrap();
        locks.lines().any(|it| it.contains("FLOCK") && it.contains(&format!(" {} ", running.id())))
    };
    assert!((0..500).any(begins), "it took no lock");
    running
}

fn end(mut running: std::process::Child) {
    assert!(
        Command::new("kill").args(["-INT", &running.id().to_string()]).status().unwrap().success()
    );
    assert_eq!(running.wait().unwrap().code(), Some(130));
}

#[test]
fn what_another_run_writes_is_refused_with_the_name_of_its_process() {
    let directory = temporary("twice");
    let path = directory.at("blank");
    File::create(&path).unwrap().set_len(1 << 20).unwrap();
    let first = writer(&path, "--size=1m");
    let holder = format!("is in use by process {} (tidelog-bench)", first.id());
    let name = format!("--filename={path}");
    // Named twice, so that nothing but the other run stands against it.
    let twice = format!("--overwrite={path}");
    write(&[&name, &twice, "--size=1m"]).expect(4).says("nothing was written").says(&holder);
    // Nor does anything make a pool of it meanwhile.
    let log = ["--level=log", "--size=1m", &name, &twice];
    write(&log).expect(4).says("is in use");
    bench(&["--name=job", "--ioengine=tidelog-posix", "--rw=read", "--size=64k", &name]).expect(0);
    end(first);
    write(&[&name, &twice, "--size=1m"]).expect(0);

    let test = "what_another_run_writes_is_refused_with_the_name_of_its_process";
    let Some(device) = over(test, &path, 0) else { return };
    let twice = format!("--overwrite={}", device.node());
    let name = format!("--filename={}", device.node());
    fs::write(&path, vec![0; 1 << 20]).unwrap();
    let first = writer(device.node(), "--size=1m");
    let holder = format!("is in use by process {} (tidelog-bench)", first.id());
    write(&[&name, &twice, "--size=1m"]).expect(4).says(&holder);
    end(first);
}

#[test]
fn files_larger_than_the_file_system_has_room_for_are_refused_with_figures() {
    let directory = temporary("room");
    let (one, other) = (directory.at("one"), directory.at("other"));
    let free = room_left(directory.path());
    // Each has room, and both together have not.
    let half = free / 4 * 3 / 4096 * 4096;
    for level in [&["--level=raw"][..], &["--level=log"]] {
        let size = format!("--size={half}");
        let (one_name, other_name) = (format!("--filename={one}"), format!("--filename={other}"));
        let jobs =
            ["--name=b", "--ioengine=tidelog-posix", "--rw=write", "--bs=64k", &size, &other_name];
        let all = [&[&size[..], &one_name], level, &jobs[..], level].concat();
        write(&all).expect(5).says("are to be reserved").says("left; give a smaller size");
        for file in [&one, &other] {
            assert!(!fs::exists(file).unwrap(), "{file} was made");
        }
    }
}

/// Returns the free bytes of a file system, as `df` says.
fn room_left(directory: &std::path::Path) -> u64 {
    let df = Command::new("df").args(["--output=avail", "-B1"]).arg(directory).output().unwrap();
    let text = String::from_utf8(df.stdout).unwrap();
    text.lines().nth(1).unwrap().trim().parse().unwrap()
}

#[test]
fn a_run_of_which_one_job_is_refused_begins_with_none() {
    let directory = temporary("none");
    let photo = directory.at("photo");
    fs::write(&photo, "a photo").unwrap();
    let names = ["new", "pool"]
        .map(|name| (directory.at(name), format!("--filename={}", directory.at(name))));
    let photo = format!("--filename={photo}");
    let first = ["--size=1m", &names[0].1];
    let log = ["--name=log", "--ioengine=tidelog-posix", "--rw=write", "--level=log", "--size=1m"];
    let last = ["--name=last", "--ioengine=tidelog-posix", "--rw=write", "--size=64k", &photo];
    let all = [&first[..], &log[..], &[&names[1].1], &last[..]].concat();
    write(&all).expect(4).says("nothing was written, because");
    for (path, _) in &names {
        assert!(!fs::exists(path).unwrap(), "{path} was made");
    }
}

#[test]
fn results_go_to_nothing_that_the_run_is_about() {
    let directory = temporary("output");
    let [data, jobs, results] = ["data", "jobs.fio", "results"].map(|name| directory.at(name));
    fs::write(&data, vec![7; 1 << 20]).unwrap();
    let job_text = format!("[job]\nioengine=tidelog-posix\nrw=read\nfilename={data}\nsize=64k\n");
    fs::write(&jobs, &job_text).unwrap();
    let to = |path: &str| bench(&[&jobs, &format!("--output={path}")]);
    to(&data).expect(64).says("is also a filename");
    to(&jobs).expect(64).says("is also the job file");
    assert_eq!(fs::read(&data).unwrap(), vec![7; 1 << 20]);
    assert_eq!(fs::read_to_string(&jobs).unwrap(), job_text);
    fs::write(&results, vec![b'x'; 1 << 20]).unwrap();
    to(&results).expect(0);
    assert!(fs::metadata(&results).unwrap().len() < 1 << 20, "old results are replaced");
    to("/dev/full").expect(74).says("/dev/full");
    let logged = directory.at("log_bw.1.log");
    fs::write(&logged, vec![7; 1 << 20]).unwrap();
    let log = |more: &[&str]| {
        let (prefix, name) = (directory.at("log"), format!("--filename={data}"));
        let job = ["--name=job", "--ioengine=tidelog-posix", "--rw=read", "--size=64k", &name];
        bench(&[&job[..], &[&format!("--write_bw_log={prefix}")], more].concat())
    };
    log(&[&format!("--filename={logged}")]).expect(64).says("is also a filename");
    assert_eq!(fs::read(&logged).unwrap(), vec![7; 1 << 20]);
    log(&[&format!("--output={logged}")]).expect(64).says("is also the output");
    let garbage = directory.at("garbage.fio");
    fs::write(&garbage, [0xff; 99]).unwrap();
    bench(&[&garbage]).expect(64).says("this is no text");
    let test = "results_go_to_nothing_that_the_run_is_about";
    let Some(device) = over(test, &data, 0) else { return };
    to(device.node()).expect(64).says("is a block device");
}

#[test]
fn a_standard_output_that_is_full_is_an_error_and_one_that_is_closed_is_not() {
    let directory = temporary("standard");
    let run = |name: &str, out: Stdio| {
        let name = format!("--filename={}", directory.at(name));
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidelog-bench"));
        // Text begins before the run does.
        command.args(&WRITE[..4]).args(["--size=64k", &name]).stdin(Stdio::null()).stdout(out);
        command.output().unwrap().status.code()
    };
    let full = File::options().write(true).open("/dev/full").unwrap();
    assert_eq!(run("full", full.into()), Some(74));
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    assert_eq!(run("closed", writer.into()), Some(0));
}

#[test]
fn numbers_beyond_all_devices_are_refused() {
    let directory = temporary("beyond");
    let path = directory.at("new");
    let name = format!("--filename={path}");
    for options in [
        &["--size=18446744073709551615"][..],
        &["--size=1m", "--offset=18446744073709551615"],
        &["--size=1m", "--offset_increment=9223372036854775808", "--numjobs=3"],
    ] {
        let all = [options, &[&name]].concat();
        write(&all).expect(64).says("beyond the end of every device");
        assert!(!fs::exists(&path).unwrap(), "nothing was made");
    }
    let log = ["--level=log", "--size=18446744073709551615", "--numjobs=3", &name];
    assert_eq!(write(&log).code, 5);
    // Completions carry a file's place in the list in few bits.
    let many: Vec<String> = (0..300).map(|index| directory.at(&index.to_string())).collect();
    let many = format!("--filename={}", many.join(":"));
    write(&["--size=100m", &many]).expect(64).says("at most");
}

#[test]
fn an_interrupted_run_reports_what_it_has_and_leaves_the_pool_clean() {
    let directory = temporary("interrupt");
    let name = format!("--filename={}", directory.at("pool"));
    let log = ["--level=log", "--size=4m", &name];
    let running = Command::new(env!("CARGO_BIN_EXE_tidelog-bench"))
        .args(WRITE)
        .args(log)
        .args(["--time_based", "--runtime=100", "--eta=always"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    thread::sleep(Duration::from_secs(2));
    let pid = running.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let output = running.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(json["jobs"][0]["write"]["total_ios"].as_u64().unwrap() > 0);
    // Nothing holds the pool, and no tensor is left in it.
    let raw = format!("--filename={}", directory.at("pool"));
    write(&[&raw, "--size=1m"]).expect(4).says("0 durable tensor(s)");
}
