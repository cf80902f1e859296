//! Rate of a step: measured from steps, and what a plan was made with.

use tidelog_planner::units::{Bandwidth, Nanos};

/// Rate of a step, as far as it showed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StepRate {
    /// The step without what its ops waited.
    pub(super) compute: Option<Nanos>,
    /// Rates from the pool, and to it.
    pub(super) read: Option<Bandwidth>,
    pub(super) write: Option<Bandwidth>,
    /// Rates from host memory to a GPU, and back.
    pub(super) host_read: Option<Bandwidth>,
    pub(super) host_write: Option<Bandwidth>,
}

/// Number of figures of a rate.
pub(super) const FIGURES: usize = 5;

impl StepRate {
    /// The numbers alone, which are compared alike.
    pub(super) fn figures(self) -> [Option<u64>; FIGURES] {
        let Self { compute, read, write, host_read, host_write } = self;
        let [read, write, host_read, host_write] =
            [read, write, host_read, host_write].map(|rate| rate.map(|it| it.0));
        [compute.map(|it| it.0), read, write, host_read, host_write]
    }

    pub(super) fn of([compute, rates @ ..]: [Option<u64>; FIGURES]) -> Self {
        let [read, write, host_read, host_write] = rates.map(|rate| rate.map(Bandwidth));
        Self { compute: compute.map(Nanos), read, write, host_read, host_write }
    }

    /// Completes figures by those of `before`.
    pub(super) fn or(self, before: Self) -> Self {
        Self {
            compute: self.compute.or(before.compute),
            read: self.read.or(before.read),
            write: self.write.or(before.write),
            host_read: self.host_read.or(before.host_read),
            host_write: self.host_write.or(before.host_write),
        }
    }
}
