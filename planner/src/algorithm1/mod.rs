//! Algorithm 1 of the TERAIO paper (arXiv 2506.06472): lifetime- and bandwidth-aware planning.
//!
//! While an op needs more memory than there is: for each inactive period, the bandwidth ledgers say
//! when its offload would be complete at the earliest and when its prefetch would have to begin at
//! the latest. If the first is before the second, moving it takes its size from the ops in between.
//! The period with the best benefit for its cost is chosen, both transfers are promised in the
//! ledgers, and so on until everything fits or nothing viable is left. SSDs come first; host memory
//! takes what the SSDs have no bandwidth for, up to its cap.
//!
//! Each choice lowers memory and fills ledgers, so a score only ever falls. The best period is
//! therefore found with a lazy heap: what comes up is scored again, and chosen if it still leads.
//! Near ties are not told apart (`TIE_BITS`).

mod pressure;
mod ranges;

use crate::cost::{HostLink, Ledger, Machine, Timeline};
use crate::lifetime::{ContentVersion, Lifetimes, Period, PeriodEnd};
use crate::migration::{Migration, MigrationDirection, Target};
use crate::plan::{Expectation, Plan, PlannedBytes};
use crate::trace::{PlanStorage, Trace};
use pressure::{Pressure, rounds};
use ranges::{Ranges, signed};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// A period within 1/64 of the best score that any other may still have counts as the best: the
/// layers of a network are alike, and telling near ties apart exactly costs several times the time.
const TIE_BITS: u32 = 6;

/// Score of a period, its benefit weighed against its cost. `time` is the time of the ops over
/// capacity that the eviction would relieve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Score {
    /// Size times time, divided by the time that both transfers take on the links as promised so
    /// far, waiting included.
    #[default]
    PerTransferTime,
    /// Benefit over size, as the paper's listing prints it, which leaves the time.
    PerByte,
    /// Size times time.
    Benefit,
}

impl Score {
    /// The three readings of the paper.
    pub const ALL: [Self; 3] = [Self::PerTransferTime, Self::PerByte, Self::Benefit];
}

/// Options where the published algorithm leaves a choice, and for what goes beyond it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Algorithm1Options {
    /// Score by which periods are ranked.
    pub score: Score,
    /// Charge no write for a period whose bytes an earlier chosen period has already written.
    /// Not in the paper. At run time a clean copy is never written again, planned or not.
    pub clean_drop: bool,
    /// True to evict also storages that are not used again before they die, or not used at all. Not
    /// in the paper.
    pub unused: bool,
}

/// Offer of the ledgers for one period.
struct Offer {
    target: Target,
    /// The unrolled ops whose memory the eviction relieves.
    relieved: (u32, u32),
    score: u128,
}

/// Plans the migrations of one iteration. The same trace and machine give the same plan, byte for
/// byte. A plan that leaves ops over capacity is still a plan (the run time evicts on demand
/// there); [`Expectation`] says how many and by how much. On a machine that [`Machine::check_for`]
/// refuses, as every simulation then does, nothing moves in it.
pub fn algorithm1(trace: &Trace, machine: &Machine, options: Algorithm1Options) -> Plan {
    let (rows, expects) = migrations(trace, machine, options, &Lifetimes::of(trace));
    Plan::new("algorithm1", trace, machine, rows, expects)
}

/// [`algorithm1`]'s rows, in the order chosen, and what is expected of them.
pub(crate) fn migrations(
    trace: &Trace,
    machine: &Machine,
    options: Algorithm1Options,
    lifetimes: &Lifetimes,
) -> (Vec<Migration>, Expectation) {
    let mut planner = Planner::new(trace, machine, options, lifetimes);
    if machine.check_for(trace).is_err() {
        return planner.into_migrations();
    }
    let mut heap = planner.first_offers();
    while !planner.pressure.relieved() {
        let Some((_, Reverse(index))) = heap.pop() else { break };
        let Some(offer) = planner.offer(index) else { continue };
        let leads = heap.peek().is_none_or(|best| best.0 - (best.0 >> TIE_BITS) <= offer.score);
        if leads {
            planner.choose(index, &offer);
        } else {
            heap.push((offer.score, Reverse(index)));
        }
    }
    planner.into_migrations()
}

struct Planner<'a> {
    options: Algorithm1Options,
    periods: &'a [Period],
    timeline: Timeline,
    pressure: Pressure,
    ssd: Links,
    host: Option<Host>,
    /// Earliest chosen period that writes, for each storage and contents.
    written: HashMap<(PlanStorage, ContentVersion), (bool, u32)>,
    rows: Vec<Migration>,
    bytes: PlannedBytes,
}

/// The two directions of one target.
struct Links {
    out: Ledger,
    back: Ledger,
}

struct Host {
    links: Links,
    /// Bytes in host memory per op, minus the cap.
    room: Ranges,
}

impl<'a> Planner<'a> {
    fn new(
        trace: &'a Trace,
        machine: &Machine,
        options: Algorithm1Options,
        lifetimes: &'a Lifetimes,
    ) -> Self {
        let timeline = Timeline::of(trace);
        let period = timeline.period();
        let ssd = Links {
            out: Ledger::new(period, machine.ssd.write, machine.ssd.latency),
            back: Ledger::new(period, machine.ssd.read, machine.ssd.latency),
        };
        let new_host = |link: &HostLink| Host {
            links: Links {
                out: Ledger::new(period, link.write, link.latency),
                back: Ledger::new(period, link.read, link.latency),
            },
            room: Ranges::new(&vec![-signed(link.memory); trace.ops.len()]),
        };
        Self {
            options,
            periods: &lifetimes.periods,
            pressure: Pressure::new(&lifetimes.memory, machine.capacity(), &timeline),
            ssd,
            host: machine.host.as_ref().map(new_host),
            timeline,
            written: HashMap::new(),
            rows: Vec::new(),
            bytes: PlannedBytes::default(),
        }
    }

    fn first_offers(&mut self) -> BinaryHeap<(u128, Reverse<usize>)> {
        let mut offers = Vec::new();
        for (index, period) in self.periods.iter().enumerate() {
            let wanted = self.options.unused || period.end == PeriodEnd::Use;
            if wanted && self.pressure.time_over(period.from, period.to).0 > 0 {
                offers.extend(self.offer(index).map(|offer| (offer.score, Reverse(index))));
            }
        }
        offers.into()
    }

    /// Returns the effect of moving period `index` now; `None` if it cannot help any more.
    fn offer(&mut self, index: usize) -> Option<Offer> {
        let period = &self.periods[index];
        if let Some(offer) = self.offer_over(period, Target::Ssd) {
            return Some(offer);
        }
        let host = self.host.as_mut()?;
        let whole = rounds(self.timeline.ops(), period.from, period.to);
        let fullest = whole.iter().map(|(from, to)| host.room.maximum(*from, *to)).max();
        if fullest.is_some_and(|room| room + signed(period.size) > 0) {
            return None;
        }
        self.offer_over(period, Target::Host)
    }

    fn offer_over(&self, period: &Period, target: Target) -> Option<Offer> {
        let links = match target {
            Target::Ssd => &self.ssd,
            Target::Host => &self.host.as_ref()?.links,
        };
        let (begin, end) = (self.timeline.begin(period.from), self.timeline.begin(period.to));
        let written = if self.writes(period) {
            links.out.earliest_completion(begin, end, period.size)?
        } else {
            begin
        };
        let prefetch = match period.end {
            PeriodEnd::Use => links.back.latest_start(written, end, period.size)?,
            PeriodEnd::Unused => end,
        };
        let from = self.timeline.first_beginning_at(written, period.from, period.to);
        let to = match period.end {
            PeriodEnd::Use => self.timeline.last_beginning_by(prefetch, period.from, period.to),
            PeriodEnd::Unused => period.to,
        };
        if from >= to {
            return None;
        }
        let time = u128::from(self.pressure.time_over(from, to).0);
        if time == 0 {
            return None;
        }
        let benefit = time * u128::from(period.size.0);
        let elapsed = (written.0 - begin.0) + (end.0 - prefetch.0);
        let score = match self.options.score {
            // 20 binary places: sizes and times are below 2^53, so this stays below 2^126.
            Score::PerTransferTime => (benefit << 20) / u128::from(elapsed.max(1)),
            Score::PerByte => time,
            Score::Benefit => benefit,
        };
        Some(Offer { target, relieved: (from, to), score })
    }

    /// Returns whether evicting the period costs a write.
    fn writes(&self, period: &Period) -> bool {
        if !self.options.clean_drop {
            return true;
        }
        let writer = self.written.get(&(period.storage, period.version));
        period.version != ContentVersion::Constant
            && writer.is_none_or(|first| period.order() < *first)
    }

    fn choose(&mut self, index: usize, offer: &Offer) {
        let period = self.periods[index];
        let ops = self.timeline.ops();
        let (begin, end) = (self.timeline.begin(period.from), self.timeline.begin(period.to));
        let writes = self.writes(&period);
        let links = match (offer.target, &mut self.host) {
            (Target::Host, Some(host)) => {
                for (from, to) in rounds(ops, period.from, period.to) {
                    host.room.add(from, to, signed(period.size));
                }
                &mut host.links
            }
            _ => &mut self.ssd,
        };
        if writes {
            links.out.promise_from(begin, period.size);
            // What an earlier period now writes, a later one no longer does. Its promise stays in
            // the ledger: it can only make the plan more careful.
            let moved = self.written.insert((period.storage, period.version), period.order());
            if moved.is_none() || !self.options.clean_drop {
                self.bytes.add_out(offer.target, period.size);
            }
        }
        let row = |direction, when| {
            Migration::unrolled(period.storage, (direction, offer.target), when, ops)
        };
        self.rows.push(row(MigrationDirection::Out, (period.from, offer.relieved.0)));
        if period.end == PeriodEnd::Use {
            links.back.promise_until(end, period.size);
            self.bytes.add_back(offer.target, period.size);
            self.rows.push(row(MigrationDirection::In, (offer.relieved.1, period.to)));
        }
        self.pressure.relieve(offer.relieved.0, offer.relieved.1, period.size);
    }

    fn into_migrations(mut self) -> (Vec<Migration>, Expectation) {
        let expects = Expectation {
            time: self.timeline.period(),
            bytes: self.bytes,
            ops_over_capacity: self.pressure.ops_over(),
            over_capacity: self.pressure.worst(),
            ..Expectation::default()
        };
        (self.rows, expects)
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod exhaustive_tests;
