//! Block devices that are far off their own history: what the kernel counted since it has them,
//! beside what it counted while the paths were tried.

use std::collections::BTreeMap;
use std::fs;

use crate::facts::{Fact, Roots, fact};

/// Factor over its usual time from which an operation shows a device that is far off.
const TIMES: f64 = 8.0;
/// Least latency that is reported, in milliseconds.
const NOTICED: f64 = 20.0;
/// Operations that make a history, and those that say something about now.
const HISTORY: u64 = 1000;
const SAMPLE: u64 = 8;

/// Counters of the kernel for each block device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counted(BTreeMap<String, Counts>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    reads: Kind,
    writes: Kind,
    in_flight: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Kind {
    operations: u64,
    milliseconds: u64,
}

impl Kind {
    fn since(self, before: Self) -> Self {
        Self {
            operations: self.operations.saturating_sub(before.operations),
            milliseconds: self.milliseconds.saturating_sub(before.milliseconds),
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "milliseconds to be shown")]
    fn mean(self) -> f64 {
        self.milliseconds as f64 / self.operations.max(1) as f64
    }
}

/// Reads what stands there now.
pub fn counted(roots: &Roots) -> Counted {
    let folder = roots.sysfs.join("block");
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let read = |entry: fs::DirEntry| {
        let text = fs::read_to_string(entry.path().join("stat")).ok()?;
        Some((entry.file_name().to_string_lossy().into_owned(), parse(&text)?))
    };
    Counted(entries.filter_map(read).collect())
}

/// The fields of `stat` (Documentation/block/stat.rst).
fn parse(text: &str) -> Option<Counts> {
    let fields: Vec<u64> = text.split_whitespace().map_while(|field| field.parse().ok()).collect();
    let [reads, _, _, reading, writes, _, _, writing, in_flight, ..] = fields[..] else {
        return None;
    };
    let kind = |operations, milliseconds| Kind { operations, milliseconds };
    Some(Counts { reads: kind(reads, reading), writes: kind(writes, writing), in_flight })
}

/// Returns latencies that are far off, between two moments.
pub fn latency(before: &Counted, after: &Counted) -> Fact {
    let pairs = before.0.iter().filter_map(|(name, before)| {
        let after = after.0.get(name)?;
        Some((name, trouble(before, after)?))
    });
    let slow: Vec<_> = pairs.collect();
    let Some((first, _)) = slow.first() else {
        return fact("latency", "every device responds as usual", "");
    };
    let next = format!("look at its wear and its errors: nvme smart-log /dev/{first}; dmesg");
    let each: Vec<String> = slow.iter().map(|(name, what)| format!("{name} {what}")).collect();
    fact("latency", each.join("; "), next)
}

fn trouble(before: &Counts, after: &Counts) -> Option<String> {
    let reads = after.reads.since(before.reads);
    let writes = after.writes.since(before.writes);
    if before.in_flight > 0 && after.in_flight > 0 && reads.operations + writes.operations == 0 {
        let waiting = after.in_flight;
        return Some(format!("does not respond; {waiting} operations wait for it"));
    }
    let off = |now: Kind, usually: Kind, what: &str| {
        let (recent, usual) = (now.mean(), usually.mean());
        let known = now.operations >= SAMPLE && usually.operations >= HISTORY;
        (known && recent > NOTICED && recent > TIMES * usual)
            .then(|| format!("takes {recent:.1} ms for a {what}, usually {usual:.1} ms"))
    };
    off(reads, before.reads, "read").or_else(|| off(writes, before.writes, "write"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(text: &str) -> Counted {
        Counted([("nvme3n1".to_owned(), parse(text).unwrap())].into())
    }

    #[test]
    fn a_device_that_takes_far_longer_than_it_did_or_answers_nothing_is_named() {
        let before = one("5000 0 80000 2000 4000 0 64000 4000 0 3000 6000 0 0");
        let usual = one("5100 0 81600 2040 4100 0 65600 4100 3 3100 6140");
        assert_eq!(latency(&before, &usual).next, "");
        let slow = latency(&before, &one("5100 0 81600 6000 4100 0 65600 4100 3 3100 6140"));
        assert_eq!(slow.found, "nvme3n1 takes 40.0 ms for a read, usually 0.4 ms");
        assert!(slow.next.contains("smart-log /dev/nvme3n1"), "{}", slow.next);
        let stuck = one("5000 0 80000 2000 4000 0 64000 4000 7 3000 6000");
        let silent = latency(&stuck, &stuck);
        assert_eq!(silent.found, "nvme3n1 does not respond; 7 operations wait for it");
        // Too few to say anything, and a device that came in between.
        let few = one("5002 0 81600 6000 4000 0 64000 4000 0 3100 6140");
        assert_eq!(latency(&before, &few).next, "");
        assert_eq!(latency(&Counted::default(), &before).next, "");
        assert_eq!(parse("1 2 three"), None);
    }
}
