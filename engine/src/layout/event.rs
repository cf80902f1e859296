//! The event count of a share, in its holder block on each device: how a device that is an older copy of itself is
//! told from the others.
//!
//! It counts up when the share is opened and closed, on all devices, and is confirmed once it is on the medium
//! of each. So a device with a lower count than one that another device has confirmed was not there. Counts that
//! differ without a confirmation are a crash's doing: nothing else was written meanwhile.

use super::checksum_of;
use super::endian::{U32, U64, U128};
use super::holder::HolderOnMedia;

/// Counts end here: no share lives to see it, and there is always a next one.
const EVENTS_END: u64 = 1 << 63;

const BEGUN: u32 = 1;
const CONFIRMED: u32 = 2;

/// An opening or closing of a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Counts from 1; 0 stands in pools that are older than the count, and in one that was never opened.
    pub number: u64,
    /// A random number: two openings of the same number were of different copies.
    pub id: u128,
    /// Whether every device of the pool has this event on its medium.
    pub confirmed: bool,
}

impl Event {
    /// None was counted yet.
    pub const NONE: Self = Self { number: 0, id: 0, confirmed: false };

    /// What follows this one, not confirmed yet.
    #[must_use]
    pub fn next(self, id: u128) -> Self {
        Self { number: self.number + 1, id, confirmed: false }
    }

    /// What a holder block says of a share of this pool; `None` where that is damaged.
    pub fn decode(block: &[u8], pool: u128, share: u32) -> Option<Self> {
        let block: HolderOnMedia = bytemuck::try_pod_read_unaligned(block).ok()?;
        let found = (block.event.get(), block.opening.get(), block.event_state.get());
        let checksum = block.event_checksum.get();
        if found == (0, 0, 0) && checksum == 0 {
            return Some(Self::NONE);
        }
        let (number, id, state) = found;
        let whole = checksum == checksum_of_event(pool, share, number, id, state)
            && (BEGUN..=CONFIRMED).contains(&state)
            && (1..EVENTS_END).contains(&number);
        whole.then_some(Self { number, id, confirmed: state == CONFIRMED })
    }

    /// Enters it into the block of a share of this pool.
    pub(super) fn enter(self, block: &mut HolderOnMedia, pool: u128, share: u32) {
        let Self { number, id, confirmed } = self;
        if number == 0 {
            return;
        }
        let state = if confirmed { CONFIRMED } else { BEGUN };
        block.event = number.into();
        block.opening = id.into();
        block.event_state = state.into();
        block.event_checksum = checksum_of_event(pool, share, number, id, state).into();
    }
}

/// A checksum of its own, within the block's second half KiB as the rest of it: a write that is torn between blocks
/// of a device leaves one event or the other, whatever becomes of the holder's name.
fn checksum_of_event(pool: u128, share: u32, number: u64, id: u128, state: u32) -> u32 {
    let (pool, share) = (U128::from(pool), U32::from(share));
    let (number, id, state) = (U64::from(number), U128::from(id), U32::from(state));
    checksum_of(&[
        bytemuck::bytes_of(&pool),
        bytemuck::bytes_of(&share),
        bytemuck::bytes_of(&number),
        bytemuck::bytes_of(&id),
        bytemuck::bytes_of(&state),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Holder;

    fn holder() -> Holder {
        Holder { process: 7, command: "python train.py".into(), since: 12 }
    }

    #[test]
    fn an_event_is_read_back_of_its_own_share_only() {
        let event = Event { number: 9, id: 1 << 100, confirmed: true };
        let block = holder().encode(5, 3, event);
        assert_eq!(Event::decode(&block, 5, 3), Some(event));
        assert_eq!(Event::decode(&block, 5, 2), None);
        assert_eq!(Event::decode(&block, 6, 3), None);
        assert_eq!(event.next(4), Event { number: 10, id: 4, confirmed: false });
    }

    #[test]
    fn what_was_never_counted_is_none_and_what_is_damaged_says_nothing() {
        assert_eq!(Event::decode(&[0; 4096], 5, 3), Some(Event::NONE));
        assert_eq!(Event::decode(&holder().encode(5, 3, Event::NONE), 5, 3), Some(Event::NONE));
        let event = Event { number: 9, id: 1, confirmed: false };
        for at in [1072, 1080, 1096, 1100] {
            let mut block = holder().encode(5, 3, event);
            block[at] ^= 1;
            assert_eq!(Event::decode(&block, 5, 3), None, "byte {at}");
        }
        let beyond = Event { number: EVENTS_END, id: 1, confirmed: false };
        assert_eq!(Event::decode(&holder().encode(5, 3, beyond), 5, 3), None);
        assert_eq!(Event::decode(&[], 5, 3), None);
    }

    #[test]
    fn a_block_torn_between_half_kibs_has_one_event_or_the_other() {
        let [old, new] = [4, 5].map(|number| Event { number, id: number.into(), confirmed: true });
        let [before, after] = [old, new].map(|event| holder().encode(5, 3, event));
        for torn in 0..8 {
            let mut block = before.clone();
            block[..torn * 512].copy_from_slice(&after[..torn * 512]);
            let found = Event::decode(&block, 5, 3);
            assert_eq!(found, Some(if torn > 2 { new } else { old }), "{torn}");
        }
    }
}
