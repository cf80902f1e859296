//! Choice of the operation that a raw job begins next.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::backlog::Turn;
use super::{BegunIo, Phase, RawJob};
use crate::direction::DataDirection;
use crate::load::{BlockRange, Zoned, Zones};
use crate::option::JobOptions;

/// Interval at which a job that is ahead of its flow, and has no time to sleep, looks again.
const FLOW_LOOK: Duration = Duration::from_micros(50);

/// Interval at which a job checks whether another's write to a zone has landed.
const ZONE_LOOK: Duration = Duration::from_micros(50);

impl RawJob {
    pub(super) fn next(&mut self, phase: &mut Phase, now: Instant) -> Option<BegunIo> {
        match phase {
            Phase::Verify { reached, before } => {
                match reached.checked_sub(1) {
                    Some(rest) => *reached = rest,
                    None => self.origin.pass = (*before)?,
                }
                let place = self.stream.advance(DataDirection::Write)?;
                Some(BegunIo { place, direction: DataDirection::Read, check: None })
            }
            Phase::Sync => None,
            Phase::Backlog => begun_of(self.backlog.turn(self.is_one_in_flight())),
            Phase::Load => match self.backlog.turn(self.is_one_in_flight()) {
                Turn::Write => self.next_of_load(now),
                turn => begun_of(turn),
            },
        }
    }

    fn next_of_load(&mut self, now: Instant) -> Option<BegunIo> {
        let pass = self.origin.pass;
        loop {
            let after_trim = || Some((self.trimmed.pop()?, DataDirection::Write));
            let (mut place, direction) = match self.held.take().or_else(after_trim) {
                Some(next) => next,
                None if self.budget.is_used_up() || self.pauses(now) => return None,
                None => match self.draw() {
                    Some(next) => next,
                    // What the pass wrote is read back before the next one writes it again.
                    None if self.backlog.has_rest() => {
                        self.backlog.flush();
                        return begun_of(self.backlog.turn(self.is_one_in_flight()));
                    }
                    None => return None,
                },
            };
            self.due = self.throttle.due(direction, now);
            if self.due.is_some() {
                self.held = Some((place, direction));
                return None;
            }
            match self.zoned(place, direction) {
                Zoned::To(offset) => place.offset = offset,
                Zoned::Busy => {
                    self.held = Some((place, direction));
                    // A write of another job completes without this one being told.
                    self.due = Some(now + ZONE_LOOK);
                    return None;
                }
                // Two passes without anything to do are followed by others.
                Zoned::Skip if self.origin.pass <= pass + 1 => continue,
                Zoned::Skip | Zoned::NoMore => {
                    self.budget.end();
                    return None;
                }
            }
            self.throttle.took(direction, place.length);
            if direction == DataDirection::Write {
                self.backlog.begin();
            }
            if direction == DataDirection::Trim || !self.job.load.writes_what_it_trims() {
                self.begun_in_pass += 1;
                self.thought_after += 1;
                self.budget.take(place.length);
            }
            return Some(BegunIo { place, direction, check: None });
        }
    }

    /// Returns the place of an operation, if its file has zones.
    fn zoned(&self, place: BlockRange, direction: DataDirection) -> Zoned {
        let Some(zones) = self.member.zones.get(place.file) else { return Zoned::To(place.offset) };
        let window = self.stream.window(place.file);
        match direction {
            DataDirection::Write => zones.write(window, place, self.origin.writer, self.job.verify),
            DataDirection::Read if self.job.read_beyond_wp => Zoned::To(place.offset),
            DataDirection::Read => zones.read(window, place, self.job.load.random),
            DataDirection::Trim => Zoned::NoMore,
        }
    }

    /// Returns the direction of an operation: as in fio, a mix writes first where there is nothing
    /// to read.
    fn direction_in(&self, place: BlockRange, drawn: DataDirection) -> DataDirection {
        let is_empty = |zones: &Arc<Zones>| zones.are_empty(self.stream.window(place.file));
        let is_mix = self.job.load.is_mix() && !self.job.read_beyond_wp;
        let zones = self.member.zones.get(place.file).filter(|_| is_mix);
        if zones.is_some_and(is_empty) { DataDirection::Write } else { drawn }
    }

    /// Returns whether nothing new may begin yet: the job thinks, or is ahead of its part of a
    /// flow. What is in flight ends before a wait begins.
    fn pauses(&mut self, now: Instant) -> bool {
        let JobOptions { thinktime, thinktime_blocks, flow_sleep, .. } = self.job;
        if !thinktime.is_zero() && self.thought_after >= thinktime_blocks {
            if self.is_one_in_flight() {
                return true;
            }
            let until = *self.thinks_until.get_or_insert(now + thinktime);
            if now < until {
                self.due = Some(until);
                return true;
            }
            (self.thought_after, self.thinks_until) = (0, None);
        }
        if self.member.takes_turn() {
            return false;
        }
        // What still is in flight may be waited for first, since others go on meanwhile; without a
        // sleep the job only looks again.
        if flow_sleep.is_zero() || !self.is_one_in_flight() {
            self.due = Some(now + flow_sleep.max(FLOW_LOOK));
        }
        true
    }

    /// Draws the next operation in this pass, or first in the next.
    fn draw(&mut self) -> Option<(BlockRange, DataDirection)> {
        let drawn = self.job.load.draw(&mut self.random, self.job.rwmixread);
        let place = match self.stream.advance(drawn) {
            Some(place) => place,
            // Two writes of one block in flight could complete in any order, and the older one
            // stay.
            None if self.job.verify && (self.is_one_in_flight() || self.backlog.has_rest()) => {
                return None;
            }
            None => {
                self.origin.pass += 1;
                self.begun_in_pass = 0;
                if self.job.verify && self.job.load.writes {
                    for (file, zones) in self.member.zones.iter().enumerate() {
                        zones.reset(self.stream.window(file));
                    }
                }
                self.stream.next_pass();
                self.stream.advance(drawn)?
            }
        };
        Some((place, self.direction_in(place, drawn)))
    }
}

/// The block that is read back next, if it is the turn of one.
fn begun_of(turn: Turn) -> Option<BegunIo> {
    let Turn::Check(place, pass) = turn else { return None };
    Some(BegunIo { place, direction: DataDirection::Read, check: Some(pass) })
}
