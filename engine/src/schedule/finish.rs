//! Action at a transfer's end, kept in place where it is small.

use std::fmt;

use smallbox::{SmallBox, smallbox, space::S8};

use super::transfer::TransferResult;

/// Action for the result of a transfer. Runs once, on the reactor thread, after the last device
/// operation has ended and before the ticket turns ready. It must not wait for the reactor.
///
/// What it captures is kept without an allocation up to eight words.
pub struct Finish(SmallBox<dyn Once, S8>);

/// A closure that is called once, by a reference, as one of unknown size has to be.
trait Once: Send {
    fn call(&mut self, result: TransferResult<'_>);
}

impl<F: FnOnce(TransferResult<'_>) + Send> Once for Option<F> {
    fn call(&mut self, result: TransferResult<'_>) {
        if let Some(finish) = self.take() {
            finish(result);
        }
    }
}

impl Finish {
    /// Calls this at the end. Dropped without having been called, where the reactor ends in a
    /// panic.
    pub fn new(finish: impl FnOnce(TransferResult<'_>) + Send + 'static) -> Self {
        Self(smallbox!(Some(finish)))
    }

    /// Makes an action that does nothing.
    pub fn nothing() -> Self {
        Self::new(|_| ())
    }

    pub(super) fn call(mut self, result: TransferResult<'_>) {
        self.0.call(result);
    }
}

impl fmt::Debug for Finish {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Finish")
    }
}
