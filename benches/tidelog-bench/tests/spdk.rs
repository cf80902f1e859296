//! Controllers that the kernel does not drive, served by SPDK's own target program.
#![cfg(feature = "spdk")]

mod common;

use std::sync::{Mutex, MutexGuard, PoisonError};

use common::bench;
use tidelog_tests::machine::{Ran, skip};
use tidelog_tests::spdk::target::{Target, Transport, program};

/// Targets poll a core each, and there may be two.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

type Served = (Target, Vec<String>, MutexGuard<'static, ()>);

/// Serves namespaces; returns them, and its names as filename takes them.
fn served(test: &str, transport: Transport) -> Option<Served> {
    let Some(program) = program() else {
        skip(test, "SPDK's target program nvmf_tgt is not installed");
        return None;
    };
    let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let target = Target::start(&program, transport, 4096).unwrap();
    let names = target.controllers().iter().map(|it| it.to_string().replace(':', "\\:")).collect();
    Some((target, names, alone))
}

fn job(names: &[String], options: &[&str]) -> Ran {
    let filename = format!("--filename={}", names.join(":"));
    let all = ["--ioengine=tidelog-spdk", "--bs=64k", "--size=16m", "--name=controllers"];
    bench(&[&all[..], &[filename.as_str()], options].concat())
}

#[test]
fn what_is_written_raw_reads_back_and_is_not_written_again_unless_named_twice() {
    for transport in [Transport::Tcp, Transport::VfioUser] {
        let test = "what_is_written_raw_reads_back_and_is_not_written_again_unless_named_twice";
        let Some((_target, names, _alone)) = served(test, transport) else { return };
        let written = job(&names, &["--rw=write", "--iodepth=8", "--verify=crc32c"]).expect(0);
        assert!(written.out.contains("tidelog-spdk; buffers: registered"), "{written}");
        job(&names, &["--rw=randread", "--iodepth=8", "--verify=crc32c"]).expect(0);
        job(&names, &["--rw=write"]).expect(4).says("it is not blank");
        let overwrite = format!("--overwrite={}", names.join(":"));
        job(&names, &["--rw=write", &overwrite]).expect(0);
    }
}

#[test]
fn what_finds_no_place_in_a_queue_waits() {
    let test = "what_finds_no_place_in_a_queue_waits";
    let Some((_target, names, _alone)) = served(test, Transport::Tcp) else { return };
    // The target's queues have 128 entries, of which one stays empty.
    let ran = job(&names[..1], &["--rw=write", "--bs=4k", "--iodepth=200", "--verify=crc32c"]);
    assert!(ran.expect(0).out.contains("takes 127 commands at once"));
}

#[test]
fn a_pool_is_made_of_blank_ones_and_is_no_place_to_write_raw() {
    let test = "a_pool_is_made_of_blank_ones_and_is_no_place_to_write_raw";
    let Some((_target, names, _alone)) = served(test, Transport::Tcp) else { return };
    for _ in ["on blank ones", "on the pool"] {
        job(&names, &["--level=log", "--rw=write", "--iodepth=8", "--verify=crc32c"]).expect(0);
    }
    job(&names, &["--rw=write"]).expect(4).says("Tidelog pool");

    let overwrite = format!("--overwrite={}", names.join(":"));
    job(&names, &["--rw=write", &overwrite]).expect(0);
    job(&names, &["--level=log", "--rw=write", &overwrite]).expect(0);
}

#[test]
fn a_controller_serves_one_job_at_a_time() {
    let test = "a_controller_serves_one_job_at_a_time";
    let Some((_target, names, _alone)) = served(test, Transport::Tcp) else { return };
    let second = format!("--filename={}", names[0]);
    let side_by_side = ["--rw=read", "--name=second", &second, "--rw=read"];
    job(&names[..1], &side_by_side).expect(64).says("give this one stonewall");
    job(&names[..1], &[&side_by_side[..], &["--stonewall"]].concat()).expect(0);
    job(&names, &["--rw=read", "--numjobs=2"]).expect(64);
}

#[test]
fn names_without_their_backslashes_are_explained() {
    bench(&["--name=x", "--ioengine=tidelog-spdk", "--filename=spdk:0000:01:00.0"])
        .expect(64)
        .says("spdk\\:0000\\:01\\:00.0");

    bench(&["--name=x", "--ioengine=tidelog-uring", "--filename=spdk\\:0000\\:01\\:00.0"])
        .expect(64)
        .says("needs ioengine=tidelog-spdk");
}
