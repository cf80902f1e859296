//! Checks of each share: its count of events on every device, and every copy of its index.

use super::damage::{Damage, Unsettled};
use super::index::{CopyState, IndexCopy, IndexView, read_index};
use crate::log::{LogMedia, LogPlace};
use crate::pool::events::{OlderCopy, SeenOfShare, ShareOnDevices};

/// Findings of a check of a share.
pub(super) struct ShareFindings {
    pub(super) damage: Vec<Damage>,
    pub(super) unsettled: Vec<Unsettled>,
    /// `None` where it cannot be read.
    pub(super) index: Option<IndexView>,
}

/// Looks at a share of a pool whose devices have these names.
pub(super) fn look<M: LogMedia>(
    devices: &ShareOnDevices<'_>,
    names: &[String],
    media: &M,
) -> ShareFindings {
    let share = devices.share;
    let seen = devices.seen();
    let mut damage = damage_of_count(devices, &seen, names);
    let of = (seen.mark(), devices.missing());
    match read_index(devices.superblock, share, of, media) {
        Err(why) => {
            damage.push(Damage::Index { share, why });
            ShareFindings { damage, unsettled: Vec::new(), index: None }
        }
        Ok(index) => {
            let mut unsettled = Vec::new();
            let missing = devices.missing();
            let place = LogPlace::of(devices.superblock, share);
            let has_part = |copy, device| place.is_some_and(|it| it.may_lie_on(copy, device));
            let lacks = |copy: &u8| missing.iter().any(|it| has_part(*copy, it));
            for IndexCopy { device, state, .. } in &index.copies {
                let copy = *device;
                let device = names[usize::from(*device)].clone();
                match state.clone() {
                    CopyState::Whole => (),
                    CopyState::Behind(what) => {
                        unsettled.push(Unsettled::Copy { share, device, what });
                    }
                    // It lacks what is missing, of which there is a word already.
                    CopyState::Damaged(_) if lacks(&copy) => (),
                    CopyState::Damaged(why) => {
                        damage.push(Damage::IndexCopy { share, device, why });
                    }
                }
            }
            let (needed, room) = (index.usage.live, index.usage.room);
            // An index that is in segments already gets those of its other slot when the pool is
            // opened.
            if needed > room && index.usage.segments == 0 {
                unsettled.push(Unsettled::Index { share, needed, room });
            }
            ShareFindings { damage, unsettled, index: Some(index) }
        }
    }
}

/// Returns the damage of a share's event counts.
fn damage_of_count(
    devices: &ShareOnDevices<'_>,
    seen: &SeenOfShare,
    names: &[String],
) -> Vec<Damage> {
    let share = devices.share;
    let counts = seen.events.iter().zip(devices.members).zip(names);
    let lost = counts.filter(|((events, member), _)| events.is_none() && member.is_some());
    let lost = lost.map(|(_, device)| Damage::Holder { share, device: device.clone() });
    let older = seen.older.iter().cloned();
    let older = older.map(|OlderCopy { device, why }| Damage::OlderCopy { share, device, why });
    lost.chain(older).collect()
}
