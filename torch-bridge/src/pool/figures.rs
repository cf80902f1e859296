//! A pool's figures for programs, as JSON.

use std::time::Duration;

use serde_json::{Map, Value, json};
use tidelog_engine::layout::LifetimeClass;
use tidelog_engine::log::Durability;
use tidelog_engine::path::{Endurance, Feature, PathKind};
use tidelog_engine::pool::{BadUnit, PoolStats, RebuildStats, ScrubReport, Scrubbed};
use tidelog_engine::schedule::{GpuStats, Latency};

/// Figures since the pool was opened; null where it does not answer.
pub(crate) fn pool_figures(
    pool: Option<&PoolStats>,
    endurance: Option<&[Result<Endurance, String>]>,
) -> Map<String, Value> {
    let figures = [
        ("data_path", json!(pool.map(data_path))),
        ("why_not", json!(pool.map(|pool| &pool.reactor.why_not))),
        ("staging_backing", json!(pool.map(staging_backing))),
        ("unregistered", json!(pool.and_then(unregistered))),
        ("gpu", json!(pool.and_then(gpu))),
        ("pool", json!(pool.map(space))),
        ("devices", json!(pool.map(devices))),
        ("lanes", json!(pool.map(lanes))),
        ("endurance", json!(endurance.map(wear))),
        ("scrubbed", json!(pool.map(|pool| scrubbed(&pool.scrubbed)))),
        ("rebuild", json!(pool.and_then(|pool| pool.rebuild.as_ref()).map(rebuild))),
    ];
    figures.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// The data path that was opened: `uring`, `posix`.
pub(crate) fn data_path(pool: &PoolStats) -> String {
    pool.reactor.capabilities.kind.to_string()
}

/// The pages under the staging buffers and, where there are better ones, why it is not those.
pub(crate) fn staging_backing(pool: &PoolStats) -> String {
    let (backing, why) = (pool.reactor.backing, &pool.reactor.backing_why);
    if why.is_empty() { backing.to_string() } else { format!("{backing}: {why}") }
}

/// Returns why the staging buffers are not registered with the kernel, where the data path
/// registers some.
fn unregistered(pool: &PoolStats) -> Option<&str> {
    let capabilities = &pool.reactor.capabilities;
    match &capabilities.registered_buffers {
        Feature::Off(why) if capabilities.kind == PathKind::Uring => Some(why),
        _ => None,
    }
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

/// The share's space, in bytes.
fn space(pool: &PoolStats) -> Value {
    json!({
        "capacity": pool.space.capacity.0,
        "live": pool.space.live.0,
        "sealed": pool.space.sealed.0,
        "dead": pool.space.dead.0,
        "free": pool.space.free.0,
        "index": pool.space.index.0,
    })
}

/// Returns the figures of each device, padding included, and their latencies.
fn devices(pool: &PoolStats) -> Value {
    let counted = pool.description.devices.iter().zip(&pool.reactor.devices);
    let each = counted.map(|(path, device)| {
        json!({
            "path": path,
            "reads": device.reads,
            "writes": device.writes,
            "flushes": device.flushes,
            "bytes_read": device.bytes_read,
            "bytes_written": device.bytes_written,
            "errors": device.errors,
            "checksum_retries": device.checksum_retries,
            "checksum_failures": device.checksum_failures,
            "in_flight": device.pulse.in_flight,
            "latency": {
                "read": latency(&device.pulse.reads),
                "write": latency(&device.pulse.writes),
                "flush": latency(&device.pulse.flushes),
            },
            "slow": device.pulse.trouble(),
        })
    });
    each.collect()
}

/// Returns the progress of a device that takes the place of a lost one.
fn rebuild(RebuildStats { place, progress, is_whole, error }: &RebuildStats) -> Value {
    json!({
        "place": place,
        "bytes_done": progress.done.0,
        "bytes_total": progress.total.0,
        "whole": is_whole,
        "error": error,
    })
}

/// Returns the latency of operations of one kind; null before the first.
fn latency(latency: &Latency) -> Option<Value> {
    let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let figures = || {
        json!({
            "usual_ns": nanoseconds(latency.usual),
            "recent_ns": nanoseconds(latency.recent),
        })
    };
    (latency.operations > 0).then(figures)
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

/// Returns the results of scrubs, and the tensors that have lost bytes: which of them, and where.
fn scrubbed(report: &ScrubReport) -> Value {
    let unit = |bad: &BadUnit| {
        json!({
            "device": bad.path,
            "offset": bad.offset.0,
            "length": bad.length.0,
            "tensor_offset": bad.tensor.start,
            "error": bad.error.to_string(),
        })
    };
    let tensor = |damaged: &Scrubbed| {
        json!({
            "name": damaged.name,
            "length": damaged.length.0,
            "bad": damaged.bad.iter().map(unit).collect::<Vec<_>>(),
        })
    };
    json!({
        "tensors": report.tensors,
        "bytes": report.bytes.0,
        "damaged": report.damaged.iter().map(tensor).collect::<Vec<_>>(),
    })
}

/// Returns the counters of each device over its life, by whomever it was used.
fn wear(devices: &[Result<Endurance, String>]) -> Value {
    let each = devices.iter().map(|device| match device {
        Err(why) => json!({ "why_not": why }),
        Ok(device) => json!({
            "bytes_written": device.written.0,
            "percent_used": device.used_percent,
            "percent_spare": device.spare_percent,
            "media_errors": device.media_errors,
            "power_on_hours": device.power_on_hours,
            "days_left": device.days_left(),
            "critical": device.is_critical,
            "fdp": device.fdp.as_ref().map(|fdp| json!({
                "host_bytes_written": fdp.host_written.0,
                "media_bytes_written": fdp.media_written.0,
                "media_bytes_erased": fdp.media_erased.0,
            })),
        }),
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use tidelog_engine::layout::TensorId;
    use tidelog_engine::memory::Source;
    use tidelog_engine::path::sim::SimDisk;
    use tidelog_engine::pool::{FormatOptions, OpenOptions, Pool, PutOptions};
    use tidelog_engine::units::ByteCount;

    use super::*;

    #[test]
    fn devices_show_what_they_did_what_did_not_match_and_that_they_are_slow() {
        let disks = [SimDisk::new(ByteCount::mib(16))];
        Pool::format(&disks, &FormatOptions::default()).unwrap();
        let options = OpenOptions { huge_pages: false, ..OpenOptions::default() };
        let pool = Pool::open(&disks, &options).unwrap();
        let mut batch = pool.batch();
        let id = TensorId::from_name("weight");
        batch.put(id, Source::from(vec![7; 100_000]), PutOptions::default()).unwrap();
        batch.commit().unwrap();
        let offset = pool.stats().unwrap().description.geometry.data_offset;
        disks[0].rot(offset + 100, 1);
        assert_eq!(pool.scrub().unwrap().damaged.len(), 1);

        let mut stats = pool.stats().unwrap();
        let device = |stats: &PoolStats| pool_figures(Some(stats), None)["devices"][0].clone();
        let healthy = device(&stats);
        for counted in ["reads", "writes", "flushes", "bytes_read", "bytes_written"] {
            assert!(healthy[counted].as_u64().unwrap() > 0, "{counted}: {healthy}");
        }
        assert_eq!(healthy["errors"], 0);
        // A scrub looks again at what did not match.
        for counted in ["checksum_retries", "checksum_failures"] {
            assert!(healthy[counted].as_u64().unwrap() > 0, "{counted}: {healthy}");
        }
        for kind in ["read", "write", "flush"] {
            assert!(healthy["latency"][kind]["usual_ns"].is_u64(), "{kind}: {healthy}");
        }
        assert_eq!(healthy["slow"], Value::Null);

        let pulse = &mut stats.reactor.devices[0].pulse;
        (pulse.in_flight, pulse.silent) = (3, Duration::from_secs(4));
        let slow = device(&stats);
        assert_eq!(slow["slow"], "has answered nothing for 4.0 s; 3 wait for it");
        assert_eq!(slow["in_flight"], 3);
        pool.close().unwrap();
    }
}
