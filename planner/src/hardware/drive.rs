//! Drives by name, and what their makers promise.

use super::{HardwareError, LATENCY_DEFAULT, Mix};
use crate::cost::check;
use crate::units::{Bandwidth, Bytes, Nanos};
use serde::{Deserialize, Serialize};

/// The drives that need only be named.
const KNOWN: &str = include_str!("../../drives.json");

/// Days of a five-year warranty, for which drive writes per day are promised.
const WARRANTY_DAYS: f64 = 5.0 * 365.0;

const TERABYTE: f64 = 1e12;

/// Rating of more terabytes, or drive writes a day, than any drive is rated for.
const RATING_MOST: f64 = 1e6;

/// Rates of a drive that reads and writes at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MixedRate {
    /// Bytes per second read.
    pub read: Bandwidth,
    /// Bytes per second written, at the same time.
    pub write: Bandwidth,
}

/// The drives as the file says them: one model, so many of it, and what is not as the list has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Drives {
    /// A name of the list, or any other with figures beside.
    pub model: String,
    /// Number of drives: for all GPUs together if they are shared, else for each.
    pub count: u32,
    /// True if all GPUs use the same drives.
    #[serde(default)]
    pub shared: bool,
    /// Bytes that one holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<Bytes>,
    /// Bytes per second that one reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read: Option<Bandwidth>,
    /// Bytes per second that one writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write: Option<Bandwidth>,
    /// Time of one transfer beyond its bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_ns: Option<Nanos>,
    /// Rates of a drive that reads and writes at once; without it the one does not slow the other.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mixed: Vec<MixedRate>,
    /// Terabytes that may be written in all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tbw: Option<f64>,
    /// Drive writes per day, over five years.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dwpd: Option<f64>,
}

/// One drive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Drive {
    /// Model name.
    pub model: String,
    /// Bytes that it holds, if known.
    pub capacity: Option<Bytes>,
    /// Bytes per second that it reads.
    pub read: Bandwidth,
    /// Bytes per second that it writes.
    pub write: Bandwidth,
    /// Time of one transfer beyond its bytes.
    pub latency: Nanos,
    /// Rates of mixed reads and writes, from fewest reads to most.
    pub mixed: Vec<MixedRate>,
    /// Bytes that may be written to it in all, if known.
    pub endurance: Option<Bytes>,
}

/// A line of the list: drives without a count.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Listed {
    model: String,
    capacity: Bytes,
    read: Bandwidth,
    write: Bandwidth,
    latency_ns: Nanos,
    tbw: Option<f64>,
    dwpd: Option<f64>,
}

/// The drives that need only be named, by their data sheets.
pub fn known_drives() -> Vec<Drive> {
    let listed: Vec<Listed> = serde_json::from_str(KNOWN).expect("the list is a part of the build");
    let drive = |one: Listed| Drive {
        endurance: endurance(one.tbw, one.dwpd, Some(one.capacity)),
        model: one.model,
        capacity: Some(one.capacity),
        read: one.read,
        write: one.write,
        latency: one.latency_ns,
        mixed: Vec::new(),
    };
    listed.into_iter().map(drive).collect()
}

#[allow(clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "a maker's round figures")]
fn endurance(tbw: Option<f64>, dwpd: Option<f64>, capacity: Option<Bytes>) -> Option<Bytes> {
    let written = |tbw: f64| Bytes((tbw * TERABYTE) as u64);
    let daily = |dwpd: f64| Some(Bytes((capacity?.0 as f64 * dwpd * WARRANTY_DAYS) as u64));
    tbw.map(written).or_else(|| dwpd.and_then(daily))
}

impl Drives {
    /// Makes drives of a known model, as listed.
    pub fn of(model: &str, count: u32) -> Self {
        Self {
            model: model.to_owned(),
            count,
            shared: false,
            capacity: None,
            read: None,
            write: None,
            latency_ns: None,
            mixed: Vec::new(),
            tbw: None,
            dwpd: None,
        }
    }

    /// Checks that the file's figures of a drive are possible. A point of `mixed` may be of one
    /// direction alone.
    fn check(&self) -> Result<(), HardwareError> {
        let rates = self.mixed.iter().flat_map(|point| {
            [("drives.mixed.read", point.read), ("drives.mixed.write", point.write)]
        });
        for (what, rate) in rates.filter(|(_, rate)| rate.0 > 0) {
            check::rate(what, rate)?;
        }
        if let Some(capacity) = self.capacity {
            check::memory("drives.capacity", capacity)?;
        }
        check::latency("drives.latency_ns", self.latency_ns.unwrap_or_default())?;
        for (what, rating) in [("drives.tbw", self.tbw), ("drives.dwpd", self.dwpd)] {
            if let Some(value) = rating.filter(|it| !(*it > 0.0 && *it <= RATING_MOST)) {
                return Err(HardwareError::Rating { what, value });
            }
        }
        Ok(())
    }

    /// Returns one of the drives: what the file says goes before what the list says.
    pub fn drive(&self) -> Result<Drive, HardwareError> {
        let listed = known_drives().into_iter().find(|drive| drive.model == self.model);
        let missing = |missing| HardwareError::Drive { model: self.model.clone(), missing };
        let rate = |own: Option<Bandwidth>, listed: Option<Bandwidth>, what| {
            let rate = own.or(listed).ok_or_else(|| missing(what))?;
            check::rate(&format!("drives.{what}"), rate)?;
            Ok::<_, HardwareError>(rate)
        };
        self.check()?;
        let listed = listed.as_ref();
        let capacity = self.capacity.or_else(|| listed.and_then(|drive| drive.capacity));
        let own = endurance(self.tbw, self.dwpd, capacity);
        let latency = self.latency_ns.or_else(|| listed.map(|drive| drive.latency));
        let mut mixed = self.mixed.clone();
        mixed.retain(|point| point.read.0 + point.write.0 > 0);
        mixed.sort_by(|a, b| cross(*a, *b).cmp(&cross(*b, *a)));
        Ok(Drive {
            model: self.model.clone(),
            capacity,
            read: rate(self.read, listed.map(|drive| drive.read), "read")?,
            write: rate(self.write, listed.map(|drive| drive.write), "write")?,
            latency: latency.unwrap_or(LATENCY_DEFAULT),
            mixed,
            endurance: own.or_else(|| listed.and_then(|drive| drive.endurance)),
        })
    }
}

/// Orders points by the part of their bytes that is read, without dividing.
fn cross(a: MixedRate, b: MixedRate) -> u128 {
    u128::from(a.read.0) * u128::from(b.write.0)
}

impl Drive {
    /// Bytes per second read and written, on average over a step in which `mix` of each direction
    /// meets the other.
    pub fn rates(&self, mix: Mix) -> (Bandwidth, Bandwidth) {
        if self.mixed.is_empty() {
            return (self.read, self.write);
        }
        let both = self.at_once(mix.read_share_per_mille);
        let average = |alone: Bandwidth, met: Bandwidth, part: u64| {
            // The time of a thousand bytes, some of them at either rate.
            let met = u128::from(met.0.max(1));
            let alone = u128::from(alone.0);
            let part = u128::from(part.min(1000));
            Bandwidth((1000 * alone * met / ((1000 - part) * met + part * alone)) as u64)
        };
        (
            average(self.read, both.read, mix.read_met_per_mille),
            average(self.write, both.write, mix.write_met_per_mille),
        )
    }

    /// The rates at which the drive does both when reads are this part of the bytes: on the line
    /// between the two measured points beside it.
    fn at_once(&self, read_share: u64) -> MixedRate {
        let ends = [
            MixedRate { read: Bandwidth(0), write: self.write },
            MixedRate { read: self.read, write: Bandwidth(0) },
        ];
        let points: Vec<MixedRate> =
            [ends[0]].into_iter().chain(self.mixed.iter().copied()).chain([ends[1]]).collect();
        // On a ray from the origin: how far a point lies on its read side.
        let share = i128::from(read_share.min(1000));
        let side = |point: &MixedRate| {
            i128::from(point.read.0) * (1000 - share) - i128::from(point.write.0) * share
        };
        let after = points.iter().position(|point| side(point) >= 0).unwrap_or(points.len() - 1);
        let (one, other) = (points[after.saturating_sub(1)], points[after]);
        let (below, above) = (-side(&one), side(&other));
        let between = |a: Bandwidth, b: Bandwidth| {
            let sum = i128::from(a.0) * above + i128::from(b.0) * below;
            Bandwidth(u64::try_from(sum / (above + below).max(1)).unwrap_or(0))
        };
        if after == 0 || above + below == 0 {
            return other;
        }
        MixedRate { read: between(one.read, other.read), write: between(one.write, other.write) }
    }
}
