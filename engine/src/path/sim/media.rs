//! What a simulated disk holds: pages on the medium, pages in its volatile cache, and damage.

use std::collections::{BTreeMap, HashMap};

use super::disk::Random;
use crate::memory::ALIGNMENT;

type Page = Box<[u8; ALIGNMENT]>;

/// The bytes of one disk. The stable image is what power loss leaves; damage lies over it and is
/// never mixed in, so that a test can compare with what was really written.
#[derive(Default)]
pub(super) struct Media {
    stable: HashMap<u64, Page>,
    /// Written, acknowledged, not flushed.
    cache: BTreeMap<u64, Page>,
    /// Flipped bits by byte address; a write of the byte heals it.
    damage: BTreeMap<u64, u8>,
}

impl Media {
    /// Puts whole pages into the volatile cache.
    pub(super) fn write(&mut self, offset: u64, data: &[u8]) {
        for (index, chunk) in data.chunks_exact(ALIGNMENT).enumerate() {
            let page: &[u8; ALIGNMENT] = chunk.try_into().expect("chunks of one page");
            self.cache.insert(offset / ALIGNMENT as u64 + index as u64, Box::new(*page));
        }
        self.heal(offset, data.len() as u64);
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
                self.stable.insert(page, bytes);
            }
        }
    }

    /// Puts the whole cache on the medium.
    pub(super) fn flush(&mut self) {
        self.stable.extend(std::mem::take(&mut self.cache));
    }

    /// Loses the cache.
    pub(super) fn drop_cache(&mut self) {
        self.cache.clear();
    }

    /// Loses the cache except for some of its blocks, as if power went in the middle of writing it
    /// back: each block of `block` bytes survives or not, on its own.
    pub(super) fn tear_cache(&mut self, block: u32, random: &mut Random) {
        for (page, bytes) in std::mem::take(&mut self.cache) {
            let target = self.stable.entry(page).or_insert_with(|| Box::new([0; ALIGNMENT]));
            let (old, new) = (target.chunks_mut(block as usize), bytes.chunks(block as usize));
            for (old, new) in old.zip(new).filter(|_| random.below(2) == 0) {
                old.copy_from_slice(new);
            }
        }
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
        self.damage.retain(|&at, _| !(offset..offset + length).contains(&at));
    }
}
