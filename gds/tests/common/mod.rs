//! Devices and queues for tests on the fake.
#![allow(dead_code, unreachable_pub)]

use std::path::Path;

use tidelog_engine::path::{Device, DeviceSpec, OpenMode};
use tidelog_engine::units::ByteCount;
use tidelog_gds::queue::{Queue, QueueOptions};

/// A file of zeroes as a device.
pub fn device(directory: &Path, name: &str, bytes: u64) -> Device {
    let path = directory.join(name);
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(bytes).unwrap();
    Device::open(&DeviceSpec::new(&path), OpenMode::default()).unwrap()
}

/// A small ring, so that it runs out.
pub fn small() -> QueueOptions {
    QueueOptions { staging: ByteCount::kib(64), chunk: ByteCount::kib(8), depth: 16 }
}

/// Advances until everything in flight is answered; answers in the order they came.
pub fn finish(queue: &mut Queue) -> Vec<tidelog_gds::queue::Answer> {
    let mut answers = Vec::new();
    for _ in 0..1_000_000 {
        queue.advance().unwrap();
        answers.extend(queue.answers());
        if queue.in_flight() == 0 {
            return answers;
        }
    }
    panic!("{} requests were never answered", queue.in_flight());
}
