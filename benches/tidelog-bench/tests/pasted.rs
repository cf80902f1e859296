//! Jobs as people post them: each runs, or is refused for a reason that the page gives.
//!
//! Their engines become ours, as the page says; what they work on is made small and short.

mod common;

use std::fs;
use std::process::Command;

use common::temporary;
use tidelog_tests::machine::{Directory, Ran};

/// Returns the purpose of each job, the job, and what its refusal says; nothing if it runs.
fn jobs() -> Vec<(&'static str, String, &'static str)> {
    let jobs = include_str!("pasted.txt").split("\n\n### ").skip(1).map(|text| {
        let (what, rest) = text.split_once('\n').unwrap();
        let refused = rest.strip_prefix("### refused: ").and_then(|rest| rest.split_once('\n'));
        let (refusal, job) = refused.unwrap_or(("", rest));
        (what, job.replace("\\\n", ""), refusal)
    });
    jobs.collect()
}

/// A word or a line of a job with our engines, on little, in this directory.
fn scaled(text: &str, directory: &Directory) -> String {
    let Some((key, value)) = text.split_once('=') else { return text.to_owned() };
    let small = match key.trim_start_matches('-') {
        "ioengine" if value.ends_with("sync") => "tidelog-posix".to_owned(),
        "ioengine" => "tidelog-uring".to_owned(),
        "filename" => directory.at(value.rsplit('/').next().unwrap()),
        "runtime" => "200ms".to_owned(),
        "size" => "1m".to_owned(),
        _ => value.to_owned(),
    };
    format!("{key}={small}")
}

#[test]
fn jobs_as_people_post_them_run_or_are_refused_with_the_reason_of_the_page() {
    let mut wrong = Vec::new();
    let jobs = jobs();
    assert_eq!(jobs.len(), 40);
    for (number, (what, job, refusal)) in jobs.iter().enumerate() {
        let directory = temporary(&format!("pasted-{number}"));
        fs::write(directory.at("nvme0n1"), vec![0; 1 << 20]).unwrap();
        let common = "# for all\nioengine=tidelog-uring\nbs=4k\niodepth=8\n";
        fs::write(directory.at("common.inc"), common).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidelog-bench"));
        command.current_dir(directory.at(""));
        if job.starts_with('-') {
            command.args(job.split_whitespace().map(|it| scaled(it, &directory)));
        } else {
            let lines: Vec<String> = job.lines().map(|it| scaled(it, &directory)).collect();
            fs::write(directory.at("job.fio"), lines.join("\n")).unwrap();
            command.arg("job.fio");
        }
        let ran = Ran::of(&mut command);
        let expected = if refusal.is_empty() { 0 } else { 64 };
        if ran.code != expected || !ran.err.contains(refusal) {
            wrong.push(format!("{what}: {} instead of {expected}: {}", ran.code, ran.err));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
