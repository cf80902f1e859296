//! Pools that lack a device, and `replace`.

mod common;

use common::{compare, fill, sparse, temporary, tool};
use tidelog_engine::path::DeviceSpec;
use tidelog_engine::pool::{OpenError, OpenOptions, Pool};
use tidelog_tests::machine::Directory;

const SIZE: u64 = 24 << 20;

/// A pool of three files, of which durable tensors have two copies.
fn mirrored(directory: &Directory) -> [String; 3] {
    let files = ["a", "b", "c"].map(|name| directory.at(name));
    let [a, b, c] = files.each_ref().map(String::as_str);
    tool(&["format", a, b, c, "--copies", "2", "--size", "24MiB", "--yes"]).expect(0);
    let pool = open(&[a, b, c], false).unwrap();
    fill(&pool);
    pool.close().unwrap();
    files
}

fn open(devices: &[&str], degraded: bool) -> Result<Pool, OpenError> {
    let specs: Vec<DeviceSpec> = devices.iter().map(DeviceSpec::new).collect();
    let options = OpenOptions { degraded, huge_pages: false, ..OpenOptions::default() };
    Pool::open(&specs, &options)
}

#[test]
fn a_pool_without_a_device_is_checked_used_and_made_whole_again() {
    let directory = temporary("replace");
    let [a, b, c] = &mirrored(&directory);
    std::fs::rename(b, directory.at("gone")).unwrap();
    let said = tool(&["check", a, b, c]).expect(3);
    assert!(said.err.contains("device 1 is missing") && said.err.contains("replace"), "{said:?}");
    let said = tool(&["check", "--degraded", a, b, c]).expect(2);
    assert!(said.out.contains("MISSING") && !said.out.contains("LOST"), "{said:?}");
    let pool = open(&[a, b, c], true).unwrap();
    compare(&pool);
    assert!(pool.description().devices[1].starts_with(b.as_str()), "{:?}", pool.description());
    pool.close().unwrap();
    // As it was, it is of no use any more.
    let gone = directory.at("gone");
    let said = tool(&["check", a, &gone, c]).expect(4);
    assert!(said.err.contains("stale"), "{said:?}");
    let said = tool(&["inspect", a, c]).expect(0);
    assert!(said.out.contains("device 1 is MISSING"), "{said:?}");

    let new = sparse(&directory, "new", SIZE);
    let said = tool(&["replace", &gone, &new, a, c]).expect(0);
    assert!(said.out.contains("Nothing was written"), "{said:?}");
    for wrong in [a.as_str(), "0"] {
        let said = tool(&["replace", wrong, &new, a, c, "--yes"]).expect(4);
        assert!(said.err.contains("is not device 1"), "{said:?}");
    }
    tool(&["replace", "1", &new, a, "--yes"]).expect(64);
    let said = tool(&["replace", &gone, &new, a, c, "--yes", "--output", "json"]).expect(0);
    let json: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!((json["place"].as_u64(), json["was_whole"].as_bool()), (Some(1), Some(false)));
    assert!(json["bytes"].as_u64().unwrap() > 1_000_000, "{json}");
    tool(&["check", a, &new, c]).expect(0);
    let said = tool(&["replace", "1", &new, a, c, "--yes"]).expect(0);
    assert!(said.out.contains("already"), "{said:?}");
    tool(&["check", a, &gone, c]).expect(2);
    // Now another one may go.
    std::fs::remove_file(a).unwrap();
    let pool = open(&[&new, c], true).unwrap();
    compare(&pool);
}

#[test]
fn a_replacement_that_is_only_begun_is_finished_while_the_pool_is_used() {
    let directory = temporary("replace-begin");
    let [a, b, c] = &mirrored(&directory);
    std::fs::remove_file(b).unwrap();
    let said = tool(&["replace", "1", b, a, c, "--begin", "--yes"]).expect(0);
    assert!(said.out.contains("while the pool is used"), "{said:?}");
    let said = tool(&["check", a, b, c]).expect(4);
    assert!(said.err.contains("open the pool degraded"), "{said:?}");
    let pool = open(&[a, b, c], true).unwrap();
    let begun = std::time::Instant::now();
    // The housekeeper makes it.
    while !pool.stats().unwrap().rebuild.is_some_and(|it| it.is_whole) {
        compare(&pool);
        assert!(begun.elapsed().as_secs() < 60, "{:?}", pool.stats().unwrap().rebuild);
    }
    pool.close().unwrap();
    tool(&["check", a, b, c]).expect(0);
    let said = tool(&["replace", "1", b, a, c, "--begin", "--yes"]).expect(0);
    assert!(said.out.contains("already"), "{said:?}");
    std::fs::remove_file(a).unwrap();
    compare(&open(&[b, c], true).unwrap());
}

#[test]
fn a_stale_device_takes_its_own_place_if_that_is_said() {
    let directory = temporary("replace-itself");
    let [a, b, c] = &mirrored(&directory);
    open(&[a, c], true).unwrap().close().unwrap();
    tool(&["replace", b, b, a, c, "--yes"]).expect(4);
    tool(&["replace", b, b, "--overwrite", b, a, c, "--yes"]).expect(0);
    tool(&["check", a, b, c]).expect(0);
    compare(&open(&[a, b, c], false).unwrap());
}

#[test]
fn a_rate_is_kept_to() {
    let directory = temporary("replace-rate");
    let [a, b, c] = &mirrored(&directory);
    std::fs::remove_file(b).unwrap();
    let begun = std::time::Instant::now();
    // Some 2.7 MB have a copy there.
    tool(&["replace", "1", b, a, c, "--rate", "2MiB", "--yes"]).expect(0);
    assert!(begun.elapsed().as_millis() > 800, "{:?}", begun.elapsed());
    tool(&["check", a, b, c]).expect(0);
}
