//! Content of a simulated disk: pages on the medium, pages in its volatile cache, and damage.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;
use tidelog_random::Random;

use crate::memory::ALIGNMENT;

pub(super) type DiskPage = Box<[u8; ALIGNMENT]>;

/// The bytes of one disk. The stable image is what power loss leaves; damage lies over it and is
/// never mixed in, so that a test can compare with what was really written.
#[derive(Default)]
pub(super) struct DiskMedia {
    stable: FxHashMap<u64, DiskPage>,
    /// Written, acknowledged, not flushed.
    cache: FxHashMap<u64, DiskPage>,
    /// Flipped bits by byte address; a write of the byte heals it.
    damage: BTreeMap<u64, u8>,
    /// Pages of the stable image that cannot be read. They can be written, and then be read.
    unreadable: BTreeSet<u64>,
    /// Pages that were overwritten, and lists of pages that were written, for writes to come.
    spares: Vec<DiskPage>,
    lists: Vec<Vec<DiskPage>>,
}

impl DiskMedia {
    /// Whole pages on their way to the disk.
    pub(super) fn store(&mut self, data: &[u8]) -> Vec<DiskPage> {
        let mut pages = self.lists.pop().unwrap_or_default();
        for chunk in data.chunks_exact(ALIGNMENT) {
            let mut page = self.spares.pop().unwrap_or_else(|| Box::new([0; ALIGNMENT]));
            page.copy_from_slice(chunk);
            pages.push(page);
        }
        pages
    }

    /// Puts the first `count` of these pages into the volatile cache.
    pub(super) fn write(&mut self, offset: u64, mut pages: Vec<DiskPage>, count: usize) {
        let first = offset / ALIGNMENT as u64;
        self.spares.extend(pages.drain(count..));
        for (page, bytes) in (first..).zip(pages.drain(..)) {
            self.spares.extend(self.cache.insert(page, bytes));
        }
        self.lists.push(pages);
        self.heal(offset, (count * ALIGNMENT) as u64);
    }

    /// Forgets pages that were never written.
    pub(super) fn lose(&mut self, mut pages: Vec<DiskPage>) {
        self.spares.append(&mut pages);
        self.lists.push(pages);
    }

    /// Makes whole pages read as zeroes; goes through the cache as a write does.
    pub(super) fn zero(&mut self, offset: u64, length: u64) {
        for page in offset / ALIGNMENT as u64..(offset + length) / ALIGNMENT as u64 {
            self.cache.insert(page, Box::new([0; ALIGNMENT]));
        }
        self.heal(offset, length);
    }

    /// Puts the pages of one extent on the medium, as a write with FUA does.
    pub(super) fn settle(&mut self, offset: u64, length: u64) {
        for page in offset / ALIGNMENT as u64..(offset + length) / ALIGNMENT as u64 {
            if let Some(bytes) = self.cache.remove(&page) {
                self.spares.extend(self.stable.insert(page, bytes));
                self.unreadable.remove(&page);
            }
        }
    }

    /// Puts the whole cache on the medium.
    pub(super) fn flush(&mut self) {
        self.unreadable.retain(|page| !self.cache.contains_key(page));
        self.stable.extend(std::mem::take(&mut self.cache));
    }

    /// Loses the cache.
    pub(super) fn drop_cache(&mut self) {
        self.cache.clear();
    }

    /// Loses the cache except for some of its blocks, as if power went in the middle of writing it
    /// back: each block of `block` bytes survives or not, on its own.
    pub(super) fn tear_cache(&mut self, block: u32, random: &mut Random) {
        let mut torn: Vec<(u64, DiskPage)> = self.cache.drain().collect();
        torn.sort_unstable_by_key(|(page, _)| *page);
        for (page, bytes) in torn {
            let target = self.stable.entry(page).or_insert_with(|| Box::new([0; ALIGNMENT]));
            let (old, new) = (target.chunks_mut(block as usize), bytes.chunks(block as usize));
            for (old, new) in old.zip(new).filter(|_| random.below(2) == 0) {
                old.copy_from_slice(new);
                self.unreadable.remove(&page);
            }
        }
    }

    /// Copies bytes and damage to another disk: all of them on its medium.
    pub(super) fn copy(&self) -> Self {
        let pages = self.stable.iter().chain(&self.cache);
        let stable = pages.map(|(page, bytes)| (*page, bytes.clone())).collect();
        let is_lost = |page: &&u64| !self.cache.contains_key(page);
        let unreadable = self.unreadable.iter().filter(is_lost).copied().collect();
        Self { stable, damage: self.damage.clone(), unreadable, ..Self::default() }
    }

    /// Returns whether the whole extent can be read.
    pub(super) fn is_readable(&self, offset: u64, length: u64) -> bool {
        let end = (offset + length).div_ceil(ALIGNMENT as u64);
        let mut lost = self.unreadable.range(offset / ALIGNMENT as u64..end);
        lost.all(|page| self.cache.contains_key(page))
    }

    /// Returns the offsets of the pages that cannot be read.
    pub(super) fn unreadable(&self) -> Vec<u64> {
        let lost = self.unreadable.iter().filter(|page| !self.cache.contains_key(page));
        lost.map(|page| page * ALIGNMENT as u64).collect()
    }

    /// Has the page at this offset fail to be read until it is written.
    pub(super) fn make_unreadable(&mut self, offset: u64) {
        self.unreadable.insert(offset / ALIGNMENT as u64);
    }

    /// Takes back what was done to one page: flipped bits, and that it cannot be read.
    pub(super) fn restore(&mut self, offset: u64) {
        self.unreadable.remove(&(offset / ALIGNMENT as u64));
        self.heal(offset & !(ALIGNMENT as u64 - 1), ALIGNMENT as u64);
    }

    /// Reads what a healthy disk would answer, then lays the damage over it.
    pub(super) fn read(&self, offset: u64, target: &mut [u8]) {
        for (index, chunk) in target.chunks_mut(ALIGNMENT).enumerate() {
            let page = offset / ALIGNMENT as u64 + index as u64;
            match self.cache.get(&page).or_else(|| self.stable.get(&page)) {
                Some(bytes) => chunk.copy_from_slice(&bytes[..chunk.len()]),
                None => chunk.fill(0),
            }
        }
        for (&at, &mask) in self.damage.range(offset..offset + target.len() as u64) {
            target[(at - offset) as usize] ^= mask;
        }
    }

    /// Flips the bits of `mask` in one byte until it is written again.
    pub(super) fn rot(&mut self, offset: u64, mask: u8) {
        self.damage.insert(offset, mask);
    }

    fn heal(&mut self, offset: u64, length: u64) {
        if !self.damage.is_empty() {
            self.damage.retain(|&at, _| !(offset..offset + length).contains(&at));
        }
    }
}
