//! Processor time of a group of jobs.

use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;

/// Processor time and events of this process: its jobs, their data paths' threads, and the
/// engine's.
///
/// What the kernel does on threads of its own (a loop device's workers) is in nobody's count, here
/// as in fio.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// Time in user space.
    pub user: Duration,
    /// Time in the kernel.
    pub system: Duration,
    /// Times that a thread gave the processor up or lost it.
    pub switches: u64,
    /// Page faults that needed I/O.
    pub major_faults: u64,
    /// Page faults that did not.
    pub minor_faults: u64,
}

impl Usage {
    /// Returns the usage of the process so far.
    pub fn now() -> Self {
        let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) else { return Self::default() };
        let count = |number: i64| u64::try_from(number).unwrap_or(0);
        let time = |value: TimeVal| {
            Duration::from_micros(count(value.tv_sec()) * 1_000_000 + count(value.tv_usec()))
        };
        let switches = usage.voluntary_context_switches() + usage.involuntary_context_switches();
        Self {
            user: time(usage.user_time()),
            system: time(usage.system_time()),
            switches: count(switches),
            major_faults: count(usage.major_page_faults()),
            minor_faults: count(usage.minor_page_faults()),
        }
    }

    /// Returns the usage since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            user: self.user.saturating_sub(before.user),
            system: self.system.saturating_sub(before.system),
            switches: self.switches - before.switches,
            major_faults: self.major_faults - before.major_faults,
            minor_faults: self.minor_faults - before.minor_faults,
        }
    }

    /// Adds what another job cost.
    pub fn add(&mut self, other: &Self) {
        self.user += other.user;
        self.system += other.system;
        self.switches += other.switches;
        self.major_faults += other.major_faults;
        self.minor_faults += other.minor_faults;
    }

    /// One job's part, of `jobs` that ran side by side.
    #[must_use]
    pub fn shared_by(&self, jobs: u32) -> Self {
        let jobs = jobs.max(1);
        Self {
            user: self.user / jobs,
            system: self.system / jobs,
            switches: self.switches / u64::from(jobs),
            major_faults: self.major_faults / u64::from(jobs),
            minor_faults: self.minor_faults / u64::from(jobs),
        }
    }
}
