//! A session under a framework that follows the rules, and under one that is careless with them:
//! no byte is lost, the budget holds, nothing crashes.
use std::ffi::CString;

use tidelog::abi::*;

use crate::framework::{Folder, Framework, Manners, STAGING, last_error};
use crate::memory::Random;

const KIB: usize = 1 << 10;

/// One seeded walk through everything that may be called.
fn walk(seed: u64, steps: u32, manners: Manners) {
    let budget = STAGING + (512 << 10);
    let mut framework = Framework::open(&format!("walk-{seed}"), budget, seed, manners);
    let mut random = Random(seed ^ 0xFACE);
    let mut index = -1_i64;
    for _ in 0..steps {
        let numbers = framework.numbers();
        let some = |random: &mut Random| {
            (!numbers.is_empty()).then(|| numbers[random.below(numbers.len() as u64) as usize])
        };
        match random.below(100) {
            0..45 => {
                let mut uses: Vec<(u32, bool)> = Vec::new();
                for _ in 0..random.below(4) {
                    uses.extend(some(&mut random).map(|number| (number, random.percent(40))));
                }
                uses.sort_unstable();
                uses.dedup_by_key(|(number, _)| *number);
                let size = (random.below(64 * KIB as u64) + 1) as usize;
                let makes = random.percent(40).then(|| (framework.free_number(), size));
                let op = (index, "aten.op", random.below(3));
                if random.percent(8) {
                    // Ctrl-C: begun, and never heard of again.
                    let outputs = makes.as_slice();
                    let status = framework.begin_op(op, &uses, outputs);
                    assert!(status >= 0 || status == TIDE_BUDGET_EXCEEDED, "{}", last_error());
                } else if framework.op(op, &uses, makes.as_slice()) && index >= 0 {
                    index += 1;
                }
            }
            45..60 => {
                let number = framework.free_number();
                framework.make(number, (random.below(96 * KIB as u64)) as usize, None);
            }
            60..70 => {
                if let Some(number) = some(&mut random) {
                    framework.kill(number);
                }
            }
            70..75 => {
                if let Some(number) = some(&mut random) {
                    framework.evict(number);
                }
            }
            75..79 => {
                if let Some(number) = some(&mut random) {
                    framework.write_beside(number);
                }
            }
            79..83 => {
                if let Some(number) = some(&mut random) {
                    framework.pin(number, true);
                    framework.op((-1, "alias", 0), &[(number, true)], &[]);
                    framework.pin(number, false);
                }
            }
            83..87 => {
                let begins = random.percent(60);
                framework.step(if begins { 1 } else { i32::from(random.percent(30)) * 2 });
                index = if begins { 0 } else { -1 };
            }
            87..90 => framework.set_budget(budget + random.below(128 << 10)),
            90..92 => assert_eq!(tide_session_leave_plan(framework.session), TIDE_READY),
            92..94 => {
                framework.perform_one();
            }
            94..96 => {
                assert!(framework.stats()["resident_bytes"].is_u64());
            }
            96..98 => {
                framework.sync();
                let status = tide_session_settle(framework.session);
                framework.drive(status);
            }
            // Calls that fit nothing that went before.
            98 => {
                framework.sync();
                assert!(tide_session_op_end(framework.session) >= TIDE_BUDGET_EXCEEDED);
            }
            _ => {
                framework.sync();
                assert!(tide_session_resume(framework.session) >= TIDE_BUDGET_EXCEEDED);
                assert!(tide_session_wait(framework.session, 0) >= TIDE_BUDGET_EXCEEDED);
            }
        }
    }
    let moved = framework.stats();
    for counter in ["evictions", "fetches"] {
        assert!(moved[counter].as_u64() > Some(0), "the walk tried nothing: no {counter}");
    }
    framework.end();
}

#[test]
fn no_byte_is_lost_whatever_is_called() {
    for seed in 0..12 {
        walk(seed, 400, Manners::default());
    }
}

#[test]
fn no_byte_is_lost_when_requests_come_twice_are_refused_or_misreported() {
    for seed in 100..112 {
        walk(seed, 400, Manners { redelivered: 20, refused: 15, misreported: 20 });
    }
}

/// Parameters that every step updates, activations made forward and used backward, more than fit.
fn train(framework: &mut Framework, steps: u32) {
    const LAYERS: u32 = 8;
    let activations = LAYERS;
    for layer in 0..LAYERS {
        framework.make(layer, 64 * KIB, None);
        framework.sync();
        let name = CString::new(format!("layer.{layer}.weight")).unwrap();
        // SAFETY: the name is NUL-terminated.
        let named = unsafe { tide_session_name(framework.session, layer, 1, name.as_ptr()) };
        assert_eq!(named, TIDE_READY);
    }
    for step in 0..steps {
        // Numbers within a step are its own, as Python keeps it.
        let base = activations + (step % 2) * LAYERS;
        framework.step(1);
        let mut index = 0;
        for layer in 0..LAYERS {
            let made = [(base + layer, 64 * KIB)];
            let below = (layer > 0).then(|| (base + layer - 1, false));
            let uses: Vec<_> = [(layer, false)].into_iter().chain(below).collect();
            assert!(framework.op((index, "aten.mm", 7), &uses, &made), "{}", last_error());
            index += 1;
        }
        for layer in (0..LAYERS).rev() {
            let uses = [(layer, true), (base + layer, false)];
            assert!(framework.op((index, "aten.mm_backward", 8), &uses, &[]), "{}", last_error());
            framework.kill(base + layer);
            index += 1;
        }
        framework.step(0);
    }
}

#[test]
fn a_repeated_step_is_planned_and_its_report_tells_what_moved() {
    let budget = STAGING + (448 << 10);
    let mut framework = Framework::open("trained", budget, 5, Manners::default());
    train(&mut framework, 6);
    let (mut due, mut ops) = (std::ptr::null(), 0);
    // SAFETY: both places are ours.
    let asked = unsafe { tide_session_plan(framework.session, &raw mut due, &raw mut ops) };
    assert_eq!((asked, ops), (TIDE_READY, 16), "sixteen ops are planned");
    // SAFETY: the session is open, so the plan's bytes are where it said, as many as it said.
    let due = unsafe { std::slice::from_raw_parts(due, ops as usize) };
    assert!(due.contains(&1), "not all of it fits, so something is due");

    let stats = framework.stats();
    assert!(["uring", "posix"].contains(&stats["data_path"].as_str().unwrap()), "{stats}");
    assert!(stats["staging_backing"].is_string() && stats["why_not"].is_array(), "{stats}");
    assert!(stats["pool"]["capacity"].as_u64() >= stats["pool"]["free"].as_u64(), "{stats}");
    let device = &stats["devices"][0];
    assert!(device["bytes_written"].as_u64() >= stats["totals"]["bytes_written"].as_u64());
    assert_eq!(device["errors"], 0);
    assert!(stats["last_step"]["bytes_read"].as_u64() > Some(0), "{stats}");

    let folder = Folder::new("reports");
    let path = folder.0.join("step.html");
    let text = CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: the path is NUL-terminated.
    assert_eq!(unsafe { tide_session_report(framework.session, text.as_ptr()) }, TIDE_READY);
    let page = std::fs::read_to_string(&path).unwrap();
    for told in
        ["measured, step 6", "layer.3.weight", "aten.mm_backward", "algorithm1", "data path"]
    {
        assert!(page.contains(told), "the report does not tell {told:?}");
    }
    // SAFETY: the path is NUL-terminated.
    let failed = unsafe { tide_session_report(framework.session, c"/nonexistent/x.html".as_ptr()) };
    assert_eq!(failed, TIDE_INVALID_ARGUMENT);
    assert!(last_error().contains("/nonexistent/"), "{}", last_error());
    framework.end();
}

#[test]
fn a_report_before_any_step_says_how_to_mark_one() {
    let framework = Framework::open("unmarked", STAGING + (64 << 10), 6, Manners::default());
    let folder = Folder::new("unmarked-report");
    let path = folder.0.join("none.html");
    let text = CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: the path is NUL-terminated.
    assert_eq!(unsafe { tide_session_report(framework.session, text.as_ptr()) }, TIDE_READY);
    assert!(std::fs::read_to_string(&path).unwrap().contains("tide.step()"));
    framework.end();
}
