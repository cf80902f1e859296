//! The report of a measured step.

use std::time::Duration;

use tidelog_engine::pool::PoolStats;
use tidelog_gds::HostTierStats;
use tidelog_planner::migration::Target;
use tidelog_planner::report::Report;
use tidelog_planner::units::Bytes;

use super::dispatch::Executor;
use super::history::PauseTotals;
use crate::pool::{data_path, staging_backing};

/// The report of the last complete step, or of the one that runs where none is complete.
pub(super) fn make(
    executor: &Executor,
    pool: Option<&PoolStats>,
    tier: Option<&HostTierStats>,
) -> Report {
    let Executor { machine, storages, parts, planning, history, write_budget, .. } = executor;
    let mut report = Report {
        title: "training step".to_owned(),
        budget: machine.budget(),
        staging: planning.staging(),
        unmovable: storages.unmovable(machine, parts),
        figures: planning.expected(),
        notices: planning.notices().to_vec(),
        ..Report::default()
    };
    let mut add = |name: &str, value: String| report.figures.push((name.to_owned(), value));
    let (read, written) = history.counters().bandwidths(Target::Ssd);
    let (from_host, to_host) = history.counters().bandwidths(Target::Host);
    for (name, rate) in [
        ("read at", read),
        ("written at", written),
        ("from host memory at", from_host),
        ("to host memory at", to_host),
    ] {
        if let Some(rate) = rate {
            add(name, format!("{}/s while transfers were in flight", Bytes(rate.0)));
        }
    }
    if let Some(pool) = pool {
        add("data path", data_path(pool));
        for why in &pool.reactor.why_not {
            add("why no better one", why.clone());
        }
        add("staging memory", staging_backing(pool));
        add("devices", pool.description.devices.join(", "));
        for (device, how) in pool.reactor.slow_devices() {
            add("slow device", format!("{device} {how}"));
        }
    }
    if let Some(budget) = write_budget {
        add("write budget", budget.text());
    }
    if let Some(tier) = tier {
        add("host memory", format!("{} at most of {}", tier.peak, tier.capacity));
    }
    let pauses = history.pauses();
    if pauses.count > 0 {
        add("pauses", in_words(&pauses));
    }
    history.show(planning.planned().map(|planned| &*planned.trace), &mut report);
    report
}

/// Says how many pauses there were, what they moved, and how long that took.
fn in_words(pauses: &PauseTotals) -> String {
    let &PauseTotals { count, bytes_out, bytes_back, leaving_ns, paused_ns, returning_ns, .. } =
        pauses;
    let time = |nanoseconds| format!("{:.1?}", Duration::from_nanos(nanoseconds));
    format!(
        "{count}, for {} in all; {} left memory for them in {}, and {} were back at their ends, in \
         {}. No step has a part in that",
        time(paused_ns),
        Bytes(bytes_out),
        time(leaving_ns),
        Bytes(bytes_back),
        time(returning_ns),
    )
}
