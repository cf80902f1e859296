//! The bytes of writes, where each is filled anew.

use std::sync::Arc;

use crate::option::{BufferPattern, DedupeSources, JobOptions};

/// Fills one job's writes.
#[derive(Clone, Debug)]
pub struct Filler {
    key: u64,
    /// Bytes that are alike, or not, as a whole.
    unit: usize,
    dedupe: u8,
    working_set: bool,
    compress: u8,
    candidates: Arc<[DedupeSources]>,
    /// Blocks so far that were like none before.
    fresh: u64,
    random: fastrand::Rng,
}

impl Filler {
    /// Makes the content of the `clone`th of a job's `numjobs`; `None` if it does not mind what it
    /// writes.
    pub fn of(job: &JobOptions, clone: u32) -> Option<Self> {
        let BufferPattern { dedupe, working_set, compress, candidates, .. } = &job.content;
        job.content.is_made_for_each_write().then(|| {
            let key = job.content.key(job.randseed, clone);
            Self {
                key,
                unit: job.sizes.least() as usize,
                dedupe: *dedupe,
                working_set: *working_set,
                compress: *compress,
                candidates: Arc::clone(candidates),
                fresh: 0,
                random: fastrand::Rng::with_seed(key),
            }
        })
    }

    /// Fills what is written next.
    pub fn fill(&mut self, buffer: &mut [u8]) {
        for block in buffer.chunks_mut(self.unit) {
            let (key, number) = self.next();
            fill(block, key, number, self.compress);
        }
    }

    /// Returns the next block: whose, and which of that one's.
    fn next(&mut self) -> (u64, u64) {
        let is_alike = self.dedupe > 0 && self.random.u8(0..100) < self.dedupe;
        if is_alike && self.working_set {
            if let Some(set) = self.random.choice(self.candidates.iter()).copied() {
                return (set.key, self.random.u64(0..set.blocks));
            }
        } else if is_alike && let Some(last) = self.fresh.checked_sub(1) {
            return (self.key, last);
        }
        self.fresh += 1;
        (self.key, self.fresh - 1)
    }
}

/// Fills a block with random bytes, and zeros behind them so that it compresses by `compress`
/// percent.
fn fill(block: &mut [u8], key: u64, number: u64, compress: u8) {
    let random = block.len() * usize::from(100 - compress) / 100;
    let (random, zeros) = block.split_at_mut(random);
    let seed = fastrand::Rng::with_seed(key ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).u64(..);
    fastrand::Rng::with_seed(seed).fill(random);
    zeros.fill(0);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::option::{apply, with_content};

    fn jobs(options: &[(&str, &str)], count: usize) -> Vec<JobOptions> {
        let mut job = JobOptions::default();
        for (name, value) in options {
            apply(&mut job, name, value).unwrap();
        }
        with_content(vec![job; count]).unwrap()
    }

    /// Counts the repetitions of a job's first `count` blocks.
    fn blocks(job: &JobOptions, count: usize) -> BTreeMap<Vec<u8>, usize> {
        let mut filler = Filler::of(job, 0).unwrap();
        let mut blocks = BTreeMap::new();
        for _ in 0..count {
            let mut block = vec![1; 4096];
            filler.fill(&mut block);
            *blocks.entry(block).or_default() += 1;
        }
        blocks
    }

    #[test]
    fn so_many_blocks_are_like_the_one_before() {
        let job = &jobs(&[("dedupe_percentage", "30")], 1)[0];
        assert!(blocks(job, 4000).len().abs_diff(2800) < 100);
        assert_eq!(blocks(&jobs(&[("dedupe_percentage", "100")], 1)[0], 100).len(), 1);
        assert_eq!(blocks(&jobs(&[("refill_buffers", "1")], 1)[0], 100).len(), 100);
    }

    #[test]
    fn a_working_set_is_that_of_a_job_or_of_all() {
        let options = [
            ("size", "4m"),
            ("dedupe_percentage", "50"),
            ("dedupe_mode", "working_set"),
            ("dedupe_working_set_percentage", "10"),
        ];
        let own = jobs(&options, 2);
        let first = blocks(&own[0], 1024);
        assert_eq!(own[0].content.candidates[0].blocks, 102);
        assert!(first.values().filter(|times| **times > 1).count() <= 102);
        assert!(first.len().abs_diff(512) < 60, "{}", first.len());
        assert!(blocks(&own[1], 1024).keys().all(|block| !first.contains_key(block)));
        let shared = jobs(&[&options[..], &[("dedupe_global", "1")]].concat(), 2);
        let first = blocks(&shared[0], 1024);
        let both = blocks(&shared[1], 1024).keys().filter(|it| first.contains_key(*it)).count();
        assert!((100..=204).contains(&both), "{both} of the blocks of both");
    }

    #[test]
    fn a_block_ends_in_as_many_zeros_as_it_compresses() {
        let job = &jobs(&[("buffer_compress_percentage", "75")], 1)[0];
        let (block, _) = blocks(job, 1).pop_first().unwrap();
        assert!(block[1024..].iter().all(|byte| *byte == 0));
        assert!(block[..1024].chunks(16).all(|part| part.iter().any(|byte| *byte != 0)));
    }
}
