//! Two processes that want one pool.

use std::time::Duration;

use tidelog_engine::path::DeviceSpec;
use tidelog_engine::pool::inspect::{check, inspect};
use tidelog_engine::pool::{FormatError, FormatOptions, OpenError, Pool};
use tidelog_tests::load::{Ledger, Load, LoadOptions};
use tidelog_tests::machine::{LoopOptions, Other, skip, told};

use super::rig::{Kind, Rig, format_options, open_options, watch};

fn devices(rig: &Rig) -> String {
    rig.specs.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

#[test]
fn a_loaded_pool_is_refused_to_others_by_name_and_looked_at_and_opened_once_its_holder_is_killed() {
    let test = "processes::a_loaded_pool_is_refused_to_others_by_name_and_looked_at_and_opened_once_its_holder_is_killed";
    if let Some(devices) = told() {
        let pool = Pool::open(&DeviceSpec::parse_list(&devices).unwrap(), &open_options()).unwrap();
        let load = Load::start(&pool, &Ledger::new(LoadOptions::default()));
        load.run(20, Duration::from_secs(10));
        Other::say("loaded");
        load.run(u64::MAX, Duration::from_secs(600));
        return;
    }
    let _watchdog = watch(test);
    let loops = Rig::new("held-loop", Kind::Loops(LoopOptions::default()));
    let loops = loops.map_err(|why| skip(test, &why)).ok();
    for rig in loops.into_iter().chain([Rig::new("held-file", Kind::Files).unwrap()]) {
        let mut other = Other::start(test, &devices(&rig), &[]);
        assert_eq!(other.read_line().as_deref(), Some("loaded"));
        let is_named = |error: &dyn std::fmt::Display| {
            error.to_string().contains(&format!("process {}", other.id()))
        };
        for _ in 0..10 {
            let Err(error) = Pool::open(&rig.specs, &open_options()) else {
                panic!("two processes hold one share")
            };
            assert!(matches!(error, OpenError::ShareHeld { .. }) && is_named(&error), "{error}");
            let error = check(&rig.specs, false, &mut |_| ()).unwrap_err();
            assert!(matches!(error, OpenError::ShareHeld { .. }) && is_named(&error), "{error}");
            let overwrite = FormatOptions { overwrite: true, ..format_options() };
            let error = Pool::format(&rig.specs, &overwrite).unwrap_err();
            assert!(matches!(error, FormatError::InUse { .. }) && is_named(&error), "{error}");
            // Looking is allowed at any time, and finds the pool whatever is being written.
            let view = inspect(&rig.specs).unwrap();
            assert!(view.missing.is_empty() && view.shares[0].held);
            let holder = view.shares[0].holder.as_ref().unwrap();
            assert_eq!(holder.process, other.id());
        }
        other.kill();
        let pool = Pool::open(&rig.specs, &open_options()).unwrap();
        assert_eq!(pool.scrub().unwrap().damaged, []);
        pool.audit().unwrap();
        pool.close().unwrap();
        assert_eq!(check(&rig.specs, false, &mut |_| ()).unwrap().damage, []);
    }
}

#[test]
fn of_two_formatters_at_once_the_pool_is_whole_and_belongs_to_one_that_was_told_so() {
    let test = "processes::of_two_formatters_at_once_the_pool_is_whole_and_belongs_to_one_that_was_told_so";
    if let Some(devices) = told() {
        let specs = DeviceSpec::parse_list(&devices).unwrap();
        let overwrite = FormatOptions { overwrite: true, ..format_options() };
        Other::say("ready");
        match Pool::format(&specs, &overwrite) {
            Ok(made) => Other::say(format!("made {:032x}", made.pool)),
            Err(error) => Other::say(error),
        }
        return;
    }
    let _watchdog = watch(test);
    let rig = Rig::new("formatters", Kind::Files).unwrap();
    for _ in 0..8 {
        let mut both = [(); 2].map(|()| Other::start(test, &devices(&rig), &[]));
        for other in &mut both {
            assert_eq!(other.read_line().as_deref(), Some("ready"));
        }
        let results = both.each_mut().map(|other| other.read_line().expect("an answer"));
        let made: Vec<&str> = results.iter().filter_map(|it| it.strip_prefix("made ")).collect();
        let view = inspect(&rig.specs).unwrap();
        let pool = format!("{:032x}", view.superblock.pool);
        assert!(made.contains(&pool.as_str()), "{pool} is of neither: {results:?}");
        for refused in results.iter().filter(|answer| !answer.starts_with("made ")) {
            assert!(refused.contains("is in use"), "{refused}");
        }
        for mut other in both {
            assert!(other.wait().unwrap().success());
        }
        assert_eq!(check(&rig.specs, false, &mut |_| ()).unwrap().damage, []);
        rig.open().audit().unwrap();
    }
}
