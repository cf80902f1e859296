//! Rates that a plan takes for transfers, and their sources.

use serde::Serialize;
use tidelog_planner::cost::{HostLink, Machine, SsdLink};
use tidelog_planner::migration::Target;
use tidelog_planner::residency::Residency;
use tidelog_planner::units::{Bandwidth, Bytes, Nanos};

use super::links::LinkRates;
use crate::executor::history::History;

/// Assumed of a pool until enough has moved to measure it, where no table tells how fast its links
/// are.
const SSD_BANDWIDTH_DEFAULT: Bandwidth = Bandwidth(1_000_000_000);
/// Rate that is assumed of the link to host memory: half of what 16 lanes of PCI Express 4 carry.
const HOST_BANDWIDTH_DEFAULT: Bandwidth = Bandwidth(16_000_000_000);
/// Time of one transfer beyond its bytes: two boundary calls and a trip through the reactor, or the
/// tier's thread.
const TRANSFER_LATENCY: Nanos = Nanos(200_000);
/// One core comparing checksums.
const VERIFY_BANDWIDTH: Bandwidth = Bandwidth(8_000_000_000);

/// Rate of one direction in a plan, and by what that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(in crate::executor) struct Rate {
    #[serde(rename = "bytes_per_second")]
    pub(in crate::executor) rate: Bandwidth,
    pub(in crate::executor) from: &'static str,
}

impl Rate {
    /// Returns the measured rate, whatever a table says; else what the links carry; else what is
    /// assumed.
    fn of(measured: Option<Bandwidth>, link: Option<Bandwidth>, assumed: Bandwidth) -> Self {
        match (measured, link) {
            (Some(rate), _) => Self { rate, from: "measured" },
            (None, Some(rate)) => Self { rate, from: "links" },
            (None, None) => Self { rate: assumed, from: "assumed" },
        }
    }
}

/// The rates of a session now.
pub(in crate::executor) struct SessionRates {
    /// Rates from the pool, and to it.
    pub(in crate::executor) ssd: (Rate, Rate),
    /// Rates from host memory, and to it, where there is any for copies.
    pub(in crate::executor) host: Option<(Rate, Rate)>,
}

impl SessionRates {
    pub(super) fn now(links: &LinkRates, machine: &Residency, history: &History) -> Self {
        let both = |target, link, assumed| {
            let (read, write) = history.counters().bandwidths(target);
            (Rate::of(read, link, assumed), Rate::of(write, link, assumed))
        };
        let has_host_memory = machine.host_memory().0 > 0;
        Self {
            ssd: both(Target::Ssd, links.ssd, SSD_BANDWIDTH_DEFAULT),
            host: has_host_memory.then(|| both(Target::Host, links.gpu, HOST_BANDWIDTH_DEFAULT)),
        }
    }

    /// Returns the machine of a plan.
    pub(super) fn machine(&self, machine: &Residency, staging: Bytes) -> Machine {
        let (read, write) = self.ssd;
        Machine {
            budget: machine.budget(),
            staging,
            ssd: SsdLink { read: read.rate, write: write.rate, latency: TRANSFER_LATENCY },
            host: self.host.map(|(read, write)| HostLink {
                read: read.rate,
                write: write.rate,
                latency: TRANSFER_LATENCY,
                memory: machine.host_memory(),
            }),
            verify: VERIFY_BANDWIDTH,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use tidelog_engine::schedule::Urgency;
    use tidelog_planner::residency::{Config, StorageId};
    use tidelog_planner::trace::StorageKind;

    use super::*;
    use crate::executor::storages::Label;
    use crate::executor::transfer::{StorageTransfer, TransferDirection};
    use crate::memory::RequestedBytes;

    fn fetched(bytes: u64) -> StorageTransfer {
        StorageTransfer {
            label: Label { storage: StorageId(1), whole: StorageId(1), name: None, birth: None },
            of: RequestedBytes { storage: 1, part: None },
            kind: StorageKind::Parameter,
            bytes,
            direction: TransferDirection::In,
            target: Target::Ssd,
            urgency: Urgency::Ahead,
            asked: Instant::now(),
            submitted: None,
            is_ordered: false,
        }
    }

    #[test]
    fn the_first_machine_is_what_the_links_carry() {
        let (ssd, gpu) = (Bandwidth(3), Bandwidth(5));
        let links = LinkRates { ssd: Some(ssd), gpu: Some(gpu), descriptions: Vec::new() };
        let residency = Residency::new(Config {
            host_memory: Bytes(1 << 20),
            ..Config::new(Bytes(1 << 30), Bytes(0))
        });
        let mut history = History::default();
        let rates = |links: &LinkRates, history: &History| {
            let machine =
                SessionRates::now(links, &residency, history).machine(&residency, Bytes(0));
            let host = machine.host.unwrap();
            [machine.ssd.read, machine.ssd.write, host.read, host.write]
        };
        assert_eq!(rates(&links, &history), [ssd, ssd, gpu, gpu]);
        let (one, other) = (SSD_BANDWIDTH_DEFAULT, HOST_BANDWIDTH_DEFAULT);
        assert_eq!(rates(&LinkRates::default(), &history), [one, one, other, other]);

        let transfer = fetched(32 << 20);
        history.transfer_started(&transfer);
        let at = Instant::now() + Duration::from_secs(1);
        history.transfer_completed(&transfer, true, at);
        let [read, write, ..] = rates(&links, &history);
        assert!(read.0 > 1 << 20, "what was measured is not cut to what a link carries: {read:?}");
        assert_eq!(write, ssd, "nothing was written");
    }

    #[test]
    fn what_was_measured_comes_before_what_a_link_could_and_that_before_what_is_assumed() {
        let [measured, link, assumed] = [9, 7, 1].map(Bandwidth);
        let from = |measured, link| {
            let Rate { rate, from } = Rate::of(measured, link, assumed);
            (rate, from)
        };
        assert_eq!(from(Some(measured), Some(link)), (measured, "measured"), "more than the link");
        assert_eq!(from(Some(measured), None), (measured, "measured"));
        assert_eq!(from(None, Some(link)), (link, "links"));
        assert_eq!(from(None, None), (assumed, "assumed"));
    }
}
