//! Inputs near those of a corpus, without a fuzzer: each has a number, from which alone it follows.

use std::path::{Path, PathBuf};

use tidelog_random::Random;

/// Limit of an input, as in `make fuzz`.
const BYTES_MAX: usize = 16 << 10;
const STEPS_MAX: u64 = 4;
const PIECE_MAX: u64 = 64;

/// The committed inputs of a target, in the order of their names.
///
/// # Panics
/// The corpus cannot be read.
pub fn corpus(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target);
    let listed = std::fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{} cannot be listed: {error}", folder.display()));
    let mut paths: Vec<_> = listed.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let read = |path: PathBuf| {
        let bytes = std::fs::read(&path).unwrap();
        (path, bytes)
    };
    paths.into_iter().map(read).collect()
}

/// The mutant of this number.
pub fn mutant(corpus: &[(PathBuf, Vec<u8>)], number: u64) -> Vec<u8> {
    let mut random = Random::new(number);
    let one_of = |random: &mut Random| &corpus[random.below(corpus.len() as u64) as usize].1;
    let mut bytes = one_of(&mut random).clone();
    for _ in 0..=random.below(STEPS_MAX) {
        let other = one_of(&mut random);
        mutate(&mut bytes, other, &mut random);
    }
    bytes.truncate(BYTES_MAX);
    bytes
}

fn mutate(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    let at = random.below(bytes.len() as u64 + 1) as usize;
    let length =
        |left: usize, random: &mut Random| (1 + random.below(PIECE_MAX) as usize).min(left);
    let until = at + length(bytes.len() - at, random);
    match random.below(8) {
        0 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
        1 if at < bytes.len() => bytes[at] = random.draw() as u8,
        2 => write_number(bytes, at, random),
        3 => drop(bytes.drain(at..until)),
        4 => {
            let twice = bytes[at..until].to_vec();
            bytes.splice(at..at, twice);
        }
        5 => {
            let from = random.below(other.len() as u64 + 1) as usize;
            let piece = &other[from..from + length(other.len() - from, random)];
            // In place of as many bytes, or between them.
            let replaced = if random.chance(2) { piece.len().min(bytes.len() - at) } else { 0 };
            bytes.splice(at..at + replaced, piece.iter().copied());
        }
        // The beginning of one and the end of the other.
        6 => {
            bytes.truncate(at);
            bytes.extend(&other[at.min(other.len())..]);
        }
        _ => bytes.truncate(at),
    }
}

/// Writes a number near a power of two, at the ends, or near what was there: where comparisons
/// turn.
fn write_number(bytes: &mut [u8], at: usize, random: &mut Random) {
    let width = [1, 2, 4, 8, 16][random.below(5) as usize];
    let Some(place) = bytes.get_mut(at..at + width) else { return };
    let mut old = [0; 16];
    old[..width].copy_from_slice(place);
    let near = match random.below(4) {
        0 => 0,
        1 => u128::MAX,
        2 => 1 << random.below(8 * width as u64),
        _ => u128::from_le_bytes(old),
    };
    let new = near.wrapping_add(u128::from(random.below(17))).wrapping_sub(8);
    place.copy_from_slice(&new.to_le_bytes()[..width]);
}
