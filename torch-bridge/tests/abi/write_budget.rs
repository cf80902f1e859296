//! A write budget over a simulated disk: plans that keep to it as far as any does, pauses for the
//! rest, and the same bytes computed under each.

use std::time::{Duration, Instant};

use tidelog::abi::*;

use tidelog_engine::path::sim::SimDisk;
use tidelog_engine::pool::{FormatOptions, OpenOptions, Pool};
use tidelog_engine::units::ByteCount;

use tidelog_tests::abi::{Framework, STAGING, last_error};

use super::training::{LAYERS, Training};

const MIB: usize = 1 << 20;
const DAY: u64 = 86_400;

/// A session over one simulated disk, with memory for about half of what a step makes.
fn training() -> Training {
    let disks = [SimDisk::new(ByteCount::mib(512))];
    Pool::format(&disks, &FormatOptions::default()).unwrap();
    let options = OpenOptions { staging: ByteCount(STAGING), ..OpenOptions::default() };
    let pool = Pool::open(&disks, &options).unwrap();
    disks[0].set_rate(Some(ByteCount::mib(400)));
    let budget = STAGING + (u64::from(LAYERS) + 2) * 4 * MIB as u64;
    Training::new(Framework::on(pool, budget, 9), 4 * MIB)
}

fn set(training: &Training, per_day: u64) {
    let set = tide_session_set_write_budget(training.framework.session, per_day);
    assert_eq!(set, TIDE_READY, "{}", last_error());
}

/// Pauses to the end; returns how long that took.
fn pause(training: &Training) -> Duration {
    let began = Instant::now();
    while tide_session_throttle(training.framework.session, 20) == TIDE_WAITING {}
    began.elapsed()
}

fn written_by_a_step(training: &mut Training) -> u64 {
    training.steps(1);
    training.framework.stats()["last_step"]["bytes_written"].as_u64().unwrap()
}

#[test]
fn steps_are_planned_for_again_under_another_budget() {
    let mut training = training();
    training.steps(20);
    let plan = training.framework.stats()["plan"].clone();

    // What a plan under a budget writes is for the tests of the search, where rates are given:
    // here they are measured, each time anew.
    set(&training, 1_000_000_000);
    training.until(60, |stats| stats["plan"]["replans"].as_u64() > plan["replans"].as_u64());
    training.steps(1);
    assert!(
        training.framework.stats()["notices"]
            .to_string()
            .contains("the write budget is 1.00 GB a day")
    );

    set(&training, 0);
    let replans = training.framework.stats()["plan"]["replans"].as_u64();
    training.until(60, |stats| stats["plan"]["replans"].as_u64() > replans);
    assert!(training.framework.stats()["write_budget"].is_null());
    training.steps(3);
    assert!(!training.framework.stats()["notices"].to_string().contains("left the plan"));
    training.framework.end();
}

#[test]
fn a_pause_is_as_long_as_the_bytes_ask_for() {
    let mut training = training();
    assert_eq!(tide_session_throttle(training.framework.session, 1000), TIDE_READY, "no budget");
    // A sixth of what a step can write here: the next ones may be faster or slower than it.
    training.steps(1);
    let began = Instant::now();
    let written = written_by_a_step(&mut training);
    let per_second = written * 1000 / (6 * began.elapsed().as_millis() as u64 + 1);
    set(&training, per_second * DAY);
    let began = Instant::now();
    let mut paused = Duration::ZERO;
    for _ in 0..3 {
        training.steps(1);
        paused += pause(&training);
        let figures = training.framework.stats()["write_budget"].clone();
        let written = figures["bytes_written"].as_u64().unwrap();
        let allowed = began.elapsed().as_nanos() * u128::from(per_second) / 1_000_000_000;
        assert!(u128::from(written) <= allowed + 1, "{figures}");
    }
    let figures = training.framework.stats()["write_budget"].clone();
    assert!(figures["pauses"].as_u64() > Some(0), "{figures}");
    let counted = Duration::from_nanos(figures["pause_ns"].as_u64().unwrap());
    assert!(counted <= paused && counted > paused / 2, "{counted:?} of {paused:?}");
    training.framework.end();
}
