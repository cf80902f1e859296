//! Two processes that want one pool.

use std::time::Duration;

use tidelog_engine::path::{Device, DeviceOpenError, DeviceSpec, OpenMode};
use tidelog_engine::pool::inspect::{check, inspect, wipe};
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

/// A child of fork that does nothing, until this is dropped.
struct ForkedChild(i32);

impl ForkedChild {
    /// Forks a process by the C library, which has its say in it, or by the kernel alone.
    #[expect(unsafe_code, reason = "a fork without an execution is what is tested")]
    fn new(by_the_kernel: bool) -> Self {
        // SAFETY: the child waits to be ended, and does nothing.
        let process = unsafe {
            if by_the_kernel {
                libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as i32
            } else {
                libc::fork()
            }
        };
        assert!(process >= 0);
        if process != 0 {
            return Self(process);
        }
        loop {
            // SAFETY: as above.
            unsafe { libc::pause() };
        }
    }
}

impl Drop for ForkedChild {
    #[expect(unsafe_code, reason = "the child executes nothing that would end")]
    fn drop(&mut self) {
        // SAFETY: the child is ours.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

#[test]
fn a_block_device_that_was_claimed_is_free_though_forked_children_live() {
    let test = "processes::a_block_device_that_was_claimed_is_free_though_forked_children_live";
    let _watchdog = watch(test);
    let rig = match Rig::new("claims", Kind::Loops(LoopOptions::default())) {
        Ok(rig) => rig,
        Err(why) => return skip(test, &why),
    };
    let overwrite = FormatOptions { overwrite: true, discard: true, ..format_options() };
    let claim = OpenMode { exclusive: true, ..OpenMode::default() };
    let is_claimed = || {
        let opened = Device::open(&rig.specs[0], claim);
        matches!(opened, Err(DeviceOpenError::InUse { .. }))
    };
    let mut children = Vec::new();
    for by_the_kernel in [false, true] {
        let before = children.len();
        // Whoever is forked while a device is claimed, by whichever thread.
        Pool::format_with(&rig.specs, &overwrite, &mut |_| {
            assert!(is_claimed(), "two claims on one device");
            children.push(ForkedChild::new(by_the_kernel));
        })
        .unwrap();
        let measured = children.len();
        Pool::calibrate(&rig.specs, false, &mut |_| {
            if children.len() < measured + 2 {
                children.push(ForkedChild::new(by_the_kernel));
            }
        })
        .unwrap();
        assert!(measured > before && children.len() > measured);
        assert!(!is_claimed(), "a child has the claim");
        rig.open().close().unwrap();
    }
    assert_eq!(wipe(&rig.specs, false).unwrap().len(), 3 * rig.specs.len());
}
