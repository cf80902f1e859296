//! An operation that the data path had no place for. As in fio it is sent again when something has
//! completed, before anything new.

use std::time::Instant;

use tidelog_engine::path::{Operation, Refusal};

use super::{Phase, RawJob};
use crate::stats::{Recorder, nanos};

/// An operation that waits for a place. Its tag is not idle.
pub(super) struct Waiting {
    tag: usize,
    operation: Operation,
    since: Instant,
}

impl RawJob {
    /// Sends an operation. If the path has no place for it and something in flight will make one,
    /// it waits; any other refusal ends the job. Returns whether it was sent.
    pub(super) fn send(&mut self, tag: usize, operation: Operation) -> bool {
        let Err(refused) = self.path.submit(operation) else { return true };
        let why = match refused.reason {
            Refusal::Full if self.is_one_in_flight() => {
                let operation = refused.operation;
                self.waiting = Some(Waiting { tag, operation, since: Instant::now() });
                return false;
            }
            Refusal::Full => "its queue is full".to_owned(),
            Refusal::Invalid(why) => why.to_owned(),
            Refusal::Latched(error) => error.to_string(),
        };
        let buffer = refused.operation.action.into_buffer().or_else(|| self.parked[tag].take());
        self.idle.extend(buffer.map(|buffer| (tag, buffer)));
        let file = &self.job.filename[self.flights[tag].place.file];
        self.ended.fail(format!("{file}: refused: {why}"));
        false
    }

    /// Sends what waits. Returns whether nothing waits any more.
    pub(super) fn send_waiting(&mut self, phase: Phase, recorder: &mut Recorder) -> bool {
        let Some(Waiting { tag, operation, since }) = self.waiting.take() else { return true };
        if !self.send(tag, operation) {
            if let Some(waiting) = &mut self.waiting {
                waiting.since = since;
            }
            return self.waiting.is_none();
        }
        let issued = Instant::now();
        let flight = &mut self.flights[tag];
        (flight.slat, flight.issued) = (nanos(since, issued), nanos(self.epoch, issued));
        if phase == Phase::Load && !flight.is_check {
            recorder.depth.count(self.flights.len() - self.idle.len(), 1);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use tidelog_engine::path::sim::{SimDisk, SimPath};
    use tidelog_engine::path::{OpenedPath, PathError, PathProvider};
    use tidelog_engine::units::ByteCount;

    use super::*;
    use crate::direction::DataDirection;
    use crate::load::Origin;
    use crate::option::{JobOptions, Load, Sizes};
    use crate::run::beside::{Beside, RunThread};

    /// Disks of which few operations are in flight at once, whatever is asked for.
    struct Short(Vec<SimDisk>);

    impl PathProvider for Short {
        fn open(self: Box<Self>, _: u32) -> Result<OpenedPath, PathError> {
            Ok(OpenedPath { path: Box::new(SimPath::new(self.0, 1)?), why_not: Vec::new() })
        }
    }

    #[test]
    fn what_finds_no_place_waits_and_every_block_is_moved_once() {
        const FILE: u64 = 256 << 10;
        for (writes, reads) in [(false, true), (true, false)] {
            let job = JobOptions {
                filename: vec!["one".into(), "two".into()],
                load: Load { reads, writes, ..Load::default() },
                sizes: Sizes::One(4096),
                iodepth: 16,
                ..JobOptions::default()
            };
            let disks = (0..2).map(|_| SimDisk::new(ByteCount(FILE))).collect();
            let origin = Origin { run: 1, writer: 1, pass: 0 };
            let beside = Arc::new(Beside::new(std::slice::from_ref(&job), &Arc::default()));
            let member = Arc::new(RunThread::new(&beside, &job, Vec::new()));
            let provider = Box::new(Short(disks));
            let raw = RawJob::prepare(&job, 0, &member, origin, provider).unwrap();
            let mut recorder = Recorder::new(Duration::ZERO, false, Arc::default());
            let ended = raw.run(&mut recorder);
            assert_eq!(ended.failure, None);
            let direction = if writes { DataDirection::Write } else { DataDirection::Read };
            let moved = recorder.stats.each_ref().map(|stats| stats.bytes);
            assert_eq!((moved[direction as usize], moved.iter().sum()), (2 * FILE, 2 * FILE));
        }
    }
}
