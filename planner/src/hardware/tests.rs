use super::*;
use crate::simulate::with_expectations;
use crate::testing::training;
use serde_json::{Value, json};

fn hardware(more: &Value) -> Result<MachineFile, HardwareError> {
    let mut file = json!({
        "memory": 1000, "verify": 1_000_000_000_000_u64,
        "drives": {"model": "990 PRO 2TB", "count": 4, "shared": true},
    });
    for (key, value) in more.as_object().unwrap() {
        file[key] = value.clone();
    }
    MachineFile::from_json(&file.to_string())
}

#[test]
fn a_machine_may_be_given_as_it_is() {
    let machine = crate::testing::machine(100);
    let text = serde_json::to_string(&machine).unwrap();
    let file = MachineFile::from_json(&text).unwrap();
    assert_eq!((file.machine, file.hardware), (machine, None));
    let error = MachineFile::from_json("{}").unwrap_err().to_string();
    assert!(error.contains("budget"), "{error}");
}

#[test]
fn named_drives_have_rates_and_a_rating() {
    let file = hardware(&json!({})).unwrap();
    assert_eq!(file.machine.ssd.read, Bandwidth(4 * 7_450_000_000));
    let drive = file.hardware.unwrap().drives.drive().unwrap();
    assert_eq!(drive.endurance, Some(Bytes(1_200_000_000_000_000)));
    let daily = known_drives().into_iter().find(|drive| drive.model == "PM1743 7.68TB").unwrap();
    assert_eq!(daily.endurance, Some(Bytes(7_680_000_000_000 * 1825)));
    let unknown = hardware(&json!({"drives": {"model": "BigDisk", "count": 1}})).unwrap_err();
    let said = unknown.to_string();
    assert!(
        said.contains("BigDisk") && said.contains("drives.read") && said.contains("990 PRO 2TB")
    );
}

#[test]
fn gpus_share_drives_or_do_not() {
    let shared = hardware(&json!({"gpus": 2})).unwrap().machine;
    assert_eq!(shared.ssd.write, Bandwidth(2 * 6_900_000_000));
    let own = json!({"gpus": 2, "drives": {"model": "990 PRO 2TB", "count": 4}});
    assert_eq!(hardware(&own).unwrap().machine.ssd.write, Bandwidth(4 * 6_900_000_000));
}

#[test]
fn host_memory_gets_what_the_ssds_leave_of_the_link() {
    let host = json!({"read": 50_000_000_000_u64, "write": 50_000_000_000_u64, "latency_ns": 9, "memory": 600});
    let link = |rate: u64| json!({"gpus": 2, "host": host, "pcie": {"read": rate, "write": rate}});
    let machine = hardware(&link(20_000_000_000)).unwrap().machine;
    assert_eq!(machine.ssd.read, Bandwidth(14_900_000_000));
    let host = machine.host.unwrap();
    assert_eq!((host.read, host.write), (Bandwidth(5_100_000_000), Bandwidth(6_200_000_000)));
    assert_eq!(host.memory, Bytes(300), "the cap is for both GPUs");
    assert!(matches!(
        hardware(&link(14_000_000_000)),
        Err(HardwareError::LinkFull { rate: 14_000_000_000 })
    ));
}

/// A drive that does 800 of either alone, and 300 of each at once.
fn contended() -> Drive {
    let point = MixedRate { read: Bandwidth(300), write: Bandwidth(300) };
    let drives = Drives {
        read: Some(Bandwidth(800)),
        write: Some(Bandwidth(800)),
        mixed: vec![point],
        ..Drives::of("mine", 1)
    };
    drives.drive().unwrap()
}

#[test]
fn a_mixed_curve_is_followed_between_its_points() {
    let drive = contended();
    let mix = |met, share| Mix {
        read_met_per_mille: met,
        write_met_per_mille: met,
        read_share_per_mille: share,
    };
    let rates = |met, share| {
        let (read, write) = drive.rates(mix(met, share));
        (read.0, write.0)
    };
    assert_eq!(rates(0, 500), (800, 800));
    assert_eq!(rates(1000, 500), (300, 300));
    // Never nothing: whoever divides by a rate must be able to.
    assert_eq!(rates(1000, 0), (1, 800));
    assert_eq!(rates(1000, 1000), (800, 1));
    // Three bytes read for each written, between (300, 300) and (800, 0).
    assert_eq!(rates(1000, 750), (514, 171));
    // Half of the bytes at 800, half at 300.
    assert_eq!(rates(500, 500), (436, 436));
}

#[test]
fn a_plan_settles_on_the_rates_that_it_meets() {
    let trace = training(6, 50, 40, 30);
    let planner = |trace: &crate::trace::Trace, machine: &Machine| {
        let plan = crate::algorithm1::algorithm1(
            trace,
            machine,
            crate::algorithm1::Algorithm1Options::default(),
        );
        with_expectations(plan, trace, machine)
    };
    let drives = |mixed: Value| {
        json!({"memory": 350, "drives": {"model": "mine", "count": 2, "latency_ns": 0,
               "read": 500_000_000, "write": 500_000_000, "mixed": mixed}})
    };
    let settled = |mixed: Value| {
        let hardware = hardware(&drives(mixed)).unwrap().hardware.unwrap();
        settle(&hardware, &trace, &planner).unwrap()
    };
    let (machine, _, duplex) = settled(json!([]));
    assert_eq!(machine.ssd.read, Bandwidth(1_000_000_000));
    assert!(Mix::of(&duplex).read_met_per_mille > 0, "reads and writes meet in this step");
    let (machine, _, contended) = settled(json!([{"read": 250_000_000, "write": 250_000_000}]));
    assert!((500_000_000..1_000_000_000).contains(&machine.ssd.read.0), "{machine:?}");
    assert!(contended.time > duplex.time);
}

fn run(jobs: &Value) -> String {
    json!({"fio version": "x", "jobs": jobs}).to_string()
}

fn job(rw: &str, read: u64, write: u64, more: &Value) -> Value {
    let mut job = json!({
        "jobname": rw, "groupid": 0, "error": 0,
        "job options": {"rw": rw, "filename": "/dev/a:/dev/b", "iodepth": "32"},
        "read": {"bw_bytes": read, "io_bytes": 4_000_000, "total_ios": 4, "lat_ns": {"mean": 350_000.0}},
        "write": {"bw_bytes": write},
    });
    for (key, value) in more.as_object().unwrap() {
        job[key] = value.clone();
    }
    job
}

#[test]
fn a_benchmark_becomes_drives() {
    let read = run(&json!([job("read", 8_000_000_000, 0, &json!({}))]));
    let write = run(&json!([
        job("write", 0, 2_000_000_000, &json!({})),
        job("write", 0, 3_000_000_000, &json!({})),
    ]));
    let mixed = run(&json!([job("rw", 3_000_000_000, 2_000_000_000, &json!({}))]));
    let options =
        json!({"job options": {"rw": "read", "filename": "/dev/a:/dev/b", "iodepth": "1"}});
    let lone = run(&json!([job("read", 2_000_000_000, 0, &options)]));
    let drives = calibrate::drives("990 PRO 2TB", &[&read, &write, &mixed, &lone]).unwrap();
    assert_eq!((drives.count, drives.read), (2, Some(Bandwidth(4_000_000_000))));
    assert_eq!(drives.write, Some(Bandwidth(2_500_000_000)), "jobs of a group ran together");
    let point = MixedRate { read: Bandwidth(1_500_000_000), write: Bandwidth(1_000_000_000) };
    assert_eq!(drives.mixed, [point]);
    // A megabyte takes 250 us of the 350 at 4 GB/s.
    assert_eq!(drives.latency_ns, Some(Nanos(100_000)));
    let file = hardware(&json!({})).unwrap().hardware.unwrap().with_measured(drives);
    assert_eq!(file.drives.drive().unwrap().endurance, Some(Bytes(1_200_000_000_000_000)));
}

#[test]
fn a_benchmark_that_says_too_little_is_refused() {
    let read = run(&json!([job("read", 8, 0, &json!({}))]));
    let failed = run(&json!([job("read", 8, 0, &json!({"error": 1}))]));
    let other = json!({"job options": {"rw": "write", "filename": "/dev/a"}});
    let fewer = run(&json!([job("write", 0, 8, &other)]));
    for (runs, said) in [
        (vec![read.as_str()], "no run only writes"),
        (vec![failed.as_str()], "failed when it was measured"),
        (vec![read.as_str(), fewer.as_str()], "over 2 and over 1 devices"),
        (vec!["{}"], "no list of jobs"),
        (vec!["nothing"], "not readable"),
    ] {
        let error = calibrate::drives("mine", &runs).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn what_a_file_says_wrongly_is_refused_by_its_name_there() {
    let link = |read: u64| json!({"read": read, "write": 9, "latency_ns": 9, "memory": 600});
    let drives = |more: Value| {
        let mut drives = json!({"model": "mine", "count": 2, "read": 900, "write": 900});
        for (key, value) in more.as_object().unwrap() {
            drives[key] = value.clone();
        }
        json!({ "drives": drives })
    };
    for (more, said) in [
        (json!({"verify": 0}), "verify is 0 bytes per second"),
        (json!({"gpus": 0}), "gpus is 0 GPUs"),
        (json!({"memory": 0}), "memory is 0 bytes"),
        (json!({"memory": -5}), "memory: invalid value: integer `-5`, expected a whole number"),
        (json!({"memory": 16e9}), "memory: invalid type: floating point"),
        (json!({"host": link(0)}), "host.read is 0 bytes per second"),
        (json!({"pcie": {"read": 0, "write": 1}}), "pcie.read is 0 bytes per second"),
        (drives(json!({"read": 0})), "drives.read is 0 bytes per second"),
        (drives(json!({"count": 0})), "drives.count is 0 drives"),
        (drives(json!({"read": u64::MAX, "count": 9})), "drives.read is 18446744073709551615"),
        (drives(json!({"read": 1_u64 << 53, "count": 9})), "ssd.read is 81064793292668928"),
        (drives(json!({"capacity": 0})), "drives.capacity is 0 bytes"),
        (drives(json!({"tbw": -3.5})), "drives.tbw is -3.5: a rating is a number above 0"),
        (drives(json!({"dwpd": 0})), "drives.dwpd is 0: a rating is a number above 0"),
        (drives(json!({"model": "990 pro 2tb", "read": null})), "did you mean \"990 PRO 2TB\"?"),
    ] {
        let found = hardware(&more).unwrap_err().to_string();
        assert!(found.contains(said), "{more}: {found}");
    }
    for (machine, said) in [
        (json!({"read": 0, "write": 1, "latency_ns": 0}), "ssd.read is 0 bytes per second"),
        (json!({"read": "fast", "write": 1, "latency_ns": 0}), "ssd.read: invalid type: string"),
    ] {
        let text = json!({"budget": 9, "staging": 0, "verify": 9, "ssd": machine}).to_string();
        let found = MachineFile::from_json(&text).unwrap_err().to_string();
        assert!(found.contains(said), "{found}");
    }
}
