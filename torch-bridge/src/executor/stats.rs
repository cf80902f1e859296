//! Statistics of a session, as JSON. The report for people is in `report`.

use serde_json::{Map, Value, json};
use tidelog_engine::path::Endurance;
use tidelog_engine::pool::PoolStats;
use tidelog_gds::HostTierStats;
use tidelog_planner::trace::StorageKind;

use super::dispatch::Executor;
use super::history::{BytesByKind, History};
use super::planning::{Planned, Planning, Rate, SessionRates};
use super::transfers::BackingStore;
use super::write_budget::WriteMeter;
use crate::pool::pool_figures;

/// Figures since the session was opened.
pub(super) fn figures(
    executor: &Executor,
    store: &BackingStore,
    pool: Option<&PoolStats>,
    endurance: Option<&[Result<Endurance, String>]>,
) -> Value {
    let Executor { machine, parts, planning, history, write_budget, .. } = executor;
    let totals = history.counters().totals();
    let own = json!({
        "host_memory": store.tier_stats().map(|tier| host_memory(&tier)),
        "made": store.made(),
        "totals": totals,
        "last_step": history.counters().last_step(),
        "step_time": history.step_time(),
        "bytes_written": by_kind(history.counters().written()),
        "bytes_read": by_kind(history.counters().read()),
        "evictions": totals.evictions,
        "fetches": totals.fetches,
        "clean_drops": totals.clean_drops,
        "cleanings": machine.stats().cleanings,
        "stalls": totals.stalls,
        "stall_ns": totals.stall_ns,
        "pauses": history.pauses(),
        "resident_bytes": machine.committed().0,
        "machine": rates(&planning.rates(machine, history), planning.links()),
        "planning": planning.is_under_way(),
        "improving": planning.is_improving(),
        "held_back": planning.held_back(),
        "parts": parts.are_used().then(|| {
            let (storages, parts) = parts.counts();
            json!({ "storages": storages, "parts": parts })
        }),
        "plan": planning.planned().map(|planned| plan(planned, planning, history)),
        "write_budget": write_budget.as_ref().map(WriteMeter::figures),
        "notices": planning.notices(),
    });
    let mut figures = pool_figures(pool, endurance);
    figures.extend(
        own.as_object().into_iter().flatten().map(|(key, value)| (key.clone(), value.clone())),
    );
    Value::Object(figures)
}

/// The plan that steps follow.
fn plan(planned: &Planned, planning: &Planning, history: &History) -> Value {
    let Planned { trace, machine, plan, .. } = planned;
    json!({
        "policy": plan.policy,
        "ops": trace.ops.len(),
        "storages": trace.storages.len(),
        "storages_in_parts": planned.parts.as_ref().map_or(0, |step| step.counts().0),
        "parts_of_storages": planned.parts.as_ref().map_or(0, |step| step.counts().1),
        "migrations": plan.rows.len(),
        "cleanings": plan.rows.iter().filter(|row| row.stays).count(),
        "compute_ns": trace.ops.iter().map(|op| op.duration.0).sum::<u64>(),
        "simulated_ns": plan.expects.simulated.then_some(plan.expects.time.0),
        "read_bytes_per_second": machine.ssd.read.0,
        "write_bytes_per_second": machine.ssd.write.0,
        "host_read_bytes_per_second": machine.host.map(|host| host.read.0),
        "host_write_bytes_per_second": machine.host.map(|host| host.write.0),
        "handling_ns": history.counters().handling().0,
        "replans": planning.replans(),
        "improvements": planning.improvements(),
    })
}

/// Returns the rates of a plan that is made now, and by what each rate is known: measured, the
/// links, or nothing (assumed).
fn rates(rates: &SessionRates, links: &[String]) -> Value {
    let both = |(read, write): (Rate, Rate)| json!({ "read": read, "write": write });
    json!({ "ssd": both(rates.ssd), "host": rates.host.map(both), "links": links })
}

/// Page-locked memory that takes a GPU's storages before SSDs do, in bytes.
fn host_memory(tier: &HostTierStats) -> Value {
    json!({
        "capacity": tier.capacity.0,
        "used": tier.used.0,
        "peak": tier.peak.0,
        "bytes_out": tier.bytes_out.0,
        "bytes_back": tier.bytes_back.0,
    })
}

fn by_kind(bytes: &BytesByKind) -> Value {
    let named = StorageKind::ALL
        .iter()
        .zip(bytes)
        .map(|(kind, &bytes)| (kind_name(*kind).to_owned(), json!(bytes)));
    Value::Object(named.collect::<Map<_, _>>())
}

fn kind_name(kind: StorageKind) -> &'static str {
    match kind {
        StorageKind::Parameter => "parameter",
        StorageKind::Gradient => "gradient",
        StorageKind::OptimizerState => "optimizer state",
        StorageKind::Activation => "activation",
        StorageKind::Other => "other",
    }
}
