//! Reading back while writing goes on: `verify_backlog=`.

use std::collections::VecDeque;

use crate::load::BlockRange;
use crate::option::JobOptions;

/// Blocks that were written and not read back yet, each with the pass that wrote it.
#[derive(Clone, Debug)]
pub(super) struct Backlog {
    /// Number of blocks that are written before they are read back; never, if this is 0.
    every: u64,
    /// Number of blocks that are read back then.
    batch: u64,
    written: VecDeque<(BlockRange, u64)>,
    /// Writes begun since the last time.
    begun: u64,
    /// Number of blocks still to be read back this time, and whether that has begun.
    left: u64,
    is_checking: bool,
}

/// Next action of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// The job writes on.
    Write,
    /// The job waits for operations in flight.
    Wait,
    /// The job reads a block of this pass back.
    Check(BlockRange, u64),
}

impl Backlog {
    pub(super) fn new(job: &JobOptions) -> Self {
        let every = match job.verify_backlog {
            _ if !job.verify || !job.load.writes => 0,
            // Where zones decide where blocks go, all are read back from where they went.
            0 if job.zbd => u64::MAX,
            every => every,
        };
        Self {
            every,
            batch: job.verify_backlog_batch.unwrap_or(every),
            written: VecDeque::new(),
            begun: 0,
            left: 0,
            is_checking: false,
        }
    }

    pub(super) fn is_any(&self) -> bool {
        self.every > 0
    }

    /// Returns whether something was not read back yet.
    pub(super) fn has_rest(&self) -> bool {
        !self.written.is_empty()
    }

    /// Begins to write one.
    pub(super) fn begin(&mut self) {
        self.begun += 1;
    }

    /// One is written.
    pub(super) fn landed(&mut self, place: BlockRange, pass: u64) {
        if self.is_any() {
            self.written.push_back((place, pass));
        }
    }

    /// Lets all that was written be read back before anything else is.
    pub(super) fn flush(&mut self) {
        self.left = u64::MAX;
    }

    /// Returns the next action. A write and a read of one block are never in flight together, as
    /// neither could be trusted then.
    pub(super) fn turn(&mut self, is_one_in_flight: bool) -> Turn {
        if !self.is_any() {
            return Turn::Write;
        }
        if self.begun >= self.every {
            self.left = self.left.max(self.batch);
            self.begun = 0;
        }
        if self.left > 0 && !self.is_checking {
            if is_one_in_flight {
                return Turn::Wait;
            }
            self.is_checking = true;
        }
        if self.left > 0
            && let Some((place, pass)) = self.written.pop_front()
        {
            self.left -= 1;
            return Turn::Check(place, pass);
        }
        self.left = 0;
        if self.is_checking && is_one_in_flight {
            return Turn::Wait;
        }
        self.is_checking = false;
        Turn::Write
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::option::apply;

    fn place(offset: u64) -> BlockRange {
        BlockRange { file: 0, offset, length: 4096 }
    }

    #[test]
    fn so_many_are_written_and_then_read_back_with_nothing_else_in_flight() {
        let mut job = JobOptions::default();
        for (name, value) in [
            ("rw", "write"),
            ("verify", "crc32c"),
            ("verify_backlog", "2"),
            ("verify_backlog_batch", "1"),
        ] {
            apply(&mut job, name, value).unwrap();
        }
        let mut backlog = Backlog::new(&job);
        for offset in [0, 1] {
            assert_eq!(backlog.turn(offset > 0), Turn::Write);
            backlog.begin();
        }
        backlog.landed(place(1), 7);
        assert_eq!(backlog.turn(true), Turn::Wait, "the other write flies");
        backlog.landed(place(0), 7);
        assert_eq!(backlog.turn(false), Turn::Check(place(1), 7));
        assert_eq!(backlog.turn(true), Turn::Wait, "a batch is one");
        assert_eq!(backlog.turn(false), Turn::Write);
        backlog.flush();
        assert_eq!(backlog.turn(false), Turn::Check(place(0), 7));
        assert!(!backlog.has_rest());
    }
}
