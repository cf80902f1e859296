//! `add`, `evacuate` and `remove`.

mod common;

use common::{sparse, temporary, tool};
use serde_json::Value;
use tidelog_engine::path::DeviceSpec;
use tidelog_engine::pool::{OpenOptions, Pool};

const SIZE: u64 = 24 << 20;

fn open(devices: &[&str]) -> Pool {
    let specs: Vec<DeviceSpec> = devices.iter().map(DeviceSpec::new).collect();
    Pool::open(&specs, &OpenOptions { huge_pages: false, ..OpenOptions::default() }).unwrap()
}

fn fill(devices: &[&str]) {
    let pool = open(devices);
    common::fill(&pool);
    pool.close().unwrap();
}

fn compare(devices: &[&str]) {
    let said = [&["check"], devices].concat();
    tool(&said).expect(0);
    common::compare(&open(devices));
}

fn json(said: &str) -> Value {
    serde_json::from_str(said).unwrap()
}

#[test]
fn a_pool_gets_a_device_and_gives_another_up() {
    for copies in ["1", "2"] {
        let directory = temporary(&format!("reshape-{copies}"));
        let [a, b, c] = &["a", "b", "c"].map(|name| directory.at(name));
        tool(&["format", a, b, "--copies", copies, "--size", "24MiB", "--yes"]).expect(0);
        fill(&[a, b]);
        let said = tool(&["add", c, a, b]).expect(0);
        assert!(said.out.contains("Nothing was written"), "{said:?}");
        assert!(!std::path::Path::new(c).exists());
        let said = tool(&["add", c, a, b, "--yes", "--output", "json"]).expect(0);
        assert_eq!(
            (&json(&said.out)["place"], &json(&said.out)["was_done"]),
            (&2.into(), &false.into())
        );
        compare(&[a, b, c]);
        let said = tool(&["add", c, a, b, "--yes"]).expect(0);
        assert!(said.out.contains("already"), "{said:?}");
        tool(&["check", a, b]).expect(3);

        let said = tool(&["evacuate", a, b, c]).expect(0);
        assert!(said.out.contains("Nothing was written"), "{said:?}");
        let said = tool(&["evacuate", a, b, c, "--yes", "--output", "json"]).expect(0);
        assert!(json(&said.out)["bytes"].as_u64().unwrap() > 1_000_000, "{said:?}");
        let said = tool(&["inspect", a, b, c]).expect(0);
        assert!(said.out.contains("device 0 is empty"), "{said:?}");
        compare(&[a, b, c]);
        let said = tool(&["add", a, b, c, "--yes"]).expect(0);
        assert!(said.out.contains("device 0"), "{said:?}");
        let said = tool(&["remove", "0", a, b, c, "--yes"]).expect(0);
        assert!(said.out.contains("no more the pool"), "{said:?}");
        compare(&[b, c]);
        let said = tool(&["remove", a, b, c, "--yes"]).expect(0);
        assert!(said.out.contains("removed before"), "{said:?}");
        let said = tool(&["check", a, b, c]).expect(4);
        assert!(said.err.contains("was removed from the pool"), "{said:?}");
        let said = tool(&["inspect", b, c, "--output", "json"]).expect(0);
        let table = &json(&said.out)["table"];
        assert_eq!((&table["used"], &table["removed"]), (&json("[1, 2]"), &json("[0]")));
        let said = tool(&["list", b, c]).expect(0);
        assert!(said.out.contains("2 device(s), complete"), "{said:?}");
        // As a new one, by its name twice.
        tool(&["add", a, b, c, "--yes"]).expect(4);
        let said = tool(&["add", a, b, c, "--overwrite", a, "--yes"]).expect(0);
        assert!(said.out.contains("device 3"), "{said:?}");
        compare(&[a, b, c]);
    }
}

#[test]
fn what_cannot_be_is_refused_with_its_exit_code() {
    let directory = temporary("reshape-refused");
    let [a, b] = &["a", "b"].map(|name| directory.at(name));
    tool(&["format", a, b, "--copies", "2", "--size", "24MiB", "--yes"]).expect(0);
    fill(&[a, b]);
    let said = tool(&["remove", a, b, "--yes"]).expect(4);
    assert!(said.err.contains("add one first"), "{said:?}");
    tool(&["evacuate", "9", a, b, "--yes"]).expect(64);
    let pool = open(&[a, b]);
    let said = tool(&["remove", a, b, "--yes"]).expect(4);
    assert!(said.err.contains("is open by process"), "{said:?}");
    pool.close().unwrap();
    compare(&[a, b]);
}

#[test]
fn a_file_that_an_earlier_call_left_half_made_is_taken() {
    let directory = temporary("reshape-half");
    let [a, b] = &["a", "b"].map(|name| directory.at(name));
    tool(&["format", a, "--size", "24MiB", "--yes"]).expect(0);
    fill(&[a]);
    let half = sparse(&directory, "b", SIZE / 2);
    tool(&["add", &half, a, "--yes"]).expect(0);
    compare(&[a, b]);
}

#[test]
fn a_rate_is_kept_to() {
    let directory = temporary("reshape-rate");
    let [a, b] = &["a", "b"].map(|name| directory.at(name));
    tool(&["format", a, b, "--size", "24MiB", "--yes"]).expect(0);
    fill(&[a, b]);
    let begun = std::time::Instant::now();
    // Some 4 MB are in segments that have a part there.
    tool(&["remove", b, a, "--rate", "4MiB", "--yes"]).expect(0);
    assert!(begun.elapsed().as_millis() > 700, "{:?}", begun.elapsed());
    compare(&[a]);
}
