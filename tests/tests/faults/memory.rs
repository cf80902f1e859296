//! Tests of missing memory: what is asked for and not there is an error, and what is there is
//! enough to go on.

use std::ffi::OsStr;
use std::process::Command;
use std::time::Duration;

use tidelog_engine::path::{DeviceSpec, Feature, PathKind};
use tidelog_engine::pool::{OpenError, OpenOptions, Pool};
use tidelog_engine::schedule::StartError;
use tidelog_engine::units::ByteCount;
use tidelog_tests::load::{Ledger, Load, LoadOptions};
use tidelog_tests::machine::{MemoryLimit, Other, skip, told};

use super::rig::{Kind, Rig, only_honest_errors, open_options, watch};

/// The pool of the process that started this one.
fn specs_told(devices: &str) -> Vec<DeviceSpec> {
    DeviceSpec::parse_list(devices).unwrap()
}

fn devices(rig: &Rig) -> String {
    let names = rig.files.iter().map(|file| file.display().to_string());
    names.collect::<Vec<_>>().join(",")
}

/// Words that run a program once a shell has done something first.
fn after(script: &str) -> [&OsStr; 3] {
    ["sh", "-c", script].map(OsStr::new)
}

#[test]
fn staging_memory_that_cannot_be_had_is_an_error_and_less_of_it_is_enough() {
    let test = "memory::staging_memory_that_cannot_be_had_is_an_error_and_less_of_it_is_enough";
    if let Some(devices) = told() {
        let specs = specs_told(&devices);
        let options = OpenOptions { staging: ByteCount::gib(2), ..open_options() };
        match Pool::open(&specs, &options) {
            Err(OpenError::Start(StartError::Memory(error))) => Other::say(error),
            Err(other) => Other::say(format!("refused for another reason: {other}")),
            Ok(_) => Other::say("2 GiB were there"),
        }
        let pool = Pool::open(&specs, &open_options()).unwrap();
        let ledger = Ledger::new(LoadOptions::default());
        let load = Load::start(&pool, &ledger);
        load.run(100, Duration::from_secs(10));
        load.stop();
        Other::say(only_honest_errors(&ledger, &[]));
        return;
    }
    let _watchdog = watch(test);
    let rig = Rig::new("address-space", Kind::Files).unwrap();
    let script = "ulimit -v 1048576 && exec \"$0\" \"$@\"";
    let mut other = Other::start(test, &devices(&rig), &after(script));
    let refused = other.read_line().expect("the process was ended by an allocation that failed");
    assert!(refused.contains("2.0 GiB") || refused.contains("2 GiB"), "{refused}");
    assert_eq!(other.read_line().as_deref(), Some("0"), "errors of a load with little memory");
    assert!(other.wait().unwrap().success());
    rig.open().audit().unwrap();
}

#[test]
fn staging_memory_beyond_the_memlock_limit_is_not_registered_and_the_pool_says_so_and_runs() {
    let test = "memory::staging_memory_beyond_the_memlock_limit_is_not_registered_and_the_pool_says_so_and_runs";
    if let Some(devices) = told() {
        let pool = Pool::open(&specs_told(&devices), &open_options()).unwrap();
        let ledger = Ledger::new(LoadOptions::default());
        let load = Load::start(&pool, &ledger);
        load.run(100, Duration::from_secs(10));
        load.stop();
        ledger.verify_scratch(&pool).unwrap();
        ledger.verify_durable(&pool, |_, _| false).unwrap();
        let found = pool.stats().unwrap().reactor.capabilities;
        Other::say(found.kind);
        Other::say(match found.registered_buffers {
            Feature::On => "registered".into(),
            Feature::Off(why) => why,
        });
        Other::say(only_honest_errors(&ledger, &[]));
        return;
    }
    let _watchdog = watch(test);
    let Some(rightless) = without_ipc_lock() else {
        return skip(test, "CAP_IPC_LOCK lifts the limit, and there is no setpriv to give it up");
    };
    // Less than the staging memory of 1 MiB, then more; in KiB.
    for (limit, fits) in [(256, false), (8192, true)] {
        let rig = Rig::new(&format!("memlock-{limit}"), Kind::Files).unwrap();
        let script = format!("ulimit -l {limit} && exec {rightless} \"$0\" \"$@\"");
        let mut other = Other::start(test, &devices(&rig), &after(&script));
        let kind = other.read_line().expect("a pool is opened under any limit");
        if kind != PathKind::Uring.to_string() {
            return skip(test, &format!("{kind} registers no memory"));
        }
        let registered = other.read_line().expect("it says whether memory is registered");
        if fits {
            assert_eq!(registered, "registered", "with a limit of {limit} KiB");
        } else {
            let says = ["1 MiB", "memlock limit of 256 KiB", "ulimit -l"];
            assert!(says.iter().all(|words| registered.contains(words)), "{registered}");
        }
        assert_eq!(other.read_line().as_deref(), Some("0"), "errors of a load under {limit} KiB");
        assert!(other.wait().unwrap().success());
        rig.open().audit().unwrap();
    }
}

/// Returns the command that runs a program without the right to lock memory beyond the limit;
/// nothing, where this process has no such right. `None` if that cannot be had.
fn without_ipc_lock() -> Option<&'static str> {
    const CAP_IPC_LOCK: u32 = 14;
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    let effective = u64::from_str_radix(effective.trim(), 16).unwrap();
    if effective & 1 << CAP_IPC_LOCK == 0 {
        return Some("");
    }
    let setpriv = "setpriv --inh-caps=-ipc_lock --bounding-set=-ipc_lock --";
    let tried = Command::new("sh").args(["-c", &format!("{setpriv} true")]).status();
    tried.is_ok_and(|status| status.success()).then_some(setpriv)
}

#[test]
fn a_load_goes_on_where_the_kernel_takes_the_page_cache_away_all_the_time() {
    let test = "memory::a_load_goes_on_where_the_kernel_takes_the_page_cache_away_all_the_time";
    if let Some(devices) = told() {
        let specs = specs_told(&devices);
        let options = OpenOptions { buffered: true, ..open_options() };
        let ledger = Ledger::new(LoadOptions::default());
        for _ in 0..2 {
            let pool = Pool::open(&specs, &options).unwrap();
            ledger.verify_durable(&pool, |_, _| false).unwrap();
            let load = Load::start(&pool, &ledger);
            load.run(400, Duration::from_secs(10));
            load.stop();
            ledger.verify_scratch(&pool).unwrap();
            pool.audit().unwrap();
            // Scratch tensors end here; what is known of them is of no use to the next.
            ledger.forget_scratch();
            pool.close().unwrap();
        }
        Other::say(only_honest_errors(&ledger, &[]));
        return;
    }
    let _watchdog = watch(test);
    // Less than the pool's files, so that their cached pages cannot stay.
    let limit = match MemoryLimit::new("pressure", 24 << 20) {
        Ok(limit) => limit,
        Err(why) => return skip(test, &why),
    };
    let rig = Rig::new("pressure", Kind::Files).unwrap();
    let script = format!("echo $$ > {} && exec \"$0\" \"$@\"", limit.processes().display());
    let mut other = Other::start(test, &devices(&rig), &after(&script));
    assert_eq!(other.read_line().as_deref(), Some("0"), "errors of a load under memory pressure");
    assert!(other.wait().unwrap().success());
    rig.open().audit().unwrap();
}
