//! The failure after which a device is not trusted any more, shared by all data paths to it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::operation::DeviceError;

/// Memory of the failure that makes what a device holds uncertain. Clones share it: what one data
/// path learned, no other one writes past.
#[derive(Clone, Debug, Default)]
pub(super) struct Latch(Arc<LatchState>);

#[derive(Debug, Default)]
struct LatchState {
    /// True once there is a cause. Every operation asks, and few devices fail.
    has_failed: AtomicBool,
    cause: Mutex<Option<DeviceError>>,
}

impl Latch {
    /// Returns the failure, if there was one.
    pub(super) fn cause(&self) -> Option<DeviceError> {
        if self.0.has_failed.load(Ordering::Acquire) { *self.lock() } else { None }
    }

    /// Remembers a failure. A removal outranks an earlier failed write, since it shuts reads out as
    /// well.
    pub(super) fn close(&self, error: DeviceError) {
        let mut cause = self.lock();
        let is_known =
            cause.is_some_and(|cause| cause.status.is_removal() || !error.status.is_removal());
        if !is_known {
            *cause = Some(error);
            self.0.has_failed.store(true, Ordering::Release);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<DeviceError>> {
        // One assignment, which no panic leaves half done.
        self.0.cause.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
