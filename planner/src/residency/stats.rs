//! Statistics of the machine.

use crate::migration::Target;
use crate::units::Bytes;

/// Counters, all since the beginning. Bytes are counted when a transfer completes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Evictions begun, whatever became of them, and copies of what stays.
    pub evictions: u64,
    /// Number of evictions that a schedule asked for.
    pub evictions_planned: u64,
    /// Number of copies that a schedule had made of storages that stay, whatever became of them.
    pub cleanings: u64,
    /// Times memory was given up because there is a valid copy.
    pub releases: u64,
    /// Checks that found a clean copy, so that nothing was written.
    pub verify_hits: u64,
    /// Checks that found memory changed behind the machine's back.
    pub verify_misses: u64,
    /// Fetches begun because an op waited.
    pub fetches_urgent: u64,
    /// Fetches begun ahead of need.
    pub fetches_ahead: u64,
    /// Fetches begun ahead that an op had to wait for after all.
    pub fetches_late: u64,
    /// Fetches given up because an op needed the room.
    pub fetches_yielded: u64,
    /// Transfers that failed.
    pub failures: u64,
    /// Transfers asked to stop.
    pub cancels: u64,
    /// Evictions that became clean copies because an op read the storage meanwhile.
    pub kept_by_reader: u64,
    /// Ops that had to wait.
    pub stalls: u64,
    /// Ops and settlements that did not fit.
    pub refusals: u64,
    /// Uses of storages that the machine does not know.
    pub unknown_uses: u64,
    /// Written to the log.
    pub bytes_written: Bytes,
    /// Checked against a copy instead of being written.
    pub bytes_verified: Bytes,
    /// Read from the log.
    pub bytes_fetched: Bytes,
    /// Storages that died before they were ever written: neither moved nor worn.
    pub bytes_never_written: Bytes,
    /// Copied to host memory.
    pub bytes_to_host: Bytes,
    /// Copied back from host memory.
    pub bytes_from_host: Bytes,
    /// Copies in host memory that were given up for others, while their storages were in memory.
    pub host_copies_given_up: u64,
}

impl Stats {
    pub(super) fn went_out(&mut self, target: Target, bytes: u64) {
        match target {
            Target::Ssd => self.bytes_written.0 += bytes,
            Target::Host => self.bytes_to_host.0 += bytes,
        }
    }

    pub(super) fn came_back(&mut self, target: Target, bytes: u64) {
        match target {
            Target::Ssd => self.bytes_fetched.0 += bytes,
            Target::Host => self.bytes_from_host.0 += bytes,
        }
    }
}
