//! Pools in a container whose seccomp profile forbids `io_uring`: the posix path, and words about
//! it.

mod common;

use std::collections::BTreeMap;

use common::{Directory, get, quick, small, stage};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use tidelog_engine::layout::TensorId;
use tidelog_engine::path::{PathChoice, PathError, PathKind};
use tidelog_engine::pool::{OpenError, OpenOptions, Pool};
use tidelog_engine::schedule::StartError;

/// Runs `check` on a thread of its own on which, and on whose threads, every call of `io_uring` is
/// answered with this error number. A filter stays for good, but only on them.
fn forbidden(errno: i32, check: impl FnOnce() + Send + 'static) {
    let calls = [libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];
    let rules: BTreeMap<i64, _> = calls.into_iter().map(|call| (call, Vec::new())).collect();
    let refuse = SeccompAction::Errno(errno.cast_unsigned());
    let architecture = std::env::consts::ARCH.try_into().unwrap();
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, architecture).unwrap();
    let program: BpfProgram = filter.try_into().unwrap();
    let thread = std::thread::spawn(move || {
        seccompiler::apply_filter(&program).unwrap();
        check();
    });
    thread.join().unwrap();
}

/// Docker's and containerd's profiles answer EPERM; some sandboxes pretend that the kernel is too
/// old.
const REFUSALS: [(i32, &str); 2] =
    [(libc::EPERM, "io_uring is forbidden here"), (libc::ENOSYS, "this kernel has no io_uring")];

#[test]
fn auto_takes_posix_says_why_and_works() {
    for (errno, why) in REFUSALS {
        forbidden(errno, move || {
            let directory = Directory::new(&format!("seccomp-auto-{errno}"));
            let specs = directory.devices();
            Pool::format(&specs, &small()).unwrap();
            let content: Vec<u8> = (0..300_001_u32).map(|index| (index * 7 / 5) as u8).collect();
            for put in [true, false] {
                let pool = Pool::open(&specs, &quick()).unwrap();
                let stats = pool.stats().unwrap().reactor;
                assert_eq!(stats.capabilities.kind, PathKind::Posix);
                let [said] = &stats.why_not[..] else { panic!("{:?}", stats.why_not) };
                assert!(said.contains("uring") && said.contains(why), "{said}");
                if put {
                    let mut batch = pool.batch();
                    stage(&mut batch, "weight", content.clone());
                    batch.commit().unwrap();
                }
                assert_eq!(get(&pool, TensorId::from_name("weight")).unwrap(), content);
                pool.audit().unwrap();
                pool.close().unwrap();
            }
        });
    }
}

#[test]
fn uring_asked_for_by_name_is_refused_with_the_reason() {
    for (errno, why) in REFUSALS {
        forbidden(errno, move || {
            let directory = Directory::new(&format!("seccomp-named-{errno}"));
            let specs = directory.devices();
            Pool::format(&specs, &small()).unwrap();
            let options = OpenOptions { path: PathChoice::Uring, ..quick() };
            let Err(OpenError::Start(StartError::Path(error))) = Pool::open(&specs, &options)
            else {
                panic!("a path that is forbidden was opened, or another one was taken");
            };
            assert!(matches!(error, PathError::Unavailable { kind: PathKind::Uring, .. }));
            assert!(error.to_string().contains(why), "{error}");
            let posix = OpenOptions { path: PathChoice::Posix, ..quick() };
            let stats = Pool::open(&specs, &posix).unwrap().stats().unwrap();
            assert!(stats.reactor.why_not.is_empty(), "what was asked for needs no excuse");
        });
    }
}
