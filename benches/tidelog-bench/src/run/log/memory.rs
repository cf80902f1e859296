//! Memory that puts are made of and gets go to.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidelog_engine::memory::{Destination, DmaBuffer, Source};
use tidelog_engine::pool::{Pool, Unusable};

use crate::load::{Origin, stamp};
use crate::option::{JobOptions, Sizes};

/// Memory that is written from and read into, so that none is mapped anew while a job is measured.
pub(super) struct JobMemory {
    /// Registered with the devices, as much for each operation in flight as the largest takes.
    registered: Vec<DmaBuffer>,
    /// Memory of puts where none is registered, by tag and length; as many as are in flight, so
    /// that they do not all come from a cache.
    written: BTreeMap<(usize, u64), Arc<[u8]>>,
    /// Memory of gets, by length.
    read: BTreeMap<u64, Vec<Vec<u8>>>,
    random: fastrand::Rng,
}

impl JobMemory {
    /// A job's registered memory, filled with bytes that do not compress.
    pub(super) fn new(job: &JobOptions, pool: &Pool, seed: u64) -> Result<Self, Unusable> {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut registered = Vec::new();
        while job.fixedbufs && registered.len() < job.iodepth as usize {
            let Some(mut buffer) = pool.buffer(job.sizes.most() as usize)? else { break };
            random.fill(&mut buffer);
            registered.push(buffer);
        }
        Ok(Self { registered, written: BTreeMap::new(), read: BTreeMap::new(), random })
    }

    /// Touches what will be needed, so that page faults are not measured.
    pub(super) fn warm(&mut self, job: &JobOptions, depth: usize) {
        let Sizes::One(length) = job.sizes else { return };
        if !self.registered.is_empty() {
            return;
        }
        if job.load.writes && !job.verify {
            (0..depth).for_each(|tag| drop(self.source(tag, length, 0, None)));
        }
        if job.load.reads {
            for _ in 0..depth {
                self.release(vec![1; length as usize]);
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
        if let Some(mut buffer) = self.registered.pop() {
            let length = length as usize;
            if let Some(origin) = origin {
                stamp(&mut buffer[..length], place, origin);
            }
            return Source::Dma { buffer, length };
        }
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
        if let Some(buffer) = self.registered.pop() {
            return Destination::Dma { buffer, length: length as usize };
        }
        let kept = self.read.get_mut(&length).and_then(Vec::pop);
        kept.map_or_else(|| Destination::buffer(length as usize), Destination::Owned)
    }

    /// Takes a buffer back.
    pub(super) fn give_back_buffer(&mut self, buffer: DmaBuffer) {
        self.registered.push(buffer);
    }

    /// Takes room back.
    pub(super) fn release(&mut self, bytes: Vec<u8>) {
        self.read.entry(bytes.len() as u64).or_default().push(bytes);
    }
}
