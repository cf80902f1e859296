//! The published figures, and what this project asks of itself.

use super::{Cell, Outcome, ratio};

/// What the TERAIO paper (arXiv 2506.06472) reports, as a percentage of the ideal time or in words.
pub(super) struct Published {
    pub(super) peak_percent: f64,
    pub(super) zero_offload: &'static str,
    pub(super) zero_infinity: &'static str,
    pub(super) ssd: &'static str,
    pub(super) ssd_and_host: &'static str,
}

/// A recorded model with its marks.
pub(super) struct Set {
    pub(super) name: &'static str,
    pub(super) host_gib: u64,
    pub(super) published: Published,
    /// The most that an iteration may take over the bound, SSD only.
    over_bound: f64,
    /// How much faster than the best published score it must be.
    faster: f64,
    /// How many of the bytes that algorithm1 (as printed) writes may be written.
    written: f64,
}

const EIGHT_B: Published = Published {
    peak_percent: 187.56,
    zero_offload: "65.9 %",
    zero_infinity: "slightly below",
    ssd: "near ideal",
    ssd_and_host: "near ideal",
};

pub(super) const SETS: [Set; 4] = [
    Set {
        name: "llama3-8b-fp32",
        host_gib: 64,
        published: EIGHT_B,
        over_bound: 1.02,
        faster: 1.0,
        written: 0.65,
    },
    Set {
        name: "llama3-8b-tf32",
        host_gib: 64,
        published: Published { ssd: "not reported", ssd_and_host: "not reported", ..EIGHT_B },
        over_bound: 1.10,
        faster: 1.0,
        written: f64::INFINITY,
    },
    Set {
        name: "granite-8b-fp32",
        host_gib: 128,
        published: Published {
            peak_percent: 379.34,
            zero_offload: "65.5 %",
            zero_infinity: "slightly below",
            ssd: "about as ZeRO",
            ssd_and_host: "near ideal",
        },
        over_bound: 1.06,
        faster: 1.0,
        written: 0.85,
    },
    Set {
        name: "llama3-70b-fp32",
        host_gib: 1024,
        published: Published {
            peak_percent: 940.23,
            zero_offload: "out of memory",
            zero_infinity: "43.0 %",
            ssd: "between 43.0 and 59.7 %",
            ssd_and_host: "59.7 %",
        },
        over_bound: 1.15,
        faster: 0.85,
        written: 0.75,
    },
];

/// What the best plan of a large model may take to make, in seconds.
const PLANNING_SECONDS: f64 = 1.0;

/// The marks that a cell does not reach, in words.
pub(super) fn missed(cell: &Cell) -> Vec<String> {
    let find = |name: &str| cell.outcomes.iter().find(|one| one.policy == name);
    let (Some(ours), Some(thrifty), Some(printed)) =
        (find("tidelog"), find("tidelog, fewest bytes"), find("algorithm1, as printed"))
    else {
        return vec!["a policy is missing".to_owned()];
    };
    let published = cell.outcomes.iter().filter(|one| one.policy.starts_with("algorithm1"));
    let best: &Outcome = published.min_by_key(|one| one.time).unwrap_or(printed);
    let mut missed = Vec::new();
    let mut demand = |what: &str, found: f64, most: f64| {
        if found > most {
            let place = format!(
                "{}, stage {}, {:.1} GiB",
                cell.set.name,
                cell.stage,
                ratio(cell.capacity, 1 << 30)
            );
            let kind = if cell.host { "SSD and host" } else { "SSD only" };
            missed.push(format!("{place}, {kind}: {what} is {found:.3}, at most {most:.3}"));
        }
    };
    if let Some(bound) = cell.bound {
        demand("time over the bound", ratio(ours.time, bound), cell.set.over_bound);
        demand(
            "bytes written over algorithm1 as printed",
            ratio(thrifty.written, printed.written.max(1)),
            cell.set.written,
        );
        demand("time of the fewest bytes over the best score", ratio(thrifty.time, best.time), 1.0);
    }
    let faster = if cell.host { 1.0 } else { cell.set.faster };
    demand("time over the best score", ratio(ours.time, best.time), faster);
    demand("seconds to plan", ours.planning, PLANNING_SECONDS);
    missed
}
