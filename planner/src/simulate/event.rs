//! Events for which kernels and copies wait, as streams of a GPU record them.

/// Recorded in a stream: it happens when all that was put there before is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SimulatedEvent(u32);

impl SimulatedEvent {
    /// Returns the number: that of one that is made later is higher.
    pub(super) fn number(self) -> u64 {
        u64::from(self.0)
    }

    /// The event of this number.
    pub(super) fn numbered(number: u64) -> Self {
        Self(number as u32)
    }
}

/// Time of each event.
#[derive(Clone, Debug, Default)]
pub(super) struct SimulatedEvents {
    passed: Vec<Option<u64>>,
}

impl SimulatedEvents {
    pub(super) fn make(&mut self) -> SimulatedEvent {
        self.passed.push(None);
        SimulatedEvent(self.passed.len() as u32 - 1)
    }

    pub(super) fn record(&mut self, event: SimulatedEvent, at: u64) {
        self.passed[event.0 as usize] = Some(at);
    }

    pub(super) fn has_passed(&self, event: SimulatedEvent) -> bool {
        self.passed_at(event).is_some()
    }

    pub(super) fn passed_at(&self, event: SimulatedEvent) -> Option<u64> {
        self.passed[event.0 as usize]
    }
}
