//! A reactor with nothing to do sleeps. Alone in its process, so that all CPU time is the
//! reactor's.

use std::time::Duration;

use tidelog_engine::memory::Source;
use tidelog_engine::path::{Device, DeviceSpec, KernelDevices, OpenMode, PathChoice};
use tidelog_engine::schedule::{Finish, Piece, Reactor, ReactorOptions, Transfer, Urgency};
use tidelog_engine::units::{ByteCount, DeviceIndex};

/// The CPU time of all threads of this process.
fn cpu_time() -> Duration {
    let spent = |task: std::io::Result<std::fs::DirEntry>| {
        let text = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    };
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    Duration::from_nanos(tasks.filter_map(spent).sum())
}

#[test]
fn idle_reactors_use_less_than_a_thousandth_of_a_cpu() {
    let spec = DeviceSpec::new(format!("/var/tmp/tidelog-idle-{}", std::process::id()));
    let mut reactors = Vec::new();
    for choice in [PathChoice::Uring, PathChoice::Posix] {
        let device = Device::create(&spec, ByteCount::mib(1), false, OpenMode::default()).unwrap();
        std::fs::remove_file(spec.path()).unwrap();
        let provider = Box::new(KernelDevices::new(vec![device], choice));
        let reactor = Reactor::start(provider, ReactorOptions::default()).unwrap();
        // Waking it once first: what is left standing by a wake-up would make it spin from then on.
        for _ in 0..100 {
            let pieces = vec![Piece::new(DeviceIndex(0), ByteCount(0), 0, 5000)];
            let write = Transfer::Write { source: Source::from(vec![1; 5000]), pieces };
            let ticket = reactor.submit(write, Urgency::Ahead, None, Finish::nothing()).unwrap();
            ticket.wait().unwrap();
        }
        reactors.push(reactor);
    }
    std::thread::sleep(Duration::from_millis(50));
    let before = cpu_time();
    std::thread::sleep(Duration::from_secs(10));
    let spent = cpu_time().saturating_sub(before);
    assert!(spent < Duration::from_millis(10), "{spent:?} in ten seconds, of both together");
}
