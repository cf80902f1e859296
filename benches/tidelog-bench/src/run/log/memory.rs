//! Memory that puts are made of and gets go to.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidelog_engine::memory::{Destination, Source};

use crate::load::{Origin, stamp};
use crate::option::{JobOptions, Sizes};

/// Memory that is written from and read into, so that none is mapped anew while a job is measured.
pub(super) struct Memory {
    /// What puts are made of, by tag and length: as many as are in flight, so that they do not all come
    /// from a cache.
    written: BTreeMap<(usize, u64), Arc<[u8]>>,
    /// What gets go to, by length.
    read: BTreeMap<u64, Vec<Vec<u8>>>,
    random: fastrand::Rng,
}

impl Memory {
    /// None yet.
    pub(super) fn new(seed: u64) -> Self {
        Self {
            written: BTreeMap::new(),
            read: BTreeMap::new(),
            random: fastrand::Rng::with_seed(seed),
        }
    }

    /// Touches what will be needed, so that page faults are not measured.
    pub(super) fn warm(&mut self, job: &JobOptions, depth: usize) {
        let Sizes::One(length) = job.sizes else { return };
        if job.load.writes && !job.verify {
            (0..depth).for_each(|tag| drop(self.source(tag, length, 0, None)));
        }
        if job.load.reads {
            for _ in 0..depth {
                self.give_back(vec![1; length as usize]);
            }
        }
    }

    /// Bytes for a put; stamped, if they are to be found out.
    pub(super) fn source(
        &mut self,
        tag: usize,
        length: u64,
        place: u64,
        origin: Option<Origin>,
    ) -> Source {
        let Self { written, random, .. } = self;
        let mut fresh = || {
            let mut bytes = vec![0; length as usize];
            random.fill(&mut bytes);
            bytes
        };
        if let Some(origin) = origin {
            let mut bytes = fresh();
            stamp(&mut bytes, place, origin);
            return Source::from(bytes);
        }
        let bytes = written.entry((tag, length)).or_insert_with(|| fresh().into());
        Source::from(Arc::clone(bytes))
    }

    /// Room for a get.
    pub(super) fn destination(&mut self, length: u64) -> Destination {
        let kept = self.read.get_mut(&length).and_then(Vec::pop);
        kept.map_or_else(|| Destination::buffer(length as usize), Destination::Owned)
    }

    /// Takes room back.
    pub(super) fn give_back(&mut self, bytes: Vec<u8>) {
        self.read.entry(bytes.len() as u64).or_default().push(bytes);
    }
}
