//! Rate of a step: measured from steps, and what a plan was made with.

use tidelog_planner::units::{Bandwidth, Nanos};

/// Rate of a step, as far as it showed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StepRate {
    /// The step without what its ops waited.
    pub(super) compute: Option<Nanos>,
    pub(super) read: Option<Bandwidth>,
    pub(super) write: Option<Bandwidth>,
}

impl StepRate {
    /// The numbers alone, which are compared alike.
    pub(super) fn figures(self) -> [Option<u64>; 3] {
        [self.compute.map(|it| it.0), self.read.map(|it| it.0), self.write.map(|it| it.0)]
    }

    pub(super) fn of([compute, read, write]: [Option<u64>; 3]) -> Self {
        Self { compute: compute.map(Nanos), read: read.map(Bandwidth), write: write.map(Bandwidth) }
    }

    /// Completes figures by those of `before`.
    pub(super) fn or(self, before: Self) -> Self {
        Self {
            compute: self.compute.or(before.compute),
            read: self.read.or(before.read),
            write: self.write.or(before.write),
        }
    }
}
