//! What the session reports to programs, as JSON. The report for people is in `report`.

use serde_json::{Map, Value, json};
use tidelog_engine::layout::LifetimeClass;
use tidelog_engine::log::Durability;
use tidelog_engine::path::{Endurance, Feature, PathKind};
use tidelog_engine::pool::PoolStats;
use tidelog_engine::schedule::GpuStats;
use tidelog_gds::HostTierStats;
use tidelog_planner::trace::StorageKind;

use super::dispatch::Executor;
use super::history::{BytesByKind, History};
use super::planning::{Planned, Planning, Rate, SessionRates};
use super::transfers::BackingStore;

/// Figures since the session was opened.
pub(super) fn figures(
    executor: &Executor,
    store: &BackingStore,
    pool: Option<&PoolStats>,
    endurance: Option<&[Result<Endurance, String>]>,
) -> Value {
    let Executor { machine, planning, history, .. } = executor;
    let totals = history.counters().totals();
    json!({
        "data_path": pool.map(data_path),
        "why_not": pool.map(|pool| &pool.reactor.why_not),
        "staging_backing": pool.map(staging_backing),
        "gpu": pool.and_then(gpu),
        "host_memory": store.tier_stats().map(|tier| host_memory(&tier)),
        "pool": pool.map(space),
        "made": store.made(),
        "devices": pool.map(devices),
        "lanes": pool.map(lanes),
        "endurance": endurance.map(wear),
        "totals": totals,
        "last_step": history.counters().last_step(),
        "bytes_written": by_kind(history.counters().written()),
        "bytes_read": by_kind(history.counters().read()),
        "evictions": totals.evictions,
        "fetches": totals.fetches,
        "clean_drops": totals.clean_drops,
        "stalls": totals.stalls,
        "stall_ns": totals.stall_ns,
        "resident_bytes": machine.committed().0,
        "machine": rates(&planning.rates(machine, history), planning.links()),
        "planning": planning.is_under_way(),
        "plan": planning.planned().map(|planned| plan(planned, planning, history)),
        "notices": planning.notices(),
    })
}

/// The plan that steps follow.
fn plan(planned: &Planned, planning: &Planning, history: &History) -> Value {
    let Planned { trace, machine, plan, .. } = planned;
    json!({
        "policy": plan.policy,
        "ops": trace.ops.len(),
        "storages": trace.storages.len(),
        "migrations": plan.rows.len(),
        "compute_ns": trace.ops.iter().map(|op| op.duration.0).sum::<u64>(),
        "simulated_ns": plan.expects.simulated.then_some(plan.expects.time.0),
        "read_bytes_per_second": machine.ssd.read.0,
        "write_bytes_per_second": machine.ssd.write.0,
        "handling_ns": history.counters().handling().0,
        "replans": planning.replans(),
    })
}

/// How fast transfers would be in a plan that is made now, and by what each rate is known:
/// measured, the links, or nothing (assumed).
fn rates(rates: &SessionRates, links: &[String]) -> Value {
    let both = |(read, write): (Rate, Rate)| json!({ "read": read, "write": write });
    json!({ "ssd": both(rates.ssd), "host": rates.host.map(both), "links": links })
}

/// The data path that was opened: `uring`, `posix`.
pub(super) fn data_path(pool: &PoolStats) -> String {
    pool.reactor.capabilities.kind.to_string()
}

/// The pages under the staging buffers and, where there are better ones, why it is not those.
pub(super) fn staging_backing(pool: &PoolStats) -> String {
    let (backing, why) = (pool.reactor.backing, &pool.reactor.backing_why);
    if why.is_empty() { backing.to_string() } else { format!("{backing}: {why}") }
}

/// The GPU whose memory moves, and why its bytes do not move as fast as they could.
fn gpu(pool: &PoolStats) -> Option<String> {
    let GpuStats { name, reached, page_locked, .. } = pool.reactor.gpu.as_ref()?;
    let past_the_host = matches!(pool.reactor.capabilities.kind, PathKind::Spdk | PathKind::Gds);
    let mut notes = vec![name.clone()];
    match reached {
        Feature::On => return Some(format!("{name}; no byte of it passes through the host")),
        // Of the kernel's paths nobody expects it.
        Feature::Off(why) if past_the_host => {
            notes.push(format!("its bytes pass through the host: {why}"));
        }
        Feature::Off(_) => {}
    }
    if let Feature::Off(why) = page_locked {
        notes.push(format!("staging memory is not page-locked: {why}"));
    }
    Some(notes.join("; "))
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

/// The share's space, in bytes.
fn space(pool: &PoolStats) -> Value {
    json!({
        "capacity": pool.space.capacity.0,
        "live": pool.space.live.0,
        "dead": pool.space.dead.0,
        "free": pool.space.free.0,
        "index": pool.space.index.0,
    })
}

/// What went to and came from each device, padding included.
fn devices(pool: &PoolStats) -> Value {
    let counted = pool.description.devices.iter().zip(&pool.reactor.devices);
    let each = counted.map(|(path, device)| {
        json!({
            "path": path,
            "bytes_read": device.bytes_read,
            "bytes_written": device.bytes_written,
            "errors": device.errors,
        })
    });
    each.collect()
}

/// The lanes of the log, and the placement handle by which each writes (null where devices have
/// none).
fn lanes(pool: &PoolStats) -> Value {
    let each = pool.lanes.iter().map(|row| {
        json!({
            "durability": match row.lane.durability {
                Durability::Scratch => "scratch",
                Durability::Durable => "durable",
            },
            "lifetime": match row.lane.class {
                LifetimeClass::Transient => "transient",
                LifetimeClass::Step => "step",
                LifetimeClass::Persistent => "persistent",
            },
            "placement_handle": row.placement.map(|handle| handle.0),
            "bytes_written": row.written.0,
        })
    });
    each.collect()
}

/// What each device has counted over its life, by whomever it was used.
fn wear(devices: &[Result<Endurance, String>]) -> Value {
    let each = devices.iter().map(|device| match device {
        Err(why) => json!({ "why_not": why }),
        Ok(device) => json!({
            "bytes_written": device.written.0,
            "percent_used": device.used_percent,
            "percent_spare": device.spare_percent,
            "media_errors": device.media_errors,
            "fdp": device.fdp.as_ref().map(|fdp| json!({
                "host_bytes_written": fdp.host_written.0,
                "media_bytes_written": fdp.media_written.0,
                "media_bytes_erased": fdp.media_erased.0,
            })),
        }),
    });
    each.collect()
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
