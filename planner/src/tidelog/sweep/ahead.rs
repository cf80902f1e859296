//! Moving ahead of need: what begins now, and who leaves for it.

use super::record::SERVED;
use super::{Idea, Sweep};
use crate::migration::Target;

impl Sweep<'_> {
    /// Begins what has to move by now, as long as a link would be idle within `ahead`.
    pub(super) fn move_ahead(&mut self, ahead: u64) {
        let until = self.now + ahead + self.queue;
        loop {
            let came = self.fetch_next(until);
            let left = self.write_next(until);
            if !came && !left {
                return;
            }
        }
    }

    fn write_next(&mut self, until: u64) -> bool {
        let waits = self.without == Some(Idea::BeforeThePeak)
            || self.line.slack_out(self.at) >= self.slack_out;
        if waits || !self.out.idle(until) {
            return false;
        }
        let Some(victim) = self.victim(self.at).filter(|victim| self.pays(*victim)) else {
            return false;
        };
        self.evict(victim);
        true
    }

    fn fetch_next(&mut self, until: u64) -> bool {
        let end = (self.at + self.ops).min(self.line.end());
        let Some(&(next, instance)) = self.record.absent.first() else { return false };
        let copy = self.record.instances[instance as usize].copy.unwrap_or(Target::Ssd);
        let Some(link) = self.back.of(copy) else { return false };
        if next >= end || link.busy_until > until {
            return false;
        }
        let is_late = self.line.slack_in(self.at) < self.slack_in;
        if !is_late && self.without == Some(Idea::FillingFreeMemory) {
            return false;
        }
        let size = self.record.size(instance);
        let fits = self.line.most(self.at, next) + size <= self.capacity;
        if fits && self.held + size <= self.capacity {
            self.fetch(instance);
            return true;
        }
        if !is_late {
            return false;
        }
        // It should come now, and something that is used later holds its room.
        let leaves = if fits { None } else { self.victim(next) };
        match leaves.filter(|victim| self.pays(*victim)) {
            Some(victim) if self.is_clean(victim) || self.out.idle(until) => {
                self.evict(victim);
                true
            }
            _ => false,
        }
    }

    /// Begins evictions until enough is on its way out: first what takes no time to go.
    pub(super) fn force_room(&mut self, shortage: i64) {
        let leaving = self.out.moving().map(|transfer| self.record.size(transfer.instance));
        let mut shortage = shortage - leaving.sum::<i64>();
        while shortage > 0 {
            let Some(victim) = self.drop_at_once().or_else(|| self.victim(self.at)) else { return };
            shortage -= self.record.size(victim);
            self.evict(victim);
        }
    }

    fn drop_at_once(&self) -> Option<u32> {
        let &(_, victim) = self.record.here[0].last()?;
        self.pays(victim).then_some(victim)
    }

    fn is_clean(&self, instance: u32) -> bool {
        self.record.instances[instance as usize].copy.is_some()
    }

    /// Returns whether the sweep stays out long enough to be written and read back meanwhile.
    fn pays(&self, instance: u32) -> bool {
        let away = self.line.time(self.at, self.record.next_use(instance));
        let trip = self.line.round_trip(self.record.size(instance).unsigned_abs());
        away > trip / 100 * u64::from(self.variant.pays_percent)
            || self.without == Some(Idea::OnlyWhatPays)
    }

    /// Returns the storage that is used furthest in the future, after `after`, for what it costs: a
    /// read, and a write that is shared by all periods that its copy would serve.
    fn victim(&self, after: u32) -> Option<u32> {
        let mut best: Option<(u64, u32)> = None;
        for (set, served) in self.record.here.iter().zip(SERVED) {
            let Some(&(next, instance)) = set.last().filter(|(next, _)| *next > after) else {
                continue;
            };
            let served = if self.variant.shares_writes { served } else { served.min(1) };
            let write = self.variant.write_percent.checked_div(served).unwrap_or(0);
            let cost = if self.without == Some(Idea::CountingWrites) { 100 } else { 100 + write };
            let value = self.line.worth(self.at, next) / u64::from(cost);
            if best.is_none_or(|(known, _)| known < value) {
                best = Some((value, instance));
            }
        }
        best.map(|(_, instance)| instance)
    }
}
