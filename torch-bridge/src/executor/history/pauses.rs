//! Pauses: how long they were, and what left memory by them. None of it belongs to a step.

use std::time::{Duration, Instant};

use serde::Serialize;
use tidelog_planner::units::Bytes;

use super::counters::CountedUntil;

/// Totals since the session was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(in crate::executor) struct PauseTotals {
    /// Number of pauses that have begun.
    pub(in crate::executor) count: u64,
    is_paused: bool,
    /// Memory that was given up by them, and taken when they ended.
    pub(in crate::executor) bytes_out: u64,
    pub(in crate::executor) bytes_back: u64,
    /// Time that leaving took, that nothing had memory, and that coming back took.
    pub(in crate::executor) leaving_ns: u64,
    pub(in crate::executor) paused_ns: u64,
    pub(in crate::executor) returning_ns: u64,
}

/// The pauses of a session.
#[derive(Default)]
pub(super) struct Pauses {
    totals: PauseTotals,
    open: Option<OpenPause>,
}

/// A pause that has not ended.
struct OpenPause {
    began: Instant,
    counted: CountedUntil,
    phase: Phase,
    since: Instant,
    /// Bytes in memory when it began.
    memory: Bytes,
}

#[derive(PartialEq, Eq)]
enum Phase {
    Leaving,
    Paused,
    Returning,
}

/// State of a pause.
pub(super) enum PauseNow {
    AsBefore,
    AllIsOut,
    /// The step goes on later, from what was counted when the pause began.
    Over {
        took: Duration,
        counted: Box<CountedUntil>,
    },
}

impl Pauses {
    pub(super) fn totals(&self) -> PauseTotals {
        PauseTotals { is_paused: self.open.is_some(), ..self.totals }
    }

    pub(super) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Notes that a pause begins, and what is in memory.
    pub(super) fn begins(&mut self, memory: Bytes, counted: CountedUntil) {
        if self.open.is_none() {
            let now = Instant::now();
            self.totals.count += 1;
            let phase = Phase::Leaving;
            self.open = Some(OpenPause { began: now, counted, phase, since: now, memory });
        }
    }

    /// Notes that a pause is to end.
    pub(super) fn ends(&mut self, memory: Bytes) {
        let Some(open) = &mut self.open else { return };
        let took = since(&mut open.since);
        match open.phase {
            Phase::Paused => self.totals.paused_ns += took,
            Phase::Leaving | Phase::Returning => self.totals.leaving_ns += took,
        }
        (open.phase, open.memory) = (Phase::Returning, memory);
    }

    /// Notes that nothing is waited for, and what is in memory.
    pub(super) fn goes_on(&mut self, memory: Bytes) -> PauseNow {
        let Some(open) = &mut self.open else { return PauseNow::AsBefore };
        match open.phase {
            Phase::Leaving => {
                self.totals.leaving_ns += since(&mut open.since);
                self.totals.bytes_out += open.memory.0.saturating_sub(memory.0);
                open.phase = Phase::Paused;
                PauseNow::AllIsOut
            }
            Phase::Paused => PauseNow::AsBefore,
            Phase::Returning => {
                self.totals.returning_ns += since(&mut open.since);
                self.totals.bytes_back += memory.0.saturating_sub(open.memory.0);
                let (took, counted) = (open.began.elapsed(), open.counted);
                self.open = None;
                PauseNow::Over { took, counted: Box::new(counted) }
            }
        }
    }
}

/// Nanoseconds since then, which is now from here on.
fn since(then: &mut Instant) -> u64 {
    let now = Instant::now();
    now.saturating_duration_since(std::mem::replace(then, now)).as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_counted_once_from_its_beginning_to_its_end() {
        let mut pauses = Pauses::default();
        assert!(matches!(pauses.goes_on(Bytes(9)), PauseNow::AsBefore) && !pauses.is_open());
        pauses.begins(Bytes(90), CountedUntil::default());
        pauses.begins(Bytes(50), CountedUntil::default()); // asked for again
        assert!(matches!(pauses.goes_on(Bytes(10)), PauseNow::AllIsOut));
        assert!(matches!(pauses.goes_on(Bytes(10)), PauseNow::AsBefore));
        assert!(pauses.totals().is_paused);
        pauses.ends(Bytes(15)); // others came meanwhile
        assert!(matches!(pauses.goes_on(Bytes(75)), PauseNow::Over { .. }) && !pauses.is_open());
        let PauseTotals { count, is_paused, bytes_out, bytes_back, .. } = pauses.totals();
        assert_eq!((count, is_paused, bytes_out, bytes_back), (1, false, 80, 60));
    }

    #[test]
    fn one_that_failed_ends_as_well() {
        let mut pauses = Pauses::default();
        pauses.begins(Bytes(90), CountedUntil::default());
        pauses.ends(Bytes(40));
        assert!(matches!(pauses.goes_on(Bytes(40)), PauseNow::Over { .. }));
        assert_eq!((pauses.totals().bytes_out, pauses.totals().bytes_back), (0, 0));
    }
}
