//! A pool whose bandwidth changes while steps run under a plan: the session plans again, and
//! computes the same bytes.

use tidelog_engine::path::sim::SimDisk;
use tidelog_engine::pool::{FormatOptions, OpenOptions, Pool};
use tidelog_engine::units::ByteCount;

use tidelog_tests::abi::{Framework, STAGING};

use super::training::{LAYERS, Training};

const MIB: usize = 1 << 20;

/// A session over one simulated disk, with memory for about half of what a step makes.
fn framework(disk: &SimDisk) -> Framework {
    let disks = [disk.clone()];
    Pool::format(&disks, &FormatOptions::default()).unwrap();
    let options = OpenOptions { staging: ByteCount(STAGING), ..OpenOptions::default() };
    let pool = Pool::open(&disks, &options).unwrap();
    Framework::on(pool, STAGING + (u64::from(LAYERS) + 2) * 4 * MIB as u64, 9)
}

#[test]
fn a_step_whose_bandwidth_changed_is_planned_again_and_computes_the_same_bytes() {
    let disk = SimDisk::new(ByteCount::mib(512));
    let mut training = Training::new(framework(&disk), 4 * MIB);
    training.steps(18);
    let stats = training.framework.stats();
    let before = stats["plan"].clone();
    // Where writing takes longer than all ops, plans need not move anything ahead.
    assert!(before.is_object() && stats["evictions"].as_u64() > Some(0), "{stats}");

    disk.set_rate(Some(ByteCount::mib(160)));
    let rate = |plan: &serde_json::Value| plan["read_bytes_per_second"].as_u64().unwrap();
    let slow = training.until(60, |stats| rate(&stats["plan"]) < rate(&before) / 4 * 3);
    let stats = training.framework.stats();
    let notices = stats["notices"].as_array().unwrap();
    let told = |text: &str| notices.iter().any(|it| it.as_str().unwrap().contains(text));
    assert!(told("planned again, before step") && told("reads run at"), "{stats}");
    let replans = stats["plan"]["replans"].as_u64().unwrap();
    assert!(replans <= u64::from(18 + slow) / 16, "{replans} plans in {} steps", 18 + slow);

    // Each op compares its bytes with what they must be, under the old plan and under the new.
    training.steps(3);
    assert!(!training.framework.stats()["notices"].to_string().contains("left the plan"));
    training.framework.end();
}
