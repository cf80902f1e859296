//! True if a machine's figures can be: a rate of nothing would make a step without end, and sums of
//! absurd ones wrap.

use super::Machine;
use crate::trace::Trace;
use crate::units::{Bandwidth, Bytes, Nanos};

/// Limit of rates, times and sizes: more than any link carries, any memory holds and any latency
/// lasts is a slip of the pen.
const RATE_MOST: u64 = 1 << 53;
const MEMORY_MOST: u64 = 1 << 60;
const LATENCY_MOST: u64 = 3_600_000_000_000;

/// The longest that a step may be busy moving, in nanoseconds (104 days), as for a trace's kernels:
/// sums over the iterations of a simulation stay exact.
const MOVING_MOST: u128 = 1 << 53;

/// The longest that moving as much as the budget may take, in nanoseconds (36 years): a made-up
/// budget without end is no reason to refuse a machine, unless times wrap.
const MEMORY_TIME_MOST: u128 = 1 << 60;

/// Error of a machine's description.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MachineError {
    /// The figure is zero: nothing moves, or nothing fits.
    #[error("{what} is 0 {unit}: it must be more than nothing")]
    Zero {
        /// The field, as a machine file calls it.
        what: String,
        /// Unit of the figure.
        unit: &'static str,
    },
    /// The figure is more than there can be.
    #[error("{what} is {value} {unit}: more than {most} {unit} cannot be right")]
    TooLarge {
        /// The field.
        what: String,
        /// The figure.
        value: u64,
        /// The most that is believed.
        most: u64,
        /// Unit of the figure.
        unit: &'static str,
    },
    /// Staging takes all.
    #[error("staging ({staging}) takes the whole budget ({budget}): nothing is left for tensors")]
    NoMemory {
        /// The budget.
        budget: Bytes,
        /// The staging ring.
        staging: Bytes,
    },
    /// A rate, or a latency, with which a step of this trace would not end within reason.
    #[error(
        "{what} is {value} {unit}: a step of this trace, which touches {touched}, could then take \
         more than 104 days; measure the machine (tidelog-plan calibrate)"
    )]
    TooSlow {
        /// The field.
        what: String,
        /// The figure.
        value: u64,
        /// Unit of the figure.
        unit: &'static str,
        /// The bytes of all uses of a step.
        touched: Bytes,
    },
}

const PER_SECOND: &str = "bytes per second";
const BYTES: &str = "bytes";
const NANOSECONDS: &str = "nanoseconds";

/// Checks that a rate is possible.
pub(crate) fn rate(what: &str, rate: Bandwidth) -> Result<(), MachineError> {
    within(what, rate.0, RATE_MOST, PER_SECOND)
}

/// Checks that an amount of memory is possible, and not zero.
pub(crate) fn memory(what: &str, bytes: Bytes) -> Result<(), MachineError> {
    within(what, bytes.0, MEMORY_MOST, BYTES)
}

/// Checks that a latency is possible. None is the default of much that is made up.
pub(crate) fn latency(what: &str, latency: Nanos) -> Result<(), MachineError> {
    within(what, latency.0.max(1), LATENCY_MOST, NANOSECONDS)
}

/// Checks that a figure is neither zero nor absurd.
pub(crate) fn within(
    what: &str,
    value: u64,
    most: u64,
    unit: &'static str,
) -> Result<(), MachineError> {
    let what = || what.to_owned();
    match value {
        0 => Err(MachineError::Zero { what: what(), unit }),
        _ if value > most => Err(MachineError::TooLarge { what: what(), value, most, unit }),
        _ => Ok(()),
    }
}

impl Machine {
    /// Checks that every figure is possible, each by its name in a machine file.
    ///
    /// # Errors
    /// The first that cannot.
    pub fn check(&self) -> Result<(), MachineError> {
        memory("budget", self.budget)?;
        if self.staging >= self.budget {
            let (budget, staging) = (self.budget, self.staging);
            return Err(MachineError::NoMemory { budget, staging });
        }
        for (what, link) in self.links() {
            rate(what, link)?;
        }
        latency("ssd.latency_ns", self.ssd.latency)?;
        if let Some(host) = &self.host {
            latency("host.latency_ns", host.latency)?;
            // Host memory of no bytes is a machine without.
            within("host.memory", host.memory.0.max(1), MEMORY_MOST, BYTES)?;
        }
        Ok(())
    }

    /// Checks that the machine could carry out steps of this trace: [`Machine::check`], and no link
    /// is so slow that moving all that a step touches, in and out each time, would take longer than
    /// any step does. Everything that plans or simulates asks this first, so that none of it runs
    /// without end.
    ///
    /// # Errors
    /// The figure that is the cause.
    pub fn check_for(&self, trace: &Trace) -> Result<(), MachineError> {
        self.check()?;
        let size = |storage| u128::from(trace.storage(storage).size.0);
        let (mut bytes, mut moves) = (0_u128, 0_u128);
        for op in &trace.ops {
            let touched = op.uses.iter().map(|used| used.storage);
            for storage in touched.chain(op.births.iter().map(|birth| birth.storage)) {
                bytes += 2 * size(storage);
                moves += 2;
            }
        }
        let touched = Bytes(u64::try_from(bytes / 2).unwrap_or(u64::MAX));
        let too_slow = |what: &str, value, unit| {
            Err(MachineError::TooSlow { what: what.to_owned(), value, unit, touched })
        };
        // The policies reckon in parts of the time in which all memory moves.
        let slowest = self.links().map(|(_, link)| link.0).min().unwrap_or(1);
        let most = u64::try_from(MEMORY_TIME_MOST * u128::from(slowest) / 1_000_000_000);
        within("budget", self.budget.0, most.unwrap_or(u64::MAX), BYTES)?;
        for (what, link) in self.links() {
            if bytes * 1_000_000_000 / u128::from(link.0) > MOVING_MOST {
                return too_slow(what, link.0, PER_SECOND);
            }
        }
        let host = self.host.map(|host| ("host.latency_ns", host.latency));
        for (what, latency) in [("ssd.latency_ns", self.ssd.latency)].into_iter().chain(host) {
            if moves * u128::from(latency.0) > MOVING_MOST {
                return too_slow(what, latency.0, NANOSECONDS);
            }
        }
        Ok(())
    }

    fn links(&self) -> impl Iterator<Item = (&'static str, Bandwidth)> {
        let ssd = [("ssd.read", self.ssd.read), ("ssd.write", self.ssd.write)];
        let host = self.host.map(|host| [("host.read", host.read), ("host.write", host.write)]);
        ssd.into_iter().chain(host.into_iter().flatten()).chain([("verify", self.verify)])
    }
}
