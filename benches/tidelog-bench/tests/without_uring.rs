//! The tool where a seccomp profile forbids `io_uring`.

mod common;

use std::collections::BTreeMap;

use common::{bench, temporary};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

#[test]
fn no_other_path_is_measured_than_the_one_that_was_asked_for() {
    let rules: BTreeMap<i64, _> = [(libc::SYS_io_uring_setup, Vec::new())].into();
    let refuse = SeccompAction::Errno(libc::EPERM.cast_unsigned());
    let architecture = std::env::consts::ARCH.try_into().unwrap();
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, architecture).unwrap();
    let program: BpfProgram = filter.try_into().unwrap();
    // The filter holds for the thread and for the processes that it starts.
    let thread = std::thread::spawn(move || {
        seccompiler::apply_filter(&program).unwrap();
        let directory = temporary("seccomp");
        let file = format!("--filename={}", directory.at("a"));
        for level in ["raw", "log"] {
            let level = format!("--level={level}");
            let job = ["--name=job", "--rw=write", "--bs=16k", "--size=1m", &file, &level];
            let ran = bench(&[&job[..], &["--ioengine=tidelog-uring"]].concat());
            ran.expect(3).says("io_uring is forbidden here").says("nothing was measured");
            let twice = format!("--overwrite={}", directory.at("a"));
            bench(&[&job[..], &["--ioengine=tidelog-posix", &twice]].concat()).expect(0);
            std::fs::remove_file(directory.at("a")).unwrap();
        }
    });
    thread.join().unwrap();
}
