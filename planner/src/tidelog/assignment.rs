//! The tier that each storage leaves for, where host memory cannot take all that leaves.
//!
//! A pass that gives the SSDs whatever they have time for, and host memory the rest, fills host
//! memory early. What leaves afterwards can only go to the SSDs, and is used again in one stretch
//! for which they are too slow. Here the SSDs have a part of every stretch: a storage goes to host
//! memory where they could not write it in time as it leaves, or not read it in time for its next
//! use, on top of what they have already. They are given as little to read as host memory can take
//! the rest of.

use super::variant::Guess;
use crate::cost::{HostLink, Machine};
use crate::lifetime::{At, uses_by_storage};
use crate::migration::{Migration, MigrationDirection, Target};
use crate::trace::Trace;
use crate::units::{Bandwidth, Bytes};
use std::collections::BTreeMap;

/// The heaviest load of reads that is tried, in percent of what the SSDs can read: above it host
/// memory cannot take the rest of what they could not write.
const LOAD_MAX: u64 = 400;

/// Tiers by storage.
pub(super) struct TierAssignment {
    /// None where a plan moved nothing.
    tiers: Vec<Option<Target>>,
    /// Rates at which all that moves is written, and read, if both tiers are done at once.
    pub(super) rates: [Bandwidth; 2],
}

impl TierAssignment {
    /// Assigns what a plan moves whose ops begin at these times. So much of the capacity may wait
    /// for the SSDs, as one part in so many. None without host memory.
    pub(super) fn new(
        trace: &Trace,
        machine: &Machine,
        guess: &Guess,
        rows: &[Migration],
        waiting_parts: u64,
    ) -> Option<Self> {
        let host = machine.host.filter(|host| host.memory.0 > 0)?;
        let trips = trips(trace, guess, rows);
        let waiting = machine.capacity().0 / waiting_parts;
        let levels = Levels { trips: &trips, storages: trace.storages.len(), machine, waiting };
        let (mut load, mut most) = (1, LOAD_MAX);
        while load < most {
            let middle = load.midpoint(most);
            if levels.most_on_host(&levels.tiers(middle)) <= u128::from(host.memory.0) {
                most = middle;
            } else {
                load = middle + 1;
            }
        }
        let tiers = levels.tiers(load);
        let rates = levels.rates(&host, &tiers);
        Some(Self { tiers, rates })
    }

    pub(super) fn of(&self, storage: u32) -> Option<Target> {
        self.tiers[storage as usize]
    }
}

/// A way out and back.
struct RoundTrip {
    storage: usize,
    size: u64,
    leaves: u64,
    due: u64,
    /// Bytes are written: there is no copy from the trip before.
    writes: bool,
    /// The time until which the copy is good.
    until: u64,
}

/// The trips of an iteration, the first to leave first.
fn trips(trace: &Trace, guess: &Guess, rows: &[Migration]) -> Vec<RoundTrip> {
    let ops = guess.durations.len();
    let begins = guess.begins();
    let uses = uses_by_storage(trace);
    // Of each storage the ops before which it leaves, and those before which it must be back.
    let mut moves: BTreeMap<usize, [Vec<usize>; 2]> = BTreeMap::new();
    for row in rows.iter().filter(|row| !row.stays) {
        let of = moves.entry(row.storage.0 as usize).or_default();
        match row.direction {
            MigrationDirection::Out => of[0].push(row.start.0 as usize),
            MigrationDirection::In => of[1].push(row.deadline.0 as usize),
        }
    }
    let mut trips = Vec::new();
    for (storage, [mut outs, backs]) in moves {
        outs.sort_unstable();
        let changes = |from: usize, to: usize| {
            let modifies = |at: &&At| at.modifies && (from..to).contains(&(at.op as usize % ops));
            uses[storage].iter().any(|at| modifies(&at))
        };
        for (index, &out) in outs.iter().enumerate() {
            let after = |back: &usize| if *back <= out { back + ops } else { *back };
            let Some(due) = backs.iter().map(after).min() else { continue };
            let before = outs[(index + outs.len() - 1) % outs.len()];
            let writes = if before < out {
                changes(before, out)
            } else {
                changes(before, ops) || changes(0, out)
            };
            let next = outs.get(index + 1).copied().filter(|next| !changes(out, *next));
            let (leaves, due) = (begins[out], begins[due]);
            let until = next.map_or(due, |next| begins[next].max(due));
            let size = trace.storages[storage].size.0;
            trips.push(RoundTrip { storage, size, leaves, due, writes, until });
        }
    }
    trips.sort_by_key(|trip| (trip.leaves, trip.storage));
    trips
}

/// Bytes that wait for the SSDs at each moment, out and back.
struct Levels<'a> {
    trips: &'a [RoundTrip],
    storages: usize,
    machine: &'a Machine,
    /// Most bytes that may wait.
    waiting: u64,
}

impl Levels<'_> {
    /// The tiers where the SSDs read at most this percentage of what they can.
    fn tiers(&self, load: u64) -> Vec<Option<Target>> {
        let mut tiers = vec![None; self.storages];
        for trip in self.trips {
            tiers[trip.storage] = Some(Target::Ssd);
        }
        let ssd = &self.machine.ssd;
        let written = self.trips.iter().filter(|trip| trip.writes);
        let leaving = written.map(|trip| (trip.leaves, trip)).collect();
        self.overflow(leaving, (ssd.write, 100), &mut tiers);
        // What is never written is on the SSDs for good.
        let mut is_written = vec![false; self.storages];
        for trip in self.trips {
            is_written[trip.storage] |= trip.writes;
        }
        let read = self.trips.iter().filter(|trip| is_written[trip.storage]);
        let mut coming: Vec<(u64, &RoundTrip)> = read.map(|trip| (trip.due, trip)).collect();
        coming.sort_by_key(|(due, trip)| (*due, trip.storage));
        self.overflow(coming, (ssd.read, load), &mut tiers);
        tiers
    }

    /// Gives host memory what comes when as much waits already as may.
    fn overflow(
        &self,
        trips: Vec<(u64, &RoundTrip)>,
        (rate, load): (Bandwidth, u64),
        tiers: &mut [Option<Target>],
    ) {
        let per_second = u128::from(rate.0) * u128::from(load) / 100;
        let (mut level, mut before) = (0, 0);
        for (at, trip) in trips {
            if tiers[trip.storage] == Some(Target::Host) {
                continue;
            }
            let moved = u128::from(at - before) * per_second / 1_000_000_000;
            level = u128::saturating_sub(level, moved);
            before = at;
            // One that is larger than all that may wait goes where nothing else waits.
            if level > 0 && level + u128::from(trip.size) > u128::from(self.waiting) {
                tiers[trip.storage] = Some(Target::Host);
            } else {
                level += u128::from(trip.size);
            }
        }
    }

    /// The most bytes that are in host memory at once.
    fn most_on_host(&self, tiers: &[Option<Target>]) -> u128 {
        let on_host = |trip: &&RoundTrip| tiers[trip.storage] == Some(Target::Host);
        let mut changes: Vec<(u64, i128)> = Vec::new();
        for trip in self.trips.iter().filter(on_host).filter(|trip| trip.writes) {
            changes.push((trip.leaves, trip.size.into()));
            changes.push((trip.until, -i128::from(trip.size)));
        }
        changes.sort_unstable();
        let (mut held, mut most) = (0, 0);
        for (_, change) in changes {
            held += change;
            most = most.max(held);
        }
        most.unsigned_abs()
    }

    fn rates(&self, host: &HostLink, tiers: &[Option<Target>]) -> [Bandwidth; 2] {
        let ssd = &self.machine.ssd;
        let bytes = |target, moves: fn(&RoundTrip) -> bool| -> u64 {
            let of = self.trips.iter().filter(|trip| tiers[trip.storage] == Some(target));
            of.filter(|trip| moves(trip)).map(|trip| trip.size).fold(0, u64::saturating_add)
        };
        let together = |moves, ssd: Bandwidth, host: Bandwidth| {
            let (by_ssd, by_host) = (bytes(Target::Ssd, moves), bytes(Target::Host, moves));
            let time = ssd.time_for(Bytes(by_ssd)).max(host.time_for(Bytes(by_host))).0;
            let all = u128::from(by_ssd) + u128::from(by_host);
            let rate = all.saturating_mul(1_000_000_000).checked_div(u128::from(time));
            // Where nothing moves, as fast as both can.
            let rate = rate.and_then(|rate| u64::try_from(rate).ok()).filter(|rate| *rate > 0);
            Bandwidth(rate.unwrap_or(ssd.0.saturating_add(host.0)))
        };
        let written = together(|trip| trip.writes, ssd.write, host.write);
        [written, together(|_| true, ssd.read, host.read)]
    }
}
