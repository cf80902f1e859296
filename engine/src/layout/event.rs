//! The event count of a share, in its holder block on each device: how a device that is an older
//! copy of itself is told from the others.
//!
//! The count goes up when the share is opened and closed, on all devices, and is confirmed once it
//! is on the medium of each. So a device with a lower count than one that another device has
//! confirmed was not there. Counts that differ without a confirmation are a crash's doing: nothing
//! else was written meanwhile.

use super::checksum_of;
use super::endian::{U32, U64, U128};
use super::holder::HolderOnMedia;
use super::mark::LogMark;

/// Counts end here: no share lives to see it, and there is always a next one.
const EVENTS_END: u64 = 1 << 63;

/// An opening or closing of a share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShareEvent {
    /// Counts from 1; 0 stands in pools that are older than the count, and in one that was never
    /// opened.
    pub number: u64,
    /// A random number: two openings of the same number were of different copies.
    pub id: u128,
}

/// Events of a share that a device has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Events {
    /// The last event.
    pub begun: ShareEvent,
    /// The last one that every device of the pool had on its medium. It is this one or an earlier
    /// one.
    pub confirmed: ShareEvent,
    /// End of the share's log at the last event.
    pub mark: LogMark,
}

impl Events {
    /// None was counted yet.
    pub const NONE: Self = {
        let never = ShareEvent { number: 0, id: 0 };
        Self { begun: never, confirmed: never, mark: LogMark::NONE }
    };

    /// Returns the next event, not confirmed yet, with the present end of the log.
    #[must_use]
    pub fn next(self, id: u128, mark: LogMark) -> Self {
        Self { begun: ShareEvent { number: self.begun.number + 1, id }, mark, ..self }
    }

    /// Marks the last event as confirmed: all devices have it.
    #[must_use]
    pub fn confirm(self) -> Self {
        Self { confirmed: self.begun, ..self }
    }

    /// Decodes the events of a share from its holder block; `None` where that is damaged.
    pub fn decode(block: &[u8], pool: u128, share: u32) -> Option<Self> {
        let block: HolderOnMedia = bytemuck::try_pod_read_unaligned(block).ok()?;
        let event = |number: U64, id: U128| ShareEvent { number: number.get(), id: id.get() };
        let begun = event(block.event, block.opening);
        let confirmed = event(block.confirmed, block.confirmed_opening);
        let mark = LogMark::decode(&block, pool, share, begun).unwrap_or_default();
        let found = Self { begun, confirmed, mark };
        let checksum = block.event_checksum.get();
        if found == Self::NONE && checksum == 0 {
            return Some(found);
        }
        let whole = checksum == found.checksum(pool, share)
            && (1..EVENTS_END).contains(&begun.number)
            && confirmed.number <= begun.number;
        whole.then_some(found)
    }

    /// Enters the events into the block of a share of this pool.
    pub(super) fn enter(self, block: &mut HolderOnMedia, pool: u128, share: u32) {
        let Self { begun, confirmed, mark } = self;
        if begun.number == 0 {
            return;
        }
        block.event = begun.number.into();
        block.opening = begun.id.into();
        block.confirmed = confirmed.number.into();
        block.confirmed_opening = confirmed.id.into();
        block.event_checksum = self.checksum(pool, share).into();
        mark.enter(block, pool, share, begun);
    }

    /// A checksum of its own, and all of it within half a KiB: a write that is torn between blocks
    /// of a device leaves one event or the other, whatever becomes of the holder's name.
    fn checksum(self, pool: u128, share: u32) -> u32 {
        let Self { begun, confirmed, .. } = self;
        let (pool, share) = (U128::from(pool), U32::from(share));
        let numbers = [begun, confirmed].map(|event| U64::from(event.number));
        let ids = [begun, confirmed].map(|event| U128::from(event.id));
        checksum_of(&[
            bytemuck::bytes_of(&pool),
            bytemuck::bytes_of(&share),
            bytemuck::bytes_of(&numbers),
            bytemuck::bytes_of(&ids),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Holder;

    fn holder() -> Holder {
        Holder { process: 7, command: "python train.py".into(), since: 12 }
    }

    fn events(number: u64) -> Events {
        let confirmed = ShareEvent { number: number - 1, id: 1 << 90 };
        Events { begun: ShareEvent { number, id: 1 << 100 }, confirmed, mark: LogMark::NONE }
    }

    #[test]
    fn events_are_read_back_of_their_own_share_only() {
        let block = holder().encode(5, 3, events(9));
        assert_eq!(Events::decode(&block, 5, 3), Some(events(9)));
        assert_eq!(Events::decode(&block, 5, 2), None);
        assert_eq!(Events::decode(&block, 6, 3), None);
        let next = events(9).next(4, LogMark::NONE);
        assert_eq!(
            (next.begun, next.confirmed),
            (ShareEvent { number: 10, id: 4 }, events(9).confirmed)
        );
        assert_eq!(next.confirm().confirmed, next.begun);
    }

    #[test]
    fn what_was_never_counted_is_none_and_what_is_damaged_says_nothing() {
        assert_eq!(Events::decode(&[0; 4096], 5, 3), Some(Events::NONE));
        assert_eq!(Events::decode(&holder().encode(5, 3, Events::NONE), 5, 3), Some(Events::NONE));
        for at in [1072, 1080, 1096, 1104, 1120] {
            let mut block = holder().encode(5, 3, events(9));
            block[at] ^= 1;
            assert_eq!(Events::decode(&block, 5, 3), None, "byte {at}");
        }
        for cannot_be in [
            events(EVENTS_END),
            Events {
                begun: ShareEvent { number: 2, id: 1 },
                confirmed: ShareEvent { number: 3, id: 1 },
                mark: LogMark::NONE,
            },
        ] {
            assert_eq!(Events::decode(&holder().encode(5, 3, cannot_be), 5, 3), None);
        }
        assert_eq!(Events::decode(&[], 5, 3), None);
    }

    #[test]
    fn a_block_torn_between_half_kibs_has_one_event_or_the_other() {
        let [before, after] = [4, 5].map(|number| holder().encode(5, 3, events(number)));
        for torn in 0..8 {
            let mut block = before.clone();
            block[..torn * 512].copy_from_slice(&after[..torn * 512]);
            let found = Events::decode(&block, 5, 3);
            assert_eq!(found, Some(events(if torn > 2 { 5 } else { 4 })), "{torn}");
        }
    }
}
