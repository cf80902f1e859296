//! Drives as a benchmark found them: from the JSON that `tidelog-bench` (and fio) writes.

use super::{Drives, Hardware, MixedRate};
use crate::units::{Bandwidth, Bytes, Nanos};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Advice on measuring the missing figures.
const HOW: &str = "measure with tidelog-bench --output-format=json, once with --rw=read, once with --rw=write \
                   (large blocks, the devices that the pool will have)";

/// The reason why a benchmark's output says nothing of the drives.
#[derive(Debug, thiserror::Error)]
pub enum CalibrateError {
    /// The output is not JSON.
    #[error("not readable: {0}")]
    Json(#[from] serde_json::Error),
    /// JSON, but not of a benchmark.
    #[error("not the JSON of tidelog-bench or fio: it has no list of jobs")]
    NoJobs,
    /// A run that failed measured nothing.
    #[error("job {name:?} failed when it was measured")]
    Failed {
        /// Name of the drive.
        name: String,
    },
    /// Runs over different numbers of devices cannot stand beside each other.
    #[error("runs over {one} and over {other} devices do not belong together")]
    Devices {
        /// Number of drives that one run used.
        one: usize,
        /// Number of drives that another run used.
        other: usize,
    },
    /// Missing measurement.
    #[error("no run only {what}: {HOW}")]
    Missing {
        /// Figure that no run measured.
        what: &'static str,
    },
}

/// Jobs that ran at the same time.
#[derive(Default)]
struct Group {
    read: u64,
    write: u64,
    devices: BTreeSet<String>,
    /// Mean latency and bytes of a read that was alone on its way.
    lone_read: Option<(u64, u64)>,
    jobs: u32,
}

/// Returns the figures of drives from `runs`, each the text of one benchmark's output: the fastest
/// run in each direction, and every mixed one.
pub fn drives(model: &str, runs: &[&str]) -> Result<Drives, CalibrateError> {
    let mut groups = Vec::new();
    for run in runs {
        groups.extend(groups_of(&serde_json::from_str(run)?)?);
    }
    let count = devices(&groups)?;
    let each = |rate: u64| Bandwidth(rate / count as u64);
    let fastest = |rate: fn(&Group) -> Option<u64>, what| {
        groups.iter().filter_map(rate).max().ok_or(CalibrateError::Missing { what })
    };
    let read = each(fastest(|g| (g.write == 0 && g.read > 0).then_some(g.read), "reads")?);
    let write = each(fastest(|g| (g.read == 0 && g.write > 0).then_some(g.write), "writes")?);
    let mixed = groups.iter().filter(|group| group.read > 0 && group.write > 0);
    let mixed = mixed.map(|g| MixedRate { read: each(g.read), write: each(g.write) }).collect();
    let alone = groups.iter().filter(|group| group.jobs == 1).filter_map(|group| group.lone_read);
    let beyond =
        alone.map(|(latency, bytes)| Nanos(latency.saturating_sub(read.time_for(Bytes(bytes)).0)));
    let latency_ns = beyond.min();
    Ok(Drives {
        read: Some(read),
        write: Some(write),
        latency_ns,
        mixed,
        ..Drives::of(model, count as u32)
    })
}

impl Hardware {
    /// Replaces the drives by measured ones; what was not measured stays.
    #[must_use]
    pub fn with_measured(mut self, measured: Drives) -> Self {
        let Drives { model, count, read, write, latency_ns, mixed, .. } = measured;
        self.drives.model = model;
        self.drives.count = count;
        (self.drives.read, self.drives.write) = (read, write);
        self.drives.latency_ns = latency_ns.or(self.drives.latency_ns);
        if !mixed.is_empty() {
            self.drives.mixed = mixed;
        }
        self
    }
}

fn devices(groups: &[Group]) -> Result<usize, CalibrateError> {
    let mut counts = groups.iter().map(|group| group.devices.len().max(1));
    let Some(one) = counts.next() else { return Err(CalibrateError::NoJobs) };
    counts
        .find(|other| *other != one)
        .map_or(Ok(one), |other| Err(CalibrateError::Devices { one, other }))
}

fn groups_of(run: &Value) -> Result<Vec<Group>, CalibrateError> {
    let jobs = run["jobs"].as_array().ok_or(CalibrateError::NoJobs)?;
    let mut groups: BTreeMap<u64, Group> = BTreeMap::new();
    for job in jobs {
        if job["error"].as_i64().unwrap_or(0) != 0 {
            let name = job["jobname"].as_str().unwrap_or_default().to_owned();
            return Err(CalibrateError::Failed { name });
        }
        let option = |name: &str| {
            let own = job["job options"][name].as_str();
            own.or_else(|| run["global options"][name].as_str())
        };
        let group = groups.entry(job["groupid"].as_u64().unwrap_or(0)).or_default();
        let rate = |way: &str| job[way]["bw_bytes"].as_u64().unwrap_or(0);
        group.read += rate("read");
        group.write += rate("write");
        group.jobs += 1;
        let names = option("filename").unwrap_or_default().split(':');
        group.devices.extend(names.filter(|name| !name.is_empty()).map(str::to_owned));
        let alone = option("iodepth").is_none_or(|depth| depth == "1");
        let ios = job["read"]["total_ios"].as_u64().filter(|ios| *ios > 0 && alone);
        let mean = job["read"]["lat_ns"]["mean"].as_f64().unwrap_or(0.0);
        #[expect(clippy::cast_sign_loss, reason = "a latency is positive")]
        let lone =
            ios.map(|ios| (mean as u64, job["read"]["io_bytes"].as_u64().unwrap_or(0) / ios));
        group.lone_read = group.lone_read.or(lone);
    }
    Ok(groups.into_values().collect())
}
