//! The tool where a seccomp profile forbids `io_uring`.

mod common;

use common::{bench, temporary};
use tidelog_tests::machine::without_io_uring;

#[test]
fn no_other_path_is_measured_than_the_one_that_was_asked_for() {
    without_io_uring(|| {
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
}
