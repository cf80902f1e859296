//! `GreedySnake`'s published speed-up over ZeRO-Infinity, beside what both policies give here. The
//! paper's batches were not at hand, and the ratio grows with the number of micro-batches. Eight is
//! what fits: the mark holds the policies to what they gave, and proves nothing of the paper.

use super::table::read_checkpointed;
use super::{Failure, GIB, ratio};
use serde_json::{Value, json};
use std::path::Path;
use tidelog_planner::cost::{HostLink, Machine, SsdLink};
use tidelog_planner::policies::{greedysnake, zero_infinity};
use tidelog_planner::simulate::{Policy, simulate};
use tidelog_planner::units::{Bandwidth, Bytes, Nanos};

/// The steps that `benches/paper/record.py` records for it, and the published ratios on one A100.
const PUBLISHED: [(&str, f64); 2] = [("gpt-65b", 1.96), ("gpt-175b", 2.53)];

/// The SSDs' rates that are assumed, in MB/s: what one or two drives of the time reach. The marks
/// are for the one in the middle.
const SSDS: [u64; 3] = [3_200, 5_000, 6_400];
const JUDGED: usize = 1;

/// Tolerance of a ratio.
const WITHIN: f64 = 0.15;

/// One model: its published ratio, and that on SSDs of each rate.
pub(super) struct Reproduced {
    name: &'static str,
    published: f64,
    found: Vec<f64>,
}

pub(super) fn reproduced(folder: &Path) -> Result<Vec<Reproduced>, Failure> {
    let all = PUBLISHED.into_iter().map(|(name, published)| {
        let trace = read_checkpointed(folder, name)?;
        let found = SSDS.into_iter().map(|rate| -> Result<f64, Failure> {
            let machine = a100(rate * 1_000_000);
            let zero = zero_infinity(&trace, &machine)?;
            let zero = simulate(&zero.trace, &machine, Policy::Planned(&zero.plan))?.time.0;
            Ok(ratio(zero, greedysnake(&trace, &machine)?.time.0))
        });
        Ok(Reproduced { name, published, found: found.collect::<Result<_, _>>()? })
    });
    all.collect()
}

/// An A100 of 80 GiB on `PCIe` 4.0 with enough host memory.
fn a100(ssd: u64) -> Machine {
    let (ssd, pcie) = (Bandwidth(ssd), Bandwidth(25_000_000_000));
    let (latency, memory) = (Nanos(20_000), Bytes(1024 * GIB));
    Machine {
        budget: Bytes(80 * GIB),
        staging: Bytes(0),
        ssd: SsdLink { read: ssd, write: ssd, latency: Nanos(80_000) },
        host: Some(HostLink { read: pcie, write: pcie, latency, memory }),
        verify: Bandwidth(1_000_000_000_000),
    }
}

impl Reproduced {
    pub(super) fn text(&self) -> String {
        let rates = SSDS.iter().zip(&self.found);
        let found: Vec<String> = rates
            .map(|(rate, found)| format!("{found:.2} (SSDs of {:.1} GB/s)", ratio(*rate, 1000)))
            .collect();
        format!(
            "{}: greedysnake is {} x as fast as zero-infinity; published: {:.2}\n",
            self.name,
            found.join(", "),
            self.published
        )
    }

    pub(super) fn missed(&self) -> Option<String> {
        let found = self.found[JUDGED];
        let off = found / self.published - 1.0;
        let (name, published) = (self.name, self.published);
        (off.abs() > WITHIN).then(|| {
            format!(
                "{name}: greedysnake over zero-infinity is {found:.2}, published {published:.2}"
            )
        })
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "set": self.name, "published": self.published, "ssd_mb_per_second": SSDS,
            "speed_up_over_zero_infinity": self.found,
        })
    }
}
