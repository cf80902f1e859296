//! Helpers that the tests of pools on real files share.

use std::path::PathBuf;

use tidelog_engine::layout::TensorId;
use tidelog_engine::memory::{Destination, Source};
use tidelog_engine::path::DeviceSpec;
use tidelog_engine::pool::{Batch, FormatOptions, OpenOptions, Pool, PutOptions};
use tidelog_engine::schedule::Urgency;
use tidelog_engine::units::ByteCount;

/// A directory that goes when the test ends. `/var/tmp` is on a disk where `/tmp` may be memory.
pub(crate) struct Directory(pub(crate) PathBuf);

impl Directory {
    pub(crate) fn new(name: &str) -> Self {
        let path = PathBuf::from(format!("/var/tmp/tidelog-pool-{}-{name}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    /// Two device files that need not exist yet.
    pub(crate) fn devices(&self) -> Vec<DeviceSpec> {
        devices(&self.0)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn devices(directory: &std::path::Path) -> Vec<DeviceSpec> {
    ["a", "b"].map(|name| DeviceSpec::new(directory.join(name))).to_vec()
}

pub(crate) fn small() -> FormatOptions {
    FormatOptions {
        device_size: Some(ByteCount::mib(8)),
        stripe_unit: ByteCount::kib(32),
        ..FormatOptions::default()
    }
}

pub(crate) fn quick() -> OpenOptions {
    let staging = ByteCount::kib(512);
    OpenOptions { huge_pages: false, staging, ..OpenOptions::default() }
}

pub(crate) fn get(pool: &Pool, id: TensorId) -> Option<Vec<u8>> {
    let length = pool.length(id)?;
    let memory = Destination::buffer(length as usize);
    let ticket = pool.get(id, 0..length, memory, Urgency::Urgent, None).unwrap();
    ticket.wait().unwrap();
    ticket.take_bytes()
}

pub(crate) fn stage(batch: &mut Batch, name: &str, content: Vec<u8>) {
    batch.put(name, Source::from(content), PutOptions::default()).unwrap();
}
