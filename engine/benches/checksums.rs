//! Cost of checksums: each method of this processor beside copying the same bytes.
//!
//! ```text
//! cargo bench -p tidelog-engine --bench checksums
//! ```
//!
//! Bytes go in chunks from a large buffer to another one, as a put's do into the staging ring, and
//! as a get's do from it; or from one chunk to another, both in the cache. All methods take turns,
//! and a figure is the median of its turns: GB/s of the thread's own time, and the same over
//! `memcpy` in that turn.

use std::hint::black_box;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use tidelog_engine::memory::ChecksumMethod;

const CHUNK: usize = 256 << 10;
/// Larger than any cache, and small enough to be one of two.
const LARGE: usize = 256 << 20;
const TURNS: usize = 15;
/// Chunks that are copied over and over where they are cached.
const AGAIN: usize = 256;

/// Reads bytes of one buffer, and writes to the other, or not.
type Work = Box<dyn Fn(&[u8], &mut [u8])>;

fn main() {
    let mut works: Vec<(String, Work)> = vec![
        ("memcpy".into(), Box::new(|from, to| to.copy_from_slice(from))),
        // What no checksum by the processor can do with less.
        ("reading alone".into(), Box::new(|from, _| _ = black_box(sum(from)))),
    ];
    for method in ChecksumMethod::available() {
        works.push((
            format!("copy with checksum, {}", method.name()),
            Box::new(move |from, to| {
                black_box(method.copy_with_checksum(from, to));
            }),
        ));
        works.push((
            format!("past the cache with checksum, {}", method.name()),
            Box::new(move |from, to| {
                black_box(method.stream_with_checksum(from, to));
            }),
        ));
        works.push((
            format!("checksum, then copy, {}", method.name()),
            Box::new(move |from, to| {
                black_box(method.checksum(from));
                to.copy_from_slice(from);
            }),
        ));
        works.push((
            format!("checksum alone, {}", method.name()),
            Box::new(move |from, _| {
                black_box(method.checksum(from));
            }),
        ));
    }
    let from = vec![0x5A_u8; LARGE];
    let mut to = vec![0_u8; LARGE];
    let spread = |work: &Work, to: &mut [u8]| {
        for (from, to) in from.chunks(CHUNK).zip(to.chunks_mut(CHUNK)) {
            work(black_box(from), to);
        }
        LARGE as u32
    };
    table("256 MiB, not cached", &works, |work| spread(work, &mut to));
    let ring = |work: &Work, to: &mut [u8]| {
        for from in from.chunks(CHUNK) {
            work(black_box(from), to);
        }
        LARGE as u32
    };
    table("256 MiB into one chunk", &works, |work| ring(work, &mut to[..CHUNK]));
    let cached = |work: &Work, to: &mut [u8]| {
        for _ in 0..AGAIN {
            work(black_box(&from[..CHUNK]), to);
        }
        (AGAIN * CHUNK) as u32
    };
    table("256 KiB, cached", &works, |work| cached(work, &mut to[..CHUNK]));
    let small = |work: &Work, to: &mut [u8]| {
        for _ in 0..64 * AGAIN {
            work(black_box(&from[..4096]), to);
        }
        (64 * AGAIN * 4096) as u32
    };
    table("4 KiB, cached", &works, |work| small(work, &mut to[..4096]));
}

/// Returns the sum of the words of `bytes`: little more than their reading.
fn sum(bytes: &[u8]) -> u64 {
    let (words, _) = bytes.as_chunks::<8>();
    words.iter().fold(0, |sum, word| sum.wrapping_add(u64::from_le_bytes(*word)))
}

/// Runs all works by turns and prints their medians. The first turn warms up.
fn table(title: &str, works: &[(String, Work)], mut run: impl FnMut(&Work) -> u32) {
    let mut rates = vec![Vec::new(); works.len()];
    for turn in 0..=TURNS {
        for (rates, (_, work)) in rates.iter_mut().zip(works) {
            let begun = time();
            let bytes = run(work);
            if turn > 0 {
                rates.push(f64::from(bytes) / (time() - begun) / 1e9);
            }
        }
    }
    println!("{title}; medians of {TURNS} turns\n{:52} {:>6} {:>10}", "", "GB/s", "of memcpy");
    let copied = rates[0].clone();
    for (rates, (name, _)) in rates.into_iter().zip(works) {
        let ratios = rates.iter().zip(&copied).map(|(rate, copied)| rate / copied).collect();
        println!("{name:52} {:>6.1} {:>10.2}", median(rates), median(ratios));
    }
    println!();
}

/// Returns the seconds that this thread has had, which is less than what passes where others run,
/// too.
fn time() -> f64 {
    Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap()).as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
