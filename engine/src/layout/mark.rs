//! The mark of a share's log: how far it went at the last opening or closing of the share, in its
//! holder block on each device.
//!
//! The end of a log is where its next record is missing, so a record that has rotted looks like
//! one that a crash has torn. The mark tells them apart, up to the last event: what it counts had
//! been on the media of all devices.

use super::checksum_of;
use super::endian::{U32, U64, U128};
use super::event::ShareEvent;
use super::holder::HolderOnMedia;

const OPENED: u32 = 1;
const CLOSED: u32 = 2;

/// A place in the commits of a share: a checkpoint, or a record that continues it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogPoint {
    /// The checkpoint's epoch.
    pub epoch: u64,
    /// The record's number behind it; 0 is the checkpoint itself.
    pub sequence: u64,
}

/// End of a share's log when an event was counted. It may have gone on since.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogMark {
    /// The last checkpoint or record. Of epoch 0 where nothing is known.
    pub end: LogPoint,
    /// The last one that brought a commit: a checkpoint may only say again what stood there.
    pub commit: LogPoint,
    /// True if the event was a closing after which nothing was on its way: the log ends here.
    pub closed: bool,
}

impl LogMark {
    /// Mark of a log of which nothing is known.
    pub const NONE: Self = {
        let nowhere = LogPoint { epoch: 0, sequence: 0 };
        Self { end: nowhere, commit: nowhere, closed: false }
    };

    /// Returns whether the mark says that the log ends there, so that nothing of what is behind was
    /// a commit.
    pub fn ends_at(&self, point: LogPoint) -> bool {
        self.closed && point >= self.end
    }

    /// Decodes the mark of a holder block, if it is of this event.
    pub(super) fn decode(
        block: &HolderOnMedia,
        pool: u128,
        share: u32,
        event: ShareEvent,
    ) -> Option<Self> {
        let point =
            |epoch: U64, sequence: U64| LogPoint { epoch: epoch.get(), sequence: sequence.get() };
        let found = Self {
            end: point(block.log_epoch, block.log_sequence),
            commit: point(block.commit_epoch, block.commit_sequence),
            closed: block.log_state.get() == CLOSED,
        };
        let whole = block.mark_checksum.get() == found.checksum(pool, share, event)
            && matches!(block.log_state.get(), OPENED | CLOSED)
            && found.end.epoch > 0
            && found.commit <= found.end;
        whole.then_some(found)
    }

    /// Enters the mark into the block of a share of this pool, beside its event.
    pub(super) fn enter(
        self,
        block: &mut HolderOnMedia,
        pool: u128,
        share: u32,
        event: ShareEvent,
    ) {
        if self.end.epoch == 0 {
            return;
        }
        block.log_epoch = self.end.epoch.into();
        block.log_sequence = self.end.sequence.into();
        block.commit_epoch = self.commit.epoch.into();
        block.commit_sequence = self.commit.sequence.into();
        block.log_state = self.state().into();
        block.mark_checksum = self.checksum(pool, share, event).into();
    }

    fn state(self) -> u32 {
        if self.closed { CLOSED } else { OPENED }
    }

    /// Returns the checksum of the mark. It covers the event, too: older software counts events and
    /// leaves no mark.
    fn checksum(self, pool: u128, share: u32, event: ShareEvent) -> u32 {
        let numbers = [
            event.number,
            self.end.epoch,
            self.end.sequence,
            self.commit.epoch,
            self.commit.sequence,
        ];
        let words = [share, self.state()].map(U32::from);
        checksum_of(&[
            bytemuck::bytes_of(&[pool, event.id].map(U128::from)),
            bytemuck::bytes_of(&numbers.map(U64::from)),
            bytemuck::bytes_of(&words),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Events, Holder};

    fn mark() -> LogMark {
        let commit = LogPoint { epoch: 7, sequence: 12 };
        LogMark { end: LogPoint { epoch: 8, sequence: 0 }, commit, closed: true }
    }

    fn block(mark: LogMark) -> Vec<u8> {
        Holder::nobody().encode(5, 3, Events { mark, ..Events::NONE }.next(4, mark))
    }

    fn decoded(block: &[u8]) -> LogMark {
        Events::decode(block, 5, 3).unwrap().mark
    }

    #[test]
    fn a_mark_is_read_back_with_its_event() {
        for mark in [mark(), LogMark { closed: false, ..mark() }, LogMark::NONE] {
            assert_eq!(decoded(&block(mark)), mark);
        }
        // What older software leaves beside an event.
        let mut older = block(mark());
        older[1124..1164].fill(0);
        assert_eq!(decoded(&older), LogMark::NONE);
    }

    #[test]
    fn a_damaged_mark_or_one_of_another_event_says_nothing() {
        for at in 1124..1164 {
            let mut block = block(mark());
            block[at] ^= 1;
            assert_eq!(decoded(&block), LogMark::NONE, "byte {at}");
        }
        let events = Events::decode(&block(mark()), 5, 3).unwrap();
        let mut next = Holder::nobody().encode(5, 3, events.next(9, LogMark::NONE));
        next[1124..1164].copy_from_slice(&block(mark())[1124..1164]);
        assert_eq!(decoded(&next), LogMark::NONE);
        let backwards = LogMark { commit: LogPoint { epoch: 8, sequence: 1 }, ..mark() };
        assert_eq!(decoded(&block(backwards)), LogMark::NONE);
    }

    #[test]
    fn a_log_ends_where_it_was_closed_and_not_before() {
        let LogMark { end, commit, .. } = mark();
        assert!(mark().ends_at(end) && !mark().ends_at(commit));
        assert!(!LogMark { closed: false, ..mark() }.ends_at(end));
    }
}
