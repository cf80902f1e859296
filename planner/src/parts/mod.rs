//! Parts of storages: each leaves and comes back on its own.
//!
//! A storage moves whole where nothing else is said. Where memory is short by less than it takes,
//! or a link has time for a part of it, a part is enough: fewer bytes are written, and memory is
//! free earlier. A step in parts is a trace of its own, in which each part is a storage that the
//! same ops make, use and free. So it is planned and simulated like any other. An op needs all that
//! it uses, and so all parts.
//!
//! The lower bound is one for parts already: in the relaxed problem bytes move singly, so that it
//! is the same problem, to the number, whatever storages are cut into.

mod cuts;

use crate::migration::Migration;
use crate::trace::{Birth, Death, PlanStorage, Storage, Trace, Use};
use crate::units::{ByteRange, Bytes};
use std::ops::Range;

pub use cuts::Cuts;

/// Parts begin at multiples of this, and all but the last of a storage are multiples of it long: a
/// large page of a host, and what CUDA's virtual memory maps at least.
pub const PART_UNIT: u64 = 2 << 20;

/// A step whose storages are cut into parts.
#[derive(Clone, Debug)]
pub struct PartedStep {
    /// The step. Parts of a storage stand one after the other.
    pub trace: Trace,
    /// First part of each whole storage among the trace's storages, and their end.
    begins: Vec<u32>,
    /// The fingerprint of the step with whole storages.
    whole_fingerprint: u64,
}

impl PartedStep {
    /// The step with its storages cut, which are whole.
    pub fn of(whole: &Trace, cuts: &Cuts) -> Self {
        let mut storages = Vec::with_capacity(whole.storages.len());
        let mut begins = vec![0];
        for (index, storage) in whole.storages.iter().enumerate() {
            let parts = cuts.parts(PlanStorage(index as u32), storage.size);
            storages.extend(parts.map(|part| {
                let size = part.map_or(storage.size, |part| part.length);
                Storage { size, part, ..storage.clone() }
            }));
            begins.push(storages.len() as u32);
        }
        let mut step = Self {
            trace: Trace { name: whole.name.clone(), storages, ops: Vec::new() },
            begins,
            whole_fingerprint: whole.fingerprint(),
        };
        let ops = whole.ops.iter().map(|op| crate::trace::Op {
            uses: op
                .uses
                .iter()
                .flat_map(|one| step.parts(one.storage).map(|storage| Use { storage, ..*one }))
                .collect(),
            births: step.births(&op.births),
            deaths: op
                .deaths
                .iter()
                .flat_map(|one| step.parts(one.storage).map(|storage| Death { storage, ..*one }))
                .collect(),
            ..op.clone()
        });
        step.trace.ops = ops.collect();
        if step.trace.is_in_parts() {
            step.trace.name += ", in parts";
        }
        step
    }

    /// Returns the births of an op. Schedules tell outputs by their slots: where one is in parts,
    /// each gets a slot of its own.
    fn births(&self, whole: &[Birth]) -> Vec<Birth> {
        let parts =
            whole.iter().flat_map(|one| self.parts(one.storage).map(|part| (one.slot, part)));
        let is_cut = whole.iter().any(|one| self.range(one.storage).len() > 1);
        let slot = |index: usize, slot| {
            if is_cut { u16::try_from(index).unwrap_or(u16::MAX) } else { slot }
        };
        parts
            .enumerate()
            .map(|(index, (of_whole, storage))| Birth { storage, slot: slot(index, of_whole) })
            .collect()
    }

    /// The fingerprint of the step with whole storages.
    pub fn whole_fingerprint(&self) -> u64 {
        self.whole_fingerprint
    }

    /// The parts of a storage of the step with whole storages: the storage itself where it is
    /// whole.
    pub fn parts(&self, whole: PlanStorage) -> impl Iterator<Item = PlanStorage> + use<> {
        self.range(whole).map(PlanStorage)
    }

    /// Returns the parts with the bytes that each of them is; `None`: all.
    pub fn ranges(
        &self,
        whole: PlanStorage,
    ) -> impl Iterator<Item = (PlanStorage, Option<ByteRange>)> + '_ {
        self.parts(whole).map(|part| (part, self.trace.storage(part).part))
    }

    /// The storage of the step with whole storages that this one is a part of, or is.
    pub fn whole(&self, part: PlanStorage) -> PlanStorage {
        PlanStorage((self.begins.partition_point(|begin| *begin <= part.0) - 1) as u32)
    }

    /// Returns the number of cut storages, and of their parts.
    pub fn counts(&self) -> (usize, usize) {
        let parts = self.trace.storages.iter().filter(|storage| storage.part.is_some());
        let first = |storage: &&Storage| storage.part.is_some_and(|part| part.begin == Bytes(0));
        (parts.clone().filter(first).count(), parts.count())
    }

    /// The rows that move all parts as these rows move whole storages.
    pub fn rows(&self, whole: &[Migration]) -> Vec<Migration> {
        let parts = |row: &Migration| self.parts(row.storage);
        whole
            .iter()
            .flat_map(|row| parts(row).map(|storage| Migration { storage, ..*row }))
            .collect()
    }

    /// The step with as few parts as do for these rows: neighbours that move alike are one part.
    /// With the rows for it.
    pub fn joined(&self, whole: &Trace, rows: &[Migration]) -> (Self, Vec<Migration>) {
        let mut of_part: Vec<Vec<Migration>> = vec![Vec::new(); self.trace.storages.len()];
        for row in rows {
            // Told apart by when and where alone.
            of_part[row.storage.0 as usize].push(Migration { storage: PlanStorage(0), ..*row });
        }
        for rows in &mut of_part {
            rows.sort_unstable();
        }
        let mut cuts = Cuts::default();
        for index in 0..whole.storages.len() as u32 {
            let parts = self.range(PlanStorage(index));
            let differs = |part: &u32| of_part[*part as usize] != of_part[*part as usize - 1];
            let begins: Vec<Bytes> = parts
                .skip(1)
                .filter(differs)
                .filter_map(|part| self.trace.storages[part as usize].part)
                .map(|part| part.begin)
                .collect();
            if !begins.is_empty() {
                cuts.cut(PlanStorage(index), begins.into_iter());
            }
        }
        let joined = Self::of(whole, &cuts);
        let mut moves = Vec::with_capacity(rows.len());
        for index in 0..whole.storages.len() as u32 {
            let begin = |storage: &Storage| storage.part.map_or(Bytes(0), |part| part.begin);
            let mut old = self.range(PlanStorage(index));
            for part in joined.parts(PlanStorage(index)) {
                let at = begin(joined.trace.storage(part));
                let first = old
                    .find(|old| begin(&self.trace.storages[*old as usize]) == at)
                    .expect("a joined part begins where a part does");
                let alike = of_part[first as usize].iter();
                moves.extend(alike.map(|row| Migration { storage: part, ..*row }));
            }
        }
        (joined, moves)
    }

    fn range(&self, whole: PlanStorage) -> Range<u32> {
        let index = whole.0 as usize;
        self.begins[index]..self.begins[index + 1]
    }
}

/// The parts of a storage of this size that begin at these bytes.
fn parts_at(begins: &[Bytes], size: Bytes) -> impl Iterator<Item = ByteRange> {
    let ends = begins.iter().skip(1).copied().chain([size]);
    begins
        .iter()
        .zip(ends)
        .map(|(begin, end)| ByteRange { begin: *begin, length: Bytes(end.0 - begin.0) })
}

#[cfg(test)]
mod tests;
