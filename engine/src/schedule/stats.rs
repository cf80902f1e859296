//! Counters of a reactor.

use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::latencies::{DeviceLatencies, DeviceLatencyCounters};
use crate::memory::Backing;
use crate::path::{Capabilities, Feature, OperationKind};
use crate::units::ByteCount;

/// Statistics of a reactor.
#[derive(Clone, Debug)]
pub struct ReactorStats {
    /// The data path, as it was opened.
    pub capabilities: Capabilities,
    /// Reasons, for each better data path, why it was not chosen.
    pub why_not: Vec<String>,
    /// The staging memory.
    pub staging: ByteCount,
    /// The pages that it lies on.
    pub backing: Backing,
    /// The reason why not on better ones; empty when they are the best.
    pub backing_why: String,
    /// The GPU whose memory transfers may name, if there is one.
    pub gpu: Option<GpuStats>,
    /// Threads that move tensors.
    pub threads: usize,
    /// The devices, by index.
    pub devices: Vec<DeviceStats>,
}

impl ReactorStats {
    /// The devices that are far off their own history, by name, and how far.
    pub fn slow_devices(&self) -> impl Iterator<Item = (&str, String)> {
        let devices = self.capabilities.devices.iter().zip(&self.devices);
        devices.filter_map(|(device, stats)| Some((&*device.name, stats.pulse.trouble()?)))
    }
}

/// The GPU that a reactor copies from and to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuStats {
    /// Name of the device.
    pub name: String,
    /// Page-locking of staging memory for it; without it, copies bounce in its driver.
    pub page_locked: Feature,
    /// Checksums that the GPU takes of its own memory, to compare what is there with what was put.
    pub checksums: Feature,
    /// Reach of the data path into its memory: what is put and got then never passes through the
    /// host, and the GPU takes the checksums.
    pub reached: Feature,
}

/// Statistics of one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceStats {
    /// Reads that succeeded.
    pub reads: u64,
    /// Writes that succeeded.
    pub writes: u64,
    /// Flushes that succeeded.
    pub flushes: u64,
    /// Bytes read, padding included.
    pub bytes_read: u64,
    /// Bytes written, padding included: the host bytes that wear counts by.
    pub bytes_written: u64,
    /// Operations that failed.
    pub errors: u64,
    /// Reads whose checksum did not match the first time.
    pub checksum_retries: u64,
    /// Reads whose checksum did not match the second time either.
    pub checksum_failures: u64,
    /// Reads that its copy failed, or did not match, and the copy on another device answered.
    pub read_elsewhere: u64,
    /// Reads of these whose bytes were written to it again.
    pub healed: u64,
    /// Latencies, now and usually.
    pub pulse: DeviceLatencies,
}

impl AddAssign for DeviceStats {
    fn add_assign(&mut self, other: Self) {
        // Taken apart, so that a counter that is new is not forgotten.
        let Self {
            reads,
            writes,
            flushes,
            bytes_read,
            bytes_written,
            errors,
            checksum_retries,
            checksum_failures,
            read_elsewhere,
            healed,
            pulse,
        } = other;
        self.reads += reads;
        self.writes += writes;
        self.flushes += flushes;
        self.bytes_read += bytes_read;
        self.bytes_written += bytes_written;
        self.errors += errors;
        self.checksum_retries += checksum_retries;
        self.checksum_failures += checksum_failures;
        self.read_elsewhere += read_elsewhere;
        self.healed += healed;
        self.pulse.add(pulse);
    }
}

/// One device's counters; the reactor thread adds, anybody reads.
#[derive(Debug)]
pub(super) struct DeviceCounters {
    reads: AtomicU64,
    writes: AtomicU64,
    flushes: AtomicU64,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    errors: AtomicU64,
    checksum_retries: AtomicU64,
    checksum_failures: AtomicU64,
    read_elsewhere: AtomicU64,
    healed: AtomicU64,
    pulse: DeviceLatencyCounters,
}

impl DeviceCounters {
    /// Makes counters of a reactor whose time counts from `start`.
    pub(super) fn new(start: Instant) -> Self {
        Self {
            reads: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            flushes: AtomicU64::new(0),
            bytes_read: AtomicU64::new(0),
            bytes_written: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            checksum_retries: AtomicU64::new(0),
            checksum_failures: AtomicU64::new(0),
            read_elsewhere: AtomicU64::new(0),
            healed: AtomicU64::new(0),
            pulse: DeviceLatencyCounters::new(start),
        }
    }

    /// The device was given an operation at this time.
    pub(super) fn asked(&self, now: u64) {
        self.pulse.asked(now);
    }

    /// Counts the response to an operation of `began`; `well` is its kind if it succeeded.
    pub(super) fn answered(&self, began: u64, now: u64, well: Option<OperationKind>) {
        self.pulse.answered(now);
        match well {
            Some(OperationKind::Read) => self.pulse.read(now.saturating_sub(began)),
            Some(OperationKind::Write) => self.pulse.wrote(now.saturating_sub(began)),
            Some(OperationKind::Flush) => self.pulse.flushed(now.saturating_sub(began)),
            _ => {}
        }
    }

    /// An operation of `bytes` on the device ended.
    pub(super) fn ended(&self, kind: OperationKind, bytes: u64, failed: bool) {
        let (operations, moved) = match kind {
            _ if failed => (&self.errors, None),
            OperationKind::Read => (&self.reads, Some(&self.bytes_read)),
            OperationKind::Write => (&self.writes, Some(&self.bytes_written)),
            OperationKind::Flush => (&self.flushes, None),
            // Neither moves bytes; wear does not count them.
            OperationKind::WriteZeroes | OperationKind::Deallocate => return,
        };
        operations.fetch_add(1, Ordering::Relaxed);
        if let Some(moved) = moved {
            moved.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// A checksum did not match; `last` when it will not be retried.
    pub(super) fn mismatched(&self, last: bool) {
        let counter = if last { &self.checksum_failures } else { &self.checksum_retries };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// A copy on another device was read instead.
    pub(super) fn was_read_elsewhere(&self) {
        self.read_elsewhere.fetch_add(1, Ordering::Relaxed);
    }

    /// Bytes that another device had were written again.
    pub(super) fn was_healed(&self) {
        self.healed.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn snapshot(&self) -> DeviceStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        DeviceStats {
            reads: read(&self.reads),
            writes: read(&self.writes),
            flushes: read(&self.flushes),
            bytes_read: read(&self.bytes_read),
            bytes_written: read(&self.bytes_written),
            errors: read(&self.errors),
            checksum_retries: read(&self.checksum_retries),
            checksum_failures: read(&self.checksum_failures),
            read_elsewhere: read(&self.read_elsewhere),
            healed: read(&self.healed),
            pulse: self.pulse.snapshot(),
        }
    }
}
