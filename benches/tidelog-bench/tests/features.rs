//! fio's options, each in a small job file of its own: what they do shows in what was moved, and
//! where.

mod common;

use std::fs;
use std::process::Command;

use common::{bench, temporary};
use serde_json::Value;
use tidelog_tests::machine::{Directory, Ran, skip};

/// Options that all of these jobs have in common. By the page cache, since nothing here is about
/// how fast it is.
const GLOBAL: &str = "[global]\nioengine=tidelog-posix\nbuffered=1\nsize=1m\nbs=16k\n";

/// Runs a job file in a directory of its own; its relative names stand there.
fn run(directory: &Directory, text: &str) -> Ran {
    let file = directory.at("job.fio");
    fs::write(&file, format!("{GLOBAL}{text}")).unwrap();
    run_file(directory, &[&file])
}

fn run_file(directory: &Directory, words: &[&str]) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidelog-bench"));
    Ran::of(command.current_dir(directory.at("")).args(words))
}

fn jobs(directory: &Directory, text: &str) -> Vec<Value> {
    let file = directory.at("job.fio");
    fs::write(&file, format!("{GLOBAL}{text}")).unwrap();
    run_file(directory, &[&file, "--output-format=json"]).expect(0).json()["jobs"]
        .as_array()
        .unwrap()
        .clone()
}

fn ios(job: &Value) -> u64 {
    ["read", "write", "trim"].iter().map(|way| job[way]["total_ios"].as_u64().unwrap()).sum()
}

/// The offsets in a log of bandwidth, in blocks of 16 KiB.
fn blocks(directory: &Directory, log: &str) -> Vec<u64> {
    let text = fs::read_to_string(directory.at(log)).unwrap();
    let field = |line: &str| line.split(", ").nth(4).unwrap().parse::<u64>().unwrap() / 16384;
    text.lines().map(field).collect()
}

const LOG: &str = "write_bw_log=log\nlog_offset=1\n";

#[test]
fn files_have_fios_names_in_the_directory_that_is_named() {
    let directory = temporary("names");
    fs::create_dir(directory.at("in")).unwrap();
    let found = jobs(
        &directory,
        "[a]\nrw=write\ndirectory=in\nnumjobs=2\nnrfiles=2\n[b]\nrw=write\nfilename=own\ndirectory=in\n",
    );
    assert_eq!(found.len(), 3, "each of numjobs");
    for (name, bytes) in
        [("a.0.0", 512), ("a.0.1", 512), ("a.1.0", 512), ("a.1.1", 512), ("own", 1024)]
    {
        let file = fs::metadata(directory.at(&format!("in/{name}")));
        assert_eq!(file.unwrap().len(), bytes << 10, "{name}");
    }
    let sized = jobs(&directory, "[c]\nrw=write\nfilesize=64k\nsize=1m\nnrfiles=2\n");
    assert_eq!(fs::metadata(directory.at("c.0.1")).unwrap().len(), 64 << 10);
    assert_eq!(ios(&sized[0]), 64, "size is what is moved");
    let refused = run(&directory, "[d]\nrw=read\nallow_file_create=0\n").expect(64);
    refused.says("d.0.0 does not exist, and allow_file_create is 0");
    assert!(fs::metadata(directory.at("d.0.0")).is_err());
}

#[test]
fn a_job_that_waits_for_another_finds_all_that_it_wrote() {
    let directory = temporary("waits");
    let text = "verify=crc32c\nfilename=data\n[writer]\nrw=randwrite\ndo_verify=0\nstartdelay=100ms\n\
                [reader]\nrw=read\nwait_for=writer\n";
    let found = jobs(&directory, text);
    assert_eq!(found[1]["tidelog"]["verified_blocks"], 64);
    run(&directory, "[reader]\nrw=read\nwait_for=nobody\n")
        .expect(64)
        .says("no job before this one");
}

#[test]
fn a_job_that_ends_ends_others_and_groups_are_reported_apart() {
    let directory = temporary("exitall");
    let endless = "time_based\nruntime=1000\n";
    let text = format!(
        "group_reporting\nexitall\n[short]\nrw=write\nexit_what=stonewall\n[long]\nnew_group\nrw=write\nnumjobs=2\n{endless}\
         [after]\nstonewall\nrw=write\nexit_what=all\n[beside]\nrw=write\n{endless}[never]\nstonewall\nrw=write\n"
    );
    let found = jobs(&directory, &text);
    let told: Vec<_> = found
        .iter()
        .map(|job| (job["jobname"].as_str().unwrap(), job["groupid"].as_u64().unwrap()))
        .collect();
    assert_eq!(told, [("short", 0), ("long", 1), ("after", 2)], "after and beside are one group");
}

#[test]
fn a_job_that_thinks_has_no_more_in_flight_than_comes_between() {
    let directory = temporary("thinks");
    let text = "[a]\nrw=randread\niodepth=32\nthinktime=500\nthinktime_blocks=4\nnumber_ios=42\n";
    let found = &jobs(&directory, text)[0];
    assert_eq!(ios(found), 42);
    let levels = &found["iodepth_level"];
    assert_eq!(
        (&levels["8"], &levels["16"], &levels["32"]),
        (&0.0.into(), &0.0.into(), &0.0.into())
    );
}

#[test]
fn jobs_of_a_flow_share_their_operations_by_weight() {
    let directory = temporary("flow");
    let text = "time_based\nruntime=1000\nexitall\n[light]\nrw=read\nflow=1\n\
                [heavy]\nrw=read\nflow=8\nnumber_ios=1600\nflow_sleep=100\n";
    let found = jobs(&directory, text);
    let (light, heavy) = (ios(&found[0]), ios(&found[1]));
    assert_eq!(heavy, 1600);
    // What the light one does after the other is over it does alone, and that is not long.
    assert!((200..1600).contains(&light), "{light} of 200");
}

#[test]
fn what_comes_between_operations_is_left_out_or_leads_backwards() {
    let directory = temporary("offsets");
    let found = jobs(&directory, "[a]\nrw=write:48k\nsize=1m\nio_size=256k\nfilename=holes\n");
    assert_eq!(ios(&found[0]), 16);
    let bytes = fs::read(directory.at("holes")).unwrap();
    for (block, content) in bytes.chunks(16384).enumerate() {
        let is_written = content.iter().any(|byte| *byte != 0);
        assert_eq!(is_written, block % 4 == 0, "block {block}");
    }
    jobs(&directory, &format!("[b]\nrw=read:-32k\nio_size=160k\nsize=160k\n{LOG}"));
    let ours = blocks(&directory, "log_bw.1.log");
    assert_eq!(ours, [0, 8, 7, 6, 5, 4, 3, 2, 1, 0]);
    if Command::new("fio").arg("--version").output().is_err() {
        return skip(
            "what_comes_between_operations_is_left_out_or_leads_backwards",
            "fio is not installed",
        );
    }
    let fios =
        "[b]\nrw=read:-32k\nsize=160k\nbs=16k\nwrite_bw_log=fio\nlog_offset=1\nfilename=theirs\n";
    fs::write(directory.at("fio.fio"), fios).unwrap();
    Ran::of(Command::new("fio").current_dir(directory.at("")).arg("fio.fio")).expect(0);
    assert_eq!(blocks(&directory, "fio_bw.1.log"), ours);
}

#[test]
fn zones_are_skipped_and_random_operations_go_where_they_are_told() {
    let directory = temporary("zones");
    jobs(
        &directory,
        &format!("[a]\nrw=read\nzonemode=strided\nzonesize=32k\nzoneskip=96k\nio_size=128k\n{LOG}"),
    );
    assert_eq!(blocks(&directory, "log_bw.1.log"), [0, 1, 8, 9, 16, 17, 24, 25]);
    let text = format!("[b]\nrw=randread\nio_size=32m\nrandom_distribution=zoned:75/25:25/\n{LOG}");
    jobs(&directory, &text);
    let found = blocks(&directory, "log_bw.1.log");
    let first = found.iter().filter(|block| **block < 16).count();
    assert!(found.len() == 2048 && first.abs_diff(1536) < 100, "{first} of {}", found.len());
}

#[test]
fn the_depth_that_keeps_to_a_latency_is_found_and_ends_the_job() {
    let directory = temporary("latency");
    let endless = "rw=randread\niodepth=8\ntime_based\nruntime=1000\nlatency_window=20ms\n";
    let found = &jobs(&directory, &format!("[a]\n{endless}latency_target=100s\n"))[0];
    assert_eq!(found["latency_depth"], 8, "all of it");
    let refused =
        run(&directory, &format!("[a]\n{endless}latency_target=1us\nlatency_percentile=99\n"));
    refused.expect(1).says("latency_target: operations take longer even one at a time");
    run(&directory, "[a]\nlatency_target=1s\n").expect(64).says("go together");
}

#[test]
fn a_job_that_is_too_slow_ends() {
    let directory = temporary("floor");
    let text = "[a]\nrw=read\nrate=64k\nrate_min=1m\nratecycle=100\ntime_based\nruntime=1000\n";
    run(&directory, text).expect(1).says("rate_min: ");
}

#[test]
fn options_that_do_not_go_together_are_refused() {
    let directory = temporary("together");
    for (text, said) in [
        ("random_distribution=zipf:1.2\nrw=read", "is for random loads"),
        ("random_distribution=zipf:1.2\nrw=randwrite\nverify=crc32c", "verify needs each block"),
        ("rw=randread:8", "an offset is for read and write alone"),
        ("rw=write:-16k", "the same block"),
        ("rw=read:1k", "multiple of 4096"),
        ("zonemode=strided", "needs zonesize"),
        ("zonesize=64k", "for zonemode=strided"),
        ("zonemode=zbd\nzonesize=24k", "a multiple of bs"),
        ("max_open_zones=2", "for zonemode=zbd"),
        ("zonemode=zbd\nzonesize=64k\nrw=trim", "for reads and writes"),
        ("rate_process=poisson", "needs rate or rate_iops"),
        ("io_submit_mode=inline", "tidelog-posix submits from threads of its own"),
        ("verify=md5", "there is crc32c"),
        ("directory=a:b", "one directory"),
        ("level=log\nfilename=x\nthinktime=5", "thinktime is for the raw level"),
    ] {
        run(&directory, &format!("[a]\n{text}\n")).expect(64).says(said);
    }
    bench(&["--name=a", "--ioengine=tidelog-sim", "--size=1m", "--iodepht=4"])
        .expect(64)
        .says("did you mean iodepth?");
}

#[test]
fn as_many_blocks_are_alike_as_is_asked_for() {
    let directory = temporary("dedupe");
    let text = "bs=4k\nrw=write\ndedupe_percentage=50\ndedupe_mode=working_set\ndedupe_global=1\n\
                dedupe_working_set_percentage=50\n[a]\n[b]\n";
    jobs(&directory, text);
    let blocks = |file: &str| -> Vec<Vec<u8>> {
        fs::read(directory.at(file)).unwrap().chunks(4096).map(<[u8]>::to_vec).collect()
    };
    let (a, b) = (blocks("a.0.0"), blocks("b.0.0"));
    let different = |blocks: &[&[Vec<u8>]]| {
        blocks.concat().into_iter().collect::<std::collections::BTreeSet<_>>().len()
    };
    assert_eq!((a.len(), b.len()), (256, 256));
    // Each job takes what it has not written itself from the other's, too: both together are more
    // alike than one is.
    let (one, both) = (different(&[&a]), different(&[&a, &b]));
    assert!((140..220).contains(&one) && (220..320).contains(&both), "{one}, {both}");
    run(&directory, "[a]\nrw=write\nverify=crc32c\ndedupe_percentage=50\n")
        .expect(64)
        .says("no two are alike");
}

#[test]
fn a_job_ends_when_it_runs_steadily() {
    let directory = temporary("steady");
    let endless = "rw=randread\ntime_based\nruntime=1000\nss_interval=20ms\nss_dur=200ms\n";
    let text = format!("group_reporting\n{endless}ss=iops:1000%\nss_ramp=50ms\n[a]\nnumjobs=2\n");
    let found = &jobs(&directory, &text)[0]["steadystate"];
    assert_eq!((&found["attained"], &found["ss"]), (&1.into(), &"iops:1000.000000%".into()));
    assert_eq!(found["data"]["iops"].as_array().unwrap().len(), 10);
    let never = "[a]\nrw=randread\nss=bw_slope:1\nss_dur=10\n";
    assert_eq!(jobs(&directory, never)[0]["steadystate"]["attained"], 0, "size ends it before");
    run(&directory, "[a]\nss=iops:10%\n").expect(64).says("ss needs ss_dur");
    run(&directory, "[a]\nss_dur=10\n").expect(64).says("not given");
    run(&directory, "group_reporting\n[a]\nss=iops:1%\nss_dur=3\n[b]\n")
        .expect(64)
        .says("the same");
}

#[test]
fn blocks_are_read_back_while_others_are_written() {
    let directory = temporary("backlog");
    let text =
        "[a]\nrw=write\niodepth=8\nloops=3\nverify=crc32c\nverify_backlog=5\nverify_dump=1\n";
    let found = &jobs(&directory, text)[0];
    assert_eq!(ios(found), 192, "what is read back is not measured, as before");
    assert_eq!(found["tidelog"]["verified_blocks"], 192, "each of them once");
    let text = format!("{}do_verify=0\nnumber_ios=13\n", text.replace("[a]", "[b]"));
    assert_eq!(jobs(&directory, &text)[0]["tidelog"]["verified_blocks"], 10, "without the rest");
    run(&directory, "[a]\nrw=read\nverify=crc32c\nverify_dump=1\n").expect(64).says("verify_dump");
}

#[test]
fn zones_are_written_from_their_beginning_on() {
    let directory = temporary("zbd");
    let zbd = "bs=16k\nzonemode=zbd\nzonesize=64k\n";
    let text = format!("{zbd}filename=z\n[a]\nrw=randwrite\nmax_open_zones=2\n{LOG}\n");
    jobs(&directory, &text);
    let order = blocks(&directory, "log_bw.1.log");
    let mut written = [0_u64; 16];
    let mut open = Vec::new();
    for block in order {
        let zone = (block / 4) as usize;
        assert_eq!(block % 4, written[zone] % 4, "at its write pointer");
        written[zone] += 1;
        if written[zone] % 4 == 1 {
            open.push(zone);
        }
        assert!(open.len() <= 2, "{open:?}");
        open.retain(|zone| written[*zone] % 4 != 0);
    }
    // What is read was written, and not the half that nobody wrote.
    let text =
        format!("{zbd}filename=y\n[w]\nrw=write\nio_size=512k\n[r]\nstonewall\nrw=randread\n{LOG}");
    jobs(&directory, &text);
    assert!(blocks(&directory, "log_bw.2.log").iter().all(|block| *block < 32));
    let found = jobs(
        &directory,
        &format!(
            "{zbd}[b]\nrw=randwrite\niodepth=4\nverify=crc32c\nnumjobs=2\nfilename=v\nloops=2\n"
        ),
    );
    let verified = |job: &Value| job["tidelog"]["verified_blocks"].as_u64().unwrap();
    assert!(found.iter().map(verified).sum::<u64>() >= 64, "{found:?}");
    assert_eq!(
        ios(&jobs(&directory, &format!("{zbd}[c]\nrw=read\ntime_based\nruntime=100\n"))[0]),
        0
    );
    let beyond = jobs(&directory, &format!("{zbd}[d]\nrw=read\nread_beyond_wp=1\n"));
    assert_eq!(ios(&beyond[0]), 64);
    run(&directory, "[e]\nrw=write\nzonemode=zbd\n").expect(64).says("needs zonesize");
}

#[test]
fn all_that_is_wrong_on_a_command_line_is_told_at_once() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidelog-bench"));
    let ran = Ran::of(command.args(["--name=a", "--bs=huge", "--iodepth=deep", "--rw=up"]));
    for what in ["a: bs=huge", "a: iodepth=deep", "a: rw=up"] {
        assert!(ran.code == 64 && ran.err.contains(what), "{what}: {}", ran.err);
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidelog-bench"));
    let ran =
        Ran::of(command.args(["--name=a", "--bz=4k", "--iodepht", "4", "--mem=shm", "--bs=4k"]));
    for what in ["bz is no option here", "(did you mean iodepth?)", "mem: memory comes from"] {
        assert!(ran.code == 64 && ran.err.contains(what), "{what}: {}", ran.err);
    }
}

#[test]
fn operations_of_two_priorities_are_told_apart_in_the_logs() {
    let directory = temporary("priorities");
    // Nobody needs to be privileged for these two.
    let text = "[a]\nioengine=tidelog-uring\nrw=randwrite\nloops=4\nwrite_lat_log=log\nlog_prio=1\n\
                prioclass=3\ncmdprio_percentage=30\ncmdprio_class=2\ncmdprio=1\n";
    jobs(&directory, text);
    let log = fs::read_to_string(directory.at("log_clat.1.log")).unwrap();
    let with = |priority: &str| log.lines().filter(|line| line.ends_with(priority)).count();
    let (most, others) = (with(", 0x6000"), with(", 0x4001"));
    assert_eq!(most + others, 256, "{log}");
    assert!((40..120).contains(&others), "{others}");
    let refused = run(&directory, "[a]\nrw=read\nprio=1\n").expect(64);
    refused.says("no data path but tidelog-uring passes a priority on");
}

#[test]
fn writes_are_flushed_as_often_as_fios_and_once_in_the_end() {
    let directory = temporary("flushes");
    for (options, flushes) in [
        ("fsync=4\n", 16),
        ("fdatasync=1\niodepth=4\n", 64),
        ("end_fsync=1\n", 1),
        ("fsync_on_close=1\nfsync=32\nnrfiles=2\n", 6),
        ("sync=dsync\n", 0),
    ] {
        let found = &jobs(&directory, &format!("[a]\nrw=write\n{options}"))[0];
        assert_eq!(found["sync"]["total_ios"], flushes, "{options}");
        assert_eq!(ios(found), 64, "{options}");
        // Each run makes its files anew, as ours is not blank any more.
        for file in ["a.0.0", "a.0.1"] {
            let _ = fs::remove_file(directory.at(file));
        }
    }
    let timed = "[a]\nrw=read\nfsync=1\nfilename=read\n";
    assert_eq!(jobs(&directory, timed)[0]["sync"]["total_ios"], 0, "reads need none");
}

#[test]
fn operations_go_and_come_in_batches() {
    let directory = temporary("batches");
    let job = "[a]\nrw=randread\niodepth=8\nfilename=data\n";
    let shares = |options: &str, what: &str| {
        let found = &jobs(&directory, &format!("{job}{options}"))[0];
        assert_eq!(ios(found), 64);
        found[what].clone()
    };
    let together = shares("iodepth_batch_complete_min=8\n", "iodepth_complete");
    assert_eq!(together["8"], 100.0, "{together}");
    let alone = shares("iodepth_batch_complete_max=1\n", "iodepth_complete");
    assert_eq!(alone["4"], 100.0, "{alone}");
    let halves = shares("iodepth_batch_complete_min=8\niodepth_batch=2\n", "iodepth_submit");
    assert_eq!(halves["4"], 100.0, "{halves}");
    let low = shares("iodepth_low=1\n", "iodepth_submit");
    assert!(low["8"].as_f64().unwrap() > 70.0, "mostly seven or eight at once: {low}");
}

#[test]
fn the_page_cache_forgets_a_file_that_is_read_through_it() {
    const TEST: &str = "the_page_cache_forgets_a_file_that_is_read_through_it";
    let directory = temporary("invalidate");
    let file = fs::File::create(directory.at("data")).unwrap();
    std::io::Write::write_all(&mut &file, &vec![7; 4 << 20]).unwrap();
    file.sync_all().unwrap();
    let resident = || {
        let mut fincore = Command::new("fincore");
        fincore.args(["--bytes", "--noheadings", "--output=RES", &directory.at("data")]);
        fincore.output().ok().map(|it| String::from_utf8_lossy(&it.stdout).trim().to_owned())
    };
    let Some(before) = resident() else { return skip(TEST, "fincore is not installed") };
    assert_eq!(before, (4 << 20).to_string());
    let job = "[a]\nrw=read\nsize=16k\nfilename=data\n";
    jobs(&directory, &format!("{job}invalidate=0\n"));
    assert_eq!(resident().unwrap(), before, "it was asked to stay");
    jobs(&directory, job);
    assert!(resident().unwrap().parse::<u64>().unwrap() < 4 << 20);
}

#[test]
fn forms_of_results_follow_each_other() {
    let directory = temporary("forms");
    let job = ["--name=a", "--ioengine=tidelog-sim", "--rw=read", "--size=64k"];
    let told = |options: &[&str]| bench(&[&job[..], options].concat()).expect(0).out;
    let both = told(&["--output-format=terse,json", "--disk_util=0", "--gtod_reduce=1"]);
    let (terse, json) = both.split_once('\n').unwrap();
    assert!(terse.starts_with("3;") && json.trim_start().starts_with('{'), "{both}");
    assert_eq!(told(&["--minimal"]).lines().count(), 1);
    assert!(told(&["--append-terse"]).contains("\n3;"));
    bench(&[&job[..], &["--output-format=xml"]].concat()).expect(64).says("normal, terse, json");
    fs::write(directory.at("a.inc"), "include b.inc\n").unwrap();
    fs::write(directory.at("b.inc"), "bs=8k ; of both\ninclude a.inc\n").unwrap();
    run(&directory, "[a]\nrw=read\ninclude a.inc\n").expect(64).says("without an end");
    fs::write(directory.at("b.inc"), "bs=8k\n[b]\n").unwrap();
    run(&directory, "[a]\nrw=read\ninclude a.inc\n")
        .expect(64)
        .says("line 2: a file that is included");
    fs::write(directory.at("b.inc"), "bs=8k ; of both\n").unwrap();
    assert_eq!(ios(&jobs(&directory, "[a]\nrw=read\ninclude a.inc\n")[0]), 128);
}
