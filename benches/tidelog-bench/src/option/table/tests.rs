//! The table of options as a whole, and what its values become.

use super::*;

#[test]
fn every_name_is_there_once() {
    let mut names: Vec<&str> =
        OPTIONS.iter().flat_map(|spec| spec.aliases.iter().copied().chain([spec.name])).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
}

#[test]
fn a_wrong_value_names_its_option() {
    let error = apply(&mut JobOptions::default(), "iodepth", "deep").unwrap_err();
    assert!(error.to_string().starts_with("iodepth=deep: "), "{error}");
    assert!(apply(&mut JobOptions::default(), "mem", "shm").is_err(), "nothing is ignored");
}

#[test]
fn engines_of_others_are_refused_with_what_to_take() {
    for (name, advice) in [("io_uring", "tidelog-uring"), ("libaio", "tidelog-posix")] {
        let error = apply(&mut JobOptions::default(), "ioengine", name).unwrap_err();
        assert!(error.to_string().contains(advice), "{error}");
    }
}

#[cfg(not(feature = "spdk"))]
#[test]
fn a_build_without_spdk_says_how_to_get_one() {
    let error = apply(&mut JobOptions::default(), "ioengine", "tidelog-spdk").unwrap_err();
    assert!(error.to_string().contains("--features spdk"), "{error}");
}

#[test]
fn a_rate_is_for_all_directions_or_for_each() {
    let rate = |text| {
        let mut job = JobOptions::default();
        apply(&mut job, "rate", text).map(|()| job.rate)
    };
    assert_eq!(rate("1m").unwrap(), [Some(1 << 20); 3]);
    assert_eq!(rate("1m,,4k").unwrap(), [Some(1 << 20), None, Some(4096)]);
    assert_eq!(rate("0,1m").unwrap(), [None, Some(1 << 20), None]);
    assert!(rate("1,2,3,4").is_err() && rate("fast").is_err());
}

#[test]
fn the_last_value_of_an_option_counts() {
    let mut job = JobOptions::default();
    for depth in ["4", "8"] {
        apply(&mut job, "iodepth", depth).unwrap();
    }
    assert_eq!(job.iodepth, 8);
    assert_eq!(job.given, [("iodepth".to_owned(), "8".to_owned())]);
}
