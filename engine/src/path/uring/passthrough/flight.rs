//! State of an operation while its commands are in flight.

use std::time::Duration;

use crate::path::Status;
use crate::path::nvme::steps::{CommandStep, Steps};

/// One slot's operation.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PassthroughInFlight {
    unsent: Steps,
    outstanding: u32,
    failure: Option<Status>,
    /// Delay before a failed operation is retried.
    delay: Duration,
    /// Number of retries.
    tried: u32,
}

impl PassthroughInFlight {
    /// Makes the state of an operation with these commands, none of which was sent.
    pub(super) fn of(steps: Steps) -> Self {
        Self { unsent: steps, ..Self::default() }
    }

    /// Restarts the operation from its first command.
    pub(super) fn again(self, steps: Steps) -> Self {
        Self { tried: self.tried + 1, ..Self::of(steps) }
    }

    /// Returns the number of retries.
    pub(super) fn tried(&self) -> u32 {
        self.tried
    }

    /// Prevents further retries.
    pub(super) fn give_up(&mut self) {
        self.tried = u32::MAX;
    }

    /// The next command to send.
    pub(super) fn unsent(&self) -> Option<CommandStep> {
        self.unsent.peek()
    }

    pub(super) fn sent(&mut self, step: CommandStep) {
        self.unsent = self.unsent.after(step);
        self.outstanding += 1;
    }

    /// One command came back. The first failure is the one that counts, and nothing more is sent.
    pub(super) fn landed(&mut self, answer: Result<(), (Status, Duration)>) {
        self.outstanding -= 1;
        if let Err((status, delay)) = answer {
            self.unsent = Steps::default();
            self.failure.get_or_insert(status);
            self.delay = self.delay.max(delay);
        }
    }

    /// Returns the delay that the controller asks for, where it failed.
    pub(super) fn delay(&self) -> Duration {
        self.delay
    }

    /// Returns whether a command has not come back yet.
    pub(super) fn is_out(&self) -> bool {
        self.outstanding > 0
    }

    pub(super) fn failure(&self) -> Option<Status> {
        self.failure
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::nvme::steps::Limits;

    #[test]
    fn the_first_failure_ends_an_operation_when_everything_is_back() {
        let mut flight = PassthroughInFlight::of(Limits::new(512, 4096).transfer(0, 3 * 4096));
        for _ in 0..2 {
            flight.sent(flight.unsent().unwrap());
        }
        let [first, second] = [1, 2].map(Status::Errno);
        flight.landed(Err((first, Duration::ZERO)));
        assert!(flight.is_out() && flight.unsent().is_none());
        flight.landed(Err((second, Duration::from_secs(1))));
        assert!(!flight.is_out());
        assert_eq!((flight.failure(), flight.delay()), (Some(first), Duration::from_secs(1)));
        let again = flight.again(Limits::new(512, 4096).transfer(0, 4096));
        assert_eq!((again.failure(), again.tried(), again.is_out()), (None, 1, false));
        assert!(again.unsent().is_some());
    }
}
