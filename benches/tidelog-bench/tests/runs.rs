//! The tool as people run it: loads on files, verification, refusals, exit codes.

mod common;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use common::{bench, over, temporary};
use tidelog_tests::machine::{Ran, skip};

const BLOCK: u64 = 16384;

/// A job on one file of 1 MiB.
fn job<'a>(file: &'a str, more: &[&'a str]) -> Vec<String> {
    let common = ["--name=job", "--bs=16k", "--iodepth=4", "--size=1m", "--output-format=json"];
    let options = common.iter().chain(more).map(|option| (*option).to_owned());
    options.chain([format!("--filename={file}")]).collect()
}

fn run(file: &str, more: &[&str]) -> Ran {
    let options = job(file, more);
    bench(&options.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn every_load_moves_what_it_was_asked_to_on_every_path() {
    let directory = temporary("loads");
    for engine in ["tidelog-uring", "tidelog-posix", "tidelog-sim"] {
        let ioengine = format!("--ioengine={engine}");
        for load in ["read", "write", "rw", "randread", "randwrite", "randrw"] {
            let rw = format!("--rw={load}");
            let file = directory.at(&format!("{engine}-{load}"));
            let json = run(&file, &[&ioengine, &rw]).expect(0).json();
            let moved = |way: &str| json["jobs"][0][way]["io_bytes"].as_u64().unwrap();
            let (read, written) = (moved("read"), moved("write"));
            assert_eq!(read + written, 1 << 20, "{engine} {load}");
            let both = load.ends_with("rw");
            assert_eq!(
                (read > 0, written > 0),
                (both || load.ends_with("read"), both || load.ends_with("write"))
            );
            let path = json["jobs"][0]["tidelog"]["path"][0].as_str().unwrap();
            assert_eq!(path, engine, "the path that was asked for, and no other");
        }
    }
}

#[test]
fn two_files_get_half_each_and_numjobs_all_do_everything() {
    let directory = temporary("files");
    let files = format!("{}:{}", directory.at("a"), directory.at("b"));
    let options = ["--ioengine=tidelog-uring", "--rw=write", "--numjobs=3", "--group_reporting"];
    let json = run(&files, &options).expect(0).json();
    assert_eq!(json["jobs"].as_array().unwrap().len(), 1, "one report for the group");
    assert_eq!(json["jobs"][0]["write"]["io_bytes"], 3 << 20);
    for name in ["a", "b"] {
        assert_eq!(fs::metadata(directory.at(name)).unwrap().len(), 512 << 10);
    }
}

#[test]
fn time_based_jobs_run_for_their_time_and_ramp_time_is_not_counted() {
    let directory = temporary("time");
    let file = directory.at("a");
    let options = [
        "--ioengine=tidelog-posix",
        "--rw=read",
        "--time_based",
        "--runtime=600ms",
        "--ramp_time=200ms",
    ];
    let begun = std::time::Instant::now();
    let json = run(&file, &options).expect(0).json();
    assert!(begun.elapsed().as_millis() >= 800);
    let runtime = json["jobs"][0]["read"]["runtime"].as_u64().unwrap();
    assert!((550..2000).contains(&runtime), "{runtime} ms");
    assert!(json["jobs"][0]["read"]["io_bytes"].as_u64().unwrap() > 1 << 20, "it began again");
}

#[test]
fn a_ramp_that_outlasts_the_job_ends_with_it_and_says_so() {
    let directory = temporary("ramp");
    let options = ["--ioengine=tidelog-posix", "--rw=write", "--ramp_time=1h"];
    let begun = std::time::Instant::now();
    let ran = run(&directory.at("a"), &options).expect(0).says("ramp_time was not over");
    assert!(begun.elapsed().as_secs() < 30, "it did not wait");
    assert_eq!(ran.json()["jobs"][0]["write"]["total_ios"], 0);
}

#[test]
fn many_passes_in_flight_over_few_blocks_are_read_back_as_the_last_one() {
    let directory = temporary("passes");
    for (level, engine) in [("raw", "uring"), ("raw", "posix"), ("log", "uring")] {
        let [level, engine] = [format!("--level={level}"), format!("--ioengine=tidelog-{engine}")];
        let file = directory.at(&format!("{level}{engine}"));
        // 5.5 passes over 4 blocks, and 32 in flight.
        for rw in ["--rw=write", "--rw=randwrite"] {
            let passes = ["--iodepth=32", "--size=64k", "--io_size=352k", "--verify=crc32c", rw];
            let overwrite = format!("--overwrite={file}");
            let raw = if level == "--level=raw" && rw == "--rw=randwrite" {
                &[&overwrite[..]][..]
            } else {
                &[]
            };
            let json =
                run(&file, &[&[&level[..], &engine], &passes[..], raw].concat()).expect(0).json();
            assert_eq!(json["jobs"][0]["write"]["io_bytes"], 352 << 10);
            assert_eq!(json["jobs"][0]["tidelog"]["verified_blocks"], 4);
        }
    }
}

#[test]
fn a_rate_holds_at_every_level_and_path() {
    let directory = temporary("rate");
    for (level, engine) in [("raw", "uring"), ("raw", "posix"), ("log", "uring")] {
        let [level, engine] = [format!("--level={level}"), format!("--ioengine=tidelog-{engine}")];
        let file = directory.at(&format!("{level}{engine}"));
        // 1 MiB at 4 MiB/s by bytes, and at 256 operations of 16 KiB a second, is a quarter of a
        // second.
        for (rate, overwrite) in
            [("--rate=4m", None), ("--rate_iops=,256", Some(format!("--overwrite={file}")))]
        {
            let overwrite = overwrite.filter(|_| level == "--level=raw");
            let more: Vec<&str> = overwrite.as_deref().into_iter().collect();
            let options = [&[&level[..], &engine, "--rw=write", rate], &more[..]].concat();
            let json = run(&file, &options).expect(0).json();
            let write = &json["jobs"][0]["write"];
            assert_eq!(write["io_bytes"], 1 << 20, "{options:?}");
            let runtime = write["runtime"].as_u64().unwrap();
            assert!((230..2000).contains(&runtime), "{options:?}: {runtime} ms");
        }
    }
}

#[test]
fn puts_with_fsync_are_committed_counted_and_deleted_again() {
    let directory = temporary("fsync");
    let options =
        ["--ioengine=tidelog-uring", "--level=log", "--rw=write", "--fsync=20", "--verify=crc32c"];
    let json = run(&directory.at("a"), &options).expect(0).json();
    let job = &json["jobs"][0];
    assert_eq!(job["sync"]["total_ios"], 4, "64 puts: three times 20, and the rest");
    assert!(job["sync"]["lat_ns"]["min"].as_u64().unwrap() > 0);
    assert_eq!(job["tidelog"]["verified_blocks"], 64);
    let raw = ["--ioengine=tidelog-uring", "--rw=write"];
    run(&directory.at("a"), &raw).expect(4).says("0 durable tensor(s)");
    // At the raw level it flushes.
    let json = run(&directory.at("b"), &[&raw[..], &["--fsync=16"]].concat()).expect(0).json();
    assert_eq!(json["jobs"][0]["sync"]["total_ios"], 4);
}

#[test]
fn trims_need_permission_and_empty_what_they_are_pointed_at() {
    let directory = temporary("trim");
    let backing = directory.at("backing");
    fs::write(&backing, vec![7; 1 << 20]).unwrap();
    let trim = ["--ioengine=tidelog-uring", "--rw=trim"];
    let twice = format!("--overwrite={backing}");
    run(&backing, &trim).expect(4).says("it is not blank");
    run(&backing, &[&trim[..], &[&twice]].concat()).expect(1).says("only block devices");
    assert_eq!(fs::read(&backing).unwrap(), vec![7; 1 << 20]);
    let Some(device) = over("trims_need_permission", &backing, 0) else { return };
    let node = device.node();
    let twice = format!("--overwrite={node}");
    run(node, &trim).expect(4);
    let options = [&trim[..], &[&twice, "--rw=randtrim", "--size=512k"]].concat();
    let json = run(node, &options).expect(0).json();
    drop(device);
    assert_eq!(json["jobs"][0]["trim"]["io_bytes"], 512 << 10);
    assert_eq!(json["jobs"][0]["write"]["io_bytes"], 0);
    let left = fs::read(&backing).unwrap();
    assert_eq!(left[..512 << 10], vec![0; 512 << 10]);
    assert_eq!(left[512 << 10..], vec![7; 512 << 10]);
}

#[test]
fn blocks_are_trimmed_and_then_written_as_fio_does() {
    let directory = temporary("trimwrite");
    let backing = directory.at("backing");
    fs::write(&backing, vec![0; 1 << 20]).unwrap();
    let test = "blocks_are_trimmed_and_then_written_as_fio_does";
    let Some(device) = over(test, &backing, 0) else { return };
    let twice = format!("--overwrite={}", device.node());
    for rw in ["trimwrite", "randtrimwrite"] {
        let rw = format!("--rw={rw}");
        for engine in ["--ioengine=tidelog-uring", "--ioengine=tidelog-posix"] {
            let json =
                run(device.node(), &[engine, &rw, &twice, "--io_size=256k"]).expect(0).json();
            let moved = ["trim", "write"].map(|way| json["jobs"][0][way]["io_bytes"].clone());
            assert_eq!(moved, [256 << 10, 256 << 10], "{engine} {rw}");
            let written = fs::read(&backing).unwrap();
            let blocks = written.chunks(BLOCK as usize);
            let whole =
                blocks.clone().filter(|it| it.iter().filter(|byte| **byte != 0).count() > 16_000);
            let empty = blocks.filter(|it| it.iter().all(|byte| *byte == 0)).count();
            assert_eq!((whole.count(), empty), (16, 48), "no write was overtaken by its trim");
            run(device.node(), &[engine, "--rw=trim", &twice]).expect(0);
        }
    }
    run(device.node(), &["--ioengine=tidelog-uring", "--rw=trimwrite", "--verify=crc32c"])
        .expect(64);
    let words = ["--name=job", "--rw=trimwrite", "--bs=16k", "--size=1m", "--io_size=256k"];
    let mut fio = std::process::Command::new("fio");
    fio.args(words).args(["--ioengine=psync", "--output-format=json"]);
    if std::process::Command::new("fio").arg("--version").output().is_err() {
        return skip(test, "fio is not installed");
    }
    let ran = Ran::of(fio.arg(format!("--filename={}", device.node()))).expect(0);
    let json: serde_json::Value =
        serde_json::from_str(&ran.out[ran.out.find('{').unwrap()..]).unwrap();
    let moved = ["trim", "write"].map(|way| json["jobs"][0][way]["io_bytes"].clone());
    assert_eq!(moved, [256 << 10, 256 << 10]);
}

#[test]
fn results_so_far_come_every_interval_and_the_last_has_all() {
    let directory = temporary("status");
    let results = directory.at("results");
    fs::write(&results, vec![b'x'; 1 << 20]).unwrap();
    for level in ["raw", "log"] {
        let (level, output) = (format!("--level={level}"), format!("--output={results}"));
        let time = [
            "--time_based",
            "--runtime=1",
            "--status-interval=200ms",
            "--rw=write",
            &level,
            &output,
        ];
        run(&directory.at(&level), &[&["--ioengine=tidelog-posix"], &time[..]].concat()).expect(0);
        let text = fs::read_to_string(&results).unwrap();
        let documents = serde_json::Deserializer::from_str(&text).into_iter::<serde_json::Value>();
        let ios: Vec<u64> = documents
            .map(|it| it.unwrap()["jobs"][0]["write"]["total_ios"].as_u64().unwrap())
            .collect();
        assert!(ios.len() >= 3 && ios.is_sorted() && ios[ios.len() - 1] > 0, "{ios:?}");
    }
}

#[test]
fn the_disk_under_a_file_is_reported_with_what_it_did() {
    let directory = temporary("disk");
    let json =
        run(&directory.at("a"), &["--ioengine=tidelog-uring", "--rw=write"]).expect(0).json();
    let Some(disk) = json["disk_util"].get(0) else {
        return skip("the_disk_under_a_file", "it lies on no block device");
    };
    assert!(disk["write_ios"].as_u64().unwrap() > 0, "{disk}");
    assert!((0.0..=100.0).contains(&disk["util"].as_f64().unwrap()), "{disk}");
}

#[test]
fn a_flipped_a_stale_and_a_misplaced_block_are_reported_by_file_and_offset() {
    let directory = temporary("verify");
    let file = directory.at("a");
    let stamped = ["--ioengine=tidelog-uring", "--rw=randwrite", "--verify=crc32c"];
    let json = run(&file, &stamped).expect(0).json();
    assert_eq!(json["jobs"][0]["tidelog"]["verified_blocks"], 64, "do_verify reads all back");
    let read = ["--ioengine=tidelog-uring", "--rw=read", "--verify=crc32c"];
    run(&file, &read).expect(0);

    let device = File::options().read(true).write(true).open(&file).unwrap();
    let mut block = vec![0; BLOCK as usize];
    device.read_exact_at(&mut block, 3 * BLOCK).unwrap();
    let flipped = block[5000] ^ 1;
    device.write_all_at(&[flipped], 3 * BLOCK + 5000).unwrap();
    let place = format!("bad block at byte {} of {file}", 3 * BLOCK);
    run(&file, &read).expect(2).says(&place).says("crc32c expected 0x");

    device.write_all_at(&block, 3 * BLOCK).unwrap();
    device.write_all_at(&block, 7 * BLOCK).unwrap();
    let place = format!("bad block at byte {} of {file}", 7 * BLOCK);
    run(&file, &read).expect(2).says(&place).says("place expected 0x1c000, found 0xc000");

    device.write_all_at(&vec![0; BLOCK as usize], 9 * BLOCK).unwrap();
    let json = run(&file, &read).expect(2).json();
    assert_eq!(json["jobs"][0]["tidelog"]["bad_blocks"], 2);
    let fatal = [&read[..], &["--verify_fatal=1", "--iodepth=1"]].concat();
    let json = run(&file, &fatal).expect(2).json();
    assert_eq!(json["jobs"][0]["tidelog"]["bad_blocks"], 1, "the first one ends the job");
}

/// Checks a file that shrinks, as a drive that is pulled out looks like to a reader, on a machine
/// without one to pull.
#[test]
fn a_device_that_goes_away_under_a_run_ends_it_and_is_named() {
    let directory = temporary("gone");
    for (engine, level) in
        [("tidelog-uring", "raw"), ("tidelog-posix", "raw"), ("tidelog-uring", "log")]
    {
        let file = directory.at(&format!("{engine}-{level}"));
        let (ioengine, level) = (format!("--ioengine={engine}"), format!("--level={level}"));
        run(&file, &[&ioengine, &level, "--rw=write"]).expect(0);
        let options = ["--rw=read", "--time_based", "--runtime=20", "--rate=20m"];
        let shrinking = std::thread::spawn({
            let file = file.clone();
            move || {
                std::thread::sleep(std::time::Duration::from_millis(700));
                File::options().write(true).open(file).unwrap().set_len(0).unwrap();
            }
        });
        let begun = std::time::Instant::now();
        let ran = run(&file, &[&options[..], &[&ioengine, &level]].concat()).expect(1);
        shrinking.join().unwrap();
        assert!(ran.err.contains(&file), "{}", ran.err);
        assert!(begun.elapsed().as_secs() < 15, "it ended with the device, not with its time");
    }
}

#[test]
fn what_holds_data_is_written_only_if_it_is_named_twice() {
    let directory = temporary("refused");
    let file = directory.at("photo");
    fs::write(&file, vec![7; 1 << 20]).unwrap();
    let write = ["--ioengine=tidelog-uring", "--rw=write"];
    run(&file, &write).expect(4).says("it is not blank").says("--overwrite");
    assert_eq!(fs::read(&file).unwrap(), vec![7; 1 << 20], "nothing was written");
    run(&file, &["--ioengine=tidelog-uring", "--rw=read"]).expect(0);
    let other = [&write[..], &["--overwrite=other"]].concat();
    run(&file, &other).expect(64).says("letter for letter");
    let twice = format!("--overwrite={file}");
    run(&file, &[&write[..], &[&twice]].concat()).expect(0);
    assert_ne!(fs::read(&file).unwrap(), vec![7; 1 << 20]);
    // The same for the log: no pool is made of what holds something else.
    run(&file, &["--ioengine=tidelog-uring", "--rw=write", "--level=log"]).expect(4);
}

#[test]
fn a_file_that_an_earlier_job_of_the_run_made_may_be_written_by_a_later_one() {
    let directory = temporary("two-jobs");
    let text = format!(
        "[global]\nioengine=tidelog-uring\nfilename={}\nsize=1m\nbs=16k\niodepth=4\nverify=crc32c\n\
         [write]\nrw=write\n[again]\nstonewall\nrw=randwrite\n[read]\nstonewall\nrw=read\n",
        directory.at("a")
    );
    fs::write(directory.at("jobs.fio"), text).unwrap();
    let json = bench(&[&directory.at("jobs.fio"), "--output-format=json"]).expect(0).json();
    let jobs = json["jobs"].as_array().unwrap();
    let names: Vec<&str> = jobs.iter().map(|job| job["jobname"].as_str().unwrap()).collect();
    assert_eq!(names, ["write", "again", "read"]);
    let groups: Vec<u64> = jobs.iter().map(|job| job["groupid"].as_u64().unwrap()).collect();
    assert_eq!(groups, [0, 1, 2]);
}

#[test]
fn tensors_are_put_and_got_and_the_pool_keeps_none_of_them() {
    let directory = temporary("log");
    let devices = format!("{}:{}", directory.at("a"), directory.at("b"));
    let log = [
        "--level=log",
        "--ioengine=tidelog-uring",
        "--bssplit=4000/50:100000/50",
        "--verify=crc32c",
    ];
    for (load, way) in [("randwrite", "write"), ("randread", "read")] {
        let rw = format!("--rw={load}");
        let json = run(&devices, &[&log[..], &[&rw]].concat()).expect(0).json();
        let job = &json["jobs"][0];
        assert!(job[way]["io_bytes"].as_u64().unwrap() > 900_000);
        let verified = job["tidelog"]["verified_blocks"].as_u64().unwrap();
        assert_eq!(verified, job[way]["total_ios"].as_u64().unwrap(), "{load}");
        assert!(verified >= 10);
    }
    // Two jobs of one run share the pool that the first of them finds missing.
    let fresh = format!("--filename={}", directory.at("c"));
    let all = ["--level=log", "--ioengine=tidelog-posix", "--bs=10000", "--size=1m", &fresh];
    let jobs = ["--name=first", "--rw=write", "--name=second", "--rw=read", "--stonewall"];
    bench(&[&all[..], &jobs].concat()).expect(0);
    let sim = ["--level=log", "--ioengine=tidelog-sim", "--rw=randrw", "--bs=10000"];
    run("a:b", &sim).expect(0);
}

#[test]
fn reports_say_how_many_cores_were_busy_and_what_each_of_them_moved() {
    let directory = temporary("cores");
    let devices = format!("{}:{}", directory.at("a"), directory.at("b"));
    for reactors in ["--reactors=1", "--reactors=2"] {
        let log = ["--ioengine=tidelog-uring", "--level=log", "--rw=write", reactors];
        let sizes = ["--bs=1m", "--size=16m", "--io_size=256m"];
        let json = run(&devices, &[&log[..], &sizes].concat()).expect(0).json();
        let job = &json["jobs"][0];
        let number = |value: &serde_json::Value| value.as_f64().unwrap();
        let own = &job["tidelog"];
        let seconds = number(&own["usr_cpu_seconds"]) + number(&own["sys_cpu_seconds"]);
        assert!(number(&own["cores"]) > 0.0, "{own}");
        let moved = number(&own["bytes_per_core_second"]) * seconds;
        let bytes = number(&job["write"]["io_bytes"]);
        assert!((moved / bytes - 1.0).abs() < 1e-6, "{moved} of {bytes}");
    }
    let normal =
        ["--name=job", "--ioengine=tidelog-sim", "--rw=write", "--size=1m", "--filename=a"];
    let text = bench(&normal).expect(0).out;
    assert!(text.contains("  cores        : ") && text.contains("B/s for each"), "{text}");
    run("a", &["--ioengine=tidelog-sim", "--reactors=0"]).expect(64).says("reactors");
}

#[test]
fn a_pool_on_block_devices_is_used_again_and_protected_from_raw_jobs() {
    let directory = temporary("loop");
    let backing = directory.at("backing");
    File::create(&backing).unwrap().set_len(64 << 20).unwrap();
    let test = "a_pool_on_block_devices_is_used_again_and_protected_from_raw_jobs";
    let Some(device) = over(test, &backing, 0) else { return };
    let log = ["--ioengine=tidelog-uring", "--rw=write", "--level=log"];
    let codes = [&log[..], &log[..], &log[..2]].map(|options| run(device.node(), options).code);
    assert_eq!(codes, [0, 0, 4], "made, used again, refused");
}

#[test]
fn options_that_make_no_sense_are_refused_with_what_to_do() {
    for (options, what) in [
        (&["--ioengine=libaio", "--rw=read"][..], "use tidelog-posix here"),
        (&["--ioengine=tidelog-gds"], "memory of a GPU, which is not measured here"),
        (&["--rw=read"], "no ioengine"),
        (&["--ioengine=tidelog-uring", "--bs=4KiB"], "write 4k"),
        (&["--ioengine=tidelog-uring", "--time_based"], "runtime"),
        (&["--ioengine=tidelog-uring", "--rw=randrw", "--verify=crc32c"], "as two jobs"),
        (&["--ioengine=tidelog-uring", "--size=8k"], "blocks of up to"),
        (&["--ioengine=tidelog-uring", "--numa_cpu_nodes=4000", "--size=1m"], "no node 4000"),
        (&["--ioengine=tidelog-uring", "--numa_cpu_nodes=0", "--cpus_allowed=0"], "give one"),
        (&["--ioengine=tidelog-uring", "--rate=1,2,3,4"], "rate"),
    ] {
        run("/var/tmp/tidelog-bench-nothing-is-made-here", options).expect(64).says(what);
        // What only the job's own thread finds out comes after its file was made.
        if options.contains(&"--size=8k") || options.contains(&"--numa_cpu_nodes=4000") {
            fs::remove_file("/var/tmp/tidelog-bench-nothing-is-made-here").unwrap();
        }
    }
    bench(&[]).expect(64).says("there is no job");
}

#[test]
fn help_and_completions_name_every_option() {
    let help = bench(&["--help"]).expect(0).out;
    let completions = bench(&["--completions=bash"]).expect(0).out;
    for spec in tidelog_bench::option::OPTIONS {
        let option = format!("--{}", spec.name);
        assert!(help.contains(&option) && completions.contains(&option), "{option}");
    }
}
