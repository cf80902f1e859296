//! `stats` and `scrub`.

mod common;

use std::fs::OpenOptions as FileOptions;
use std::os::unix::fs::FileExt;

use common::{temporary, tool};
use serde_json::Value;
use tidelog_engine::layout::DeviceRates;
use tidelog_engine::memory::Source;
use tidelog_engine::path::DeviceSpec;
use tidelog_engine::pool::{OpenOptions, Pool, PutOptions};
use tidelog_engine::units::ByteCount;

fn fill(devices: &[&str]) {
    let specs: Vec<DeviceSpec> = devices.iter().map(DeviceSpec::new).collect();
    let options = OpenOptions { huge_pages: false, ..OpenOptions::default() };
    let pool = Pool::open(&specs, &options).unwrap();
    let mut batch = pool.batch();
    batch.put("t", Source::from(vec![0xA7; 2_000_000]), PutOptions::default()).unwrap();
    batch.commit().unwrap();
    pool.close().unwrap();
}

#[test]
fn health_is_told_to_people_monitors_and_alerts() {
    let directory = temporary("stats");
    let [a, b] = &["a", "b"].map(|name| directory.at(name));
    tool(&["format", a, b, "--copies", "2", "--size", "24MiB", "--yes"]).expect(0);
    fill(&[a, b]);
    let said = tool(&["stats", a, b]).expect(0);
    assert!(said.out.contains("share 0 (closed): 1 durable tensor(s)"), "{said:?}");
    assert!(said.out.contains("tells no wear"), "files have none: {said:?}");
    assert_eq!(tool(&["stats", a, b, "--output", "events"]).expect(0).out, "");
    let said = tool(&["stats", a, b, "--output", "prometheus"]).expect(0);
    let has = |line: &str| assert!(said.out.lines().any(|it| it.starts_with(line)), "{said:?}");
    has("# TYPE tidelog_devices gauge");
    has("tidelog_devices_missing{pool=\"");
    has("tidelog_share_live_bytes{pool=\"");
    for line in said.out.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').unwrap();
        assert!(name.starts_with("tidelog_") && name.ends_with('}'), "{line}");
        value.parse::<u64>().unwrap();
    }
    let json: Value =
        serde_json::from_str(&tool(&["stats", a, b, "--output", "json"]).expect(0).out).unwrap();
    assert_eq!(json["events"], serde_json::json!([]));

    let said = tool(&["stats", a, "--output", "events"]).expect(2);
    let event: Value = serde_json::from_str(said.out.lines().next().unwrap()).unwrap();
    assert_eq!((&event["event"], &event["place"]), (&"device_missing".into(), &"1".into()));
    assert!(event["time"].as_u64().unwrap() > 1_600_000_000);
    let said = tool(&["stats", a, "--output", "prometheus"]).expect(2);
    assert!(said.out.contains("tidelog_devices_missing") && said.out.contains("} 1\n"), "{said:?}");
    // What calibration found is told of a device that is slow alone.
    let specs = [a, b].map(DeviceSpec::new);
    let rates = DeviceRates::of([ByteCount::gib(3), ByteCount::gib(1)]);
    Pool::store_rates(&specs, rates, false).unwrap();
    let said = tool(&["stats", a, b, "--output", "events"]).expect(2);
    let event: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!((&event["event"], &event["place"]), (&"device_slow".into(), &"1".into()));
    let said = tool(&["stats", a, b, "--output", "prometheus"]).expect(2);
    assert!(said.out.contains("tidelog_device_rate_bytes_per_second{"), "{said:?}");
    // Other commands have no such formats: they say what they say to people.
    let text = tool(&["list", a, b, "--output", "prometheus"]).expect(0);
    assert!(text.out.contains("complete"), "{text:?}");
}

#[test]
fn a_scrub_heals_what_has_another_copy_and_keeps_its_rate() {
    let directory = temporary("scrub");
    let [a, b] = &["a", "b"].map(|name| directory.at(name));
    tool(&["format", a, b, "--copies", "2", "--size", "24MiB", "--yes"]).expect(0);
    fill(&[a, b]);
    let begun = std::time::Instant::now();
    let said = tool(&["scrub", a, b, "--rate", "2MiB"]).expect(0);
    assert!(said.out.contains("0 part(s) written again"), "{said:?}");
    assert!(begun.elapsed().as_millis() > 800, "{:?}", begun.elapsed());
    let file = FileOptions::new().read(true).write(true).open(a).unwrap();
    let mut bytes = vec![0; 24 << 20];
    file.read_exact_at(&mut bytes, 0).unwrap();
    let at = bytes.windows(4096).position(|it| it.iter().all(|byte| *byte == 0xA7)).unwrap();
    file.write_all_at(&[0; 4096], at.next_multiple_of(4096) as u64).unwrap();
    file.sync_all().unwrap();
    let said = tool(&["scrub", a, b, "--output", "json"]).expect(1);
    let json: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!((&json["healed"], &json["damaged"]), (&1.into(), &serde_json::json!([])));
    tool(&["scrub", a, b]).expect(0);
    tool(&["check", a, b]).expect(0);
}
