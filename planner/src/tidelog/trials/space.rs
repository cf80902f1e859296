//! Space of trials: the ways of each period.

use super::super::maker::Maker;
use crate::lifetime::{Period, PeriodEnd};
use crate::migration::{Migration, MigrationDirection, Target};
use crate::trace::PlanStorage;

/// A period, and what may be done in it.
pub(super) struct PeriodWays {
    period: Period,
    /// The storages that the period is of: one, or the pieces of a tensor, which move together.
    members: Vec<PlanStorage>,
    /// The rows of each way; the first is to stay.
    pub(super) ways: Vec<Vec<Migration>>,
}

impl PeriodWays {
    fn of(maker: &Maker<'_>, period: Period, ways: Vec<Vec<Migration>>) -> Self {
        let ways = ways.into_iter().map(|rows| maker.rows(rows)).collect();
        Self { period, members: maker.members(period.storage), ways }
    }

    /// The rows of a step of `ops` ops without those of this period.
    pub(super) fn taken_from(&self, rows: &[Migration], ops: u32) -> Vec<Migration> {
        rows.iter().filter(|row| !self.has(row, ops)).copied().collect()
    }

    /// The rows with those of this period as another plan has them.
    pub(super) fn as_in(
        &self,
        other: &[Migration],
        rows: &[Migration],
        ops: u32,
    ) -> Vec<Migration> {
        let own = other.iter().filter(|row| self.has(row, ops));
        self.taken_from(rows, ops).into_iter().chain(own.copied()).collect()
    }

    fn has(&self, row: &Migration, ops: u32) -> bool {
        let start = row.start.0;
        let unrolled = if start < self.period.from { start + ops } else { start };
        self.members.contains(&row.storage) && unrolled < self.period.to
    }
}

/// All periods with the simplest ways: to stay, or to be out from the beginning until some op.
pub(super) fn narrow(maker: &Maker<'_>, targets: &[Target], ops: u32) -> Vec<PeriodWays> {
    let of = |period: &Period| {
        let moves = targets.iter().flat_map(|to| period.choices(ops, *to).skip(1));
        PeriodWays::of(maker, *period, [Vec::new()].into_iter().chain(moves).collect())
    };
    maker.lifetimes.periods.iter().map(of).collect()
}

/// All periods with every way that has one row out, one in, or both: a storage may leave later, may
/// be asked back before it has left (its copy is made, and it can be dropped later on), or return
/// when an op waits for it. None where these are more than `most`.
pub(super) fn wide(
    maker: &Maker<'_>,
    targets: &[Target],
    (ops, most): (u32, u64),
) -> Option<Vec<PeriodWays>> {
    let periods = &maker.lifetimes.periods;
    let pairs = |period: &Period| u64::from(period.to - period.from + 2).pow(2) / 2;
    if targets.len() as u64 * periods.iter().map(pairs).sum::<u64>() > most {
        return None;
    }
    let of = |period: &Period| {
        let moves = targets.iter().flat_map(|to| leaving(*period, ops, *to));
        let ways = [Vec::new()].into_iter().chain(moves).chain(returning(*period, ops));
        PeriodWays::of(maker, *period, ways.collect())
    };
    Some(periods.iter().map(of).collect())
}

/// Returns the moves out from some op on, and back from another on or when it is used.
fn leaving(period: Period, ops: u32, target: Target) -> impl Iterator<Item = Vec<Migration>> {
    let Period { storage, from, to, end, .. } = period;
    let row = move |direction, when| Migration::unrolled(storage, (direction, target), when, ops);
    (from..to).flat_map(move |start| {
        let out = move |until| row(MigrationDirection::Out, (start, until));
        let back = (start..to)
            .map(move |back| vec![out(back), row(MigrationDirection::In, (back, to))])
            .filter(move |_| end == PeriodEnd::Use);
        [vec![out(to)]].into_iter().chain(back)
    })
}

/// Iterates over the moves back from some op on, if it had to leave.
fn returning(period: Period, ops: u32) -> impl Iterator<Item = Vec<Migration>> {
    let Period { storage, from, to, end, .. } = period;
    let way = (MigrationDirection::In, Target::Ssd);
    (from..to)
        .filter(move |_| end == PeriodEnd::Use)
        .map(move |back| vec![Migration::unrolled(storage, way, (back, to), ops)])
}
