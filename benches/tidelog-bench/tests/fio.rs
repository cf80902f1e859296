//! Tests of fio, and of tools made for fio, with our words and our JSON.

mod common;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use common::{bench, temporary};
use serde_json::Value;
use tidelog_tests::machine::{Ran, skip};

/// A job in words that fio and we share.
fn shared(file: &str) -> Vec<String> {
    let words = ["--name=job", "--rw=randrw", "--bs=16k", "--iodepth=4", "--size=1m", "--direct=1"];
    let more = [
        "--group_reporting",
        "--lat_percentiles=1",
        "--percentile_list=50:99:99.9",
        "--description=x",
    ];
    let words = words.into_iter().chain(more).map(str::to_owned);
    words.chain([format!("--filename={file}")]).collect()
}

/// fio's own report of that job; `None`, said out loud, where there is no fio.
fn fio(test: &str, file: &str, format: &str) -> Option<String> {
    let mut command = Command::new("fio");
    command.args(shared(file)).args(["--ioengine=psync", &format!("--output-format={format}")]);
    if Command::new("fio").arg("--version").output().is_err() {
        skip(test, "fio is not installed");
        return None;
    }
    let ran = Ran::of(&mut command).expect(0);
    // Notes come before the report.
    let start = if format == "json" { ran.out.find('{') } else { ran.out.find("3;") };
    Some(ran.out[start.unwrap()..].to_owned())
}

fn ours(file: &str, format: &str) -> String {
    let words = shared(file);
    let format = format!("--output-format={format}");
    let engine = ["--ioengine=tidelog-uring", &format];
    bench(&words.iter().map(String::as_str).chain(engine).collect::<Vec<_>>()).expect(0).out
}

/// Every key, with those above it. Keys that are data (percentiles) are left as they are.
fn keys(value: &Value, above: &str, found: &mut BTreeSet<(String, &'static str)>) {
    let kind = match value {
        Value::Object(_) => "object",
        Value::Array(_) => "array",
        Value::String(_) => "string",
        Value::Number(_) => "number",
        Value::Bool(_) | Value::Null => "other",
    };
    found.insert((above.to_owned(), kind));
    match value {
        Value::Object(members) => {
            for (key, value) in members {
                keys(value, &format!("{above}/{key}"), found);
            }
        }
        Value::Array(members) => {
            for value in members {
                keys(value, &format!("{above}[]"), found);
            }
        }
        _ => {}
    }
}

#[test]
fn our_json_has_the_keys_and_kinds_of_fios() {
    let directory = temporary("keys");
    let Some(theirs) = fio("our_json_has_the_keys_and_kinds_of_fios", &directory.at("fio"), "json")
    else {
        return;
    };
    let ours = ours(&directory.at("ours"), "json");
    let [theirs, ours] = [&theirs, &ours].map(|text| {
        let mut found = BTreeSet::new();
        keys(&serde_json::from_str(text).unwrap(), "", &mut found);
        found
    });
    // What fio has no word for stands under one key; options are the caller's.
    let is_ours = |key: &str| key.starts_with("/jobs[]/tidelog") || key.contains("options/");
    let invented: Vec<_> = ours.difference(&theirs).filter(|(key, _)| !is_ours(key)).collect();
    assert!(invented.is_empty(), "fio does not have {invented:?}");
    let is_left_out = |key: &str| key.contains("options/");
    let missing: Vec<_> = theirs.difference(&ours).filter(|(key, _)| !is_left_out(key)).collect();
    assert!(missing.is_empty(), "fio has {missing:?}");
}

#[test]
fn our_terse_lines_have_fios_fields() {
    let directory = temporary("terse");
    let Some(theirs) = fio("our_terse_lines_have_fios_fields", &directory.at("fio"), "terse")
    else {
        return;
    };
    let ours = ours(&directory.at("ours"), "terse");
    // A field is a number, a percentage, or a percentile and its value.
    let shape = |text: &str| -> Vec<String> {
        let fields = text.trim().split(';').map(|field| {
            let mut shape: String =
                field.chars().map(|c| if c.is_ascii_digit() { '9' } else { c }).collect();
            while shape.contains("99") {
                shape = shape.replace("99", "9");
            }
            shape
        });
        fields.collect()
    };
    let (theirs, ours) = (shape(&theirs), shape(&ours));
    // Version and engine differ; after the last latency come fio's disks, and a description.
    for (index, (theirs, ours)) in theirs.iter().zip(&ours).enumerate().skip(2) {
        assert_eq!(theirs, ours, "field {index}");
    }
    assert!(ours.len() > 120 && theirs.len() >= ours.len());
}

#[test]
fn a_parser_that_others_wrote_reads_our_json() {
    const TEST: &str = "a_parser_that_others_wrote_reads_our_json";
    let directory = temporary("parser");
    // Where `make setup` installs it.
    let fio_plot = concat!(env!("CARGO_MANIFEST_DIR"), "/../../.venv/bin/fio-plot");
    if !Path::new(fio_plot).exists() {
        return skip(TEST, "fio-plot is not installed; `make setup` installs it");
    }
    // fio-plot wants one result for each number of jobs and each depth, named after them.
    let results = directory.at("results");
    std::fs::create_dir(&results).unwrap();
    for depth in [1, 4] {
        let json = bench(&[
            "--name=job",
            "--rw=randread",
            "--bs=4k",
            "--size=1m",
            "--ioengine=tidelog-uring",
            "--group_reporting",
            "--numjobs=1",
            &format!("--iodepth={depth}"),
            &format!("--filename={}", directory.at("data")),
            "--output-format=json",
        ]);
        std::fs::write(
            Path::new(&results).join(format!("randread-{depth}-1.json")),
            json.expect(0).out,
        )
        .unwrap();
        write_logs(&results, depth, &directory.at("data"));
    }
    let picture = directory.at("picture.png");
    let plot = [
        "-i", &results, "-T", "ours", "-r", "randread", "-l", "-d", "1", "4", "-n", "1", "-o",
        &picture,
    ];
    Ran::of(Command::new(fio_plot).args(plot)).expect(0);
    assert!(std::fs::metadata(&picture).unwrap().len() > 10_000, "it drew our figures");
    for kind in ["bw", "iops", "lat"] {
        let picture = directory.at(&format!("{kind}.png"));
        let plot = [
            "-i", &results, "-T", "ours", "-r", "randread", "-g", "-t", kind, "-d", "1", "4", "-n",
            "1", "-o", &picture,
        ];
        Ran::of(Command::new(fio_plot).args(plot)).expect(0);
        assert!(std::fs::metadata(&picture).unwrap().len() > 10_000, "it drew our {kind} log");
    }
}

/// A second of reads with logs, named as fio-plot wants them.
fn write_logs(results: &str, depth: u32, file: &str) {
    let prefix = format!("{results}/randread-iodepth-{depth}-numjobs-1");
    let logs = ["bw", "iops", "lat"].map(|kind| format!("--write_{kind}_log={prefix}"));
    let [depth, file] = [format!("--iodepth={depth}"), format!("--filename={file}")];
    let job = ["--name=job", "--rw=randread", "--bs=4k", "--size=1m", "--ioengine=tidelog-uring"];
    let time = ["--time_based", "--runtime=1", "--log_avg_msec=100", &depth, &file];
    bench(&[&job[..], &time, &logs.each_ref().map(String::as_str)].concat()).expect(0);
}

/// Runs a mix of two jobs with every log, in fio or here; returns the logs by name, and the report.
fn logged(mut program: Command, engine: &str, directory: &str, more: &[&str]) -> (Logs, Value) {
    std::fs::create_dir(directory).unwrap();
    let logs = ["bw", "iops", "lat"].map(|kind| format!("--write_{kind}_log={directory}/log"));
    let words = ["--name=job", "--rw=randrw", "--bs=16k", "--size=1m", "--direct=1", "--numjobs=2"];
    program.args(words).args(more).args(logs).args([
        &format!("--ioengine={engine}"),
        &format!("--filename={directory}/data"),
        "--output-format=json",
    ]);
    let ran = Ran::of(&mut program).expect(0);
    let report = serde_json::from_str(&ran.out[ran.out.find('{').unwrap()..]).unwrap();
    let files = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
    let logs = files.filter(|it| it.file_name() != "data").map(|it| {
        let text = std::fs::read_to_string(it.path()).unwrap();
        let number = |field: &str| field.trim().parse::<u64>().expect("every field is a number");
        let lines = text.lines().map(|line| line.split(',').map(number).collect());
        (it.file_name().into_string().unwrap(), lines.collect())
    });
    (logs.collect(), report)
}

/// Returns the logs of a run of a second in windows, of another run where the disk was so busy with
/// other programs that there are too few.
fn in_windows(
    program: impl Fn() -> Command,
    engine: &str,
    directory: impl Fn(u32) -> String,
) -> Logs {
    let windows = ["--time_based", "--runtime=1", "--log_avg_msec=200"];
    let run = |attempt| logged(program(), engine, &directory(attempt), &windows).0;
    let has_enough = |logs: &Logs| logs.values().all(|log| log.len() >= 4);
    (0..4).map(run).find(has_enough).unwrap_or_else(|| run(4))
}

type Logs = std::collections::BTreeMap<String, Vec<Vec<u64>>>;

#[test]
fn our_logs_over_time_are_fios() {
    let directory = &temporary("logs");
    let ours = || Command::new(env!("CARGO_BIN_EXE_tidelog-bench"));
    let at = |name: &'static str| move |attempt| directory.at(&format!("{name}-{attempt}"));
    let logs = in_windows(ours, "tidelog-uring", at("windows"));
    let (single, report) = logged(ours(), "tidelog-posix", &directory.at("single"), &[]);
    if Command::new("fio").arg("--version").output().is_err() {
        skip("our_logs_over_time_are_fios", "fio is not installed");
    } else {
        let fio = || Command::new("fio");
        let theirs = in_windows(fio, "libaio", at("fio"));
        assert!(theirs.keys().eq(logs.keys()), "{:?} {:?}", theirs.keys(), logs.keys());
        for log in [&theirs, &logs].into_iter().flat_map(|logs| logs.values()) {
            // Three to five windows, each with reads and writes; their fields are the same.
            assert!((4..=10).contains(&log.len()), "{log:?}");
            assert!(log.iter().all(|line| line.len() == 5 && line[3..] == [0, 0]), "{log:?}");
            assert!(log.is_sorted_by_key(|line| line[0]) && log[0][0] >= 190, "{log:?}");
            assert!(log.iter().any(|line| line[2] == 0) && log.iter().any(|line| line[2] == 1));
        }
        let (theirs, _) = logged(fio(), "libaio", &directory.at("fio-single"), &[]);
        let bytes = |logs: &Logs| logs["log_clat.1.log"].iter().map(|line| line[3]).sum::<u64>();
        assert_eq!([&theirs, &single].map(bytes), [1 << 20; 2], "each operation has a line");
    }
    for (bandwidth, iops) in logs["log_bw.1.log"].iter().zip(&logs["log_iops.1.log"]) {
        assert!((iops[1] * 16).abs_diff(bandwidth[1]) <= 16, "{bandwidth:?} {iops:?}");
    }
    let [slat, clat, lat] = ["slat", "clat", "lat"].map(|it| &single[&format!("log_{it}.2.log")]);
    for ((slat, clat), lat) in slat.iter().zip(clat).zip(lat) {
        assert_eq!(slat[1] + clat[1], lat[1]);
    }
    let total = |way: &str| report["jobs"][1][way]["total_ios"].as_u64().unwrap();
    assert_eq!(lat.len() as u64, total("read") + total("write"));
}

#[test]
fn sizes_by_weight_are_drawn_as_fio_draws_them() {
    let directory = temporary("split");
    let words = |name: &str| {
        let more = [
            "--name=job",
            "--rw=randread",
            "--size=64m",
            "--io_size=32m",
            "--direct=1",
            "--norandommap",
        ];
        let file = format!("--filename={}", directory.at(name));
        let more = more.into_iter().chain(["--bssplit=4k/60:16k/:64k/10", "--output-format=json"]);
        more.map(str::to_owned).chain([file]).collect::<Vec<_>>()
    };
    if Command::new("fio").arg("--version").output().is_err() {
        return skip("sizes_by_weight_are_drawn_as_fio_draws_them", "fio is not installed");
    }
    let theirs =
        Ran::of(Command::new("fio").args(words("fio")).arg("--ioengine=psync")).expect(0).out;
    let ours = words("ours");
    let ours: Vec<&str> =
        ours.iter().map(String::as_str).chain(["--ioengine=tidelog-posix"]).collect();
    let ours = bench(&ours).expect(0).out;
    // A weight is a part of the operations, not of the bytes: 60 % of 4k, 30 of 16k, 10 of 64k.
    let expected = 0.6 * 4.0 + 0.3 * 16.0 + 0.1 * 64.0;
    for text in [&theirs[theirs.find('{').unwrap()..], &ours] {
        let json: Value = serde_json::from_str(text).unwrap();
        let read = &json["jobs"][0]["read"];
        let each =
            read["io_bytes"].as_f64().unwrap() / read["total_ios"].as_f64().unwrap() / 1024.0;
        assert!((each / expected - 1.0).abs() < 0.1, "{each} KiB, and {expected} by the weights");
    }
}

/// The blocks that a job reads, in order: fio's by its log of operations, ours by that of
/// bandwidth. Where time decides ours ends after so many, as no machine is too slow for then.
fn visited(test: &str, words: &[&str], size: &str, count: u32) -> Option<[Vec<u64>; 2]> {
    let directory = temporary("visited");
    let [data, log] = ["data", "log"].map(|name| directory.at(name));
    let size = format!("--size={size}");
    let job = ["--name=job", "--rw=randread", "--bs=4k", &size, "--filename", &data];
    let job = [&job[..], words].concat();
    let (prefix, count) = (format!("--write_bw_log={log}"), format!("--number_ios={count}"));
    let ours = ["--ioengine=tidelog-sim", "--runtime=1000", &count, "--log_offset=1", &prefix];
    bench(&[&job[..], &ours].concat()).expect(0);
    let mut fio = Command::new("fio");
    fio.args(&job).args(["--ioengine=psync", &format!("--write_iolog={log}")]);
    if Command::new("fio").arg("--version").output().is_err() {
        skip(test, "fio is not installed");
        return None;
    }
    Ran::of(&mut fio).expect(0);
    let blocks = |file: &str, separator: &str, field: usize| -> Vec<u64> {
        let said = std::fs::read_to_string(file).unwrap();
        let fields = said.lines().map(|line| line.split(separator).collect::<Vec<_>>());
        let is_read = |fields: &Vec<&str>| separator == ", " || fields.get(2) == Some(&"read");
        let offset = |fields: Vec<&str>| fields[field].parse::<u64>().unwrap() / 4096;
        fields.filter(is_read).map(offset).collect()
    };
    Some([blocks(&log, " ", 3), blocks(&format!("{log}_bw.1.log"), ", ", 4)])
}

#[test]
fn a_pass_repeats_the_one_before_only_where_fios_does() {
    const TEST: &str = "a_pass_repeats_the_one_before_only_where_fios_does";
    const BLOCKS: usize = 64;
    let timed = ["--time_based", "--runtime=300ms"];
    for words in [
        &timed[..],
        &[&timed[..], &["--norandommap"]].concat(),
        &[&timed[..], &["--random_generator=lfsr"]].concat(),
        &[&timed[..], &["--random_distribution=zipf:1.1"]].concat(),
        &[&timed[..], &["--random_distribution=pareto:0.2"]].concat(),
        &[&timed[..], &["--random_distribution=normal:20"]].concat(),
        &["--loops=3"],
        &["--loops=3", "--randrepeat=0"],
        &["--loops=3", "--norandommap"],
        &["--loops=3", "--random_distribution=zipf:1.1"],
        &["--io_size=768k"],
    ] {
        let Some(both) = visited(TEST, words, "256k", 192) else { return };
        let [theirs, ours] = both.each_ref().map(|blocks| {
            let mut passes = blocks.chunks_exact(BLOCKS);
            let [first, second] = [passes.next().unwrap(), passes.next().unwrap()];
            let distinct = |pass: &[u64]| pass.iter().collect::<BTreeSet<_>>().len() == BLOCKS;
            (first == second, distinct(first), distinct(second))
        });
        assert_eq!(ours, theirs, "{words:?}: same pass again, all blocks in the first, the second");
    }
}

#[test]
fn a_skewed_job_touches_as_many_blocks_as_fios() {
    const TEST: &str = "a_skewed_job_touches_as_many_blocks_as_fios";
    // Not normal, which fio spreads over the range by a hash, and ours has around the middle.
    for kind in ["zipf:1.1", "pareto:0.2"] {
        let kind = format!("--random_distribution={kind}");
        let words = ["--time_based", "--runtime=1", &kind];
        let Some(both) = visited(TEST, &words, "4m", 4096) else { return };
        // Four passes' worth, of both the same.
        let count = both.iter().map(Vec::len).min().unwrap().min(4096);
        assert!(count > 2048, "{count} operations are less than two passes and more");
        let touched = both.map(|blocks| blocks[..count].iter().collect::<BTreeSet<_>>().len());
        assert!(touched[0].abs_diff(touched[1]) * 10 < touched[0], "{kind}: {touched:?}");
    }
}
