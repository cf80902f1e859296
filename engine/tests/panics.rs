//! Locks that a panicking data path leaves behind.
#![allow(unsafe_code)]

#[expect(dead_code, reason = "other tests want more of it")]
mod common;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use common::{Directory, quick, small};
use tidelog_engine::memory::DmaPool;
use tidelog_engine::path::{
    Backend, Capabilities, Completion, DataPath, Device, KernelDevices, OpenedPath, Operation,
    PathChoice, PathError, PathProvider, Refused, Waker,
};
use tidelog_engine::pool::{OpenError, OpenOptions, Pool};

/// The kernel's data path, which panics when it is polled with something in flight.
#[derive(Debug)]
struct Panicking;

impl Backend for Panicking {
    fn provider(&self, devices: Vec<Device>) -> Box<dyn PathProvider> {
        Box::new(Provider(KernelDevices::new(devices, PathChoice::Auto)))
    }
}

struct Provider(KernelDevices);

impl PathProvider for Provider {
    fn open(self: Box<Self>, depth: u32) -> Result<OpenedPath, PathError> {
        let OpenedPath { path, why_not } = Box::new(self.0).open(depth)?;
        Ok(OpenedPath { path: Box::new(PanickingPath(path)), why_not })
    }
}

struct PanickingPath(Box<dyn DataPath>);

// SAFETY: everything is the path's inside, which keeps what is in flight when it is dropped.
unsafe impl DataPath for PanickingPath {
    fn capabilities(&self) -> &Capabilities {
        self.0.capabilities()
    }

    fn register(&mut self, region: &DmaPool) {
        self.0.register(region);
    }

    fn submit(&mut self, operation: Operation) -> Result<(), Refused> {
        self.0.submit(operation)
    }

    fn ring(&mut self) -> io::Result<()> {
        self.0.ring()
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) -> usize {
        assert_eq!(self.0.in_flight(), 0, "a poll that panics, on purpose");
        self.0.poll(completions)
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.0.wait(timeout)
    }

    fn waker(&self) -> Waker {
        self.0.waker()
    }

    fn abort(&mut self, tag: u64) {
        self.0.abort(tag);
    }

    fn in_flight(&self) -> usize {
        self.0.in_flight()
    }

    fn abort_all(&mut self) {
        self.0.abort_all();
    }
}

#[test]
fn a_share_stays_locked_where_nobody_knows_what_devices_still_do() {
    let directory = Directory::new("panics");
    let specs = directory.devices();
    Pool::format(&specs, &small()).unwrap();
    let options = OpenOptions { backend: Some(Arc::new(Panicking)), ..quick() };
    assert!(Pool::open(&specs, &options).is_err());
    let again = Pool::open(&specs, &quick()).map(drop);
    assert!(matches!(again, Err(OpenError::ShareHeld { .. })), "{again:?}");
}
