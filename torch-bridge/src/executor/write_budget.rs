//! The write budget of a session: what was written since it holds, and the pauses that keep to it.

use std::time::{Duration, Instant};

use serde::Serialize;
use tidelog_planner::endurance::WriteAllowance;
use tidelog_planner::units::{Bytes, Nanos};

const DAY: Duration = Duration::from_secs(86_400);

/// Bytes from which on it is known how many more devices write than storages have.
const ENOUGH_BYTES: u64 = 16 << 20;

/// Bytes that were written since a pool was opened.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SessionWrites {
    /// Bytes of the session's storages.
    pub(super) storages: u64,
    /// Bytes to the devices: with padding, metadata, checkpoints and what reclamation copies.
    pub(super) devices: u64,
}

/// A write budget that holds.
pub(super) struct WriteMeter {
    began: Instant,
    allowance: WriteAllowance,
    /// Bytes that were written before it held, and by the last look.
    before: SessionWrites,
    last: SessionWrites,
    paused: Duration,
    pauses: u64,
    /// The pause behind the last step has begun.
    is_pausing: bool,
}

/// Figures for programs.
#[derive(Debug, Serialize)]
pub(super) struct WriteFigures {
    bytes_per_day: u64,
    bytes_written: u64,
    written_per_day: u64,
    pauses: u64,
    pause_ns: u64,
}

impl WriteMeter {
    /// Holds from now on.
    pub(super) fn new(per_day: Bytes, written: SessionWrites) -> Self {
        Self {
            began: Instant::now(),
            allowance: WriteAllowance::new(per_day, Nanos(0)),
            before: written,
            last: written,
            paused: Duration::ZERO,
            pauses: 0,
            is_pausing: false,
        }
    }

    pub(super) fn per_day(&self) -> Bytes {
        self.allowance.per_day()
    }

    /// Returns the part of it that storages may write: the rest is what devices write more.
    pub(super) fn for_storages(&self) -> Bytes {
        let storages = self.last.storages.saturating_sub(self.before.storages);
        let devices = self.written();
        if devices < ENOUGH_BYTES || devices <= storages {
            return self.per_day();
        }
        let part = u128::from(self.per_day().0) * u128::from(storages) / u128::from(devices);
        Bytes(u64::try_from(part).unwrap_or(u64::MAX))
    }

    /// Notes what was written by now.
    pub(super) fn look(&mut self, written: SessionWrites) {
        let new = written.devices.saturating_sub(self.last.devices);
        self.last = written;
        self.allowance.wrote(Bytes(new), self.now());
    }

    /// Returns the time for which nothing may be written from now on.
    pub(super) fn pause(&self) -> Duration {
        Duration::from_nanos(self.allowance.pause(self.now()).0)
    }

    /// Notes that a part of a pause has passed. Returns whether it is the first of all.
    pub(super) fn has_paused(&mut self, time: Duration) -> bool {
        self.paused += time;
        let begins = !std::mem::replace(&mut self.is_pausing, true);
        self.pauses += u64::from(begins);
        begins && self.pauses == 1
    }

    /// A step begins: what is left of a pause is for the next one.
    pub(super) fn step_begins(&mut self) {
        self.is_pausing = false;
    }

    pub(super) fn figures(&self) -> WriteFigures {
        let written = u128::from(self.written()) * DAY.as_nanos();
        let per_day = written / self.began.elapsed().as_nanos().max(1);
        WriteFigures {
            bytes_per_day: self.per_day().0,
            bytes_written: self.written(),
            written_per_day: u64::try_from(per_day).unwrap_or(u64::MAX),
            pauses: self.pauses,
            pause_ns: nanoseconds(self.paused),
        }
    }

    /// Returns the figures in the words of a report.
    pub(super) fn text(&self) -> String {
        let WriteFigures { written_per_day, pauses, .. } = self.figures();
        format!(
            "{} a day; {} a day were written, with {pauses} pauses of {:.1} s together",
            rated(self.per_day()),
            rated(Bytes(written_per_day)),
            self.paused.as_secs_f64()
        )
    }

    fn written(&self) -> u64 {
        self.last.devices.saturating_sub(self.before.devices)
    }

    fn now(&self) -> Nanos {
        Nanos(nanoseconds(self.began.elapsed()))
    }
}

/// Bytes as drives are rated.
#[allow(clippy::cast_precision_loss, reason = "for people")]
pub(super) fn rated(bytes: Bytes) -> String {
    let bytes = bytes.0 as f64;
    if bytes < 1e11 { format!("{:.2} GB", bytes / 1e9) } else { format!("{:.2} TB", bytes / 1e12) }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn written(storages: u64, devices: u64) -> SessionWrites {
        SessionWrites { storages, devices }
    }

    #[test]
    fn what_was_written_before_counts_not_and_the_rest_is_paused_for() {
        let mut budget = WriteMeter::new(Bytes(86_400 * MIB), written(5 * MIB, 70 * MIB));
        budget.look(written(5 * MIB, 70 * MIB));
        assert_eq!(budget.pause(), Duration::ZERO);
        budget.look(written(9 * MIB, 78 * MIB));
        let pause = budget.pause().as_secs_f64();
        assert!((7.0..=8.0).contains(&pause), "eight MiB at one a second: {pause} s");
        // One pause, however often it is looked at; the next step's is another.
        assert!(budget.has_paused(Duration::from_secs(1)));
        assert!(!budget.has_paused(Duration::from_secs(2)));
        budget.step_begins();
        assert!(!budget.has_paused(Duration::from_secs(3)));
        let figures = budget.figures();
        assert_eq!((figures.bytes_written, figures.pauses), (8 * MIB, 2));
        assert_eq!(figures.pause_ns, 6_000_000_000);
        assert!(figures.written_per_day > 86_400 * MIB, "{figures:?}");
        assert!(budget.text().contains("with 2 pauses of 6.0 s"), "{}", budget.text());
    }

    #[test]
    fn plans_have_less_of_it_where_devices_write_more_than_storages_have() {
        let mut budget = WriteMeter::new(Bytes(900), SessionWrites::default());
        budget.look(written(MIB, 3 * MIB));
        assert_eq!(budget.for_storages(), Bytes(900), "too early to tell");
        budget.look(written(20 * MIB, 30 * MIB));
        assert_eq!(budget.for_storages(), Bytes(600));
        budget.look(written(90 * MIB, 31 * MIB));
        assert_eq!(budget.for_storages(), Bytes(900), "some are on their way");
    }
}
