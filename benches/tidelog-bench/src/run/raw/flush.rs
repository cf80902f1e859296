//! Flushes between writes, and after the last: `fsync=`, `end_fsync=`.

use tidelog_engine::memory::DmaBuffer;
use tidelog_engine::path::{Action, Extent, Operation};
use tidelog_engine::units::DeviceIndex;

use super::{Flight, RawJob};
use crate::direction::DataDirection;
use crate::load::BlockRange;

impl RawJob {
    /// Counts a write that was begun; as many as `fsync` says are followed by a flush.
    pub(super) fn note_write(&mut self, direction: DataDirection) {
        let Some(every) = self.job.fsync.filter(|_| direction == DataDirection::Write) else {
            return;
        };
        self.unsynced += 1;
        if self.unsynced >= every {
            self.unsynced = 0;
            self.to_sync = (0..self.job.filename.len()).collect();
        }
    }

    /// Begins to flush a file; returns whether that was sent.
    pub(super) fn begin_sync(&mut self, tag: usize, buffer: DmaBuffer, file: usize) -> bool {
        self.parked[tag] = Some(buffer);
        let place = BlockRange { file, offset: 0, length: 0 };
        let direction = DataDirection::Write;
        self.flights[tag] = Flight {
            place,
            direction,
            priority: None,
            pass: 0,
            is_check: false,
            is_sync: true,
            slat: 0,
            issued: 0,
        };
        self.syncing += 1;
        let device = DeviceIndex(file as u8);
        self.send(tag, Operation::new(tag as u64, device, Extent::NOTHING, Action::Flush))
    }
}
