//! States of a byte at an instant, and the moves from one instant to the next.
//!
//! At an instant a byte is in memory without a valid copy (*dirty*), in memory beside its copy on a
//! tier (*clean*), or on the tier only (*out*). Between two instants it may be written, read, both
//! or neither; a use in between brings it in, a modification makes its copy worthless.

/// Limit of tiers: SSDs, and host memory where the machine has it.
pub(super) const TIERS_MAX: usize = 2;

/// Dirty, then clean and out per tier.
pub(super) const fn states(tiers: usize) -> usize {
    1 + 2 * tiers
}

pub(super) const DIRTY: usize = 0;

/// The tier that a byte is on alone.
pub(super) const fn out_on(state: usize) -> Option<usize> {
    if state == DIRTY || state % 2 == 1 { None } else { Some(state / 2 - 1) }
}

/// The tier that holds a valid copy.
const fn copy_on(state: usize) -> Option<usize> {
    if state == DIRTY { None } else { Some((state - 1) / 2) }
}

/// Event of a storage in an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum IntervalEvent {
    /// No use.
    Idle,
    /// Read by an op.
    Read,
    /// Modified by an op, and perhaps read.
    Modify,
}

/// One interval of a life, with the instant that it begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct IntervalStep {
    pub(super) event: IntervalEvent,
    pub(super) instant: Instant,
}

/// The instant that an interval begins with, for a storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Instant {
    /// Absent: not made yet.
    Before,
    /// Free to be anywhere.
    Free,
    /// The op uses it: it is in memory.
    Held,
}

impl IntervalStep {
    /// Steps that differ in what they cost.
    pub(super) const KINDS: [Self; 6] = [
        Self { event: IntervalEvent::Idle, instant: Instant::Free },
        Self { event: IntervalEvent::Read, instant: Instant::Free },
        Self { event: IntervalEvent::Read, instant: Instant::Held },
        Self { event: IntervalEvent::Modify, instant: Instant::Free },
        Self { event: IntervalEvent::Modify, instant: Instant::Held },
        // Begins a life.
        Self { event: IntervalEvent::Modify, instant: Instant::Before },
    ];

    /// Combines two events of one interval.
    pub(super) fn and(self, other: Self) -> Self {
        Self { event: self.event.max(other.event), instant: self.instant.max(other.instant) }
    }

    /// Returns the moves of the cheapest way between two states, where there is one.
    pub(super) fn moves(self, from: usize, to: usize) -> Option<TierMoves> {
        match self.instant {
            Instant::Before if from != DIRTY => return None,
            Instant::Held if out_on(from).is_some() => return None,
            _ => {}
        }
        let fetched = out_on(from);
        if self.event == IntervalEvent::Modify {
            return Some(TierMoves { read: fetched, written: copy_on(to) });
        }
        if to == DIRTY {
            return (from == DIRTY).then_some(TierMoves::default());
        }
        if copy_on(from) != copy_on(to) {
            return Some(TierMoves { read: fetched, written: copy_on(to) });
        }
        let stays_out = out_on(to).is_some() && self.event == IntervalEvent::Idle;
        Some(TierMoves { read: if stays_out { None } else { fetched }, written: None })
    }
}

/// The tiers that a byte is read from and written to in one interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TierMoves {
    pub(super) read: Option<usize>,
    pub(super) written: Option<usize>,
}

/// Prices of one interval and of the instant it begins with.
#[derive(Clone, Copy, Debug)]
pub(super) struct IntervalPrices<C> {
    pub(super) memory: C,
    pub(super) read: [C; TIERS_MAX],
    pub(super) write: [C; TIERS_MAX],
    /// A byte that is out, on the tier.
    pub(super) room: [C; TIERS_MAX],
}

impl<A> IntervalPrices<A> {
    pub(super) fn map<B>(&self, change: impl Fn(A) -> B) -> IntervalPrices<B>
    where
        A: Copy,
    {
        IntervalPrices {
            memory: change(self.memory),
            read: self.read.map(&change),
            write: self.write.map(&change),
            room: self.room.map(&change),
        }
    }
}
