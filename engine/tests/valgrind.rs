//! The path `uring` under valgrind, where a thread that waits in `io_uring_enter` would keep all
//! others waiting: its reactor waits in `poll`.

use std::io::Write;
use std::process::{Command, ExitCode};

use tidelog_engine::layout::TensorId;
use tidelog_engine::memory::Source;
use tidelog_engine::path::{DeviceSpec, PathChoice};
use tidelog_engine::pool::{FormatOptions, OpenOptions, Pool, PutOptions};
use tidelog_engine::units::ByteCount;

/// Set for the program that runs under valgrind: where it makes its pool.
const POOL: &str = "TIDELOG_TEST_POOL";

fn main() -> ExitCode {
    if let Some(path) = std::env::var_os(POOL) {
        use_a_pool(&DeviceSpec::new(path));
        return ExitCode::SUCCESS;
    }
    if Command::new("valgrind").arg("--version").output().is_err() {
        let _ = writeln!(std::io::stderr(), "SKIPPED valgrind: it is not installed");
        return ExitCode::SUCCESS;
    }
    let name = format!("tidelog-valgrind-{}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let ran = Command::new("timeout")
        .args(["120", "valgrind", "--tool=none", "--quiet"])
        .arg(std::env::current_exe().unwrap())
        .env(POOL, &path)
        .output();
    let _ = std::fs::remove_file(&path);
    let ran = ran.unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{}: {said}", ran.status);
    ExitCode::SUCCESS
}

fn use_a_pool(spec: &DeviceSpec) {
    let specs = std::slice::from_ref(spec);
    let device_size = Some(ByteCount::mib(16));
    Pool::format(specs, &FormatOptions { device_size, ..FormatOptions::default() }).unwrap();
    let options =
        OpenOptions { huge_pages: false, path: PathChoice::Uring, ..OpenOptions::default() };
    let pool = Pool::open(specs, &options).unwrap();
    for id in 0..20 {
        let put = pool.put(TensorId(id), Source::from(vec![7; 100_000]), PutOptions::default());
        put.unwrap().wait().unwrap();
    }
    assert_eq!(pool.stats().unwrap().reactor.capabilities.kind.to_string(), "uring");
    pool.close().unwrap();
}
