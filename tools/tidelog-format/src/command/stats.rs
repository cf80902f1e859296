//! `stats`: the health of a pool, for people, for monitoring, and as events.

use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tidelog_command_line::{FormatExit, printable};
use tidelog_engine::path::{DeviceSpec, Endurance};
use tidelog_engine::pool::inspect::{
    CopyState, DeviceView, IndexCopy, IndexView, PoolView, inspect, wear,
};
use tidelog_engine::units::{ByteCount, DeviceIndex};

use super::specs;
use super::table::TextTable;
use crate::cli::PoolArgs;
use crate::outcome::{CommandReport, FormatFailure, OtherFormats};

/// A device is told from this part of its rated life on, in percent.
const WORN_PERCENT: u8 = 90;
/// A device is told from this few spare blocks on, in percent.
const SPARE_PERCENT: u8 = 10;
/// A share is told from this little space on: one part of so many.
const SPACE_PARTS: u64 = 20;

pub(super) fn run(args: &PoolArgs) -> Result<CommandReport, FormatFailure> {
    let view = inspect(&specs(&args.devices))?;
    let look = |(place, device): &(u32, DeviceView)| {
        let name = device.name.clone();
        let wear = wear(&DeviceSpec::new(&name)).unwrap_or_else(|error| Err(error.to_string()));
        DeviceHealth { place: *place, name, wear }
    };
    let devices: Vec<DeviceHealth> = view.devices.iter().map(look).collect();
    let health = Health { pool: format!("{:032x}", view.superblock.pool), view: &view, devices };
    let events = health.events();
    let exit = if events.is_empty() { FormatExit::Clean } else { FormatExit::Damaged };
    let others = OtherFormats { prometheus: health.metrics(&events), events: lines(&events) };
    let (text, json) = (health.text(&events), health.json(&events));
    Ok(CommandReport { others: Some(others), ..CommandReport::new(text, json, exit) })
}

struct DeviceHealth {
    place: u32,
    name: String,
    wear: Result<Endurance, String>,
}

struct Health<'a> {
    pool: String,
    view: &'a PoolView,
    devices: Vec<DeviceHealth>,
}

/// Event that needs attention.
struct Event {
    /// Name by which alerts know it.
    name: &'static str,
    /// Device or share that it is about.
    place: String,
    text: String,
}

impl Health<'_> {
    /// Returns all that needs attention now.
    fn events(&self) -> Vec<Event> {
        let mut events = Vec::new();
        let mut tell =
            |event, place: String, text: String| events.push(Event { name: event, place, text });
        let superblock = &self.view.superblock;
        for place in &self.view.missing {
            let gone = superblock.missing.contains(DeviceIndex(*place as u8));
            let how = if gone { "; the pool has gone on without it" } else { "" };
            tell("device_missing", place.to_string(), format!("device {place} is missing{how}"));
        }
        for (place, device) in &self.view.devices {
            if let Some(found) = &device.overwritten {
                let text = format!("the start of {} is overwritten: {found}", device.name);
                tell("device_overwritten", place.to_string(), text);
            }
            if device.copies.iter().any(|copy| copy.state.is_err()) {
                let text = format!("a superblock of {} is damaged", device.name);
                tell("superblock_damaged", place.to_string(), text);
            }
        }
        for DeviceHealth { place, name, wear } in &self.devices {
            let Ok(wear) = wear else { continue };
            let place = || place.to_string();
            if wear.used_percent >= WORN_PERCENT {
                let text = format!("{name} has used {} % of its rated life", wear.used_percent);
                tell("device_worn", place(), text);
            }
            if wear.spare_percent <= SPARE_PERCENT {
                let text = format!("{name} has {} % of its spare blocks left", wear.spare_percent);
                tell("device_spare_low", place(), text);
            }
            if wear.is_critical {
                tell("device_critical", place(), format!("{name} says that it needs attention"));
            }
        }
        let table = superblock.device_table();
        for (device, usual) in table.rates.slow(table.current_set()) {
            let name = self.view.devices.iter().find(|it| it.0 == u32::from(device.0));
            let name = name.map_or_else(|| format!("device {}", device.0), |it| it.1.name.clone());
            let rate = table.rates.of_device(device);
            let text = format!("{name} moves {rate} MiB a second, and others {usual}");
            tell("device_slow", device.0.to_string(), text);
        }
        for share in &self.view.shares {
            let place = || share.share.to_string();
            for older in &share.older {
                let text = format!("{} is an older copy: {}", older.device, older.why);
                tell("device_older_copy", place(), text);
            }
            match &share.index {
                // A share that is open is just being written.
                Err(_) if share.held || !self.view.missing.is_empty() => (),
                Err(why) => tell("index_unreadable", place(), why.clone()),
                Ok(index) => {
                    let damaged = index.copies.iter().filter(|_| !share.held);
                    for copy in damaged {
                        if let CopyState::Damaged(why) = &copy.state {
                            let text = format!("the index of device {}: {why}", copy.device);
                            tell("index_copy_damaged", place(), text);
                        }
                    }
                    let (free, dead) = (index.space.free.0, index.space.dead.0);
                    if (free + dead) < index.space.capacity.0 / SPACE_PARTS {
                        let text = format!("share {} has {} left", share.share, ByteCount(free));
                        tell("space_low", place(), text);
                    }
                }
            }
        }
        events
    }

    fn text(&self, events: &[Event]) -> String {
        let mut text = format!("pool {}\n\n", self.pool);
        let head = [">place", "device", ">used", ">spare", ">written", ">errors", ">days left"];
        let mut table = TextTable::new(&head);
        for DeviceHealth { place, name, wear } in &self.devices {
            let none = || "-".to_owned();
            let told = |tell: &dyn Fn(&Endurance) -> String| wear.as_ref().map_or(none(), tell);
            table.row(&[
                place.to_string(),
                printable(name),
                told(&|it| format!("{} %", it.used_percent)),
                told(&|it| format!("{} %", it.spare_percent)),
                told(&|it| it.written.to_string()),
                told(&|it| it.media_errors.to_string()),
                told(&|it| it.days_left().map_or(none(), |days| days.to_string())),
            ]);
        }
        text.push_str(&table.render(0));
        for DeviceHealth { name, wear, .. } in &self.devices {
            if let Err(why) = wear {
                let _ = writeln!(text, "{} tells no wear: {}", printable(name), printable(why));
            }
        }
        text.push('\n');
        for share in &self.view.shares {
            let Ok(index) = &share.index else { continue };
            let (space, state) = (&index.space, if share.held { "open" } else { "closed" });
            let _ = writeln!(
                text,
                "share {} ({state}): {} durable tensor(s), {} of {} live, {} free",
                share.share,
                index.tensors.len(),
                space.live,
                space.capacity,
                space.free
            );
        }
        for Event { name: event, text: what, .. } in events {
            let _ = writeln!(text, "ATTENTION {event}: {}", printable(what));
        }
        text
    }

    fn json(&self, events: &[Event]) -> Value {
        let devices = self.devices.iter().map(|DeviceHealth { place, name, wear }| match wear {
            Err(why) => json!({ "place": place, "device": name, "why_not": why }),
            Ok(wear) => json!({
                "place": place,
                "device": name,
                "percent_used": wear.used_percent,
                "percent_spare": wear.spare_percent,
                "bytes_written": wear.written.0,
                "media_errors": wear.media_errors,
                "power_on_hours": wear.power_on_hours,
                "critical": wear.is_critical,
                "days_left": wear.days_left(),
            }),
        });
        let shares = self.view.shares.iter().map(|share| {
            let space = share.index.as_ref().ok().map(|index| {
                json!({
                    "capacity_bytes": index.space.capacity.0,
                    "live_bytes": index.space.live.0,
                    "dead_bytes": index.space.dead.0,
                    "free_bytes": index.space.free.0,
                    "tensors": index.tensors.len(),
                })
            });
            json!({ "share": share.share, "held": share.held, "space": space })
        });
        json!({
            "pool": self.pool,
            "devices": devices.collect::<Vec<_>>(),
            "shares": shares.collect::<Vec<_>>(),
            "events": events.iter().map(|it| it.json(&self.pool)).collect::<Vec<_>>(),
        })
    }

    /// Metrics in the text format of Prometheus.
    fn metrics(&self, events: &[Event]) -> String {
        let mut page = Metrics { text: String::new(), pool: &self.pool };
        let superblock = &self.view.superblock;
        let places = u64::from(superblock.geometry.devices);
        let removed = superblock.device_table().removed.len() as u64;
        page.gauge("devices", "Devices that the pool should have", [("", places - removed)]);
        let missing = self.view.missing.len() as u64;
        page.gauge("devices_missing", "Devices that are not there", [("", missing)]);
        page.gauge("events", "Things that need attention now", [("", events.len() as u64)]);
        let names = |it: &DeviceHealth| {
            let name = it.name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            format!("place=\"{}\",device=\"{name}\"", it.place)
        };
        let known = |value: &dyn Fn(&Endurance) -> Option<u64>| {
            let worn = self.devices.iter().filter_map(|it| Some((it, it.wear.as_ref().ok()?)));
            worn.filter_map(|(it, wear)| Some((names(it), value(wear)?))).collect::<Vec<_>>()
        };
        let used = known(&|it| Some(it.used_percent.into()));
        page.gauge("device_used_percent", "Part of its rated life that a device has used", used);
        let spare = known(&|it| Some(it.spare_percent.into()));
        page.gauge("device_spare_percent", "Spare blocks that a device has left", spare);
        let days = known(&Endurance::days_left);
        page.gauge("device_days_left", "Days of rated life left at the pace until now", days);
        let written = known(&|it| Some(it.written.0));
        page.counter("device_written_bytes", "Bytes that hosts have written to a device", written);
        let errors = known(&|it| Some(it.media_errors));
        page.counter("device_media_errors", "Times that a device could not give back", errors);
        let critical = known(&|it| Some(it.is_critical.into()));
        page.gauge("device_critical", "1 where a device says that it needs attention", critical);
        let rates = superblock.device_table().rates;
        let rate = |it: &DeviceHealth| u64::from(rates.of_device(DeviceIndex(it.place as u8)));
        let rates = self.devices.iter().map(|it| (names(it), rate(it) << 20));
        let rates = rates.filter(|(_, rate)| *rate > 0);
        let help = "What calibration measured of a device, reads and writes together";
        page.gauge("device_rate_bytes_per_second", help, rates);
        let shares = |value: &dyn Fn(&IndexView) -> u64| {
            let read = self.view.shares.iter().filter_map(|it| Some((it, it.index.as_ref().ok()?)));
            let labels = |share: u32| format!("share=\"{share}\"");
            read.map(|(it, index)| (labels(it.share), value(index))).collect::<Vec<_>>()
        };
        let capacity = shares(&|it| it.space.capacity.0);
        page.gauge("share_capacity_bytes", "Size of a share", capacity);
        page.gauge("share_live_bytes", "Bytes of tensors and seals", shares(&|it| it.space.live.0));
        page.gauge("share_free_bytes", "Free bytes", shares(&|it| it.space.free.0));
        let dead = shares(&|it| it.space.dead.0);
        page.gauge("share_dead_bytes", "Bytes that reclamation gives back", dead);
        let tensors = shares(&|it| it.tensors.len() as u64);
        page.gauge("share_tensors", "Durable tensors", tensors);
        let is_damaged = |copy: &IndexCopy| matches!(copy.state, CopyState::Damaged(_));
        let damaged = shares(&|it| it.copies.iter().filter(|copy| is_damaged(copy)).count() as u64);
        page.gauge("share_index_copies_damaged", "Copies of the index that are damaged", damaged);
        page.text
    }
}

/// A page of metrics.
struct Metrics<'a> {
    text: String,
    pool: &'a str,
}

impl Metrics<'_> {
    fn gauge<Labels: AsRef<str>>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (Labels, u64)>,
    ) {
        self.metric((name, "gauge"), help, values);
    }

    /// Adds a counter, whose name ends as Prometheus wants it.
    fn counter(&mut self, name: &str, help: &str, values: Vec<(String, u64)>) {
        self.metric((&format!("{name}_total"), "counter"), help, values);
    }

    fn metric<Labels: AsRef<str>>(
        &mut self,
        (name, kind): (&str, &str),
        help: &str,
        values: impl IntoIterator<Item = (Labels, u64)>,
    ) {
        let mut values = values.into_iter().peekable();
        if values.peek().is_none() {
            return;
        }
        let _ = writeln!(self.text, "# HELP tidelog_{name} {help}.");
        let _ = writeln!(self.text, "# TYPE tidelog_{name} {kind}");
        for (labels, value) in values {
            let (pool, labels) = (self.pool, labels.as_ref());
            let comma = if labels.is_empty() { "" } else { "," };
            let _ = writeln!(self.text, "tidelog_{name}{{pool=\"{pool}\"{comma}{labels}}} {value}");
        }
    }
}

impl Event {
    fn json(&self, pool: &str) -> Value {
        json!({ "event": self.name, "pool": pool, "place": self.place, "text": self.text })
    }
}

fn lines(events: &[Event]) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let line = |event: &Event| {
        let Event { name: event, place, text } = event;
        format!("{}\n", json!({ "time": now, "event": event, "place": place, "text": text }))
    };
    events.iter().map(line).collect()
}
