//! Going on where an earlier process ended.

use super::{Durability, Lane, Space, State};
use crate::layout::{Copies, LifetimeClass, Run};

impl Space {
    /// Recovery found a live durable tensor in these runs. [`Self::resume`] ends recovery.
    pub fn adopt(&mut self, runs: &[Run], class: LifetimeClass) {
        for run in runs {
            let lane = Lane { durability: Durability::Durable, class, copies: run.copies };
            let segment = self.segment(run);
            if segment.state == State::Free {
                segment.state = State::Sealed(lane);
            }
            segment.set = run.set;
            segment.filled = segment.filled.max(run.end() as u32);
            segment.live += run.blocks;
            self.live += u64::from(run.blocks);
        }
    }

    /// Ends recovery: segments without a live tensor are free, and each durable lane goes on in the
    /// segment of its class with the most room left. Nothing behind a segment's last live block was
    /// ever part of a commit that still holds, so it may be written again.
    pub fn resume(&mut self) {
        let Self { segments, free, open, .. } = self;
        let (gaps, blocks, current) = (self.gaps, self.segment_blocks, self.current);
        free.retain(|&index| segments[index as usize].state == State::Free);
        let lanes = Copies::ALL.into_iter().flat_map(|copies| {
            let durability = Durability::Durable;
            LifetimeClass::ALL.map(|class| Lane { durability, class, copies })
        });
        for lane in lanes {
            let candidates = segments.iter_mut().enumerate().filter(|(_, segment)| {
                // What is striped over other devices is never gone on with.
                segment.state == State::Sealed(lane)
                    && segment.set == current
                    && gaps.map_or(blocks - segment.filled, |gaps| {
                        gaps.room(segment.filled, blocks, lane.copies)
                    }) > 0
            });
            if let Some((index, segment)) = candidates.min_by_key(|(_, segment)| segment.filled) {
                segment.state = State::Open(lane);
                open[lane.index()] = Some(index as u32);
            }
        }
    }
}
