//! An engine that skips a flush, as a bug of it would: flushes are answered, and no device ever
//! sees one. Forced writes are still forced. Images of its disk must lose tensors.
#![allow(unsafe_code)]

use std::io;
use std::time::Duration;

use tidelog_engine::memory::DmaPool;
use tidelog_engine::path::{
    Action, Backend, Capabilities, Completion, DataPath, Device, KernelDevices, OpenedPath,
    Operation, PathChoice, PathError, PathProvider, Refused, Waker,
};

/// The kernel's data path without flushes.
#[derive(Debug)]
pub struct Unflushed;

impl Backend for Unflushed {
    fn provider(&self, devices: Vec<Device>) -> Box<dyn PathProvider> {
        Box::new(Provider(KernelDevices::new(devices, PathChoice::Auto)))
    }
}

struct Provider(KernelDevices);

impl PathProvider for Provider {
    fn open(self: Box<Self>, depth: u32) -> Result<OpenedPath, PathError> {
        let OpenedPath { path, why_not } = Box::new(self.0).open(depth)?;
        Ok(OpenedPath { path: Box::new(Unflushing { path, skipped: Vec::new() }), why_not })
    }
}

struct Unflushing {
    path: Box<dyn DataPath>,
    /// Completions of flushes that were never sent.
    skipped: Vec<Completion>,
}

// SAFETY: flushes have no buffer and move nothing; everything else is the path's own.
unsafe impl DataPath for Unflushing {
    fn capabilities(&self) -> &Capabilities {
        self.path.capabilities()
    }

    fn register(&mut self, region: &DmaPool) {
        self.path.register(region);
    }

    fn submit(&mut self, operation: Operation) -> Result<(), Refused> {
        if !matches!(operation.action, Action::Flush) {
            return self.path.submit(operation);
        }
        let tag = operation.tag;
        self.skipped.push(Completion { tag, memory: None, checksum: None, result: Ok(()) });
        Ok(())
    }

    fn ring(&mut self) -> io::Result<()> {
        self.path.ring()
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) -> usize {
        let skipped = self.skipped.len();
        completions.append(&mut self.skipped);
        skipped + self.path.poll(completions)
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let timeout = if self.skipped.is_empty() { timeout } else { Some(Duration::ZERO) };
        self.path.wait(timeout)
    }

    fn waker(&self) -> Waker {
        self.path.waker()
    }

    fn abort(&mut self, tag: u64) {
        self.path.abort(tag);
    }

    fn in_flight(&self) -> usize {
        self.skipped.len() + self.path.in_flight()
    }

    fn abort_all(&mut self) {
        self.path.abort_all();
    }
}
