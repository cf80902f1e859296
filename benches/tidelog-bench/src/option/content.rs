//! Options on the bytes of writes: `dedupe_percentage=`, `buffer_compress_percentage=` and their
//! like.

use std::sync::Arc;

use super::job::JobOptions;
use super::value::Amount;
use crate::exit::BenchError;

/// Pattern of the bytes of writes. Without any of it buffers are filled once, and written again and
/// again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BufferPattern {
    /// Blocks that are like another one, in percent.
    pub dedupe: u8,
    /// True if that one is of the working set, and not the one before.
    pub working_set: bool,
    /// The working set, in percent of `size`.
    pub working_set_percentage: u8,
    /// True if the working sets of all jobs that say so are one.
    pub global: bool,
    /// Percentage by which each block compresses.
    pub compress: u8,
    /// True if each write has bytes of its own.
    pub refill: bool,
    /// Index of the job, so that jobs write different bytes.
    pub index: u64,
    /// The blocks that may be written again.
    pub candidates: Arc<[DedupeSources]>,
}

/// The first blocks that a job writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DedupeSources {
    /// The job.
    pub key: u64,
    /// Number of blocks.
    pub blocks: u64,
}

impl Default for BufferPattern {
    fn default() -> Self {
        Self {
            dedupe: 0,
            working_set: false,
            working_set_percentage: 5,
            global: false,
            compress: 0,
            refill: false,
            index: 0,
            candidates: Arc::default(),
        }
    }
}

impl BufferPattern {
    /// Returns whether each write is filled anew.
    pub fn is_made_for_each_write(&self) -> bool {
        self.refill || self.dedupe > 0 || self.compress > 0
    }

    /// Returns the key for the bytes of the `clone`th of a job's `numjobs`.
    pub fn key(&self, randseed: u64, clone: u32) -> u64 {
        let job = self.index << 32 | u64::from(clone);
        fastrand::Rng::with_seed(randseed ^ fastrand::Rng::with_seed(job).u64(..)).u64(..)
    }
}

/// Tells each job which blocks it may write again.
///
/// # Errors
/// Options that do not go together.
pub fn with_content(mut jobs: Vec<JobOptions>) -> Result<Vec<JobOptions>, BenchError> {
    for (job, index) in jobs.iter_mut().zip(0..) {
        job.content.index = index;
        check(job).map_err(|what| BenchError::usage(what).within(&job.name))?;
    }
    let sets: Vec<Vec<DedupeSources>> = jobs.iter().map(candidates).collect();
    let shared = jobs.iter().zip(&sets).filter(|(job, _)| job.content.global);
    let shared: Arc<[DedupeSources]> = shared.flat_map(|(_, sets)| sets.iter().copied()).collect();
    for (job, own) in jobs.iter_mut().zip(sets) {
        job.content.candidates = if job.content.global { Arc::clone(&shared) } else { own.into() };
    }
    Ok(jobs)
}

fn check(job: &JobOptions) -> Result<(), String> {
    let BufferPattern { dedupe, working_set, global, .. } = job.content;
    let wrong = |what: &str| Err(what.to_owned());
    if job.verify && job.content.is_made_for_each_write() {
        return wrong(
            "verify stamps each block, so that no two are alike: leave dedupe_percentage, \
                      buffer_compress_percentage and refill_buffers out",
        );
    }
    if global && !working_set {
        return wrong("dedupe_global is for dedupe_mode=working_set");
    }
    if working_set && dedupe > 0 && !matches!(job.size, Some(Amount::Bytes(_))) {
        return wrong("dedupe_mode=working_set is a part of size: give size in bytes");
    }
    Ok(())
}

/// The working sets of a job's `numjobs`.
fn candidates(job: &JobOptions) -> Vec<DedupeSources> {
    let BufferPattern { working_set, working_set_percentage, .. } = job.content;
    let Some(Amount::Bytes(size)) = job.size.filter(|_| working_set) else { return Vec::new() };
    let part = u128::from(size) * u128::from(working_set_percentage) / 100;
    let blocks = (part as u64 / job.sizes.least()).max(1);
    let clones = job.first_clone..job.first_clone + job.numjobs;
    let keys = clones.map(|clone| job.content.key(job.randseed, clone));
    keys.map(|key| DedupeSources { key, blocks }).collect()
}
